//! Waiting for a lock, and the end of the wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::{AcquireOutcome, AcquireRequest, Claim, Delivery, Event, Waiting};
use leasehold_core::{ErrorKind, FencingToken, LockClient, LockGuard, Result};
use tokio::task::JoinHandle;

use crate::clients::{
    PATIENCE, build, client, default_client, handoff_bound, hold, is_free, kind_of, long_client, poll_bound, queued,
    steady_client, steady_ttl,
};
use crate::direct::Direct;
use crate::fault::PathFault;
use crate::fixture::{Fixture, Route};
use crate::hooks::{Hooked, Hooks, Inner};
use crate::support::{self, AT_ONCE, ENDS_BY, Stopwatch, eventually, join, name};
use crate::timing_control::in_time;

/// Invariant 11: a wait of zero makes one attempt within the bound of a call, and leaves no waiter.
pub async fn a_wait_of_zero_is_one_attempt(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, client(fixture, Route::Clear).await);
    let name = name("zero");
    let guard = hold(&ann, &name).await;
    let served = fixture.served().await;
    let lock = bob.lock(name.as_str()).wait(Duration::ZERO);
    let bound = bob.capabilities().call_bound;
    let refused = in_time(bound, "one attempt ends within the bound of a call", lock.acquire()).await;
    assert_eq!(kind_of(&refused), ErrorKind::Timeout, "one attempt ends with `Timeout`");
    tokio::time::sleep(AT_ONCE).await;
    let first = fixture.served().await - served;
    assert!(bob.lock(name.as_str()).try_acquire().await.expect("nothing is broken").is_none());
    tokio::time::sleep(AT_ONCE).await;
    // A refused attempt may only read, which a store need not count.
    let both = fixture.served().await - served;
    assert!(first <= 1 && both == first * 2, "two attempts are two requests: {first} were sent, then {both}");
    assert_eq!((fixture.record(&name).await.waiting(), bob.stats().waiting), (0, 0), "a waiter is left");
    drop(guard);
}

/// A wait below a second is kept, not rounded: the acquire gives up neither early nor late.
pub async fn a_wait_below_a_second_is_kept(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, client(fixture, Route::Clear).await);
    let name = name("sub-second");
    // The first call of a client may have to connect.
    hold(&bob, &name).await.release().await.expect("a release");
    let _guard = hold(&ann, &name).await;
    for wait in [Duration::from_millis(30), Duration::from_millis(270)] {
        let (stopwatch, lock) = (Stopwatch::start(), bob.lock(name.as_str()).wait(wait));
        let refused = in_time(wait + ENDS_BY, "waited for longer than it was to", lock.acquire()).await;
        stopwatch.not_before(wait, "gave up before its wait was over");
        // A wait this short can end before the first reply.
        let kind = kind_of(&refused);
        assert!(matches!(kind, ErrorKind::Timeout | ErrorKind::Indeterminate), "{refused:?}");
    }
}

/// Invariant 11: a wait that lasts for several renewals, polls and pushes ends in time and leaves no waiter.
pub async fn a_long_wait_ends_in_time(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, client(fixture, Route::Clear).await);
    let (name, wait) = (name("in time"), fixture.ttl() * 3);
    let guard = hold(&ann, &name).await;
    let (stopwatch, lock) = (Stopwatch::start(), bob.lock(name.as_str()).wait(wait));
    let refused = in_time(wait + ENDS_BY, "waited for longer than it was to", lock.acquire()).await;
    stopwatch.not_before(wait, "gave up before its wait was over");
    assert_eq!(kind_of(&refused), ErrorKind::Timeout);
    assert!(guard.is_held());
    let gone = async || fixture.record(&name).await.waiting() == 0;
    eventually(AT_ONCE, "a waiter that has given up leaves the queue", gone).await;
}

