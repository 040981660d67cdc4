//! What happens to claims whose tasks, clients or backends go away in the middle of a call.

use std::cell::Cell;
use std::sync::Arc;

use leasehold_core::backend::{AcquireOutcome, Delivery, Event, OnContention, ReleaseOutcome, RenewReply};
use leasehold_core::{Error, ErrorKind, LossReason};
use tokio::time::{Instant, sleep, timeout};

use crate::scripted::{AT_ONCE, CALL_BOUND, Call, MS, TTL, acquire, granted, refused, scripted, unknown};

/// The acquire is dropped in flight, and its client too. A later grant is still released.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_outlives_its_client_is_taken_back() {
    let (client, mut store) = scripted();
    let lock = client.lock("job");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let (claim, answer) = store.acquire().await;
    waiter.abort();
    drop(waiter.await);
    drop(client);
    sleep(10 * MS).await;
    answer.send(Ok(AcquireOutcome::Granted(store.grant(1, 1)))).unwrap();
    let (released, _, answer) = store.release().await;
    assert_eq!(released.owner(), claim.owner());
    answer.send(Ok(ReleaseOutcome::Released)).unwrap();
    store.is_over().await;
}

/// The same with a release that is dropped and fails.
#[tokio::test(start_paused = true)]
async fn a_release_that_outlives_its_client_goes_on() {
    let (client, mut store) = scripted();
    let lock = client.lock("job");
    let acquire = tokio::spawn(async move { lock.acquire().await });
    store.grants(1, 1).await;
    let guard = acquire.await.unwrap().unwrap();
    drop(client);
    let release = tokio::spawn(guard.release());
    let (_, _, answer) = store.release().await;
    release.abort();
    drop(release.await);
    sleep(10 * MS).await;
    answer.send(Err(refused())).unwrap();
    store.release().await.2.send(Ok(ReleaseOutcome::Released)).unwrap();
    store.is_over().await;
}

/// A repeated release finds no lease: the first call ended it, or it was lost before. A shutdown says so once, unless
/// the store shows that no other grant followed.
#[tokio::test(start_paused = true)]
async fn a_shutdown_reports_a_repeated_release_that_finds_no_lease() {
    let lost = Some(ErrorKind::Lost);
    for (failed, last_token, expected) in
        [(unknown(), None, lost), (refused(), None, lost), (unknown(), Some(2), lost), (unknown(), Some(1), None)]
    {
        let (client, mut store) = scripted();
        store.shows(last_token);
        let acquiring = acquire(&client);
        store.grants(1, 1).await;
        let release = tokio::spawn(granted(acquiring).await.release());
        store.release().await.2.send(Err(failed)).unwrap();
        assert_ne!(release.await.unwrap().unwrap_err().kind(), ErrorKind::Lost, "it is not known");
        store.release().await.2.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
        assert_eq!(client.shutdown().await.err().map(|error| error.kind()), expected, "{last_token:?}");
        assert_eq!((client.stats().lost, client.stats().released), if expected.is_some() { (1, 0) } else { (0, 1) });
        client.shutdown().await.expect("it was reported");
    }
}

/// No caller waits for the release of a guard that was dropped, or whose release was dropped. Its first reply is
/// certain.
#[tokio::test(start_paused = true)]
async fn a_shutdown_reports_a_loss_that_a_release_in_the_background_finds() {
    for drops in [false, true] {
        let (client, mut store) = scripted();
        // The lease was lost, although no other grant followed.
        store.shows(Some(1));
        let acquiring = acquire(&client);
        store.grants(1, 1).await;
        let guard = granted(acquiring).await;
        let (_, _, answer) = if drops {
            drop(guard);
            store.release().await
        } else {
            let release = tokio::spawn(guard.release());
            let call = store.release().await;
            release.abort();
            drop(release.await);
            sleep(MS).await;
            call
        };
        answer.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
        sleep(MS).await;
        let error = client.shutdown().await.expect_err("the lease was lost");
        assert_eq!((error.kind(), client.stats().lost), (ErrorKind::Lost, 1), "{error}");
    }
}

/// A shutdown waits for the reply to an acquire in flight, and for the release of what it was granted.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_an_acquire_that_is_under_way() {
    let (client, mut store) = scripted();
    let lock = client.lock("job");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let (_, acquired) = store.acquire().await;
    let shutdown = tokio::spawn(async move { client.shutdown().await });
    let refused = timeout(AT_ONCE, waiter).await.expect("a pending acquire fails at once").unwrap();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    sleep(10 * MS).await;
    assert!(!shutdown.is_finished(), "the acquire may yet be granted");
    acquired.send(Ok(AcquireOutcome::Granted(store.grant(1, 1)))).unwrap();
    let (_, _, answer) = store.release().await;
    assert!(!shutdown.is_finished(), "the lease is not released");
    answer.send(Ok(ReleaseOutcome::Released)).unwrap();
    shutdown.await.unwrap().unwrap();
}

