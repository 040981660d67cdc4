//! Waiters, which take turns at the right to poll (`GET_LOCK`).

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_conformance::Fixture;
use leasehold_core::LockClient;

use super::resource_counts::CLIENTS;
use super::stored::Stored;
use super::strategy::MySqlFixture;
use super::support::{SOON, Stopwatch, case, eventually, hold, own_servers};

async fn client(fixture: &MySqlFixture) -> LockClient {
    super::support::client(fixture, SOON).await
}

/// How many connections wait for a named lock.
fn waiting(fixture: &MySqlFixture) -> usize {
    Stored(&*fixture.server()).query(&format!("SELECT id FROM {CLIENTS} AND state = 'User lock'")).len()
}

/// Whether anybody has the named lock of a lock.
fn is_granted(fixture: &MySqlFixture, name: &str) -> bool {
    let text = format!(
        "SELECT CAST(IS_USED_LOCK(CONCAT('leasehold.', LEFT(SHA2(CONCAT(DATABASE(), '/', '{name}'), 256), 40))) \
         AS CHAR)"
    );
    fixture.server().query(&text).expect("it replies")[0][0].is_some()
}

#[test]
fn turns_follow_each_other_without_polls() {
    const CLIENTS: usize = 10;
    const TURNS: u32 = 20;
    case(async |fixture| {
        let (mut tasks, holders) = (Vec::new(), Arc::<Mutex<Vec<usize>>>::default());
        // All are connected before the first turn. Otherwise the first client may have all of its turns alone.
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(client(&fixture).await);
        }
        let selects = || Stored(&*fixture.server()).status("Com_select");
        let before = selects();
        for (number, client) in clients.into_iter().enumerate() {
            let holders = holders.clone();
            tasks.push(tokio::spawn(async move {
                for _ in 0..TURNS {
                    let guard = hold(&client, "turns").await;
                    holders.lock().expect("no panic while it is locked").push(number);
                    guard.release().await.expect("a release");
                }
            }));
        }
        for task in tasks {
            task.await.expect("every client has its turns");
        }
        let holders = holders.lock().expect("no panic while it is locked");
        let handoffs = holders.windows(2).filter(|pair| pair[0] != pair[1]).count();
        // A client that never found the lock held may acquire it several times before the others have been woken.
        assert!(handoffs * 2 > holders.len(), "{handoffs} handoffs, {holders:?}");
        // The queries of a turn: whether the lock is wanted, the named lock, and with it whether the lock is held.
        let (selects, turns) = (selects() - before, u64::from(TURNS) * CLIENTS as u64);
        assert!(selects < turns * 4, "{selects} queries for {turns} turns");
    });
}

#[test]
fn names_that_differ_in_case_are_two_locks() {
    case(async |fixture| {
        let (ann, bob) = (client(&fixture).await, client(&fixture).await);
        let guards = (hold(&ann, "job").await, hold(&ann, "JOB").await);
        let waiters = ["job", "JOB"].map(|name| {
            let lock = bob.lock(name);
            tokio::spawn(async move { lock.acquire().await })
        });
        eventually("both have a named lock", || is_granted(&fixture, "job") && is_granted(&fixture, "JOB")).await;
        drop(guards);
        for waiter in waiters {
            drop(waiter.await.expect("no panic").expect("a lock"));
        }
    });
}

/// A process that is stopped keeps its named lock.
#[test]
fn a_named_lock_that_is_never_released_blocks_nobody() {
    case(async |fixture| {
        let (ann, bob) = (client(&fixture).await, client(&fixture).await);
        let side = fixture.server().side().expect("a connection");
        side.query("SELECT GET_LOCK(CONCAT('leasehold.', LEFT(SHA2(CONCAT(DATABASE(), '/', 'stopped'), 256), 40)), 1)")
            .expect("it replies");
        let guard = hold(&ann, "stopped").await;
        let lock = bob.lock("stopped");
        let waiter = tokio::spawn(async move { lock.acquire().await });
        eventually("the waiter waits for the named lock", || waiting(&fixture) == 1).await;
        guard.release().await.expect("a release");
        let guard = tokio::time::timeout(Duration::from_secs(5), waiter).await.expect("a poll finds the lock free");
        drop(guard.expect("no panic").expect("a lock"));
    });
}

#[test]
fn waiters_that_leave_leave_no_connection_that_waits() {
    case(async |fixture| {
        let (ann, bob) = (client(&fixture).await, client(&fixture).await);
        let guard = hold(&ann, "left").await;
        let first = tokio::spawn({
            let lock = bob.lock("left");
            async move { lock.acquire().await }
        });
        eventually("the first one has the named lock", || is_granted(&fixture, "left")).await;
        let cleo = client(&fixture).await;
        let second = tokio::spawn({
            let lock = cleo.lock("left");
            async move { lock.acquire().await }
        });
        eventually("the second one waits for it", || waiting(&fixture) == 1).await;
        // Otherwise its statement would wait for two seconds.
        let stopwatch = Stopwatch::start();
        second.abort();
        eventually("the second one has left", || waiting(&fixture) == 0).await;
        stopwatch.within(Duration::from_millis(700), "the second one has left");
        first.abort();
        eventually("nobody has the named lock", || !is_granted(&fixture, "left")).await;
        guard.release().await.expect("a release");
    });
}

