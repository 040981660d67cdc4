//! A server, or a way to it, that is broken. What a case cannot break it takes as unsupported, and proves what holds instead.

use leasehold_core::ErrorKind;
use leasehold_core::backend::{Delivery, ReleaseOutcome, RenewReply, RenewRequest, StoreClock};

use crate::clients::{
    PATIENCE, becomes_free, client, hold, is_free, kind_of, long_client, lost, queued, steady_client, steady_ttl,
};
use crate::direct::Direct;
use crate::fault::{Data, PathFault, Room, ServerFault};
use crate::fixture::{Fixture, Route};
use crate::support::{AT_ONCE, BACK, ENDS_BY, LOST_BY, Stopwatch, eventually, join, name, still_held};
use crate::timing_control::in_time;

/// Invariant 11: in front of a server that is down, an acquire ends in time with `Unavailable`; when it is back, the
/// same client works again.
pub async fn a_server_that_is_down_is_unavailable(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Clear).await;
    let name = name("down");
    if let Err(unsupported) = fixture.server(ServerFault::Stop).await {
        return in_process(&ann, unsupported.reason);
    }
    let (bound, lock) = (ann.capabilities().call_bound * 5 / 4, ann.lock(name.as_str()));
    let refused = in_time(bound, "one attempt ends within the bound of a call and a quarter", lock.try_acquire()).await;
    assert_eq!(kind_of(&refused), ErrorKind::Unavailable);
    let wait = fixture.ttl();
    let (stopwatch, lock) = (Stopwatch::start(), lock.wait(wait));
    let refused = in_time(wait + ENDS_BY, "the wait has an end", lock.acquire()).await;
    assert_eq!(kind_of(&refused), ErrorKind::Unavailable);
    stopwatch.not_before(wait, "a server that is down may come back within the wait");
    start(fixture, Data::Kept).await;
    let back = async || ann.lock(name.as_str()).acquire().await.is_ok();
    eventually(BACK, "the client works again", back).await;
}

/// An acquire goes on while the server is down, and holds when it is back within the wait.
pub async fn an_acquire_outlives_a_restart(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Clear).await;
    let name = name("comes back");
    if let Err(unsupported) = fixture.server(ServerFault::Stop).await {
        return in_process(&ann, unsupported.reason);
    }
    let lock = ann.lock(name.as_str()).wait(PATIENCE);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(fixture.ttl()).await;
    assert!(!waiting.is_finished(), "an acquire gave up before its wait was over");
    start(fixture, Data::Kept).await;
    let bound = BACK + ann.capabilities().call_bound;
    let guard = in_time(bound, "the client notices that the server is back", join(waiting)).await;
    let guard = guard.expect("the server is back within the wait");
    assert!(guard.is_held());
}

/// Invariants 1 and 2: across a restart with its data there is never a second holder.
pub async fn a_restart_makes_no_second_holder(fixture: &dyn Fixture) {
    restarted(fixture, ServerFault::Stop).await;
}

/// Invariants 1 and 2: the same when the server is killed, as far as its persistence keeps its word.
pub async fn a_kill_makes_no_second_holder(fixture: &dyn Fixture) {
    restarted(fixture, ServerFault::Kill).await;
}

async fn restarted(fixture: &dyn Fixture, end: ServerFault) {
    let (ann, bob) = (client(fixture, Route::Clear).await, client(fixture, Route::Clear).await);
    let name = name("restart");
    let ttl = steady_ttl(fixture);
    let guard = ann.lock(name.as_str()).ttl(ttl).acquire().await.expect("nothing is broken");
    if let Err(unsupported) = fixture.server(end).await {
        return in_process(&ann, unsupported.reason);
    }
    start(fixture, Data::Kept).await;
    let lock = bob.lock(name.as_str());
    let stopwatch = Stopwatch::start();
    let mut next = None;
    while stopwatch.elapsed() < ttl * 2 {
        // An error is no grant: a backend may keep new grants back after a restart.
        if let Ok(Some(granted)) = lock.try_acquire().await {
            assert!(!guard.is_held(), "two hold after a restart of the server");
            next = Some(granted);
            break;
        }
        tokio::time::sleep(ttl / 20).await;
    }
    match next {
        Some(next) => assert!(next.fencing_token() > guard.fencing_token()),
        None => assert!(guard.is_held(), "after the restart nobody holds, and nobody is granted"),
    }
}

