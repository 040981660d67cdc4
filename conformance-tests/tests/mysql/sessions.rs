//! Connections that an operator ends, and how many a client has.

use std::time::{Duration, Instant};

use super::stored::Stored;
use super::strategy::MySqlFixture;
use super::support::{SOON, case, client, eventually, hold};

/// The connections of a client that holds: one of its own runtime, and two of its keeper's.
const OF_A_HOLDER: usize = 3;

/// The connections of a client that waits: one of its own runtime, and one of its keeper's.
const OF_A_WAITER: usize = 2;

/// The numbers of the clients' connections.
fn connections(fixture: &MySqlFixture) -> Vec<String> {
    Stored(&*fixture.server()).clients()
}

#[test]
fn a_killed_session_loses_no_lease() {
    case(async |fixture| {
        let ttl = Duration::from_secs(3);
        let ann = client(&fixture, ttl).await;
        let guard = hold(&ann, "killed session").await;
        for _ in 0..5 {
            for id in connections(&fixture) {
                // It may have ended by itself.
                let _ = fixture.server().query(&format!("KILL {id}"));
            }
            let renewed = ann.stats().renewed;
            eventually("a renewal succeeds after that", || ann.stats().renewed > renewed).await;
            assert!(guard.is_held(), "the lease was lost with the connection");
        }
        guard.release().await.expect("a release");
    });
}

/// Processes that wait, such as cron jobs, must not exhaust the server's connections.
#[test]
fn a_client_that_waits_has_two_connections() {
    case(async |fixture| {
        let (ann, bob) = (client(&fixture, SOON).await, client(&fixture, SOON).await);
        let _guard = hold(&ann, "waited for").await;
        let waiting = tokio::spawn({
            let lock = bob.lock("waited for");
            async move { lock.acquire().await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(connections(&fixture).len(), OF_A_HOLDER + OF_A_WAITER);
        waiting.abort();
    });
}

/// The waiters of one client together send at most 20 statements a second.
#[test]
fn a_hundred_waiters_share_one_poll() {
    case(async |fixture| {
        let (ann, bob) = (client(&fixture, SOON * 3).await, client(&fixture, SOON * 3).await);
        let (mut guards, mut waiters) = (Vec::new(), Vec::new());
        for number in 0..100 {
            let name = format!("lock {number}");
            guards.push(hold(&ann, &name).await);
            let lock = bob.lock(name);
            waiters.push(tokio::spawn(async move { lock.acquire().await }));
        }
        eventually("all wait", || bob.stats().waiting == 100).await;
        // Each of them has tried to acquire, and the pauses between the polls have grown.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let executed = || Stored(&*fixture.server()).status("Questions");
        let (before, begin) = (executed(), Instant::now());
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (polls, took) = (executed() - before, begin.elapsed());
        assert!(polls as f64 <= 20.0 * took.as_secs_f64(), "{polls} statements in {took:?}");
        assert!(polls >= 3, "nobody polls");
        for waiter in waiters {
            waiter.abort();
        }
    });
}
