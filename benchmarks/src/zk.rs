//! Locks on a single ZooKeeper server, compared with raw requests on their own client.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use leasehold_core::{KeeperRuntime, LockClient, LockGuard};
use leasehold_test_servers::{ZooKeeperServer, ZooKeeperSettings};
use leasehold_zk::ZkBackend;
use leasehold_zk::zookeeper_client::{Acls, Client, CreateMode};

use crate::contended::Handoffs;
use crate::report::{Figure, Goal, Unit};
use crate::rounds::{self, Round, median};
use crate::takeover::{self, Ends};
use crate::{contended, held};

const WORKLOAD: &str = "zk";
const ROUNDS: usize = 6;
const PERIOD: Duration = Duration::from_millis(500);

/// The numbers of tasks, each with the goal of a pair compared with the raw creation and deletion of an ephemeral
/// sequential node.
const TASKS: [(usize, f64); 3] = [(1, 0.85), (16, 0.85), (256, 0.7)];

const LEASES: usize = 10_000;
const WATCHED: Duration = Duration::from_secs(30);

/// The numbers of clients, each with the goal of a handoff compared with a raw pair.
const CLIENTS: [(usize, f64); 4] = [(2, 1.6), (10, 1.6), (100, 1.6), (1_000, 2.0)];
const HANDOFFS: usize = 300;

/// The goal for requests per contended handoff.
const REQUESTS: f64 = 4.0;

const SHORT: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(100);

pub(crate) async fn run() -> Result<Vec<Figure>> {
    let server = ZooKeeperSettings::new().start()?;
    let mut figures = pairs(&server).await?;
    figures.extend(handoffs(&server).await?);
    figures.extend(held(&server).await?);
    figures.extend(takeovers(&server).await?);
    Ok(figures)
}

/// With the default tick, as in production. Then sessions are rarely kept active.
fn url(server: &ZooKeeperServer) -> String {
    format!("zk://{}/", server.addr())
}

pub(crate) async fn client(url: &str, keeper: KeeperRuntime) -> Result<LockClient> {
    Ok(LockClient::builder(ZkBackend::connect(url).await?).keeper(keeper).wait(Duration::MAX).build()?)
}

async fn raw(server: &ZooKeeperServer) -> Result<Client> {
    let client = Client::connect(&server.addr().to_string()).await?;
    // Another workload may have created it.
    let _ = client.create("/raw", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await;
    Ok(client)
}

async fn create_and_delete(client: &Client, task: usize) -> Result<()> {
    let prefix = format!("/raw/{task}-");
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, number) = client.create(&prefix, b"1", &options).await?;
    Ok(client.delete(&format!("{prefix}{number}"), None).await?)
}

/// The least that an acquire and a release need: a creation and a list of the queue at once, and a deletion.
async fn create_list_and_delete(client: &Client, task: usize) -> Result<()> {
    let (queue, prefix) = (format!("/raw/queue-{task}"), format!("/raw/queue-{task}/x-"));
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (created, listed) = tokio::join!(client.create(&prefix, b"1", &options), client.list_children(&queue));
    let (_, number) = created?;
    ensure!(listed?.len() == 1, "another client uses this queue");
    Ok(client.delete(&format!("{prefix}{number}"), None).await?)
}

async fn pairs(server: &ZooKeeperServer) -> Result<Vec<Figure>> {
    let apart = client(&url(server), KeeperRuntime::OwnThread).await?;
    // Its session tasks run beside the tasks that acquire.
    let beside = client(&url(server), KeeperRuntime::CurrentRuntime).await?;
    let raw = raw(server).await?;
    let mut figures = Vec::new();
    for (tasks, goal) in TASKS {
        let own = |client: &LockClient| {
            let client = client.clone();
            rounds::run(tasks, PERIOD, move |task| {
                let lock = client.lock(format!("bench/{task}"));
                async move { Ok(lock.acquire().await?.release().await?) }
            })
        };
        let pair = || {
            let raw = raw.clone();
            rounds::run(tasks, PERIOD, move |task| {
                let raw = raw.clone();
                async move { create_and_delete(&raw, task).await }
            })
        };
        let bare = || {
            let raw = raw.clone();
            rounds::run(tasks, PERIOD, move |task| {
                let raw = raw.clone();
                async move { create_list_and_delete(&raw, task).await }
            })
        };
        for task in 0..tasks {
            let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
            let _ = raw.create(&format!("/raw/queue-{task}"), b"", &options).await;
        }
        own(&apart).await?;
        own(&beside).await?;
        let mut rounds: Vec<[Round; 4]> = Vec::new();
        for number in 0..ROUNDS {
            rounds.push(match number % 2 {
                0 => [own(&apart).await?, pair().await?, own(&beside).await?, bare().await?],
                _ => {
                    let (bare, beside, pair) = (bare().await?, own(&beside).await?, pair().await?);
                    [own(&apart).await?, pair, beside, bare]
                }
            });
        }
        let against = median(rounds.iter().map(|round| round[0].per_second / round[1].per_second));
        let scale = median(rounds.iter().map(|round| round[0].per_second));
        let what = format!("pairs/s with {tasks} tasks, against a raw creation and deletion");
        figures.push(Figure::new(WORKLOAD, what, against, Unit::Ratio, Goal::AtLeast(goal)));
        figures.push(Figure::plain(WORKLOAD, format!("pairs with {tasks} tasks, here"), scale, Unit::PerSecond));
        let floor = median(rounds.iter().map(|round| round[0].per_second / round[3].per_second));
        let what = format!("pairs/s with {tasks} tasks, against the same requests on a bare client");
        figures.push(Figure::plain(WORKLOAD, what, floor, Unit::Ratio));
        let crossing = median(rounds.iter().map(|round| round[0].per_second / round[2].per_second));
        let what = format!("pairs/s with {tasks} tasks, against sessions on the caller's runtime");
        figures.push(Figure::plain(WORKLOAD, what, crossing, Unit::Ratio));
    }
    Ok(figures)
}