/// Invariant 11: the wait includes connecting. It ends in time even if the server is silent.
pub async fn the_wait_includes_connecting(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Faulty).await;
    fixture.path(PathFault::DropTraffic).await;
    for wait in [Duration::from_millis(70), fixture.ttl() * 2] {
        let lock = ann.lock("silence").wait(wait);
        let refused = in_time(wait + ENDS_BY, "the wait ends although the server is silent", lock.acquire()).await;
        let kind = kind_of(&refused);
        assert!(
            matches!(kind, ErrorKind::Indeterminate | ErrorKind::Unavailable),
            "the server did not reply: {kind:?}"
        );
    }
    let (bound, lock) = (ann.capabilities().call_bound * 5 / 4, ann.lock("silence"));
    let refused = in_time(bound, "one attempt ends within the bound of a call and a quarter", lock.try_acquire()).await;
    assert!(refused.is_err(), "the server did not reply, and an attempt returned {refused:?}");
}

/// Invariants 10 and 13: a release hands the lock to the waiter at once, without a timer.
pub async fn a_release_wakes_the_waiter(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let name = name("wake");
    let bound = handoff_bound(&ann.capabilities());
    for _ in 0..5 {
        let guard = hold(&ann, &name).await;
        let waiter = tokio::spawn(hold(&bob, &name));
        queued(fixture, &bob, &name, (1, 1)).await;
        guard.release().await.expect("a release");
        let next = in_time(bound, "the waiter acquires the lock at once after the release", join(waiter)).await;
        next.release().await.expect("a release");
    }
}

