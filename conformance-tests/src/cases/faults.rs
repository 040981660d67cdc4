//! Faults of the server or of the path to it. If a fault is unsupported, the case proves the documented behaviour
//! instead.

use std::sync::Arc;

use leasehold_core::ErrorKind;
use leasehold_core::backend::{Delivery, ReleaseOutcome, RenewReply, RenewRequest, StoreClock, TtlScope};

use crate::clients::{
    LONG, PATIENCE, becomes_free, client, hold, is_free, kind_of, long_client, lost, offered, queued, steady_client,
    steady_ttl,
};
use crate::direct::Direct;
use crate::fault::{Data, PathFault, Room, ServerFault, Unsupported};
use crate::fixture::{Fixture, Route};
use crate::support::{AT_ONCE, BACK, ENDS_BY, LOST_BY, POLL_INTERVAL, Stopwatch, eventually, join, name, still_held};
use crate::timing_control::in_time;

/// Invariant 11: if the server is down, an acquire ends in time with `Unavailable`. When the server is back, the same
/// client works again.
pub async fn a_server_that_is_down_is_unavailable(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Clear).await;
    let name = name("down");
    if let Err(unsupported) = fixture.server(ServerFault::Stop).await {
        return in_process(fixture, &ann, unsupported);
    }
    // A server may stop within milliseconds. A request that is sent on a connection just before its end has an unknown
    // outcome.
    tokio::time::sleep(AT_ONCE * 3).await;
    let (bound, lock) = (ann.capabilities().call_bound * 5 / 4, ann.lock(name.as_str()));
    let refused = in_time(bound, "one attempt ends within the bound of a call and a quarter", lock.try_acquire()).await;
    assert_eq!(kind_of(&refused), ErrorKind::Unavailable, "{refused:?}");
    let wait = fixture.ttl();
    let (stopwatch, lock) = (Stopwatch::start(), lock.wait(wait));
    let refused = in_time(wait + ENDS_BY, "the wait ends", lock.acquire()).await;
    assert_eq!(kind_of(&refused), ErrorKind::Unavailable, "{refused:?}");
    stopwatch.not_before(wait, "a server that is down may come back within the wait");
    start(fixture, Data::Kept).await;
    let back = async || ann.lock(name.as_str()).acquire().await.is_ok();
    eventually(fixture.back_within(), "the client works again", back).await;
}

/// An acquire continues while the server is down, and succeeds if the server is back within the wait.
pub async fn an_acquire_outlives_a_restart(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Clear).await;
    let name = name("comes back");
    if let Err(unsupported) = fixture.server(ServerFault::Stop).await {
        return in_process(fixture, &ann, unsupported);
    }
    let lock = ann.lock(name.as_str()).wait(PATIENCE + fixture.back_within());
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(fixture.ttl()).await;
    assert!(!waiting.is_finished(), "an acquire gave up before its wait was over");
    start(fixture, Data::Kept).await;
    let bound = fixture.back_within() + ann.capabilities().call_bound;
    let guard = in_time(bound, "the client detects that the server is back", join(waiting)).await;
    let guard = guard.expect("the server is back within the wait");
    assert!(guard.is_held());
}

/// Invariants 1 and 2: across a restart with its data there is never a second holder.
pub async fn a_restart_makes_no_second_holder(fixture: &dyn Fixture) {
    restarted(fixture, ServerFault::Stop).await;
}

/// Invariants 1 and 2: the same when the server is killed, if its persistence keeps what it acknowledged.
pub async fn a_kill_makes_no_second_holder(fixture: &dyn Fixture) {
    restarted(fixture, ServerFault::Kill).await;
}

