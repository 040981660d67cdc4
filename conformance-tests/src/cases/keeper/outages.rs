//! The keeper during faults.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::backend::TtlScope;
use leasehold_core::{Error, ErrorKind, LockClient, LockGuard, LossReason};

use super::hooks::{BlocksTheKeeper, LateReplies, Panics};
use crate::clients::{becomes_free, build, client, hold, is_free, long_client, lost, steady_client, steady_ttl};
use crate::fault::{PathFault, Tamper};
use crate::faulty::lock;
use crate::fixture::{Fixture, Route};
use crate::hooks::Hooked;
use crate::support::{AT_ONCE, LOST_BY, Stopwatch, becomes, eventually, join, name};
use crate::timing_control::in_time;

/// Invariant 15: a fault that ends before the validity loses no lease: a cut connection, silence, lost replies, or
/// requests that arrive late.
pub async fn an_outage_shorter_than_the_validity_loses_nothing(fixture: &dyn Fixture) {
    let (ann, bob) = (client(fixture, Route::Faulty).await, client(fixture, Route::Clear).await);
    let (name, ttl) = (name("short outage"), steady_ttl(fixture));
    if ann.capabilities().ttl_scope == TtlScope::Connection {
        fixture
            .empty("a lease ends with its connection; the cases of longer outages prove that its holder learns of it");
        return;
    }
    let guard = ann.lock(name.as_str()).ttl(ttl).acquire().await.expect("nothing is broken");
    for fault in [PathFault::Disconnect, PathFault::DropTraffic, PathFault::LoseReplies, PathFault::Hold] {
        let renewed = ann.stats().renewed;
        let next = async || ann.stats().renewed > renewed;
        eventually(ttl, "it is renewed", next).await;
        fixture.path(fault.clone()).await;
        tokio::time::sleep(ttl * 2 / 5).await;
        fixture.heal().await;
        fixture.deliver().await;
        tokio::time::sleep(ttl * 3 / 5).await;
        assert!(guard.is_held(), "{fault:?} for two fifths of a ttl lost the lease");
        assert!(!is_free(&bob, &name).await, "{fault:?} for two fifths of a ttl lost the lease at the server");
    }
    assert_eq!(ann.stats().lost, 0);
    guard.release().await.expect("a release");
}

/// Invariants 6 and 11: if the server is silent, the loss is reported when the validity ends, neither earlier nor
/// later.
pub async fn without_replies_the_lease_is_lost_when_the_validity_ends(fixture: &dyn Fixture) {
    lost_in_time(fixture, PathFault::DropTraffic).await;
}

/// Invariant 6: the same if every connection is cut.
pub async fn without_a_connection_the_lease_is_lost_when_the_validity_ends(fixture: &dyn Fixture) {
    lost_in_time(fixture, PathFault::Disconnect).await;
}

