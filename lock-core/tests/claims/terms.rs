//! The terms of a lease: `max_hold`, `min_hold`, mode and re-entry.

use std::time::Duration;

use leasehold_core::backend::{
    AcquireOutcome, Claim, Confirmation, Delivery, Grant, Mode, OnContention, ReleaseOutcome, RenewPolicy, RenewReply,
};
use leasehold_core::memory::{MemoryBackend, MemoryStore};
use leasehold_core::{ErrorKind, FencingToken, HolderId, LockClient, LossReason};
use tokio::time::{Instant, sleep, timeout};

use crate::scripted::{AT_ONCE, Call, MS, Store, TTL, acquire, granted, scripted};

/// The first ttl is no longer than `max_hold`, each renewal requests what is left of it, and no renewal follows.
#[tokio::test(start_paused = true)]
async fn a_lease_is_asked_for_no_longer_than_max_hold() {
    for (max_hold, first) in [(TTL / 3, TTL / 3), (TTL * 3 / 2, TTL)] {
        let (client, mut store) = scripted();
        let lock = client.lock("job").max_hold(max_hold);
        let acquire = tokio::spawn(async move { lock.acquire().await });
        let (_, answer) = store.acquire().await;
        assert_eq!(store.asked().ttl, first);
        let confirmation = Confirmation { ttl: first, ..store.confirms(1) };
        sleep(AT_ONCE).await;
        let begun = Instant::now();
        answer.send(Ok(AcquireOutcome::Granted(Grant::new(FencingToken::new(1), confirmation)))).unwrap();
        let guard = acquire.await.unwrap().unwrap();
        let mut asked = Duration::ZERO;
        while begun.elapsed() + asked + MS < max_hold {
            let (lease, answer) = timeout(TTL, store.renew()).await.expect("it is renewed until `max_hold`");
            asked = lease.ttl;
            let left = max_hold - begun.elapsed();
            assert!(asked <= left.min(TTL) + MS, "{asked:?} asked for, {left:?} left");
            let confirmation = Confirmation { ttl: asked, ..store.confirms(1) };
            answer.send(RenewReply::Renewed(confirmation)).map_err(drop).unwrap();
        }
        assert_eq!(guard.lost().await.reason, LossReason::MaxHold);
        let held = begun.elapsed();
        assert!(held <= max_hold + AT_ONCE && held >= max_hold * 85 / 100, "held for {held:?} of {max_hold:?}");
    }
}

/// The same for a fixed lease: it lasts for `max_hold` if that is shorter than its ttl.
#[tokio::test(start_paused = true)]
async fn a_fixed_lease_is_asked_for_no_longer_than_max_hold() {
    let (client, mut store) = scripted();
    let lock = client.lock("job").max_hold(TTL / 3).without_renewal();
    let acquire = tokio::spawn(async move { lock.acquire().await });
    let (_, answer) = store.acquire().await;
    assert_eq!(store.asked().ttl, TTL / 3);
    let confirmation = Confirmation { ttl: TTL / 3, ..store.confirms(1) };
    answer.send(Ok(AcquireOutcome::Granted(Grant::new(FencingToken::new(1), confirmation)))).unwrap();
    let guard = acquire.await.unwrap().unwrap();
    store.is_silent(TTL / 4).await;
    assert_eq!(guard.lost().await.reason, LossReason::MaxHold);
}

/// A store that grants more than was requested does not prolong the hold.
#[tokio::test(start_paused = true)]
async fn a_longer_confirmation_does_not_outlast_max_hold() {
    let (client, mut store) = scripted();
    let lock = client.lock("job").max_hold(TTL / 3);
    let acquire = tokio::spawn(async move { lock.acquire().await });
    store.grants(1, 1).await;
    let guard = acquire.await.unwrap().unwrap();
    assert!(guard.validity() <= TTL / 3, "{:?}", guard.validity());
    let loss = timeout(TTL / 3 + AT_ONCE, guard.lost()).await.expect("the hold ends by `max_hold`");
    assert_eq!(loss.reason, LossReason::MaxHold);
}