async fn restarted(fixture: &dyn Fixture, end: ServerFault) {
    let (ann, bob) = (client(fixture, Route::Clear).await, client(fixture, Route::Clear).await);
    let name = name("restart");
    let ttl = steady_ttl(fixture);
    let guard = ann.lock(name.as_str()).ttl(ttl).acquire().await.expect("nothing is broken");
    if let Err(unsupported) = fixture.server(end).await {
        return in_process(fixture, &ann, unsupported);
    }
    start(fixture, Data::Kept).await;
    let lock = bob.lock(name.as_str());
    let stopwatch = Stopwatch::start();
    let mut next = None;
    while stopwatch.elapsed() < ttl * 2 {
        // An error is no grant: a backend may withhold new grants after a restart.
        if let Ok(Some(granted)) = lock.try_acquire().await {
            assert!(!guard.is_held(), "two hold after a restart of the server");
            next = Some(granted);
            break;
        }
        tokio::time::sleep(ttl / 20).await;
    }
    match next {
        Some(next) => assert!(next.fencing_token() > guard.fencing_token()),
        None => assert!(guard.is_held(), "after the restart no client holds the lock and none is granted it"),
    }
}

/// Outside the domain, a server comes back without its data. Its holder is notified, and the next holder has a higher
/// token. If both may believe that they hold, the capabilities of the backend state that.
pub async fn lost_data_is_reported(fixture: &dyn Fixture) {
    let (ann, bob) = (client(fixture, Route::Clear).await, client(fixture, Route::Clear).await);
    let name = name("lost data");
    let ttl = fixture.ttl();
    let guard = hold(&ann, &name).await;
    let first = guard.fencing_token();
    if let Err(unsupported) = fixture.server(ServerFault::Kill).await {
        return in_process(fixture, &ann, unsupported);
    }
    if let Err(unsupported) = fixture.server(ServerFault::Start(Data::Lost)).await {
        start(fixture, Data::Kept).await;
        return in_process(fixture, &ann, unsupported);
    }
    let next = bob.lock(name.as_str()).wait(PATIENCE + fixture.back_within());
    let granted = tokio::spawn(async move { next.acquire().await.expect("the lock is granted") });
    let stopwatch = Stopwatch::start();
    while guard.is_held() && stopwatch.elapsed() < ttl + BACK {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    if guard.is_held() {
        // A holder may put its lease back, if the server grants nothing to others meanwhile.
        let record = fixture.record(&name).await;
        let is_back = record.lease().is_some() && record.last_token == Some(first);
        assert!(is_back && !granted.is_finished(), "the holder is not notified that its lease is gone: {record:?}");
        guard.release().await.expect("a release");
    }
    let next = join(granted).await;
    assert!(next.fencing_token() > first, "the token fell when the data was lost");
    let ends = ann.capabilities().limits_of_exclusion;
    assert!(!ends.is_empty(), "data can be lost, and the capabilities do not state it as a limit of exclusion");
}

/// Invariants 5, 6 and 11: a server is paused. The holder is notified in time, calls end, and requests that the server
/// processes after the pause have no effect.
pub async fn a_paused_server_does_no_harm(fixture: &dyn Fixture) {
    let (ann, bob) = (client(fixture, Route::Clear).await, client(fixture, Route::Clear).await);
    let (name, ttl) = (name("paused"), fixture.ttl());
    // Connects bob, so that his request meets a paused server and not a failed connection.
    hold(&bob, &name).await.release().await.expect("a release");
    let guard = hold(&ann, &name).await;
    if let Err(unsupported) = fixture.server(ServerFault::Pause).await {
        return in_process(fixture, &ann, unsupported);
    }
    tokio::time::sleep(AT_ONCE / 2).await;
    let lock = bob.lock(name.as_str()).wait(ttl / 2);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    lost(&guard, guard.validity() + LOST_BY, "the holder of a paused server is notified").await;
    assert_eq!(
        kind_of(&join(waiting).await),
        ErrorKind::Indeterminate,
        "the request may take effect when the server resumes"
    );
    fixture.server(ServerFault::Resume).await.expect("a paused server can be resumed");
    drop(guard);
    let bound = ttl + BACK + ann.capabilities().takeover_slack;
    becomes_free(&bob, &name, bound, "the lock is free when the server resumes").await;
    eventually(bound, "late requests left nothing", async || fixture.resource_counts().await.is_clean()).await;
}

/// Invariant 9: every reply to a renewal is lost. The lease stays at the server, and the holder loses it when its
/// validity ends.
pub async fn lost_replies_to_renewals_end_the_validity(fixture: &dyn Fixture) {
    let (ann, bob) = (client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let (name, ttl) = (name("renewal without reply"), fixture.ttl());
    let guard = hold(&ann, &name).await;
    fixture.path(PathFault::LoseReplies).await;
    tokio::time::sleep(AT_ONCE / 2).await;
    let (stopwatch, valid) = (Stopwatch::start(), guard.validity());
    lost(&guard, valid + LOST_BY, "a renewal without a reply does not prolong the validity").await;
    stopwatch.not_before(valid, "the loss was reported before the validity ended");
    // The server may have processed renewals. The next client waits until that lease ends, and no longer, although no
    // reply has reached its holder.
    let bound = ttl + ann.capabilities().takeover_slack + BACK;
    becomes_free(&bob, &name, bound, "the lock is free although no reply arrives").await;
    fixture.heal().await;
    drop(guard);
    becomes_free(&ann, &name, bound, "the lock is free again").await;
}

/// Invariant 9: the reply to a release is lost. The caller gets `Indeterminate`, holds nothing, and the lock is free.
pub async fn a_lost_reply_to_a_release_is_indeterminate(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let name = name("release without reply");
    let guard = hold(&ann, &name).await;
    fixture.path(PathFault::LoseReplies).await;
    let bound = ann.capabilities().call_bound * 5 / 4;
    let released = in_time(bound, "a release ends within the bound of a call and a quarter", guard.release()).await;
    assert_eq!(kind_of(&released), ErrorKind::Indeterminate);
    becomes_free(&bob, &name, AT_ONCE, "the release has taken effect").await;
    let next = hold(&bob, &name).await;
    fixture.heal().await;
    tokio::time::sleep(fixture.ttl()).await;
    assert!(next.is_held() && !is_free(&ann, &name).await, "a repeated release ended the next lease");
}

/// Invariant 9: a release takes effect, and its connection breaks before the reply. If the client asks again on the
/// next connection, it finds no lease and must not report a loss. Only where a lease ends with its connection may the
/// release return `NotHeld`.
pub async fn a_release_without_its_connection_is_no_loss(fixture: &dyn Fixture) {
    let ann = Arc::new(Direct::warm(fixture, Route::Faulty).await);
    let name = name("release without a connection");
    for round in 0..3 {
        let claim = ann.claim(&name);
        ann.granted_soon(&claim, fixture.ttl() * 20).await;
        fixture.path(PathFault::LoseReplies).await;
        let release = tokio::spawn({
            let ann = ann.clone();
            async move { ann.release(&claim, Delivery::Confirmed).await }
        });
        eventually(BACK, "the release arrives", async || fixture.record(&name).await.lease().is_none()).await;
        fixture.heal().await;
        match join(release).await {
            Ok(ReleaseOutcome::NotHeld) if ann.capabilities().ttl_scope == TtlScope::Connection => {}
            Ok(outcome) => assert_eq!(outcome, ReleaseOutcome::Released, "round {round}: the claim held the lock"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Indeterminate, "round {round}: it has arrived"),
        }
    }
}

/// Invariants 8 and 9: the keeper repeats a release that did not arrive until it arrives, long before the ttl ends the
/// lease.
pub async fn a_lost_release_is_sent_again(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    for (fault, drops) in
        [(PathFault::DropTraffic, false), (PathFault::Disconnect, false), (PathFault::DropTraffic, true)]
    {
        let name = name(&format!("lost release {fault:?} {drops}"));
        let guard = hold(&ann, &name).await;
        fixture.path(fault.clone()).await;
        if drops {
            drop(guard);
            tokio::time::sleep(AT_ONCE).await;
        } else {
            let kind = kind_of(&guard.release().await);
            assert!(matches!(kind, ErrorKind::Indeterminate | ErrorKind::Unavailable), "{kind:?}");
        }
        // The server ends a lease that is kept by a connection when that connection is cut.
        let is_cut = fault == PathFault::Disconnect && ann.capabilities().ttl_scope == TtlScope::Connection;
        assert!(is_cut || !is_free(&bob, &name).await, "no request has arrived");
        fixture.heal().await;
        let bound = BACK + ann.capabilities().call_bound;
        becomes_free(&bob, &name, bound, "a release that did not arrive is sent again").await;
    }
}

/// Invariant 6: the release of a lease that was broken and granted to another client returns `Lost`, although its
/// holder could not know. If no reply arrives, the repeated release finds no lease, and the shutdown reports the loss.
pub async fn a_release_of_a_lost_lease_is_no_release(fixture: &dyn Fixture) {
    let bob = long_client(fixture, Route::Clear).await;
    for is_cut in [false, true] {
        let (ann, name) = (long_client(fixture, Route::Faulty).await, name(&format!("lost before, cut: {is_cut}")));
        let guard = hold(&ann, &name).await;
        if is_cut {
            fixture.path(PathFault::DropTraffic).await;
        }
        let raised = bob.break_lock(name.as_str(), guard.fencing_token()).await;
        let Some(raised) = offered("the path of the operator is clear", raised) else {
            return fixture.empty("it breaks no locks");
        };
        assert!(raised.is_some(), "the lease was current");
        let next = hold(&bob, &name).await;
        let released = guard.release().await;
        if is_cut {
            let kind = kind_of(&released);
            assert!(matches!(kind, ErrorKind::Indeterminate | ErrorKind::Unavailable), "{kind:?}");
            fixture.heal().await;
            // A shutdown fails while there is no connection.
            let ended = async {
                loop {
                    match ann.shutdown().await {
                        Err(error) if error.kind() != ErrorKind::Lost => tokio::time::sleep(POLL_INTERVAL).await,
                        ended => return ended,
                    }
                }
            };
            let ended = in_time(BACK + ann.capabilities().call_bound * 3, "the release is repeated", ended).await;
            assert!(ended.is_err(), "a lease that was lost counts as released by the repeated release");
        } else {
            assert!(released.is_err(), "a lease that was lost counts as released");
            assert_eq!(kind_of(&released), ErrorKind::Lost, "{released:?}");
            ann.shutdown().await.expect("its loss was reported before");
        }
        assert!(next.is_held() && !is_free(&bob, &name).await, "the next lease was released");
    }
}

/// Contract of `LockBackend`, "idempotent by claim": every request arrives twice, with and without a queue, and has the
/// effect of one request.
pub async fn doubled_requests_do_what_one_does(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::new(fixture, Route::Faulty).await, Direct::new(fixture, Route::Clear).await);
    let (name, ttl) = (name("doubled"), fixture.ttl() * 20);
    fixture.path(PathFault::Double).await;
    let settle = || tokio::time::sleep(AT_ONCE);
    let first = ann.claim(&name);
    let place = ann.granted(&first, ttl).await.confirmation.place;
    settle().await;
    assert!(matches!(ann.renew(RenewRequest::new(first.clone(), place, ttl)).await, RenewReply::Renewed(_)));
    settle().await;
    let waiter = ann.claim(&name);
    ann.not_granted(&waiter, ttl).await;
    settle().await;
    assert!(fixture.record(&name).await.waiting() <= 1, "one claim has two places");
    ann.release(&waiter, Delivery::Confirmed).await.expect("a waiter leaves");
    settle().await;
    assert_eq!(fixture.record(&name).await.waiting(), 0);
    assert_eq!(ann.release(&first, Delivery::Confirmed).await.expect("a release"), ReleaseOutcome::Released);
    let next = bob.claim(&name);
    let grant = bob.granted_soon(&next, ttl).await;
    settle().await;
    still_held(fixture, &name, grant.token, ttl / 2).await;
}

/// Invariant 13: a waiter that reconnects within the ttl of its place keeps its turn. If it reconnects later, it still
/// gets the lock.
pub async fn a_waiter_that_was_cut_off_gets_the_lock(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, steady_client(fixture, Route::Faulty).await);
    let (name, ttl) = (name("cut waiter"), steady_ttl(fixture));
    for away in [ttl / 4, ttl * 4 / 3] {
        let guard = hold(&ann, &name).await;
        let waiter = tokio::spawn(hold(&bob, &name));
        queued(fixture, &bob, &name, (1, 1)).await;
        fixture.path(PathFault::Disconnect).await;
        tokio::time::sleep(away).await;
        // The handoff and its notification happen during the outage.
        guard.release().await.expect("a release");
        fixture.heal().await;
        let bound = ttl + BACK + bob.capabilities().takeover_slack;
        let next = in_time(bound, "a waiter that has reconnected gets the lock", join(waiter)).await;
        assert!(next.is_held());
        next.release().await.expect("a release");
    }
}

