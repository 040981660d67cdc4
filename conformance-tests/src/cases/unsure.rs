//! Claims with a request that was never answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{Acquisition, Answer, Certainty, Confirmation, ErrorKind, LeaseRef, LockClient, LossReason, Release};

use crate::clients::{becomes_free, build, client, hold, kind_of, long_client, lost, warm_client};
use crate::direct::Direct;
use crate::fault::PathFault;
use crate::fixture::{Fixture, Route};
use crate::hooks::{Hooked, Hooks, Inner};
use crate::kit::{AT_ONCE, LOST_BY, Watch, eventually, join, name};

/// How soon a withdraw that failed is tried again, at most.
const WITHDRAW_PAUSE: Duration = Duration::from_millis(500);

/// Invariant 9: the first request is stuck, the second one is granted and released, and then the first arrives: nothing is
/// held and nobody waits.
pub async fn a_stuck_request_has_no_effect_after_the_release(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::warm(fixture, Route::Faulty).await, Direct::new(fixture, Route::Clear).await);
    let (name, ttl) = (name("stuck"), fixture.ttl() * 20);
    let claim = ann.claim(&name);
    fixture.path(PathFault::Hold).await;
    let stuck = ann.acquire(&claim, ttl).await;
    assert_eq!(kind_of(&stuck), ErrorKind::Indeterminate, "the request may still arrive");
    fixture.heal().await;
    ann.granted(&claim, ttl).await;
    let released = ann.release(&claim, Certainty::Unsure).await.expect("a release");
    assert_eq!(released, Release::Released);
    fixture.deliver().await;
    let record = fixture.record(&name).await;
    assert_eq!((record.lease, record.waiters), (None, 0), "the stuck request took effect after the release");
    bob.granted(&bob.claim(&name), ttl).await;
}

/// Invariant 9: the same where nothing was ever granted: the withdraw comes first, then the request.
pub async fn a_withdrawn_request_has_no_effect(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::warm(fixture, Route::Faulty).await, Direct::new(fixture, Route::Clear).await);
    let (free, held, ttl) = (name("free"), name("held"), fixture.ttl() * 20);
    let holder = bob.claim(&held);
    bob.granted(&holder, ttl).await;
    for name in [&free, &held] {
        let claim = ann.claim(name);
        fixture.path(PathFault::Hold).await;
        assert_eq!(kind_of(&ann.acquire(&claim, ttl).await), ErrorKind::Indeterminate);
        fixture.heal().await;
        let withdrawn = ann.release(&claim, Certainty::Unsure).await.expect("a withdraw");
        assert_eq!(withdrawn, Release::NotHeld, "nothing of it has arrived");
        fixture.deliver().await;
        // Whatever the store answers to it now, the claim gets nothing.
        let answer = ann.acquire(&claim, ttl).await;
        assert!(!matches!(answer, Ok(Acquisition::Granted(_))), "a withdrawn claim was granted");
    }
    assert_eq!(fixture.record(&free).await.lease, None, "a withdrawn request took the lock");
    assert_eq!(fixture.record(&held).await.waiters, 0, "a withdrawn request stands in the queue");
}

