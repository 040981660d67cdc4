//! Locks on a Redis Cluster of three primaries, compared with locks on one server, and 100,000 leases on it.

use std::time::Duration;

use anyhow::Result;
use leasehold_core::{KeeperRuntime, LockClient};
use leasehold_test_servers::{RedisCluster, RedisSettings};

use crate::report::{Figure, Goal, Unit};
use crate::rounds::{self, Round, median};
use crate::{held, peers, usage};

const WORKLOAD: &str = "cluster";

const ROUNDS: usize = 15;
const PERIOD: Duration = Duration::from_millis(300);
const TASKS: [usize; 3] = [1, 16, 256];

/// How many leases are renewed.
const LEASES: usize = 100_000;

pub(crate) async fn run() -> Result<Vec<Figure>> {
    let server = RedisSettings::new().start()?;
    let nodes = RedisCluster::start(3, &RedisSettings::new())?;
    let one = peers::client(&server.url(), KeeperRuntime::OwnThread).await?;
    let url = format!("redis+cluster://{}", nodes.nodes[0].addr());
    let several = peers::client(&url, KeeperRuntime::OwnThread).await?;
    let mut figures = Vec::new();
    for tasks in TASKS {
        let mut measured: [Vec<Round>; 2] = Default::default();
        for client in [&one, &several] {
            round(client, tasks).await?;
        }
        for number in 0..ROUNDS {
            // Back and forth, so that neither always runs after the other.
            for place in 0..2 {
                let it = (place + number) % 2;
                measured[it].push(round([&one, &several][it], tasks).await?);
            }
        }
        let [one, several] = &measured;
        let ratio =
            |value: fn(&Round) -> f64| median(several.iter().zip(one).map(|(own, other)| value(own) / value(other)));
        let what = |which: &str| format!("{which} with {tasks} tasks on three nodes, against one server");
        figures.push(Figure::plain(WORKLOAD, what("p50 of a pair"), ratio(|it| it.p50), Unit::Ratio));
        figures.push(Figure::plain(WORKLOAD, what("pairs"), ratio(|it| it.per_second), Unit::Ratio));
    }
    drop(one);
    figures.push(renewals(&several).await?);
    Ok(figures)
}

async fn round(client: &LockClient, tasks: usize) -> Result<Round> {
    let client = client.clone();
    rounds::run(tasks, PERIOD, move |task| {
        let lock = client.lock(format!("bench/{task:03}"));
        async move { Ok(lock.acquire().await?.release().await?) }
    })
    .await
}

/// The processor time that one renewal of all leases takes here, compared with a tenth of the ttl. The keeper is one
/// thread, so this is how long it takes if they are all due at once.
async fn renewals(client: &LockClient) -> Result<Figure> {
    let guards = held::acquire(client, "held", LEASES).await?;
    let (renewed, before) = (client.stats().renewed, usage::processor()?);
    tokio::time::sleep(held::TTL).await;
    let (renewed, used) = (client.stats().renewed - renewed, usage::processor()? - before);
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    anyhow::ensure!(lost == 0, "{lost} leases were lost");
    let of_all = used.mul_f64(LEASES as f64 / renewed as f64);
    let what = "processor for one renewal of 100,000 leases on three nodes, against ttl / 10";
    let ratio = of_all.as_secs_f64() / (held::TTL / 10).as_secs_f64();
    Ok(Figure::new(WORKLOAD, what, ratio, Unit::Ratio, Goal::AtMost(1.0)))
}