/// A server that refuses the user: `Auth`, at once and not at the end of the wait.
pub async fn a_refused_user_gets_an_error_at_once(fixture: &dyn Fixture) {
    refused_at_once(fixture, ServerFault::RefuseUser, ErrorKind::Auth).await;
}

/// A server that has no room for data: `Capacity`, at once. Held locks can be released.
pub async fn a_full_server_gives_an_error_at_once(fixture: &dyn Fixture) {
    refused_at_once(fixture, ServerFault::Fill(Room::Data), ErrorKind::Capacity).await;
}

/// A server that accepts no more connections: `Capacity` at once for a try. An acquire waits, because other clients
/// close theirs.
pub async fn a_wait_outlasts_a_server_without_connections(fixture: &dyn Fixture) {
    let (ann, name) = (long_client(fixture, Route::Clear).await, name("no connection"));
    let guard = hold(&ann, &name).await;
    if let Err(unsupported) = fixture.server(ServerFault::Fill(Room::Connections)).await {
        return in_process(fixture, &ann, unsupported);
    }
    // A new client: open connections may still work.
    let bob = long_client(fixture, Route::Clear).await;
    let refused = in_time(bob.capabilities().call_bound, "a try fails at once", bob.lock("other").try_acquire()).await;
    assert_eq!(kind_of(&refused), ErrorKind::Capacity, "{refused:?}");
    let lock = bob.lock("other");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(fixture.ttl()).await;
    assert!(!waiting.is_finished(), "an acquire gave up before the end of its wait");
    fixture.server(ServerFault::Restore).await.expect("the fault can be ended");
    let bound = BACK + bob.capabilities().call_bound;
    let waited = in_time(bound, "the client connects", join(waiting)).await.expect("the server accepts connections");
    assert!(waited.is_held() && guard.is_held());
    guard.release().await.expect("a release");
}

