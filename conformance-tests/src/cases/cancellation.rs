//! Futures and guards that are dropped.

use std::time::Duration;

use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Delivery, PlaceNumber, RenewReplies, RenewRequest, TtlScope,
};
use leasehold_core::{ErrorKind, KeeperRuntime, LockClient, LockGuard, LockName, LossReason, Stats};
use tokio::sync::oneshot;

use crate::clients::{
    becomes_free, build, builder, client, hold, is_free, kind_of, long_client, lost, polled, queued, steady_client,
    steady_ttl,
};
use crate::direct::Direct;
use crate::fault::{PathFault, ServerFault};
use crate::fixture::{Fixture, Route};
use crate::support::{AT_ONCE, BACK, OwnRuntime, becomes, eventually, join, name};
use crate::timing_control::in_time;

/// The delay of the path in cases that drop a call in flight.
const SLOW: Duration = Duration::from_millis(15);

/// The time for a request with its reply and a withdraw with its reply on a slow path, and for two writes at the
/// server.
const TAKEN_BACK: Duration = Duration::from_millis(15 * 4 + 300);

/// The time to open a connection on a slow path: five requests with their replies.
const CONNECTED: Duration = Duration::from_millis(15 * 2 * 5);

/// [`TAKEN_BACK`]. If a connection keeps each lease, the claim may have to open one first.
fn taken_back(client: &LockClient) -> Duration {
    match client.capabilities().ttl_scope {
        TtlScope::Connection => TAKEN_BACK + CONNECTED,
        _ => TAKEN_BACK,
    }
}

/// Asserts that nothing of a claim is left within `bound`, which is far less than its ttl.
async fn leaves_nothing(fixture: &dyn Fixture, other: &LockClient, name: &LockName, bound: Duration, what: &str) {
    becomes_free(other, name, bound, what).await;
    eventually(bound, &format!("{what}: nothing is left"), async || fixture.resource_counts().await.is_clean()).await;
}

/// Invariant 12: an acquire that is dropped at any await leaves nothing. It is dropped after each possible number of
/// polls.
pub async fn an_acquire_dropped_at_every_await_leaves_nothing(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let name = name("every await");
    fixture.path(PathFault::Delay(SLOW)).await;
    for polls in 0.. {
        let lock = ann.lock(name.as_str());
        let acquired = polled(polls, lock.acquire()).await;
        let ended = acquired.is_some();
        drop(acquired);
        leaves_nothing(fixture, &bob, &name, taken_back(&ann), &format!("an acquire was dropped after {polls} polls"))
            .await;
        if ended {
            assert!(polls > 1, "the acquire had no await at which it could be dropped");
            break;
        }
        assert!(polls < 50, "the acquire never ends");
    }
    assert_eq!((ann.stats().held, ann.stats().waiting), (0, 0));
}

/// Invariant 12: the same in a queue: no place is left, and the holder keeps its lease.
pub async fn a_waiter_dropped_at_every_await_leaves_nothing(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let name = name("every await of a waiter");
    let guard = hold(&bob, &name).await;
    fixture.path(PathFault::Delay(SLOW)).await;
    for polls in 0..6 {
        let lock = ann.lock(name.as_str());
        let waiting = tokio::time::timeout(SLOW * 4, polled(polls, lock.acquire())).await;
        assert!(!matches!(waiting, Ok(Some(_))), "the lock is held");
        let gone = async || {
            let resource_counts = fixture.resource_counts().await;
            (resource_counts.leases, resource_counts.places) == (1, 0)
        };
        eventually(taken_back(&ann), &format!("a waiter that was dropped after {polls} polls leaves no place"), gone)
            .await;
    }
    assert!(guard.is_held());
    guard.release().await.expect("a release");
    // The last request may still be on its way when no place is seen. It is granted then, and taken back.
    becomes_free(&bob, &name, taken_back(&ann), "a dropped waiter was handed the lock").await;
}

