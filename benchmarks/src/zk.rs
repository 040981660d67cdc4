//! Locks of a ZooKeeper of one server, against raw requests on a client of their own.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leasehold_conformance::harness::{ChildProcess, LagMonitor};
use leasehold_core::{KeeperRuntime, LockClient, LockGuard};
use leasehold_test_servers::{ZooKeeperServer, ZooKeeperSettings};
use leasehold_zk::ZkBackend;
use leasehold_zk::zookeeper_client::{Acls, Client, CreateMode};

use crate::report::{Figure, Goal, Unit};
use crate::rounds::{self, Round, median};

const WORKLOAD: &str = "zk";
const ROUNDS: usize = 6;
const PERIOD: Duration = Duration::from_millis(500);

/// Tasks, and the goal of a pair against a raw creation and deletion of an ephemeral sequential node.
const TASKS: [(usize, f64); 3] = [(1, 0.85), (16, 0.85), (256, 0.7)];

const LEASES: usize = 10_000;
const TTL: Duration = Duration::from_secs(30);
const WATCHED: Duration = Duration::from_secs(30);

/// Clients, and the goal of a handoff against a raw pair.
const CLIENTS: [(usize, f64); 4] = [(2, 1.6), (10, 1.6), (100, 1.6), (1_000, 2.0)];
const HANDOFFS: usize = 300;

/// The goal of requests for each contended handoff.
const REQUESTS: f64 = 4.0;

const SHORT: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(100);
const KILLS: usize = 10;

pub(crate) async fn run() -> Result<Vec<Figure>> {
    let server = ZooKeeperSettings::new().start()?;
    let mut figures = pairs(&server).await?;
    figures.extend(handoffs(&server).await?);
    figures.extend(held(&server).await?);
    figures.extend(takeovers(&server).await?);
    Ok(figures)
}

/// With the default tick, as in production: sessions are kept active seldom.
fn url(server: &ZooKeeperServer) -> String {
    format!("zk://{}/", server.addr())
}

async fn client(url: &str, keeper: KeeperRuntime) -> Result<LockClient> {
    Ok(LockClient::builder(ZkBackend::connect(url).await?).keeper(keeper).wait(Duration::MAX).build()?)
}

async fn raw(server: &ZooKeeperServer) -> Result<Client> {
    let client = Client::connect(&server.addr().to_string()).await?;
    // It may be there from another workload.
    let _ = client.create("/raw", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await;
    Ok(client)
}

async fn create_and_delete(client: &Client, task: usize) -> Result<()> {
    let prefix = format!("/raw/{task}-");
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, number) = client.create(&prefix, b"1", &options).await?;
    Ok(client.delete(&format!("{prefix}{number}"), None).await?)
}

/// What an acquire and a release need at least: a creation and a list of the queue at once, and a deletion.
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
    // The tasks of its sessions run beside those that acquire.
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

