//! Refusals that waiting cannot cure.

use leasehold::ErrorKind;
use leasehold_conformance::harness::FaultProxy;
use leasehold_conformance::{DEADLINE, run};
use leasehold_test_servers::{ZooKeeperLife, ZooKeeperServer, ZooKeeperSettings};

use super::refused_later::a_refusal_ends_each_wait;

fn start(settings: ZooKeeperSettings, user: &str) -> ZooKeeperServer {
    let server = settings.start().unwrap_or_else(|error| panic!("{error}"));
    server.side().create("/leasehold", "", ZooKeeperLife::Persistent).expect("the root");
    server.side().permit("/leasehold", user, "pass-word").expect("a user");
    server
}

#[test]
fn a_refusal_that_waiting_cannot_cure_ends_a_wait_after_a_reconnect() {
    run(DEADLINE, || async {
        let server = start(ZooKeeperSettings::new(), "locker");
        let queue = || {
            let nodes = server.side().tree("/leasehold").expect("the nodes");
            nodes.iter().filter(|node| node.path.starts_with("/leasehold/job/")).count()
        };
        for (other, kind, hint) in [
            (start(ZooKeeperSettings::new(), "other"), ErrorKind::Auth, "leasehold acl"),
            // A session that is too short for the ttl.
            (
                start(ZooKeeperSettings::new().line("maxSessionTimeout=3000"), "locker"),
                ErrorKind::InvalidInput,
                "maxSessionTimeout",
            ),
        ] {
            let proxy = FaultProxy::start(server.addr()).expect("a proxy");
            let connect = async |addr| {
                let url = format!("zk://locker:pass-word@{addr}/?tick=100ms");
                leasehold::connect(&url).await.expect("it serves the user")
            };
            let (ann, bob) = (connect(server.addr()).await, connect(proxy.addr()).await);
            a_refusal_ends_each_wait((&ann, &bob), || queue() == 2, (&proxy, other.addr()), (kind, hint)).await;
        }
    });
}
