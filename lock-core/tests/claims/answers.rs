//! Replies that are missing, late, or overtaken by a message.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use leasehold_core::LossReason;
use leasehold_core::backend::{Delivery, ReleaseOutcome, RenewReply};
use tokio::time::{Instant, sleep, timeout};

use crate::scripted::{AT_ONCE, MS, TTL, acquire, granted, refused, scripted, unknown};

/// A lease that waited is renewed to its own ttl within this time after the grant.
const TOPPED_UP: Duration = Duration::from_millis(110);

/// A claim keeps its place while the place is not renewed: when the last acquire leaves, the place is withdrawn.
#[tokio::test(start_paused = true)]
async fn a_place_is_taken_back_in_every_stage() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let claim = store.queues(3).await;
    let (_, renewal) = store.renew().await;
    store.push(&claim, 4, 1);
    // Refers to an earlier place, so the queue sends another acquire, which fails for a while.
    renewal.send(RenewReply::Granted(store.grant(3, 1))).map_err(drop).unwrap();
    let (_, answer) = store.acquire().await;
    answer.send(Err(refused())).unwrap();
    sleep(MS).await;
    waiter.abort();
    let (withdrawn, delivery, _answer) = timeout(AT_ONCE, store.release()).await.expect("the place is taken back");
    assert_eq!((withdrawn.owner(), delivery), (claim.owner(), Delivery::Confirmed));
}

/// The same if no acquire has left, and the second one is granted.
#[tokio::test(start_paused = true)]
async fn a_lease_with_an_unanswered_acquire_is_released_in_doubt() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let (_, answer) = store.acquire().await;
    answer.send(Err(unknown())).unwrap();
    store.grants(1, 1).await;
    drop(granted(waiter).await);
    assert_eq!(store.release().await.1, Delivery::InDoubt);
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_that_waited_gets_its_whole_ttl() {
    let (client, mut store) = scripted();
    let lock = client.lock("job").without_renewal();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let claim = store.queues(7).await;
    sleep(TTL / 4).await;
    store.push(&claim, 7, 1);
    let guard = granted(waiter).await;
    // The place's ttl is that of the lease, and a quarter of it is over.
    assert!(guard.validity() <= TTL * 65 / 100);
    let (lease, answer) = timeout(TOPPED_UP, store.renew()).await.expect("it is renewed once, soon after the grant");
    assert_eq!((lease.ttl, lease.place.get()), (TTL, 7));
    answer.send(RenewReply::Renewed(store.confirms(7))).unwrap();
    sleep(AT_ONCE).await;
    assert!(guard.validity() > TTL * 85 / 100, "{:?}", guard.validity());
    store.is_silent(TTL / 2).await;
    assert_eq!(guard.lost().await.reason, LossReason::Expired);
}

/// The same for a renewed lease, whose next renewals follow at the pace of its own ttl. A release before that saves the
/// renewal.
#[tokio::test(start_paused = true)]
async fn a_lease_that_waited_soon_has_its_whole_ttl() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let claim = store.queues(7).await;
    sleep(TTL / 4).await;
    store.push(&claim, 7, 1);
    let guard = granted(waiter).await;
    store.is_silent(80 * MS).await;
    let (lease, answer) = timeout(TOPPED_UP, store.renew()).await.expect("it is renewed soon after the grant");
    assert_eq!((lease.ttl, lease.place.get()), (TTL, 7));
    answer.send(RenewReply::Renewed(store.confirms(7))).unwrap();
    sleep(AT_ONCE).await;
    assert!(guard.validity() > TTL * 85 / 100, "{:?}", guard.validity());
    store.is_silent(TTL / 4).await;
    timeout(TTL / 8, store.renew()).await.expect("the next renewal is due a third of the ttl later");
}

/// A confirmation whose ttl has almost passed leaves no time to wait.
#[tokio::test(start_paused = true)]
async fn a_lease_with_an_old_confirmation_is_renewed_at_once() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let claim = store.queues(7).await;
    let (_, unanswered) = store.renew().await;
    sleep(TTL / 4).await;
    store.push(&claim, 7, 1);
    let _guard = granted(waiter).await;
    unanswered.send(RenewReply::Unknown(unknown())).map_err(drop).unwrap();
    timeout(AT_ONCE, store.renew()).await.expect("it is renewed at once");
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_that_did_not_wait_is_not_renewed() {
    let (client, mut store) = scripted();
    let lock = client.lock("job").without_renewal();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    store.grants(7, 1).await;
    let guard = granted(waiter).await;
    store.is_silent(TTL / 2).await;
    assert_eq!(guard.lost().await.reason, LossReason::Expired);
}

