//! A server, a proxy in front of it, and takers.

use std::time::Duration;

use leasehold_conformance::Record;
use leasehold_conformance::harness::{Canary, FaultProxy, RedisServer, RedisSettings, Taker};

pub(crate) use super::bounds::{LOSS_SLACK, MARGIN, SOON, Scene, TTL, eventually, look, name};
use super::bounds::{start, with_call};
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

    /// A taker that reaches the server through the proxy.
    pub(crate) fn taker_by_proxy(&self, more: &[&str]) -> Taker {
        start(&with_call(&format!("redis://{}/", self.proxy.addr())), more)
    }

    /// A taker that stands in the queue, and hears that it is its turn. Every taker has a line for its calls and one on which it
    /// hears of grants and of ttls in use; each begins with a script.
    pub(crate) fn waiter(&self, more: &[&str]) -> Taker {
        let waiting = self.record().waiting();
        let taker = self.taker(more);
        eventually("the waiter stands in the queue", || self.record().waiting() == waiting + 1);
        eventually("every taker hears of grants", || {
            let lines = self.server.clients().unwrap();
            let listening = lines.iter().filter(|line| line.contains(" sub=2 ")).count();
            listening * 2 == lines.len() && lines.iter().all(|line| line.contains(" cmd=eval"))
        });
        taker
    }
}

impl Scene for World {
    fn store(&self) -> String {
        format!("{}/", self.server.url())
    }

    fn record(&self) -> Record {
        Stored::new(&self.server, "leasehold:").record(&name())
    }

    fn canary(&self) -> &Canary {
        &self.canary
    }
}
