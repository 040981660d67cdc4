//! A server and lock holders.

use std::time::Duration;

use leasehold_conformance::Record;
use leasehold_conformance::harness::{LagMonitor, LockHolder};
use leasehold_core::backend::TtlScope;
use leasehold_test_servers::{MySqlServer, MySqlSettings, connections};

use super::STRATEGY;
pub(crate) use super::bounds::{LOSS_SLACK, MARGIN, SOON, StoreUnderTest, TTL, eventually, is_held, name};
use super::set_up::{PASSWORD, USER, set_up};
use super::stored::Stored;

/// How late a takeover may be after the lease has ended.
pub(crate) const TAKEOVER_SLACK: Duration = STRATEGY.takeover_slack;

/// What the cases need to know of a strategy of the backend.
pub(crate) struct Strategy {
    /// The end of a URL.
    pub(crate) settings: &'static str,
    pub(crate) ttl_scope: TtlScope,
    pub(crate) shortest_ttl: Duration,
    pub(crate) takeover_slack: Duration,
    /// The least number of connections of a lock holder that waits.
    pub(crate) connections_of_a_waiter: usize,
}

pub(crate) struct Environment {
    server: MySqlServer,
    lag_monitor: LagMonitor,
}

impl Environment {
    pub(crate) fn new() -> Self {
        let server = MySqlSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
        set_up(&server);
        // Lock holders write into this table.
        let table =
            "CREATE TABLE locks.written (id INT PRIMARY KEY AUTO_INCREMENT, token BIGINT UNSIGNED, text VARCHAR(100))";
        Stored(&server).query(&format!("{table}; GRANT SELECT, INSERT ON locks.written TO {USER}"));
        Self { server, lag_monitor: LagMonitor::start() }
    }

    /// A lock holder that waits. When this returns, it has all its connections, and a place if the server knows its
    /// waiters.
    pub(crate) fn waiter(&self, more: &[&str]) -> LockHolder {
        let waiting = self.record().waiting();
        let mut lock_holder = self.lock_holder(more);
        let (id, least) = (lock_holder.process().id(), STRATEGY.connections_of_a_waiter);
        eventually("the waiter is connected", || connections(id, self.server.addr()).unwrap() >= least);
        let has_place = || self.record().waiters.is_none_or(|now| now == waiting + 1);
        eventually("the waiter has a place", has_place);
        lock_holder
    }

    /// The fenced writes that the server accepted, in order: token and text.
    pub(crate) fn accepted(&self, table: &str) -> Vec<String> {
        let rows =
            Stored(&self.server).query(&format!("SELECT CONCAT(token, ' ', text) FROM locks.{table} ORDER BY id"));
        rows.iter().map(|row| String::from_utf8_lossy(row[0].as_deref().unwrap_or_default()).into_owned()).collect()
    }
}

impl StoreUnderTest for Environment {
    fn store(&self) -> String {
        let addr = self.server.addr();
        format!("mysql://locker:{PASSWORD}@{addr}/locks{}", STRATEGY.settings)
    }

    fn record(&self) -> Record {
        Stored(&self.server).record(&name())
    }

    fn lag_monitor(&self) -> &LagMonitor {
        &self.lag_monitor
    }

    fn ttl_scope(&self) -> TtlScope {
        STRATEGY.ttl_scope
    }

    fn shortest_ttl(&self) -> Duration {
        STRATEGY.shortest_ttl
    }
}