/// One task tries, and another waits behind it. If the one that tries is dropped, the other must not continue without a
/// place.
#[tokio::test(start_paused = true)]
async fn a_waiter_behind_a_try_that_was_dropped_gets_a_place() {
    for unanswered in [false, true] {
        let (client, mut store) = scripted();
        let (tries, waits) = (client.lock("job"), client.lock("job"));
        let tries = tokio::spawn(async move { tries.try_acquire().await });
        let (claim, answer) = store.acquire().await;
        assert_eq!(store.asked().on_contention, OnContention::Fail);
        let _waits = tokio::spawn(async move { waits.acquire().await });
        sleep(MS).await;
        tries.abort();
        drop(tries.await);
        answer
            .send(if unanswered { Err(refused()) } else { Ok(AcquireOutcome::Contended { retry_after: TTL * 10 }) })
            .unwrap();
        let (next, _answer) = timeout(TTL, store.acquire()).await.expect("the waiter asks for itself");
        assert_eq!(store.asked().on_contention, OnContention::Queue);
        assert_ne!(next.owner(), claim.owner());
    }
}

/// A fixed lease that was requested by another waiter of the queue, with a shorter ttl, is renewed to its own.
#[tokio::test(start_paused = true)]
async fn a_fixed_lease_that_inherits_a_shorter_ttl_gets_its_own() {
    let (client, mut store) = scripted();
    let (short, long) = (client.lock("job").ttl(TTL / 3), client.lock("job").without_renewal());
    let short = tokio::spawn(async move { short.acquire().await });
    let (_, answer) = store.acquire().await;
    let long = tokio::spawn(async move { long.acquire().await });
    sleep(MS).await;
    short.abort();
    drop(short.await);
    let mut grant = store.grant(1, 1);
    grant.confirmation.ttl = TTL / 3;
    answer.send(Ok(AcquireOutcome::Granted(grant))).unwrap();
    let guard = timeout(AT_ONCE, long).await.expect("it holds").unwrap().unwrap();
    let (lease, answer) = timeout(110 * MS, store.renew()).await.expect("it is renewed once, soon after the grant");
    assert_eq!(lease.ttl, TTL);
    answer.send(RenewReply::Renewed(store.confirms(1))).map_err(drop).unwrap();
    sleep(MS).await;
    assert!(guard.validity() > TTL / 2);
}

/// One acquire has no reply, and all later ones certainly had no effect. The one without a reply may still have taken
/// effect.
#[tokio::test(start_paused = true)]
async fn an_outcome_stays_unknown_when_the_claim_is_drawn_anew() {
    let (client, mut store) = scripted();
    let lock = client.lock("job").wait(TTL * 3 / 2);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let from = Instant::now();
    let mut unknown = 0;
    let outcome = loop {
        if waiter.is_finished() {
            break waiter.await.unwrap();
        }
        let Ok(call) = timeout(TTL, store.call()).await else { continue };
        match call {
            Call::Acquire(_, answer) if unknown == 0 && from.elapsed() > TTL - CALL_BOUND => {
                unknown += 1;
                let _ = answer.send(Err(Error::new(ErrorKind::Indeterminate, "planted")));
            }
            Call::Acquire(_, answer) => drop(answer.send(Err(refused()))),
            Call::Release(_, _, answer) => drop(answer.send(Err(refused()))),
            Call::Renew(..) => panic!("nothing was granted"),
        }
    };
    assert_eq!((unknown, outcome.unwrap_err().kind()), (1, ErrorKind::Indeterminate));
}