/// The holder found the lock free, so it has no named lock to release.
#[test]
fn a_release_wakes_the_first_waiter() {
    const HELD: Duration = Duration::from_millis(600);
    case(async |fixture| {
        let (ann, bob) = (client(&fixture).await, client(&fixture).await);
        let mut late = Vec::new();
        for round in 0..7 {
            let name = format!("first waiter {round}");
            let guard = hold(&ann, &name).await;
            let lock = bob.lock(&*name);
            let waiter = tokio::spawn(async move { lock.acquire().await });
            tokio::time::sleep(HELD).await;
            let released = Stopwatch::start();
            guard.release().await.expect("a release");
            let guard = waiter.await.expect("no panic").expect("a lock");
            late.push(released.elapsed().saturating_sub(released.lag()));
            drop(guard);
        }
        late.sort();
        assert!(late[3] < Duration::from_millis(30), "half of the waiters held later than {:?}: {late:?}", late[3]);
    });
}

/// Each client has several tasks, which wait in turn.
#[test]
fn all_waiters_are_served_evenly() {
    const CLIENTS: usize = 4;
    const TASKS: usize = 5;
    case(async |fixture| {
        let (mut clients, mut tasks) = (Vec::new(), Vec::new());
        for _ in 0..CLIENTS {
            clients.push(client(&fixture).await);
        }
        let end = Instant::now() + Duration::from_secs(3);
        for client in clients {
            for _ in 0..TASKS {
                let lock = client.lock("evenly");
                tasks.push(tokio::spawn(async move {
                    let mut grants = 0_u32;
                    while Instant::now() < end {
                        lock.acquire().await.expect("a lock").release().await.expect("a release");
                        grants += 1;
                    }
                    grants
                }));
            }
        }
        let mut grants = Vec::new();
        for task in tasks {
            grants.push(task.await.expect("no panic"));
        }
        grants.sort_unstable();
        // The clients do not begin at the same time.
        assert!(grants[0] * 2 > grants[grants.len() - 1], "{grants:?}");
    });
}

/// An operator ends it, or a proxy does.
#[test]
fn a_waiter_whose_connections_end_is_not_late() {
    case(async |fixture| {
        let (ann, bob, cleo) = (client(&fixture).await, client(&fixture).await, client(&fixture).await);
        let guard = hold(&ann, "cut").await;
        let waiters = [&bob, &cleo].map(|client| {
            let lock = client.lock("cut");
            tokio::spawn(async move { lock.acquire().await.expect("a lock").release().await })
        });
        eventually("one has the named lock, the other waits for it", || {
            is_granted(&fixture, "cut") && waiting(&fixture) == 1
        })
        .await;
        let connections = Stored(&*fixture.server()).clients();
        for id in connections {
            // It may have ended by itself.
            let _ = fixture.server().query(&format!("KILL {id}"));
        }
        eventually("nobody waits for the named lock", || waiting(&fixture) == 0).await;
        let stopwatch = Stopwatch::start();
        guard.release().await.expect("a release");
        for waiter in waiters {
            waiter.await.expect("no panic").expect("a release");
        }
        stopwatch.within(Duration::from_secs(1), "both have held the lock");
    });
}

/// A backup begins with this statement.
#[test]
fn waiters_do_not_delay_a_global_read_lock() {
    own_servers(async || {
        let fixture = MySqlFixture::new().await;
        let (ann, bob, cleo) = (client(&fixture).await, client(&fixture).await, client(&fixture).await);
        let _guard = hold(&ann, "backup").await;
        let waiters = [&bob, &cleo].map(|client| {
            let lock = client.lock("backup");
            tokio::spawn(async move { lock.acquire().await.map(drop) })
        });
        eventually("one has the named lock, the other waits for it", || {
            is_granted(&fixture, "backup") && waiting(&fixture) == 1
        })
        .await;
        let side = fixture.server().side().expect("a connection");
        let stopwatch = Stopwatch::start();
        side.query("FLUSH TABLES WITH READ LOCK; UNLOCK TABLES").expect("it replies");
        stopwatch.within(Duration::from_secs(1), "a global read lock");
        waiters.iter().for_each(tokio::task::JoinHandle::abort);
    });
}

/// Such a client leaves the lock free for a moment only, in which a claim that polls may not see it.
#[test]
fn a_client_that_takes_the_lock_again_and_again_starves_nobody() {
    case(async |fixture| {
        let (ann, bob) = (client(&fixture).await, client(&fixture).await);
        let busy = tokio::spawn({
            let lock = ann.lock("again");
            async move {
                loop {
                    let guard = lock.acquire().await.expect("a lock");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    guard.release().await.expect("a release");
                }
            }
        });
        eventually("ann holds", || ann.stats().held == 1).await;
        let mut waited = Vec::new();
        for _ in 0..7 {
            let begin = Instant::now();
            hold(&bob, "again").await.release().await.expect("a release");
            waited.push(begin.elapsed());
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        busy.abort();
        waited.sort();
        assert!(
            waited[3] < Duration::from_millis(250),
            "half of the waits were longer than {:?}: {waited:?}",
            waited[3]
        );
    });
}
