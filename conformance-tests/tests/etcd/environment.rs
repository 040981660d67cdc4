//! A server and lock holders.

use std::time::Duration;

use leasehold_conformance::Record;
use leasehold_conformance::harness::{LagMonitor, LockHolder, machine_now};
use leasehold_core::backend::TtlScope;
use leasehold_test_servers::{EtcdServer, EtcdSettings};

pub(crate) use super::bounds::{CALL, LOSS_SLACK, MARGIN, SOON, StoreUnderTest, TTL, eventually, is_held, name};
use super::stored::Stored;

/// How late a takeover may be after the lease has ended: the server looks for ended leases twice a second. And a call.
pub(crate) const TAKEOVER_SLACK: Duration = Duration::from_millis(600).saturating_add(CALL);

const PREFIX: &str = "leasehold/";

pub(crate) struct Environment {
    server: EtcdServer,
    lag_monitor: LagMonitor,
}

impl Environment {
    pub(crate) fn new() -> Self {
        let server = EtcdSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
        Self { server, lag_monitor: LagMonitor::start() }
    }

    fn stored(&self) -> Stored<'_> {
        Stored { side: self.server.side(), prefix: PREFIX }
    }

    /// A lock holder that is in the queue and watches it.
    pub(crate) fn waiter(&self, more: &[&str]) -> LockHolder {
        let watches = || self.server.side().statistics().unwrap().watches();
        let (waiting, watched) = (self.record().waiting(), watches());
        let lock_holder = self.lock_holder(more);
        eventually("the waiter is in the queue", || self.record().waiting() == waiting + 1);
        eventually("the waiter watches the queue", || watches() > watched);
        lock_holder
    }

    /// The fenced writes that the server accepted, in order: token and text.
    pub(crate) fn accepted(&self, prefix: &str) -> Vec<String> {
        let mut keys = self.server.side().keys(format!("{prefix}/")).unwrap();
        keys.sort_by_key(|key| key.create_revision);
        keys.iter().map(|key| String::from_utf8_lossy(&key.value).into_owned()).collect()
    }
}

impl StoreUnderTest for Environment {
    fn store(&self) -> String {
        let addr = self.server.addr();
        format!("etcd://{addr}/")
    }

    fn record(&self) -> Record {
        self.stored().record(&name())
    }

    /// The server counts in whole seconds, so this waits until the number falls, or until the lease has ended in its
    /// last second.
    fn lease_ends(&self) -> (Duration, Duration) {
        let lease = self.stored().queue(&name()).first().expect("a client holds the lock").lease;
        let left = || self.server.side().lease(lease).unwrap().map(|lease| lease.left);
        let until = machine_now() + SOON;
        let mut before = (machine_now(), left().expect("the lease has not ended yet"));
        loop {
            std::thread::sleep(Duration::from_millis(2));
            let at = machine_now();
            assert!(at < until, "not within {SOON:?}: less is left of the lease");
            match left() {
                Some(left) if left >= before.1 => before = (at, left),
                _ => return (before.0 + before.1, machine_now() + before.1),
            }
        }
    }

    /// The shortest ttl is a second.
    fn kill_pause(&self) -> Duration {
        Duration::from_millis(2_500)
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