/// Loses a lease by a fault while another client waits. The loss is reported in time, once, and before the next grant.
async fn lost_in_time(fixture: &dyn Fixture, fault: PathFault) {
    let (ann, bob) = (client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let name = name("long outage");
    let guard = hold(&ann, &name).await;
    // The server ends a lease that is kept by a connection when that connection is cut. That is a stated limit of
    // exclusion.
    let is_cut = fault == PathFault::Disconnect && ann.capabilities().ttl_scope == TtlScope::Connection;
    assert!(!is_cut || !ann.capabilities().limits_of_exclusion.is_empty());
    fixture.path(fault).await;
    // By now every request in flight has its reply or never gets one.
    tokio::time::sleep(AT_ONCE / 2).await;
    let guard = Arc::new(guard);
    let next = tokio::spawn({
        let (next, guard) = (hold(&bob, &name), guard.clone());
        async move {
            let granted = next.await;
            (granted, guard.is_held())
        }
    });
    let (stopwatch, valid) = (Stopwatch::start(), guard.validity());
    let reason = lost(&guard, valid + LOST_BY, "a loss is reported when the validity ends").await;
    if is_cut {
        assert_eq!(reason, LossReason::Gone, "the next renewal finds the lease gone");
    } else {
        stopwatch.not_before(valid, "the loss was reported before the validity ended");
        assert_eq!(reason, LossReason::Expired);
    }
    let (bobs, both) = join(next).await;
    assert!(is_cut || !both, "the next holder was granted the lock while the first one still held it");
    assert!(bobs.fencing_token() > guard.fencing_token());
    fixture.heal().await;
    tokio::time::sleep(fixture.ttl() / 2).await;
    assert!(!guard.is_held(), "a lost lease is held again");
    eventually(AT_ONCE, "one loss is counted", async || ann.stats().lost == 1).await;
    assert!(bobs.is_held());
}

/// Invariants 4 and 6: a late renewal revives nothing, neither by its request at the server nor by its reply at the
/// holder.
pub async fn a_late_renewal_revives_nothing(fixture: &dyn Fixture) {
    let (ann, ttl) = (client(fixture, Route::Faulty).await, fixture.ttl() * 2);
    let (slow, late) = (name("late request"), name("late reply"));
    let guard = ann.lock(slow.as_str()).ttl(ttl).acquire().await.expect("nothing is broken");
    fixture.path(PathFault::Hold).await;
    lost(&guard, ttl, "a renewal that does not arrive").await;
    let bound = ttl + ann.capabilities().takeover_slack;
    eventually(bound, "the lease ends at the server", async || fixture.record(&slow).await.lease().is_none()).await;
    assert!(ann.stats().renewals_sent > 0, "no renewal was sent");
    fixture.heal().await;
    fixture.deliver().await;
    assert_eq!(fixture.record(&slow).await.lease(), None, "a renewal that arrived late revived the lease");
    assert!(!guard.is_held());

    let hooks = Arc::new(LateReplies::default());
    let backend = Hooked::new(fixture.backend(Route::Clear).await, 0, hooks.clone());
    let ann = build(fixture.tune(LockClient::builder(backend).ttl(ttl)));
    let guard = hold(&ann, &late).await;
    eventually(ttl * 2 / 3, "a renewal is in flight", async || *lock(&hooks.kept) > 0).await;
    let reason = lost(&guard, ttl, "a renewal without a reply").await;
    assert_eq!(reason, LossReason::Expired);
    hooks.go.notify_waiters();
    for _ in 0..5 {
        assert!(!guard.is_held() && guard.validity().is_zero(), "a reply that came late revived a lost lease");
        tokio::time::sleep(AT_ONCE / 5).await;
    }
    let counted = async || (ann.stats().lost, ann.stats().held) == (1, 0);
    eventually(AT_ONCE, "the loss is counted, once", counted).await;
}

/// Invariants 4 and 5: the reply to a renewal arrives after the validity has ended, and before the holder and the
/// keeper have detected that. The lease is still lost.
pub async fn a_reply_after_an_unnoticed_end_revives_nothing(fixture: &dyn Fixture) {
    let ttl = fixture.ttl() * 2;
    let hooks = Arc::new(BlocksTheKeeper { until_after: ttl, ..BlocksTheKeeper::default() });
    let backend = Hooked::new(fixture.backend(Route::Clear).await, 0, hooks.clone());
    let ann = build(fixture.tune(LockClient::builder(backend).ttl(ttl)));
    let stopwatch = Stopwatch::start();
    *lock(&hooks.since) = Some(stopwatch);
    let guard = hold(&ann, &name("unnoticed end")).await;
    eventually(ttl, "the keeper's thread is blocked", async || hooks.blocked.load(Ordering::SeqCst)).await;
    eventually(ttl, "the reply has arrived", async || !hooks.blocked.load(Ordering::SeqCst)).await;
    // The renewal would prolong the validity beyond now, counted from when it was sent.
    for _ in 0..5 {
        assert!(!guard.is_held() && guard.validity().is_zero(), "a reply after the end revived the lease");
        tokio::time::sleep(AT_ONCE / 20).await;
    }
    assert_eq!(lost(&guard, AT_ONCE, "the loss is reported").await, LossReason::Expired);
    let counted = async || (ann.stats().lost, ann.stats().held) == (1, 0);
    eventually(AT_ONCE, "the loss is counted, once", counted).await;
}

/// A path that is slow, but within the bounds, loses no lease.
pub async fn a_slow_path_loses_nothing(fixture: &dyn Fixture) {
    slow_path(fixture, 1, 5).await;
}

/// A slow path loses no lease either if the renewals of many leases are due at once, in more than one call.
pub async fn many_leases_on_a_slow_path_lose_none(fixture: &dyn Fixture) {
    slow_path(fixture, 150, 10).await;
}

/// Requests and replies are each delayed by this fraction of the bound of a call.
async fn slow_path(fixture: &dyn Fixture, leases: usize, fraction: u32) {
    let (ann, ttl) = (client(fixture, Route::Faulty).await, steady_ttl(fixture));
    let guards = many(&ann, leases, ttl).await;
    eventually(ttl, "the keeper has an established connection", async || ann.stats().renewed > 0).await;
    let delay = (ttl / 10).min(ann.capabilities().call_bound / fraction);
    fixture.path(PathFault::Delay(delay)).await;
    let stopwatch = Stopwatch::start();
    while stopwatch.elapsed() < ttl * 2 {
        let lost = guards.iter().filter(|guard| !guard.is_held()).count();
        assert!(lost == 0, "a delay of {delay:?} lost {lost} leases of {ttl:?} after {:?}", stopwatch.elapsed());
        tokio::time::sleep(fixture.ttl() / 20).await;
    }
    assert_eq!(ann.stats().lost, 0);
}

/// Invariants 7 and 8: a release that overtakes a renewal stays effective when the renewal arrives.
pub async fn a_release_during_a_renewal_stays_a_release(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Faulty).await;
    let (name, ttl) = (name("during a renewal"), steady_ttl(fixture));
    for _ in 0..2 {
        let guard = ann.lock(name.as_str()).ttl(ttl).acquire().await.expect("nothing is broken");
        let sent = ann.stats().renewals_sent;
        fixture.path(PathFault::Hold).await;
        eventually(ttl / 2, "a renewal is sent", async || ann.stats().renewals_sent > sent).await;
        fixture.heal().await;
        // The release overtakes the renewal if it has its own connection. Otherwise it waits behind the renewal.
        let release = tokio::spawn(guard.release());
        tokio::time::sleep(AT_ONCE / 2).await;
        fixture.deliver().await;
        let released = join(release).await;
        // The client may have replaced the silent connection: its release is in doubt, or the lease that the connection
        // kept has ended with it.
        let of_a_cut = match ann.capabilities().ttl_scope {
            TtlScope::Session => Some(ErrorKind::Indeterminate),
            TtlScope::Connection => Some(ErrorKind::Lost),
            _ => None,
        };
        let failed = released.as_ref().err().map(Error::kind);
        assert!(failed.is_none() || failed == of_a_cut, "a release: {released:?}");
        // A release in doubt is sent again.
        let bound = failed.map_or(Duration::ZERO, |_| ann.capabilities().call_bound);
        let is_gone = async || fixture.record(&name).await.lease().is_none();
        eventually(bound, "a renewal in flight revived the released lease", is_gone).await;
        // Only that renewal may still arrive: it may have been sent too late to be held.
        tokio::time::sleep(ttl / 4).await;
        let served = fixture.served().await;
        tokio::time::sleep(ttl / 2).await;
        assert_eq!(fixture.served().await, served, "a lease was renewed after its release");
    }
}