/// An acquire that waits gets a place, although it joined a try of the same holder that was refused.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_joins_a_try_of_the_same_holder_waits() {
    let (client, mut store) = scripted();
    let holder = HolderId::new();
    let (tries, waits) = (client.lock("job").holder(holder), client.lock("job").holder(holder).wait(TTL * 10));
    let tries = tokio::spawn(async move { tries.try_acquire().await });
    let (_, answer) = store.acquire().await;
    assert_eq!(store.asked().on_contention, OnContention::Fail);
    let waits = tokio::spawn(async move { waits.acquire().await });
    sleep(MS).await;
    answer.send(Ok(AcquireOutcome::Contended { retry_after: TTL * 10 })).unwrap();
    let refused = timeout(AT_ONCE, tries).await.expect("a try ends at once").unwrap();
    assert!(refused.unwrap().is_none());
    let _answer = timeout(AT_ONCE, store.acquire()).await.expect("the waiter asks for a place").1;
    assert_eq!(store.asked().on_contention, OnContention::Queue);
    assert!(!waits.is_finished());
}

/// If the try is granted, both share the lease.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_joins_a_try_of_the_same_holder_shares_its_grant() {
    let (client, mut store) = scripted();
    let holder = HolderId::new();
    let (tries, waits) = (client.lock("job").holder(holder), client.lock("job").holder(holder));
    let tries = tokio::spawn(async move { tries.try_acquire().await });
    let (_, answer) = store.acquire().await;
    let waits = tokio::spawn(async move { waits.acquire().await });
    sleep(MS).await;
    answer.send(Ok(AcquireOutcome::Granted(store.grant(1, 1)))).unwrap();
    let tried = timeout(AT_ONCE, tries).await.expect("granted").unwrap().unwrap().expect("granted");
    let waited = timeout(AT_ONCE, waits).await.expect("granted").unwrap().unwrap();
    assert_eq!(tried.fencing_token(), waited.fencing_token());
}

