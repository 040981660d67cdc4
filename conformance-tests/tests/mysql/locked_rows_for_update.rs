//! Rows that a transaction of the user keeps locked: the token of a fenced write, or the row of a lock.

use std::time::Duration;

use leasehold_core::LockGuard;

use super::row_locks::{eight_locked_rows, lock_rows, names};
use super::support::{Stopwatch, case, client, hold};

/// As a fenced write does. A renewal writes nothing.
#[test]
fn a_locked_token_costs_no_lease() {
    case(async |fixture| {
        let ttl = Duration::from_secs(3);
        let ann = client(&fixture, ttl).await;
        let mut guards = Vec::new();
        for name in names("held", 100) {
            guards.push(hold(&ann, &name).await);
        }
        let side = lock_rows(&fixture, "leasehold_fences", &names("held", 1), "LOCK IN SHARE MODE");
        let stopwatch = Stopwatch::start();
        while stopwatch.elapsed() < ttl * 2 {
            assert!(guards.iter().all(LockGuard::is_held), "a lease was lost");
            tokio::time::sleep(ttl / 100).await;
        }
        drop(side);
        assert_eq!(ann.stats().lost, 0);
        for guard in guards {
            guard.release().await.expect("a release");
        }
    });
}

#[test]
fn eight_locked_rows_delay_no_other_lock() {
    case(async |fixture| eight_locked_rows(&fixture, "leasehold_for_update", "FOR UPDATE").await);
}

#[test]
fn eight_locked_tokens_delay_no_other_lock() {
    case(async |fixture| eight_locked_rows(&fixture, "leasehold_fences", "LOCK IN SHARE MODE").await);
}
