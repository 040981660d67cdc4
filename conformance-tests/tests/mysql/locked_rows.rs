//! Rows that a transaction of the user keeps locked, as a fenced write does.

use std::time::Duration;

use leasehold_core::LockGuard;

use super::row_locks::{eight_locked_rows, lock_rows, names};
use super::support::{Stopwatch, case, client, hold};

const TABLE: &str = "leasehold_locks";

const AS_A_FENCED_WRITE: &str = "LOCK IN SHARE MODE";

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
        let side = lock_rows(&fixture, TABLE, &[locked.name().as_str().to_owned()], AS_A_FENCED_WRITE);
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
    case(async |fixture| eight_locked_rows(&fixture, TABLE, AS_A_FENCED_WRITE).await);
}