/// Invariant 15: one lease of a thousand has an unreadable record and is lost. The others are not affected.
pub async fn one_poisoned_lease_of_a_thousand(fixture: &dyn Fixture) {
    const LEASES: usize = 1000;
    let (ann, ttl) = (client(fixture, Route::Clear).await, steady_ttl(fixture));
    let poisoned = name("lease 500");
    let guards = many(&ann, LEASES, ttl).await;
    let reads_records = ann.capabilities().ttl_scope == TtlScope::Lease;
    if !reads_records || fixture.tamper(&poisoned, Tamper::Corrupt).await.is_err() {
        // If no record can be made unreadable, or renewals read none, it can be removed.
        fixture.tamper(&poisoned, Tamper::Remove).await.expect("a record can be corrupted or removed");
    }
    let stopwatch = Stopwatch::start();
    let unlucky = guards.iter().find(|guard| *guard.name() == poisoned).expect("it is one of them");
    lost(unlucky, ttl, "a lease that cannot be renewed is lost").await;
    tokio::time::sleep((ttl * 2).saturating_sub(stopwatch.elapsed())).await;
    let gone: Vec<_> = guards.iter().filter(|guard| !guard.is_held()).map(|guard| guard.name().to_string()).collect();
    assert_eq!(gone, [poisoned.to_string()], "one poisoned lease caused the loss of others");
    eventually(AT_ONCE, "one loss is counted", async || ann.stats().lost == 1).await;
    drop(guards);
    becomes(ttl, "the others are released", async || ann.stats(), |stats| stats.released >= LEASES as u64 - 1).await;
}