/// Invariant 13: a dead waiter in the queue delays those behind it by the rest of its place, no more.
pub async fn a_waiter_that_died_in_the_queue_is_passed_over(fixture: &dyn Fixture) {
    let (ann, dead) = (long_client(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let bob = client(fixture, Route::Clear).await;
    let (name, ttl) = (name("dead waiter"), fixture.ttl());
    let guard = hold(&ann, &name).await;
    dead.not_granted(&dead.claim(&name), ttl).await;
    let waiter = tokio::spawn(hold(&bob, &name));
    queued(fixture, &bob, &name, (1, 2)).await;
    guard.release().await.expect("a release");
    let bound = ttl + bob.capabilities().takeover_slack;
    drop(in_time(bound, "a place of a dead waiter ends with its ttl", join(waiter)).await);
}

/// Invariant 13: if the notification of its turn is lost, a waiter acquires the lock by its next poll.
pub async fn a_lost_push_costs_time_only(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, steady_client(fixture, Route::Faulty).await);
    let (name, ttl) = (name("lost push"), steady_ttl(fixture));
    let guard = hold(&ann, &name).await;
    let waiter = tokio::spawn(hold(&bob, &name));
    queued(fixture, &bob, &name, (1, 1)).await;
    fixture.path(PathFault::LosePushes).await;
    guard.release().await.expect("a release");
    let bound = poll_bound(&bob.capabilities(), ttl) + AT_ONCE;
    let next = in_time(bound, "the next poll finds the grant whose push was lost", join(waiter)).await;
    assert!(next.is_held());
}

/// A watch of a lock reports that it may be free: once, also if it became free before the watch, and not after its
/// guard is dropped.
pub async fn a_watch_reports_once(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::warm(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let Some(names) = bob.backend().watch_names() else {
        return fixture.empty("its clients watch no names");
    };
    fixture.connected().await;
    let (name, ttl) = (name("watched"), fixture.ttl() * 20);
    let reports =
        || bob.take_events().iter().filter(|event| matches!(event, Event::Changed(_) | Event::Resync)).count();
    let (holder, waiter) = (ann.claim(&name), bob.claim(&name));
    ann.granted(&holder, ttl).await;
    // The watch begins when the acquire is refused.
    bob.not_granted(&waiter, ttl).await;
    tokio::time::sleep(AT_ONCE).await;
    assert_eq!(reports(), 0, "a watch reports a lock that is held");
    ann.release(&holder, Delivery::Confirmed).await.expect("a release");
    // A store that polls may report it with its next poll.
    tokio::time::sleep(AT_ONCE * 3).await;
    assert_eq!(reports(), 1, "a release is reported once");

    let watch = names.watch(&waiter);
    tokio::time::sleep(AT_ONCE * 3).await;
    assert_eq!(reports(), 1, "a lock that was free before is reported once");
    drop(watch);

    let holder = ann.claim(&name);
    ann.granted_soon(&holder, ttl).await;
    drop(names.watch(&waiter));
    ann.release(&holder, Delivery::Confirmed).await.expect("a release");
    tokio::time::sleep(AT_ONCE).await;
    assert_eq!(reports(), 0, "a watch that was ended reports");
}

/// Invariant 15: a release notifies the waiters of its lock and no others. Otherwise each release of a busy lock would
/// cause a request for every lock that has a waiter.
pub async fn a_release_notifies_the_waiters_of_its_lock_only(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::warm(fixture, Route::Clear).await, Direct::warm(fixture, Route::Clear).await);
    if bob.capabilities().waiting == Waiting::Poll {
        return fixture.empty("its waiters poll");
    }
    let ttl = fixture.ttl() * 20;
    let mut locks = Vec::new();
    // Each name begins with those after it.
    for length in (1..=10).rev() {
        let name = name(&"n".repeat(length));
        let (held, waiting) = (ann.claim(&name), bob.claim(&name));
        ann.granted(&held, ttl).await;
        bob.not_granted(&waiting, ttl).await;
        locks.push((held, waiting));
    }
    fixture.connected().await;
    tokio::time::sleep(AT_ONCE).await;
    bob.take_events();
    let (held, waiting) = &locks[9];
    ann.release(held, Delivery::Confirmed).await.expect("a release");
    tokio::time::sleep(AT_ONCE * 3).await;
    let events = bob.take_events();
    let is_own = |event: &Event| match event {
        Event::Changed(name) => name == held.name(),
        Event::Granted { owner, .. } | Event::EndsSooner { owner } => owner == waiting.owner(),
        _ => false,
    };
    assert!(events.iter().any(is_own), "the waiter of the released lock was not notified: {events:?}");
    assert!(events.iter().all(is_own), "the release of one lock notified the waiters of others: {events:?}");
}

/// Releases the lock, and notifies the waiter, after the store has refused an acquire and before the client gets that
/// reply.
struct ReleasedMeanwhile {
    holder: Direct,
    held: Claim,
    released: AtomicBool,
}

#[async_trait]
impl Hooks for ReleasedMeanwhile {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let reply = inner.backend.acquire(request).await;
        let refused = matches!(reply, Ok(AcquireOutcome::Contended { .. } | AcquireOutcome::Queued { .. }));
        if refused && !self.released.swap(true, Ordering::SeqCst) {
            self.holder.release(&self.held, Delivery::Confirmed).await.expect("a release");
            tokio::time::sleep(AT_ONCE / 2).await;
        }
        reply
    }
}

/// Invariant 13: a notification that arrives while the waiter's own request is in flight is newer than its reply, and
/// takes effect.
pub async fn an_event_during_a_call_is_not_lost(fixture: &dyn Fixture) {
    let holder = Direct::new(fixture, Route::Clear).await;
    let (name, ttl) = (name("notified meanwhile"), fixture.ttl() * 20);
    let held = holder.claim(&name);
    holder.granted(&held, ttl).await;
    let hooks = Arc::new(ReleasedMeanwhile { holder, held, released: AtomicBool::new(false) });
    let backend = Hooked::new(fixture.backend(Route::Clear).await, 0, hooks.clone());
    let ann = build(fixture.tune(LockClient::builder(backend).ttl(ttl).wait(PATIENCE)));
    let bound = AT_ONCE / 2 + handoff_bound(&ann.capabilities());
    fixture.connected().await;
    let guard =
        in_time(bound, "a waiter that was notified during its request acquires the lock at once", hold(&ann, &name))
            .await;
    assert!(hooks.released.load(Ordering::SeqCst), "it was never refused");
    drop(guard);
}

