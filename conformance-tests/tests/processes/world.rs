//! A server, a proxy in front of it, and takers.

use std::time::Duration;

use conformance_tests::harness::{Canary, FaultProxy, RedisServer, RedisSettings, Taker, machine_now};

pub(crate) use super::bounds::{LOSS_SLACK, MARGIN, SOON, TTL, eventually, look, name};
use super::bounds::{TIMEOUT, happened, start};
use super::stored::Stored;

/// How late a takeover may be after the lease has ended.
pub(crate) const TAKEOVER_SLACK: Duration = Duration::from_millis(50);

pub(crate) struct World {
    pub(crate) server: RedisServer,
    pub(crate) proxy: FaultProxy,
    canary: Canary,
}

impl World {
    pub(crate) fn new() -> Self {
        let server = RedisSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
        let proxy = FaultProxy::start(server.addr()).unwrap();
        Self { server, proxy, canary: Canary::start() }
    }

    /// A taker that reaches the server directly, with these arguments on top.
    pub(crate) fn taker(&self, more: &[&str]) -> Taker {
        start(&format!("{}/?timeout={TIMEOUT}", self.server.url()), more)
    }

    /// A taker that reaches the server through the proxy.
    pub(crate) fn taker_by_proxy(&self, more: &[&str]) -> Taker {
        start(&format!("redis://{}/?timeout={TIMEOUT}", self.proxy.addr()), more)
    }

    /// A holder, and its fencing token.
    pub(crate) fn holder(&self, more: &[&str]) -> (Taker, u64) {
        let mut taker = self.taker(more);
        let (_, token) = taker.acquired(SOON).unwrap();
        (taker, token)
    }

    /// A taker that stands in the queue.
    pub(crate) fn waiter(&self, more: &[&str]) -> Taker {
        let waiting = self.waiters();
        let taker = self.taker(more);
        eventually("the waiter stands in the queue", || self.waiters() == waiting + 1);
        taker
    }

    fn waiters(&self) -> u64 {
        self.stored().record(&name()).waiters
    }

    fn stored(&self) -> Stored<'_> {
        Stored::new(&self.server, "leasehold:")
    }

    /// Between which moments of the machine's clock the lease ends by the server's own record, unless it is renewed.
    pub(crate) fn lease_ends(&self) -> (Duration, Duration) {
        let before = machine_now();
        let left = self.stored().record(&name()).lease.expect("somebody holds the lock");
        (before + left, machine_now() + left)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.stored().record(&name()).lease.is_some()
    }

    /// Asserts that something happened in time.
    #[track_caller]
    pub(crate) fn happened(&self, what: &str, at_us: u64, earliest: Duration, latest: Duration) {
        happened(&self.canary, what, at_us, earliest, latest);
    }
}