/// One lease cannot have two different terms: an acquire with other terms is refused, before and after the grant.
#[tokio::test(start_paused = true)]
async fn acquires_of_one_holder_agree_in_max_hold_and_min_hold() {
    let (client, mut store) = scripted();
    let lock = client.lock("job").holder(HolderId::new());
    let first = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await }
    });
    let (_, answer) = store.acquire().await;
    let others = [lock.clone().max_hold(TTL), lock.clone().min_hold(TTL / 4)];
    for other in &others {
        let refused = timeout(AT_ONCE, other.acquire()).await.expect("refused at once");
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    answer.send(Ok(AcquireOutcome::Granted(store.grant(1, 1)))).unwrap();
    let _guard = first.await.unwrap().unwrap();
    for other in &others {
        let refused = timeout(AT_ONCE, other.acquire()).await.expect("refused at once");
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    drop(lock.acquire().await.expect("the same terms share the lease"));
}

/// A release within `min_hold` after an acquire or a renewal without a reply: the lease runs out, and then the claim is
/// withdrawn, so that a late copy of that request takes nothing.
#[tokio::test(start_paused = true)]
async fn min_hold_ends_with_a_withdraw_when_a_request_has_no_answer() {
    for unanswered_renewal in [false, true] {
        let (client, mut store) = scripted();
        let shortest = TTL / 2;
        let lock = client.lock("job").min_hold(shortest);
        let acquire = tokio::spawn(async move { lock.acquire().await });
        if !unanswered_renewal {
            let (_, answer) = store.acquire().await;
            answer.send(Err(leasehold_core::Error::new(ErrorKind::Indeterminate, "planted"))).unwrap();
        }
        let claim = store.grants(1, 1).await;
        let begun = Instant::now();
        let guard = acquire.await.unwrap().unwrap();
        if unanswered_renewal {
            drop(store.renew().await.1);
            sleep(MS).await;
        }
        let release = tokio::spawn(guard.release());
        let (lease, answer) = store.renew().await;
        assert_eq!(lease.policy, RenewPolicy::Exactly);
        answer.send(RenewReply::Renewed(store.confirms(1))).map_err(drop).unwrap();
        timeout(AT_ONCE, release).await.expect("a release does not wait for `min_hold`").unwrap().unwrap();
        let (withdrawn, delivery, answer) = timeout(TTL, store.release()).await.expect("the claim is withdrawn");
        assert!(begun.elapsed() >= shortest, "withdrawn within `min_hold`, after {:?}", begun.elapsed());
        assert!(begun.elapsed() <= shortest + 20 * MS, "withdrawn late, after {:?}", begun.elapsed());
        assert_eq!((withdrawn.owner(), delivery), (claim.owner(), Delivery::InDoubt));
        answer.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
        store.is_silent(TTL * 2).await;
    }
}

/// Without doubt, there is nothing to withdraw.
#[tokio::test(start_paused = true)]
async fn min_hold_ends_in_silence_when_everything_was_answered() {
    let (client, mut store) = scripted();
    let lock = client.lock("job").min_hold(TTL / 2);
    let acquire = tokio::spawn(async move { lock.acquire().await });
    store.grants(1, 1).await;
    let release = tokio::spawn(acquire.await.unwrap().unwrap().release());
    let (_, answer) = store.renew().await;
    answer.send(RenewReply::Renewed(store.confirms(1))).map_err(drop).unwrap();
    release.await.unwrap().unwrap();
    store.is_silent(TTL * 2).await;
}

#[tokio::test]
async fn a_mode_that_the_backend_lacks_is_refused_before_anything_is_sent() {
    let store = MemoryStore::default();
    let client = LockClient::new(MemoryBackend::new(&store));
    let error = client.lock("job").mode(Mode::Shared).acquire().await.unwrap_err();
    assert_eq!((error.kind(), store.counts()), (ErrorKind::Unsupported, Default::default()));
}

/// Takes the withdrawal of the first claim and grants one in mode shared, in any order.
async fn takes_back_and_shares(store: &mut Store, first: &Claim) {
    for _ in 0..2 {
        match store.call().await {
            Call::Release(claim, delivery, answer) => {
                assert_eq!((claim.owner(), delivery), (first.owner(), Delivery::Confirmed));
                answer.send(Ok(ReleaseOutcome::Released)).unwrap();
            }
            Call::Acquire(_, answer) => {
                assert_eq!(store.asked().mode, Mode::Shared);
                answer.send(Ok(AcquireOutcome::Granted(store.grant(2, 2)))).unwrap();
            }
            Call::Renew(..) => panic!("nothing is held"),
        }
    }
}

/// If the next waiter wants another mode than the claim that has the place, it draws a claim of its own.
#[tokio::test(start_paused = true)]
async fn the_front_of_the_local_queue_decides_the_mode() {
    let (client, mut store) = scripted();
    let exclusive = acquire(&client);
    let first = store.queues(1).await;
    assert_eq!(store.asked().mode, Mode::Exclusive);
    let lock = client.lock("job").mode(Mode::Shared);
    let shared = tokio::spawn(async move { lock.acquire().await });
    store.is_silent(TTL / 6).await;
    exclusive.abort();
    takes_back_and_shares(&mut store, &first).await;
    drop(granted(shared).await);
}

/// The same while the first acquire is in flight, whatever its reply is.
#[tokio::test(start_paused = true)]
async fn a_grant_in_the_mode_of_somebody_who_left_goes_back() {
    for is_granted in [true, false] {
        let (client, mut store) = scripted();
        let exclusive = acquire(&client);
        let (first, answer) = store.acquire().await;
        let lock = client.lock("job").mode(Mode::Shared);
        let shared = tokio::spawn(async move { lock.acquire().await });
        sleep(MS).await;
        exclusive.abort();
        sleep(MS).await;
        let outcome = if is_granted { AcquireOutcome::Granted(store.grant(1, 1)) } else { store.queued(1) };
        answer.send(Ok(outcome)).unwrap();
        takes_back_and_shares(&mut store, &first).await;
        drop(granted(shared).await);
    }
}

/// One lease has one mode.
#[tokio::test(start_paused = true)]
async fn re_entry_in_another_mode_is_refused() {
    let (client, mut store) = scripted();
    let holder = HolderId::new();
    let lock = client.lock("job").holder(holder);
    let first = tokio::spawn(async move { lock.acquire().await });
    store.grants(1, 1).await;
    let _guard = granted(first).await;
    let error = client.lock("job").holder(holder).mode(Mode::Shared).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// A lease that could have been renewed, and was not, has expired. `max_hold` is not the reason.
#[tokio::test(start_paused = true)]
async fn a_lease_that_ends_before_its_longest_hold_has_expired() {
    let (client, mut store) = scripted();
    let lock = client.lock("job").max_hold(TTL * 10);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    store.grants(1, 1).await;
    let guard = granted(waiter).await;
    let (_, _unanswered) = store.renew().await;
    assert_eq!(guard.lost().await.reason, LossReason::Expired);
}