async fn refused_at_once(fixture: &dyn Fixture, fault: ServerFault, expected: ErrorKind) {
    let (ann, name) = (long_client(fixture, Route::Clear).await, name("refused"));
    let guard = hold(&ann, &name).await;
    if let Err(unsupported) = fixture.server(fault).await {
        return in_process(fixture, &ann, unsupported);
    }
    // A new client: open connections may still work.
    let bob = long_client(fixture, Route::Clear).await;
    let lock = bob.lock("other").wait(fixture.ttl() * 5);
    let refused =
        in_time(bob.capabilities().call_bound, "the acquire fails before the end of its wait", lock.acquire()).await;
    assert_eq!(kind_of(&refused), expected, "{refused:?}");
    fixture.server(ServerFault::Restore).await.expect("the fault can be ended");
    eventually(BACK, "the client works after the fault has ended", async || {
        bob.lock("other").try_acquire().await.is_ok()
    })
    .await;
    // The server may have ended the connections of the user, and with them a lease that is kept by a connection.
    if expected == ErrorKind::Auth && ann.capabilities().ttl_scope == TtlScope::Connection {
        return drop(guard);
    }
    assert!(guard.is_held());
    guard.release().await.expect("a release");
}

/// A server that refuses writes grants nothing. An acquire waits, because the server may become a primary again.
pub async fn a_read_only_server_grants_nothing(fixture: &dyn Fixture) {
    let ann = long_client(fixture, Route::Clear).await;
    let name = name("read-only");
    hold(&ann, &name).await.release().await.expect("a release");
    if let Err(unsupported) = fixture.server(ServerFault::ReadOnly).await {
        return in_process(fixture, &ann, unsupported);
    }
    let refused = ann.lock(name.as_str()).try_acquire().await;
    assert_eq!(kind_of(&refused), ErrorKind::Unavailable, "{refused:?}");
    let lock = ann.lock(name.as_str());
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(fixture.ttl()).await;
    assert!(!waiting.is_finished(), "an acquire gave up on a replica before the end of its wait");
    fixture.server(ServerFault::Restore).await.expect("the fault can be ended");
    let bound = BACK + ann.capabilities().call_bound;
    let guard =
        in_time(bound, "the client detects the new primary", join(waiting)).await.expect("it is a primary again");
    assert!(guard.is_held());
}