/// Outside the domain, a server that comes back without its data: its holder is told, and whoever holds next has a
/// higher token. If both believe for a while, the backend says so in its capabilities.
pub async fn lost_data_is_reported(fixture: &dyn Fixture) {
    let (ann, bob) = (client(fixture, Route::Clear).await, client(fixture, Route::Clear).await);
    let name = name("lost data");
    let ttl = fixture.ttl();
    let guard = hold(&ann, &name).await;
    if let Err(unsupported) = fixture.server(ServerFault::Kill).await {
        return in_process(&ann, unsupported.reason);
    }
    if let Err(unsupported) = fixture.server(ServerFault::Start(Data::Lost)).await {
        start(fixture, Data::Kept).await;
        return in_process(&ann, unsupported.reason);
    }
    let next = bob.lock(name.as_str()).wait(PATIENCE);
    let granted = tokio::spawn(async move { next.acquire().await.expect("the lock is granted in the end") });
    lost(&guard, ttl + BACK, "the holder learns that its lease is gone").await;
    let next = join(granted).await;
    assert!(next.fencing_token() > guard.fencing_token(), "the token fell with the data");
    let ends = ann.capabilities().limits_of_exclusion;
    assert!(!ends.is_empty(), "data can be lost, and the capabilities do not say where exclusion ends");
}

/// Invariants 5, 6 and 11: a server that stands still: the holder is told in time, calls end, and when it goes on what
/// arrives late does no harm.
pub async fn a_paused_server_does_no_harm(fixture: &dyn Fixture) {
    let (ann, bob) = (client(fixture, Route::Clear).await, client(fixture, Route::Clear).await);
    let (name, ttl) = (name("stands still"), fixture.ttl());
    let guard = hold(&ann, &name).await;
    if let Err(unsupported) = fixture.server(ServerFault::Pause).await {
        return in_process(&ann, unsupported.reason);
    }
    tokio::time::sleep(AT_ONCE / 2).await;
    let lock = bob.lock(name.as_str()).wait(ttl / 2);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    lost(&guard, guard.validity() + LOST_BY, "a server that stands still is no excuse").await;
    assert_eq!(
        kind_of(&join(waiting).await),
        ErrorKind::Indeterminate,
        "the request may take effect when the server goes on"
    );
    fixture.server(ServerFault::Resume).await.expect("what was paused can go on");
    drop(guard);
    let bound = ttl + BACK + ann.capabilities().takeover_slack;
    becomes_free(&bob, &name, bound, "the lock is free when the server goes on").await;
    eventually(bound, "what arrived late has left nothing", async || fixture.resource_counts().await.is_clean()).await;
}

/// Invariant 9: the reply to a renewal is lost, again and again: the lease stands, and is lost only when the holder
/// cannot know better.
pub async fn lost_replies_to_renewals_end_the_validity(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Faulty).await;
    let (name, ttl) = (name("renewal without reply"), fixture.ttl());
    let guard = hold(&ann, &name).await;
    fixture.path(PathFault::LoseReplies).await;
    tokio::time::sleep(AT_ONCE / 2).await;
    let (stopwatch, valid) = (Stopwatch::start(), guard.validity());
    lost(&guard, valid + LOST_BY, "what is not answered does not prolong the validity").await;
    stopwatch.not_before(valid, "the loss was told before the validity ended");
    // The server may have taken renewals: whoever comes next waits for them, and no longer.
    fixture.heal().await;
    drop(guard);
    let bound = ttl + ann.capabilities().takeover_slack + BACK;
    becomes_free(&ann, &name, bound, "the lock is free again").await;
}

/// Invariant 9: the reply to a release is lost: the caller is told that it is not known, holds nothing, and the lock is free.
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

/// Invariants 8 and 9: a release that never arrived is sent again until it does, far before the ttl ends the lease.
pub async fn a_lost_release_is_sent_again(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    for (fault, drops) in
        [(PathFault::DropTraffic, false), (PathFault::Disconnect, false), (PathFault::DropTraffic, true)]
    {
        let name = name(&format!("lost release {fault:?} {drops}"));
        let guard = hold(&ann, &name).await;
        fixture.path(fault).await;
        if drops {
            drop(guard);
            tokio::time::sleep(AT_ONCE).await;
        } else {
            let kind = kind_of(&guard.release().await);
            assert!(matches!(kind, ErrorKind::Indeterminate | ErrorKind::Unavailable), "{kind:?}");
        }
        assert!(!is_free(&bob, &name).await, "nothing has arrived");
        fixture.heal().await;
        let bound = BACK + ann.capabilities().call_bound;
        becomes_free(&bob, &name, bound, "a release that did not arrive is sent again").await;
    }
}

