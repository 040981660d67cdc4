//! Connections that the path forgets.

use std::time::Duration;

use leasehold_conformance::harness::{Fault, FaultProxy, Reach};
use leasehold_conformance::{DEADLINE, run};
use leasehold_test_servers::ZooKeeperSettings;

use super::common::{SOON, Stopwatch};

/// Neither the renewals of such a lease nor the pings of the client crate notice it as soon.
const TTL: Duration = Duration::from_secs(120);

/// A link reads twice in a tick of two seconds, and its server may be silent for two more. A busy machine takes longer.
const NOTICED: Duration = Duration::from_secs(15);

/// The default bound of a call, and the work around it.
const BOUND: Duration = Duration::from_millis(1300);

/// A link is never idle, so no gateway forgets it for that. If it is forgotten nevertheless, as by a gateway that
/// restarts, the client notices it without a call, and continues its session on another link.
#[test]
fn connections_that_the_path_forgot_are_replaced_before_the_next_call() {
    run(DEADLINE, || async {
        let server = ZooKeeperSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
        let proxy = FaultProxy::start(server.addr()).expect("a proxy");
        let client = leasehold::connect(&format!("zk://{}", proxy.addr())).await.expect("no fault");
        let guard = client.lock("held").ttl(TTL).acquire().await.expect("it is free");
        let lock = client.lock("x").ttl(TTL);
        // The node ends with its session.
        let node = || {
            let nodes = server.side().tree("/leasehold").expect("the nodes");
            nodes.into_iter().map(|node| node.path).find(|path| path.starts_with("/leasehold/held/"))
        };
        let own = node();
        assert!(own.is_some(), "it has a node");
        for _ in 0..2 {
            for _ in 0..3 {
                let before = proxy.stats().requests;
                assert!(proxy.wait_for(NOTICED, |now| now.requests > before).await, "the link is idle");
            }
            let (accepted, passed) = (proxy.stats().accepted, proxy.stats().replies);
            proxy.apply_to(Fault::DropTraffic, Reach::Open);
            let another = proxy.wait_for(NOTICED, |now| now.accepted > accepted && now.replies > passed).await;
            assert!(another, "the client does not notice that its link is silent");
            let stopwatch = Stopwatch::start();
            let other = lock.try_acquire().await.expect("another link").expect("it is free");
            other.release().await.expect("a release");
            stopwatch.within(BOUND * 2, "the next calls");
        }
        assert_eq!(node(), own, "the session was not continued");
        assert!(guard.is_held());
        tokio::time::timeout(SOON, guard.release()).await.expect("in time").expect("a release");
    });
}
