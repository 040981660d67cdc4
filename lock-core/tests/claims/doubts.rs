//! Calls that never end by themselves: the keeper owns the end of each of them.

use std::task::{Context, Waker};
use std::time::Duration;

use leasehold_core::backend::{AcquireOutcome, Confirmation, Delivery, Grant, ReleaseOutcome, Stamp};
use leasehold_core::{ErrorKind, FencingToken, LossReason};
use tokio::time::{Instant, sleep, timeout};

use crate::scripted::{AT_ONCE, CALL_BOUND, Call, MS, TTL, acquire, granted, refused, scripted};

/// An acquire is dropped in flight, and never ends on the runtime that should finish it. Its claim is withdrawn when
/// the call is past its bound. A shutdown does not wait for the call.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_was_dropped_and_never_ends_is_withdrawn() {
    let (client, mut store) = scripted();
    let lock = client.lock("job");
    let begun = Instant::now();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let (claim, _never) = store.acquire().await;
    sleep(10 * MS).await;
    waiter.abort();
    let (withdrawn, delivery, answer) = timeout(TTL, store.release()).await.expect("the claim is withdrawn");
    assert_eq!((withdrawn.owner(), delivery), (claim.owner(), Delivery::InDoubt));
    assert!(begun.elapsed() >= CALL_BOUND && begun.elapsed() <= CALL_BOUND * 3 / 2, "after {:?}", begun.elapsed());
    answer.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
    timeout(CALL_BOUND, client.shutdown()).await.expect("nothing is left").unwrap();
    drop(client);
    store.is_silent(TTL).await;
}

/// A client that is shut down while such a call is within its bound still ends.
#[tokio::test(start_paused = true)]
async fn a_shutdown_outlasts_an_acquire_that_never_ends() {
    let (client, mut store) = scripted();
    let lock = client.lock("job");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let (_, _never) = store.acquire().await;
    waiter.abort();
    let shutdown = tokio::spawn(async move { client.shutdown().await });
    let (_, delivery, answer) = timeout(TTL, store.release()).await.expect("the claim is withdrawn");
    assert_eq!(delivery, Delivery::InDoubt);
    answer.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
    timeout(CALL_BOUND, shutdown).await.expect("the shutdown ends").unwrap().unwrap();
}

/// The late reply still counts: a grant is released at once, and after a refusal nothing is sent.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_was_dropped_and_is_answered_within_its_bound_costs_no_more() {
    let (client, mut store) = scripted();
    for granted in [true, false] {
        let lock = client.lock("job");
        let waiter = tokio::spawn(async move { lock.acquire().await });
        let (_, answer) = store.acquire().await;
        waiter.abort();
        sleep(10 * MS).await;
        if granted {
            answer.send(Ok(AcquireOutcome::Granted(store.grant(1, 1)))).unwrap();
            let (_, delivery, answer) = timeout(MS * 5, store.release()).await.expect("it is taken back at once");
            assert_eq!(delivery, Delivery::Confirmed);
            answer.send(Ok(ReleaseOutcome::Released)).unwrap();
        } else {
            answer.send(Ok(AcquireOutcome::Contended { retry_after: TTL })).unwrap();
        }
        store.is_silent(TTL).await;
    }
}

/// A grant that arrives long after the withdrawal is withdrawn too.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_granted_after_its_withdraw_is_taken_back() {
    let (client, mut store) = scripted();
    let lock = client.lock("job");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let (claim, late) = store.acquire().await;
    waiter.abort();
    store.release().await.2.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
    sleep(TTL).await;
    late.send(Ok(AcquireOutcome::Granted(store.grant(1, 1)))).unwrap();
    let (withdrawn, _, answer) = timeout(MS * 5, store.release()).await.expect("it is taken back at once");
    assert_eq!(withdrawn.owner(), claim.owner());
    answer.send(Ok(ReleaseOutcome::Released)).unwrap();
}

/// The same for a release: it is sent again, in doubt, by the keeper.
#[tokio::test(start_paused = true)]
async fn a_release_that_was_dropped_and_never_ends_is_sent_again() {
    let (client, mut store) = scripted();
    let lock = client.lock("job");
    let acquire = tokio::spawn(async move { lock.acquire().await });
    store.grants(1, 1).await;
    let guard = acquire.await.unwrap().unwrap();
    let begun = Instant::now();
    let release = tokio::spawn(guard.release());
    let (_, _, _never) = store.release().await;
    release.abort();
    let (_, delivery, answer) = timeout(TTL, store.release()).await.expect("it is sent again");
    assert_eq!(delivery, Delivery::InDoubt);
    assert!(begun.elapsed() >= CALL_BOUND && begun.elapsed() <= CALL_BOUND * 3 / 2, "after {:?}", begun.elapsed());
    answer.send(Ok(ReleaseOutcome::Released)).unwrap();
    timeout(CALL_BOUND, client.shutdown()).await.expect("nothing is left").unwrap();
}

/// The validity ends while a renewal has no reply: the lease is released in doubt, even if its guard is dropped later.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_lost_during_a_renewal_is_released_in_doubt() {
    let (client, mut store) = scripted();
    let lock = client.lock("job");
    let acquire = tokio::spawn(async move { lock.acquire().await });
    let (_, answer) = store.acquire().await;
    // So late that the first renewal is still within its bound when the validity ends.
    sleep(TTL / 2).await;
    let confirmation = Confirmation { sent: Stamp::from_start(Duration::ZERO), ..store.confirms(1) };
    sleep(TTL * 35 / 100).await;
    answer.send(Ok(AcquireOutcome::Granted(Grant::new(FencingToken::new(1), confirmation)))).unwrap();
    let guard = acquire.await.unwrap().unwrap();
    let (_, _never) = store.renew().await;
    assert_eq!(guard.lost().await.reason, LossReason::Expired);
    sleep(CALL_BOUND).await;
    drop(guard);
    assert_eq!(store.release().await.1, Delivery::InDoubt);
}

