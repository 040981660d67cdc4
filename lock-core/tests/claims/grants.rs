//! Which grants and confirmations count for a claim, and which end it.

use leasehold_core::backend::{
    AcquireOutcome, Confirmation, Delivery, Event, Grant, OwnerToken, PlaceNumber, ReleaseOutcome, RenewReply,
};
use leasehold_core::{FencingToken, LossReason, Result};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::scripted::{AT_ONCE, Call, MS, Store, TTL, acquire, granted, scripted};

/// The reply to the renewal of a lease names another grant. The lease is gone, although the same claim holds the lock.
#[tokio::test(start_paused = true)]
async fn another_grant_is_no_confirmation() {
    for (place, token, counts) in [(4, 1, true), (4, 2, false), (5, 1, false), (5, 2, false)] {
        let (client, mut store) = scripted();
        let waiter = acquire(&client);
        store.grants(4, 1).await;
        let guard = granted(waiter).await;
        let (_, answer) = store.renew().await;
        answer.send(RenewReply::Granted(store.grant(place, token))).map_err(drop).unwrap();
        sleep(MS).await;
        assert_eq!(guard.is_held(), counts, "place {place}, token {token}");
        if counts {
            assert!(guard.validity() > TTL * 85 / 100, "{:?}", guard.validity());
        } else {
            assert_eq!(guard.lost().await.reason, LossReason::Gone);
        }
    }
}

/// A confirmation of a higher place ends the lease. A confirmation of a lower place is stale, so the lease stays as it
/// was and is renewed again.
#[tokio::test(start_paused = true)]
async fn a_confirmation_of_another_place_does_not_count() {
    for place in [3, 5] {
        let (client, mut store) = scripted();
        let waiter = acquire(&client);
        store.grants(4, 1).await;
        let guard = granted(waiter).await;
        let (_, answer) = store.renew().await;
        let before = guard.validity();
        answer.send(RenewReply::Renewed(store.confirms(place))).map_err(drop).unwrap();
        sleep(MS).await;
        if place > 4 {
            assert_eq!(timeout(AT_ONCE, guard.lost()).await.expect("it is gone").reason, LossReason::Gone);
        } else {
            assert!(guard.is_held() && guard.validity() < before, "{:?} after {before:?}", guard.validity());
            timeout(TTL / 10, store.renew()).await.expect("it is renewed again soon");
        }
    }
}

/// The same for the reply to a renewal that was sent for the place, and is overtaken by the message of its grant.
#[tokio::test(start_paused = true)]
async fn an_overtaken_confirmation_of_another_place_does_not_count() {
    for place in [3, 5] {
        for waits in [true, false] {
            let (client, mut store) = scripted();
            let waiter = acquire(&client);
            let claim = store.queues(4).await;
            let (_, renewal) = store.renew().await;
            store.push(&claim, 4, 1);
            let guard = granted(waiter).await;
            let before = guard.validity();
            let confirmation = store.confirms(place);
            let waiting = RenewReply::Waiting { confirmation, retry_after: TTL };
            renewal.send(if waits { waiting } else { RenewReply::Renewed(confirmation) }).map_err(drop).unwrap();
            sleep(MS).await;
            assert_eq!(guard.is_held(), place < 4, "place {place}");
            assert!(guard.validity() < before, "{:?} after {before:?}", guard.validity());
        }
    }
}

/// A message reports a grant of a claim that holds a lease. With a higher place, the lease is gone. A confirmation of
/// its own place counts.
#[tokio::test(start_paused = true)]
async fn a_grant_that_is_notified_during_a_hold_is_compared_with_the_lease() {
    for (place, confirms, held) in
        [(3, false, true), (4, false, true), (4, true, true), (5, false, false), (5, true, false)]
    {
        let (client, mut store) = scripted();
        let waiter = acquire(&client);
        let claim = store.grants(4, 1).await;
        let guard = granted(waiter).await;
        sleep(TTL / 4).await;
        let (before, token) = (guard.validity(), FencingToken::new(1));
        let confirmation = confirms.then(|| store.confirms(place));
        store.event(Event::Granted { owner: *claim.owner(), place: PlaceNumber::new(place), token, confirmation });
        assert_eq!(guard.is_held(), held, "place {place}, with a confirmation: {confirms}");
        assert_eq!(guard.validity() > before, held && confirms, "{:?} after {before:?}", guard.validity());
    }
}

