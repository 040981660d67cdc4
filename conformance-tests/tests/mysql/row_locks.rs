//! Rows that a transaction of the user keeps locked.

use std::time::Duration;

use leasehold_core::ErrorKind;
use leasehold_test_servers::SqlConnection;

use super::strategy::MySqlFixture;
use super::support::{SOON, Stopwatch, client, eventually, hold};

/// Opens a transaction that keeps the rows of these locks locked until the connection is closed.
pub(super) fn lock_rows(fixture: &MySqlFixture, table: &str, names: &[String], how: &str) -> SqlConnection {
    let side = fixture.server().side().expect("a connection");
    side.query("START TRANSACTION").expect("a transaction");
    for name in names {
        // By the primary key, so that no other row is locked.
        let found = side.query(&format!("SELECT 1 FROM {table} WHERE name = '{name}' {how}"));
        assert_eq!(found.expect("the row can be locked").len(), 1);
    }
    side
}

pub(super) fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{prefix} {index:03}")).collect()
}

/// Acquires and releases other locks while eight are waited for whose rows are locked.
pub(super) async fn eight_locked_rows(fixture: &MySqlFixture, table: &str, how: &str) {
    let (ann, bob) = (client(fixture, SOON).await, client(fixture, SOON).await);
    let locked = names("locked", 8);
    for name in &locked {
        hold(&bob, name).await.release().await.expect("a release");
    }
    let side = lock_rows(fixture, table, &locked, how);
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
    let refused = bob.lock(&*locked[0]).wait(Duration::from_millis(100)).acquire().await;
    let kind = refused.expect_err("its row is locked").kind();
    assert!(matches!(kind, ErrorKind::Timeout | ErrorKind::Indeterminate | ErrorKind::Unavailable), "{kind:?}");
    drop(side);
    for waiter in waiters {
        waiter.await.expect("no panic").expect("the lock is free").release().await.expect("a release");
    }
}
