//! How long a lease lasts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::backend::{
    AcquireOutcome, Confirmation, Delivery, RenewPolicy, RenewReply, RenewRequest, TtlScope,
};
use leasehold_core::defaults::DEFAULT_TTL;
use leasehold_core::{KeeperRuntime, LockClient, LockName, LossReason};

use crate::clients::{
    LONG, PATIENCE, becomes_free, build, builder, client, default_client, handoff_bound, hold, is_free, long_client,
    long_ttl, lost, queued, steady_client, steady_ttl, warm_client,
};
use crate::direct::Direct;
use crate::fault::PathFault;
use crate::fixture::{Fixture, Route};
use crate::support::{self, AT_ONCE, LOST_BY, Stopwatch, becomes, eventually, join, name};
use crate::timing_control::in_time;

/// Invariants 3 and 10: a lease lasts for at least its ttl at the store, and ends soon after.
pub async fn expires_after_its_ttl_and_not_before(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::new(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let (name, ttl) = (name("expiry"), fixture.ttl());
    let stopwatch = Stopwatch::start();
    let stamp = ann.now();
    let granted = ann.granted(&ann.claim(&name), ttl).await.confirmation;
    assert!(granted.sent >= stamp && granted.ttl >= ttl, "granted {granted:?}, requested {ttl:?}");
    bob.takes_over(&bob.claim(&name), granted.ttl, ttl).await;
    // The lease begins when the request arrives, after the stopwatch started.
    stopwatch.not_before(ttl, "another client was granted the lock before the lease had ended");
}

/// Invariant 4: each renewal restarts the whole ttl. Without a renewal the lease ends.
pub async fn every_renewal_restarts_the_ttl(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::new(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let (name, ttl) = (name("many renewals"), steady_ttl(fixture));
    let claim = ann.claim(&name);
    let place = ann.granted(&claim, ttl).await.confirmation.place;
    for round in 0..8 {
        tokio::time::sleep(ttl / 4).await;
        match ann.renew(RenewRequest::new(claim.clone(), place, ttl)).await {
            RenewReply::Renewed(confirmation) => assert!(confirmation.ttl >= ttl, "renewed to {:?}", confirmation.ttl),
            other => panic!("renewal {round} of a current lease: {other:?}"),
        }
        let left = fixture.record(&name).await.lease().expect("it was just renewed");
        // Without the renewal the lease would have at most three quarters left.
        assert!(left > ttl * 3 / 4, "renewal {round} left {left:?} of {ttl:?} at the server");
    }
    bob.takes_over(&bob.claim(&name), ttl, ttl).await;
}

/// A late copy of a renewal with a shorter ttl does not shorten the lease.
pub async fn a_renewal_never_shortens(fixture: &dyn Fixture) {
    let ann = Direct::new(fixture, Route::Clear).await;
    let (name, ttl) = (name("shorter"), fixture.ttl());
    let claim = ann.claim(&name);
    let grant = ann.granted(&claim, ttl * LONG).await;
    let reply = ann.renew(RenewRequest::new(claim, grant.confirmation.place, ttl)).await;
    assert!(matches!(reply, RenewReply::Renewed(_)), "{reply:?}");
    support::still_held(fixture, &name, grant.token, ttl * (LONG - 3)).await;
}

/// A renewal with `RenewPolicy::Exactly` ends the lease after its ttl, and not at once, as at the end of a `min_hold`.
pub async fn a_renewal_shortens_on_request(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::new(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let (name, ttl) = (name("exactly"), fixture.ttl());
    if ann.capabilities().ttl_scope != TtlScope::Lease {
        fixture.empty(
            "a lease of a session or a connection is not shortened; `min_hold_outlives_an_early_release` proves the \
             behaviour instead",
        );
        return;
    }
    let claim = ann.claim(&name);
    let place = ann.granted(&claim, ttl * LONG).await.confirmation.place;
    let mut last = RenewRequest::new(claim, place, ttl);
    last.policy = RenewPolicy::Exactly;
    let stopwatch = Stopwatch::start();
    let reply = ann.renew(last).await;
    assert!(matches!(reply, RenewReply::Renewed(_)), "{reply:?}");
    bob.takes_over(&bob.claim(&name), ttl, ttl).await;
    stopwatch.not_before(ttl, "the lease ended before its shortened ttl");
}

/// Leases with different ttls are renewed in one call, each to its own ttl. A lease of a session has its ttl from the
/// beginning.
pub async fn one_call_renews_each_to_its_own_ttl(fixture: &dyn Fixture) {
    let ann = Direct::new(fixture, Route::Clear).await;
    let ttl = fixture.ttl();
    let ttls = [ttl * 10, ttl * 20, ttl * 30];
    let mut leases = Vec::new();
    for (index, ttl) in ttls.iter().enumerate() {
        let claim = ann.claim(&name(&format!("own ttl {index}")));
        let first = if ann.capabilities().ttl_scope == TtlScope::Session { *ttl } else { fixture.ttl() * 5 };
        let place = ann.granted(&claim, first).await.confirmation.place;
        leases.push(RenewRequest::new(claim, place, *ttl));
    }
    for reply in ann.renew_all(&leases).await {
        assert!(matches!(reply, RenewReply::Renewed(_)), "{reply:?}");
    }
    for (lease, ttl) in leases.iter().zip(ttls) {
        let left = fixture.record(lease.claim.name()).await.lease().expect("it was just renewed");
        assert!(left <= ttl && left > ttl - fixture.ttl() * 5, "a lease of {ttl:?} was renewed to {left:?}");
    }
}

/// A ttl that is not a multiple of the granularity is rounded up, and the confirmation reports the rounded ttl.
pub async fn a_ttl_is_rounded_up_and_reported(fixture: &dyn Fixture) {
    let ann = Direct::new(fixture, Route::Clear).await;
    let step = ann.capabilities().ttl_granularity;
    for extra in [Duration::ZERO, Duration::from_nanos(1), step / 2, step] {
        let (name, requested) = (name(&format!("granularity {extra:?}")), fixture.ttl() * 4 + extra);
        let claim = ann.claim(&name);
        let reported = ann.granted(&claim, requested).await.confirmation.ttl;
        let left = fixture.record(&name).await.lease().expect("it was just granted");
        assert!(
            reported >= requested && reported <= requested + step,
            "requested {requested:?}, reported {reported:?}"
        );
        assert!(left <= reported && left > requested - fixture.ttl(), "reported {reported:?}, the store has {left:?}");
        ann.release(&claim, Delivery::Confirmed).await.expect("a release");
    }
}

/// Invariant 4: a slow reply shortens the validity, because it counts from the request.
pub async fn a_slow_grant_leaves_a_true_validity(fixture: &dyn Fixture) {
    let ann = warm_client(fixture, Route::Faulty).await;
    let (name, ttl) = (name("slow grant"), fixture.ttl());
    let delay = (ttl / 6).min(ann.capabilities().call_bound / 5);
    fixture.path(PathFault::Delay(delay)).await;
    let stopwatch = Stopwatch::start();
    let guard = ann.lock(name.as_str()).ttl(ttl).without_renewal().acquire().await.expect("a slow path is no fault");
    stopwatch.not_before(delay * 2, "the path was not slow");
    let (valid, took) = (guard.validity(), stopwatch.elapsed());
    let most = (ttl * 9 / 10).saturating_sub(delay * 2);
    assert!(valid <= most, "{valid:?} valid of {ttl:?} after a grant that took {took:?}");
    let left = fixture.record(&name).await.lease().unwrap_or_default();
    assert!(guard.validity() <= left, "valid for longer than the {left:?} that the server has left");
}

/// Invariant 1: a backend that reads whether a lock is free, and takes it by a second request, takes it from a client
/// that was granted the lock in between. A slow path leaves time for that.
pub async fn a_check_and_a_grant_are_one_step(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::warm(fixture, Route::Faulty).await, Direct::warm(fixture, Route::Clear).await);
    let (name, ttl) = (name("one step"), long_ttl(fixture));
    let (anns, bobs) = (ann.claim(&name), bob.claim(&name));
    // Two requests and their replies take half of the bound.
    let delay = ann.capabilities().call_bound / 8;
    fixture.path(PathFault::Delay(delay)).await;
    let (before, begin) = (fixture.served().await, Instant::now());
    let between = async {
        // The first request has arrived, and its reply is on its way. Not every fixture counts a request that reads.
        while begin.elapsed() < delay * 2 && fixture.served().await == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bob.acquire(&bobs, ttl).await
    };
    let (first, second) = tokio::join!(ann.acquire(&anns, ttl), between);
    fixture.heal().await;
    if let Ok(AcquireOutcome::Granted(grant)) = second {
        let is_granted = matches!(first, Ok(AcquireOutcome::Granted(_)));
        assert!(!is_granted, "two clients were granted one lock: {first:?}, and meanwhile {grant:?}");
        let reply = bob.renew(RenewRequest::new(bobs, grant.confirmation.place, ttl)).await;
        assert!(matches!(reply, RenewReply::Renewed(_)), "the lease was taken by a request that failed: {reply:?}");
    }
}

/// Invariants 3 and 4: the validity of a holder never exceeds the lease at the server.
pub async fn the_holder_never_believes_longer_than_the_server(fixture: &dyn Fixture) {
    let ann = steady_client(fixture, Route::Faulty).await;
    let (name, ttl) = (name("believes"), steady_ttl(fixture));
    fixture.path(PathFault::Delay(fixture.ttl() / 20)).await;
    let guard = hold(&ann, &name).await;
    let stopwatch = Stopwatch::start();
    while stopwatch.elapsed() < ttl * 2 {
        // Reads the server first. The validity can then only have shrunk, or been renewed meanwhile.
        let before = fixture.served().await;
        let left = fixture.record(&name).await.lease().unwrap_or_default();
        let valid = guard.validity();
        if fixture.served().await == before {
            assert!(valid <= left, "the holder's validity is {valid:?}, the server has {left:?} left");
        }
        tokio::time::sleep(ttl / 100).await;
    }
    assert!(ann.stats().renewed > 2, "the lease was renewed too rarely in two ttls");
}

/// Invariant 4: a renewal over a path that is slower than the margin counts from when it was sent. With a stamp from
/// its reply the validity would exceed the lease at the server.
pub async fn a_slow_renewal_leaves_a_true_validity(fixture: &dyn Fixture) {
    let (name, ttl) = (name("slow renewal"), fixture.ttl() * 2);
    let ann = build(builder(fixture, Route::Faulty).await.ttl(ttl).margin_percent(1));
    let guard = hold(&ann, &name).await;
    eventually(ttl, "the keeper has an established connection", async || ann.stats().renewed > 0).await;
    let delay = (ttl / 10).min(ann.capabilities().call_bound / 5);
    assert!(delay > ttl / 100 * 2, "the path is not slower than the margin");
    fixture.path(PathFault::Delay(delay)).await;
    let (renewed, stopwatch) = (ann.stats().renewed, Stopwatch::start());
    while stopwatch.elapsed() < ttl * 3 / 2 {
        let before = fixture.served().await;
        let left = fixture.record(&name).await.lease().unwrap_or_default();
        let valid = guard.validity();
        if fixture.served().await == before {
            assert!(valid <= left, "renewed on a slow path, the validity is {valid:?}, the server has {left:?}");
        }
        tokio::time::sleep(ttl / 200).await;
    }
    assert!(ann.stats().renewed > renewed + 1, "the lease was renewed too rarely on the slow path");
}

/// Invariant 4: a place has the ttl that the store gives to places, and its lease has the same ttl until it is renewed.
/// The validity never exceeds that, whichever ttl was requested.
pub async fn a_long_ttl_out_of_a_queue_is_a_true_one(fixture: &dyn Fixture) {
    let (holder, waiter) = (Direct::new(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let name = name("long ttl in a queue");
    let ttl = waiter.capabilities().max_place_ttl * 3;
    let (held, waits) = (holder.claim(&name), waiter.claim(&name));
    holder.granted(&held, ttl).await;
    let place = match waiter.acquire(&waits, ttl).await.expect("nothing is broken") {
        AcquireOutcome::Queued { confirmation, .. } => confirmation,
        _ => {
            fixture.empty("the server keeps no queue");
            return;
        }
    };
    holder.release(&held, Delivery::Confirmed).await.expect("a release");
    // The handoff gives the lease no more than the ttl of the place.
    let believed = |confirmation: &Confirmation| confirmation.ttl.saturating_sub(waiter.now().since(confirmation.sent));
    let is_held = async || fixture.record(&name).await.lease().is_some();
    eventually(AT_ONCE, "the lock is handed over", is_held).await;
    let left = fixture.record(&name).await.lease().expect("it was just handed over");
    let valid = believed(&place);
    assert!(valid <= left, "a place confirms {valid:?} for a lease that has {left:?}");
    let stopwatch = Stopwatch::start();
    let renewed = loop {
        match waiter.renew(RenewRequest::new(waits.clone(), place.place, ttl)).await {
            // The server may hand the lock over in steps.
            RenewReply::Waiting { .. } => stopwatch.within(AT_ONCE, "the place has become a lease"),
            renewed => break renewed,
        }
    };
    match renewed {
        RenewReply::Granted(grant) => {
            let left = fixture.record(&name).await.lease().expect("it was just renewed");
            let valid = believed(&grant.confirmation);
            assert!(
                valid <= left && left > ttl / 2,
                "renewed to {ttl:?}, confirmed {valid:?}, but the store has {left:?}"
            );
        }
        other => panic!("the lock was handed to the place, and its renewal returned {other:?}"),
    }
}

/// A renewed lease lasts, although it is held for longer than the store keeps the record of a free lock, and other
/// locks are used meanwhile.
pub async fn a_hold_outlives_the_retention(fixture: &dyn Fixture) {
    const RETENTION: Duration = Duration::from_secs(1);
    let (name, ttl) = (name("retention"), steady_ttl(fixture));
    let client = async || {
        let backend = match fixture.backend_with_retention(RETENTION).await {
            Ok(backend) => backend,
            // The store removes no records by age. The case is then a long hold.
            Err(_) => fixture.backend(Route::Clear).await,
        };
        build(fixture.tune(LockClient::builder(backend).ttl(ttl).wait(PATIENCE)))
    };
    let (ann, bob) = (client().await, client().await);
    let (stopwatch, guard) = (Stopwatch::start(), hold(&ann, &name).await);
    let mut others = 0;
    while stopwatch.elapsed() < RETENTION * 2 + ttl * 3 / 2 {
        // Enough writes for a store that looks for old records once every few hundred writes.
        for _ in 0..10 {
            others += 1;
            hold(&bob, &support::name(&format!("other {others}"))).await.release().await.expect("a release");
        }
        assert!(
            guard.is_held(),
            "lost after {:?}; records of free locks are kept for {RETENTION:?}",
            stopwatch.elapsed()
        );
        tokio::time::sleep(RETENTION / 20).await;
    }
    support::still_held(fixture, &name, guard.fencing_token(), ttl / 3).await;
    assert!(!is_free(&bob, &name).await, "the record of a held lock was removed as that of a free lock");
    guard.release().await.expect("a release");
}

/// Invariant 1: a store that removes the records of free locks checks each one again as it removes it. The lock may
/// have been acquired since the store listed its record as that of a free lock.
pub async fn a_sweep_leaves_what_was_acquired_meanwhile(fixture: &dyn Fixture) {
    const RETENTION: Duration = Duration::from_secs(1);
    const NAMES: u32 = 200;
    const APART: Duration = Duration::from_millis(5);
    let Ok(backend) = fixture.backend_with_retention(RETENTION).await else {
        return fixture.empty("it removes no record by its age");
    };
    let other = fixture.backend_with_retention(RETENTION).await.expect("it has a retention");
    let (ann, bob) = (Direct::attach(backend), Direct::attach(other));
    let ttl = Duration::from_secs(60).min(ann.capabilities().max_ttl);
    let cycle = async |client: &Direct, name: &LockName| {
        let claim = client.claim(name);
        client.granted(&claim, ttl).await;
        client.release(&claim, Delivery::Confirmed).await.expect("a release");
    };
    // One record after another becomes old. Its lock is acquired a little before or after the record counts as old.
    let mut released = Vec::new();
    for index in 0..NAMES {
        let name = support::name(&format!("old {index}"));
        cycle(&ann, &name).await;
        released.push((name, Instant::now()));
        tokio::time::sleep(APART).await;
    }
    let mut held = Vec::new();
    let all_held = AtomicBool::new(false);
    let writes = async {
        let mut others = 0;
        while !all_held.load(Ordering::Relaxed) {
            others += 1;
            cycle(&bob, &support::name(&format!("other {others}"))).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let acquires = async {
        for (index, (name, since)) in (0..).zip(&released) {
            let old = RETENTION + Duration::from_millis(index % 4);
            // On a busy machine, one acquire that comes late must not make all later ones late.
            let Some(left) = old.checked_sub(since.elapsed()) else { continue };
            tokio::time::sleep(left).await;
            let claim = ann.claim(name);
            ann.granted(&claim, ttl).await;
            held.push(claim);
        }
        all_held.store(true, Ordering::Relaxed);
    };
    tokio::join!(writes, acquires);
    tokio::time::sleep(AT_ONCE).await;
    assert!(!held.is_empty(), "every acquire came late");
    for claim in &held {
        let record = fixture.record(claim.name()).await;
        assert!(record.lease().is_some(), "the record of {:?} was removed while the lock was held", claim.name());
    }
}

/// A fixed lease is not renewed: it ends after its ttl, its holder is notified, and the lock is free.
pub async fn a_fixed_lease_is_not_renewed(fixture: &dyn Fixture) {
    let (ann, bob) = (client(fixture, Route::Clear).await, client(fixture, Route::Clear).await);
    // A long ttl: a client that ends the lease itself, because its session lives on, sends that request a tenth of the
    // ttl after the loss.
    let (name, ttl) = (name("fixed"), steady_ttl(fixture));
    let stopwatch = Stopwatch::start();
    let guard = ann.lock(name.as_str()).ttl(ttl).without_renewal().acquire().await.expect("nothing is broken");
    let served = fixture.served().await;
    let reason = lost(&guard, ttl, "the holder of a fixed lease is notified before it ends at the store").await;
    assert_eq!(reason, LossReason::Expired);
    stopwatch.not_before(ttl * 8 / 10, "the fixed lease was lost early");
    assert_eq!(fixture.served().await, served, "a fixed lease was renewed");
    eventually(ttl, "the lease ends at the server", async || fixture.record(&name).await.lease().is_none()).await;
    assert!(is_free(&bob, &name).await);
}

/// A fixed lease ends at the store, although its client keeps another lease with the same ttl, which may share its
/// session.
pub async fn a_fixed_lease_ends_beside_a_kept_one(fixture: &dyn Fixture) {
    let ann = steady_client(fixture, Route::Clear).await;
    let (name, other, ttl) = (name("fixed beside"), name("kept"), steady_ttl(fixture));
    let kept = hold(&ann, &other).await;
    let guard = ann.lock(name.as_str()).without_renewal().acquire().await.expect("nothing is broken");
    let reason = lost(&guard, ttl, "the holder of a fixed lease is notified before it ends at the store").await;
    assert_eq!(reason, LossReason::Expired);
    let ended = async || fixture.record(&name).await.lease().is_none();
    eventually(ttl / 2, "the fixed lease ends at the server, although another one is renewed", ended).await;
    support::still_held(fixture, &other, kept.fencing_token(), ttl / 3).await;
}

/// A fixed lease after a wait lasts for its whole ttl, although its place has used up a part of that ttl or has a
/// shorter one.
pub async fn a_fixed_lease_that_waited_has_its_whole_ttl(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, client(fixture, Route::Clear).await);
    let (ttl, place_ttl) = (fixture.ttl() * 2, ann.capabilities().max_place_ttl);
    for (name, ttl) in [(name("waited"), ttl), (name("waited long"), place_ttl * 2)] {
        let guard = hold(&ann, &name).await;
        let lock = bob.lock(name.as_str()).ttl(ttl).without_renewal();
        let waiter = tokio::spawn(async move { lock.acquire().await.expect("nothing is broken") });
        queued(fixture, &bob, &name, (1, 1)).await;
        // Shorter than the renewal interval of the place.
        tokio::time::sleep(fixture.ttl() / 2).await;
        let stopwatch = Stopwatch::start();
        guard.release().await.expect("a release");
        let guard = join(waiter).await;
        if ttl > place_ttl {
            let whole = async || guard.validity() > place_ttl;
            eventually(AT_ONCE * 2, "a fixed lease that waited is renewed to its own ttl", whole).await;
            guard.release().await.expect("a release");
        } else {
            let reason = lost(&guard, ttl, "the holder of a fixed lease is notified before it ends at the store").await;
            assert_eq!(reason, LossReason::Expired);
            stopwatch.not_before(ttl * 8 / 10, "a fixed lease that waited was lost early");
        }
    }
}

/// `max_hold` ends the renewal: by then the holder is notified and the lease at the server has ended.
pub async fn max_hold_ends_the_renewal(fixture: &dyn Fixture) {
    let (ann, bob) = (steady_client(fixture, Route::Clear).await, steady_client(fixture, Route::Clear).await);
    let (name, ttl) = (name("max hold"), steady_ttl(fixture));
    let longest = ttl * 2;
    let stopwatch = Stopwatch::start();
    let guard = ann.lock(name.as_str()).max_hold(longest).acquire().await.expect("nothing is broken");
    let reason = lost(&guard, longest + LOST_BY, "the lease ends after its longest hold").await;
    assert_eq!(reason, LossReason::MaxHold);
    // Allows for the margin of the last renewal, which requested less than a ttl.
    stopwatch.not_before(longest - ttl / 8, "the lease was not renewed until its longest hold");
    let bound = ttl / 8 + ann.capabilities().takeover_slack + ann.capabilities().ttl_granularity;
    becomes_free(&bob, &name, bound, "a lease is not renewed after its longest hold").await;
}

/// A `max_hold` that is shorter than the default ttl bounds the hold, after a free lock and after a queue, for renewed
/// and for fixed leases, and no lease of this holder blocks the others for longer.
pub async fn max_hold_bounds_a_longer_ttl(fixture: &dyn Fixture) {
    let (ann, bob) = (default_client(fixture, Route::Clear).await, default_client(fixture, Route::Clear).await);
    let longest = fixture.ttl() * 2;
    for (waits, renewed) in [(false, true), (false, false), (true, true), (true, false)] {
        let name = name(&format!("max hold, waits: {waits}, renewed: {renewed}"));
        let lock = ann.lock(name.as_str()).max_hold(longest);
        let lock = if renewed { lock } else { lock.without_renewal() };
        let before = if waits { Some(hold(&bob, &name).await) } else { None };
        let acquire = tokio::spawn(async move { lock.acquire().await.expect("nothing is broken") });
        if let Some(before) = before {
            queued(fixture, &ann, &name, (1, 1)).await;
            before.release().await.expect("a release");
        }
        let guard = join(acquire).await;
        assert!(guard.validity() <= longest, "valid for {:?} of at most {longest:?}", guard.validity());
        let reason = lost(&guard, longest + LOST_BY, "the hold ends by `max_hold`").await;
        assert_eq!(reason, LossReason::MaxHold);
        let bound = longest / 4 + ann.capabilities().ttl_granularity;
        let over = async || fixture.record(&name).await.lease();
        becomes(bound, "the lease at the server ends by `max_hold`", over, Option::is_none).await;
    }
}

/// `min_hold` outlives an early release: no other client holds the lock before it is over, and a waiter does soon
/// after.
pub async fn min_hold_outlives_an_early_release(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, client(fixture, Route::Clear).await);
    let (name, shortest) = (name("min hold"), fixture.ttl() * 2);
    let stopwatch = Stopwatch::start();
    let guard = ann.lock(name.as_str()).min_hold(shortest).acquire().await.expect("nothing is broken");
    let released = in_time(shortest / 2, "a release does not wait for the end of `min_hold`", guard.release()).await;
    released.expect("an early release");
    let bound = shortest + ann.capabilities().takeover_slack + ann.capabilities().ttl_granularity;
    let next = in_time(bound, "free again after `min_hold`", hold(&bob, &name)).await;
    stopwatch.not_before(shortest, "held again within `min_hold`");
    drop(next);
}

/// `min_hold` needs no client: if the store supports that, it outlives the client.
pub async fn min_hold_outlives_the_client(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, client(fixture, Route::Clear).await);
    let (name, shortest) = (name("min hold of a stopped client"), steady_ttl(fixture));
    let per_lease = ann.capabilities().ttl_scope == TtlScope::Lease;
    let guard = ann.lock(name.as_str()).min_hold(shortest).acquire().await.expect("nothing is broken");
    guard.release().await.expect("an early release");
    drop(ann);
    if per_lease {
        tokio::time::sleep(shortest / 2).await;
        let left = fixture.record(&name).await.lease().expect("the lease outlives the client until `min_hold` is over");
        assert!(left <= shortest, "the lease of a stopped client has {left:?} left of {shortest:?}");
    }
    let bound = shortest + bob.capabilities().takeover_slack;
    becomes_free(&bob, &name, bound, "free again after `min_hold`").await;
}

/// A shutdown after the end of a `min_hold` ends the lease, even if the keeper has not noticed that end yet. Otherwise
/// the lease of a session would last until its ttl ends, if the program exits then.
pub async fn a_shutdown_ends_a_min_hold_that_is_over(fixture: &dyn Fixture) {
    let builder = builder(fixture, Route::Clear).await.ttl(long_ttl(fixture));
    let bob = client(fixture, Route::Clear).await;
    let (name, shortest) = (name("min hold and shutdown"), fixture.ttl() * 2);
    let (ends, ended) = tokio::sync::oneshot::channel();
    let (exits, exit) = std::sync::mpsc::channel::<()>();
    let process = std::thread::spawn({
        let name = name.clone();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let ann = build(builder.keeper(KeeperRuntime::CurrentRuntime));
                let guard = ann.lock(name.as_str()).min_hold(shortest).acquire().await.expect("nothing is broken");
                guard.release().await.expect("an early release");
                // The keeper shares the thread, and does not run before the shutdown does.
                std::thread::sleep(shortest + ann.capabilities().ttl_granularity);
                ann.shutdown().await.expect("nothing is broken");
            });
            let _ = ends.send(());
            // From here on the client does nothing, as if its process had exited.
            let _ = exit.recv();
        }
    });
    ended.await.expect("the client is shut down");
    becomes_free(&bob, &name, AT_ONCE, "free after a shutdown at the end of `min_hold`").await;
    drop(exits);
    process.join().expect("the process ends without a panic");
}

