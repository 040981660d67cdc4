//! A `KILL` that arrives late.

use std::sync::Arc;
use std::time::Duration;

use leasehold::mysql::MySqlBackend;
use leasehold_conformance::harness::{Fault, FaultProxy, Reach};
use leasehold_conformance::{Direct, Fixture};
use leasehold_core::LockName;
use leasehold_core::backend::{Delivery, RenewReply, RenewRequest};

use super::idle_limits::url_by;
use super::stored::Stored;
use super::strategy::MySqlFixture;
use super::support::{SOON, client, eventually, hold, own_servers};

/// A call ends the connection of a claim while the task of the claim unlocks the row on it. The `KILL` arrives when the
/// call has given up, and the next claim has its lease by then.
#[test]
fn a_late_kill_meets_the_lease_of_no_other_claim() {
    /// The statement that leaves a lock which another client holds is the second one, and its reply must be seen on its
    /// way.
    const SLOW: Duration = Duration::from_secs(2);
    const NEVER: Duration = Duration::from_secs(3600);
    own_servers(|| async {
        let fixture = MySqlFixture::new().await;
        let proxy = FaultProxy::start(fixture.server().addr()).expect("a proxy");
        let replies = |replies| proxy.apply_to(Fault::Delay { requests: Duration::ZERO, replies }, Reach::Open);
        let url = url_by(&fixture, &proxy, "").replace("timeout=1s", "timeout=8s");
        // A pool of a client that is attached before it connects does not test connections that were idle for a moment.
        let ann = Arc::new(Direct::attach(Arc::new(MySqlBackend::connect_lazy(&url).expect("a URL"))));
        let bob = client(&fixture, SOON).await;
        let _held = hold(&bob, "contended").await;
        let kills = || Stored(&*fixture.server()).status("Com_kill");
        for name in ["released", "contended"] {
            let names = [name.to_owned(), format!("before {name}"), format!("after {name}")];
            let [claim, warm, next] = names.map(|name| ann.claim(&LockName::new(name).expect("a name")));
            ann.granted(&warm, SOON).await;
            ann.release(&warm, Delivery::Confirmed).await.expect("a release");
            let is_released = name == "released";
            if is_released {
                ann.granted(&claim, SOON).await;
            }
            replies(if is_released { NEVER } else { SLOW });
            let requests = proxy.stats().requests;
            let ends = tokio::spawn({
                let (ann, claim) = (ann.clone(), claim.clone());
                async move {
                    match is_released {
                        true => drop(ann.release(&claim, Delivery::Confirmed).await),
                        false => drop(ann.try_acquire(&claim, SOON).await),
                    }
                }
            });
            assert!(proxy.wait_for(SOON, |stats| stats.requests > requests).await, "{name}: nothing is sent");
            if !is_released {
                let requests = proxy.stats().requests;
                assert!(proxy.wait_for(SOON, |stats| stats.requests > requests).await, "{name}: it does not leave");
                replies(NEVER);
            }
            proxy.apply_to(Fault::HoldRequests, Reach::Open);
            let held = proxy.stats().held;
            let withdraws = tokio::spawn({
                let (ann, claim) = (ann.clone(), claim.clone());
                async move { ann.release(&claim, Delivery::InDoubt).await }
            });
            assert!(proxy.wait_for(SOON, |stats| stats.held > held).await, "{name}: no call ends the connection");
            // The replies for the task arrive.
            replies(Duration::ZERO);
            ends.await.expect("no panic");
            // The client sees the end of the connection with the `KILL`, which is still on its way.
            proxy.heal();
            drop(withdraws.await.expect("no panic"));
            let (place, before) = (ann.granted(&next, SOON).await.confirmation.place, kills());
            proxy.deliver();
            eventually("the KILL arrives", || kills() > before).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            let reply = ann.renew(RenewRequest::new(next.clone(), place, SOON)).await;
            assert!(matches!(reply, RenewReply::Renewed(_)), "{name}: the KILL has met another lease: {reply:?}");
            ann.release(&next, Delivery::Confirmed).await.expect("a release");
        }
    });
}
