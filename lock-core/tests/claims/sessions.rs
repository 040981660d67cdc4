//! Leases that belong to a session: the store can neither shorten one of them nor let it expire while others keep the
//! session alive.

use std::time::Duration;

use leasehold_core::backend::{AcquireOutcome, Delivery, LeaseKind, ReleaseOutcome, RenewPolicy, RenewReply, TtlScope};
use leasehold_core::{LockClient, LossReason};
use tokio::time::{Instant, sleep, timeout};

use crate::scripted::{AT_ONCE, Call, MS, Store, TTL, acquire, granted, refused, scripted_in, unknown};

fn sessions() -> (LockClient, Store) {
    scripted_in(TtlScope::Session)
}

/// Confirms every renewal until another call comes, which must be within `by`.
async fn renews_until(store: &mut Store, by: Duration) -> (Vec<Duration>, Call) {
    let (begun, mut ttls) = (Instant::now(), Vec::new());
    loop {
        match timeout(by.saturating_sub(begun.elapsed()), store.call())
            .await
            .unwrap_or_else(|_| panic!("only renewals: {ttls:?}"))
        {
            Call::Renew(request, answer) => {
                assert_eq!(request.policy, RenewPolicy::AtLeast, "a lease of a session cannot be shortened");
                ttls.push(request.ttl);
                answer.send(RenewReply::Renewed(store.confirms(1))).map_err(drop).unwrap();
            }
            other => return (ttls, other),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_released_within_min_hold_is_renewed_until_then() {
    for (is_dropped, is_shut_down) in [(false, false), (true, false), (false, true)] {
        let (client, mut store) = sessions();
        let lock = client.lock("job").min_hold(TTL * 2);
        let acquire = tokio::spawn(async move { lock.acquire().await });
        let claim = store.grants(1, 1).await;
        let begun = Instant::now();
        let guard = granted(acquire).await;
        sleep(MS).await;
        if is_dropped {
            drop(guard);
        } else if is_shut_down {
            timeout(AT_ONCE, client.shutdown()).await.expect("a shutdown does not wait for `min_hold`").unwrap();
            drop(guard);
        } else {
            timeout(AT_ONCE, guard.release()).await.expect("a release does not wait for `min_hold`").unwrap();
        }
        assert_eq!(client.stats().held, 0);
        // Other acquires of this process do not get the rest of `min_hold`.
        let (renewed, last) = renews_until(&mut store, TTL * 2 + AT_ONCE).await;
        assert_eq!(renewed, [TTL; 5], "a renewal at each third of the ttl");
        let Call::Release(released, delivery, answer) = last else { panic!("the lease is released") };
        assert_eq!((released.owner(), delivery), (claim.owner(), Delivery::Confirmed));
        assert!(begun.elapsed() >= TTL * 2, "released after {:?}", begun.elapsed());
        answer.send(Ok(ReleaseOutcome::Released)).unwrap();
        drop(client);
        store.is_over().await;
    }
}

/// Renewals that fail after the release do not end the lease: other leases may keep the session alive.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_held_over_outlasts_failed_renewals() {
    for error in [unknown, refused] {
        let (client, mut store) = sessions();
        let lock = client.lock("job").min_hold(TTL * 2);
        let acquire = tokio::spawn(async move { lock.acquire().await });
        store.grants(1, 1).await;
        let begun = Instant::now();
        granted(acquire).await.release().await.unwrap();
        let mut failed = 0;
        let delivery = loop {
            match store.call().await {
                Call::Renew(_, answer) => {
                    failed += 1;
                    answer.send(RenewReply::Unknown(error())).map_err(drop).unwrap();
                }
                Call::Release(_, delivery, answer) => {
                    answer.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
                    break delivery;
                }
                Call::Acquire(..) => panic!("nobody acquires"),
            }
        };
        assert!(begun.elapsed() >= TTL * 2 && failed > 3, "{failed} renewals in {:?}", begun.elapsed());
        let in_doubt = error().kind() == leasehold_core::ErrorKind::Indeterminate;
        assert_eq!(delivery, if in_doubt { Delivery::InDoubt } else { Delivery::Confirmed });
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_held_over_and_gone_is_left_alone() {
    let (client, mut store) = sessions();
    let lock = client.lock("job").min_hold(TTL * 2);
    let acquire = tokio::spawn(async move { lock.acquire().await });
    store.grants(1, 1).await;
    granted(acquire).await.release().await.unwrap();
    let (_, answer) = store.renew().await;
    answer.send(RenewReply::Lost).map_err(drop).unwrap();
    store.is_silent(TTL * 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_has_reached_max_hold_is_released_at_once() {
    let (client, mut store) = sessions();
    let lock = client.lock("job").max_hold(TTL * 3 / 2);
    let acquire = tokio::spawn(async move { lock.acquire().await });
    let claim = store.grants(1, 1).await;
    let begun = Instant::now();
    let guard = granted(acquire).await;
    let (renewed, last) = renews_until(&mut store, TTL * 3 / 2 + AT_ONCE).await;
    assert!(renewed.iter().all(|ttl| *ttl == TTL) && !renewed.is_empty(), "renewed to {renewed:?}");
    let Call::Release(released, delivery, answer) = last else { panic!("the lease is released") };
    assert_eq!((released.owner(), delivery), (claim.owner(), Delivery::Confirmed));
    assert!(begun.elapsed() >= TTL * 3 / 2, "released after {:?}", begun.elapsed());
    assert_eq!(guard.lost().await.reason, LossReason::MaxHold);
    answer.send(Ok(ReleaseOutcome::Released)).unwrap();
    drop(guard);
    store.is_silent(TTL * 2).await;
}

/// The same for a lease whose renewals fail, whether the keeper or its guard finds the loss first. Not for a fixed
/// lease, which has a session of its own.
#[tokio::test(start_paused = true)]
async fn a_lease_that_the_clock_ends_is_released_once() {
    for (kind, is_dropped) in [(LeaseKind::Kept, false), (LeaseKind::Kept, true), (LeaseKind::Fixed, false)] {
        let (client, mut store) = sessions();
        let lock = client.lock("job");
        let lock = if kind == LeaseKind::Fixed { lock.without_renewal() } else { lock };
        let acquire = tokio::spawn(async move { lock.acquire().await });
        store.grants(1, 1).await;
        assert_eq!(store.asked().kind, kind);
        let guard = granted(acquire).await;
        let (mut released, begun) = (0, Instant::now());
        let mut guard = Some(guard);
        while begun.elapsed() < TTL * 3 {
            let Ok(call) = timeout(TTL / 20, store.call()).await else {
                if is_dropped && guard.as_ref().is_some_and(|guard| !guard.is_held()) {
                    guard = None;
                }
                continue;
            };
            match call {
                Call::Renew(_, answer) => answer.send(RenewReply::Unknown(unknown())).map_err(drop).unwrap(),
                Call::Release(_, delivery, answer) => {
                    released += 1;
                    assert_eq!(delivery, Delivery::InDoubt);
                    answer.send(Ok(ReleaseOutcome::NotHeld)).unwrap();
                }
                Call::Acquire(..) => panic!("nobody acquires"),
            }
        }
        assert_eq!(released, u32::from(kind == LeaseKind::Kept), "{kind:?}");
    }
}

/// A claim belongs to one session. If the next waiter wants another ttl or kind, it draws a claim of its own.
#[tokio::test(start_paused = true)]
async fn a_claim_is_not_used_for_a_lease_of_another_session() {
    for is_fixed in [false, true] {
        let (client, mut store) = sessions();
        let first = acquire(&client);
        let claim = store.queues(1).await;
        let lock = client.lock("job");
        let lock = if is_fixed { lock.without_renewal() } else { lock.ttl(TTL * 2) };
        let second = tokio::spawn(async move { lock.acquire().await });
        sleep(MS).await;
        first.abort();
        let mut withdrawn = None;
        while withdrawn.is_none() || !second.is_finished() {
            match timeout(AT_ONCE, store.call()).await.expect("a withdraw and an acquire") {
                Call::Release(claim, _, answer) => {
                    withdrawn = Some(*claim.owner());
                    answer.send(Ok(ReleaseOutcome::Released)).unwrap();
                }
                Call::Acquire(_, answer) => answer.send(Ok(AcquireOutcome::Granted(store.grant(2, 2)))).unwrap(),
                Call::Renew(..) => panic!("nothing is due"),
            }
            sleep(MS).await;
        }
        assert_eq!(withdrawn, Some(*claim.owner()));
        let expected = if is_fixed { (LeaseKind::Fixed, TTL) } else { (LeaseKind::Kept, TTL * 2) };
        assert_eq!((store.asked().kind, store.asked().ttl), expected);
        drop(granted(second).await);
    }
}

/// A lease does not expire while other leases keep the session alive, so a failed release is repeated as long as they
/// are confirmed.
#[tokio::test(start_paused = true)]
async fn a_failed_release_goes_on_while_the_session_lives() {
    let (client, mut store) = sessions();
    let other = client.lock("other");
    let other = tokio::spawn(async move { other.acquire().await });
    store.grants(1, 1).await;
    let _other = granted(other).await;
    let guard = acquire(&client);
    store.grants(1, 1).await;
    drop(granted(guard).await);
    let begun = Instant::now();
    loop {
        match store.call().await {
            Call::Renew(_, answer) => answer.send(RenewReply::Renewed(store.confirms(1))).map_err(drop).unwrap(),
            Call::Release(.., answer) if begun.elapsed() > TTL * 3 => {
                break answer.send(Ok(ReleaseOutcome::Released)).unwrap();
            }
            Call::Release(.., answer) => answer.send(Err(unknown())).unwrap(),
            Call::Acquire(..) => panic!("nobody acquires"),
        }
    }
    sleep(MS).await;
    assert_eq!(client.stats().released, 1);
}
