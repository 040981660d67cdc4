//! Waiters and holders after a reconnect.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, CoreHandle, Event, LossNotice, RenewReply, RenewRequest, TtlScope, Waiting,
};
use leasehold_core::{Error, ErrorKind, LockClient, Result};

use crate::clients::{LONG, PATIENCE, build, client, handoff_bound, hold, is_free, long_client, queued, steady_ttl};
use crate::direct::Direct;
use crate::fault::{PathFault, Tamper};
use crate::faulty::lock;
use crate::fixture::{Fixture, Route};
use crate::hooks::{Hooked, Hooks, Inner};
use crate::support::{AT_ONCE, BACK, Stopwatch, eventually, join, name, still_held};
use crate::timing_control::in_time;

/// How many call bounds a client may take to connect over a path whose round trip fits into a call.
const CONNECTED_BY: u32 = 15;

/// The shortest ttl of a lease that outlives such a reconnect, in call bounds. A client connects within two or three of
/// them, and a busy machine doubles that.
const KEPT_FOR: u32 = 9;

/// Withholds the requests of lock-core during an outage and until the backend has reported an event after it. So the
/// waiter depends on the backend alone: no retry of lock-core can reconnect it or find the lock free.
#[derive(Default)]
struct RetriesAfterAnEvent(Mutex<Progress>);

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Progress {
    #[default]
    NotAsked,
    /// The store has replied to the waiter: it waits.
    Waits,
    CutOff,
    Healed,
    /// The backend has reported an event since.
    Notified,
}

impl RetriesAfterAnEvent {
    fn is(&self, progress: Progress) -> bool {
        *lock(&self.0) == progress
    }

    fn withheld(&self) -> Option<Error> {
        let text = "withheld by the case until the backend reports an event";
        (self.is(Progress::CutOff) || self.is(Progress::Healed)).then(|| Error::new(ErrorKind::Unavailable, text))
    }
}

#[async_trait]
impl Hooks for RetriesAfterAnEvent {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        if let Some(error) = self.withheld() {
            return Err(error);
        }
        let reply = inner.backend.acquire(request).await;
        if let Ok(AcquireOutcome::Contended { .. } | AcquireOutcome::Queued { .. }) = &reply {
            let mut progress = lock(&self.0);
            if *progress == Progress::NotAsked {
                *progress = Progress::Waits;
            }
        }
        reply
    }

    async fn renew(&self, inner: &Inner, requests: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        match self.withheld() {
            Some(error) => (0..requests.len()).map(|index| (index, RenewReply::Unknown(error.clone()))).collect(),
            None => inner.renew(requests).await,
        }
    }

    fn event(&self, _: &Arc<Inner>, core: &CoreHandle, event: Event) {
        {
            let mut progress = lock(&self.0);
            if *progress == Progress::Healed {
                *progress = Progress::Notified;
            }
        }
        core.event(event);
    }
}

