//! Fixed leases, which their client ends although it keeps its session.

use std::sync::Arc;
use std::time::Duration;

use leasehold_conformance::{Direct, Fixture, PathFault, Route};
use leasehold_core::LockClient;
use leasehold_core::backend::{AcquireOutcome, AcquireRequest, Delivery, LeaseKind, RenewReply, RenewRequest};

use super::common::{Stopwatch, eventually, hold};
use super::support::{case, name, queue};

/// The renewal of a place may see its turn before the watch does. The lease then has its whole ttl, although the claim
/// has waited for longer.
#[test]
fn a_fixed_lease_whose_turn_a_renewal_sees_has_its_whole_ttl() {
    const LOCKS: usize = 20;
    const TTL: Duration = Duration::from_secs(2);
    case(async |fixture| {
        let ann = Direct::warm(&fixture, Route::Clear).await;
        let bob = Arc::new(Direct::warm(&fixture, Route::Clear).await);
        let (mut names, mut held, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..LOCKS {
            let name = name(&format!("fixed {index}"));
            let claim = ann.claim(&name);
            ann.granted(&claim, TTL * 30).await;
            let mut request = AcquireRequest::new(bob.claim(&name), TTL);
            request.kind = LeaseKind::Fixed;
            let reply = bob.request(&request).await;
            let Ok(AcquireOutcome::Queued { confirmation, .. }) = reply else { panic!("bob waits: {reply:?}") };
            places.push(RenewRequest::new(request.claim, confirmation.place, TTL));
            held.push(claim);
            names.push(name);
        }
        let waits = Stopwatch::start();
        while waits.elapsed() < TTL * 5 / 4 {
            bob.renew_all(&places).await;
            tokio::time::sleep(TTL / 20).await;
        }
        // A renewal is in flight at each moment. Its list of the queue arrives before the one that the watch causes.
        let renewals: Vec<_> = (0..4)
            .map(|_| {
                let (bob, places) = (bob.clone(), places.clone());
                tokio::spawn(async move {
                    loop {
                        let replies = bob.renew_all(&places).await;
                        let lost = replies.iter().filter(|reply| matches!(reply, RenewReply::Lost)).count();
                        assert_eq!(lost, 0, "places were lost as their turn came");
                        if replies.iter().all(|reply| matches!(reply, RenewReply::Granted(_))) {
                            return;
                        }
                    }
                })
            })
            .collect();
        for claim in &held {
            ann.release(claim, Delivery::Confirmed).await.expect("a release");
        }
        for renewal in renewals {
            renewal.await.expect("no panic");
        }
        tokio::time::sleep(TTL / 20).await;
        let left: Vec<_> = names.iter().map(|name| queue(&fixture, name)).collect();
        assert_eq!(left, [1; LOCKS], "leases ended before their ttl");
        eventually("the leases end", || names.iter().all(|name| queue(&fixture, name) == 0)).await;
    });
}

/// The request that ends a fixed lease is lost. It must be sent again, because another lease keeps the session.
#[test]
fn a_fixed_lease_ends_although_its_deletion_was_lost() {
    const TTL: Duration = Duration::from_secs(4);
    const BEFORE: Duration = Duration::from_millis(500);
    case(async |fixture| {
        let backend = fixture.backend(Route::Faulty).await;
        let ann = LockClient::builder(backend).ttl(TTL).build().expect("a client");
        let name = name("lost deletion");
        let kept = hold(&ann, "kept").await;
        let fixed = ann.lock(name.as_str()).without_renewal().acquire().await.expect("a lease");
        let granted = Stopwatch::start();
        tokio::time::sleep(TTL - BEFORE).await;
        fixture.path(PathFault::DropTraffic).await;
        // The lease has ended, and the client has noticed the silence. The other lease lives on.
        tokio::time::sleep((TTL + BEFORE * 3 / 2).saturating_sub(granted.elapsed())).await;
        fixture.heal().await;
        eventually("the fixed lease ends", || queue(&fixture, &name) == 0).await;
        assert!(!fixed.is_held());
        drop(kept);
    });
}