/// Invariants 10 and 13: a wait with the defaults ends with the release. A fresh lease of the default ttl is valid for
/// nearly all of it. After a wait the lease begins with the rest of the place's shorter ttl and is renewed to the whole
/// ttl soon, before the next regular renewal.
pub async fn the_default_ttl_is_whole_soon_after_a_grant(fixture: &dyn Fixture) {
    let (ann, bob) = (default_client(fixture, Route::Clear).await, default_client(fixture, Route::Clear).await);
    let (name, whole) = (name("default ttl"), DEFAULT_TTL * 85 / 100);
    for renewed in [true, false] {
        let guard = hold(&ann, &name).await;
        assert!(guard.validity() >= whole, "an uncontended lease is valid for {:?}", guard.validity());
        let lock = bob.lock(name.as_str());
        let lock = if renewed { lock } else { lock.without_renewal() };
        let waiter = tokio::spawn(async move { lock.acquire().await.expect("nothing is broken") });
        queued(fixture, &bob, &name, (1, 1)).await;
        guard.release().await.expect("a release");
        let bound = handoff_bound(&bob.capabilities());
        let next = in_time(bound, "the waiter acquires the lock at once after the release", join(waiter)).await;
        let (valid, left) = (next.validity(), fixture.record(&name).await.lease().unwrap_or_default());
        assert!(!valid.is_zero() && valid <= left + AT_ONCE, "valid for {valid:?}, and the server has {left:?}");
        let validity = async || next.validity();
        becomes(AT_ONCE * 2, "a lease after a wait soon has its whole ttl", validity, |valid| *valid >= whole).await;
        let left = fixture.record(&name).await.lease().expect("it is held");
        assert!(left >= whole, "the holder has its whole ttl, but the server has {left:?} left");
        next.release().await.expect("a release");
    }
}

