//! Three primaries with a replica each.

use std::sync::Arc;
use std::time::Duration;

use leasehold::redis::RedisBackend;
use leasehold_conformance::{Direct, Record};
use leasehold_core::{LockClient, LockName};
use leasehold_test_servers::{RedisCluster, RedisServer, RedisSettings, Reply};

use super::common::{SOON, eventually};
use super::received::received;
use super::stored::Stored;

/// The default.
pub(super) const PREFIX: &str = "leasehold:";

pub(super) struct Deployment {
    pub(super) cluster: RedisCluster,
}

/// Runs a case with three primaries.
pub(super) fn case<C, F>(case: C)
where
    C: FnOnce(Deployment) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    leasehold_conformance::run(leasehold_conformance::DEADLINE, move || async move {
        let cluster = RedisCluster::start(3, &settings()).unwrap_or_else(|error| panic!("{error}"));
        case(Deployment { cluster }).await;
    });
}

/// Of each node.
pub(super) fn settings() -> RedisSettings {
    let settings = RedisSettings::new().persistent().line("repl-diskless-sync-delay 0");
    settings.line("cluster-replica-validity-factor 0").line("cluster-require-full-coverage no")
}

pub(super) fn run(server: &RedisServer, command: &[&str]) -> Reply {
    server.command(command).unwrap_or_else(|error| panic!("{} fails: {error}", command[0]))
}

pub(super) fn name(text: &str) -> LockName {
    LockName::new(text).expect("a name")
}

impl Deployment {
    /// The URL of the first node.
    pub(super) fn url(&self, more: &str) -> String {
        format!("redis+cluster://{}/?timeout=1s{more}", self.cluster.nodes[0].addr())
    }

    pub(super) async fn client(&self, ttl: Duration) -> LockClient {
        let backend = RedisBackend::connect(&self.url("")).await.unwrap_or_else(|error| panic!("{error:?}"));
        LockClient::builder(backend).wait(SOON).ttl(ttl).build().expect("a client")
    }

    pub(super) async fn direct(&self) -> Direct {
        let backend = RedisBackend::connect(&self.url("")).await.unwrap_or_else(|error| panic!("{error:?}"));
        Direct::attach(Arc::new(backend))
    }

    /// The key of the record of a lock, its slot and the number of the node that serves it.
    pub(super) fn place(&self, lock: &str) -> (String, u16, usize) {
        let key = format!("{PREFIX}{{{lock}}}");
        let slot = self.cluster.slot(&key).unwrap_or_else(|error| panic!("{error}"));
        (key, slot, self.cluster.owner(slot))
    }

    /// The replica of a primary has what that has acknowledged.
    pub(super) async fn is_replicated(&self, primary: usize) {
        let nodes = &self.cluster.nodes;
        received(&nodes[primary], &[&nodes[primary + 3]]).await;
    }

    /// The replica of a primary gets nothing from it from now on. It has what the primary acknowledged before.
    pub(super) async fn cut_off(&self, primary: usize) {
        self.is_replicated(primary).await;
        let nodes = &self.cluster.nodes;
        // The primary has no password, and so refuses every one.
        run(&nodes[primary + 3], &["CONFIG", "SET", "masterauth", "wrong"]);
        run(&nodes[primary], &["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// A primary dies. Returns when the others have promoted its replica, with the number of that.
    pub(super) async fn fail(&mut self, primary: usize) -> usize {
        self.cluster.nodes[primary].kill().expect("it runs");
        let replica = primary + 3;
        let is_running = |node: &&RedisServer| node.is_running();
        // A busy machine may stop a node for longer: only now.
        for node in self.cluster.nodes.iter().filter(is_running) {
            run(node, &["CONFIG", "SET", "cluster-node-timeout", "500"]);
        }
        let is_promoted = || self.cluster.nodes[replica].info("replication", "role").is_ok_and(|role| role == "master");
        eventually("the replica is promoted", is_promoted).await;
        for node in self.cluster.nodes.iter().filter(is_running) {
            run(node, &["CONFIG", "SET", "cluster-node-timeout", "60000"]);
        }
        replica
    }

    /// A primary and its replica die. Returns when the others know it.
    pub(super) async fn kill_all_of(&mut self, primary: usize) {
        for node in [primary, primary + 3] {
            self.cluster.nodes[node].kill().expect("it runs");
        }
        let running = || self.cluster.nodes.iter().filter(|node| node.is_running());
        running().for_each(|node| drop(run(node, &["CONFIG", "SET", "cluster-node-timeout", "500"])));
        let is_known = |node: &RedisServer| run(node, &["CLUSTER", "NODES"]).text().matches("fail ").count() > 0;
        eventually("the others know that it has failed", || running().all(is_known)).await;
        running().for_each(|node| drop(run(node, &["CONFIG", "SET", "cluster-node-timeout", "60000"])));
    }

    /// What a node has of a lock.
    pub(super) fn record(node: &RedisServer, lock: &str) -> Record {
        Stored::new(node, PREFIX).record(&name(lock))
    }
}
