//! `server` with each fault, and `tamper`. The runner of the case reports unsupported faults.

use std::time::Duration;

use leasehold_core::ErrorKind;
use leasehold_core::backend::{AcquireOutcome, Delivery, StoreClock, TtlScope};

use super::{becomes_unavailable, fails, gets_a_reply, gets_a_reply_within, long};
use crate::direct::Direct;
use crate::fault::{Data, Room, ServerFault, Tamper, Unsupported};
use crate::fixture::{Fixture, Route};
use crate::support::{AT_ONCE, BACK, becomes, name};

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

/// `Fixture::server(Stop)`: the server does not reply. `Start(Kept)`: it replies and has its data.
pub async fn stops_and_starts(fixture: &dyn Fixture) {
    is_down(fixture, ServerFault::Stop).await;
}

/// `Fixture::server(Kill)`: the same.
pub async fn kills_and_starts(fixture: &dyn Fixture) {
    is_down(fixture, ServerFault::Kill).await;
}

async fn is_down(fixture: &dyn Fixture, fault: ServerFault) {
    const START: &str = "Fixture::server(Start(Kept))";
    let what = format!("Fixture::server({fault:?})");
    let (ann, name, ttl) = (Direct::new(fixture, Route::Clear).await, name("kept"), fixture.ttl() * 10);
    let grant = ann.granted(&ann.claim(&name), ttl).await;
    if !is_offered(fixture.server(fault).await, &what) {
        return;
    }
    becomes_unavailable(&ann, &crate::support::name("down"), ttl, &what).await;
    must(fixture, ServerFault::Start(Data::Kept), &what).await;
    let record = fixture.record(&name).await;
    assert_eq!(record.last_token, Some(grant.token), "{START}: the server has lost its data: {record:?}");
    // A lease that is kept by a connection ends with the server.
    let is_kept = ann.capabilities().ttl_scope != TtlScope::Connection;
    assert_eq!(record.lease().is_some(), is_kept, "{START}: the server has lost its data: {record:?}");
    // After a restart a backend may grant nothing until the leases from before it have ended.
    gets_a_reply_within(ttl, &ann, &crate::support::name("back"), ttl, START).await;
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
    assert!(reply.is_err(), "{WHAT}: a server that was killed while it stood still has replied: {reply:?}");
    must(fixture, ServerFault::Start(Data::Kept), "Kill").await;
    let record = fixture.record(&meanwhile).await;
    assert_eq!(record.lease(), None, "{WHAT}: the server has processed a request before its end");
    let record = fixture.record(&before).await;
    assert_eq!(record.last_token, Some(grant.token), "Fixture::server(Start(Kept)): it has lost its data: {record:?}");
}

/// A process that is killed is gone before that, also on a busy machine.
const KILLED: Duration = Duration::from_secs(5);

/// `Fixture::server(Start(Lost))`: the server has no data.
pub async fn starts_without_data(fixture: &dyn Fixture) {
    const WHAT: &str = "Fixture::server(Start(Lost))";
    let (ann, name, ttl) = (Direct::new(fixture, Route::Clear).await, name("lost"), fixture.ttl() * 5);
    ann.granted(&ann.claim(&name), ttl).await;
    if !is_offered(fixture.server(ServerFault::Kill).await, "Fixture::server(Kill)") {
        return;
    }
    if !is_offered(fixture.server(ServerFault::Start(Data::Lost)).await, WHAT) {
        return must(fixture, ServerFault::Start(Data::Kept), "Kill").await;
    }
    let record = fixture.record(&name).await;
    assert!(record.lease().is_none() && record.last_token.is_none(), "{WHAT}: it still has {record:?}");
    gets_a_reply_within(ttl, &ann, &name, ttl, WHAT).await;
}

/// `Fixture::server(Pause)`: a call gets no reply. `Resume`: it gets one.
pub async fn pauses_and_resumes(fixture: &dyn Fixture) {
    const WHAT: &str = "Fixture::server(Pause)";
    let (ann, name, ttl) = (Direct::warm(fixture, Route::Clear).await, name("paused"), long(fixture));
    if !is_offered(fixture.server(ServerFault::Pause).await, WHAT) {
        return;
    }
    let pause = AT_ONCE.min(ann.capabilities().call_bound / 4);
    let claim = ann.claim(&name);
    if let Ok(reply) = tokio::time::timeout(pause, ann.acquire(&claim, ttl)).await {
        panic!("{WHAT}: within {pause:?} a call ended with {reply:?}");
    }
    must(fixture, ServerFault::Resume, "Pause").await;
    gets_a_reply(&ann, &name, ttl, "Fixture::server(Resume)").await;
}

