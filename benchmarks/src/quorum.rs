//! Locks on a quorum of five Redis servers, compared with locks on one server.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use leasehold_conformance::harness::{Fault, FaultProxy};
use leasehold_core::{KeeperRuntime, LockClient};
use leasehold_redis::QuorumBackend;
use leasehold_test_servers::{RedisServer, RedisSettings};

use crate::report::{Figure, Goal, Unit};
use crate::rounds::{self, Round, median};
use crate::{peers, usage};

const WORKLOAD: &str = "quorum";

/// Its number among the peers of the uncontended workloads, for [`alone`].
pub(crate) const PEER: usize = 5;

const ROUNDS: usize = 15;
const PERIOD: Duration = Duration::from_millis(300);
const TASKS: [usize; 2] = [1, 16];

/// How long a request or a reply is delayed on [`Path::Delayed`].
const DELAY: Duration = Duration::from_millis(2);

/// The goal for the time of a server in a pair, compared with that of the only server.
const SERVER: f64 = 1.3;

/// The goal for a quorum with a server that does not reply, compared with one whose servers all reply.
const WITHOUT_ONE: f64 = 1.1;

/// The path between client and servers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    Loopback,
    /// A proxy delays every message, as a network does.
    Delayed,
}

impl Path {
    const ALL: [Self; 2] = [Self::Loopback, Self::Delayed];

    fn text(self) -> &'static str {
        match self {
            Self::Loopback => "on loopback",
            Self::Delayed => "over 2 ms each way",
        }
    }

    /// The goal for a pair on five servers, compared with one on one server. On loopback all servers and the client
    /// share the processors, so the work counts; on a network only the round trips do.
    fn goal(self) -> f64 {
        match self {
            Self::Loopback => 4.0,
            Self::Delayed => 1.3,
        }
    }
}

/// One server or a quorum, and a client for each path.
struct Contender {
    servers: Vec<RedisServer>,
    proxies: Vec<FaultProxy>,
    clients: Vec<LockClient>,
}

/// The figures of a contender in one round.
struct Measured {
    round: Round,
    /// The processor time of one server in a pair, in µs.
    server: f64,
}

impl Contender {
    async fn start(servers: usize) -> Result<Self> {
        let servers = (0..servers).map(|_| RedisSettings::new().start()).collect::<Result<Vec<_>, _>>()?;
        let proxy = |server: &RedisServer| {
            let proxy = FaultProxy::start(server.addr())?;
            proxy.apply(Fault::Delay { requests: DELAY, replies: DELAY });
            anyhow::Ok(proxy)
        };
        let proxies = servers.iter().map(proxy).collect::<Result<Vec<_>>>()?;
        let direct = client(servers.iter().map(|server| server.addr())).await?;
        let delayed = client(proxies.iter().map(FaultProxy::addr)).await?;
        let it = Self { servers, proxies, clients: vec![direct, delayed] };
        // Every server votes, and is connected to over both paths.
        for path in Path::ALL {
            it.round(path, 1, PERIOD).await?;
        }
        Ok(it)
    }

    async fn round(&self, path: Path, tasks: usize, period: Duration) -> Result<Measured> {
        let client = self.clients[path as usize].clone();
        let before = self.processor()?;
        let round = rounds::run(tasks, period, move |task| {
            let lock = client.lock(format!("bench/{task:03}"));
            async move { Ok(lock.acquire().await?.release().await?) }
        })
        .await?;
        let used = (self.processor()? - before).as_secs_f64() / self.running().count() as f64;
        Ok(Measured { round, server: 1e6 * used / round.operations as f64 })
    }

    fn running(&self) -> impl Iterator<Item = &RedisServer> {
        self.servers.iter().filter(|server| server.is_running())
    }

    /// The processor time of the servers that run.
    fn processor(&self) -> Result<Duration> {
        let of = |server: &RedisServer| usage::processor_of(&server.id().context("the server has ended")?.to_string());
        self.running().map(of).sum()
    }
}

async fn client(servers: impl Iterator<Item = SocketAddr>) -> Result<LockClient> {
    let hosts: Vec<_> = servers.map(|addr| addr.to_string()).collect();
    match &hosts[..] {
        [only] => peers::client(&format!("redis://{only}"), KeeperRuntime::OwnThread).await,
        several => {
            let backend = QuorumBackend::connect(&format!("redis+quorum://{}", several.join(","))).await?;
            Ok(LockClient::builder(backend).keeper(KeeperRuntime::OwnThread).build()?)
        }
    }
}