/// Invariant 13: a waiter may miss a notification while it is disconnected. A backend that is notified reconnects by
/// itself, without a request of the client, and sends [`Event::Resync`] then, or the event that was missed. So the
/// waiter retries at once, long before its next poll. If waiters poll, or the connection was their place, lock-core
/// retries by itself.
pub async fn a_waiter_retries_as_soon_as_it_is_connected(fixture: &dyn Fixture) {
    let (ann, ttl) = (long_client(fixture, Route::Clear).await, fixture.ttl() * LONG);
    let capabilities = ann.capabilities();
    let is_notified = capabilities.waiting != Waiting::Poll && capabilities.ttl_scope != TtlScope::Connection;
    let hooks = Arc::new(RetriesAfterAnEvent::default());
    let backend = Hooked::new(fixture.backend(Route::Faulty).await, 0, hooks.clone());
    let bob = build(fixture.tune(LockClient::builder(backend).ttl(ttl).wait(PATIENCE)));
    let name = name("retries after a reconnect");
    let guard = hold(&ann, &name).await;
    let waiter = tokio::spawn(hold(&bob, &name));
    queued(fixture, &bob, &name, (1, 1)).await;
    let waits = async || hooks.is(Progress::Waits);
    eventually(bob.capabilities().call_bound, "the store has replied to the waiter", waits).await;
    // After the reply the client begins to watch the lock.
    tokio::time::sleep(AT_ONCE).await;
    fixture.connected().await;
    if is_notified {
        *lock(&hooks.0) = Progress::CutOff;
    }
    fixture.path(PathFault::Disconnect).await;
    // The handoff and its notification happen during the outage.
    guard.release().await.expect("a release");
    if is_notified {
        // An event about the cut itself does not count as a reconnect.
        tokio::time::sleep(AT_ONCE).await;
        *lock(&hooks.0) = Progress::Healed;
    }
    fixture.heal().await;
    let mut bound = handoff_bound(&bob.capabilities());
    if is_notified {
        let notified = async || hooks.is(Progress::Notified);
        eventually(BACK, "the backend has reconnected by itself and reports an event", notified).await;
    } else {
        bound += BACK;
    }
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

/// Invariant 6: a holder that has reconnected is notified of a loss as before. If it were not, its next renewal would
/// find the loss and hide that.
pub async fn a_holder_is_notified_after_a_reconnect(fixture: &dyn Fixture) {
    let ann = Direct::warm(fixture, Route::Faulty).await;
    let (name, ttl) = (name("loss after a reconnect"), fixture.ttl() * LONG);
    if ann.capabilities().ttl_scope == TtlScope::Connection {
        fixture.empty("a lease ends with its connection");
        return;
    }
    // A client may start and stop observing its leases a moment after the call.
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

/// Invariant 11: connecting may take several round trips, and longer than one call. An attempt to connect continues
/// after the call that began it has given up. So a client on a slow path connects in the end, even after its connection
/// was cut.
pub async fn a_slow_path_is_connected_to(fixture: &dyn Fixture) {
    let client = long_client(fixture, Route::Faulty).await;
    let bound = client.capabilities().call_bound;
    // A round trip takes a sixth of the bound. That is enough for the few round trips of a call, and not for those that
    // set up a connection as well.
    let slow = PathFault::Delay(bound / 12);
    for cut in [false, true] {
        if cut {
            fixture.path(PathFault::Disconnect).await;
            tokio::time::sleep(AT_ONCE).await;
        }
        fixture.path(slow.clone()).await;
        let name = name(if cut { "cut on a slow path" } else { "on a slow path" });
        let guard = client.lock(name.as_str()).wait(bound * CONNECTED_BY).acquire().await;
        let guard = guard.unwrap_or_else(|error| panic!("not connected over a slow path (cut: {cut}): {error:?}"));
        assert!(guard.is_held());
        fixture.heal().await;
        guard.release().await.expect("a release");
    }
}

/// Invariant 11: the connection of a holder is cut once, and its path is then so slow that it cannot connect
/// within one call. The holder keeps its lease: the attempt to connect continues, and a renewal gets through before the
/// lease ends.
pub async fn a_holder_that_is_cut_on_a_slow_path_keeps_its_lease(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Faulty).await;
    if ann.capabilities().ttl_scope == TtlScope::Connection {
        fixture.empty("a lease ends with its connection");
        return;
    }
    let (bound, name) = (ann.capabilities().call_bound, name("holds on a slow path"));
    // Two thirds of it are left when the first renewal is due.
    let ttl = steady_ttl(fixture).max(bound * KEPT_FOR);
    let guard = ann.lock(name.as_str()).ttl(ttl).acquire().await.expect("nothing is broken");
    fixture.connected().await;
    fixture.path(PathFault::Disconnect).await;
    let cut = Stopwatch::start();
    tokio::time::sleep(AT_ONCE).await;
    fixture.path(PathFault::Delay(bound / 12)).await;
    // The lease ends by then unless a renewal arrives over the new connection, however slow the machine is.
    if let Ok(loss) = tokio::time::timeout(ttl, guard.lost()).await {
        let after = cut.elapsed();
        panic!("a holder that was cut on a slow path has lost its lease of {ttl:?} after {after:?}: {loss:?}");
    }
    still_held(fixture, &name, guard.fencing_token(), Duration::ZERO).await;
    fixture.heal().await;
    guard.release().await.expect("a release");
}
