//! A server and lock holders.

use std::time::Duration;

use leasehold_conformance::Record;
use leasehold_conformance::harness::{LagMonitor, LockHolder};
use leasehold_test_servers::{RedisServer, RedisSettings, Reply};

pub(crate) use super::bounds::{LOSS_SLACK, MARGIN, SOON, StoreUnderTest, TTL, eventually, is_held, name};
use super::stored::Stored;

/// How late a takeover may be after the lease has ended.
pub(crate) const TAKEOVER_SLACK: Duration = Duration::from_millis(50);

pub(crate) struct Environment {
    server: RedisServer,
    lag_monitor: LagMonitor,
}

impl Environment {
    pub(crate) fn new() -> Self {
        let server = RedisSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
        Self { server, lag_monitor: LagMonitor::start() }
    }

    /// The writes that Redis accepted, in order: token and text.
    pub(crate) fn accepted(&self, key: &str) -> Vec<String> {
        self.server.command(&["LRANGE", key, "0", "-1"]).unwrap().items().iter().map(Reply::text).collect()
    }

    /// A lock holder that is in the queue and receives notifications. Every lock holder has one connection for its
    /// calls and one on which it receives notifications of grants and of ttls in use. Each connection begins with a
    /// script.
    pub(crate) fn waiter(&self, more: &[&str]) -> LockHolder {
        let waiting = self.record().waiting();
        let lock_holder = self.lock_holder(more);
        eventually("the waiter is in the queue", || self.record().waiting() == waiting + 1);
        eventually("every lock holder receives notifications", || {
            let lines = self.server.clients().unwrap();
            let listening = lines.iter().filter(|line| line.contains(" sub=2 ")).count();
            listening * 2 == lines.len() && lines.iter().all(|line| line.contains(" cmd=eval"))
        });
        lock_holder
    }
}

impl StoreUnderTest for Environment {
    fn store(&self) -> String {
        format!("{}/", self.server.url())
    }

    fn record(&self) -> Record {
        Stored::new(&self.server, "leasehold:").record(&name())
    }

    fn lag_monitor(&self) -> &LagMonitor {
        &self.lag_monitor
    }
}