/// The first acquire has no reply, and the second is in flight when the last waiter leaves. Whatever its reply, the
/// first one may still arrive.
#[tokio::test(start_paused = true)]
async fn a_claim_with_an_unanswered_acquire_is_withdrawn_in_doubt() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let (_, answer) = store.acquire().await;
    answer.send(Err(unknown())).unwrap();
    let (claim, second) = store.acquire().await;
    waiter.abort();
    let (_, delivery, first_withdraw) = store.release().await;
    assert_eq!(delivery, Delivery::InDoubt);
    first_withdraw.send(Err(refused())).unwrap();
    second.send(Ok(store.queued(1))).unwrap();
    for _ in 0..2 {
        let (withdrawn, delivery, answer) = store.release().await;
        assert_eq!(withdrawn.owner(), claim.owner());
        assert_eq!(delivery, Delivery::InDoubt, "the first request may still arrive");
        answer.send(Ok(ReleaseOutcome::Released)).unwrap();
    }
    store.is_silent(TTL * 2).await;
}

/// A request in flight has no reply.
#[tokio::test(start_paused = true)]
async fn what_is_renewed_just_now_is_ended_in_doubt() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    store.grants(1, 1).await;
    let guard = granted(waiter).await;
    let (_, renewal) = store.renew().await;
    drop(guard);
    let (_, delivery, answer) = store.release().await;
    assert_eq!(delivery, Delivery::InDoubt, "a renewal is under way");
    answer.send(Ok(ReleaseOutcome::Released)).unwrap();
    drop(renewal);

    let waiter = acquire(&client);
    let claim = store.queues(2).await;
    let (_, renewal) = store.renew().await;
    store.push(&claim, 2, 2);
    let guard = granted(waiter).await;
    let (_, answer) = store.renew().await;
    answer.send(RenewReply::Renewed(store.confirms(2))).map_err(drop).unwrap();
    sleep(MS).await;
    drop(guard);
    let (_, delivery, answer) = store.release().await;
    assert_eq!(delivery, Delivery::InDoubt, "the renewal of the place is under way");
    answer.send(Ok(ReleaseOutcome::Released)).unwrap();
    drop(renewal);

    let waiter = acquire(&client);
    store.queues(3).await;
    let (_, _renewal) = store.renew().await;
    waiter.abort();
    assert_eq!(store.release().await.1, Delivery::InDoubt, "the renewal of the place is under way");
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_a_push_overtook_is_told_at_once() {
    for lost in [true, false] {
        let (client, mut store) = scripted();
        let waiter = acquire(&client);
        let claim = store.queues(4).await;
        let (_, renewal) = store.renew().await;
        store.push(&claim, 4, 1);
        let guard = granted(waiter).await;
        let answer = if lost { RenewReply::Lost } else { RenewReply::Granted(store.grant(5, 2)) };
        renewal.send(answer).map_err(drop).unwrap();
        let loss = timeout(AT_ONCE, guard.lost()).await.expect("the loss is told at once");
        assert_eq!(loss.reason, LossReason::Gone);
    }
}

/// A reply about the place of the lease is newer than the confirmation that the lease began with, so the validity
/// counts from it.
#[tokio::test(start_paused = true)]
async fn a_confirmation_that_a_push_overtook_counts() {
    for waits in [true, false] {
        let (client, mut store) = scripted();
        let waiter = acquire(&client);
        let claim = store.queues(4).await;
        let (_, renewal) = store.renew().await;
        let confirmation = store.confirms(4);
        store.push(&claim, 4, 1);
        let guard = granted(waiter).await;
        let before = guard.validity();
        let answer = if waits {
            RenewReply::Waiting { confirmation, retry_after: TTL }
        } else {
            RenewReply::Granted(store.grant(4, 1))
        };
        renewal.send(answer).map_err(drop).unwrap();
        sleep(MS).await;
        assert!(guard.validity() > before + TTL / 4, "{:?} after {before:?}", guard.validity());
    }
}

/// A reply about an older place says nothing about the lease.
#[tokio::test(start_paused = true)]
async fn a_late_answer_about_an_older_place_ends_nothing() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let claim = store.queues(4).await;
    let (_, late) = store.renew().await;
    // The renewal is repeated after the bound of a call. The place is gone then, and the same claim gets another one.
    let (_, renewal) = store.renew().await;
    renewal.send(RenewReply::Free).map_err(drop).unwrap();
    store.queues(5).await;
    sleep(MS).await;
    store.push(&claim, 5, 1);
    let guard = granted(waiter).await;
    late.send(RenewReply::Lost).map_err(drop).unwrap();
    sleep(AT_ONCE).await;
    assert!(guard.is_held());
}

/// The lease is gone, and the first acquire has no reply: it may still arrive, and take the lock for a whole ttl.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_gone_is_withdrawn_while_an_acquire_has_no_answer() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let (_, answer) = store.acquire().await;
    answer.send(Err(unknown())).unwrap();
    store.grants(1, 1).await;
    let guard = granted(waiter).await;
    let (_, answer) = store.renew().await;
    answer.send(RenewReply::Lost).map_err(drop).unwrap();
    let (_, delivery, answer) = timeout(AT_ONCE, store.release()).await.expect("it is withdrawn");
    assert_eq!((delivery, guard.is_held()), (Delivery::InDoubt, false));
    answer.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
    drop(guard);
    store.is_silent(TTL * 2).await;
}

