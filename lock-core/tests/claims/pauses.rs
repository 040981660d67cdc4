//! What follows a failure: the next try after a growing pause, or the end of a wait.

use std::time::Duration;

use leasehold_core::backend::{AcquireOutcome, Delivery, ReleaseOutcome, RenewReply};
use leasehold_core::{Error, ErrorKind, LossReason};
use tokio::time::{Instant, sleep, timeout};

use crate::scripted::{AT_ONCE, CALL_BOUND, Call, MS, TTL, acquire, granted, refused, scripted, unknown};

/// Pauses grow from an eighth of the period of three seconds to a half of it: about ten tries in 9 s, and not fifty.
const TRIES: std::ops::RangeInclusive<u32> = 4..=20;

/// A store that refuses every renewal gets no more requests than this.
#[tokio::test(start_paused = true)]
async fn pauses_between_failed_renewals_grow() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    store.grants(1, 1).await;
    let guard = granted(waiter).await;
    let mut tries = 0;
    while guard.is_held() {
        if let Ok((_, answer)) = timeout(CALL_BOUND, store.renew()).await {
            tries += 1;
            answer.send(RenewReply::Unknown(refused())).map_err(drop).unwrap();
        }
        sleep(MS).await;
    }
    assert!(TRIES.contains(&tries), "{tries} renewals");
    assert_eq!(guard.lost().await.reason, LossReason::Expired);
}

/// The same for a place.
#[tokio::test(start_paused = true)]
async fn pauses_between_failed_renewals_of_a_place_grow() {
    let (client, mut store) = scripted();
    let lock = client.lock("job").wait(TTL * 2);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    store.queues(1).await;
    let (begun, mut tries) = (Instant::now(), 0);
    while begun.elapsed() < TTL {
        if let Ok((_, answer)) = timeout(CALL_BOUND, store.renew()).await {
            tries += 1;
            answer.send(RenewReply::Unknown(refused())).map_err(drop).unwrap();
        }
    }
    assert!(TRIES.contains(&tries), "{tries} renewals");
    waiter.abort();
}

/// The same for acquires within a wait.
#[tokio::test(start_paused = true)]
async fn pauses_between_failed_acquires_grow() {
    let (client, mut store) = scripted();
    let lock = client.lock("job").wait(TTL);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let mut tries = 0;
    while !waiter.is_finished() {
        if let Ok((_, answer)) = timeout(CALL_BOUND, store.acquire()).await {
            tries += 1;
            answer.send(Err(refused())).unwrap();
        }
        sleep(MS).await;
    }
    assert!((4..=50).contains(&tries), "{tries} acquires");
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
}

/// A release that fails is tried again, with growing pauses, until the ttl is over.
#[tokio::test(start_paused = true)]
async fn a_failed_release_is_tried_again_until_the_ttl_is_over() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    store.grants(1, 1).await;
    let guard = granted(waiter).await;
    let begun = Instant::now();
    drop(guard);
    let (mut tries, mut last) = (0, Duration::ZERO);
    while begun.elapsed() < TTL * 3 {
        if let Ok((_, delivery, answer)) = timeout(CALL_BOUND, store.release()).await {
            (tries, last) = (tries + 1, begun.elapsed());
            let expected = if tries == 1 { Delivery::Confirmed } else { Delivery::InDoubt };
            assert_eq!(delivery, expected, "release {tries}");
            answer.send(Err(unknown())).unwrap();
        }
    }
    assert!((4..=60).contains(&tries), "{tries} releases");
    assert!(last >= TTL * 2 / 3 && last <= TTL + CALL_BOUND * 2, "the last one after {last:?}");
    assert_eq!(
        client.shutdown().await.err().map(|error| error.kind()),
        None,
        "what was given up before is not waited for"
    );
}

/// An error that waiting does not cure ends every wait at once. An error that it may cure ends only a try.
#[tokio::test(start_paused = true)]
async fn an_error_that_waiting_does_not_mend_ends_every_wait() {
    for (error, ends) in [
        (Error::new(ErrorKind::InvalidInput, "planted"), true),
        (Error::new(ErrorKind::Unsupported, "planted"), true),
        (Error::new(ErrorKind::Auth, "planted"), true),
        (Error::new(ErrorKind::Capacity, "planted"), true),
        (Error::new(ErrorKind::Capacity, "planted").passing_by_itself(), false),
        (Error::new(ErrorKind::Unavailable, "planted"), false),
        (Error::new(ErrorKind::Indeterminate, "planted"), false),
    ] {
        let kind = error.kind();
        let (client, mut store) = scripted();
        let waiters = [acquire(&client), acquire(&client)];
        let (_, answer) = store.acquire().await;
        sleep(MS).await;
        answer.send(Err(error.clone())).unwrap();
        sleep(AT_ONCE).await;
        for waiter in waiters {
            assert_eq!(waiter.is_finished(), ends, "{kind:?}");
            if ends {
                assert_eq!(waiter.await.unwrap().unwrap_err().kind(), kind);
            }
        }

        let (client, mut store) = scripted();
        let lock = client.lock("job");
        let trial = tokio::spawn(async move { lock.try_acquire().await });
        let (_, answer) = store.acquire().await;
        answer.send(Err(error)).unwrap();
        let tried = timeout(AT_ONCE, trial).await.expect("a try ends with its reply").unwrap();
        assert_eq!(tried.unwrap_err().kind(), kind);
    }
}

