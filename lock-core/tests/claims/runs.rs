//! `Lock::run` and the counters of a client.

use std::time::Duration;

use leasehold_core::backend::{AcquireOutcome, ReleaseOutcome, RenewReply};
use leasehold_core::{Error, ErrorKind};
use tokio::time::{sleep, timeout};

use crate::scripted::{AT_ONCE, MS, TTL, acquire, granted, refused, scripted, unknown};

/// Only a lost lease makes the result of the work doubtful. A release without a reply does not.
#[tokio::test(start_paused = true)]
async fn a_run_fails_where_the_lease_was_lost() {
    for (released, expected) in [
        (Ok(ReleaseOutcome::Released), None),
        (Ok(ReleaseOutcome::NotHeld), Some(ErrorKind::Lost)),
        (Err(unknown()), None),
        (Err(refused()), None),
        (Err(Error::new(ErrorKind::Auth, "planted")), None),
    ] {
        let (client, mut store) = scripted();
        let lock = client.lock("job");
        let run = tokio::spawn(async move { lock.run(async |token| token.get()).await });
        store.grants(1, 7).await;
        let (_, _, answer) = store.release().await;
        answer.send(released.clone()).unwrap();
        let outcome = timeout(AT_ONCE, run).await.expect("the run ends").unwrap();
        match expected {
            None => assert_eq!(outcome.unwrap(), 7, "{released:?}"),
            Some(kind) => assert_eq!(outcome.unwrap_err().kind(), kind, "{released:?}"),
        }
    }
}

/// Each call counts once, by how it ended.
#[tokio::test(start_paused = true)]
async fn every_call_and_every_end_is_counted() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    store.grants(1, 1).await;
    let _guard = granted(waiter).await;
    for answer in [Ok(AcquireOutcome::Contended { retry_after: TTL }), Err(refused())] {
        let lock = client.lock("other");
        let trial = tokio::spawn(async move { lock.try_acquire().await });
        let (_, reply) = store.acquire().await;
        reply.send(answer).unwrap();
        drop(trial.await.unwrap());
    }
    let stats = client.stats();
    assert_eq!((stats.acquires, stats.granted, stats.held), (3, 1, 1));
    assert_eq!((stats.timeouts, stats.acquire_errors), (1, 1));
}

/// A renewal that goes out late is measured from when it was due.
#[tokio::test(start_paused = true)]
async fn the_lag_of_a_renewal_is_measured() {
    let (client, mut store) = scripted();
    let waiter = acquire(&client);
    store.grants(1, 1).await;
    let _guard = granted(waiter).await;
    // Nothing runs while the clock continues: the runtime is not driven.
    tokio::time::advance(TTL / 3 + MS * 500).await;
    let (lease, answer) = timeout(MS * 10, store.renew()).await.expect("it is overdue");
    answer.send(RenewReply::Renewed(store.confirms(lease.place.get()))).map_err(drop).unwrap();
    sleep(MS).await;
    let lag = client.stats().max_renewal_lag;
    assert!(lag >= MS * 400 && lag <= Duration::from_secs(1), "{lag:?}");
}