/// Invariant 4: a lease that a client is granted beside an older one, whose renewal is not due yet, is valid for as
/// long as the older one was at first.
pub async fn a_later_grant_has_its_whole_ttl(fixture: &dyn Fixture) {
    let (ann, ttl) = (steady_client(fixture, Route::Clear).await, steady_ttl(fixture));
    let _older = hold(&ann, &name("older")).await;
    tokio::time::sleep(ttl / 4).await;
    let stopwatch = Stopwatch::start();
    let valid = hold(&ann, &name("later")).await.validity();
    let least = (ttl * 85 / 100).saturating_sub(stopwatch.lag());
    assert!(valid >= least, "a later lease of {ttl:?} is valid for {valid:?}");
}

/// Invariant 4: the holder keeps a margin, so the validity of a fresh lease is shorter than its ttl. It only shrinks.
pub async fn validity_keeps_a_margin_and_shrinks(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Clear).await;
    let (name, ttl) = (name("margin"), fixture.ttl());
    let guard = ann.lock(name.as_str()).without_renewal().acquire().await.expect("nothing is broken");
    let mut last = guard.validity();
    assert!(last <= ttl * 9 / 10 && last > ttl / 2, "a fresh lease of {ttl:?} is valid for {last:?}");
    while !last.is_zero() {
        tokio::time::sleep(ttl / 10).await;
        let now = guard.validity();
        assert!(now < last || now.is_zero(), "the validity of a fixed lease grew from {last:?} to {now:?}");
        assert_eq!(guard.is_held(), !guard.validity().is_zero(), "`is_held` and `validity` disagree");
        last = now;
    }
    assert!(!guard.is_held());
}
