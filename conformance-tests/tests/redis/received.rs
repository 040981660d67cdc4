//! What replicas have received.

use leasehold_test_servers::RedisServer;

use super::common::eventually;

/// Waits until the replicas have everything that the primary has acknowledged.
pub(super) async fn received(primary: &RedisServer, replicas: &[&RedisServer]) {
    // Not by `WAIT`: it counts from the last write of its own connection.
    let offset = |server: &RedisServer, field| server.info("replication", field).ok()?.parse::<u64>().ok();
    let acknowledged = offset(primary, "master_repl_offset").expect("an offset");
    let has_all = |it: &&RedisServer| offset(it, "slave_repl_offset").is_some_and(|received| received >= acknowledged);
    eventually("the replicas have everything", || replicas.iter().all(has_all)).await;
}