/// Contract of `LockBackend`, "idempotent by claim": every request arrives twice, in and out of a queue, and each life leaves
/// what one request would have left.
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

/// Invariant 13: a waiter that is cut off and comes back within the ttl of its place keeps its turn; the lock is not
/// lost to it for ever when it does not.
pub async fn a_waiter_that_was_cut_off_gets_the_lock(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, steady_client(fixture, Route::Faulty).await);
    let (name, ttl) = (name("cut waiter"), steady_ttl(fixture));
    for away in [ttl / 4, ttl * 4 / 3] {
        let guard = hold(&ann, &name).await;
        let waiter = tokio::spawn(hold(&bob, &name));
        queued(fixture, &bob, &name, (1, 1)).await;
        fixture.path(PathFault::Disconnect).await;
        tokio::time::sleep(away).await;
        // The handoff and its message fall into the time of the cut.
        guard.release().await.expect("a release");
        fixture.heal().await;
        let bound = ttl + BACK + bob.capabilities().takeover_slack;
        let next = in_time(bound, "a waiter that is back gets the lock", join(waiter)).await;
        assert!(next.is_held());
        next.release().await.expect("a release");
    }
}

/// A server that refuses the user: `Auth`, at once and not at the end of the wait.
pub async fn a_refused_user_gets_an_error_at_once(fixture: &dyn Fixture) {
    refused_at_once(fixture, ServerFault::RefuseUser, ErrorKind::Auth).await;
}

/// A server that has no room for data: `Capacity`, at once; what is held can be released.
pub async fn a_full_server_gives_an_error_at_once(fixture: &dyn Fixture) {
    refused_at_once(fixture, ServerFault::Fill(Room::Data), ErrorKind::Capacity).await;
}

/// A server that takes no more connections: `Capacity`, at once.
pub async fn a_server_without_connections_gives_an_error_at_once(fixture: &dyn Fixture) {
    refused_at_once(fixture, ServerFault::Fill(Room::Connections), ErrorKind::Capacity).await;
}

async fn refused_at_once(fixture: &dyn Fixture, fault: ServerFault, expected: ErrorKind) {
    let (ann, name) = (long_client(fixture, Route::Clear).await, name("refused"));
    let guard = hold(&ann, &name).await;
    if let Err(unsupported) = fixture.server(fault).await {
        return in_process(&ann, unsupported.reason);
    }
    // A new client: connections that are open may still be good.
    let bob = long_client(fixture, Route::Clear).await;
    let lock = bob.lock("other").wait(fixture.ttl() * 5);
    let refused = in_time(bob.capabilities().call_bound, "waiting does not mend it", lock.acquire()).await;
    assert_eq!(kind_of(&refused), expected, "{refused:?}");
    fixture.server(ServerFault::Restore).await.expect("what was broken can be mended");
    eventually(BACK, "the client works when it is mended", async || bob.lock("other").try_acquire().await.is_ok())
        .await;
    assert!(guard.is_held());
    guard.release().await.expect("a release");
}

/// A server that takes no writes grants nothing; it may become a primary again, so that waiting is worth it.
pub async fn a_read_only_server_grants_nothing(fixture: &dyn Fixture) {
    let ann = long_client(fixture, Route::Clear).await;
    let name = name("read-only");
    hold(&ann, &name).await.release().await.expect("a release");
    if let Err(unsupported) = fixture.server(ServerFault::ReadOnly).await {
        return in_process(&ann, unsupported.reason);
    }
    let refused = ann.lock(name.as_str()).try_acquire().await;
    assert_eq!(kind_of(&refused), ErrorKind::Unavailable, "{refused:?}");
    let lock = ann.lock(name.as_str());
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(fixture.ttl()).await;
    assert!(!waiting.is_finished(), "an acquire gave up on a replica that may be a primary soon");
    fixture.server(ServerFault::Restore).await.expect("what was broken can be mended");
    let bound = BACK + ann.capabilities().call_bound;
    let guard = in_time(bound, "the client notices", join(waiting)).await.expect("it is a primary again");
    assert!(guard.is_held());
}