/// The future of the first acquire is not polled any more, and another acquire waits behind it. The first claim is
/// withdrawn, and the next claim goes to the other acquire.
#[tokio::test(start_paused = true)]
async fn a_stalled_first_acquire_holds_nobody_up() {
    let (client, mut store) = scripted();
    let (stalls, waits) = (client.lock("job"), client.lock("job"));
    let mut stalls = Box::pin(stalls.acquire());
    assert!(stalls.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let (first, _never) = store.acquire().await;
    let waits = tokio::spawn(async move { waits.acquire().await });
    let (mut withdrawn, mut next) = (None, None);
    while withdrawn.is_none() || next.is_none() {
        match timeout(CALL_BOUND * 2, store.call()).await.expect("the stalled claim is withdrawn, and a new one drawn")
        {
            Call::Release(claim, delivery, answer) => {
                answer.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
                withdrawn = Some((*claim.owner(), delivery));
            }
            Call::Acquire(claim, answer) => next = Some((claim, answer)),
            Call::Renew(..) => panic!("nothing was granted"),
        }
    }
    assert_eq!(withdrawn, Some((*first.owner(), Delivery::InDoubt)));
    let (second, answer) = next.unwrap();
    assert_ne!(first.owner(), second.owner());
    drop(stalls);
    answer.send(Ok(AcquireOutcome::Granted(store.grant(2, 1)))).unwrap();
    let guard = timeout(5 * MS, waits).await.expect("granted").unwrap().unwrap();
    assert!(guard.is_held());
}

/// A call without a reply has failed this long after it was sent, with some slack for the timers.
const OVERDUE: Duration = CALL_BOUND.saturating_add(Duration::from_millis(255));

/// The keeper's own acquire is past its bound. It may have taken effect, whatever the store replies to the next claim.
#[tokio::test(start_paused = true)]
async fn an_acquire_past_its_bound_leaves_a_doubt() {
    let (client, mut store) = scripted();
    let lock = client.lock("job").wait(TTL / 2);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let (first, answer) = store.acquire().await;
    answer.send(Err(refused())).unwrap();
    let (_, _never) = store.acquire().await;
    let mut withdrawn = None;
    while !waiter.is_finished() {
        match timeout(CALL_BOUND * 2, store.call()).await {
            Ok(Call::Acquire(claim, answer)) => {
                assert_ne!(claim.owner(), first.owner());
                let _ = answer.send(Err(refused()));
            }
            Ok(Call::Release(claim, delivery, answer)) => {
                withdrawn = Some((*claim.owner(), delivery));
                answer.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
            }
            Ok(Call::Renew(..)) => panic!("nothing was granted"),
            Err(_) => {}
        }
    }
    assert_eq!(withdrawn, Some((*first.owner(), Delivery::InDoubt)));
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Indeterminate);
}

/// The same for a renewal of a lease, before the next one is sent.
#[tokio::test(start_paused = true)]
async fn a_renewal_past_its_bound_leaves_a_doubt() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    store.grants(1, 1).await;
    let guard = granted(waiter).await;
    let (_, _never) = store.renew().await;
    store.is_silent(OVERDUE).await;
    drop(guard);
    let (_, delivery, _answer) = timeout(AT_ONCE, store.release()).await.expect("it is released");
    assert_eq!(delivery, Delivery::InDoubt);
}

/// The same for a renewal of a place.
#[tokio::test(start_paused = true)]
async fn a_renewal_of_a_place_past_its_bound_leaves_a_doubt() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    store.queues(1).await;
    let (_, _never) = store.renew().await;
    store.is_silent(OVERDUE).await;
    waiter.abort();
    let (_, delivery, _answer) = timeout(AT_ONCE, store.release()).await.expect("it is withdrawn");
    assert_eq!(delivery, Delivery::InDoubt);
}

/// The same for a release in the background, which is sent again.
#[tokio::test(start_paused = true)]
async fn a_release_past_its_bound_leaves_a_doubt() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    store.grants(1, 1).await;
    drop(granted(waiter).await);
    let (_, delivery, _never) = store.release().await;
    assert_eq!(delivery, Delivery::Confirmed);
    let (_, delivery, answer) = timeout(OVERDUE, store.release()).await.expect("it is sent again");
    assert_eq!(delivery, Delivery::InDoubt);
    answer.send(Ok(ReleaseOutcome::Released)).unwrap();
    store.is_silent(TTL * 2).await;
}

/// The same for a release that its caller waits for: its error says that the outcome is not known.
#[tokio::test(start_paused = true)]
async fn an_awaited_release_past_its_bound_leaves_a_doubt() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    store.grants(1, 1).await;
    let release = tokio::spawn(granted(waiter).await.release());
    let (_, delivery, _never) = store.release().await;
    assert_eq!(delivery, Delivery::Confirmed);
    let released = timeout(OVERDUE, release).await.expect("a release ends within its bound").unwrap();
    assert_eq!(released.unwrap_err().kind(), ErrorKind::Indeterminate);
    let (_, delivery, answer) = timeout(AT_ONCE, store.release()).await.expect("it is sent again");
    assert_eq!(delivery, Delivery::InDoubt);
    answer.send(Ok(ReleaseOutcome::Released)).unwrap();
    store.is_silent(TTL * 2).await;
}
