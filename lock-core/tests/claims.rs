//! What lock-core asks a store for, call by call, where an answer is missing, late, or overtaken by a message.

mod scripted;

use std::time::Duration;

use lock_core::{Acquisition, Answer, Certainty, Error, ErrorKind, LockClient, LockGuard, LossReason, Release, Result};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use self::scripted::{TTL, scripted};

const MS: Duration = Duration::from_millis(1);
const AT_ONCE: Duration = Duration::from_millis(5);

fn acquire(client: &LockClient) -> JoinHandle<Result<LockGuard>> {
    let lock = client.lock("job");
    tokio::spawn(async move { lock.acquire().await })
}

async fn granted(waiter: JoinHandle<Result<LockGuard>>) -> LockGuard {
    timeout(AT_ONCE, waiter).await.expect("the waiter holds at once").unwrap().unwrap()
}

fn unknown() -> Error {
    Error::new(ErrorKind::Indeterminate, "planted")
}

fn refused() -> Error {
    Error::new(ErrorKind::Unavailable, "planted")
}

/// A place that is not renewed for the moment is a place all the same: the last to leave takes it back.
#[tokio::test(start_paused = true)]
async fn a_place_is_taken_back_in_every_stage() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let (claim, answer) = store.acquire().await;
    answer.send(Ok(store.queued(3))).unwrap();
    let (_, renewal) = store.renew().await;
    store.push(&claim, 4, 1);
    // About a place that is gone: so it will be acquired again, and that fails for a while.
    renewal.send(Answer::Granted(store.grant(3, 1))).map_err(drop).unwrap();
    let (_, answer) = store.acquire().await;
    answer.send(Err(refused())).unwrap();
    sleep(MS).await;
    waiter.abort();
    let (withdrawn, certainty, _answer) = timeout(AT_ONCE, store.release()).await.expect("the place is taken back");
    assert_eq!((withdrawn.owner(), certainty), (claim.owner(), Certainty::Sure));
}

/// The same when nobody left, and the second acquire is granted.
#[tokio::test(start_paused = true)]
async fn a_lease_with_an_unanswered_acquire_is_released_as_unsure() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    let (_, answer) = store.acquire().await;
    answer.send(Err(unknown())).unwrap();
    let (_, answer) = store.acquire().await;
    answer.send(Ok(Acquisition::Granted(store.grant(1, 1)))).unwrap();
    drop(granted(waiter).await);
    assert_eq!(store.release().await.1, Certainty::Unsure);
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_that_waited_gets_its_whole_ttl() {
    let (client, mut store) = scripted();
    let lock = client.lock("job").without_renewal();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let (claim, answer) = store.acquire().await;
    answer.send(Ok(store.queued(7))).unwrap();
    sleep(TTL / 4).await;
    store.push(&claim, 7, 1);
    let guard = granted(waiter).await;
    // The place's ttl is that of the lease, and a quarter of it is over.
    assert!(guard.validity() <= TTL * 65 / 100);
    let (lease, answer) = timeout(AT_ONCE, store.renew()).await.expect("it is renewed once, right away");
    assert_eq!((lease.ttl, lease.place), (TTL, 7));
    answer.send(Answer::Renewed(store.confirms(7))).unwrap();
    sleep(AT_ONCE).await;
    assert!(guard.validity() > TTL * 85 / 100, "{:?}", guard.validity());
    store.is_silent(TTL / 2).await;
    assert_eq!(guard.lost().await.reason, LossReason::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_that_did_not_wait_is_not_renewed() {
    let (client, mut store) = scripted();
    let lock = client.lock("job").without_renewal();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let (_, answer) = store.acquire().await;
    answer.send(Ok(Acquisition::Granted(store.grant(7, 1)))).unwrap();
    let guard = granted(waiter).await;
    store.is_silent(TTL / 2).await;
    assert_eq!(guard.lost().await.reason, LossReason::Expired);
}
