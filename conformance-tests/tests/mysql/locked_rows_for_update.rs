//! Rows that a transaction of the user keeps locked: the token of a fenced write, or the row of a lock.

use std::time::Duration;

use leasehold_conformance::Fixture as _;
use leasehold_core::LockGuard;

use super::row_locks::{eight_locked_rows, lock_rows, names};
use super::support::{SOON, Stopwatch, case, client, hold};

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

/// Invariant 4: while the token is locked, the claim has a place and its grant is under way. A confirmation of the place
/// that counted from the reply would let the holder believe in the lease after the server has ended it.
#[test]
fn a_grant_that_waits_for_its_token_leaves_a_true_validity() {
    case(async |fixture| {
        let ann = client(&fixture, Duration::from_secs(2)).await;
        let guard = hold(&ann, "late 000").await;
        let name = guard.name().clone();
        guard.release().await.expect("a release");
        let side = lock_rows(&fixture, "leasehold_fences", &names("late", 1), "LOCK IN SHARE MODE");
        let lock = ann.lock(name.as_str()).wait(SOON);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        // The claim has a place after half of a call's bound.
        tokio::time::sleep(ann.capabilities().call_bound * 3 / 4).await;
        drop(side);
        let guard = waiting.await.expect("no panic").expect("the token can be raised");
        let left = fixture.record(&name).await.lease().expect("it is held");
        let valid = guard.validity();
        assert!(valid <= left, "the holder's validity is {valid:?}, the server has {left:?} left");
    });
}