/// A server flushes the loaded scripts or statements. No client is affected.
pub async fn flushed_scripts_are_loaded_again(fixture: &dyn Fixture) {
    let (ann, bob) = (steady_client(fixture, Route::Clear).await, steady_client(fixture, Route::Clear).await);
    let (name, ttl) = (name("scripts"), steady_ttl(fixture));
    let guard = hold(&ann, &name).await;
    let waiter = tokio::spawn(hold(&bob, &name));
    queued(fixture, &bob, &name, (1, 1)).await;
    let stopwatch = Stopwatch::start();
    while stopwatch.elapsed() < ttl * 2 {
        // If the fault is unsupported, there is nothing to flush. The case then proves that a lock works without the
        // fault.
        let _ = fixture.server(ServerFault::FlushScripts).await;
        tokio::time::sleep(fixture.ttl() / 10).await;
        assert!(guard.is_held(), "flushed scripts caused the loss of a lease");
    }
    guard.release().await.expect("a release");
    let _ = fixture.server(ServerFault::FlushScripts).await;
    join(waiter).await.release().await.expect("a release");
    assert!(is_free(&ann, &name).await);
    assert_eq!((ann.stats().lost, ann.stats().renewal_errors), (0, 0), "flushed scripts caused a loss or an error");
}

/// A wall clock that is set forward by more than a ttl: tokens rise, and the holder is notified by its next renewal. If
/// two clients may believe that they hold, the capabilities state that.
pub async fn a_wall_clock_set_forward_does_no_harm(fixture: &dyn Fixture) {
    stepped(fixture, ServerFault::ClockForward(fixture.ttl() * 50)).await;
}

