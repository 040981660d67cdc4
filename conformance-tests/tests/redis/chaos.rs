//! All faults together: connections for notifications are killed, scripts are flushed, holders crash, and waiters are
//! dropped. No two hold at once, no client is stuck, and the lock is never idle for longer than a dead holder's lease.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold_conformance::history::History;
use leasehold_core::{ErrorKind, LockClient, LockName};

use super::support::{Redis, Stopwatch, case, client};

const TTL: Duration = Duration::from_millis(600);
const CLIENTS: u64 = 6;
const TASKS: u64 = 4;
const LASTS: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Tally {
    is_over: AtomicBool,
    /// The number of acquires that have begun. It decides which holders crash and which waiters are dropped, so that
    /// enough do on any machine.
    begun: AtomicU64,
    crashes: AtomicU64,
    vanished: AtomicU64,
    unclear: AtomicU64,
}

/// A number below `bound` that differs with every step of every worker of every run.
fn chance(state: &RandomState, step: (u64, u64), bound: u64) -> u64 {
    state.hash_one(step) % bound
}

async fn work(client: LockClient, worker: u64, history: Arc<History>, tally: Arc<Tally>) -> u64 {
    let (name, random) = (LockName::new("chaos").unwrap(), RandomState::new());
    let mut held = 0;
    for step in 0.. {
        if tally.is_over.load(Ordering::Relaxed) {
            break;
        }
        let number = tally.begun.fetch_add(1, Ordering::Relaxed);
        let crashes = number % 20 == 10;
        let lock = client.lock(name.as_str()).wait(Duration::from_secs(10));
        // A crashed holder does not renew and does not release.
        let lock = if crashes { lock.without_renewal() } else { lock };
        let patience = match number % 20 {
            5 => Duration::from_millis(chance(&random, (worker, step), 40)),
            _ => Duration::from_secs(10),
        };
        let guard = match tokio::time::timeout(patience, lock.acquire()).await {
            Ok(Ok(guard)) => guard,
            Ok(Err(error)) => {
                // The connection of its request was killed, so its outcome is unknown.
                assert!(matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Unavailable), "{error:?}");
                tally.unclear.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            Err(_) => {
                tally.vanished.fetch_add(1, Ordering::Relaxed);
                continue;
            }
        };
        let from = history.now();
        held += 1;
        tokio::time::sleep(Duration::from_millis(chance(&random, (worker + 1_000, step), 3))).await;
        history.ends(&name, guard.fencing_token(), from, || guard.is_held());
        if crashes {
            tally.crashes.fetch_add(1, Ordering::Relaxed);
            std::mem::forget(guard);
        } else {
            // The keeper releases a claim with an unknown outcome in the background.
            let _ = guard.release().await;
        }
    }
    held
}

/// Kills connections for notifications twenty times a second, and flushes the scripts twice a second. Each connection
/// lives for two rounds: a client that connects and is cut off before it has asked about its places does not learn that
/// the lock was handed to it, and the lock is idle until that lease ends.
async fn inject_faults(fixture: &Redis, tally: &Tally) -> u64 {
    let (mut killed, begin, mut older, mut newer) = (0, Instant::now(), Vec::new(), Vec::new());
    for round in 0.. {
        if begin.elapsed() >= LASTS {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let server = fixture.server();
        let clients = server.clients().expect("CLIENT LIST");
        let ids = clients.iter().filter(|line| line.contains(" sub=2 ")).filter_map(|line| line.split(' ').next());
        let ids: Vec<_> = ids.map(|id| id.trim_start_matches("id=").to_owned()).collect();
        for id in ids.iter().filter(|id| older.contains(*id)) {
            let reply = server.command(&["CLIENT", "KILL", "ID", id]).expect("CLIENT KILL");
            killed += reply.int().and_then(|killed| u64::try_from(killed).ok()).unwrap_or_default();
        }
        older = std::mem::replace(&mut newer, ids);
        if round % 10 == 0 {
            server.command(&["SCRIPT", "FLUSH"]).expect("SCRIPT FLUSH");
        }
    }
    tally.is_over.store(true, Ordering::Relaxed);
    killed
}

#[test]
fn no_two_hold_and_no_client_is_stuck() {
    case(|fixture| async move {
        let stopwatch = Stopwatch::start();
        let (history, tally) = (Arc::new(History::new()), Arc::new(Tally::default()));
        let mut workers = Vec::new();
        for number in 0..CLIENTS {
            let client = client(&fixture, TTL).await;
            for task in 0..TASKS {
                let worker = number * TASKS + task;
                workers.push(tokio::spawn(work(client.clone(), worker, history.clone(), tally.clone())));
            }
        }
        let killed = inject_faults(&fixture, &tally).await;
        let mut held = Vec::new();
        for worker in workers {
            held.push(worker.await.expect("no worker panics"));
        }
        history.check().unwrap_or_else(|violation| panic!("{violation}"));

        let (crashes, vanished) = (tally.crashes.load(Ordering::Relaxed), tally.vanished.load(Ordering::Relaxed));
        let total: u64 = held.iter().sum();
        assert!(killed > 0 && crashes > 0 && vanished > 0, "{killed} killed, {crashes} crashes, {vanished} vanished");
        assert!(total > 50, "only {total} holds");
        assert!(held.iter().all(|held| *held > 0), "a client never got the lock: {held:?}");

        let mut holds = history.holds();
        holds.sort_by_key(|hold| hold.from);
        let gaps = holds.windows(2).map(|pair| pair[1].from.saturating_sub(pair[0].until));
        let longest = gaps.max().unwrap_or_default();
        // A crashed holder blocks the lock for its ttl, and the head of the queue may be a dead place.
        let bound = TTL + TTL / 3 + Duration::from_millis(400) + stopwatch.lag();
        assert!(longest <= bound, "the lock was idle for {longest:?}, the bound is {bound:?}");
    });
}