/// `Fixture::server(RefuseUser)`: a new client fails with `Auth`, until `Restore`.
pub async fn refuses_the_user(fixture: &dyn Fixture) {
    refuses(fixture, ServerFault::RefuseUser, ErrorKind::Auth).await;
}

/// `Fixture::server(ReadOnly)`: nothing is granted, until `Restore`.
pub async fn refuses_writes(fixture: &dyn Fixture) {
    refuses(fixture, ServerFault::ReadOnly, ErrorKind::Unavailable).await;
}

/// `Fixture::server(Fill(Data))`: a new client fails with `Capacity`, until `Restore`.
pub async fn fills_the_store(fixture: &dyn Fixture) {
    refuses(fixture, ServerFault::Fill(Room::Data), ErrorKind::Capacity).await;
}

/// `Fixture::server(Fill(Connections))`: the same.
pub async fn fills_the_connections(fixture: &dyn Fixture) {
    refuses(fixture, ServerFault::Fill(Room::Connections), ErrorKind::Capacity).await;
}

async fn refuses(fixture: &dyn Fixture, fault: ServerFault, expected: ErrorKind) {
    let what = format!("Fixture::server({fault:?})");
    // The cases have one open connection, too.
    let ann = Direct::warm(fixture, Route::Clear).await;
    if !is_offered(fixture.server(fault).await, &what) {
        return;
    }
    let (bob, name) = (Direct::new(fixture, Route::Clear).await, name("refused"));
    assert_eq!(fails(&bob, &name, long(fixture), &what).await, expected, "{what}");
    must(fixture, ServerFault::Restore, &what).await;
    gets_a_reply(&bob, &name, long(fixture), &format!("Fixture::server(Restore) after {what}")).await;
    drop(ann);
}

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

/// `Fixture::tamper(Remove)`: a lock that is held has no lease any more.
pub async fn removes_a_record(fixture: &dyn Fixture) {
    const WHAT: &str = "Fixture::tamper(Remove)";
    let (ann, name) = (Direct::warm(fixture, Route::Clear).await, name("removed"));
    ann.granted(&ann.claim(&name), long(fixture)).await;
    if is_offered(fixture.tamper(&name, Tamper::Remove).await, WHAT) {
        let record = fixture.record(&name).await;
        assert_eq!((record.lease(), record.waiting()), (None, 0), "{WHAT}: the record is still there");
    }
}

/// `Fixture::tamper(Corrupt)`: the backend cannot read the record of that lock, and reads all others.
pub async fn corrupts_a_record(fixture: &dyn Fixture) {
    is_unreadable(fixture, Tamper::Corrupt).await;
}

/// `Fixture::tamper(OtherVersion)`: the same.
pub async fn writes_another_version(fixture: &dyn Fixture) {
    is_unreadable(fixture, Tamper::OtherVersion).await;
}

async fn is_unreadable(fixture: &dyn Fixture, tamper: Tamper) {
    let what = format!("Fixture::tamper({tamper:?})");
    let (ann, name) = (Direct::warm(fixture, Route::Clear).await, name("unreadable"));
    let claim = ann.claim(&name);
    ann.granted(&claim, long(fixture)).await;
    ann.release(&claim, Delivery::Confirmed).await.expect("a release");
    if !is_offered(fixture.tamper(&name, tamper).await, &what) {
        return;
    }
    assert_eq!(fails(&ann, &name, long(fixture), &what).await, ErrorKind::Unsupported, "{what}");
    let other = ann.acquire(&ann.claim(&crate::support::name("readable")), long(fixture)).await;
    assert!(matches!(other, Ok(AcquireOutcome::Granted(_))), "{what}: another lock was changed too: {other:?}");
}

/// `Fixture::server(FlushScripts)`: the server still serves its clients. They cannot observe the flush.
pub async fn flushes_scripts(fixture: &dyn Fixture) {
    const WHAT: &str = "Fixture::server(FlushScripts)";
    let (ann, name) = (Direct::warm(fixture, Route::Clear).await, name("scripts"));
    if is_offered(fixture.server(ServerFault::FlushScripts).await, WHAT) {
        gets_a_reply(&ann, &name, long(fixture), WHAT).await;
        tokio::time::timeout(BACK, fixture.connected())
            .await
            .unwrap_or_else(|_| panic!("{WHAT}: no client is connected"));
        fixture.empty("clients cannot observe whether a server has flushed its scripts: test it beside the fixture");
    }
}
