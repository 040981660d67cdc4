//! Sentinels that fail or lie. A majority decides; without one no lease is believed for long.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::redis::RedisBackend;
use leasehold_conformance::harness::Fault;
use leasehold_core::ErrorKind;

use super::common::{Stopwatch, eventually, hold};
use super::deployment::{Deployment, NAME, case, client, run};
use super::liar::Liar;

const TTL: Duration = Duration::from_secs(3);

/// A client of these Sentinels locks on this server.
async fn locks_on(deployment: &Deployment, sentinels: &[SocketAddr], server: usize, what: &str) {
    let client = client(&deployment.url_of(sentinels, "timeout=1s"), TTL).await;
    let guard = hold(&client, what).await;
    assert!(!deployment.left(server, what).is_zero(), "{what}: another server has the lease");
    tokio::time::sleep(TTL / 2).await;
    assert!(guard.is_held(), "{what}: a lease is renewed");
    guard.release().await.expect("a release");
}

#[test]
fn a_majority_of_the_sentinels_decides() {
    case(1, async |mut deployment| {
        let all = deployment.addrs();
        let old = deployment.servers[0].addr();
        // It names a replica, which would be refused, and then the first primary for ever.
        let lies = Liar::start(deployment.servers[1].addr(), NAME);
        locks_on(&deployment, &[all[0], all[1], lies.addr()], 0, "one lies").await;
        // Nothing listens there.
        let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
        locks_on(&deployment, &[nobody, all[1], all[2]], 0, "one is dead").await;
        // No request waits for it, whether it was silent before the client came or not.
        let connected = client(&deployment.url_of(&all, "timeout=8s"), TTL).await;
        hold(&connected, "before").await.release().await.expect("a release");
        deployment.sentinels[2].pause().expect("it runs");
        let newcomer = client(&deployment.url_of(&all, "timeout=8s"), TTL).await;
        let stopwatch = Stopwatch::start();
        for client in [&connected, &newcomer] {
            hold(client, "one is silent").await.release().await.expect("a release");
        }
        stopwatch.within(Duration::from_secs(1), "two locks without the silent one");
        locks_on(&deployment, &all, 0, "one is silent").await;
        deployment.sentinels[2].resume().expect("it is paused");

        // In a minority partition, a Sentinel does not learn of the failover. The former primary says that it is one.
        let behind = Liar::start(old, NAME);
        deployment.servers[0].pause().expect("it runs");
        assert_eq!(deployment.switched().await, 1);
        // Until then, the one that has not heard of it makes a majority with the one that is behind.
        eventually("all Sentinels know", || deployment.named_by(3) == Some(1)).await;
        deployment.servers[0].resume().expect("it is paused");
        locks_on(&deployment, &[behind.addr(), all[1], all[2]], 1, "one is behind").await;

        // Two that disagree are no majority of three.
        let url = deployment.url_of(&[behind.addr(), nobody, all[0]], "timeout=1s");
        let error = RedisBackend::connect(&url).await.expect_err("no majority");
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{text}");
        assert!(text.contains("no majority of the 3 Sentinels names a primary for `mymaster`"), "{text}");
        assert!(text.contains(&format!("{}: names {old}", behind.addr())), "{text}");
        assert!(text.contains(&nobody.to_string()) && text.contains("refused"), "{text}");
    });
}

/// The server must say that it is a primary, whatever the Sentinels say.
#[test]
fn a_replica_is_not_used() {
    case(1, async |deployment| {
        let lies = Liar::start(deployment.servers[1].addr(), NAME);
        let url = deployment.url_of(&[lies.addr()], "timeout=1s");
        let replica = format!("{}, which the Sentinels name, is a replica", deployment.servers[1].addr());
        let error = RedisBackend::connect(&url).await.expect_err("a replica");
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains(&replica), "{error}");

        // A server that becomes a replica while a client is connected. Without its primary, it may refuse to read.
        let server = &deployment.servers[1];
        let primary = deployment.servers[0].addr().port().to_string();
        for (reads, port, why, afterwards) in [
            ("yes", &*primary, "read-only replica", &*replica),
            ("no", "1", "has lost its primary", "has lost its primary"),
        ] {
            run(server, &["REPLICAOF", "NO", "ONE"]);
            // Nobody knows it, so it grants locks at once.
            run(server, &["FLUSHALL"]);
            let client = client(&url, TTL).await;
            hold(&client, "x").await.release().await.expect("a release");
            run(server, &["CONFIG", "SET", "replica-serve-stale-data", reads]);
            run(server, &["REPLICAOF", "127.0.0.1", port]);
            let lock = client.lock("x");
            let error = lock.try_acquire().await.expect_err("a replica");
            assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains(why), "{error:?}");
            // The connection that was refused. The keeper's has subscriptions, and the replica's own is to its primary.
            let is_closed = || server.clients().is_ok_and(|it| !it.iter().any(|it| it.contains(" flags=N ")));
            eventually("the connection is closed", is_closed).await;
            let error = lock.try_acquire().await.expect_err("a replica");
            assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains(afterwards), "{error:?}");
            run(server, &["CONFIG", "SET", "replica-serve-stale-data", "yes"]);
        }
    });
}

/// Without the Sentinels, a client cannot know whether the server is still the primary.
#[test]
fn leases_end_while_all_sentinels_are_away() {
    case(0, async |deployment| {
        let client = deployment.client_by_paths(TTL, "timeout=1s").await;
        let guard = hold(&client, "held").await;
        tokio::time::sleep(TTL).await;
        assert!(guard.is_held(), "it is renewed");
        let stopwatch = Stopwatch::start();
        for path in &deployment.paths {
            path.apply(Fault::Refuse);
            path.apply(Fault::Disconnect);
        }
        let mut last = Duration::ZERO;
        while guard.is_held() {
            last = deployment.left(0, "held");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // The last confirmation that counts was sent at most a third of the ttl after the last answer.
        stopwatch.within(TTL + TTL / 3, "the lease is lost");
        // The margin is a tenth of the ttl, and renewals are a third of it apart.
        stopwatch.not_before(TTL / 2, "the lease is lost early");
        assert!(last > TTL / 4, "the server still has the lease, for {last:?}");

        let refused = client.lock("other").try_acquire().await.expect_err("no Sentinel says who is the primary");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused:?}");
        for path in &deployment.paths {
            assert!(refused.to_string().contains(&path.addr().to_string()), "{refused}");
        }
        deployment.paths.iter().for_each(leasehold_conformance::harness::FaultProxy::heal);
        let stopwatch = Stopwatch::start();
        hold(&client, "other").await.release().await.expect("a release");
        stopwatch.within(Duration::from_secs(2), "the client works again");
        eventually("the lost lease is given up", || deployment.left(0, "held").is_zero()).await;
    });
}