/// Invariants 9 and 12: an acquire that is given up in flight leaves nothing, though its request arrives much later, when
/// it was withdrawn already.
pub async fn an_acquire_given_up_in_flight_leaves_nothing(fixture: &dyn Fixture) {
    let (ann, bob) = (warm_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let name = name("given up");
    fixture.path(PathFault::Hold).await;
    let lock = ann.lock(name.as_str());
    let mut acquire = Box::pin(lock.acquire());
    assert!(tokio::time::timeout(AT_ONCE, &mut acquire).await.is_err(), "nothing has arrived");
    fixture.heal().await;
    drop(acquire);
    let bound = WITHDRAW_PAUSE + ann.capabilities().call_bound;
    eventually(bound, "the claim is withdrawn", async || ann.stats().withdrawn > 0).await;
    fixture.deliver().await;
    becomes_free(&bob, &name, AT_ONCE, "what arrived late took no effect").await;
    eventually(AT_ONCE, "nothing is left", async || fixture.census().await.is_clean()).await;
}

/// Invariant 9: an acquire whose answer was lost is not held by anybody: it is withdrawn, far before its ttl.
pub async fn a_grant_whose_answer_was_lost_is_withdrawn(fixture: &dyn Fixture) {
    let (ann, bob) = (warm_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let name = name("lost answer");
    fixture.path(PathFault::LoseReplies).await;
    let refused = ann.lock(name.as_str()).wait(fixture.ttl()).acquire().await;
    assert_eq!(kind_of(&refused), ErrorKind::Indeterminate, "the request has taken effect");
    assert_eq!(ann.stats().held, 0, "what is not known is not held");
    fixture.heal().await;
    let bound = WITHDRAW_PAUSE + ann.capabilities().call_bound;
    becomes_free(&bob, &name, bound, "a grant that nobody heard of is withdrawn").await;
    eventually(bound, "nothing is left", async || fixture.census().await.is_clean()).await;
}

/// Answers every renewal itself, with a fresh confirmation of the place before the lease's own.
struct OlderPlace;

#[async_trait]
impl Hooks for OlderPlace {
    async fn renew(&self, inner: &Inner, leases: &[LeaseRef]) -> Vec<(usize, Answer)> {
        let answer = |lease: &LeaseRef| match lease.place {
            // A backend without places cannot confirm an older one.
            0 => Answer::Lost,
            place => Answer::Renewed(Confirmation { ttl: lease.ttl, sent: inner.now(), place: place - 1 }),
        };
        leases.iter().map(answer).enumerate().collect()
    }
}

/// Invariant 4: a late answer about an older place proves nothing about the lease. It prolongs no validity.
pub async fn a_late_answer_of_an_older_place_counts_for_nothing(fixture: &dyn Fixture) {
    let backend = Hooked::new(fixture.backend(Route::Clear).await, 0, Arc::new(OlderPlace));
    let ann = build(fixture.tune(LockClient::builder(backend).ttl(fixture.ttl())));
    let name = name("older place");
    let guard = hold(&ann, &name).await;
    let bound = fixture.ttl() * 9 / 10 + LOST_BY;
    let reason = lost(&guard, bound, "answers about an older place do not prolong the validity").await;
    let expected = if guard.lease_ref().place == 0 { LossReason::Gone } else { LossReason::Expired };
    assert_eq!(reason, expected);
}

/// Invariant 13: the place belongs to the client and the name. Tasks that each wait for less time than the queue takes
/// get the lock in the end, because one inherits the place of the other.
pub async fn tasks_with_short_waits_get_a_long_queue(fixture: &dyn Fixture) {
    const OTHERS: u32 = 3;
    let (name, hold_for) = (name("short waits"), fixture.ttl() / 2);
    let stop = Arc::new(AtomicBool::new(false));
    let mut others = Vec::new();
    for _ in 0..OTHERS {
        let client = long_client(fixture, Route::Clear).await;
        let (lock, stop) = (client.lock(name.as_str()), stop.clone());
        // Without an order whoever releases takes it again before anybody else looks.
        let steps_back = !client.capabilities().fifo;
        others.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let guard = lock.acquire().await.expect("everybody gets the lock in the end");
                tokio::time::sleep(hold_for).await;
                guard.release().await.expect("a release");
                if steps_back {
                    tokio::time::sleep(hold_for / 2).await;
                }
            }
        }));
        tokio::time::sleep(AT_ONCE / 5).await;
    }
    let ann = client(fixture, Route::Clear).await;
    let watch = Watch::start();
    // The queue takes three holds; each task waits for one, and the next one comes before it has left.
    let mut tasks = Vec::new();
    let granted = loop {
        let lock = ann.lock(name.as_str()).wait(hold_for);
        tasks.push(tokio::spawn(async move { lock.acquire().await }));
        tokio::time::sleep(hold_for / 2).await;
        // Without an order it is a matter of luck each time.
        let rounds = if ann.capabilities().fifo { 6 } else { 20 };
        if ann.stats().granted > 0 || watch.elapsed() > hold_for * OTHERS * rounds {
            break ann.stats().granted;
        }
    };
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        drop(join(task).await);
    }
    for task in others {
        join(task).await;
    }
    assert!(granted > 0, "tasks that wait one after the other never got the lock");
}