/// Contract of `LockBackend`, "dropped calls": a runtime that shuts down drops its calls to a paused server. Later
/// calls must still be served.
pub async fn dropped_calls_harm_no_later_call(fixture: &dyn Fixture) {
    const CALLS: usize = 200;
    let (ann, ttl) = (Direct::warm(fixture, Route::Faulty).await, fixture.ttl());
    let stands_still = fixture.server(ServerFault::Pause).await.is_ok();
    if !stands_still {
        fixture.path(PathFault::DropTraffic).await;
    }
    for index in 0..CALLS {
        let claim = ann.claim(&name(&format!("dropped {index}")));
        // It is not polled again: nothing wakes it.
        if index % 2 == 0 {
            drop(polled(1, ann.backend().acquire(&AcquireRequest::new(claim, ttl))).await);
        } else {
            let (lease, replies) =
                ([RenewRequest::new(claim, PlaceNumber::NONE, ttl)], RenewReplies::new(1, |_, _| {}));
            polled(1, ann.backend().renew(&lease, &replies)).await;
        }
    }
    if stands_still {
        fixture.server(ServerFault::Resume).await.expect("a paused server can be resumed");
    } else {
        fixture.heal().await;
    }
    let bound = BACK + ann.capabilities().call_bound;
    for index in 0..3 {
        let claim = ann.claim(&name(&format!("later {index}")));
        let request = AcquireRequest::new(claim.clone(), ttl);
        let granted = async || matches!(ann.backend().acquire(&request).await, Ok(AcquireOutcome::Granted(_)));
        eventually(bound, "a call after many that were dropped gets a reply", granted).await;
        ann.release(&claim, Delivery::Confirmed).await.expect("a release");
    }
}

/// Invariant 15: a call that is dropped does no harm to a concurrent one, which gets its reply although both may use
/// one connection.
pub async fn a_dropped_call_harms_none_beside_it(fixture: &dyn Fixture) {
    let (ann, ttl) = (Direct::warm(fixture, Route::Faulty).await, fixture.ttl() * 20);
    let delay = (AT_ONCE / 2).min(ann.capabilities().call_bound / 8);
    fixture.path(PathFault::Delay(delay)).await;
    for round in 0..5 {
        let [beside, dropped] = ["beside", "dropped"].map(|what| ann.claim(&name(&format!("{what} {round}"))));
        // Dropped while both requests are in flight and no reply has arrived.
        let give_up = async {
            let request = AcquireRequest::new(dropped.clone(), ttl);
            let reply = tokio::time::timeout(delay, ann.backend().acquire(&request)).await;
            assert!(reply.is_err(), "a delayed path has replied early: {reply:?}");
        };
        let (reply, ()) = tokio::join!(ann.acquire(&beside, ttl), give_up);
        assert!(reply.is_ok(), "round {round}: an acquire failed because one beside it was given up: {reply:?}");

        let dropped = ann.claim(&name(&format!("dropped beside a release {round}")));
        let give_up = async {
            let request = AcquireRequest::new(dropped, ttl);
            let _ = tokio::time::timeout(delay, ann.backend().acquire(&request)).await;
        };
        let (reply, ()) = tokio::join!(ann.release(&beside, Delivery::Confirmed), give_up);
        assert!(reply.is_ok(), "round {round}: a release failed because a call beside it was given up: {reply:?}");
    }
}

/// Invariant 12: an acquire that is never polled sends nothing.
pub async fn an_acquire_that_is_never_polled_sends_nothing(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Clear).await;
    let served = fixture.served().await;
    for _ in 0..10 {
        let lock = ann.lock("never polled");
        drop(lock.acquire());
        drop(lock.try_acquire());
    }
    tokio::time::sleep(fixture.ttl()).await;
    assert_eq!(fixture.served().await, served, "something was sent for a future that was never polled");
    assert!(fixture.resource_counts().await.is_clean());
}

/// Invariants 9 and 12: the acquire is dropped in flight, and its reply is lost. The keeper repeats the withdraw until
/// it gets a reply.
pub async fn an_acquire_dropped_with_its_reply_lost_leaves_nothing(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let name = name("dropped and lost");
    fixture.path(PathFault::LoseReplies).await;
    let lock = ann.lock(name.as_str());
    let dropped = tokio::time::timeout(AT_ONCE, lock.acquire()).await;
    assert!(dropped.is_err(), "no reply arrived");
    fixture.heal().await;
    let bound = ann.capabilities().call_bound * 2 + Duration::from_millis(500);
    leaves_nothing(fixture, &bob, &name, bound, "a grant without a caller is withdrawn").await;
}

