//! `backend` by its two routes, `path` with each fault, `heal` and `deliver`.

use std::time::Duration;

use leasehold_core::backend::{AcquireOutcome, Delivery, Event, TtlScope, Waiting};
use leasehold_core::{ErrorKind, LockName};

use super::{becomes_unavailable, fails, gets_a_reply, long};
use crate::direct::Direct;
use crate::fault::PathFault;
use crate::fixture::{Fixture, Route};
use crate::support::{AT_ONCE, POLL_INTERVAL, Stopwatch, join_all, name};

/// A request without a reply may fail with another kind for two reasons. The author of a new backend has to look at both.
const UNANSWERED: &str = "a request was sent and got no reply. Either the fault closes or refuses connections, or the backend returns \
                          another kind than `Indeterminate` for a request that may have left";

/// Asserts that the server has received no request for a lock: not now, and not after the path is healed.
async fn nothing_arrives(fixture: &dyn Fixture, name: &LockName, served: u64, what: &str) {
    fixture.heal().await;
    fixture.deliver().await;
    tokio::time::sleep(AT_ONCE).await;
    assert_eq!(fixture.served().await, served, "{what}: a request has arrived");
    assert_eq!(fixture.record(name).await.lease(), None, "{what}: a request has arrived");
}

/// `Fixture::path` breaks [`Route::Faulty`] and leaves [`Route::Clear`] alone.
pub async fn breaks_one_route_only(fixture: &dyn Fixture) {
    let (ann, name) = (Direct::warm(fixture, Route::Clear).await, name("clear route"));
    fixture.path(PathFault::DropTraffic).await;
    let reply = ann.acquire(&ann.claim(&name), long(fixture)).await;
    assert!(
        matches!(reply, Ok(AcquireOutcome::Granted(_))),
        "Fixture::backend(Route::Clear): a fault of the path breaks the clear route: {reply:?}"
    );
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

/// `Fixture::path(DropTraffic)`: nothing gets a reply and nothing arrives, neither now nor later.
pub async fn drops_all_traffic(fixture: &dyn Fixture) {
    const WHAT: &str = "Fixture::path(DropTraffic)";
    let (ann, name) = (Direct::warm(fixture, Route::Faulty).await, name("silent"));
    let served = fixture.served().await;
    fixture.path(PathFault::DropTraffic).await;
    let stopwatch = Stopwatch::start();
    let kind = fails(&ann, &name, long(fixture), WHAT).await;
    assert_eq!(kind, ErrorKind::Indeterminate, "{WHAT}: {UNANSWERED}");
    // The client detects a refused or closed connection at once.
    stopwatch.not_before(ann.capabilities().call_bound / 4, WHAT);
    nothing_arrives(fixture, &name, served, WHAT).await;
}

/// `Fixture::path(Delay)`: a request, its reply and a push are each delayed.
pub async fn delays_the_path(fixture: &dyn Fixture) {
    const WHAT: &str = "Fixture::path(Delay)";
    let (ann, name) = (Direct::warm(fixture, Route::Faulty).await, name("delayed"));
    let bob = Direct::warm(fixture, Route::Clear).await;
    let delay = AT_ONCE.min(ann.capabilities().call_bound / 8);
    fixture.path(PathFault::Delay(delay)).await;
    let stopwatch = Stopwatch::start();
    let reply = ann.acquire(&ann.claim(&name), long(fixture)).await;
    assert!(reply.is_ok(), "{WHAT}: delayed requests arrive: {reply:?}");
    stopwatch.not_before(delay * 2, &format!("{WHAT}: a request and its reply"));
    fixture.heal().await;
    if let Some(notified) = notified_after(fixture, &bob, &ann, Some(PathFault::Delay(delay))).await {
        assert!(notified >= delay, "{WHAT}: a push came {notified:?} after the release, the delay is {delay:?}");
    }
}

/// `Fixture::path(LoseReplies)`: a request takes effect; its reply is lost, and so is a push.
pub async fn loses_replies(fixture: &dyn Fixture) {
    const WHAT: &str = "Fixture::path(LoseReplies)";
    let (ann, name) = (Direct::warm(fixture, Route::Faulty).await, name("unanswered"));
    let (bob, served) = (Direct::warm(fixture, Route::Clear).await, fixture.served().await);
    fixture.path(PathFault::LoseReplies).await;
    let kind = fails(&ann, &name, long(fixture), WHAT).await;
    assert_eq!(kind, ErrorKind::Indeterminate, "{WHAT}: {UNANSWERED}");
    match ann.capabilities().ttl_scope {
        // The client ends the connection of a request without a reply, and with it a lease.
        TtlScope::Connection => assert!(fixture.served().await > served, "{WHAT}: the request has not arrived"),
        _ => assert!(fixture.record(&name).await.lease().is_some(), "{WHAT}: the request has not arrived"),
    }
    fixture.heal().await;
    gets_a_reply(&ann, &name, long(fixture), "Fixture::heal").await;
    let notified = notified_after(fixture, &bob, &ann, Some(PathFault::LoseReplies)).await;
    assert_eq!(notified, None, "{WHAT}: a push has arrived");
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

/// The time from a release of `holder` until the backend of `waiter` reports an event, under this fault. `None` if it reports none
/// within 200 ms and twice the delay.
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

/// `Fixture::path(Hold)` and `Fixture::deliver`: a request does not arrive before it is delivered, not even when the path is healed
/// and its client has given it up; then all arrive in order.
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

/// `Fixture::deliver`: returns when the server has processed the requests, and not when they were sent: nothing arrives after that.
pub async fn delivers_until_all_is_processed(fixture: &dyn Fixture) {
    const REQUESTS: usize = 20;
    let (ann, ttl) = (Direct::warm(fixture, Route::Faulty).await, long(fixture));
    if ann.capabilities().ttl_scope == TtlScope::Connection || !fixture.late_requests_arrive() {
        return fixture.empty("a request that is delivered late arrives on a connection that has ended");
    }
    fixture.path(PathFault::Hold).await;
    let claims: Vec<_> = (0..REQUESTS).map(|index| ann.claim(&name(&format!("held back {index}")))).collect();
    let replies = join_all(claims.iter().map(|claim| ann.acquire(claim, ttl))).await;
    assert!(replies.iter().all(Result::is_err), "Fixture::path(Hold): a request that is held got a reply: {replies:?}");
    fixture.heal().await;
    fixture.deliver().await;
    let leases = async || fixture.resource_counts().await.leases;
    let then = leases().await;
    tokio::time::sleep(AT_ONCE * 2).await;
    let now = leases().await;
    assert!(then > 0 && then == now, "Fixture::deliver: it has returned after {then} of {now} leases were granted");
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
        // The client answers the second release of a claim whose connection has ended, and confirms the session of a claim that is
        // granted again.
        assert!(twice > once, "{WHAT}: {once} requests without it, {twice} with it");
        return;
    }
    assert_eq!(
        twice,
        once * 2,
        "{WHAT}: the number of requests that the server processed for one acquire and one release"
    );
}

/// `Fixture::heal` ends each fault for later requests. A second fault replaces the first.
pub async fn heals_the_path(fixture: &dyn Fixture) {
    let (ann, ttl) = (Direct::warm(fixture, Route::Faulty).await, long(fixture));
    let delay = ann.capabilities().call_bound;
    let faults = [
        PathFault::Disconnect,
        PathFault::DropTraffic,
        PathFault::Delay(delay),
        PathFault::LoseReplies,
        PathFault::Hold,
    ];
    for fault in faults {
        let name = name(&format!("healed {fault:?}"));
        fixture.path(fault.clone()).await;
        // The fault must have an effect before it is healed.
        let _ = ann.acquire(&ann.claim(&name), ttl).await;
        fixture.heal().await;
        gets_a_reply(&ann, &name, ttl, &format!("Fixture::heal after {fault:?}")).await;
    }
    fixture.path(PathFault::DropTraffic).await;
    fixture.path(PathFault::Double).await;
    gets_a_reply(&ann, &name("replaced"), ttl, "Fixture::path: a second fault replaces the first").await;
}
