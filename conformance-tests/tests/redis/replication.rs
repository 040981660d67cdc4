//! Makes servers replicas.

use leasehold_test_servers::RedisServer;

use super::common::eventually;

/// Makes a server a replica, which has all data when this returns.
pub(super) async fn replicates(replica: &RedisServer, port: u16) {
    let follow = ["REPLICAOF", "127.0.0.1", &port.to_string()];
    replica.command(&follow).unwrap_or_else(|error| panic!("REPLICAOF fails: {error}"));
    let is_linked = || replica.info("replication", "master_link_status").is_ok_and(|status| status == "up");
    eventually("a replica has the data", is_linked).await;
}