/// A server may grant no ttl as long as that of the front. The acquires behind it that want a shorter one do not fail
/// with it.
#[tokio::test(start_paused = true)]
async fn a_ttl_that_the_server_does_not_grant_fails_those_alone_that_want_it() {
    let (client, mut store) = scripted();
    let long = client.lock("job").ttl(TTL * 2);
    let long = [long.clone(), long].map(|lock| tokio::spawn(async move { lock.acquire().await }));
    let (_, answer) = store.acquire().await;
    assert_eq!(store.asked().ttl, TTL * 2);
    let short = acquire(&client);
    sleep(MS).await;
    answer.send(Err(Error::invalid("planted: the server grants less"))).unwrap();
    store.grants(1, 1).await;
    assert_eq!(store.asked().ttl, TTL);
    drop(granted(short).await);
    for refused in long {
        assert_eq!(refused.await.unwrap().unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

/// The last waiter has left when the reply arrives. The claim is withdrawn only if the request may have taken effect.
#[tokio::test(start_paused = true)]
async fn an_answer_that_nobody_waits_for_is_withdrawn_where_it_may_have_taken_effect() {
    for (error, expected) in [(unknown(), Some(Delivery::InDoubt)), (refused(), None)] {
        let (client, mut store) = scripted();
        let waiter = acquire(&client);
        let (claim, answer) = store.acquire().await;
        waiter.abort();
        sleep(MS).await;
        answer.send(Err(error)).unwrap();
        let Some(expected) = expected else {
            store.is_silent(TTL).await;
            continue;
        };
        let (withdrawn, delivery, answer) = timeout(AT_ONCE, store.release()).await.expect("it is withdrawn at once");
        assert_eq!((withdrawn.owner(), delivery), (claim.owner(), expected));
        answer.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
        store.is_silent(TTL).await;
    }
}

/// A renewal takes along the leases that are due within a thirty-second of the period, 93 ms here.
#[tokio::test(start_paused = true)]
async fn a_renewal_takes_those_along_that_are_due_soon() {
    for (later, goes_along) in [(MS * 80, true), (MS * 120, false)] {
        let (client, mut store) = scripted();
        let mut guards = Vec::new();
        for (place, name) in [(1, "ann"), (2, "bob")] {
            let lock = client.lock(name);
            let waiter = tokio::spawn(async move { lock.acquire().await });
            store.grants(place, place).await;
            guards.push(granted(waiter).await);
            sleep(later).await;
        }
        let (first, _answer) = store.renew().await;
        assert_eq!(first.claim.name().as_str(), "ann");
        let second = timeout(MS * 10, store.call()).await;
        assert_eq!(second.is_ok(), goes_along, "{later:?}");
        if let Ok(call) = second {
            assert!(matches!(call, Call::Renew(lease, _) if lease.claim.name().as_str() == "bob"));
        }
    }
}

/// A wait does not end with "another claim held the lock" if the last request may have taken the lock.
#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_in_doubt_says_so() {
    for (error, expected) in [(unknown(), ErrorKind::Indeterminate), (refused(), ErrorKind::Unavailable)] {
        let (client, mut store) = scripted();
        let lock = client.lock("job").wait(MS * 50);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        let (_, answer) = store.acquire().await;
        answer.send(Err(error)).unwrap();
        let outcome = timeout(MS * 60, waiter).await.expect("the wait ends").unwrap();
        assert_eq!(outcome.unwrap_err().kind(), expected);
    }
    let (client, mut store) = scripted();
    let lock = client.lock("job").wait(MS * 50);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let (_, answer) = store.acquire().await;
    answer.send(Ok(AcquireOutcome::Contended { retry_after: TTL })).unwrap();
    let outcome = timeout(MS * 60, waiter).await.expect("the wait ends").unwrap();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Timeout);
}
