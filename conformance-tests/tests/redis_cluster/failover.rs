//! Nodes that fail. The cluster promotes their replicas, and no two clients believe in a lock at the same time.

use std::time::Duration;

use leasehold_core::{ErrorKind, LockClient, LockGuard};

use super::common::{Stopwatch, hold};
use super::deployment::{Deployment, case, name};

const TTL: Duration = Duration::from_secs(4);

/// How long clients may take to see a promoted node, and then to try again after its quarantine: pauses between two
/// attempts, and one call each.
const RETRY: Duration = Duration::from_secs(3);

/// How exactly clients and servers count the time of a quarantine.
const EXACT: Duration = Duration::from_millis(50);

/// The holder keeps its lease for this time, and nobody else gets the lock. By its end, the promoted node answers.
async fn is_kept(guard: &LockGuard, other: &LockClient, time: Duration) {
    let (begin, mut answers) = (Stopwatch::start(), 0);
    while begin.elapsed() < time {
        assert!(guard.is_held(), "the lease was lost {:?} after the failover", begin.elapsed());
        match other.lock(guard.name().as_str()).try_acquire().await {
            Ok(granted) => {
                assert!(granted.is_none(), "two holders");
                answers += 1;
            }
            Err(error) => {
                let kind = error.kind();
                assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::Indeterminate), "{error:?}");
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(answers > 0, "no attempt was answered");
}

/// Another client gets the lock that a failover has lost, as soon as no holder can believe in it any more.
fn waited(promoted: Stopwatch) {
    promoted.not_before(TTL - EXACT, "granted although the promoted node may lack a lease");
    promoted.within(TTL + RETRY, "the lock is granted after the quarantine");
}

/// Both clients use the node, and know each other's ttl, before the case.
async fn ann_and_bob(deployment: &Deployment, lock: &str) -> (LockClient, LockClient) {
    let (ann, bob) = (deployment.client(TTL).await, deployment.client(TTL).await);
    for client in [&ann, &bob] {
        hold(client, lock).await.release().await.expect("a release");
    }
    (ann, bob)
}

/// The replica that is promoted has the lease. Its holder keeps it, and no other client gets the lock.
#[test]
fn a_lease_outlives_a_failover() {
    case(async |mut deployment| {
        let (ann, bob) = ann_and_bob(&deployment, "kept").await;
        let (.., node) = deployment.place("kept");
        // Long enough for a failover on a busy machine.
        let guard = ann.lock("kept").ttl(TTL * 2).acquire().await.expect("it is free");
        deployment.is_replicated(node).await;
        let (promoted, _) = deployment.fail(node).await;
        is_kept(&guard, &bob, TTL * 3).await;
        let record = Deployment::record(&deployment.cluster.nodes[promoted], "kept");
        assert!(record.lease().is_some(), "the promoted node has the lease");
        guard.release().await.expect("a release");
        hold(&bob, "kept").await.release().await.expect("a release");
    });
}

/// The former primary was only paused. It goes on as a replica, and no client believes what it says.
#[test]
fn a_lease_outlives_a_failover_from_a_paused_node() {
    case(async |mut deployment| {
        let (ann, bob) = ann_and_bob(&deployment, "paused").await;
        let (.., node) = deployment.place("paused");
        let guard = ann.lock("paused").ttl(TTL * 2).acquire().await.expect("it is free");
        deployment.is_replicated(node).await;
        let (promoted, _) = deployment.fail_silently(node).await;
        is_kept(&guard, &bob, TTL * 3).await;
        deployment.cluster.nodes[node].resume().expect("it was paused");
        is_kept(&guard, &bob, TTL * 2).await;
        let record = Deployment::record(&deployment.cluster.nodes[promoted], "paused");
        assert!(record.lease().is_some(), "the promoted node has the lease");
        let token = guard.fencing_token();
        guard.release().await.expect("a release");
        assert!(hold(&bob, "paused").await.fencing_token() > token, "tokens rise");
    });
}

/// The failover follows a grant that the replica has not received. Its holder puts the lease back.
#[test]
fn a_grant_that_the_failover_loses_stays_with_its_holder() {
    case(async |mut deployment| {
        let (ann, bob) = ann_and_bob(&deployment, "lost").await;
        let (.., node) = deployment.place("lost");
        deployment.cut_off(node).await;
        let guard = ann.lock("lost").ttl(TTL * 2).acquire().await.expect("it is free");
        let (promoted, _) = deployment.fail(node).await;
        is_kept(&guard, &bob, TTL * 2 + RETRY).await;
        let has_lease = || Deployment::record(&deployment.cluster.nodes[promoted], "lost").lease().is_some();
        assert!(has_lease(), "the promoted node has the lease");
        let token = guard.fencing_token();
        guard.release().await.expect("a release");
        assert!(hold(&bob, "lost").await.fencing_token() > token, "tokens rise");
    });
}

/// The grant and its holder are lost. Another client gets the lock, but not before the lease has ended.
#[test]
fn a_lock_whose_holder_died_is_free_after_a_failover() {
    case(async |mut deployment| {
        let (_ann, bob) = ann_and_bob(&deployment, "dead").await;
        let dead = deployment.direct().await;
        let (.., node) = deployment.place("dead");
        deployment.cut_off(node).await;
        let begin = Stopwatch::start();
        let token = dead.granted(&dead.claim(&name("dead")), TTL).await.token;
        let (_, promoted) = deployment.fail(node).await;
        let next = hold(&bob, "dead").await;
        begin.not_before(TTL, "granted before the lease has ended");
        waited(promoted);
        assert!(next.fencing_token() > token, "tokens rise");
    });
}

/// The promoted node never heard of a client: it has no key that says who used the node before it. A client that has
/// locked on other nodes waits nevertheless.
#[test]
fn a_promoted_node_without_the_epoch_key_waits() {
    case(async |mut deployment| {
        let (.., node) = deployment.place("unheard");
        let other = (0..).map(|number| format!("other-{number}")).find(|lock| deployment.place(lock).2 != node);
        let bob = deployment.client(TTL).await;
        hold(&bob, &other.expect("a lock of another node")).await.release().await.expect("a release");
        let dead = deployment.direct().await;
        deployment.cut_off(node).await;
        let begin = Stopwatch::start();
        dead.granted(&dead.claim(&name("unheard")), TTL).await;
        let (_, promoted) = deployment.fail(node).await;
        let _next = hold(&bob, "unheard").await;
        begin.not_before(TTL, "granted before the lease has ended");
        waited(promoted);
    });
}

/// A node is dead or silent, and so is its replica. The locks of the other nodes are kept, also by a client that has
/// leases on this one and renews them in vain. An attempt for a lock of this node fails in time.
#[test]
fn a_dead_node_concerns_its_own_locks_only() {
    for is_silent in [false, true] {
        case(async move |mut deployment| {
            let ann = deployment.client(TTL).await;
            let names: Vec<_> = (0..30).map(|number| format!("shard/{number}")).collect();
            let is_own = |name: &&String| deployment.place(&encoded(name)).2 == 0;
            let (mut own, others): (Vec<_>, Vec<_>) = names.iter().partition(is_own);
            let mut guards = Vec::new();
            for name in &others {
                guards.push(hold(&ann, name).await);
            }
            let tried = own.pop().expect("some lock is of this node");
            hold(&ann, tried).await.release().await.expect("a release");
            let mut unreachable = Vec::new();
            for name in own.iter().take(5) {
                unreachable.push(hold(&ann, name).await);
            }
            assert_eq!(unreachable.len(), 5, "leases of this node");
            if is_silent {
                deployment.pause_all_of(0);
            } else {
                deployment.kill_all_of(0);
            }
            let dead = Stopwatch::start();
            while dead.elapsed() < TTL * 2 {
                assert!(guards.iter().all(LockGuard::is_held), "a lock of another node was lost");
                let begin = Stopwatch::start();
                let error = ann.lock(tried.as_str()).try_acquire().await.expect_err("its node is dead");
                assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate), "{error:?}");
                begin.within(ann.capabilities().call_bound * 5 / 4, "an attempt has a bound");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }
}

/// A name as it is in a key.
fn encoded(name: &str) -> String {
    name.replace('/', "%2F")
}
