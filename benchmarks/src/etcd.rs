//! Locks on an etcd cluster of one member, compared with raw requests on their own client.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leasehold_core::{KeeperRuntime, LockClient, LockGuard};
use leasehold_etcd::EtcdBackend;
use leasehold_etcd::etcd_client::{
    Client, Compare, CompareOp, EventType, GetOptions, KvClient, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    WatchOptions,
};
use leasehold_test_servers::{EtcdServer, EtcdSettings};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::report::{Figure, Goal, Unit};
use crate::rounds::{self, Round, median};
use crate::takeover::{self, Ends};
use crate::{contended, held, usage};

const WORKLOAD: &str = "etcd";
const ROUNDS: usize = 7;
const PERIOD: Duration = Duration::from_millis(500);

/// The numbers of tasks, each with the goal of a pair compared with a raw put and delete.
const TASKS: [(usize, f64); 3] = [(1, 0.8), (16, 0.45), (256, 0.3)];

/// The goal of a pair compared with a bare transaction and a delete.
const OF_BARE: f64 = 0.85;

const LEASES: usize = 10_000;
const WATCHED: Duration = Duration::from_secs(30);

/// The numbers of waiters and of the clients that they belong to. The server sends each change of a queue to each
/// client that waits in it.
const WAITERS: [(usize, usize); 5] = [(2, 2), (10, 10), (100, 10), (100, 100), (1_000, 10)];
const HANDOFFS: usize = 1_000;

const SHORT: Duration = Duration::from_secs(2);

pub(crate) async fn run() -> Result<Vec<Figure>> {
    // As in production, except for the folder.
    let server = EtcdSettings::new().option("heartbeat-interval=100").option("election-timeout=1000").start()?;
    let mut figures = pairs(&server).await?;
    figures.extend(handoffs(&server).await?);
    figures.extend(held(&server).await?);
    figures.extend(takeovers(&server).await?);
    Ok(figures)
}

fn url(server: &EtcdServer) -> String {
    format!("etcd://{}/", server.addr())
}

/// A client that waits for a lock for as long as necessary.
pub(crate) async fn client(url: &str, keeper: KeeperRuntime) -> Result<LockClient> {
    Ok(LockClient::builder(EtcdBackend::connect(url).await?).keeper(keeper).wait(Duration::MAX).build()?)
}

async fn raw(server: &EtcdServer) -> Result<Client> {
    Ok(Client::connect([server.url()], None).await?)
}

async fn put_and_delete(mut kv: KvClient, task: usize) -> Result<()> {
    let key = format!("raw/{task}");
    kv.put(key.as_str(), "1", None).await?;
    ensure!(kv.delete(key, None).await?.deleted() == 1);
    Ok(())
}

/// The transaction of an acquire, and the delete of a release.
async fn bare_transaction(mut kv: KvClient, task: usize, lease: i64) -> Result<()> {
    let (queue, end, key) = (format!("bare/{task}/"), format!("bare/{task}0"), format!("bare/{task}/claim"));
    let first = GetOptions::new().with_range(end).with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(1);
    let is_new = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
    let is_current = Compare::mod_revision("bare/epoch", CompareOp::Equal, 0);
    let put = TxnOp::put(key.as_str(), "1", Some(PutOptions::new().with_lease(lease)));
    let txn = Txn::new().when([is_current, is_new]).and_then([put, TxnOp::get(queue, Some(first))]);
    ensure!(kv.txn(txn).await?.succeeded());
    ensure!(kv.delete(key, None).await?.deleted() == 1);
    Ok(())
}

async fn pairs(server: &EtcdServer) -> Result<Vec<Figure>> {
    let client = client(&url(server), KeeperRuntime::OwnThread).await?;
    let raw = raw(server).await?;
    let lease = raw.lease_client().grant(3_600, None).await?.id();
    let mut figures = Vec::new();
    for (tasks, goal) in TASKS {
        let own = || {
            let client = client.clone();
            rounds::run(tasks, PERIOD, move |task| {
                let lock = client.lock(format!("bench/{task}"));
                async move { Ok(lock.acquire().await?.release().await?) }
            })
        };
        let put = || {
            let kv = raw.kv_client();
            rounds::run(tasks, PERIOD, move |task| put_and_delete(kv.clone(), task))
        };
        let bare = || {
            let kv = raw.kv_client();
            rounds::run(tasks, PERIOD, move |task| bare_transaction(kv.clone(), task, lease))
        };
        own().await?;
        let mut rounds: Vec<[Round; 3]> = Vec::new();
        for number in 0..ROUNDS {
            rounds.push(match number % 3 {
                0 => [own().await?, put().await?, bare().await?],
                1 => {
                    let (put, bare) = (put().await?, bare().await?);
                    [own().await?, put, bare]
                }
                _ => {
                    let bare = bare().await?;
                    [own().await?, put().await?, bare]
                }
            });
        }
        let against = |index: usize| median(rounds.iter().map(|round| round[0].per_second / round[index].per_second));
        let scale = median(rounds.iter().map(|round| round[0].per_second));
        let what = |peer: &str| format!("pairs/s with {tasks} tasks, against {peer}");
        figures.push(Figure::new(WORKLOAD, what("a raw put and delete"), against(1), Unit::Ratio, Goal::AtLeast(goal)));
        let peer = what("a bare transaction and delete");
        figures.push(Figure::new(WORKLOAD, peer, against(2), Unit::Ratio, Goal::AtLeast(OF_BARE)));
        figures.push(Figure::plain(WORKLOAD, format!("pairs with {tasks} tasks, here"), scale, Unit::PerSecond));
    }
    Ok(figures)
}

