//! Acquire and release of locks for which no other client waits.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use leasehold_conformance::harness::{Fault, FaultProxy};
use leasehold_test_servers::{RedisServer, RedisSettings};

use crate::peers::{self, Peer};
use crate::report::{Figure, Goal, Unit};
use crate::rounds::{self, Round, median};
use crate::{commands, placement, usage};

const ROUNDS: usize = 7;
const PERIOD: Duration = Duration::from_millis(300);

/// How long a request or a reply is delayed in [`State::Path`].
const PATH: Duration = Duration::from_millis(2);

/// Where client and server run, and the path between them. If the scheduler chose the CPUs, one program would differ
/// more between runs than the programs differ from each other, because the result depends on how often, and on which
/// core, an idle CPU has to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Client and server share one CPU, so that only the work counts.
    Pinned,
    /// The client has one CPU and the server another, so that each message may have to wake an idle CPU.
    Split,
    /// A proxy delays every message, as a network does.
    Path,
}

/// Measures all peers in one state. It must be called before any thread is started, because running threads keep their
/// CPUs.
pub(crate) fn run(workload: &str, state: State) -> Result<Vec<Figure>> {
    let start = || RedisSettings::new().start();
    let (server, proxy) = match state {
        State::Pinned => {
            let [cpu, _] = placement::two_cpus()?;
            placement::pin(cpu)?;
            (start()?, None)
        }
        State::Split => {
            let [own, other] = placement::two_cpus()?;
            placement::pin(other)?;
            let server = start()?;
            placement::pin(own)?;
            (server, None)
        }
        State::Path => {
            let server = start()?;
            let proxy = FaultProxy::start(server.addr())?;
            proxy.apply(Fault::Delay { requests: PATH, replies: PATH });
            (server, Some(proxy))
        }
    };
    crate::runtime()?.block_on(measure(workload, state, &server, proxy.as_ref()))
}

async fn measure(
    workload: &str,
    state: State,
    server: &RedisServer,
    proxy: Option<&FaultProxy>,
) -> Result<Vec<Figure>> {
    let url = proxy.map_or_else(|| server.url(), |proxy| format!("redis://{}", proxy.addr()));
    let peers: Vec<_> = Peer::all(&url, server.addr()).await?.into_iter().map(Arc::new).collect();
    let mut figures = Vec::new();
    for tasks in [1, 16, 256] {
        for peer in &peers {
            round(peer, tasks, PERIOD / 2).await?;
        }
        let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); peers.len()];
        for number in 0..ROUNDS {
            // Back and forth, so that no peer always runs after the same one.
            let order: Vec<_> =
                if number % 2 == 0 { (0..peers.len()).collect() } else { (0..peers.len()).rev().collect() };
            for peer in order {
                rounds[peer].push(round(&peers[peer], tasks, PERIOD).await?);
            }
        }
        let (own, others) = rounds.split_first().expect("there are peers");
        let speed = |round: &Round| round.per_second;
        let what = |other: &str| format!("pairs/s with {tasks} tasks, against {other}");
        for (peer, other) in peers[1..].iter().zip(others) {
            let ratio = ratio(own, other, speed);
            figures.push(match peer.goal(tasks) {
                Some(least) => Figure::new(workload, what(peer.name()), ratio, Unit::Ratio, Goal::AtLeast(least)),
                None => Figure::plain(workload, what(peer.name()), ratio, Unit::Ratio),
            });
            if matches!(**peer, Peer::SmallestPair(_)) {
                let ratio = self::ratio(own, other, |round| round.p99);
                let what = format!("p99 of a pair with {tasks} tasks, against {}", peer.name());
                figures.push(Figure::plain(workload, what, ratio, Unit::Ratio));
            }
        }
        let libraries = peers[1..].iter().zip(others).filter(|(peer, _)| peer.is_library());
        // The ratio to the faster of the two is the smaller one.
        let ratio = libraries.map(|(_, other)| ratio(own, other, speed)).fold(f64::INFINITY, f64::min);
        let goal = Goal::AtLeast(state.goal(tasks));
        figures.push(Figure::new(workload, what("the faster of the two peers"), ratio, Unit::Ratio, goal));
        let scale = median(own.iter().map(speed));
        figures.push(Figure::plain(workload, format!("pairs with {tasks} tasks, here"), scale, Unit::PerSecond));
    }
    Ok(figures)
}

/// The median of the ratios of rounds that followed each other.
fn ratio(own: &[Round], other: &[Round], value: impl Fn(&Round) -> f64) -> f64 {
    median(own.iter().zip(other).map(|(own, other)| value(own) / value(other)))
}

impl State {
    /// The goal for the ratio to the faster of the two other libraries.
    fn goal(self, tasks: usize) -> f64 {
        match (self, tasks) {
            (Self::Pinned, 1) => 1.15,
            (Self::Pinned, 16) => 1.3,
            (Self::Pinned, _) => 1.6,
            (Self::Split, 16) => 0.8,
            (Self::Split, _) => 1.0,
            // The measurements when the goals were set, reduced by their spread: 1.0, 1.82 and 1.55.
            (Self::Path, 1) => 0.95,
            (Self::Path, 16) => 1.7,
            (Self::Path, _) => 1.45,
        }
    }
}

/// One peer alone, for a profiler.
pub(crate) async fn alone(peer: usize, tasks: usize, period: Duration) -> Result<()> {
    let server = RedisSettings::new().start()?;
    let peers = Peer::all(&server.url(), server.addr()).await?;
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

async fn round(peer: &Arc<Peer>, tasks: usize, period: Duration) -> Result<Round> {
    let peer = peer.clone();
    // All names have the same length, because a request contains the name. The smallest pair and the peers use names as
    // keys without changes.
    let initial = peer.name().replace("the ", "").chars().next().unwrap_or_default();
    let names: Arc<[String]> = (0..tasks).map(|task| format!("bench/{initial}/{task:03}")).collect();
    rounds::run(tasks, period, move |task| {
        let (peer, names) = (peer.clone(), names.clone());
        async move { peer.pair(&names[task]).await }
    })
    .await
}