/// The time from a release to the next grant, against a raw pair, and what a handoff costs.
async fn handoffs(server: &ZooKeeperServer) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let raw = raw(server).await?;
    for (clients, goal) in CLIENTS {
        let (mut ratios, mut costs) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let pair = pair_p50(&raw).await?;
            let (p50, requests) = handoff(server, clients).await?;
            ratios.push(p50 / pair);
            costs.push(requests);
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

/// The requests about locks that a server has processed. A release of a claim that has waited is one request, and two writes. A watch
/// reports the first one.
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

async fn handoff(server: &ZooKeeperServer, count: usize) -> Result<(f64, f64)> {
    #[derive(Default)]
    struct Shared {
        released: Mutex<Option<Instant>>,
        times: Mutex<Vec<f64>>,
        stop: AtomicBool,
        waiting: AtomicU64,
    }
    let shared = Arc::new(Shared::default());
    let first = client(&url(server), KeeperRuntime::CurrentRuntime).await?;
    let guard = first.lock("handoff").acquire().await?;
    let mut tasks = Vec::new();
    for _ in 0..count {
        // Many clients in one process stand for many processes, so their keepers share its runtime.
        let client = client(&url(server), KeeperRuntime::CurrentRuntime).await?;
        let shared = shared.clone();
        tasks.push(tokio::spawn(async move {
            let lock = client.lock("handoff");
            shared.waiting.fetch_add(1, Ordering::Relaxed);
            while !shared.stop.load(Ordering::Relaxed) {
                let guard = lock.acquire().await?;
                let now = Instant::now();
                if let Some(released) = shared.released.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    shared.times.lock().unwrap_or_else(PoisonError::into_inner).push((now - released).as_secs_f64());
                }
                *shared.released.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                // A release without a reply goes on in the background.
                let _ = guard.release().await;
            }
            anyhow::Ok(())
        }));
    }
    while shared.waiting.load(Ordering::Relaxed) < count as u64 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = requests(server)?;
    guard.release().await?;
    let times = || shared.times.lock().unwrap_or_else(PoisonError::into_inner);
    while times().len() < HANDOFFS {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (cost, handoffs) = (requests(server)? - before, times().len() as f64);
    shared.stop.store(true, Ordering::Relaxed);
    let p50 = median(times().iter().copied());
    for task in tasks {
        task.await??;
    }
    Ok((p50, cost / handoffs))
}

/// The writes of a client that holds leases.
async fn held(server: &ZooKeeperServer) -> Result<Vec<Figure>> {
    let client = client(&url(server), KeeperRuntime::OwnThread).await?;
    let mut tasks = Vec::new();
    for task in 0..16 {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            let mut guards = Vec::new();
            for lease in (task..LEASES).step_by(16) {
                guards.push(client.lock(format!("held/{lease}")).ttl(TTL).acquire().await?);
            }
            anyhow::Ok(guards)
        }));
    }
    let mut guards = Vec::new();
    for task in tasks {
        guards.extend(task.await??);
    }
    // Their watches are set meanwhile.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (renewed, before) = (client.stats().renewed, writes(server)?);
    tokio::time::sleep(WATCHED).await;
    let sent = writes(server)? - before;
    ensure!(guards.iter().all(LockGuard::is_held), "a lease was lost");
    ensure!(client.stats().renewed - renewed > 2 * LEASES as u64, "the leases were not renewed");
    drop(guards);
    let _ = client.shutdown().await;
    let periods = WATCHED.as_secs_f64() / (TTL.as_secs_f64() / 3.0);
    let what = "writes in a third of the ttl for 10,000 held leases";
    Ok(vec![Figure::new(WORKLOAD, what, sent / periods, Unit::Ratio, Goal::AtMost(1.0))])
}

/// How long after the ttl a waiter of a killed holder holds.
async fn takeovers(server: &ZooKeeperServer) -> Result<Vec<Figure>> {
    let url = format!("{}?tick={}ms", url(server), TICK.as_millis());
    let client = client(&url, KeeperRuntime::OwnThread).await?;
    let lag_monitor = LagMonitor::start();
    let mut late = Vec::new();
    for round in 0..KILLS {
        let name = format!("killed/{round}");
        let mut holder = holder(&url, &name)?;
        let lock = client.lock(&name).ttl(SHORT);
        let waiter = tokio::spawn(async move { lock.acquire().await.map(|guard| (guard, Instant::now())) });
        tokio::time::sleep(SHORT / 3 + SHORT.mul_f64(round as f64 / KILLS as f64 / 3.0)).await;
        holder.kill()?;
        // The last ping was sent before.
        let kill = Instant::now();
        let (guard, held) = waiter.await??;
        let after = (held - kill).as_secs_f64() - SHORT.as_secs_f64();
        late.push(1000.0 * (after - lag_monitor.lag_since(kill).as_secs_f64()));
        guard.release().await?;
    }
    let worst = late.iter().copied().fold(f64::MIN, f64::max);
    let what = "a killed holder's waiter holds, after the kill and the ttl (worst, less the machine's lag)";
    // The session lasts two ticks longer than the lease, and ends with a tick.
    let goal = Goal::AtMost((TICK * 3 + Duration::from_millis(50)).as_secs_f64() * 1000.0);
    Ok(vec![Figure::new(WORKLOAD, what, worst, Unit::Milliseconds, goal)])
}

/// A process that holds a lock.
fn holder(url: &str, name: &str) -> Result<ChildProcess> {
    let ttl = SHORT.as_millis().to_string();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--hold", url, name, &ttl]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = ChildProcess::spawn(&mut command)?;
    let (_, output, _) = process.take_pipes();
    let mut line = String::new();
    BufReader::new(output.context("the holder has no output")?).read_line(&mut line)?;
    ensure!(line.trim() == "held", "the holder does not hold: {line:?}");
    Ok(process)
}
