//! A holder whose lease the server has lost puts it back, so that neither a restart without data nor a failover to a
//! replica that lacks the grant costs it the lock. `tests/put_back.rs` of lock-redis has the rules, one by one.

use std::time::{Duration, Instant};

use leasehold_conformance::{Direct, Fixture, PathFault, Record, Route};
use leasehold_core::backend::{Delivery, ReleaseOutcome, RenewReply, RenewRequest};
use leasehold_core::{LockClient, LockGuard, LockName, LossReason};
use leasehold_test_servers::RedisServer;

use super::pair::{self, hold_unreplicated, promote};
use super::restart::lose_everything;
use super::stored::Stored;
use super::support::{Redis, SOON, case, client, eventually, hold};

const TTL: Duration = pair::TTL;

fn name(text: &str) -> LockName {
    LockName::new(text).expect("a name")
}

fn stored(server: &RedisServer, lock: &LockName) -> Record {
    Stored::new(server, "leasehold:").record(lock)
}

/// The server has the lease of this guard.
fn is_back(server: &RedisServer, guard: &LockGuard) -> bool {
    let record = stored(server, guard.name());
    record.lease().is_some() && record.last_token == Some(guard.fencing_token())
}

/// The guard holds its lock until the quarantine and its ttl are over, and no other client does. Then the other client
/// gets it.
async fn stays_held(server: impl Fn(&LockName) -> Record, guard: LockGuard, other: LockClient) {
    let (lock, token) = (guard.name().clone(), guard.fencing_token());
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { hold(&other, lock.as_str()).await }
    });
    let begin = Instant::now();
    while begin.elapsed() < TTL * 2 {
        let record = server(&lock);
        assert!(record.last_token.is_none_or(|last| last <= token), "granted to another client: {record:?}");
        assert!(!waiting.is_finished(), "two holders");
        assert!(guard.is_held(), "lost after {:?}", begin.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    eventually("the other client queues when the quarantine is over", || server(&lock).waiting() == 1).await;
    let record = server(&lock);
    assert!(record.lease().is_some() && record.last_token == Some(token), "{record:?} is not the lease of {token}");
    assert!(guard.is_held() && !waiting.is_finished());
    guard.release().await.expect("a release");
    let next = waiting.await.expect("no panic");
    assert!(next.fencing_token() > token, "{token} was followed by {}", next.fencing_token());
}

#[test]
fn a_restart_without_data_costs_no_holder_its_lock() {
    case(|fixture| async move {
        let (ann, bob) = (client(&fixture, TTL).await, client(&fixture, TTL).await);
        hold(&bob, "other").await.release().await.expect("a release");
        let guard = hold(&ann, "kept").await;
        lose_everything(&fixture);
        stays_held(|lock| stored(&fixture.server(), lock), guard, bob).await;
    });
}

#[test]
fn several_restarts_without_data_cost_no_holder_its_lock() {
    case(|fixture| async move {
        let (ann, bob) = (client(&fixture, TTL).await, client(&fixture, TTL).await);
        hold(&bob, "other").await.release().await.expect("a release");
        let guard = hold(&ann, "kept").await;
        for _ in 0..2 {
            lose_everything(&fixture);
            eventually("the lease is back", || is_back(&fixture.server(), &guard)).await;
        }
        // Before anything is put back.
        lose_everything(&fixture);
        lose_everything(&fixture);
        stays_held(|lock| stored(&fixture.server(), lock), guard, bob).await;
    });
}

#[test]
fn all_leases_of_a_client_come_back() {
    case(|fixture| async move {
        let ann = client(&fixture, TTL * 3).await;
        let mut guards = Vec::new();
        for number in 0..250 {
            guards.push(hold(&ann, &format!("kept {number}")).await);
        }
        lose_everything(&fixture);
        for guard in &guards {
            eventually("the lease is back", || is_back(&fixture.server(), guard)).await;
        }
        assert!(guards.iter().all(LockGuard::is_held), "{:?}", ann.stats());
        assert_eq!(ann.stats().lost, 0);
    });
}

#[test]
fn a_failover_to_a_replica_without_the_grant_costs_no_holder_its_lock() {
    pair::case(async |mut pair| {
        let (ann, bob) = (pair.client(TTL).await, pair.client(Duration::from_secs(1)).await);
        let guard = hold_unreplicated(&pair, &ann).await;
        pair.primary.kill().expect("it runs");
        promote(&pair.replica);
        assert_eq!(stored(&pair.replica, guard.name()), Record::default(), "the replica has the grant");
        pair.leads_to(&pair.replica);
        stays_held(|lock| stored(&pair.replica, lock), guard, bob).await;
    });
}

/// The replica lacks the release of the former holder and the grant to the present one.
#[test]
fn a_replica_that_shows_the_former_holder_costs_no_holder_its_lock() {
    pair::case(async |mut pair| {
        let (ann, bob) = (pair.client(TTL).await, pair.client(TTL).await);
        let former = hold(&bob, "lost").await;
        pair.cut_off_replica().await;
        let before = former.fencing_token();
        former.release().await.expect("a release");
        let guard = hold(&ann, "lost").await;
        pair.primary.kill().expect("it runs");
        promote(&pair.replica);
        assert_eq!(stored(&pair.replica, guard.name()).last_token, Some(before));
        pair.leads_to(&pair.replica);
        stays_held(|lock| stored(&pair.replica, lock), guard, bob).await;
    });
}

#[test]
fn an_operator_may_break_a_lease_that_was_put_back() {
    case(|fixture| async move {
        let (ann, bob) = (client(&fixture, TTL).await, client(&fixture, TTL).await);
        let guard = hold(&ann, "kept").await;
        lose_everything(&fixture);
        eventually("the lease is back", || is_back(&fixture.server(), &guard)).await;
        let operator = Direct::attach(fixture.operator().await);
        let admin = operator.backend().admin().expect("Redis has functions for operators");
        let raised = admin.break_lock(guard.name(), guard.fencing_token()).await.expect("a reply").expect("it is held");
        let loss = tokio::time::timeout(SOON, guard.lost()).await.expect("the loss is reported");
        assert_eq!(loss.reason, LossReason::Gone);
        assert!(stored(&fixture.server(), guard.name()).lease().is_none(), "the broken lease is back");
        assert!(hold(&bob, "kept").await.fencing_token() > raised);
    });
}

/// A client whose renewals are called by hand, and its lease on a server that has lost it. It has read the new run, and
/// the server has its script, so that the next renewal is a single request.
async fn lost_lease(fixture: &Redis) -> (Direct, RenewRequest, leasehold_core::FencingToken) {
    let (ann, ttl) = (Direct::new(fixture, Route::Faulty).await, TTL * 5);
    let claim = ann.claim(&name("kept"));
    let grant = ann.granted(&claim, ttl).await;
    lose_everything(fixture);
    let other = ann.claim(&name("other"));
    let until = Instant::now() + SOON;
    loop {
        let refused = ann.try_acquire(&other, ttl).await.expect_err("a quarantine");
        if refused.to_string().contains("was restarted") {
            break;
        }
        assert!(Instant::now() < until, "{refused}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let place = grant.confirmation.place;
    let unknown = ann.renew(RenewRequest::new(other, place, ttl)).await;
    assert!(matches!(unknown, RenewReply::Lost), "{unknown:?}");
    (ann, RenewRequest::new(claim, place, ttl), grant.token)
}

#[test]
fn a_lost_reply_to_a_put_back_costs_nothing() {
    case(|fixture| async move {
        let (ann, lease, token) = lost_lease(&fixture).await;
        fixture.path(PathFault::LoseReplies).await;
        let unknown = ann.renew(lease.clone()).await;
        assert!(matches!(unknown, RenewReply::Unknown(_)), "{unknown:?}");
        let record = stored(&fixture.server(), lease.claim.name());
        assert!(record.lease().is_some() && record.last_token == Some(token), "{record:?}");
        fixture.heal().await;
        let until = Instant::now() + SOON;
        loop {
            match ann.renew(lease.clone()).await {
                RenewReply::Renewed(_) => break,
                RenewReply::Unknown(error) => assert!(Instant::now() < until, "{error}"),
                other => panic!("{other:?}"),
            }
        }
        let record = stored(&fixture.server(), lease.claim.name());
        assert!(record.lease().is_some() && record.last_token == Some(token), "{record:?}");
        assert_eq!(ann.release(&lease.claim, Delivery::InDoubt).await.expect("a reply"), ReleaseOutcome::Released);
        assert!(stored(&fixture.server(), lease.claim.name()).lease().is_none());
    });
}

/// The lease was withdrawn while the request was on its way.
#[test]
fn a_late_put_back_does_nothing() {
    case(|fixture| async move {
        let (ann, lease, _) = lost_lease(&fixture).await;
        let nearby = Direct::new(&fixture, Route::Clear).await;
        fixture.path(PathFault::Hold).await;
        let unknown = ann.renew(lease.clone()).await;
        assert!(matches!(unknown, RenewReply::Unknown(_)), "{unknown:?}");
        assert_eq!(stored(&fixture.server(), lease.claim.name()), Record::default(), "the request is not held");
        let withdrawn = nearby.release(&lease.claim, Delivery::InDoubt).await.expect("a reply");
        assert_eq!(withdrawn, ReleaseOutcome::NotHeld);
        fixture.deliver().await;
        assert!(stored(&fixture.server(), lease.claim.name()).lease().is_none(), "a withdrawn claim holds the lock");
    });
}
