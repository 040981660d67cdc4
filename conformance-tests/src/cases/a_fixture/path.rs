//! `path` with the faults that no other case proves to have an effect, and `deliver`.

use std::time::Duration;

use leasehold_core::LockName;
use leasehold_core::backend::{AcquireOutcome, Delivery, Event, TtlScope, Waiting};

use super::{becomes_unavailable, long};
use crate::direct::Direct;
use crate::fault::PathFault;
use crate::fixture::{Fixture, Route};
use crate::support::{AT_ONCE, POLL_INTERVAL, Stopwatch, name};

/// Asserts that the server has received no request for a lock: not now, and not after the path is healed.
async fn nothing_arrives(fixture: &dyn Fixture, name: &LockName, served: u64, what: &str) {
    fixture.heal().await;
    fixture.deliver().await;
    tokio::time::sleep(AT_ONCE).await;
    assert_eq!(fixture.served().await, served, "{what}: a request has arrived");
    assert_eq!(fixture.record(name).await.lease(), None, "{what}: a request has arrived");
}

/// `Fixture::path(Disconnect)`: nothing arrives by connections that are open, and new ones are refused.
pub async fn closes_connections(fixture: &dyn Fixture) {
    const WHAT: &str = "Fixture::path(Disconnect)";
    let (ann, name) = (Direct::warm(fixture, Route::Faulty).await, name("cut"));
    let served = fixture.served().await;
    fixture.path(PathFault::Disconnect).await;
    let fresh = Direct::new(fixture, Route::Faulty).await;
    for client in [&ann, &fresh] {
        becomes_unavailable(client, &name, long(fixture), WHAT).await;
    }
    nothing_arrives(fixture, &name, served, WHAT).await;
}

/// `Fixture::path(LosePushes)`: requests and replies arrive, and pushes do not, until the path is healed.
pub async fn loses_pushes(fixture: &dyn Fixture) {
    const WHAT: &str = "Fixture::path(LosePushes)";
    let (ann, bob) = (Direct::warm(fixture, Route::Faulty).await, Direct::warm(fixture, Route::Clear).await);
    fixture.path(PathFault::LosePushes).await;
    let reply = ann.acquire(&ann.claim(&name("answered")), long(fixture)).await;
    assert!(matches!(reply, Ok(AcquireOutcome::Granted(_))), "{WHAT}: requests and replies arrive: {reply:?}");
    fixture.heal().await;
    if ann.capabilities().waiting == Waiting::Poll {
        return fixture.empty("its waiters poll: there is no push to lose");
    }
    let before = notified_after(fixture, &bob, &ann, None).await;
    assert!(before.is_some(), "{WHAT} cannot be checked: no push arrives without a fault either");
    let lost = notified_after(fixture, &bob, &ann, Some(PathFault::LosePushes)).await;
    assert_eq!(lost, None, "{WHAT}: a push has arrived");
    let after = notified_after(fixture, &bob, &ann, None).await;
    assert!(after.is_some(), "Fixture::heal: pushes are still lost");
}

/// The time from a release of `holder` until the backend of `waiter` reports an event, under this fault. `None` if it
/// reports none within 200 ms and twice the delay.
async fn notified_after(
    fixture: &dyn Fixture,
    holder: &Direct,
    waiter: &Direct,
    fault: Option<PathFault>,
) -> Option<Duration> {
    let (name, ttl) = (name("pushed"), long(fixture));
    let held = holder.claim(&name);
    holder.granted_soon(&held, ttl).await;
    let waiting = waiter.claim(&name);
    waiter.not_granted(&waiting, ttl).await;
    fixture.connected().await;
    let delay = if let Some(PathFault::Delay(delay)) = fault { delay } else { Duration::ZERO };
    if let Some(fault) = fault {
        fixture.path(fault).await;
    }
    waiter.take_events();
    let stopwatch = Stopwatch::start();
    holder.release(&held, Delivery::Confirmed).await.expect("the holder's route is clear");
    let mut notified = None;
    while notified.is_none() && stopwatch.elapsed() < AT_ONCE * 2 + delay * 2 + stopwatch.lag() {
        tokio::time::sleep(POLL_INTERVAL / 5).await;
        let reports = |event: &Event| matches!(event, Event::Granted { .. } | Event::Changed(_) | Event::Resync);
        notified = waiter.take_events().iter().any(reports).then(|| stopwatch.elapsed());
    }
    fixture.heal().await;
    // It may still be reconnecting.
    while waiter.release(&waiting, Delivery::Confirmed).await.is_err() {
        stopwatch.within(Duration::from_secs(5), "Fixture::heal: a release gets a reply again");
    }
    notified
}

