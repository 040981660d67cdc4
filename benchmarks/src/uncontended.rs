//! Acquire and release of locks that nobody else wants.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use conformance_tests::harness::RedisSettings;

use crate::commands;
use crate::peers::{self, Peer};
use crate::report::{Figure, Goal, Unit};
use crate::rounds::{self, Round, median};
use crate::usage;

const WORKLOAD: &str = "uncontended";
const ROUNDS: usize = 11;
const PERIOD: Duration = Duration::from_millis(400);

pub(crate) async fn run() -> Result<Vec<Figure>> {
    let server = RedisSettings::new().start()?;
    let peers: Vec<_> = Peer::all(&server).await?.into_iter().map(Arc::new).collect();
    let mut figures = Vec::new();
    for tasks in [1, 16, 256] {
        for peer in &peers {
            round(peer, tasks, PERIOD / 2).await?;
        }
        let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); peers.len()];
        for number in 0..ROUNDS {
            // Forth and back, so that nobody always runs after the same neighbour.
            let order: Vec<_> =
                if number % 2 == 0 { (0..peers.len()).collect() } else { (0..peers.len()).rev().collect() };
            for peer in order {
                rounds[peer].push(round(&peers[peer], tasks, PERIOD).await?);
            }
        }
        let (own, others) = rounds.split_first().expect("there are peers");
        for (peer, other) in peers[1..].iter().zip(others) {
            let ratio = median(own.iter().zip(other).map(|(own, other)| own.per_second / other.per_second));
            let what = format!("pairs/s with {tasks} tasks, against {}", peer.name());
            figures.push(match goal(peer, tasks) {
                Some(least) => Figure::new(WORKLOAD, what, ratio, Unit::Ratio, Goal::AtLeast(least)),
                None => Figure::plain(WORKLOAD, what, ratio, Unit::Ratio),
            });
            if matches!(**peer, Peer::SmallestPair(_)) {
                let ratio = median(own.iter().zip(other).map(|(own, other)| own.p99 / other.p99));
                let what = format!("p99 of a pair with {tasks} tasks, against {}", peer.name());
                figures.push(Figure::plain(WORKLOAD, what, ratio, Unit::Ratio));
            }
        }
        let scale = median(own.iter().map(|round| round.per_second));
        figures.push(Figure::plain(WORKLOAD, format!("pairs with {tasks} tasks, here"), scale, Unit::PerSecond));
    }
    Ok(figures)
}

/// One peer alone, for a profiler.
pub(crate) async fn alone(peer: usize, tasks: usize, period: Duration) -> Result<()> {
    let server = RedisSettings::new().start()?;
    let peers = Peer::all(&server).await?;
    let peer = Arc::new(peers.into_iter().nth(peer).context("there is no such peer")?);
    eprintln!("{} in process {}, redis-server in {:?}", peer.name(), std::process::id(), server.id());
    let mut side = peers::connect(&server.url()).await?;
    let before = (usage::server_processor(&mut side).await?, usage::processor()?, commands::sent(&mut side).await?);
    let round = round(&peer, tasks, period).await?;
    let server_used = usage::server_processor(&mut side).await? - before.0;
    let used = usage::processor()? - before.1;
    let sent = (commands::sent(&mut side).await? - before.2) as f64 / (round.per_second * period.as_secs_f64());
    let each = |used: Duration| 1e6 * used.as_secs_f64() / (round.per_second * period.as_secs_f64());
    println!(
        "{:.0} pairs/s; for each pair {:.1} µs of processor here, {:.1} µs in the server, {sent:.2} scripts",
        round.per_second,
        each(used),
        each(server_used)
    );
    Ok(())
}

fn goal(peer: &Peer, tasks: usize) -> Option<f64> {
    match (peer, tasks) {
        (Peer::SameScripts(_), 1) => Some(0.9),
        (Peer::SmallestPair(_), 1) => Some(0.75),
        (Peer::SmallestPair(_), _) => Some(0.85),
        (Peer::Rslock(_) | Peer::AsyncRedisLock(..), 16 | 256) => Some(1.0),
        _ => None,
    }
}

async fn round(peer: &Arc<Peer>, tasks: usize, period: Duration) -> Result<Round> {
    let peer = peer.clone();
    // All names are of one length, since names travel. The smallest pair's and the peers' are keys as they are.
    let initial = peer.name().replace("the ", "").chars().next().unwrap_or_default();
    let names: Arc<[String]> = (0..tasks).map(|task| format!("bench/{initial}/{task:03}")).collect();
    rounds::run(tasks, period, move |task| {
        let (peer, names) = (peer.clone(), names.clone());
        async move { peer.pair(&names[task]).await }
    })
    .await
}