/// The time from a release to the next grant, compared with a raw put.
async fn handoffs(server: &EtcdServer) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let raw = raw(server).await?;
    for (waiters, clients) in WAITERS {
        let mut ratios = Vec::new();
        for _ in 0..3 {
            let put = put_p50(raw.kv_client()).await?;
            ratios.push(handoff_p50(server, waiters, clients).await? / put);
        }
        let bare = notification_p50(server, clients).await? / put_p50(raw.kv_client()).await?;
        let what = format!("p50 of a handoff with {waiters} waiters of {clients} clients, against that of a raw put");
        figures.push(Figure::new(WORKLOAD, what, median(ratios), Unit::Ratio, Goal::AtMost(1.7)));
        let what = format!("the same from a deletion to its event, with {clients} bare watches");
        figures.push(Figure::plain(WORKLOAD, what, bare, Unit::Ratio));
    }
    Ok(figures)
}

/// The least time that a handoff can take: from a deletion to its event, with bare watches of this many clients. Each
/// watches the whole queue.
async fn notification_p50(server: &EtcdServer, watches: usize) -> Result<f64> {
    const QUEUE: &str = "watched/";
    let (seen, mut events) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    for index in 0..watches {
        let client = raw(server).await?;
        let options = WatchOptions::new().with_prefix();
        let mut stream = client.watch_client().watch(QUEUE, Some(options)).await?;
        // The server sends the events to one watch after another.
        let seen = (index == watches / 2).then(|| seen.clone());
        tasks.spawn(async move {
            while let Ok(Some(message)) = stream.message().await {
                let is_deletion = message.events().iter().any(|event| event.event_type() == EventType::Delete);
                if let Some(seen) = seen.as_ref().filter(|_| is_deletion) {
                    let _ = seen.send(Instant::now());
                }
            }
            drop(client);
        });
    }
    let (mut kv, mut times) = (raw(server).await?.kv_client(), Vec::new());
    for number in 0..HANDOFFS / 2 {
        let key = format!("{QUEUE}{number}");
        kv.put(key.as_str(), "1", None).await?;
        let begin = Instant::now();
        kv.delete(key, None).await?;
        let seen = events.recv().await.context("the watches have ended")?;
        times.push((seen - begin).as_secs_f64());
    }
    Ok(median(times))
}

async fn put_p50(mut kv: KvClient) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..500 {
        let begin = Instant::now();
        kv.put("raw/p50", "1", None).await?;
        times.push(begin.elapsed().as_secs_f64());
    }
    Ok(median(times))
}

async fn handoff_p50(server: &EtcdServer, waiters: usize, count: usize) -> Result<f64> {
    // Several clients in one process simulate several processes, so their keepers share the runtime of this process.
    let first = client(&url(server), KeeperRuntime::CurrentRuntime).await?;
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(client(&url(server), KeeperRuntime::CurrentRuntime).await?);
    }
    Ok(contended::handoffs(&first, &clients, waiters, HANDOFFS, || Ok(0.0)).await?.p50)
}

fn processor(server: &EtcdServer) -> Result<Duration> {
    usage::processor_of(&server.id().context("the server has ended")?.to_string())
}

/// The processor time that a server uses because of held leases: the time with leases minus the time without.
async fn held(server: &EtcdServer) -> Result<Vec<Figure>> {
    let idle = {
        let before = processor(server)?;
        tokio::time::sleep(WATCHED / 3).await;
        (processor(server)? - before) * 3
    };
    let client = client(&url(server), KeeperRuntime::OwnThread).await?;
    let guards = held::acquire(&client, "held", LEASES).await?;
    // The watches of the leases are opened meanwhile.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (renewed, before) = (client.stats().renewed, processor(server)?);
    tokio::time::sleep(WATCHED).await;
    let used = (processor(server)? - before).saturating_sub(idle);
    ensure!(guards.iter().all(LockGuard::is_held), "a lease was lost");
    ensure!(client.stats().renewed - renewed > 2 * LEASES as u64, "the leases were not renewed");
    let percent = 100.0 * used.as_secs_f64() / WATCHED.as_secs_f64();
    drop(guards);
    let _ = client.shutdown().await;
    let what = "server's processor for 10,000 held leases";
    Ok(vec![Figure::new(WORKLOAD, what, percent, Unit::Percent, Goal::AtMost(2.0))])
}

/// How long after the ttl a waiter takes over from a killed holder.
async fn takeovers(server: &EtcdServer) -> Result<[Figure; 2]> {
    let url = url(server);
    let client = client(&url, KeeperRuntime::OwnThread).await?;
    let samples = takeover::killed(&client, &url, SHORT, Ends::WithinTheTtl).await?;
    Ok(takeover::figures(WORKLOAD, "a killed holder's waiter holds, after the kill and the ttl", &samples, 600.0))
}