/// A wall clock that is set back: no two clients hold the lock, tokens rise, and the lock is free after its release.
pub async fn a_wall_clock_set_back_does_no_harm(fixture: &dyn Fixture) {
    stepped(fixture, ServerFault::ClockBack(fixture.ttl() * 50)).await;
}

/// Invariant 3: a release ends a lease whatever the clock says later. A store that keeps the owner and only moves the
/// deadline to the present would have the lease again when its wall clock is set back.
pub async fn a_clock_set_back_revives_no_released_lease(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::warm(fixture, Route::Clear).await, Direct::warm(fixture, Route::Clear).await);
    let ttl = fixture.ttl() * LONG;
    let mut released = Vec::new();
    for delivery in [Delivery::Confirmed, Delivery::InDoubt] {
        let claim = ann.claim(&name(&format!("released {delivery:?}")));
        let place = ann.granted(&claim, ttl).await.confirmation.place;
        let outcome = ann.release(&claim, delivery).await.expect("a release");
        assert_eq!(outcome, ReleaseOutcome::Released);
        released.push((claim, place));
    }
    // If the clock cannot be stepped, the leases must stay released all the same.
    let step = fixture.server(ServerFault::ClockBack(fixture.ttl() * 50)).await;
    for (claim, place) in released {
        let record = fixture.record(claim.name()).await;
        assert_eq!(record.lease(), None, "after {step:?} a released lease is back: {record:?}");
        let renewed = ann.renew(RenewRequest::new(claim.clone(), place, ttl)).await;
        assert!(
            !matches!(renewed, RenewReply::Renewed(_) | RenewReply::Granted(_)),
            "after {step:?} the renewal of a released lease returned {renewed:?}"
        );
        bob.granted(&bob.claim(claim.name()), ttl).await;
    }
}