/// The grant arrives before the reply with the place. Together they make a lease, without another request.
#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_before_the_answer_of_its_acquire_is_joined_with_it() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let (claim, answer) = store.acquire().await;
    let sent = store.queued(3);
    store.push(&claim, 3, 1);
    sleep(20 * MS).await;
    answer.send(Ok(sent)).unwrap();
    let guard = granted(waiter).await;
    assert_eq!(guard.fencing_token().get(), 1);
    // Counted from before the acquire was sent.
    assert!(guard.validity() <= TTL * 9 / 10 - 20 * MS, "{:?}", guard.validity());
    store.is_silent(TTL / 4).await;
    guard.release().await.map_err(|error| error.kind()).unwrap_err();
}

/// A grant of a higher place than the reply's is not the reply's.
#[tokio::test(start_paused = true)]
async fn a_grant_is_not_joined_with_the_answer_about_another_place() {
    let (client, mut store) = scripted();
    let _waiter = acquire(&client);
    let (claim, answer) = store.acquire().await;
    store.push(&claim, 3, 1);
    answer.send(Ok(store.queued(2))).unwrap();
    let (lease, answer) = timeout(AT_ONCE, store.renew()).await.expect("it looks at once");
    assert_eq!((client.stats().held, lease.place.get()), (0, 3));
    answer.send(RenewReply::Granted(store.grant(3, 1))).map_err(drop).unwrap();
    sleep(MS).await;
    assert_eq!(client.stats().held, 1);
}

/// A grant without a live confirmation is joined with the reply that is in flight.
#[tokio::test(start_paused = true)]
async fn a_grant_during_a_renewal_is_joined_with_its_answer() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let claim = store.queues(3).await;
    // No renewal gets through until the confirmation is worth nothing.
    let from = Instant::now();
    let renewal = loop {
        let (_, renewal) = store.renew().await;
        if from.elapsed() > TTL {
            break renewal;
        }
        renewal.send(RenewReply::Unknown(refused())).map_err(drop).unwrap();
    };
    let confirmation = store.confirms(3);
    store.push(&claim, 3, 1);
    sleep(MS).await;
    assert_eq!(client.stats().held, 0, "nothing proves that the lease is held");
    renewal.send(RenewReply::Waiting { confirmation, retry_after: TTL }).map_err(drop).unwrap();
    assert_eq!(granted(waiter).await.fencing_token().get(), 1);
}

/// The store hands the lock to a claim whose withdrawal pauses after a failure. The withdrawal continues at once,
/// because others wait.
#[tokio::test(start_paused = true)]
async fn a_grant_to_a_claim_that_is_withdrawn_is_given_back_at_once() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let claim = store.queues(3).await;
    sleep(MS).await;
    waiter.abort();
    // The pauses grow with each failure.
    for _ in 0..4 {
        let (_, _, answer) = store.release().await;
        answer.send(Err(refused())).unwrap();
    }
    sleep(MS).await;
    store.push(&claim, 3, 1);
    let (withdrawn, _, answer) = timeout(AT_ONCE, store.release()).await.expect("the withdraw continues at once");
    assert_eq!(withdrawn.owner(), claim.owner());
    answer.send(Ok(ReleaseOutcome::Released)).unwrap();
    store.is_silent(TTL * 2).await;
}

/// A reply about an earlier place says nothing about the present one.
#[tokio::test(start_paused = true)]
async fn a_late_loss_of_an_older_place_does_not_cost_the_place() {
    let (client, mut store) = scripted();
    let _waiter = acquire(&client);
    let claim = store.queues(4).await;
    let (_, late) = store.renew().await;
    let (_, renewal) = store.renew().await;
    renewal.send(RenewReply::Free).map_err(drop).unwrap();
    store.queues(5).await;
    sleep(MS).await;
    late.send(RenewReply::Lost).map_err(drop).unwrap();
    let (lease, _answer) = store.renew().await;
    assert_eq!((lease.claim.owner(), lease.place.get()), (claim.owner(), 5));
}

/// A task that wakes itself loses its turn, and makes tokio wake another thread.
#[tokio::test(start_paused = true)]
async fn an_acquire_is_woken_by_its_answer_alone() {
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    let (client, mut store) = scripted();
    let (lock, wakes) = (client.lock("job"), Arc::new(Wakes::default()));
    let waker = Waker::from(wakes.clone());
    let mut cx = Context::from_waker(&waker);
    let mut acquire = pin!(lock.acquire());
    assert!(acquire.as_mut().poll(&mut cx).is_pending());
    store.grants(1, 1).await;
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    let Poll::Ready(Ok(guard)) = acquire.as_mut().poll(&mut cx) else { panic!("it is granted") };
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    assert!(guard.is_held());
}
