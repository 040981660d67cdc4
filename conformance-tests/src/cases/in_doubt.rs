//! Claims with a request that never gets a reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_core::backend::{
    AcquireOutcome, Claim, Confirmation, Delivery, PlaceNumber, ReleaseOutcome, RenewReply, RenewRequest, Waiting,
};
use leasehold_core::{ErrorKind, LockClient, LossReason};

use crate::clients::{
    PATIENCE, becomes_free, build, client, handoff_bound, hold, kind_of, long_client, lost, queued, warm_client,
};
use crate::direct::Direct;
use crate::fault::{Data, PathFault, ServerFault};
use crate::fixture::{Fixture, Route};
use crate::hooks::{Hooked, Hooks, Inner};
use crate::support::{self, AT_ONCE, BACK, ENDS_BY, LOST_BY, eventually, join, join_all, name};
use crate::timing_control::in_time;

/// The longest pause before a failed withdraw is retried.
const WITHDRAW_PAUSE: Duration = Duration::from_millis(500);

/// Withdraws a claim whose connections may have to be replaced. A withdrawal that may not have arrived is repeated, as
/// lock-core does.
async fn withdraw(client: &Direct, claim: &Claim) -> ReleaseOutcome {
    let until = Instant::now() + PATIENCE;
    loop {
        match client.release(claim, Delivery::InDoubt).await {
            Ok(outcome) => return outcome,
            Err(error) => {
                let may_be_repeated = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate);
                assert!(may_be_repeated && Instant::now() < until, "a withdrawal: {error:?}");
            }
        }
    }
}

/// Invariant 9: the first request is stuck, and the second one is granted and released. Then the first one arrives. It
/// creates no lease and no place.
pub async fn a_stuck_request_has_no_effect_after_the_release(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::warm(fixture, Route::Faulty).await, Direct::new(fixture, Route::Clear).await);
    let (name, ttl) = (name("stuck"), fixture.ttl() * 20);
    let claim = ann.claim(&name);
    fixture.path(PathFault::Hold).await;
    let stuck = ann.acquire(&claim, ttl).await;
    assert_eq!(kind_of(&stuck), ErrorKind::Indeterminate, "the request may still arrive");
    fixture.heal().await;
    ann.granted(&claim, ttl).await;
    let released = ann.release(&claim, Delivery::InDoubt).await.expect("a release");
    assert_eq!(released, ReleaseOutcome::Released);
    fixture.deliver().await;
    let record = fixture.record(&name).await;
    assert_eq!((record.lease(), record.waiting()), (None, 0), "the stuck request took effect after the release");
    bob.granted(&bob.claim(&name), ttl).await;
}

/// Invariant 9: the same without a grant: the withdraw arrives first, then the request.
pub async fn a_withdrawn_request_has_no_effect(fixture: &dyn Fixture) {
    let bob = Direct::new(fixture, Route::Clear).await;
    let (free, held, ttl) = (name("free"), name("held"), fixture.ttl() * 20);
    let holder = bob.claim(&held);
    bob.granted(&holder, ttl).await;
    for name in [&free, &held] {
        // A new client with an open connection each time: a withdrawal may close the connection of the request.
        let ann = Direct::warm(fixture, Route::Faulty).await;
        let claim = ann.claim(name);
        fixture.path(PathFault::Hold).await;
        assert_eq!(kind_of(&ann.acquire(&claim, ttl).await), ErrorKind::Indeterminate);
        fixture.heal().await;
        assert_eq!(withdraw(&ann, &claim).await, ReleaseOutcome::NotHeld, "no request of the claim has arrived");
        fixture.deliver().await;
        // The store may send any reply now, but no grant.
        let reply = ann.acquire(&claim, ttl).await;
        assert!(!matches!(reply, Ok(AcquireOutcome::Granted(_))), "a withdrawn claim was granted");
    }
    assert_eq!(fixture.record(&free).await.lease(), None, "a withdrawn request took the lock");
    assert_eq!(fixture.record(&held).await.waiting(), 0, "a withdrawn request is in the queue");
}

/// Invariant 9: a withdrawal that runs concurrently with its request wins, however their steps interleave. When both
/// have ended, the claim has neither a lease nor a place.
pub async fn a_withdrawal_beside_its_request_wins(fixture: &dyn Fixture) {
    const ROUNDS: u32 = 12;
    const CLAIMS: u32 = 25;
    let (ann, ttl) = (Direct::warm(fixture, Route::Clear).await, fixture.ttl() * 20);
    // The withdrawal begins at most this much later than the request.
    let longest = Duration::from_millis(2);
    for round in 0..ROUNDS {
        let claims: Vec<_> = (0..CLAIMS).map(|index| ann.claim(&name(&format!("beside {index}")))).collect();
        let pair = async |index: u32, claim: &Claim| {
            let withdraw = async {
                tokio::time::sleep(longest * index / CLAIMS).await;
                ann.release(claim, Delivery::InDoubt).await
            };
            tokio::join!(ann.acquire(claim, ttl), withdraw)
        };
        let pairs = (0..).zip(&claims).map(|(index, claim)| pair(index, claim));
        for ((requested, withdrawn), claim) in join_all(pairs).await.into_iter().zip(&claims) {
            withdrawn.expect("a withdrawal");
            let record = fixture.record(claim.name()).await;
            assert_eq!(
                (record.lease(), record.waiting()),
                (None, 0),
                "round {round}: a withdrawn claim holds or waits; its request returned {requested:?}"
            );
        }
    }
}

