//! Cases with default options: the default ttl and wait, for each operation of a lock, each with a time bound.
//!
//! Cases of other groups test the rest: `lease::the_default_ttl_is_whole_soon_after_a_grant` a wait,
//! `waiting::the_cost_of_a_handoff_is_flat` clients that take turns, and `lease::max_hold_bounds_a_longer_ttl` the
//! longest hold.
//!
//! The other cases use short ttls. A defect that waits for a third of a ttl costs 200 ms there, and 10 s here.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::defaults::DEFAULT_TTL;
use leasehold_core::{LockClient, LossReason};

use crate::clients::{build, default_client, handoff_bound, hold, lost, queued};
use crate::fault::{PathFault, Tamper};
use crate::fixture::{Fixture, Route};
use crate::jumping_clock::JumpingClock;
use crate::support::{AT_ONCE, Stopwatch, eventually, join, name};
use crate::timing_control::in_time;

/// A client with the defaults, and a clock that the case sets forward.
async fn jumping_client(fixture: &dyn Fixture, route: Route) -> (LockClient, Arc<JumpingClock>) {
    let clock = Arc::new(JumpingClock::default());
    let builder = LockClient::builder(fixture.backend(route).await).clock(clock.clone());
    (build(fixture.tune(builder)), clock)
}

/// An acquire of a free lock is granted at once and for the whole ttl. After its release the lock is free.
pub async fn an_acquire_is_at_once(fixture: &dyn Fixture) {
    let (ann, bob) = (default_client(fixture, Route::Clear).await, default_client(fixture, Route::Clear).await);
    let name = name("default acquire");
    for client in [&ann, &bob, &ann] {
        let bound = AT_ONCE + handoff_bound(&client.capabilities());
        let guard = in_time(bound, "a free lock is acquired at once", hold(client, &name)).await;
        let left = fixture.record(&name).await.lease().expect("it is held");
        let most = DEFAULT_TTL + client.capabilities().ttl_granularity;
        assert!(left > DEFAULT_TTL * 9 / 10 && left <= most, "the store has {left:?} of {DEFAULT_TTL:?}");
        assert!(guard.validity() <= left, "valid for longer than the lease at the server");
        in_time(bound, "a release is at once", guard.release()).await.expect("a release");
    }
}

/// A lease is renewed after each third of the default ttl.
pub async fn a_lease_is_kept(fixture: &dyn Fixture) {
    let ((ann, clock), bob) =
        (jumping_client(fixture, Route::Clear).await, default_client(fixture, Route::Clear).await);
    let guard = hold(&ann, &name("default hold")).await;
    for renewals in 1..=4 {
        clock.jump(DEFAULT_TTL / 3);
        let renewed = async || ann.stats().renewed >= renewals;
        eventually(AT_ONCE * 5, "a lease is renewed after a third of the default ttl", renewed).await;
        assert!(guard.validity() > DEFAULT_TTL / 2, "renewed, and valid for {:?}", guard.validity());
    }
    assert!(bob.lock("default hold").try_acquire().await.expect("nothing is broken").is_none());
    assert_eq!((ann.stats().lost, ann.stats().renewal_errors), (0, 0));
}

/// Invariant 6: a loss is reported: by the next renewal if the lease is gone, and at the end of the validity if the
/// server is silent.
pub async fn a_loss_is_reported(fixture: &dyn Fixture) {
    let (ann, clock) = jumping_client(fixture, Route::Faulty).await;
    let (gone, silent) = (name("default gone"), name("default silence"));
    let guard = hold(&ann, &gone).await;
    if fixture.tamper(&gone, Tamper::Remove).await.is_ok() {
        clock.jump(DEFAULT_TTL / 3);
        assert_eq!(lost(&guard, AT_ONCE * 5, "a default lease that is gone is reported").await, LossReason::Gone);
    }
    let guard = hold(&ann, &silent).await;
    fixture.path(PathFault::DropTraffic).await;
    clock.jump(DEFAULT_TTL);
    assert!(!guard.is_held());
    assert_eq!(lost(&guard, AT_ONCE, "the end of a default lease is reported").await, LossReason::Expired);
    fixture.heal().await;
}

/// `min_hold` with a default ttl: a waiter acquires the lock when `min_hold` is over, not before it, and not a fraction
/// of the ttl later.
pub async fn a_shortest_hold_is_kept_and_no_longer(fixture: &dyn Fixture) {
    let (ann, bob) = (default_client(fixture, Route::Clear).await, default_client(fixture, Route::Clear).await);
    let (name, shortest) = (name("default min hold"), Duration::from_secs(1));
    let capabilities = bob.capabilities();
    let bound = shortest + capabilities.takeover_slack + capabilities.ttl_granularity;
    for waits_before in [false, true] {
        let stopwatch = Stopwatch::start();
        let guard = ann.lock(name.as_str()).min_hold(shortest).acquire().await.expect("nothing is broken");
        let next = hold(&bob, &name);
        let next = if waits_before {
            let waiter = tokio::spawn(next);
            queued(fixture, &bob, &name, (1, 1)).await;
            guard.release().await.expect("an early release");
            in_time(bound, "a waiter acquires the lock soon after the shortest hold", join(waiter)).await
        } else {
            guard.release().await.expect("an early release");
            in_time(bound, "free again after the shortest hold", next).await
        };
        stopwatch.not_before(shortest, "held again within the shortest hold");
        next.release().await.expect("a release");
    }
}