/// Invariant 12: a waiter that is dropped just as it is granted neither keeps the lock nor delays the next waiter.
pub async fn a_waiter_dropped_as_it_is_granted_passes_the_lock_on(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let name = name("just granted");
    for round in 0..25 {
        let guard = hold(&bob, &name).await;
        let lock = ann.lock(name.as_str());
        let waiter = tokio::spawn(async move { lock.acquire().await });
        queued(fixture, &ann, &name, (1, 1)).await;
        let release = tokio::spawn(guard.release());
        tokio::time::sleep(Duration::from_micros(round * 40)).await;
        waiter.abort();
        drop(waiter.await);
        join(release).await.expect("a release");
        becomes_free(&bob, &name, AT_ONCE, "a dropped waiter keeps nothing").await;
    }
    eventually(AT_ONCE, "nothing is left", async || fixture.resource_counts().await.is_clean()).await;
}

/// Invariant 12: a release that is dropped at any await continues in the background.
pub async fn a_release_dropped_at_every_await_goes_on(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let name = name("dropped release");
    fixture.path(PathFault::Delay(SLOW)).await;
    for polls in 0.. {
        let guard = hold(&ann, &name).await;
        let ended = polled(polls, guard.release()).await.is_some();
        leaves_nothing(fixture, &bob, &name, taken_back(&ann), &format!("a release was dropped after {polls} polls"))
            .await;
        if ended {
            break;
        }
        assert!(polls < 50, "the release never ends");
    }
}

/// Invariants 8 and 12: a guard that is dropped releases at once, in the background.
pub async fn a_dropped_guard_releases_at_once(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let name = name("dropped guard");
    fixture.connected().await;
    drop(hold(&ann, &name).await);
    leaves_nothing(fixture, &bob, &name, AT_ONCE, "a dropped guard releases").await;
}

/// Invariant 12: a guard that is dropped on a thread without a runtime does not panic, and releases at once.
pub async fn a_guard_dropped_outside_a_runtime_releases(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let name = name("outside a runtime");
    fixture.connected().await;
    let guard = hold(&ann, &name).await;
    outside(move || drop(guard)).await;
    leaves_nothing(fixture, &bob, &name, AT_ONCE, "a guard that was dropped outside a runtime releases").await;
}