/// Invariant 9: the store remembers a withdrawn claim for longer than a request can be in flight. A request that
/// arrives 15 s later has no effect.
pub async fn a_withdrawn_claim_is_remembered(fixture: &dyn Fixture) {
    const LATE: Duration = Duration::from_secs(15);
    let (ann, bob) = (Direct::new(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let (free, held, ttl) = (name("remembered free"), name("remembered held"), fixture.ttl() * 2);
    let holder = bob.claim(&held);
    bob.granted(&holder, LATE * 2).await;
    let claims = [&free, &held].map(|name| ann.claim(name));
    for claim in &claims {
        ann.release(claim, Delivery::InDoubt).await.expect("a withdraw");
    }
    tokio::time::sleep(LATE).await;
    for claim in &claims {
        // A late copy of a request does not differ from a new one.
        let reply = ann.acquire(claim, ttl).await;
        assert!(
            !matches!(reply, Ok(AcquireOutcome::Granted(_))),
            "a claim was granted {LATE:?} after it was withdrawn"
        );
    }
    assert_eq!(fixture.record(&free).await.lease(), None, "a withdrawn request took the lock {LATE:?} later");
    assert_eq!(fixture.record(&held).await.waiting(), 0, "a withdrawn request is in the queue {LATE:?} later");
}

/// Invariant 9: a withdrawn claim stays withdrawn if the server is killed and starts again with its acknowledged data.
pub async fn a_withdrawn_claim_outlives_a_crash(fixture: &dyn Fixture) {
    let ann = Direct::new(fixture, Route::Clear).await;
    let (name, ttl) = (name("crash"), fixture.ttl());
    let claim = ann.claim(&name);
    ann.release(&claim, Delivery::InDoubt).await.expect("a withdraw");
    if fixture.server(ServerFault::Kill).await.is_ok() {
        fixture.server(ServerFault::Start(Data::Kept)).await.expect("a killed server can be started");
    }
    let other = ann.claim(&support::name("after the crash"));
    let again = async || matches!(ann.acquire(&other, ttl).await, Ok(AcquireOutcome::Granted(_)));
    eventually(PATIENCE + fixture.back_within(), "the server grants again", again).await;
    // A late copy of its request, sent by the client of the claim.
    let reply = ann.acquire(&claim, ttl).await;
    assert!(!matches!(reply, Ok(AcquireOutcome::Granted(_))), "a withdrawn claim was granted after a crash");
    assert_eq!(fixture.record(&name).await.lease(), None, "after a crash a withdrawn request took the lock");
}

/// Invariants 9 and 12: an acquire that is dropped in flight leaves nothing, although its request arrives after the
/// withdraw.
pub async fn an_acquire_dropped_in_flight_leaves_nothing(fixture: &dyn Fixture) {
    let (ann, bob) = (warm_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let name = name("dropped in flight");
    fixture.path(PathFault::Hold).await;
    let lock = ann.lock(name.as_str());
    let mut acquire = Box::pin(lock.acquire());
    assert!(tokio::time::timeout(AT_ONCE, &mut acquire).await.is_err(), "no request has arrived");
    fixture.heal().await;
    drop(acquire);
    let bound = WITHDRAW_PAUSE + ann.capabilities().call_bound;
    eventually(bound, "the claim is withdrawn", async || ann.stats().withdrawn > 0).await;
    fixture.deliver().await;
    becomes_free(&bob, &name, AT_ONCE, "the late request took no effect").await;
    eventually(AT_ONCE, "nothing is left", async || fixture.resource_counts().await.is_clean()).await;
}

/// Invariant 9: if the reply to an acquire is lost, the client does not hold the lock. It withdraws the claim long
/// before the ttl ends.
pub async fn a_grant_whose_reply_was_lost_is_withdrawn(fixture: &dyn Fixture) {
    let (ann, bob) = (warm_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let name = name("lost reply");
    fixture.path(PathFault::LoseReplies).await;
    let refused = ann.lock(name.as_str()).wait(fixture.ttl()).acquire().await;
    assert_eq!(kind_of(&refused), ErrorKind::Indeterminate, "the request has taken effect");
    assert_eq!(ann.stats().held, 0, "an acquire without a reply is not held");
    fixture.heal().await;
    let bound = WITHDRAW_PAUSE + ann.capabilities().call_bound;
    becomes_free(&bob, &name, bound, "a grant whose reply was lost is withdrawn").await;
    eventually(bound, "nothing is left", async || fixture.resource_counts().await.is_clean()).await;
}

/// Replies to every renewal itself, with a fresh confirmation of an older place than that of the lease.
struct OlderPlace;

#[async_trait]
impl Hooks for OlderPlace {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let reply = |lease: &RenewRequest| match lease.place.get().checked_sub(1) {
            // A backend without places cannot confirm an older one.
            None => RenewReply::Lost,
            Some(older) => {
                let place = PlaceNumber::new(older);
                RenewReply::Renewed(Confirmation { ttl: lease.ttl, sent: inner.now(), place })
            }
        };
        leases.iter().map(reply).enumerate().collect()
    }
}

/// Invariant 4: a late reply about an older place does not prolong the validity of the lease.
pub async fn a_late_reply_about_an_older_place_is_ignored(fixture: &dyn Fixture) {
    let backend = Hooked::new(fixture.backend(Route::Clear).await, 0, Arc::new(OlderPlace));
    let ann = build(fixture.tune(LockClient::builder(backend).ttl(fixture.ttl())));
    let name = name("older place");
    let guard = hold(&ann, &name).await;
    let bound = fixture.ttl() * 9 / 10 + LOST_BY;
    let reason = lost(&guard, bound, "replies about an older place do not prolong the validity").await;
    let expected = if guard.lease_ref().place == PlaceNumber::NONE { LossReason::Gone } else { LossReason::Expired };
    assert_eq!(reason, expected);
}

/// Invariant 13: a place belongs to a client and a name, and the tasks of the client share it. So tasks whose waits are
/// shorter than the queue get the lock when it is the turn of the place. If the server keeps no order, the other
/// clients hold once each, and the tasks get the lock after them.
pub async fn tasks_with_short_waits_get_a_long_queue(fixture: &dyn Fixture) {
    const OTHERS: u32 = 3;
    let (name, hold_for) = (name("short waits"), fixture.ttl() / 2);
    let stop = Arc::new(AtomicBool::new(false));
    let mut others = Vec::new();
    for _ in 0..OTHERS {
        let client = long_client(fixture, Route::Clear).await;
        stop.store(!client.capabilities().fifo, Ordering::Relaxed);
        let (lock, stop) = (client.lock(name.as_str()), stop.clone());
        others.push(tokio::spawn(async move {
            loop {
                let guard = lock.acquire().await.expect("every waiter gets the lock");
                tokio::time::sleep(hold_for).await;
                guard.release().await.expect("a release");
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        }));
        tokio::time::sleep(AT_ONCE / 5).await;
    }
    // The queue takes three holds. Each task waits for one hold, and the next task begins before it has given up.
    let ann = client(fixture, Route::Clear).await;
    let (lock, granted) = (ann.lock(name.as_str()).wait(hold_for), Arc::new(AtomicBool::new(false)));
    let tasks = {
        let granted = granted.clone();
        tokio::spawn(async move {
            let mut tasks = Vec::new();
            while !granted.load(Ordering::Relaxed) {
                let (lock, granted) = (lock.clone(), granted.clone());
                tasks.push(tokio::spawn(async move {
                    if lock.acquire().await.is_ok() {
                        granted.store(true, Ordering::Relaxed);
                    }
                }));
                tokio::time::sleep(hold_for / 2).await;
            }
            tasks
        })
    };
    let bound = (hold_for + handoff_bound(&ann.capabilities())) * OTHERS;
    let holds = async || granted.load(Ordering::Relaxed);
    eventually(bound, "tasks that wait one after the other get the lock when it is their turn", holds).await;
    stop.store(true, Ordering::Relaxed);
    for task in others.into_iter().chain(join(tasks).await) {
        join(task).await;
    }
}

/// Invariant 9: a waiter is disconnected, and the server hands the lock to its place meanwhile. The waiter does not
/// know the state at the end of its wait, so it does not report a timeout. After it reconnects, it withdraws the claim.
pub async fn a_waiter_without_replies_does_not_know(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, warm_client(fixture, Route::Faulty).await);
    let (name, capabilities) = (name("cut off in silence"), bob.capabilities());
    if capabilities.waiting != Waiting::ServerQueue {
        return fixture.empty("the server keeps no queue and hands no lock over");
    }
    let guard = hold(&ann, &name).await;
    // A reply still counts if its request was sent within the last 1.25 call bounds of the wait, and a busy machine
    // needs seconds until the path is cut.
    let wait = capabilities.call_bound * 5;
    let lock = bob.lock(name.as_str()).wait(wait);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    queued(fixture, &bob, &name, (1, 1)).await;
    fixture.path(PathFault::DropTraffic).await;
    guard.release().await.expect("a release");
    let handed_over = async || fixture.record(&name).await.lease().is_some();
    eventually(AT_ONCE, "the lock is handed over", handed_over).await;
    let outcome = in_time(wait + ENDS_BY, "a wait ends in time", join(waiter)).await;
    assert_eq!(kind_of(&outcome), ErrorKind::Indeterminate, "a disconnected waiter: {outcome:?}");
    fixture.heal().await;
    let bound = BACK + capabilities.call_bound;
    becomes_free(&ann, &name, bound, "a disconnected waiter withdraws its claim").await;
}