/// Releases the lock, and returns the tokens of the waiters after each has had its turn, within `bound`.
async fn all_turns(guard: LockGuard, waiting: Vec<JoinHandle<FencingToken>>, bound: Duration) -> Vec<FencingToken> {
    in_time(bound, "every waiter has had a turn", async {
        guard.release().await.expect("a release");
        let mut tokens = Vec::new();
        for task in waiting {
            tokens.push(join(task).await);
        }
        tokens
    })
    .await
}

/// Invariant 13: twenty clients wait for one holder, and each release wakes the next one without a timer. They are
/// served in order of arrival if the backend claims that.
pub async fn clients_are_served_in_order_where_that_is_claimed(fixture: &dyn Fixture) {
    const CLIENTS: u64 = 20;
    let holder = long_client(fixture, Route::Clear).await;
    let name = name("order");
    let guard = hold(&holder, &name).await;
    let mut waiting = Vec::new();
    for index in 0..CLIENTS {
        let client = long_client(fixture, Route::Clear).await;
        // The first client waits until the last one has connected, which takes long on a busy machine.
        let lock = client.lock(name.as_str()).wait(PATIENCE * 4);
        waiting.push(tokio::spawn(async move {
            let guard = lock.acquire().await.expect("its turn comes");
            let token = guard.fencing_token();
            guard.release().await.expect("a release");
            token
        }));
        queued(fixture, &client, &name, (1, index + 1)).await;
    }
    let bound = handoff_bound(&holder.capabilities()) * CLIENTS as u32;
    let tokens = all_turns(guard, waiting, bound).await;
    let in_order = tokens.is_sorted();
    assert!(in_order || !holder.capabilities().fifo, "the backend claims order and granted {tokens:?}");
    // Without that claim, every client is still served exactly once.
    let mut tokens = tokens;
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len() as u64, CLIENTS);
}

/// Invariant 1: a waiter that gives up passes nothing on to the waiter behind it, because it did not hold the lock.
pub async fn a_waiter_that_gives_up_passes_nothing_on(fixture: &dyn Fixture) {
    let (holder, bob, next) = (
        long_client(fixture, Route::Clear).await,
        long_client(fixture, Route::Clear).await,
        long_client(fixture, Route::Clear).await,
    );
    let name = name("gives up");
    let guard = hold(&holder, &name).await;
    let gives_up = tokio::spawn(hold(&bob, &name));
    queued(fixture, &bob, &name, (1, 1)).await;
    let waits = tokio::spawn(hold(&next, &name));
    queued(fixture, &next, &name, (1, 2)).await;
    gives_up.abort();
    eventually(AT_ONCE * 5, "it leaves the queue", async || {
        bob.stats().waiting == 0
            && (bob.capabilities().waiting != Waiting::ServerQueue || fixture.record(&name).await.waiting() == 1)
    })
    .await;
    tokio::time::sleep(AT_ONCE * 2).await;
    assert!(!waits.is_finished(), "the waiter behind one that gave up holds beside the holder");
    support::still_held(fixture, &name, guard.fencing_token(), fixture.ttl()).await;
    guard.release().await.expect("a release");
    let bound = handoff_bound(&next.capabilities());
    let guard = in_time(bound, "the next waiter holds after the release", join(waits)).await;
    guard.release().await.expect("a release");
}

/// Tasks of one client are served in the order in which they came, on every backend.
pub async fn tasks_of_one_client_are_served_in_order(fixture: &dyn Fixture) {
    const TASKS: u64 = 10;
    let (holder, client) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let name = name("local order");
    let guard = hold(&holder, &name).await;
    let mut waiting = Vec::new();
    for index in 0..TASKS {
        let acquire = hold(&client, &name);
        waiting.push(tokio::spawn(async move {
            let guard = acquire.await;
            let token = guard.fencing_token();
            guard.release().await.expect("a release");
            token
        }));
        // Ten tasks, and one place at the server.
        queued(fixture, &client, &name, (index + 1, 1)).await;
    }
    let bound = handoff_bound(&holder.capabilities()) * TASKS as u32;
    let tokens = all_turns(guard, waiting, bound).await;
    assert!(tokens.is_sorted(), "the tasks of one client were granted out of order: {tokens:?}");
}

