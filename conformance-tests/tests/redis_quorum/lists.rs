//! The servers that a URL names.

use std::time::Duration;

use leasehold::redis::QuorumBackend;
use leasehold_conformance::Direct;
use leasehold_conformance::harness::Fault;
use leasehold_core::ErrorKind;
use leasehold_core::backend::Delivery;
use leasehold_test_servers::{RedisServer, RedisSettings};

use super::common::{eventually, hold};
use super::group::{Group, case, command, name, url};

const TTL: Duration = Duration::from_secs(3);

async fn refused(hosts: &[String], kind: ErrorKind, hint: &str) {
    // A connect does not wait long for a server that is slower than the majority.
    for _ in 0..5 {
        if let Err(error) = QuorumBackend::connect(&url(hosts, "")).await {
            assert!(error.kind() == kind && error.to_string().contains(hint), "{error:?}");
            return;
        }
    }
    panic!("it is not refused: {hint}");
}

/// Clients that name the servers differently would each have a majority of their own.
#[test]
fn other_lists_of_the_servers_are_refused() {
    case(3, async |group| {
        let first = group.client(TTL, "").await;
        hold(&first, "x").await.release().await.expect("a release");
        let hosts = group.hosts();
        let [one, two, three] = &hosts[..] else { panic!("three hosts: {hosts:?}") };
        let list = |hosts: &[&String]| hosts.iter().map(|host| (*host).clone()).collect::<Vec<_>>();
        let twice = one.replace("127.0.0.1", "localhost");
        refused(&list(&[two, one, three]), ErrorKind::InvalidInput, "must name the servers in the same order").await;
        refused(&list(&[one, two, three, &twice]), ErrorKind::InvalidInput, "one of 3").await;
        // It depends on which of the two connections to the same server is first.
        let error = QuorumBackend::connect(&url(&list(&[one, two, &twice]), "")).await.expect_err("one server twice");
        let is_named = ["are the same server", "in the same order"].iter().any(|hint| error.to_string().contains(hint));
        assert!(error.kind() == ErrorKind::InvalidInput && is_named, "{error}");
        let other = QuorumBackend::connect(&group.url("&longest_ttl=24s")).await;
        assert!(other.expect_err("another ttl").to_string().contains("longest_ttl"));
    });
}

/// The server of another list is not used. It does not keep the client from the others, also when they connect again.
#[test]
fn a_server_of_another_list_does_not_stop_the_others() {
    case(3, async |group| {
        let stranger = Group::start(1);
        let _first = group.direct("").await;
        // A state of another number.
        let state = group.servers[0].command(&["DUMP", &format!("{}quorum", super::fixture::PREFIX)]);
        let leasehold_test_servers::Reply::Bytes(state) = state.expect("DUMP works") else { panic!("a state") };
        let key = format!("{}quorum", super::fixture::PREFIX);
        stranger.servers[0].command(&[b"RESTORE", key.as_bytes(), b"0", &state]).expect("RESTORE works");
        let mut hosts = group.hosts();
        hosts[2] = stranger.hosts()[0].clone();
        let ann = Direct::attach(std::sync::Arc::new(QuorumBackend::connect_lazy(&url(&hosts, "")).expect("a URL")));
        let claim = ann.claim(&name("x"));
        ann.granted(&claim, TTL).await;
        ann.release(&claim, Delivery::Confirmed).await.expect("a release");
        for proxy in &group.proxies[..2] {
            proxy.apply(Fault::Disconnect);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        ann.granted(&ann.claim(&name("y")), TTL).await;
        refused(&hosts, ErrorKind::InvalidInput, "number 1 of 3").await;
    });
}

/// A replica votes as its primary does, and a Cluster's servers know each other.
#[test]
fn replicas_and_clusters_are_refused() {
    case(3, async |group| {
        let start = |line: &str| RedisSettings::new().line(line).start().unwrap_or_else(|error| panic!("{error}"));
        let cluster = start("cluster-enabled yes");
        let port = group.servers[0].addr().port();
        let replica = start(&format!("replicaof 127.0.0.1 {port}"));
        let hosts = group.hosts();
        for (other, hints) in [
            (&replica, ["is a replica", "name independent primaries"]),
            (&cluster, ["belongs to a Redis Cluster", "without `cluster-enabled`"]),
        ] {
            let other: &RedisServer = other;
            let hosts = [hosts[1].clone(), hosts[2].clone(), other.addr().to_string()];
            for hint in hints {
                refused(&hosts, ErrorKind::Unsupported, hint).await;
            }
        }
        // What was refused has settled nothing.
        assert!(group.state(1).is_none() && group.state(2).is_none());
        command(&replica, &["REPLICAOF", "NO", "ONE"]);
    });
}

/// Three of four decide.
#[test]
fn an_even_number_of_servers_works() {
    case(4, async |mut group| {
        let (ann, bob) = (group.client(TTL, "").await, group.direct("").await);
        let first = hold(&ann, "even").await;
        let token = first.fencing_token();
        first.release().await.expect("a release");
        group.servers[0].kill().expect("a kill");
        let second = hold(&ann, "even").await;
        assert!(second.fencing_token() > token);
        eventually("three vote", || group.live(&[1, 2, 3], "even") == 3).await;
        bob.not_granted(&bob.claim(&name("even")), TTL).await;
        group.servers[1].kill().expect("a kill");
        let error = bob.acquire(&bob.claim(&name("free")), TTL).await.expect_err("two of four");
        assert!(error.to_string().contains("3 of 4 servers are needed"), "{error}");
        assert_eq!(group.live(&[2, 3], "free"), 0, "what was given was withdrawn");
    });
}
