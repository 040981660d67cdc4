//! The fixture of a cluster of one node.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_test_servers::{RedisServer, RedisSettings};

use super::fixture::{Access, Guarded, RedisFixture};

pub(super) type OneNode = RedisFixture<Guarded<ByNode>>;

/// By its address, or by that of the proxy, which the node does not know.
pub(super) struct ByNode;

impl Access for ByNode {
    const SCHEME: &'static str = "redis+cluster";
    /// A node that has started again refuses writes for two seconds.
    const BACK_WITHIN: Duration = Duration::from_secs(5);

    fn new(_server: SocketAddr, _proxy: SocketAddr) -> Self {
        Self
    }

    fn location(&self, addr: SocketAddr) -> String {
        format!("{addr}/")
    }

    fn settings(settings: RedisSettings) -> RedisSettings {
        settings.cluster_node()
    }

    fn begin(server: &RedisServer) {
        server.serve_all_slots().unwrap_or_else(|error| panic!("no cluster: {error}"));
    }
}