/// Invariant 13: a thousand tasks of ten clients all get their turn.
pub async fn a_thousand_waiters_all_get_their_turn(fixture: &dyn Fixture) {
    let name = name("thousand");
    let holder = long_client(fixture, Route::Clear).await;
    let guard = hold(&holder, &name).await;
    let mut waiting = Vec::new();
    for _ in 0..10 {
        let client = long_client(fixture, Route::Clear).await;
        for _ in 0..100 {
            let lock = client.lock(name.as_str()).wait(PATIENCE * 3);
            waiting.push(tokio::spawn(async move {
                let guard = lock.acquire().await.expect("every client gets a turn");
                let token = guard.fencing_token();
                guard.release().await.expect("a release");
                token
            }));
        }
    }
    eventually(Duration::from_secs(5), "every task waits", async || {
        holder.capabilities().waiting != Waiting::ServerQueue || fixture.record(&name).await.waiting() == 10
    })
    .await;
    guard.release().await.expect("a release");
    let mut tokens = Vec::new();
    for task in waiting {
        tokens.push(join(task).await);
    }
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 1000, "a thousand holders have a thousand tokens");
    assert!(is_free(&holder, &name).await);
}

/// The cost of a handoff in requests, and its time, with the default ttl. If the server keeps a queue, the cost does
/// not grow with the number of waiters. Otherwise each waiter sends at most one request. No turn waits for a timer.
pub async fn the_cost_of_a_handoff_is_flat(fixture: &dyn Fixture) {
    let few = cost_of_handoffs(fixture, 3).await;
    let some = cost_of_handoffs(fixture, 10).await;
    let many = cost_of_handoffs(fixture, 30).await;
    println!("requests per handoff of 3, 10 and 30 clients: {few:.1}, {some:.1}, {many:.1}");
    let keeps_queue = Direct::new(fixture, Route::Clear).await.capabilities().waiting == Waiting::ServerQueue;
    // A granted acquire and a release, and without a queue one refused acquire for each waiter.
    let most = if keeps_queue { 2.2 } else { 2.0 + 30.0 };
    assert!(
        many <= most,
        "{many:.1} requests per handoff with 30 clients, {some:.1} with 10 and {few:.1} with 3; the bound is {most}"
    );
}

/// Requests per handoff, with this many clients that take turns.
async fn cost_of_handoffs(fixture: &dyn Fixture, clients: u32) -> f64 {
    const TURNS: u32 = 5;
    let (name, job) = (name(&format!("{clients} clients")), Duration::from_millis(2));
    let holder = default_client(fixture, Route::Clear).await;
    let guard = hold(&holder, &name).await;
    let mut waiting = Vec::new();
    for index in 0..clients {
        let client = default_client(fixture, Route::Clear).await;
        let lock = client.lock(name.as_str()).wait(PATIENCE * 2);
        waiting.push(tokio::spawn(async move {
            for _ in 0..TURNS {
                let guard = lock.acquire().await.expect("every client gets a turn");
                tokio::time::sleep(job).await;
                guard.release().await.expect("a release");
            }
        }));
        queued(fixture, &client, &name, (1, u64::from(index) + 1)).await;
    }
    let served = fixture.served().await;
    let bound = (job + handoff_bound(&holder.capabilities())) * clients * TURNS;
    in_time(bound, "every client has had all its turns", async {
        guard.release().await.expect("a release");
        for task in waiting {
            join(task).await;
        }
    })
    .await;
    (fixture.served().await - served) as f64 / f64::from(clients * TURNS)
}