/// A withdrawal was sent twice, and the second copy ended it. The reply to the first must not end the next withdrawal
/// of the same claim.
#[tokio::test(start_paused = true)]
async fn a_late_answer_ends_no_other_withdraw() {
    let (client, mut store) = scripted();
    let waiter = tokio::spawn({
        let lock = client.lock("job");
        async move { lock.acquire().await }
    });
    let (_, answer) = store.acquire().await;
    answer.send(Err(Error::new(ErrorKind::Indeterminate, "planted"))).unwrap();
    let (_, second) = store.acquire().await;
    waiter.abort();
    let (_, _, late) = store.release().await;
    let (_, _, answer) = store.release().await;
    answer.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
    sleep(MS).await;
    second.send(Ok(store.queued(1))).unwrap();
    let (_, delivery, answer) = store.release().await;
    assert_eq!(delivery, Delivery::InDoubt);
    late.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
    sleep(MS).await;
    // The withdrawal continues: it fails, and is repeated.
    answer.send(Err(refused())).unwrap();
    store.release().await.2.send(Ok(ReleaseOutcome::Released)).unwrap();
    store.is_silent(TTL).await;
}

/// Whatever ends a lease counts as one loss, and no lease is counted as held afterwards.
#[tokio::test(start_paused = true)]
async fn each_loss_is_counted_once() {
    let (client, mut store) = scripted();
    for (token, reason) in [(1, LossReason::Gone), (2, LossReason::Expired), (3, LossReason::Shutdown)] {
        let lock = client.lock("job");
        let acquire = tokio::spawn(async move { lock.acquire().await });
        store.grants(token, token).await;
        let guard = acquire.await.unwrap().unwrap();
        assert_eq!((client.stats().held, client.stats().lost), (1, token - 1));
        let shutdown = match reason {
            LossReason::Gone => {
                store.renew().await.1.send(RenewReply::Lost).map_err(drop).unwrap();
                None
            }
            LossReason::Shutdown => {
                let client = client.clone();
                Some(tokio::spawn(async move { client.shutdown().await }))
            }
            // Each renewal fails.
            _ => None,
        };
        while reason == LossReason::Expired && guard.is_held() {
            if let Ok((_, answer)) = timeout(MS, store.renew()).await {
                answer.send(RenewReply::Unknown(refused())).map_err(drop).unwrap();
            }
        }
        assert_eq!(guard.lost().await.reason, reason);
        assert_eq!((client.stats().held, client.stats().lost), (0, token));
        drop(guard);
        if reason != LossReason::Gone {
            store.release().await.2.send(Ok(ReleaseOutcome::Released)).unwrap();
        }
        if let Some(shutdown) = shutdown {
            shutdown.await.unwrap().unwrap();
        }
        assert_eq!((client.stats().held, client.stats().lost), (0, token));
    }
}

/// The store replies to no release before the end of the ttl, which is short. The shutdown reports that.
#[tokio::test(start_paused = true)]
async fn a_shutdown_before_a_silent_store_does_not_end_well() {
    let (client, mut store) = scripted();
    let lock = client.lock("job").ttl(CALL_BOUND);
    let acquire = tokio::spawn(async move { lock.acquire().await });
    store.grants(1, 1).await;
    let guard = acquire.await.unwrap().unwrap();
    let shutdown = tokio::spawn(async move { client.shutdown().await });
    while !shutdown.is_finished() {
        if let Ok((_, _, answer)) = timeout(CALL_BOUND, store.release()).await {
            sleep(CALL_BOUND / 2).await;
            let _ = answer.send(Err(Error::new(ErrorKind::Indeterminate, "planted")));
        }
    }
    assert_eq!(shutdown.await.unwrap().unwrap_err().kind(), ErrorKind::Indeterminate);
    drop(guard);
}

/// The validity has ended, but the store may still have the lease. It is released, so that the next waiter does not
/// wait for the rest of the ttl. The release is in doubt only if a request had no reply.
#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_released_when_its_guard_goes() {
    for (in_doubt, awaited) in [(false, false), (true, false), (false, true), (true, true)] {
        let (client, mut store) = scripted();
        let waiter = acquire(&client);
        let claim = store.grants(1, 1).await;
        let guard = granted(waiter).await;
        let mut error = if in_doubt { unknown() } else { refused() };
        while guard.is_held() {
            if let Ok((_, answer)) = timeout(MS, store.renew()).await {
                answer.send(RenewReply::Unknown(std::mem::replace(&mut error, refused()))).map_err(drop).unwrap();
            }
        }
        store.is_silent(TTL).await;
        if awaited {
            let lost = timeout(AT_ONCE, guard.release()).await.expect("a release of what is lost waits for nothing");
            assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
        } else {
            drop(guard);
        }
        let (released, delivery, answer) = timeout(AT_ONCE, store.release()).await.expect("it is released");
        assert_eq!(released.owner(), claim.owner());
        assert_eq!(delivery, if in_doubt { Delivery::InDoubt } else { Delivery::Confirmed });
        answer.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
        store.is_silent(TTL).await;
    }
}