/// The time from a release to the next grant compared with a raw pair, and the cost of a handoff.
async fn handoffs(server: &ZooKeeperServer) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let raw = raw(server).await?;
    for (clients, goal) in CLIENTS {
        let (mut ratios, mut costs) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let pair = pair_p50(&raw).await?;
            let handoffs = handoff(server, clients).await?;
            ratios.push(handoffs.p50 / pair);
            costs.push(handoffs.cost);
        }
        let what = format!("p50 of a handoff with {clients} clients, against that of a raw pair");
        figures.push(Figure::new(WORKLOAD, what, median(ratios), Unit::Ratio, Goal::AtMost(goal)));
        let what = format!("requests for each contended cycle of {clients} clients");
        figures.push(Figure::new(WORKLOAD, what, median(costs), Unit::Ratio, Goal::AtMost(REQUESTS)));
    }
    Ok(figures)
}

async fn pair_p50(client: &Client) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..500 {
        let begin = Instant::now();
        create_and_delete(client, 0).await?;
        times.push(begin.elapsed().as_secs_f64());
    }
    Ok(median(times))
}

/// The requests about locks that a server has processed. The release of a claim that has waited is one request with two
/// writes, of which a watch reports the first.
fn requests(server: &ZooKeeperServer) -> Result<f64> {
    let statistics: BTreeMap<String, f64> = server.side().statistics()?;
    let number = |name: &str| statistics.get(name).copied().unwrap_or_default();
    let requests = number("cnt_leasehold_write_per_namespace") + number("cnt_leasehold_read_per_namespace");
    Ok(requests - number("cnt_node_changed_watch_count"))
}

fn writes(server: &ZooKeeperServer) -> Result<f64> {
    let statistics = server.side().statistics()?;
    Ok(statistics.get("cnt_leasehold_write_per_namespace").copied().unwrap_or_default())
}

async fn handoff(server: &ZooKeeperServer, count: usize) -> Result<Handoffs> {
    // Many clients in one process stand for many processes, so their keepers share its runtime.
    let first = client(&url(server), KeeperRuntime::CurrentRuntime).await?;
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(client(&url(server), KeeperRuntime::CurrentRuntime).await?);
    }
    contended::handoffs(&first, &clients, count, HANDOFFS, || requests(server)).await
}

/// The writes of a client that holds leases.
async fn held(server: &ZooKeeperServer) -> Result<Vec<Figure>> {
    let client = client(&url(server), KeeperRuntime::OwnThread).await?;
    let guards = held::acquire(&client, "held", LEASES).await?;
    // The watches of the leases are set meanwhile.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (renewed, before) = (client.stats().renewed, writes(server)?);
    tokio::time::sleep(WATCHED).await;
    let sent = writes(server)? - before;
    ensure!(guards.iter().all(LockGuard::is_held), "a lease was lost");
    ensure!(client.stats().renewed - renewed > 2 * LEASES as u64, "the leases were not renewed");
    drop(guards);
    let _ = client.shutdown().await;
    let periods = WATCHED.as_secs_f64() / (held::TTL.as_secs_f64() / 3.0);
    let what = "writes in a third of the ttl for 10,000 held leases";
    Ok(vec![Figure::new(WORKLOAD, what, sent / periods, Unit::Ratio, Goal::AtMost(1.0))])
}

/// How long after the ttl a waiter takes over from a killed holder.
async fn takeovers(server: &ZooKeeperServer) -> Result<[Figure; 2]> {
    let url = format!("{}?tick={}ms", url(server), TICK.as_millis());
    let client = client(&url, KeeperRuntime::OwnThread).await?;
    let samples = takeover::killed(&client, &url, SHORT, Ends::WithinTheTtl).await?;
    // The session lasts two ticks longer than the lease, and ends at a tick.
    let bound = (TICK * 3 + Duration::from_millis(50)).as_secs_f64() * 1000.0;
    Ok(takeover::figures(WORKLOAD, "a killed holder's waiter holds, after the kill and the ttl", &samples, bound))
}
