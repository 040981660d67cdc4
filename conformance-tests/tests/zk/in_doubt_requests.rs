//! Requests whose outcome the client does not know, and nodes that it has to find again.

use std::time::Duration;

use leasehold_conformance::{Direct, Fixture, PathFault, Route};
use leasehold_core::backend::{AcquireOutcome, Claim, Delivery};
use leasehold_core::{ErrorKind, Result};
use leasehold_test_servers::ZooKeeperLife;

use super::common::{SOON, Stopwatch, eventually};
use super::fixture::ROOT;
use super::stored::Stored;
use super::support::{case, name, patient, queue};

const TTL: Duration = Duration::from_secs(30);

/// An acquire after a path was healed. The client may need a while to connect again. An attempt finds the node of the
/// one before.
async fn once_connected(client: &Direct, claim: &Claim, ttl: Duration) -> Result<AcquireOutcome> {
    let begin = Stopwatch::start();
    loop {
        let reply = client.acquire(claim, ttl).await;
        if reply.is_ok() || begin.elapsed() > SOON {
            return reply;
        }
    }
}

/// The reply to the creation of a node is lost. The claim finds its node again, and creates no second one.
#[test]
fn a_node_without_a_reply_is_found_again() {
    case(async |fixture| {
        let ann = Direct::warm(&fixture, Route::Faulty).await;
        let bob = Direct::warm(&fixture, Route::Clear).await;
        // A session with this ttl is open.
        let (name, ttl) = (name("no reply"), fixture.ttl() * 20);
        let claim = ann.claim(&name);
        fixture.path(PathFault::LoseReplies).await;
        assert!(ann.acquire(&claim, ttl).await.is_err(), "the reply was lost");
        assert_eq!(queue(&fixture, &name), 1);
        fixture.heal().await;
        let token = Stored { side: fixture.deployment().side(), root: ROOT }.record(&name).last_token;
        match once_connected(&ann, &claim, ttl).await {
            Ok(AcquireOutcome::Granted(grant)) => assert_eq!(Some(grant.token), token, "it is another node"),
            other => panic!("the node was not found again: {other:?}"),
        }
        assert_eq!(queue(&fixture, &name), 1, "the claim has two nodes");
        ann.release(&claim, Delivery::InDoubt).await.expect("a release");
        let reply = bob.acquire(&bob.claim(&name), ttl).await;
        assert!(matches!(reply, Ok(AcquireOutcome::Granted(_))), "{reply:?}");
    });
}

/// A claim that looks for its node finds one of another session, which ends with that session. It is deleted, and does
/// not count.
#[test]
fn a_node_of_another_session_does_not_count() {
    case(async |fixture| {
        let ann = Direct::warm(&fixture, Route::Faulty).await;
        let (name, ttl) = (name("another session"), fixture.ttl() * 20);
        let claim = ann.claim(&name);
        fixture.path(PathFault::LoseReplies).await;
        assert!(ann.acquire(&claim, ttl).await.is_err(), "the reply was lost");
        let nodes = || Stored { side: fixture.deployment().side(), root: ROOT }.queue(&name);
        let own = nodes().pop().expect("the claim has a node");
        let (prefix, _) = own.path.rsplit_once('-').expect("a number");
        fixture.deployment().side().delete(&own.path).expect("it is deleted");
        let other = fixture.deployment().side().create(&format!("{prefix}-"), "1", ZooKeeperLife::Sequential);
        let other = other.expect("it is created");
        fixture.heal().await;
        let reply = once_connected(&ann, &claim, ttl).await;
        let Ok(AcquireOutcome::Granted(grant)) = reply else { panic!("the lock is free: {reply:?}") };
        let nodes = nodes();
        let [node] = &nodes[..] else { panic!("the claim has one node: {nodes:?}") };
        assert!(node.path != other && node.session == own.session, "it is the node of another session");
        assert_eq!(u64::try_from(node.created).ok(), Some(grant.token.get()));
    });
}

/// The reply to a release is lost with its connection. The client asks on the next one and finds no node. Either its
/// release has deleted the node, or something else has. That proves neither a release nor a lost lease.
#[test]
fn a_release_whose_connection_breaks_is_in_doubt() {
    case(async |fixture| {
        let ann = patient(&fixture);
        let name = name("broken release");
        let claim = ann.claim(&name);
        ann.granted(&claim, TTL).await;
        fixture.path(PathFault::LoseReplies).await;
        let release = tokio::spawn({
            let (ann, claim) = (ann.clone(), claim.clone());
            async move { ann.release(&claim, Delivery::Confirmed).await }
        });
        eventually("the server has deleted the node", || queue(&fixture, &name) == 0).await;
        // Connections that have lost bytes are reset.
        fixture.heal().await;
        let released = release.await.expect("no panic");
        let kind = released.expect_err("nobody knows what deleted the node").kind();
        assert_eq!(kind, ErrorKind::Indeterminate);
    });
}

/// A claim is withdrawn while its client opens a session, before a request of it was sent. None is sent later.
#[test]
fn a_claim_that_is_withdrawn_while_its_client_connects_leaves_nothing() {
    const SLOW: Duration = Duration::from_millis(150);
    case(async |fixture| {
        let ann = patient(&fixture);
        let name = name("withdrawn early");
        let claim = ann.claim(&name);
        fixture.path(PathFault::Delay(SLOW)).await;
        let acquire = tokio::spawn({
            let (ann, claim) = (ann.clone(), claim.clone());
            async move { ann.acquire(&claim, TTL).await }
        });
        tokio::time::sleep(SLOW).await;
        ann.release(&claim, Delivery::InDoubt).await.expect("a withdraw");
        // It fails, or on a busy machine it was granted before the withdraw.
        let _ = acquire.await.expect("no panic");
        assert_eq!(queue(&fixture, &name), 0, "the node is left");
    });
}