/// `Fixture::path(Hold)` and `Fixture::deliver`: a request does not arrive before it is delivered, even if the path is
/// healed and its client has given up. Then all held requests arrive in order.
pub async fn holds_and_delivers(fixture: &dyn Fixture) {
    let (ann, name, ttl) = (Direct::warm(fixture, Route::Faulty).await, name("held back"), long(fixture));
    let (first, second) = (ann.claim(&name), ann.claim(&name));
    let served = fixture.served().await;
    fixture.path(PathFault::Hold).await;
    let late = async {
        tokio::time::sleep(POLL_INTERVAL * 4).await;
        ann.acquire(&second, ttl).await
    };
    let (one, two) = tokio::join!(ann.acquire(&first, ttl), late);
    assert!(one.is_err() && two.is_err(), "Fixture::path(Hold): a request that is held got a reply: {one:?}, {two:?}");
    let arrived = fixture.record(&name).await.lease();
    assert_eq!(arrived, None, "Fixture::path(Hold): a request has arrived before it was delivered");
    fixture.heal().await;
    tokio::time::sleep(AT_ONCE).await;
    let arrived = fixture.record(&name).await.lease();
    assert_eq!(arrived, None, "Fixture::heal: a held request must stay held, and it has arrived");
    fixture.deliver().await;
    let arrived = fixture.record(&name).await.lease();
    if ann.capabilities().ttl_scope == TtlScope::Connection || !fixture.late_requests_arrive() {
        assert_eq!(arrived, None, "a request arrived on a connection that the client has ended");
        return fixture.empty("a request that is delivered late arrives on a connection that has ended");
    }
    assert!(arrived.is_some(), "Fixture::deliver: it has returned, and a held request has not arrived");
    assert!(fixture.served().await > served, "Fixture::served: a request that was delivered does not count");
    let mut reply = ann.acquire(&first, ttl).await;
    if ann.capabilities().ttl_scope == TtlScope::Session && matches!(reply, Ok(AcquireOutcome::Queued { .. })) {
        // Requests of one session may share a connection whose server processes them at the same time.
        reply = ann.acquire(&second, ttl).await;
    }
    assert!(
        matches!(reply, Ok(AcquireOutcome::Granted(_))),
        "Fixture::deliver: requests have not arrived in the order in which they were sent: {reply:?}"
    );
}

/// `Fixture::path(Double)`: the server processes every request twice.
pub async fn doubles_requests(fixture: &dyn Fixture) {
    const WHAT: &str = "Fixture::path(Double)";
    let ann = Direct::warm(fixture, Route::Faulty).await;
    let cost = async |name: &str| {
        let (claim, before) = (ann.claim(&crate::support::name(name)), fixture.served().await);
        let reply = ann.acquire(&claim, long(fixture)).await;
        assert!(reply.is_ok(), "{WHAT}: the caller gets the first reply: {reply:?}");
        tokio::time::sleep(AT_ONCE).await;
        ann.release(&claim, Delivery::Confirmed).await.unwrap_or_else(|error| panic!("{WHAT}: a release: {error:?}"));
        tokio::time::sleep(AT_ONCE).await;
        fixture.served().await - before
    };
    let once = cost("once").await;
    fixture.path(PathFault::Double).await;
    let twice = cost("twice").await;
    if ann.capabilities().ttl_scope != TtlScope::Lease {
        // The number need not double: the client itself answers the second release of a claim whose connection has
        // ended, and sends one more request to confirm the session of a claim that is granted again.
        assert!(twice > once, "{WHAT}: {once} requests without it, {twice} with it");
        return;
    }
    assert_eq!(
        twice,
        once * 2,
        "{WHAT}: the number of requests that the server processed for one acquire and one release"
    );
}