/// A lease that the store reports as gone is not released: there is nothing left to release.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_gone_is_not_released() {
    for awaited in [false, true] {
        let (client, mut store) = scripted();
        let waiter = acquire(&client);
        store.grants(1, 1).await;
        let guard = granted(waiter).await;
        store.renew().await.1.send(RenewReply::Lost).map_err(drop).unwrap();
        assert_eq!(guard.lost().await.reason, LossReason::Gone);
        if awaited {
            assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
        } else {
            drop(guard);
        }
        store.is_silent(TTL).await;
    }
}

/// Work does not begin after the loss, and has no result if the lease was lost while it ran.
#[tokio::test(start_paused = true)]
async fn guarded_work_has_no_result_after_the_loss() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let claim = store.grants(1, 1).await;
    let guard = granted(waiter).await;
    assert_eq!(guard.run(async { 1 }).await.unwrap(), 1);
    let ends_the_lease = async { store.event(Event::Gone { owner: *claim.owner() }) };
    assert_eq!(guard.run(ends_the_lease).await.unwrap_err().kind(), ErrorKind::Lost);
    let begun = Cell::new(false);
    let lost = guard.run(async { begun.set(true) }).await;
    assert_eq!((lost.unwrap_err().kind(), begun.get()), (ErrorKind::Lost, false));
}

/// Work that waits is dropped when the lease is lost.
#[tokio::test(start_paused = true)]
async fn guarded_work_is_dropped_at_the_loss() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let claim = store.grants(1, 1).await;
    let guard = granted(waiter).await;
    let dropped = Arc::new(());
    let work = tokio::spawn({
        let dropped = dropped.clone();
        async move {
            let work = async move {
                let _dropped = dropped;
                std::future::pending::<()>().await;
            };
            (guard.run(work).await, guard)
        }
    });
    sleep(MS).await;
    assert_eq!(Arc::strong_count(&dropped), 2);
    store.event(Event::Gone { owner: *claim.owner() });
    let (result, _guard) = timeout(AT_ONCE, work).await.expect("it is dropped at once").unwrap();
    assert_eq!((result.unwrap_err().kind(), Arc::strong_count(&dropped)), (ErrorKind::Lost, 1));
}

/// A shutdown waits for the reply to a release that a task of the user waits for.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_a_release_that_is_in_flight() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    store.grants(1, 1).await;
    let guard = granted(waiter).await;
    assert_eq!(guard.lease_ref().ttl, TTL);
    let release = tokio::spawn(guard.release());
    let (_, _, answer) = store.release().await;
    let shutdown = tokio::spawn(async move { client.shutdown().await });
    sleep(10 * MS).await;
    assert!(!shutdown.is_finished(), "the release has no reply");
    answer.send(Ok(ReleaseOutcome::Released)).unwrap();
    release.await.unwrap().unwrap();
    shutdown.await.unwrap().unwrap();
    store.is_over().await;
}

/// A release that its caller dropped, and that has a reply in time, is not repeated.
#[tokio::test(start_paused = true)]
async fn a_dropped_release_with_a_reply_is_sent_once() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    store.grants(1, 1).await;
    let release = tokio::spawn(granted(waiter).await.release());
    let (_, _, answer) = store.release().await;
    release.abort();
    drop(release.await);
    sleep(10 * MS).await;
    answer.send(Ok(ReleaseOutcome::Released)).unwrap();
    store.is_silent(10 * CALL_BOUND).await;
    drop(client);
    store.is_over().await;
}

/// A release that had no effect is repeated as it was. One whose outcome is unknown is repeated in doubt.
#[tokio::test(start_paused = true)]
async fn a_failed_release_is_repeated_in_doubt_if_its_outcome_is_unknown() {
    for (error, delivery) in [(refused(), Delivery::Confirmed), (unknown(), Delivery::InDoubt)] {
        let (client, mut store) = scripted();
        let waiter = acquire(&client);
        store.grants(1, 1).await;
        let release = tokio::spawn(granted(waiter).await.release());
        let (_, first, answer) = store.release().await;
        assert_eq!(first, Delivery::Confirmed);
        let kind = error.kind();
        answer.send(Err(error)).unwrap();
        assert_eq!(release.await.unwrap().unwrap_err().kind(), kind);
        let (_, second, answer) = store.release().await;
        assert_eq!(second, delivery, "after {kind:?}");
        answer.send(Ok(ReleaseOutcome::Released)).unwrap();
        drop(client);
        store.is_over().await;
    }
}
