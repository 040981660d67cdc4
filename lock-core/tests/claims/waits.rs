//! How waits end, and what is sent for the acquires that wait.

use leasehold_core::ErrorKind;
use leasehold_core::backend::{AcquireOutcome, Delivery, Event, OnContention, ReleaseOutcome, RenewReply};
use tokio::time::{Instant, sleep, timeout};

use crate::scripted::{AT_ONCE, Call, MS, TTL, acquire, granted, refused, scripted, unknown};

/// The wait of a claim with a place ends while the store is silent. The store may have handed over the lock, and older
/// replies prove nothing. So the place is renewed once more shortly before the end.
#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_in_silence_is_indeterminate() {
    for (answered, kind) in [(true, ErrorKind::Timeout), (false, ErrorKind::Indeterminate)] {
        let (client, mut store) = scripted();
        let lock = client.lock("job").wait(TTL / 4);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        let claim = store.queues(1).await;
        let (lease, answer) = timeout(TTL / 4, store.renew()).await.expect("it asks once more before the end");
        assert_eq!(lease.claim.owner(), claim.owner());
        if answered {
            answer
                .send(RenewReply::Waiting { confirmation: store.confirms(1), retry_after: TTL })
                .map_err(drop)
                .unwrap();
        }
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), kind, "answered: {answered}");
        store.release().await;
    }
}

/// The same for a second waiter, which joins while the first one has its place.
#[tokio::test(start_paused = true)]
async fn a_later_wait_that_ends_in_silence_is_indeterminate_too() {
    let (client, mut store) = scripted();
    let first = acquire(&client);
    store.queues(1).await;
    sleep(MS).await;
    let lock = client.lock("job").wait(TTL / 4);
    let second = tokio::spawn(async move { lock.acquire().await });
    let (_, _answer) = timeout(TTL / 4, store.renew()).await.expect("it asks once more before the end");
    assert_eq!(second.await.unwrap().unwrap_err().kind(), ErrorKind::Indeterminate);
    drop(first);
}

/// The same on a store without a queue, where the next acquire would be due long after the wait: the lock may have been
/// free since.
#[tokio::test(start_paused = true)]
async fn a_wait_without_a_place_asks_once_more_before_its_end() {
    for answered in [true, false] {
        let (client, mut store) = scripted();
        let lock = client.lock("job").wait(TTL / 2);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        let held = || Ok(AcquireOutcome::Contended { retry_after: TTL * 10 });
        store.acquire().await.1.send(held()).unwrap();
        // Another, whose wait ends before the first one's.
        sleep(MS).await;
        let lock = client.lock("job").wait(TTL / 3);
        let joined = tokio::spawn(async move { lock.acquire().await });
        let (_, answer) = timeout(TTL / 3, store.acquire()).await.expect("it asks before the end of the shorter wait");
        answer.send(held()).unwrap();
        assert_eq!(joined.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
        let (_, answer) = timeout(TTL / 2, store.acquire()).await.expect("it asks before the end of the longer wait");
        if answered {
            answer.send(held()).unwrap();
        }
        let kind = if answered { ErrorKind::Timeout } else { ErrorKind::Indeterminate };
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), kind, "answered: {answered}");
    }
}

/// A place that could not be renewed may have become a lease, even if the renewals certainly had no effect.
#[tokio::test(start_paused = true)]
async fn a_wait_with_a_place_that_could_not_be_renewed_is_indeterminate() {
    let (client, mut store) = scripted();
    let lock = client.lock("job").wait(TTL / 4);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    store.queues(1).await;
    for _ in 0..3 {
        let (_, answer) = timeout(TTL / 4, store.renew()).await.expect("it asks again");
        answer.send(RenewReply::Unknown(refused())).map_err(drop).unwrap();
    }
    let outcome = loop {
        match store.call().await {
            Call::Renew(_, answer) => answer.send(RenewReply::Unknown(refused())).map_err(drop).unwrap(),
            Call::Release(..) => break waiter.await.unwrap(),
            Call::Acquire(..) => panic!("it has a place"),
        }
    };
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Indeterminate);
}

/// A store with a queue may give a place to an acquire that only tries. The try ends at once, and its place is
/// withdrawn. An acquire that waits behind it sends a request of its own.
#[tokio::test(start_paused = true)]
async fn a_try_that_got_a_place_is_refused_at_once() {
    for another_waits in [false, true] {
        let (client, mut store) = scripted();
        let tries = client.lock("job");
        let tries = tokio::spawn(async move { tries.try_acquire().await });
        let (claim, answer) = store.acquire().await;
        let waits = another_waits.then(|| acquire(&client));
        sleep(MS).await;
        answer.send(Ok(store.queued(1))).unwrap();
        let tried = timeout(AT_ONCE, tries).await.expect("a try ends at once").unwrap();
        assert!(tried.expect("nothing is broken").is_none());
        let mut withdrawn = None;
        for _ in 0..1 + u32::from(another_waits) {
            match timeout(AT_ONCE, store.call()).await.expect("the place is taken back, and the other one asks") {
                Call::Release(claim, delivery, answer) => {
                    withdrawn = Some((*claim.owner(), delivery));
                    answer.send(Ok(ReleaseOutcome::Released)).unwrap();
                }
                Call::Acquire(_, answer) => {
                    assert_eq!(store.asked().on_contention, OnContention::Queue);
                    answer.send(Ok(AcquireOutcome::Granted(store.grant(2, 1)))).unwrap();
                }
                Call::Renew(..) => panic!("nobody wants that place"),
            }
        }
        assert_eq!(withdrawn, Some((*claim.owner(), Delivery::Confirmed)));
        let guard = match waits {
            Some(waits) => Some(granted(waits).await),
            None => None,
        };
        store.is_silent(TTL / 4).await;
        assert_eq!(client.stats().withdrawn, 1);
        drop(guard);
    }
}