pub(crate) async fn run() -> Result<Vec<Figure>> {
    let one = Contender::start(1).await?;
    let five = Contender::start(5).await?;
    let mut paused = Contender::start(5).await?;
    let mut down = Contender::start(5).await?;
    paused.servers[4].pause()?;
    down.servers[4].kill()?;
    // The proxy in front of a server that has ended would accept connections.
    down.proxies[4].apply(Fault::Refuse);
    down.proxies[4].apply(Fault::Disconnect);
    let contenders = [one, five, paused, down];
    let mut figures = Vec::new();
    for path in Path::ALL {
        for tasks in TASKS {
            figures.extend(compare(&contenders, path, tasks).await?);
        }
    }
    Ok(figures)
}

async fn compare(contenders: &[Contender; 4], path: Path, tasks: usize) -> Result<Vec<Figure>> {
    for contender in contenders {
        contender.round(path, tasks, PERIOD).await?;
    }
    let mut measured: [Vec<Measured>; 4] = Default::default();
    for number in 0..ROUNDS {
        // Back and forth, so that no contender always runs after the same one.
        for place in 0..contenders.len() {
            let it = if number % 2 == 0 { place } else { contenders.len() - 1 - place };
            measured[it].push(contenders[it].round(path, tasks, PERIOD).await?);
        }
    }
    let [one, five, paused, down] = &measured;
    let path_text = path.text();
    let mut figures = Vec::new();
    let mut add = |what: String, [own, other]: [&[Measured]; 2], value: fn(&Measured) -> f64, goal: Option<f64>| {
        let ratio = median(own.iter().zip(other).map(|(own, other)| value(own) / value(other)));
        figures.push(match goal {
            Some(most) => Figure::new(WORKLOAD, what, ratio, Unit::Ratio, Goal::AtMost(most)),
            None => Figure::plain(WORKLOAD, what, ratio, Unit::Ratio),
        });
    };
    let (p50, p99) = (|it: &Measured| it.round.p50, |it: &Measured| it.round.p99);
    let of_pair = |which: &str| format!("{which} of a pair {path_text} with {tasks} tasks on five servers");
    add(format!("{}, against one", of_pair("p50")), [five, one], p50, Some(path.goal()));
    add(format!("{}, against one", of_pair("p99")), [five, one], p99, None);
    for (which, without) in [("one of them paused", paused), ("one of them down", down)] {
        add(format!("{}, {which}, against all", of_pair("p50")), [without, five], p50, Some(WITHOUT_ONE));
        add(format!("{}, {which}, against all", of_pair("p99")), [without, five], p99, None);
    }
    if path == Path::Loopback {
        let what = format!("processor of each of five servers in a pair with {tasks} tasks, against one server");
        add(what, [five, one], |it| it.server, Some(SERVER));
        let scale = median(one.iter().map(|it| it.server));
        let what = format!("processor of one server in a pair with {tasks} tasks, here");
        figures.push(Figure::plain(WORKLOAD, what, scale, Unit::Microseconds));
    }
    for (which, value) in [("p50", p50 as fn(&Measured) -> f64), ("p99", p99)] {
        let what = format!("{which} of a pair {path_text} with {tasks} tasks on one server, here");
        figures.push(Figure::plain(WORKLOAD, what, 1e6 * median(one.iter().map(value)), Unit::Microseconds));
    }
    Ok(figures)
}

/// One server or a quorum alone, on loopback, for a profiler.
pub(crate) async fn alone(servers: usize, tasks: usize, period: Duration) -> Result<()> {
    let it = Contender::start(servers).await?;
    let ids: Vec<_> = it.servers.iter().map(|server| server.id()).collect();
    eprintln!("a client in process {}, redis-servers in {ids:?}", std::process::id());
    let before = usage::processor()?;
    let Measured { round, server } = it.round(Path::Loopback, tasks, period).await?;
    let here = 1e6 * (usage::processor()? - before).as_secs_f64() / round.operations as f64;
    println!(
        "{:.0} pairs/s; for each pair {here:.1} µs of processor here, {server:.1} µs in each server",
        round.per_second
    );
    Ok(())
}
