//! Leases that end, and must stay ended.

use std::time::Duration;

use leasehold_conformance::harness::Fault;
use leasehold_core::backend::{Delivery, PlaceNumber, RenewReply, RenewRequest};

use super::common::eventually;
use super::group::{case, command, name};

const TTL: Duration = Duration::from_secs(20);

/// The holder hears of the break from one server at a time. Each of them has no vote then, and is asked to join.
#[test]
fn a_broken_lease_stays_broken() {
    case(3, async |group| {
        let bob = group.direct("").await;
        // Each renewal waits for the lost replies as long as a call may take.
        let ann = group.direct("&timeout=400ms").await;
        let lock = name("broken");
        let held = ann.claim(&lock);
        let grant = ann.granted(&held, TTL).await;
        let admin = bob.backend().admin().expect("an admin");
        let raised = admin.break_lock(&lock, grant.token).await.expect("a break").expect("a token");
        eventually("no vote is left", || group.live(&[0, 1, 2], "broken") == 0).await;
        let renew = || ann.renew(RenewRequest::new(held.clone(), PlaceNumber::NONE, TTL));
        for heard in [0, 1] {
            for silent in [0, 1, 2].into_iter().filter(|server| *server != heard) {
                group.proxies[silent].apply(Fault::LoseReplies);
            }
            let reply = renew().await;
            assert!(matches!(reply, RenewReply::Unknown(_) | RenewReply::Lost), "{reply:?}");
            group.heal();
            let is_back = |server: usize| group.servers[server].clients().is_ok_and(|all| !all.is_empty());
            eventually("all are connected to again", || (0..3).all(is_back)).await;
        }
        for _ in 0..2 {
            let reply = renew().await;
            assert!(matches!(reply, RenewReply::Unknown(_) | RenewReply::Lost), "it is back: {reply:?}");
        }
        assert_eq!(group.live(&[0, 1, 2], "broken"), 0, "votes are back");
        let next = bob.granted(&bob.claim(&lock), TTL).await.token;
        assert!(next > raised && raised > grant.token, "{:?} {raised:?} {next:?}", grant.token);
    });
}

/// A renewal is on its way to one server when the lease is released. It may arrive after the withdrawal.
#[test]
fn a_release_leaves_a_tombstone_where_a_request_has_no_reply() {
    case(3, async |group| {
        let ann = group.direct("").await;
        let held = ann.claim(&name("released"));
        ann.granted(&held, TTL).await;
        group.proxies[2].apply(Fault::HoldRequests);
        let release = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            ann.release(&held, Delivery::Confirmed).await.expect("a release");
            group.proxies[2].deliver();
        };
        let renewal = ann.renew(RenewRequest::new(held.clone(), PlaceNumber::NONE, TTL));
        tokio::join!(renewal, release);
        let tombstones = |server: usize| command(&group.servers[server], &["KEYS", "*:t:*"]).items().len();
        eventually("a tombstone", || tombstones(2) == 1).await;
        assert_eq!([tombstones(0), tombstones(1)], [0, 0], "they have replied to all requests");
        eventually("no vote is left", || group.live(&[0, 1, 2], "released") == 0).await;
    });
}
