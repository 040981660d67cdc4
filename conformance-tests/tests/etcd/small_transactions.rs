//! A server that takes fewer operations in a transaction than the default (`--max-txn-ops`).

use std::sync::Arc;

use leasehold::etcd::EtcdBackend;
use leasehold_conformance::harness::{Fault, FaultProxy};
use leasehold_conformance::{DEADLINE, Direct, run};
use leasehold_core::admin::{Check, CheckStatus};
use leasehold_core::backend::{LockBackend as _, RenewReply, RenewRequest};
use leasehold_core::{ErrorKind, LockClient, LockName};
use leasehold_test_servers::{EtcdServer, EtcdSettings};

use super::common::{SOON, Stopwatch, eventually};

/// How many locks one client waits for or holds.
const LOCKS: u64 = 40;

/// The number of operations that a place needs while the client has a session for places.
const FEWEST: u64 = 5;

const TTL: std::time::Duration = std::time::Duration::from_secs(20);

fn server(operations: u64) -> EtcdServer {
    let settings = EtcdSettings::new().option(format!("max-txn-ops={operations}"));
    settings.start().unwrap_or_else(|error| panic!("{error}"))
}

async fn backend(addr: std::net::SocketAddr) -> EtcdBackend {
    EtcdBackend::connect(&format!("etcd://{addr}/")).await.expect("a backend")
}

async fn client(server: &EtcdServer) -> LockClient {
    LockClient::builder(backend(server.addr()).await).ttl(TTL).wait(SOON).build().expect("a client")
}

/// Otherwise every read of the queues is refused and sent again, as fast as the server replies.
#[test]
fn the_waiters_of_one_client_follow_their_queues() {
    run(DEADLINE, || async {
        let server = server(FEWEST);
        let (ann, bob) = (client(&server).await, client(&server).await);
        let (mut guards, mut waiters) = (Vec::new(), tokio::task::JoinSet::new());
        for index in 0..LOCKS {
            guards.push(super::common::hold(&ann, &format!("lock {index}")).await);
        }
        for index in 0..LOCKS {
            let lock = bob.lock(format!("lock {index}"));
            waiters.spawn(async move { lock.acquire().await.expect("the lock is granted") });
        }
        let keys = || server.side().keys("leasehold/lock").expect("keys").len() as u64;
        eventually("everybody waits", || keys() == 2 * LOCKS).await;
        let watches = || server.side().statistics().expect("statistics").watches();
        eventually("every lock is watched", || watches() == 2 * LOCKS).await;
        let stopwatch = Stopwatch::start();
        for guard in guards {
            guard.release().await.expect("a release");
        }
        let held = waiters.join_all().await;
        stopwatch.within(std::time::Duration::from_secs(2), "the waiters are told by their watches");
        let requests = server.side().statistics().expect("statistics").requests();
        // A place, an attempt to hold and a longer session for each lock, and some reads.
        assert!(requests["Txn"] < 8 * LOCKS, "{requests:?}");
        // One for each lock and client.
        assert!(requests["Watch"] <= 3 * LOCKS, "{requests:?}");
        drop(held);
    });
}

#[test]
fn renewals_read_what_no_watch_has_delivered() {
    run(DEADLINE, || async {
        let server = server(FEWEST);
        let proxy = FaultProxy::start(server.addr()).expect("a proxy");
        let ann = Direct::attach(Arc::new(backend(proxy.addr()).await));
        let mut requests = Vec::new();
        for index in 0..LOCKS {
            let claim = ann.claim(&LockName::new(format!("lock {index}")).expect("a name"));
            let grant = ann.granted(&claim, TTL).await;
            requests.push(RenewRequest::new(claim, grant.confirmation.place, TTL));
        }
        // It ends the watches.
        proxy.apply(Fault::Disconnect);
        let replies = ann.renew_all(&requests).await;
        assert!(replies.iter().all(|reply| matches!(reply, RenewReply::Renewed(_))), "{replies:?}");
    });
}

#[test]
fn doctor_names_the_limit() {
    run(DEADLINE, || async {
        let check = async |server: &EtcdServer| -> Check {
            let backend = backend(server.addr()).await;
            let checks = backend.admin().expect("it examines").examine().await.expect("checks");
            checks.into_iter().find(|check| check.about == "transactions").expect("a check of transactions")
        };
        for (operations, found) in [(128, "128 operations or more"), (100, "100 operations"), (FEWEST, "5 operations")]
        {
            let check = check(&server(operations)).await;
            assert!(check.found == found && check.status == CheckStatus::Ok, "{check:?}");
        }
        let server = server(FEWEST - 1);
        let check = check(&server).await;
        let CheckStatus::Error(hint) = &check.status else { panic!("{check:?}") };
        assert!(check.found == "4 operations" && hint.contains("--max-txn-ops"), "{check:?}");
        // The calls that need more operations name it too.
        let (ann, bob) = (client(&server).await, client(&server).await);
        let _held = ann.lock("x").acquire().await.expect("it is free, and needs three");
        let waiter = async {
            loop {
                match bob.lock("x").wait(std::time::Duration::from_secs(1)).acquire().await {
                    Err(error) if error.kind() == ErrorKind::Timeout => {}
                    outcome => return outcome,
                }
            }
        };
        let refused = tokio::time::timeout(SOON, waiter).await.expect("an end").expect_err("a place needs five");
        assert!(
            refused.kind() == ErrorKind::Unsupported && refused.to_string().contains("--max-txn-ops"),
            "{refused:?}"
        );
    });
}