/// A guard that is never dropped keeps the lock. The shutdown of its client ends the lease, and so does `max_hold`.
pub async fn a_leaked_guard_ends_with_its_client(fixture: &dyn Fixture) {
    let (ann, bob) = (steady_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let (leaked, bounded) = (name("leaked"), name("leaked, with max_hold"));
    std::mem::forget(hold(&ann, &leaked).await);
    std::mem::forget(ann.lock(bounded.as_str()).max_hold(fixture.ttl()).acquire().await.expect("nothing is broken"));
    let bound = fixture.ttl() + steady_ttl(fixture) + bob.capabilities().takeover_slack;
    becomes_free(&bob, &bounded, bound, "max_hold ends the lease of a leaked guard").await;
    assert!(!is_free(&bob, &leaked).await, "the lease of a leaked guard is renewed");
    ann.shutdown().await.expect("a shutdown");
    assert!(is_free(&bob, &leaked).await, "a shutdown releases a leaked guard");
}

/// Invariant 12: a runtime shuts down and drops its guards and acquires, without a panic. The keeper has its own thread
/// and releases the locks at once.
pub async fn a_runtime_that_is_shut_down_leaves_nothing(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let (held, flying) = (name("held at shutdown"), name("in flight at shutdown"));
    let runtime = OwnRuntime::new(2);
    let (sender, receiver) = oneshot::channel();
    runtime.spawn({
        let acquire = hold(&ann, &held);
        async move {
            let _guard = acquire.await;
            let _ = sender.send(());
            std::future::pending::<()>().await;
        }
    });
    receiver.await.expect("the lock is held");
    // Opens a second connection: a backend may keep one for each lease. Without it the acquire would first have to
    // connect, and no request would be sent.
    hold(&ann, &name("another connection")).await.release().await.expect("a release");
    // From here on the next request is the acquire.
    fixture.connected().await;
    fixture.path(PathFault::Hold).await;
    let lock = ann.lock(flying.as_str());
    runtime.spawn(async move { lock.acquire().await });
    eventually(AT_ONCE, "an acquire is under way", async || ann.stats().waiting == 1).await;
    // It counts as waiting before its request is sent.
    tokio::time::sleep(AT_ONCE).await;
    fixture.heal().await;
    outside(move || runtime.shutdown()).await;
    becomes_free(&bob, &held, AT_ONCE, "a guard that was dropped with its runtime is released").await;
    let bound = ann.capabilities().call_bound * 2;
    // On a slow machine the request may be sent after the path was healed. It is then granted and released.
    let is_back = |stats: &Stats| stats.withdrawn + stats.released == 3;
    becomes(bound, "the acquire is withdrawn or its grant is released", async || ann.stats(), is_back).await;
    fixture.deliver().await;
    leaves_nothing(fixture, &bob, &flying, AT_ONCE, "an acquire that was dropped with its runtime is withdrawn").await;
}

/// Invariant 12: a runtime is not shut down, but no longer driven, as in a synchronous wrapper. The client can be shut
/// down meanwhile.
pub async fn a_runtime_that_is_not_driven_leaves_nothing(fixture: &dyn Fixture) {
    const DELAY: Duration = Duration::from_millis(50);
    let (ann, bob) = (long_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let (acquired, released) = (name("acquired, then stalled"), name("released, then stalled"));
    let first = hold(&ann, &released);
    let (runtime, guard) = outside(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let guard = runtime.block_on(first);
        (runtime, guard)
    })
    .await;
    fixture.path(PathFault::Delay(DELAY)).await;
    let lock = ann.lock(acquired.as_str());
    let runtime = outside(move || {
        runtime.block_on(async {
            let dropped = tokio::time::timeout(DELAY / 5, lock.acquire()).await;
            assert!(dropped.is_err(), "the acquire got a reply on a slow path");
            drop(tokio::time::timeout(DELAY / 5, guard.release()).await);
        });
        runtime
    })
    .await;
    tokio::time::sleep(DELAY * 3).await;
    // A call is overdue after 5/4 of its bound. Then the keeper makes one itself, which ends within its own bound,
    // connecting included.
    let bound = ann.capabilities().call_bound * 9 / 4 + DELAY * 4;
    let what = "the keeper ends a call that was dropped on a stalled runtime";
    leaves_nothing(fixture, &bob, &acquired, bound, what).await;
    leaves_nothing(fixture, &bob, &released, bound, what).await;
    let shutdown = in_time(bound, "a shutdown does not wait for a stalled runtime", ann.shutdown()).await;
    // Nothing is left at the server. But the reply to the release was never read, and bob held the lock before the
    // keeper repeated the release. So it may count as lost.
    if let Err(error) = shutdown {
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
    outside(move || drop(runtime)).await;
}

/// Invariants 6 and 12: the keeper runs on the runtime that shuts down. Nothing panics, the holder is notified, and the
/// lease ends by its ttl.
pub async fn a_runtime_that_is_shut_down_with_its_keeper_ends_leases_by_ttl(fixture: &dyn Fixture) {
    let (builder, bob) = (builder(fixture, Route::Clear).await, client(fixture, Route::Clear).await);
    let (name, ttl) = (name("keeper at shutdown"), fixture.ttl());
    let runtime = OwnRuntime::new(1);
    let acquire = runtime.spawn({
        let name = name.clone();
        async move {
            let ann = build(builder.keeper(KeeperRuntime::CurrentRuntime));
            hold(&ann, &name).await
        }
    });
    let guard: LockGuard = join(acquire).await;
    outside(move || runtime.shutdown()).await;
    let reason = lost(&guard, AT_ONCE, "a holder is notified at once when its keeper has ended").await;
    assert_eq!(reason, LossReason::Shutdown);
    assert!(!guard.is_held());
    outside(move || drop(guard)).await;
    let bound = ttl + bob.capabilities().takeover_slack;
    becomes_free(&bob, &name, bound, "a lease without a keeper ends by its ttl").await;
}

/// Invariants 12 and 13: a hundred waiters that are dropped at once neither block the lock nor leave a place.
pub async fn a_hundred_waiters_dropped_at_once_leave_nothing(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let name = name("dropped at once");
    let guard = hold(&bob, &name).await;
    let mut waiting = Vec::new();
    for index in 0..100 {
        let lock = ann.lock(name.as_str());
        waiting.push(tokio::spawn(async move { lock.acquire().await }));
        if index % 10 == 0 {
            // Ten clients have a place each.
            let client = long_client(fixture, Route::Clear).await;
            let lock = client.lock(name.as_str());
            waiting.push(tokio::spawn(async move { lock.acquire().await }));
        }
    }
    queued(fixture, &ann, &name, (100, 11)).await;
    // Each handle is dropped as well: a waiter that a busy machine stopped in the middle of a poll may still be granted
    // the lock, and the handle would keep its guard.
    waiting.into_iter().for_each(|waiter| waiter.abort());
    guard.release().await.expect("a release");
    leaves_nothing(fixture, &bob, &name, AT_ONCE * 4, "dropped waiters do not block the lock").await;
    eventually(AT_ONCE, "no acquire waits in the client", async || ann.stats().waiting == 0).await;
}

/// Invariant 12: an acquire and its client are dropped while the request is in flight. A later grant is still released,
/// although only the request knows of it. First for an acquire in its own task, then for a waiter.
pub async fn a_client_dropped_with_an_acquire_in_flight_leaves_nothing(fixture: &dyn Fixture) {
    let bob = long_client(fixture, Route::Clear).await;
    let name = name("dropped with its client");
    for waits in [false, true] {
        let ann = long_client(fixture, Route::Faulty).await;
        hold(&ann, &crate::support::name("warm")).await.release().await.expect("a release");
        let lock = ann.lock(name.as_str());
        let begin = || tokio::spawn(async move { lock.acquire().await });
        let acquire = if waits {
            let guard = hold(&bob, &name).await;
            let acquire = begin();
            queued(fixture, &ann, &name, (1, 1)).await;
            fixture.path(PathFault::Delay(SLOW)).await;
            guard.release().await.expect("a release");
            acquire
        } else {
            fixture.path(PathFault::Delay(SLOW)).await;
            begin()
        };
        // The request or its reply is in flight.
        tokio::time::sleep(SLOW).await;
        acquire.abort();
        drop(acquire.await);
        drop(ann);
        tokio::time::sleep(SLOW * 2).await;
        leaves_nothing(fixture, &bob, &name, taken_back(&bob) + AT_ONCE, "an acquire that was dropped with its client")
            .await;
        fixture.heal().await;
    }
}

/// A shutdown releases everything, notifies the holders, and refuses later calls.
pub async fn a_shutdown_releases_everything(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let names: Vec<_> = (0..10).map(|index| name(&format!("shutdown {index}"))).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(hold(&ann, name).await);
    }
    let other = name("held by another");
    let _guard = hold(&bob, &other).await;
    let lock = ann.lock(other.as_str());
    let waiter = tokio::spawn(async move { lock.acquire().await });
    queued(fixture, &ann, &other, (1, 1)).await;
    ann.shutdown().await.expect("the server replies");
    assert_eq!(kind_of(&join(waiter).await), ErrorKind::Unavailable, "a pending acquire fails");
    for guard in &guards {
        assert!(!guard.is_held(), "a guard still holds after the shutdown");
        let reason = lost(guard, AT_ONCE, "every holder is notified").await;
        assert_eq!(reason, LossReason::Shutdown);
    }
    let resource_counts = fixture.resource_counts().await;
    assert_eq!(
        (resource_counts.leases, resource_counts.places),
        (1, 0),
        "a shutdown waits until everything is released"
    );
    assert_eq!(kind_of(&ann.lock("after the shutdown").acquire().await), ErrorKind::Unavailable);
}

/// Invariant 11: a shutdown ends even if the server is silent.
pub async fn a_shutdown_without_replies_has_an_end(fixture: &dyn Fixture) {
    let ann = long_client(fixture, Route::Faulty).await;
    let guard = hold(&ann, &name("silence")).await;
    fixture.path(PathFault::DropTraffic).await;
    let bound = ann.capabilities().call_bound * 5 / 2;
    let shut = in_time(bound, "a shutdown ends within two call bounds and a quarter of each", ann.shutdown()).await;
    assert_eq!(kind_of(&shut), ErrorKind::Indeterminate);
    assert!(!guard.is_held());
}

/// `Lock::run` releases the lock when it is dropped and when it ends.
pub async fn a_dropped_run_releases(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let name = name("run");
    fixture.connected().await;
    let lock = ann.lock(name.as_str());
    let seen = lock.run(async |token| (token, is_free(&bob, &name).await)).await.expect("the work ends");
    assert!(!seen.1, "the work runs without the lock");
    assert!(is_free(&bob, &name).await);
    let dropped = tokio::time::timeout(AT_ONCE, lock.run(|_| std::future::pending::<()>())).await;
    assert!(dropped.is_err());
    leaves_nothing(fixture, &bob, &name, AT_ONCE, "a run that was dropped releases").await;
}

/// Runs `work` on a thread without a runtime.
async fn outside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = oneshot::channel();
    let thread = std::thread::spawn(move || drop(done.send(work())));
    match ended.await {
        Ok(output) => output,
        Err(_) => std::panic::resume_unwind(thread.join().expect_err("it ended without a result")),
    }
}
