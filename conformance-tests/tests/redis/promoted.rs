//! A replica that replaces its primary may lack the last grants, however long it has been up. It grants no lock until
//! the leases that it may not know of have ended. Their holder is cut off here: `put_back.rs` has those that are not.

use std::time::{Duration, Instant};

use leasehold_core::ErrorKind;

use super::pair::{TTL, case, hold_unreplicated, promote, run};
use super::support::{SOON, Stopwatch, hold};

/// How long a client may take to try again: pauses between two attempts, and one call.
const RETRY: Duration = Duration::from_millis(1_400);

/// Checks the time from a promotion to the first grant.
fn waited(since: Instant, at_least: Duration, stopwatch: &Stopwatch) {
    let took = since.elapsed();
    assert!(took >= at_least, "granted after {took:?}: a lease of {at_least:?} may still be valid");
    let bound = at_least + RETRY + stopwatch.lag();
    assert!(took <= bound, "the wait took {took:?} of {bound:?}");
}

#[test]
fn a_promoted_replica_grants_no_lock_that_its_primary_granted() {
    case(async |mut pair| {
        let (ann, bob) = (pair.holder(TTL).await, pair.client(Duration::from_secs(1)).await);
        let guard = hold_unreplicated(&pair, &ann).await;
        pair.cut_off_holders();
        let stopwatch = Stopwatch::start();
        pair.primary.kill().expect("it runs");
        let promoted = promote(&pair.replica);
        pair.leads_to(&pair.replica);
        let next = hold(&bob, "lost").await;
        waited(promoted, TTL, &stopwatch);
        assert!(!guard.is_held(), "two holders");
        assert!(next.fencing_token() > guard.fencing_token());
    });
}

/// Otherwise a cron job that tries once would wait again each time, or not at all.
#[test]
fn clients_that_live_for_less_than_the_quarantine_share_it() {
    case(async |mut pair| {
        let ann = pair.holder(TTL).await;
        let guard = hold_unreplicated(&pair, &ann).await;
        pair.cut_off_holders();
        drop(guard);
        let stopwatch = Stopwatch::start();
        pair.primary.kill().expect("it runs");
        let promoted = promote(&pair.replica);
        pair.leads_to(&pair.replica);
        let mut refusals = 0;
        loop {
            let newcomer = pair.client(Duration::from_secs(1)).await;
            match newcomer.lock("lost").try_acquire().await {
                Ok(granted) => break assert!(granted.is_some(), "nobody holds the lock"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                    assert!(error.to_string().contains("replaced"), "{error}");
                    refusals += 1;
                }
            }
            newcomer.shutdown().await.expect("nothing is held");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        waited(promoted, TTL, &stopwatch);
        assert!(refusals > 1);
        let stopwatch = Stopwatch::start();
        let _held = hold(&pair.client(TTL * 2).await, "later").await;
        stopwatch.within(TTL / 2, "the quarantine ends for all clients");
    });
}

/// It granted nothing while it was a replica, but its clients have known it since then.
#[test]
fn the_time_as_a_replica_does_not_count_for_a_client_that_was_connected_to_it() {
    case(async |mut pair| {
        let (ann, bob) = (pair.holder(TTL).await, pair.client(Duration::from_secs(1)).await);
        let guard = hold_unreplicated(&pair, &ann).await;
        pair.cut_off_holders();
        let stopwatch = Stopwatch::start();
        pair.primary.kill().expect("it runs");
        pair.leads_to(&pair.replica);
        let refused = loop {
            let error = bob.lock("lost").try_acquire().await.expect_err("a replica grants nothing");
            // The first request may have met the end of the former connection.
            if error.kind() != ErrorKind::Indeterminate {
                break error;
            }
            stopwatch.within(SOON, "the replica replies");
        };
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(refused.to_string().contains("replica"), "{refused}");
        let waiting = tokio::spawn(async move { hold(&bob, "lost").await });
        tokio::time::sleep(TTL / 2).await;
        assert!(!waiting.is_finished(), "a replica granted a lock");
        // The connections stay open.
        let promoted = promote(&pair.replica);
        let next = waiting.await.expect("no panic");
        waited(promoted, TTL, &stopwatch);
        assert!(!guard.is_held(), "two holders");
        assert!(next.fencing_token() > guard.fencing_token());
    });
}

/// The former primary is promoted again, in the run in which its clients already knew it.
#[test]
fn a_second_promotion_is_another_run_also_for_a_newcomer() {
    case(async |mut pair| {
        let (ann, bob) = (pair.holder(TTL).await, pair.client(TTL).await);
        hold(&ann, "used before").await.release().await.expect("a release");
        pair.cut_off_replica().await;
        promote(&pair.replica);
        pair.leads_to(&pair.replica);
        // The former primary follows the new one.
        pair.link.redirect(pair.replica.addr());
        pair.link.heal();
        hold(&ann, "used before").await.release().await.expect("a release");
        pair.replicates(&pair.primary).await;
        std::mem::swap(&mut pair.primary, &mut pair.replica);
        let guard = hold_unreplicated(&pair, &ann).await;
        pair.cut_off_holders();

        let stopwatch = Stopwatch::start();
        pair.primary.kill().expect("it runs");
        let promoted = promote(&pair.replica);
        pair.leads_to(&pair.replica);
        let newcomer = pair.client(Duration::from_secs(1)).await;
        let refused = newcomer.lock("lost").try_acquire().await.expect_err("a lease from before may be valid");
        assert!(refused.to_string().contains("replaced"), "{refused}");
        let next = hold(&bob, "lost").await;
        waited(promoted, TTL, &stopwatch);
        assert!(!guard.is_held(), "two holders");
        assert!(next.fencing_token() > guard.fencing_token());
    });
}

/// A primary that was a replica for a moment may lack leases, also for a client whose connection stayed open. The
/// connection on which a request was refused reads the server again before its next acquire.
#[test]
fn a_connection_that_was_refused_by_a_replica_reads_the_server_again() {
    case(async |pair| {
        let (ann, bob) = (pair.client(TTL).await, pair.client(Duration::from_secs(1)).await);
        for client in [&ann, &bob] {
            hold(client, "used before").await.release().await.expect("a release");
        }
        let stopwatch = Stopwatch::start();
        // Another server is the primary meanwhile, and grants locks that this one never learns of.
        run(&pair.primary, &["REPLICAOF", "127.0.0.1", "1"]);
        let refused = bob.lock("lost").try_acquire().await.expect_err("a replica grants nothing");
        assert!(refused.to_string().contains("replica"), "{refused}");
        let promoted = promote(&pair.primary);
        let next = loop {
            match bob.lock("lost").try_acquire().await {
                Ok(granted) => break granted.expect("nobody holds the lock"),
                Err(error) => assert!(error.to_string().contains("replaced"), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        waited(promoted, TTL, &stopwatch);
        next.release().await.expect("a release");
    });
}

/// The same for its other connections: the retry of a wait uses that of the keeper.
#[test]
fn no_connection_from_before_a_promotion_grants_at_once() {
    case(async |pair| {
        let (ann, bob) = (pair.client(TTL).await, pair.client(Duration::from_secs(1)).await);
        for client in [&ann, &bob] {
            hold(client, "used before").await.release().await.expect("a release");
        }
        let stopwatch = Stopwatch::start();
        run(&pair.primary, &["REPLICAOF", "127.0.0.1", "1"]);
        bob.lock("lost").try_acquire().await.expect_err("a replica grants nothing");
        let promoted = promote(&pair.primary);
        let next = hold(&bob, "lost").await;
        waited(promoted, TTL, &stopwatch);
        next.release().await.expect("a release");
    });
}