/// A server that forgets the scripts or statements that were loaded: nobody notices.
pub async fn flushed_scripts_are_loaded_again(fixture: &dyn Fixture) {
    let (ann, bob) = (steady_client(fixture, Route::Clear).await, steady_client(fixture, Route::Clear).await);
    let (name, ttl) = (name("scripts"), steady_ttl(fixture));
    let guard = hold(&ann, &name).await;
    let waiter = tokio::spawn(hold(&bob, &name));
    queued(fixture, &bob, &name, (1, 1)).await;
    let stopwatch = Stopwatch::start();
    while stopwatch.elapsed() < ttl * 2 {
        // Where there is nothing to forget, nothing is forgotten: a life goes on all the same.
        let _ = fixture.server(ServerFault::FlushScripts).await;
        tokio::time::sleep(fixture.ttl() / 10).await;
        assert!(guard.is_held(), "forgotten scripts cost a lease");
    }
    guard.release().await.expect("a release");
    let _ = fixture.server(ServerFault::FlushScripts).await;
    join(waiter).await.release().await.expect("a release");
    assert!(is_free(&ann, &name).await);
    assert_eq!((ann.stats().lost, ann.stats().renewal_errors), (0, 0), "forgotten scripts were noticed");
}

/// A wall clock that is set forward by more than a ttl: tokens rise, the holder is told by its next renewal, and if two
/// believe for a while the backend says so.
pub async fn a_wall_clock_set_forward_does_no_harm(fixture: &dyn Fixture) {
    stepped(fixture, ServerFault::ClockForward(fixture.ttl() * 50)).await;
}

/// A wall clock that is set back: nobody holds twice, tokens rise, and the lock is free when it is released.
pub async fn a_wall_clock_set_back_does_no_harm(fixture: &dyn Fixture) {
    stepped(fixture, ServerFault::ClockBack(fixture.ttl() * 50)).await;
}

async fn stepped(fixture: &dyn Fixture, step: ServerFault) {
    let (ann, bob) = (steady_client(fixture, Route::Clear).await, steady_client(fixture, Route::Clear).await);
    let (name, ttl) = (name("wall clock"), steady_ttl(fixture));
    let guard = hold(&ann, &name).await;
    let forward = matches!(step, ServerFault::ClockForward(_));
    if let Err(unsupported) = fixture.server(step).await {
        assert!(!unsupported.reason.is_empty());
        let capabilities = ann.capabilities();
        assert!(capabilities.clock != StoreClock::ServerWall, "{}, and its leases end by it", unsupported.reason);
        // Then it is only time that passes.
        tokio::time::sleep(ttl * 3 / 2).await;
        assert!(guard.is_held() && !is_free(&bob, &name).await);
        return;
    }
    let next = bob.lock(name.as_str()).try_acquire().await.expect("a step of the clock is no error");
    if let Some(next) = &next {
        assert!(forward, "set back, a clock ended a lease");
        assert!(next.fencing_token() > guard.fencing_token(), "the token fell with the clock");
        assert!(
            !guard.is_held() || !ann.capabilities().limits_of_exclusion.is_empty(),
            "two hold after a step of the clock, and the capabilities do not say so"
        );
        lost(&guard, ttl / 3 + AT_ONCE, "the holder is told by its next renewal").await;
    } else {
        tokio::time::sleep(ttl).await;
        assert!(guard.is_held() || forward, "set back, a clock cost a lease");
    }
    let stale = guard.fencing_token();
    drop((guard, next));
    let after = hold(&bob, &name).await;
    assert!(after.fencing_token() > stale, "the token fell with the clock");
    // What is granted now ends a ttl later by the clock that was stepped, whatever the clock of its holder says.
    let left = fixture.record(&name).await.lease().unwrap_or_default();
    let granularity = ann.capabilities().ttl_granularity;
    assert!(
        left > ttl / 2 && left <= ttl + granularity,
        "after the step a lease of {ttl:?} has {left:?} at the server"
    );
    assert!(!is_free(&ann, &name).await, "after the step a lock is granted that is held");
}

async fn start(fixture: &dyn Fixture, data: Data) {
    fixture.server(ServerFault::Start(data)).await.expect("what was stopped can be started");
}

/// A fault of the server that there cannot be: because there is no server.
fn in_process(client: &leasehold_core::LockClient, reason: &str) {
    assert!(!reason.is_empty(), "a fault is unsupported without a reason");
    let scope = client.capabilities().scope;
    assert!(
        scope != leasehold_core::backend::Scope::Network,
        "a server on the network can break like this; the reason was: {reason}"
    );
}
