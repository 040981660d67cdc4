//! Re-entry without threads: acquires with one `HolderId` share a lease.

use leasehold_core::{ErrorKind, HolderId, LossReason};

use crate::clients::{
    handoff_bound, hold, is_free, kind_of, long_client, lost, polled, queued, steady_client, steady_ttl,
};
use crate::fault::Tamper;
use crate::fixture::{Fixture, Route};
use crate::support::{AT_ONCE, eventually, join, name};
use crate::timing_control::in_time;

/// Acquires with the same holder on one client share a lease and its token, and the lease ends with the last guard.
pub async fn the_same_holder_shares_one_lease(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let (name, holder) = (name("shared"), HolderId::new());
    let lock = ann.lock(name.as_str()).holder(holder);
    let first = lock.acquire().await.expect("nothing is broken");
    let served = fixture.served().await;
    let second = lock.acquire().await.expect("the same holder holds it");
    let third = lock.try_acquire().await.expect("nothing is broken").expect("the same holder holds it");
    assert_eq!(fixture.served().await, served, "re-entry sends no request");
    assert_eq!(first.fencing_token(), second.fencing_token());
    assert_eq!(Some(third.fencing_token()), fixture.record(&name).await.last_token, "one lease, one token");
    drop(first);
    third.release().await.expect("not the last one");
    assert!(second.is_held() && !is_free(&bob, &name).await, "the lease ended before its last guard");
    second.release().await.expect("the last one");
    assert!(is_free(&bob, &name).await, "the lease outlived its last guard");
}

/// Acquires with another holder or without one wait, also on the same client.
pub async fn another_holder_waits(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let (name, holder) = (name("others"), HolderId::new());
    let guard = ann.lock(name.as_str()).holder(holder).acquire().await.expect("nothing is broken");
    let others = [
        ann.lock(name.as_str()).holder(HolderId::new()),
        ann.lock(name.as_str()),
        // A holder id is scoped to one client.
        bob.lock(name.as_str()).holder(holder),
    ];
    for other in others {
        assert!(other.try_acquire().await.expect("nothing is broken").is_none(), "two holders hold one lock");
        assert_eq!(kind_of(&other.wait(fixture.ttl()).acquire().await), ErrorKind::Timeout);
    }
    assert!(guard.is_held());
}

/// Two pending acquires of one holder are granted together, once.
pub async fn pending_acquires_of_one_holder_are_granted_together(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let (name, holder) = (name("pending"), HolderId::new());
    let guard = hold(&bob, &name).await;
    let lock = ann.lock(name.as_str()).holder(holder);
    let acquire = || {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await.expect("it is released soon") })
    };
    let (first, second) = (acquire(), acquire());
    queued(fixture, &ann, &name, (2, 1)).await;
    guard.release().await.expect("a release");
    let both = async { (join(first).await, join(second).await) };
    let bound = handoff_bound(&ann.capabilities());
    let (first, second) = in_time(bound, "both are granted by one handoff", both).await;
    assert_eq!(first.fencing_token(), second.fencing_token());
    drop(first);
    assert!(!is_free(&bob, &name).await);
    second.release().await.expect("the last one");
    assert!(is_free(&bob, &name).await);
}

/// Invariant 12: cancelling one of two pending acquires of a holder leaves the other its place.
pub async fn cancelling_one_pending_acquire_leaves_the_other(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let (name, holder) = (name("one of two"), HolderId::new());
    let guard = hold(&bob, &name).await;
    let lock = ann.lock(name.as_str()).holder(holder);
    let stays = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.expect("it is released soon") }
    });
    queued(fixture, &ann, &name, (1, 1)).await;
    let goes = tokio::time::timeout(AT_ONCE, polled(usize::MAX, lock.acquire())).await;
    assert!(goes.is_err(), "the lock is held");
    queued(fixture, &ann, &name, (1, 1)).await;
    guard.release().await.expect("a release");
    let bound = handoff_bound(&ann.capabilities());
    let granted = in_time(bound, "the remaining acquire has kept its place", join(stays)).await;
    assert!(granted.is_held());
}

/// Acquires that share a lease must agree in ttl and kind of renewal. Otherwise they fail with `InvalidInput`, and
/// nothing is sent.
pub async fn a_shared_lease_has_one_ttl(fixture: &dyn Fixture) {
    let ann = long_client(fixture, Route::Clear).await;
    let (name, holder) = (name("agree"), HolderId::new());
    let lock = ann.lock(name.as_str()).holder(holder);
    let guard = lock.acquire().await.expect("nothing is broken");
    let served = fixture.served().await;
    let other_ttl = lock.clone().ttl(fixture.ttl() * 2).acquire().await;
    assert_eq!(kind_of(&other_ttl), ErrorKind::InvalidInput);
    let other_renewal = lock.clone().without_renewal().acquire().await;
    assert_eq!(kind_of(&other_renewal), ErrorKind::InvalidInput);
    tokio::time::sleep(fixture.ttl()).await;
    assert_eq!(fixture.served().await, served, "something was sent for a refused acquire");
    assert!(guard.is_held());
    guard.release().await.expect("a refused acquire leaves no share in the lease");
    assert_eq!(fixture.record(&name).await.lease(), None);
}

/// Invariant 6: a loss reaches all guards of a lease, and counts once.
pub async fn a_loss_reaches_all_guards(fixture: &dyn Fixture) {
    let ann = steady_client(fixture, Route::Clear).await;
    let (name, holder) = (name("all guards"), HolderId::new());
    let lock = ann.lock(name.as_str()).holder(holder);
    let mut guards = Vec::new();
    for _ in 0..3 {
        guards.push(lock.acquire().await.expect("nothing is broken"));
    }
    let expected = match fixture.tamper(&name, Tamper::Remove).await {
        Ok(()) => LossReason::Gone,
        Err(_) => {
            ann.shutdown().await.expect("the server replies");
            LossReason::Shutdown
        }
    };
    for guard in &guards {
        let reason =
            lost(guard, steady_ttl(fixture) / 3 + AT_ONCE, "every guard is notified by the next renewal").await;
        assert_eq!(reason, expected);
        assert!(!guard.is_held());
    }
    drop(guards);
    if expected == LossReason::Gone {
        let counted = async || ann.stats().lost == 1;
        eventually(AT_ONCE, "three guards share one lease, which was lost once", counted).await;
        // The same holder can acquire again.
        let free = async || lock.try_acquire().await.expect("nothing is broken").is_some();
        eventually(AT_ONCE, "the holder can acquire it again", free).await;
    }
}