async fn many(client: &LockClient, count: usize, ttl: Duration) -> Vec<LockGuard> {
    let mut guards = Vec::with_capacity(count);
    let mut tasks = Vec::with_capacity(count);
    // A connection for each lease takes time to open.
    let at_once = if client.capabilities().ttl_scope == TtlScope::Connection { 50 } else { count };
    for index in 0..count {
        let lock = client.lock(format!("lease {index}")).ttl(ttl);
        tasks.push(tokio::spawn(async move { lock.acquire().await.expect("nothing is broken") }));
        if tasks.len() == at_once || index + 1 == count {
            for task in tasks.drain(..) {
                guards.push(join(task).await);
            }
        }
    }
    guards
}

/// Invariant 15: a renewal that panics each time neither stops the keeper nor causes the loss of another lease.
pub async fn a_renewal_that_panics_harms_no_other_lease(fixture: &dyn Fixture) {
    let hooks = Arc::new(Panics { name: name("lease 7"), seen: 0.into() });
    let backend = Hooked::new(fixture.backend(Route::Clear).await, 0, hooks.clone());
    let ttl = steady_ttl(fixture);
    let ann = build(fixture.tune(LockClient::builder(backend).ttl(ttl)));
    let guards = many(&ann, 30, ttl).await;
    tokio::time::sleep(ttl * 2).await;
    assert!(hooks.seen.load(Ordering::Relaxed) > 0, "nothing panicked");
    let gone: Vec<_> = guards.iter().filter(|guard| !guard.is_held()).map(|guard| guard.name().to_string()).collect();
    assert_eq!(gone, ["lease 7"], "a renewal that panics caused the loss of other leases");
    // The keeper still runs: a new lease is renewed.
    let late = ann.lock("after the panic").acquire().await.expect("nothing is broken");
    tokio::time::sleep(ttl * 3 / 2).await;
    assert!(late.is_held(), "the keeper has stopped");
}

/// Invariant 10: after a loss the lock is free by the end of the lease at the server, and its next holder keeps it.
pub async fn after_a_loss_the_lock_goes_on(fixture: &dyn Fixture) {
    let (ann, bob) = (steady_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let (name, ttl) = (name("next holder"), steady_ttl(fixture));
    let guard = hold(&ann, &name).await;
    fixture.path(PathFault::DropTraffic).await;
    let bound = ttl + bob.capabilities().takeover_slack;
    let next = in_time(bound, "taken over from a disconnected holder", hold(&bob, &name)).await;
    assert!(!guard.is_held(), "two clients believe that they hold");
    drop(guard);
    fixture.heal().await;
    // The late release of the first holder arrives now. It must not affect the second holder.
    tokio::time::sleep(ttl * 3 / 2).await;
    assert!(next.is_held() && !is_free(&ann, &name).await, "a late release ended the next holder's lease");
    next.release().await.expect("a release");
    becomes_free(&ann, &name, AT_ONCE, "the first client can hold it again").await;
}
