//! Slots that are moved from one node to another, key by key, while clients hold and wait for locks.

use std::time::Duration;

use leasehold_core::backend::{AcquireOutcome, Delivery, PlaceNumber, RenewReply, RenewRequest};
use leasehold_core::{ErrorKind, LockGuard};

use super::common::{Stopwatch, eventually, hold};
use super::deployment::{Deployment, case, name};

const TTL: Duration = Duration::from_secs(2);

/// Longer than a lease lasts without its renewals.
async fn outlasts(guard: &LockGuard, what: &str) {
    let begin = Stopwatch::start();
    while begin.elapsed() < TTL * 3 / 2 {
        assert!(guard.is_held(), "lost {:?} after this: {what}", begin.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A lock is held and awaited while its slot is moved in each order of its keys. Its holder keeps it, nobody else gets
/// it, and its waiter gets it when it is released.
#[test]
fn a_holder_and_its_waiter_outlast_a_slot_that_moves() {
    for queue_first in [false, true] {
        case(async move |deployment| {
            let (ann, bob, eve) =
                (deployment.client(TTL).await, deployment.client(TTL).await, deployment.client(TTL).await);
            let (key, slot, from) = deployment.place("job");
            let (to, cluster) = ((from + 1) % 3, &deployment.cluster);
            let guard = hold(&ann, "job").await;
            let lock = bob.lock("job");
            let waiter = tokio::spawn(async move { lock.acquire().await });
            eventually("the waiter has a place", || Deployment::record(&cluster.nodes[from], "job").waiters == Some(1))
                .await;
            let never = async |what: &str| {
                outlasts(&guard, what).await;
                match eve.lock("job").try_acquire().await {
                    Ok(granted) => assert!(granted.is_none(), "two holders after this: {what}"),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
                }
            };
            cluster.begin_to_move(slot, from, to).expect("a slot");
            never("no key has moved").await;
            let queue = format!("{key}:q");
            let keys = if queue_first { [&queue, &key] } else { [&key, &queue] };
            for key in keys {
                cluster.move_key(key.as_bytes(), from, to).expect("the key is there");
                never("a key has moved").await;
            }
            cluster.end_the_move(slot, from, to).expect("a slot");
            never("the slot has moved").await;
            assert!(Deployment::record(&cluster.nodes[to], "job").lease().is_some(), "the node has the lease");
            let token = guard.fencing_token();
            guard.release().await.expect("a release");
            let next = waiter.await.expect("no panic").expect("the waiter gets it");
            assert!(next.fencing_token() > token, "tokens rise");
            next.release().await.expect("a release");
        });
    }
}

/// The move of a slot is begun and never ended, as if its operator had gone. A holder keeps its lock for as long as it
/// likes.
#[test]
fn a_holder_outlasts_a_move_that_is_abandoned() {
    case(async |deployment| {
        let ann = deployment.client(TTL).await;
        let (_, slot, from) = deployment.place("kept");
        let guard = hold(&ann, "kept").await;
        deployment.cluster.begin_to_move(slot, from, (from + 1) % 3).expect("a slot");
        outlasts(&guard, "a move was begun").await;
        outlasts(&guard, "a move was begun").await;
        guard.release().await.expect("a release");
        hold(&ann, "kept").await.release().await.expect("a release");
    });
}

/// A claim was withdrawn, and a late request of it arrives while the record and the tombstone are on different nodes.
#[test]
fn a_withdrawn_request_has_no_effect_in_a_slot_that_moves() {
    case(async |deployment| {
        let (ann, bob) = (deployment.direct().await, deployment.direct().await);
        let (key, slot, from) = deployment.place("late");
        let (to, cluster) = ((from + 1) % 3, &deployment.cluster);
        let (withdrawn, holder) = (ann.claim(&name("late")), bob.claim(&name("late")));
        bob.granted(&holder, TTL * 10).await;
        ann.release(&withdrawn, Delivery::InDoubt).await.expect("a withdrawal");
        bob.release(&holder, Delivery::Confirmed).await.expect("a release");
        cluster.begin_to_move(slot, from, to).expect("a slot");
        let late = async |what: &str| match ann.acquire(&withdrawn, TTL).await {
            Ok(outcome) => panic!("it has an effect after this: {what}: {outcome:?}"),
            Err(error) => assert!(matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unavailable), "{error:?}"),
        };
        late("no key has moved").await;
        cluster.move_key(key.as_bytes(), from, to).expect("the key is there");
        late("the record has moved").await;
        let tombstone = [format!("{key}:t:").as_bytes(), withdrawn.owner().as_bytes()].concat();
        cluster.move_key(&tombstone, from, to).expect("the key is there");
        late("both have moved").await;
        cluster.end_the_move(slot, from, to).expect("a slot");
        late("the slot has moved").await;
        assert!(Deployment::record(&cluster.nodes[to], "late").lease().is_none());
    });
}

/// Without a waiter, each operation works in every state of the slot: it needs the record alone.
#[test]
fn an_ordinary_lock_works_in_every_state_of_its_slot() {
    case(async |deployment| {
        let ann = deployment.direct().await;
        let (key, slot, from) = deployment.place("ordinary");
        let (to, cluster) = ((from + 1) % 3, &deployment.cluster);
        let mut last = None;
        let mut works = async |what: &str| {
            let claim = ann.claim(&name("ordinary"));
            let grant = ann.granted(&claim, TTL * 5).await;
            assert!(last < Some(grant.token), "tokens rise after this: {what}");
            last = Some(grant.token);
            let renewed = ann.renew(RenewRequest::new(claim.clone(), grant.confirmation.place, TTL * 5)).await;
            assert!(matches!(renewed, RenewReply::Renewed(_)), "{what}: {renewed:?}");
            ann.release(&claim, Delivery::Confirmed).await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        };
        cluster.begin_to_move(slot, from, to).expect("a slot");
        // The record does not exist: it begins at the target.
        works("the slot is being moved").await;
        cluster.end_the_move(slot, from, to).expect("a slot");
        assert!(Deployment::record(&cluster.nodes[to], "ordinary").last_token.is_some(), "at the target");
        works("the slot has moved").await;
        cluster.begin_to_move(slot, to, from).expect("a slot");
        works("the slot is being moved back").await;
        cluster.move_key(key.as_bytes(), to, from).expect("the key is there");
        works("the record has moved").await;
        cluster.end_the_move(slot, to, from).expect("a slot");
        works("the slot has moved back").await;
    });
}

/// A request without a place finds one at the node that has the queue, as soon as both keys are on one node.
#[test]
fn a_waiter_joins_the_queue_when_its_keys_are_together() {
    case(async |deployment| {
        let (ann, bob) = (deployment.direct().await, deployment.direct().await);
        let (key, slot, from) = deployment.place("joined");
        let (to, cluster) = ((from + 1) % 3, &deployment.cluster);
        let (holder, waiter) = (ann.claim(&name("joined")), bob.claim(&name("joined")));
        ann.granted(&holder, TTL * 10).await;
        cluster.begin_to_move(slot, from, to).expect("a slot");
        cluster.move_key(key.as_bytes(), from, to).expect("the key is there");
        // The queue does not exist, and so the target says that it may be at the source.
        match bob.acquire(&waiter, TTL).await {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
            Ok(outcome) => panic!("{outcome:?}"),
        }
        cluster.end_the_move(slot, from, to).expect("a slot");
        let queued = bob.acquire(&waiter, TTL).await.expect("both are at the target");
        assert!(matches!(queued, AcquireOutcome::Queued { .. }), "{queued:?}");
        let renewed = bob.renew(RenewRequest::new(waiter, PlaceNumber::NONE, TTL)).await;
        assert!(matches!(renewed, RenewReply::Waiting { .. }), "{renewed:?}");
    });
}