/// The first request of a claim may have been applied a whole ttl ago, so a grant of that claim could have expired. A
/// new claim is drawn then. The old one is withdrawn if one of its requests has no reply.
#[tokio::test(start_paused = true)]
async fn a_claim_is_drawn_anew_after_a_ttl_without_an_answer() {
    for in_doubt in [false, true] {
        let (client, mut store) = scripted();
        let _waiter = acquire(&client);
        let (first, answer) = store.acquire().await;
        let begun = Instant::now();
        answer.send(Err(if in_doubt { unknown() } else { refused() })).unwrap();
        let mut withdrawn = None;
        let _never = loop {
            match timeout(TTL / 3, store.call()).await.expect("it tries again") {
                Call::Acquire(claim, answer) if claim.owner() != first.owner() => break answer,
                Call::Acquire(_, answer) => answer.send(Err(refused())).unwrap(),
                Call::Release(claim, delivery, answer) => {
                    withdrawn = Some((*claim.owner(), delivery));
                    answer.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
                }
                Call::Renew(..) => panic!("nothing was granted"),
            }
            assert!(begun.elapsed() < TTL * 4 / 3, "the same claim after {:?}", begun.elapsed());
        };
        assert_eq!(store.asked().on_contention, OnContention::Queue);
        assert!(begun.elapsed() >= TTL, "drawn anew after {:?}", begun.elapsed());
        assert_eq!(withdrawn, in_doubt.then_some((*first.owner(), Delivery::InDoubt)));
    }
}

/// The store reports that the holder's lease ends sooner. The place is renewed at once, and the reply says when the
/// lease ends.
#[tokio::test(start_paused = true)]
async fn a_place_is_renewed_when_the_lease_ends_sooner() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let claim = store.queues(1).await;
    sleep(10 * MS).await;
    store.event(Event::EndsSooner { owner: *claim.owner() });
    let (renewal, _answer) = timeout(AT_ONCE, store.renew()).await.expect("a renewal at once");
    assert_eq!(renewal.claim.owner(), claim.owner());
    drop(waiter);
}

/// The gauge of the acquires that wait counts those of every lock.
#[tokio::test(start_paused = true)]
async fn every_acquire_that_waits_is_counted() {
    let (client, mut store) = scripted();
    let (first, second) = (acquire(&client), acquire(&client));
    store.queues(1).await;
    let lock = client.lock("another");
    let third = tokio::spawn(async move { lock.acquire().await });
    store.queues(1).await;
    sleep(MS).await;
    assert_eq!(client.stats().waiting, 3);
    for task in [first, second, third] {
        task.abort();
        drop(task.await);
    }
    assert_eq!(client.stats().waiting, 0);
}

/// A claim counts how often the store refused it, for a backend that adapts its replies.
#[tokio::test(start_paused = true)]
async fn a_refused_claim_counts_its_attempts() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    for attempt in 0..4 {
        let (_, answer) = store.acquire().await;
        assert_eq!(store.asked().attempt, attempt);
        answer.send(Ok(AcquireOutcome::Contended { retry_after: MS })).unwrap();
    }
    drop(waiter);
}

/// The store reports that a place is gone: a new claim takes its turn at once.
#[tokio::test(start_paused = true)]
async fn a_place_that_is_gone_is_replaced_by_a_new_claim() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let claim = store.queues(1).await;
    sleep(10 * MS).await;
    store.event(Event::Gone { owner: *claim.owner() });
    let next = async {
        loop {
            match store.call().await {
                Call::Acquire(next, answer) => return (next, answer),
                Call::Release(_, _, answer) => answer.send(Ok(ReleaseOutcome::NotHeld)).unwrap(),
                Call::Renew(..) => panic!("a renewal of what is gone"),
            }
        }
    };
    let (next, _answer) = timeout(AT_ONCE, next).await.expect("a new claim at once");
    assert_ne!(next.owner(), claim.owner());
    drop(waiter);
}

/// A renewal of a place that had no effect leaves no doubt. One whose outcome is unknown does.
#[tokio::test(start_paused = true)]
async fn a_failed_renewal_of_a_place_leaves_doubt_if_its_outcome_is_unknown() {
    for (error, delivery) in [(refused(), Delivery::Confirmed), (unknown(), Delivery::InDoubt)] {
        let (client, mut store) = scripted();
        let waiter = acquire(&client);
        store.queues(1).await;
        let (_, answer) = store.renew().await;
        answer.send(RenewReply::Unknown(error)).map_err(drop).unwrap();
        sleep(MS).await;
        waiter.abort();
        drop(waiter.await);
        assert_eq!(store.release().await.1, delivery);
    }
}
