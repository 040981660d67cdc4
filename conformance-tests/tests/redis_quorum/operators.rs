//! What operators ask for, while one server does not reply.

use std::time::Duration;

use leasehold_conformance::Stopwatch;
use leasehold_core::admin::CheckStatus;
use leasehold_test_servers::RedisServer;

use super::common::{eventually, hold};
use super::group::case;

const TTL: Duration = Duration::from_secs(3);

/// The first server that is asked is silent, and leaves time for the others.
#[test]
fn a_silent_server_does_not_stop_operators() {
    case(3, async |mut group| {
        let (ann, operator) = (group.client(TTL, "").await, group.client(TTL, "").await);
        let guard = hold(&ann, "seen").await;
        eventually("all servers vote for it", || group.live(&[0, 1, 2], "seen") == 3).await;
        operator.inspect("seen").await.expect("an answer");
        let connections = |server: &RedisServer| {
            let clients = server.clients().expect("CLIENT LIST works");
            let id = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
            clients.iter().map(id).collect::<std::collections::BTreeSet<_>>()
        };
        let before = [1, 2].map(|server| connections(&group.servers[server]));
        group.servers[0].pause().expect("a pause");

        let stopwatch = Stopwatch::start();
        let seen = operator.inspect("seen").await.expect("two of three reply").expect("it was used");
        assert_eq!(seen.holder().expect("it is held").token, guard.fencing_token());
        let checks = operator.examine().await.expect("two of three reply");
        let server = checks.iter().find(|check| check.about == "server").expect("a check of the server");
        assert!(matches!(server.status, CheckStatus::Error(_)), "{server:?}");
        for running in [1, 2] {
            let address = group.proxies[running].addr().to_string();
            assert!(server.found.contains(&format!("{address}: ")), "{server:?}");
            let memory = checks.iter().find(|check| check.about == "memory").expect("a check of the memory");
            assert!(memory.found.contains(&address), "{memory:?}");
        }
        let raised = operator.break_lock("seen", guard.fencing_token()).await.expect("two of three reply");
        assert!(raised.is_some_and(|raised| raised > guard.fencing_token()), "{raised:?}");
        stopwatch.within(Duration::from_secs(3), "three calls of a second");
        assert_eq!(group.live(&[1, 2], "seen"), 0, "the lease is broken");
        for (running, before) in [1, 2].into_iter().zip(before) {
            assert!(
                connections(&group.servers[running]).is_superset(&before),
                "a connection to a server that replies was closed"
            );
        }
        group.servers[0].resume().expect("a resume");
        eventually("the server has heard of it", || group.live(&[0], "seen") == 0).await;
        drop(guard);
    });
}
