//! Rows that a transaction of the user keeps locked, as a fenced write does.

use std::time::Duration;

use leasehold_core::LockGuard;
use leasehold_test_servers::SqlConnection;

use super::strategy::MySqlFixture;
use super::support::{SOON, Stopwatch, case, client, eventually, hold};

/// Opens a transaction that keeps the rows of these locks locked until the connection is closed.
fn lock_rows(fixture: &MySqlFixture, names: &[String]) -> SqlConnection {
    let side = fixture.server().side().expect("a connection");
    side.query("START TRANSACTION").expect("a transaction");
    for name in names {
        // By the primary key, so that no other row is locked.
        let found = side.query(&format!("SELECT 1 FROM leasehold_locks WHERE name = '{name}' LOCK IN SHARE MODE"));
        assert_eq!(found.expect("the row can be locked").len(), 1);
    }
    side
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{prefix} {index:03}")).collect()
}

#[test]
fn a_locked_row_costs_no_other_lease() {
    case(async |fixture| {
        let ttl = Duration::from_secs(3);
        let ann = client(&fixture, ttl).await;
        let mut guards = Vec::new();
        for name in names("held", 100) {
            guards.push(hold(&ann, &name).await);
        }
        let locked = guards.swap_remove(50);
        let side = lock_rows(&fixture, &[locked.name().as_str().to_owned()]);
        let stopwatch = Stopwatch::start();
        while stopwatch.elapsed() < ttl * 2 {
            assert!(guards.iter().all(LockGuard::is_held), "a lease was lost, whose row nobody has locked");
            tokio::time::sleep(ttl / 100).await;
        }
        assert!(!locked.is_held(), "the row was not locked");
        drop(side);
        assert_eq!(ann.stats().lost, 1);
        for guard in guards {
            guard.release().await.expect("a release");
        }
    });
}

#[test]
fn eight_locked_rows_delay_no_other_lock() {
    case(async |fixture| {
        let (ann, bob) = (client(&fixture, SOON).await, client(&fixture, SOON).await);
        let locked = names("locked", 8);
        for name in &locked {
            hold(&bob, name).await.release().await.expect("a release");
        }
        let side = lock_rows(&fixture, &locked);
        let waiters: Vec<_> = locked
            .iter()
            .map(|name| {
                let lock = ann.lock(&**name).wait(SOON);
                tokio::spawn(async move { lock.acquire().await })
            })
            .collect();
        eventually("all of them are waited for", || ann.stats().waiting == 8).await;
        for round in 0..40 {
            let stopwatch = Stopwatch::start();
            hold(&ann, &format!("other {round}")).await.release().await.expect("a release");
            stopwatch.within(Duration::from_millis(400), "an acquire and a release of another lock");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(side);
        for waiter in waiters {
            waiter.await.expect("no panic").expect("the lock is free").release().await.expect("a release");
        }
    });
}