/// The validity is over when the grant arrives, so no acquire gets that lease. The claim is withdrawn, and another one
/// is drawn.
#[tokio::test(start_paused = true)]
async fn a_grant_that_arrives_after_its_validity_is_taken_back() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let (claim, answer) = store.acquire().await;
    let confirmation = Confirmation { ttl: MS * 500, sent: store.now(), place: PlaceNumber::new(1) };
    sleep(MS * 455).await;
    answer.send(Ok(AcquireOutcome::Granted(Grant::new(FencingToken::new(1), confirmation)))).unwrap();
    let next = taken_back_and_drawn_anew(&mut store, claim.owner()).await;
    assert_eq!((client.stats().granted, client.stats().lost), (0, 0));
    next.send(Ok(AcquireOutcome::Granted(store.grant(2, 2)))).unwrap();
    assert_eq!(granted(waiter).await.fencing_token().get(), 2);
}

/// The first waiter has left, and the second one inherits its claim, which was sent with a longer ttl than the second
/// one wants. The claim is withdrawn.
#[tokio::test(start_paused = true)]
async fn a_grant_with_an_inherited_longer_ttl_is_taken_back() {
    for queued in [false, true] {
        let (client, mut store) = scripted();
        let long = acquire(&client);
        let (claim, answer) = store.acquire().await;
        let short = client.lock("job").ttl(TTL / 3);
        let short = tokio::spawn(async move { short.acquire().await });
        sleep(MS).await;
        if queued {
            answer.send(Ok(store.queued(1))).unwrap();
            sleep(MS).await;
            long.abort();
            sleep(MS).await;
            store.push(&claim, 1, 1);
        } else {
            long.abort();
            sleep(MS).await;
            answer.send(Ok(AcquireOutcome::Granted(store.grant(1, 1)))).unwrap();
        }
        let next = taken_back_and_drawn_anew(&mut store, claim.owner()).await;
        assert_eq!(store.asked().ttl, TTL / 3);
        let confirmation = Confirmation { ttl: TTL / 3, ..store.confirms(2) };
        next.send(Ok(AcquireOutcome::Granted(Grant::new(FencingToken::new(2), confirmation)))).unwrap();
        assert_eq!(granted(short).await.fencing_token().get(), 2);
    }
}

type Granting = oneshot::Sender<Result<AcquireOutcome>>;

/// The claim of this owner is withdrawn without doubt, and another claim sends an acquire.
async fn taken_back_and_drawn_anew(store: &mut Store, owner: &OwnerToken) -> Granting {
    let (mut withdrawn, mut next) = (None, None);
    while withdrawn.is_none() || next.is_none() {
        match timeout(AT_ONCE, store.call()).await.expect("the claim goes back, and another one is drawn") {
            Call::Release(claim, delivery, answer) => {
                withdrawn = Some((*claim.owner(), delivery));
                answer.send(Ok(ReleaseOutcome::Released)).unwrap();
            }
            Call::Acquire(claim, answer) => {
                assert_ne!(claim.owner(), owner);
                next = Some(answer);
            }
            Call::Renew(..) => panic!("nobody holds"),
        }
    }
    assert_eq!(withdrawn, Some((*owner, Delivery::Confirmed)));
    next.unwrap()
}

/// A message of a grant comes while an acquire of the same claim is in flight. The queue waits for the reply. If the
/// reply arrived for a claim that holds already, it would count as a second grant and be released, and the lease with
/// it.
#[tokio::test(start_paused = true)]
async fn a_grant_during_an_acquire_is_joined_with_its_answer() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let claim = store.queues(3).await;
    let (_, renewal) = store.renew().await;
    renewal.send(RenewReply::Free).map_err(drop).unwrap();
    let (again, answer) = store.acquire().await;
    assert_eq!(again.owner(), claim.owner());
    let sent = store.grant(3, 1);
    // The confirmation of the place is a third of a ttl old, and live.
    store.push(&claim, 3, 1);
    sleep(MS).await;
    assert!(!waiter.is_finished(), "an acquire is under way");
    answer.send(Ok(AcquireOutcome::Granted(sent))).unwrap();
    let guard = granted(waiter).await;
    assert!(guard.validity() > TTL * 85 / 100, "{:?}", guard.validity());
    store.is_silent(TTL / 4).await;
    assert!(guard.is_held());
}
