//! `server`: a kill, and steps of the clock. The runner of the case reports unsupported faults.

use std::time::Duration;

use leasehold_core::backend::StoreClock;

use super::{becomes_unavailable, long};
use crate::direct::Direct;
use crate::fault::{Data, ServerFault, Unsupported};
use crate::fixture::{Fixture, Route};
use crate::support::{AT_ONCE, becomes, name};

/// Whether a fault is supported. An unsupported one must have a reason.
fn is_offered(outcome: Result<(), Unsupported>, what: &str) -> bool {
    match outcome {
        Ok(()) => true,
        Err(unsupported) => {
            assert!(!unsupported.reason.trim().is_empty(), "{what}: unsupported without a reason");
            false
        }
    }
}

async fn must(fixture: &dyn Fixture, fault: ServerFault, what: &str) {
    if let Err(unsupported) = fixture.server(fault.clone()).await {
        panic!("Fixture::server({fault:?}): {what} is supported, and this fault ends it: {}", unsupported.reason);
    }
}

/// `Fixture::server(Kill)`: no orderly stop, which would hide data that were acknowledged and not written. A paused server cannot stop in
/// order. It can be killed, and what was sent to it meanwhile has no effect.
pub async fn kills_without_an_orderly_stop(fixture: &dyn Fixture) {
    const WHAT: &str = "Fixture::server(Kill)";
    let (ann, bob, ttl) =
        (Direct::warm(fixture, Route::Clear).await, Direct::warm(fixture, Route::Clear).await, fixture.ttl() * 10);
    let (before, meanwhile) = (name("before the kill"), name("meanwhile"));
    let grant = ann.granted(&ann.claim(&before), ttl).await;
    if !is_offered(fixture.server(ServerFault::Pause).await, "Fixture::server(Pause)") {
        return fixture.empty("its server cannot be paused, so nothing shows how it ends");
    }
    let claim = bob.claim(&meanwhile);
    let sent = bob.acquire(&claim, ttl);
    let killed = async {
        tokio::time::sleep(AT_ONCE / 2).await;
        tokio::time::timeout(KILLED, fixture.server(ServerFault::Kill)).await
    };
    let (reply, killed) = tokio::join!(sent, killed);
    let Ok(killed) = killed else {
        panic!("{WHAT}: a paused server is not dead after {KILLED:?}: it waits for its stop")
    };
    if !is_offered(killed, WHAT) {
        return must(fixture, ServerFault::Resume, "Pause").await;
    }
    becomes_unavailable(&ann, &name("down"), ttl, WHAT).await;
    assert!(reply.is_err(), "{WHAT}: a server that was killed while it stood still has replied: {reply:?}");
    must(fixture, ServerFault::Start(Data::Kept), "Kill").await;
    let record = fixture.record(&meanwhile).await;
    assert_eq!(record.lease(), None, "{WHAT}: the server has processed a request before its end");
    let record = fixture.record(&before).await;
    assert_eq!(record.last_token, Some(grant.token), "Fixture::server(Start(Kept)): it has lost its data: {record:?}");
}

/// A killed process is gone within this time, even on a busy machine.
const KILLED: Duration = Duration::from_secs(5);

/// `Fixture::server(ClockForward)`: less is left of a lease by the server's clock.
pub async fn steps_the_clock_forward(fixture: &dyn Fixture) {
    steps(fixture, fixture.ttl() * 10, true).await;
}

/// `Fixture::server(ClockBack)`: more is left of a lease by the server's clock.
pub async fn steps_the_clock_back(fixture: &dyn Fixture) {
    steps(fixture, fixture.ttl() * 10, false).await;
}

async fn steps(fixture: &dyn Fixture, by: Duration, forward: bool) {
    let fault = if forward { ServerFault::ClockForward(by) } else { ServerFault::ClockBack(by) };
    let what = format!("Fixture::server({fault:?})");
    let (ann, name) = (Direct::warm(fixture, Route::Clear).await, name("clock"));
    ann.granted(&ann.claim(&name), long(fixture)).await;
    let left = async || fixture.record(&name).await.lease().unwrap_or_default();
    let before = left().await;
    if !is_offered(fixture.server(fault).await, &what) {
        return;
    }
    if ann.capabilities().clock != StoreClock::ServerWall {
        return fixture.empty("no lease ends by the wall clock, so a step has no observable effect");
    }
    // Time passes during the step, and some servers read their clock once per event loop iteration.
    let text = format!("{what}: the lease had {before:?} left before the step");
    let is_stepped = |now: &Duration| if forward { *now + by <= before } else { *now >= before + by / 2 };
    becomes(AT_ONCE, &text, left, is_stepped).await;
}
