//! Slots that are moved from one node to another, key by key, while clients hold and wait for locks.

use std::time::Duration;

use leasehold_core::ErrorKind;
use leasehold_core::backend::{AcquireOutcome, Delivery, PlaceNumber, RenewReply, RenewRequest};

use super::common::{SOON, Stopwatch, eventually, hold};
use super::deployment::{Deployment, PATIENT, case, has_lease, name, outlasts, refused, run};

const TTL: Duration = Duration::from_secs(4);

/// A lock is held and awaited while its slot is moved. Its holder keeps it, nobody else gets it, and its waiter gets it
/// when it is released.
#[test]
fn a_holder_and_its_waiter_outlast_a_move_of_the_record_first() {
    outlast_a_move(false);
}

/// The same in the other order.
#[test]
fn a_holder_and_its_waiter_outlast_a_move_of_the_queue_first() {
    outlast_a_move(true);
}

fn outlast_a_move(queue_first: bool) {
    case(async move |deployment| {
        let ann = deployment.client_within(PATIENT, TTL).await;
        let bob = deployment.client_within(PATIENT, TTL).await;
        let eve = deployment.client_within(PATIENT, TTL).await;
        let (key, slot, from) = deployment.place("job");
        let (to, cluster) = ((from + 1) % 3, &deployment.cluster);
        let guard = hold(&ann, "job").await;
        let lock = bob.lock("job").wait(SOON * 3);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        eventually("the waiter has a place", || Deployment::record(&cluster.nodes[from], "job").waiters == Some(1))
            .await;
        let never = async |what: &str| {
            outlasts(&guard, TTL, what).await;
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
        // Its place may have ended while its keys were at two nodes.
        let waits = || Deployment::record(&cluster.nodes[to], "job").waiters == Some(1);
        eventually("the waiter has a place at the node", waits).await;
        let token = guard.fencing_token();
        guard.release().await.expect("a release");
        let next = waiter.await.expect("no panic").expect("the waiter gets it");
        assert!(next.fencing_token() > token, "tokens rise");
        next.release().await.expect("a release");
    });
}

/// The move of a slot is begun and never ended, as if its operator had gone. A holder keeps its lock for as long as it
/// likes.
#[test]
fn a_holder_outlasts_a_move_that_is_abandoned() {
    case(async |deployment| {
        let ann = deployment.client_within(PATIENT, TTL).await;
        let (_, slot, from) = deployment.place("kept");
        let guard = hold(&ann, "kept").await;
        deployment.cluster.begin_to_move(slot, from, (from + 1) % 3).expect("a slot");
        outlasts(&guard, TTL, "a move was begun").await;
        outlasts(&guard, TTL, "a move was begun").await;
        guard.release().await.expect("a release");
        hold(&ann, "kept").await.release().await.expect("a release");
    });
}

/// A claim was withdrawn, and a late request of it arrives while the record and the tombstone are on different nodes.
#[test]
fn a_withdrawn_request_has_no_effect_in_a_slot_that_moves() {
    case(async |deployment| {
        let (ann, bob) = (deployment.direct_within(PATIENT).await, deployment.direct_within(PATIENT).await);
        let (key, slot, from) = deployment.place("late");
        let (to, cluster) = ((from + 1) % 3, &deployment.cluster);
        let (withdrawn, holder) = (ann.claim(&name("late")), bob.claim(&name("late")));
        bob.granted(&holder, TTL * 10).await;
        ann.release(&withdrawn, Delivery::InDoubt).await.expect("a withdrawal");
        bob.release(&holder, Delivery::Confirmed).await.expect("a release");
        cluster.begin_to_move(slot, from, to).expect("a slot");
        let late = async |what: &str, kind: ErrorKind| {
            let error = refused(async || ann.acquire(&withdrawn, TTL).await).await;
            assert_eq!(error.kind(), kind, "after this: {what}: {error:?}");
            for node in [from, to] {
                assert!(!has_lease(&cluster.nodes[node], &key), "it has an effect after this: {what}");
            }
        };
        late("no key has moved", ErrorKind::Lost).await;
        cluster.move_key(key.as_bytes(), from, to).expect("the key is there");
        late("the record has moved", ErrorKind::Unavailable).await;
        let tombstone = [format!("{key}:t:").as_bytes(), withdrawn.owner().as_bytes()].concat();
        cluster.move_key(&tombstone, from, to).expect("the key is there");
        late("both have moved", ErrorKind::Lost).await;
        cluster.end_the_move(slot, from, to).expect("a slot");
        late("the slot has moved", ErrorKind::Lost).await;
    });
}

/// Without a waiter, each operation works in every state of the slot: it needs the record alone.
#[test]
fn an_ordinary_lock_works_in_every_state_of_its_slot() {
    case(async |deployment| {
        let ann = deployment.direct_within(PATIENT).await;
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
        let (ann, bob) = (deployment.direct_within(PATIENT).await, deployment.direct_within(PATIENT).await);
        let (key, slot, from) = deployment.place("joined");
        let (to, cluster) = ((from + 1) % 3, &deployment.cluster);
        let (holder, waiter) = (ann.claim(&name("joined")), bob.claim(&name("joined")));
        ann.granted(&holder, TTL * 10).await;
        cluster.begin_to_move(slot, from, to).expect("a slot");
        cluster.move_key(key.as_bytes(), from, to).expect("the key is there");
        // The queue does not exist, and so the target says that it may be at the source.
        let error = refused(async || bob.acquire(&waiter, TTL).await).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        cluster.end_the_move(slot, from, to).expect("a slot");
        let queued = bob.acquire(&waiter, TTL).await.expect("both are at the target");
        assert!(matches!(queued, AcquireOutcome::Queued { .. }), "{queued:?}");
        let renewed = bob.renew(RenewRequest::new(waiter, PlaceNumber::NONE, TTL)).await;
        assert!(matches!(renewed, RenewReply::Waiting { .. }), "{renewed:?}");
    });
}

/// A lock has a waiter, and its queue is not at the node of its record yet. Its release is refused and changes nothing.
/// It hands the lock over as soon as both are at one node.
#[test]
fn a_release_waits_until_its_queue_is_there() {
    case(async |deployment| {
        // Short, because the waiter's place lasts for ten seconds at most.
        let (ann, bob) = (deployment.direct_within("2s").await, deployment.direct_within("2s").await);
        let (key, slot, from) = deployment.place("released");
        let (to, cluster) = ((from + 1) % 3, &deployment.cluster);
        let (holder, waiter) = (ann.claim(&name("released")), bob.claim(&name("released")));
        ann.granted(&holder, TTL * 10).await;
        let place = bob.not_granted(&waiter, TTL * 10).await;
        cluster.begin_to_move(slot, from, to).expect("a slot");
        cluster.move_key(key.as_bytes(), from, to).expect("the key is there");
        let error = refused(async || ann.release(&holder, Delivery::Confirmed).await).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(has_lease(&cluster.nodes[to], &key), "the lease is still there");
        cluster.move_key(format!("{key}:q").as_bytes(), from, to).expect("the key is there");
        ann.release(&holder, Delivery::Confirmed).await.expect("all keys have moved");
        let renewed = bob.renew(RenewRequest::new(waiter, place, TTL * 10)).await;
        assert!(matches!(renewed, RenewReply::Granted(_)), "{renewed:?}");
        cluster.end_the_move(slot, from, to).expect("a slot");
        assert!(Deployment::record(&cluster.nodes[to], "released").lease().is_some(), "the node has the lease");
    });
}

/// The slot of a lock has moved, and its waiter has the place that the former node gave it. The message of its grant
/// reaches it.
#[test]
fn a_grant_reaches_a_waiter_whose_slot_has_moved() {
    // A waiter looks three times in its ttl, or in ten seconds if that is longer.
    const LONG: Duration = Duration::from_secs(10);
    case(async |deployment| {
        let ann = deployment.client_within(PATIENT, LONG).await;
        let bob = deployment.client_within(PATIENT, LONG).await;
        let (key, slot, from) = deployment.place("told");
        let (to, cluster) = ((from + 1) % 3, &deployment.cluster);
        let guard = hold(&ann, "told").await;
        let lock = bob.lock("told").wait(SOON * 3);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        let waits_at = |node: usize| Deployment::record(&cluster.nodes[node], "told").waiters == Some(1);
        eventually("the waiter has a place", || waits_at(from)).await;
        let queue = format!("{key}:q");
        cluster.begin_to_move(slot, from, to).expect("a slot");
        for key in [&key, &queue] {
            cluster.move_key(key.as_bytes(), from, to).expect("the key is there");
        }
        cluster.end_the_move(slot, from, to).expect("a slot");
        eventually("the waiter's place has moved", || waits_at(to)).await;
        // When it has just renewed its place, it looks again after three seconds, unless there is a message.
        let places = || run(&cluster.nodes[to], &["HGETALL", &queue]);
        let before = places();
        eventually("the waiter renews its place", || places() != before).await;
        let begin = Stopwatch::start();
        guard.release().await.expect("a release");
        let next = waiter.await.expect("no panic").expect("the waiter gets it");
        begin.within(Duration::from_millis(1500), "the waiter is told");
        next.release().await.expect("a release");
    });
}

/// The slot that has the epoch key of a node is moved, and with it a key that names the former node. The locks of the
/// new one go on without a quarantine.
#[test]
fn the_epoch_key_in_a_slot_that_moves_pauses_no_grants() {
    // In the slot of the smallest number, so that it would be the epoch key of any node that serves the slot.
    const KEY: &str = "leasehold:epoch{0}";
    case(async |deployment| {
        let ann = deployment.client_within(PATIENT, TTL).await;
        let cluster = &deployment.cluster;
        let slot = cluster.slot(KEY).expect("a slot");
        let (from, to) = (cluster.owner(slot), 0);
        assert_ne!(from, to);
        let lock_of = |node: usize| {
            let mut names = (0..).map(|number| format!("lock-{number}"));
            names.find(|lock| deployment.place(lock).2 == node).expect("a lock of the node")
        };
        let (own, other) = (lock_of(to), lock_of(from));
        for lock in [&own, &other] {
            hold(&ann, lock).await.release().await.expect("a release");
        }
        cluster.begin_to_move(slot, from, to).expect("a slot");
        cluster.move_key(KEY.as_bytes(), from, to).expect("it is the epoch key of the former node");
        cluster.end_the_move(slot, from, to).expect("a slot");
        let bob = deployment.client_within(PATIENT, TTL).await;
        let begin = Stopwatch::start();
        let guard = loop {
            match bob.lock(own.as_str()).try_acquire().await {
                Ok(granted) => break granted.expect("nobody holds it"),
                Err(error) => {
                    let kind = error.kind();
                    assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::Indeterminate), "{error:?}");
                    assert!(!error.to_string().contains("no new grants"), "a quarantine: {error}");
                }
            }
            begin.within(SOON, "an attempt is answered");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        guard.release().await.expect("a release");
    });
}
