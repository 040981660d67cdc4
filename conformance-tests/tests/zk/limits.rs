//! The limits of a server for sessions.

use std::time::Duration;

use leasehold::zk::ZkBackend;
use leasehold_conformance::{DEADLINE, run};
use leasehold_core::admin::CheckStatus;
use leasehold_core::{ErrorKind, LockClient};
use leasehold_test_servers::ZooKeeperSettings;

use super::common::{Stopwatch, eventually};

/// A server never grants more than its `maxSessionTimeout`. A longer ttl is refused and not shortened. `doctor` names
/// the limit, too.
#[test]
fn a_ttl_is_granted_as_requested_or_refused_with_the_limit_of_the_server() {
    run(DEADLINE, || async {
        let server = ZooKeeperSettings::new().line("maxSessionTimeout=3000").start().expect("a server");
        let backend = ZkBackend::connect(&format!("zk://{}/?tick=100ms", server.addr())).await.expect("a backend");
        let client = LockClient::new(backend);
        // A session lasts two ticks longer than its leases.
        let longest = Duration::from_millis(2800);

        for longer in [longest + Duration::from_millis(1), Duration::from_secs(300)] {
            let error = client.lock("job").ttl(longer).acquire().await.expect_err("the server grants less");
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
            let text = error.to_string();
            assert!(text.contains("2.8s") && text.contains("maxSessionTimeout"), "{text}");
        }
        let nodes = server.side().tree("/").expect("the nodes");
        assert!(nodes.iter().all(|node| !node.path.ends_with("/job")), "something was acquired: {nodes:?}");

        let guard = client.lock("job").ttl(longest).acquire().await.expect("the longest that the server grants");
        let granted = server.side().session_timeouts().expect("the sessions");
        assert!(granted.values().any(|granted| *granted == Duration::from_millis(3000)), "{granted:?}");
        guard.release().await.expect("a release");

        let checks = client.examine().await.expect("nothing is broken");
        let limits = checks.iter().find(|check| check.about == "session limits").expect("the limits");
        assert!(limits.found.contains("2.8s"), "{limits:?}");
        // The URL names no user.
        let root = checks.iter().find(|check| check.about == "root").expect("the root");
        assert!(matches!(&root.status, CheckStatus::Warning(hint) if hint.contains("acl zk")), "{root:?}");
    });
}

/// The client keeps a lease that was released within its `min_hold`, for longer than the server would keep it alone.
#[test]
fn a_min_hold_beyond_the_limit_of_the_server_is_kept_by_its_client() {
    const MIN_HOLD: Duration = Duration::from_secs(12);
    run(DEADLINE, || async {
        let server = ZooKeeperSettings::new().line("maxSessionTimeout=6000").start().expect("a server");
        let backend = ZkBackend::connect(&format!("zk://{}/?tick=100ms", server.addr())).await.expect("a backend");
        let client = LockClient::new(backend);
        let nodes = |lock: &str| {
            let all = server.side().tree("/leasehold").expect("the nodes");
            all.iter().filter(|node| node.path.starts_with(&format!("/leasehold/{lock}/"))).count()
        };
        let lock = |name| client.lock(name).ttl(Duration::from_secs(5)).min_hold(MIN_HOLD);
        let locks = [("kept", lock("kept")), ("fixed", lock("fixed").without_renewal())];
        let begin = Stopwatch::start();
        for (_, lock) in &locks {
            lock.acquire().await.expect("it is free").release().await.expect("a release");
        }
        loop {
            let held = locks.each_ref().map(|(name, _)| nodes(name));
            let elapsed = begin.elapsed();
            if elapsed >= MIN_HOLD {
                break;
            }
            assert_eq!(held, [1, 1], "released within `min_hold`, after {elapsed:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        eventually("both are released after `min_hold`", || locks.iter().all(|(name, _)| nodes(name) == 0)).await;
    });
}
