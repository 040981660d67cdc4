//! A server and lock holders.

use std::time::Duration;

use leasehold_conformance::Record;
use leasehold_conformance::harness::{LagMonitor, LockHolder, machine_now};
use leasehold_core::backend::TtlScope;
use leasehold_test_servers::{ZooKeeperServer, ZooKeeperSettings};

pub(crate) use super::bounds::{CALL, LOSS_SLACK, MARGIN, SOON, StoreUnderTest, TTL, eventually, is_held, name};
use super::stored::Stored;

/// How late a takeover may be after the lease has ended: a session lasts two ticks of 100 ms longer and ends with a
/// tick. And a call.
pub(crate) const TAKEOVER_SLACK: Duration = Duration::from_millis(300).saturating_add(CALL);

const ROOT: &str = "/leasehold";

pub(crate) struct Environment {
    server: ZooKeeperServer,
    lag_monitor: LagMonitor,
}

impl Environment {
    pub(crate) fn new() -> Self {
        let server = ZooKeeperSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
        Self { server, lag_monitor: LagMonitor::start() }
    }

    fn stored(&self) -> Stored<'_> {
        Stored { side: self.server.side(), root: ROOT }
    }

    /// A lock holder that is in the queue and watches the node before its own.
    pub(crate) fn waiter(&self, more: &[&str]) -> LockHolder {
        let watches = || self.server.side().statistics().unwrap().get("watch_count").copied().unwrap_or_default();
        let (waiting, watched) = (self.record().waiting(), watches());
        let lock_holder = self.lock_holder(more);
        eventually("the waiter is in the queue", || self.record().waiting() == waiting + 1);
        eventually("the waiter watches the queue", || watches() > watched);
        lock_holder
    }

    /// The fenced writes that the server accepted, in order: token and text.
    pub(crate) fn accepted(&self, node: &str) -> Vec<String> {
        let mut nodes = self.server.side().tree(node).unwrap();
        nodes.retain(|written| written.path != node);
        nodes.sort_by_key(|node| node.created);
        nodes.iter().map(|node| String::from_utf8_lossy(&node.data).into_owned()).collect()
    }
}

impl StoreUnderTest for Environment {
    fn store(&self) -> String {
        let addr = self.server.addr();
        format!("zk://{addr}/?tick=100ms")
    }

    fn record(&self) -> Record {
        self.stored().record(&name())
    }

    /// The lease lasts for a ttl after the last write of the session, or after a later ping.
    fn lease_ends(&self) -> (Duration, Duration) {
        let before = machine_now();
        let left = self.record().lease().expect("a client holds the lock");
        (before + left, machine_now() + TTL)
    }

    /// The shortest ttl is a second.
    fn kill_pause(&self) -> Duration {
        Duration::from_millis(1_500)
    }

    fn ttl_scope(&self) -> TtlScope {
        TtlScope::Session
    }

    fn shortest_ttl(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn lag_monitor(&self) -> &LagMonitor {
        &self.lag_monitor
    }
}
