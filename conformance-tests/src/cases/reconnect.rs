//! Waiters and holders after a reconnect.

use leasehold_core::backend::{Event, LossNotice, RenewReply, RenewRequest, TtlScope};

use crate::clients::{LONG, handoff_bound, hold, is_free, long_client, queued};
use crate::direct::Direct;
use crate::fault::{PathFault, Tamper};
use crate::fixture::{Fixture, Route};
use crate::support::{AT_ONCE, BACK, eventually, join, name};
use crate::timing_control::in_time;

/// Invariant 13: a waiter may miss a notification while it is disconnected. It retries as soon as it has reconnected, long before
/// its next poll.
pub async fn a_waiter_retries_as_soon_as_it_is_connected(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Faulty).await);
    let name = name("retries after a reconnect");
    let guard = hold(&ann, &name).await;
    let waiter = tokio::spawn(hold(&bob, &name));
    queued(fixture, &bob, &name, (1, 1)).await;
    fixture.path(PathFault::Disconnect).await;
    // The handoff and its notification happen during the outage.
    guard.release().await.expect("a release");
    fixture.heal().await;
    let bound = BACK + handoff_bound(&bob.capabilities());
    let next = in_time(bound, "a waiter that has reconnected retries at once", join(waiter)).await;
    assert!(next.is_held());
}

/// Invariants 10 and 13: a client is notified again after a reconnect: it has renewed its subscriptions.
pub async fn a_waiter_is_notified_after_a_reconnect(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Faulty).await);
    let name = name("notified after a reconnect");
    let bound = handoff_bound(&bob.capabilities());
    for cut in [false, true] {
        if cut {
            fixture.path(PathFault::Disconnect).await;
            tokio::time::sleep(AT_ONCE).await;
            fixture.heal().await;
            let back = async || bob.lock(name.as_str()).acquire().await.is_ok();
            eventually(BACK + bob.capabilities().call_bound, "the client works again", back).await;
            // The release may use another connection, which may still be reconnecting.
            eventually(BACK, "the granted lock is released", async || is_free(&ann, &name).await).await;
        }
        let guard = hold(&ann, &name).await;
        let waiter = tokio::spawn(hold(&bob, &name));
        queued(fixture, &bob, &name, (1, 1)).await;
        guard.release().await.expect("a release");
        let next = in_time(bound, "a waiter is notified after a reconnect as before", join(waiter)).await;
        next.release().await.expect("a release");
    }
}

/// Invariant 6: a holder that has reconnected learns of a loss as before. Its renewals would hide that it does not.
pub async fn a_holder_is_notified_after_a_reconnect(fixture: &dyn Fixture) {
    let ann = Direct::warm(fixture, Route::Faulty).await;
    let (name, ttl) = (name("loss after a reconnect"), fixture.ttl() * LONG);
    if ann.capabilities().ttl_scope == TtlScope::Connection {
        fixture.empty("a lease ends with its connection");
        return;
    }
    // A client may begin and cease to observe its leases a moment later.
    tokio::time::sleep(AT_ONCE).await;
    let claim = ann.claim(&name);
    let place = ann.granted(&claim, ttl).await.confirmation.place;
    tokio::time::sleep(AT_ONCE).await;
    fixture.path(PathFault::Disconnect).await;
    tokio::time::sleep(AT_ONCE).await;
    fixture.heal().await;
    let request = RenewRequest::new(claim, place, ttl);
    let back = async || matches!(ann.renew(request.clone()).await, RenewReply::Renewed(_));
    eventually(BACK + ann.capabilities().call_bound, "the client works again", back).await;
    ann.take_events();
    if fixture.tamper(&name, Tamper::Remove).await.is_ok() && ann.capabilities().loss_notice == LossNotice::Pushed {
        let reported = async || ann.take_events().iter().any(|event| matches!(event, Event::Gone { .. }));
        eventually(BACK, "a loss is pushed after a reconnect as before", reported).await;
    }
    let reply = ann.renew(request.clone()).await;
    let has_lease = fixture.record(&name).await.lease().is_some();
    assert_eq!(matches!(reply, RenewReply::Renewed(_)), has_lease, "the next renewal returned {reply:?}");
}
