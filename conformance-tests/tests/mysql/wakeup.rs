//! Waiters that are woken by `GET_LOCK`.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_core::LockClient;

use super::resource_counts::CLIENTS;
use super::stored::Stored;
use super::strategy::MySqlFixture;
use super::support::{SOON, builder, case, eventually, hold};

const WAKEUP: &str = "&wakeup=get_lock";

async fn client(fixture: &MySqlFixture) -> LockClient {
    builder(fixture, WAKEUP).await.ttl(SOON).build().expect("a client")
}

/// How many connections wait for a named lock.
fn waiting(fixture: &MySqlFixture) -> usize {
    Stored(&*fixture.server()).query(&format!("SELECT id FROM {CLIENTS} AND state = 'User lock'")).len()
}

/// Whether anybody has the named lock of a lock.
fn is_granted(fixture: &MySqlFixture, name: &str) -> bool {
    let text = format!(
        "SELECT CAST(IS_USED_LOCK(CONCAT('leasehold.', LEFT(SHA2(CONCAT(DATABASE(), '/', '{name}'), 256), 40))) AS CHAR)"
    );
    fixture.server().query(&text).expect("it replies")[0][0].is_some()
}

#[test]
fn turns_follow_each_other_without_polls() {
    const CLIENTS: usize = 10;
    const TURNS: u32 = 20;
    case(async |fixture| {
        let (mut tasks, holders) = (Vec::new(), Arc::<Mutex<Vec<usize>>>::default());
        let begin = Instant::now();
        for number in 0..CLIENTS {
            let (client, holders) = (client(&fixture).await, holders.clone());
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
        // A poll comes 25 ms after the one before at the earliest.
        let polled = Duration::from_millis(25) * TURNS * u32::try_from(CLIENTS).expect("a few") / 2;
        assert!(begin.elapsed() < polled, "{:?}", begin.elapsed());
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
        second.abort();
        eventually("the second one has left", || waiting(&fixture) == 0).await;
        first.abort();
        eventually("nobody has the named lock", || !is_granted(&fixture, "left")).await;
        guard.release().await.expect("a release");
    });
}