async fn stepped(fixture: &dyn Fixture, step: ServerFault) {
    let (ann, bob) = (steady_client(fixture, Route::Clear).await, steady_client(fixture, Route::Clear).await);
    let (name, ttl) = (name("wall clock"), steady_ttl(fixture));
    let guard = hold(&ann, &name).await;
    let forward = matches!(step, ServerFault::ClockForward(_));
    if let Err(unsupported) = fixture.server(step).await {
        assert!(!unsupported.reason.is_empty());
        let is_by_wall_clock = ann.capabilities().clock == StoreClock::ServerWall;
        assert!(
            !is_by_wall_clock || unsupported.is_withheld(),
            "{}, but its leases end by a wall clock",
            unsupported.reason
        );
        // Without a step, only time passes.
        tokio::time::sleep(ttl * 3 / 2).await;
        assert!(guard.is_held() && !is_free(&bob, &name).await);
        return;
    }
    let next = bob.lock(name.as_str()).try_acquire().await.expect("a step of the clock is no error");
    if let Some(next) = &next {
        assert!(forward, "a clock that was set back ended a lease");
        assert!(next.fencing_token() > guard.fencing_token(), "the token fell with the step of the clock");
        assert!(
            !guard.is_held() || !ann.capabilities().limits_of_exclusion.is_empty(),
            "two clients hold after a step of the clock, and the capabilities do not state that limit"
        );
        lost(&guard, ttl / 3 + AT_ONCE, "the holder is notified by its next renewal").await;
    } else {
        tokio::time::sleep(ttl).await;
        assert!(guard.is_held() || forward, "a clock that was set back caused the loss of a lease");
    }
    let stale = guard.fencing_token();
    drop((guard, next));
    let after = hold(&bob, &name).await;
    assert!(after.fencing_token() > stale, "the token fell with the step of the clock");
    // A new lease ends one ttl later by the stepped clock, independently of the clock of its holder.
    let left = fixture.record(&name).await.lease().unwrap_or_default();
    let granularity = ann.capabilities().ttl_granularity;
    assert!(
        left > ttl / 2 && left <= ttl + granularity,
        "after the step a lease of {ttl:?} has {left:?} at the server"
    );
    assert!(!is_free(&ann, &name).await, "after the step a held lock is granted to another client");
}

async fn start(fixture: &dyn Fixture, data: Data) {
    fixture.server(ServerFault::Start(data)).await.expect("a stopped server can be started");
}

/// Asserts that a fault is unsupported for a good reason: the backend has no server, no server of this kind can have
/// the fault, or others use the server.
fn in_process(fixture: &dyn Fixture, client: &leasehold_core::LockClient, unsupported: Unsupported) {
    let reason = unsupported.reason;
    assert!(!reason.is_empty(), "a fault is unsupported without a reason");
    if unsupported.is_by_nature() {
        return fixture.empty(reason);
    }
    let scope = client.capabilities().scope;
    assert!(
        scope != leasehold_core::backend::Scope::Network || unsupported.is_withheld(),
        "a server on the network can have this fault; the reason was: {reason}"
    );
}
