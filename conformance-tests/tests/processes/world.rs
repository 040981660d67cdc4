//! A server, a proxy in front of it, and takers.

use std::time::Duration;

use conformance_tests::harness::{Canary, FaultProxy, RedisServer, RedisSettings, Taker, TakerEvent, machine_now};
use lock_core::LockName;

use super::stored::Stored;

/// How long something may take that is to happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The ttl of these cases: short enough to wait for, long enough that a machine with two cores and other work does not
/// lose a lease that is renewed three times in it.
pub(crate) const TTL: Duration = Duration::from_millis(1_500);

/// What a holder leaves unused of its ttl.
pub(crate) const MARGIN: Duration = Duration::from_millis(150);

/// How late a takeover may be after the lease has ended, and a loss after the validity has.
pub(crate) const TAKEOVER_SLACK: Duration = Duration::from_millis(50);
pub(crate) const LOSS_SLACK: Duration = Duration::from_millis(5);

/// The longest call of the takers.
const TIMEOUT: &str = "400ms";

/// The lock of these cases.
pub(crate) const NAME: &str = "processes/1";

/// How many processes and threads have to be woken one after the other, at most, for a waiter to hold, or a holder to say
/// that it is lost: its keeper, the server, its keeper again, its main task.
const HOPS: u32 = 4;

/// Timers count in milliseconds and round up.
const TICK: Duration = Duration::from_millis(2);

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

    /// How late the machine itself may have been, so far in this case.
    pub(crate) fn lag(&self) -> Duration {
        TICK + self.canary.lag() * HOPS
    }

    /// Asserts that something happened in time: not before the first moment, not later than the second and what the machine
    /// was late.
    #[track_caller]
    pub(crate) fn happened(&self, what: &str, at_us: u64, earliest: Duration, latest: Duration) {
        let at = Duration::from_micros(at_us);
        assert!(at >= earliest, "{what} {:?} early", earliest.saturating_sub(at));
        let lag = self.lag();
        let late = at.saturating_sub(latest);
        assert!(late <= lag, "{what} {late:?} late, with a lag of the machine of {lag:?}");
    }
}

pub(crate) fn name() -> LockName {
    LockName::new(NAME).unwrap()
}

fn start(url: &str, more: &[&str]) -> Taker {
    let ttl = format!("{}ms", TTL.as_millis());
    let mut arguments = vec!["--url", url, "--name", NAME, "--ttl", &ttl, "--wait", "60s"];
    arguments.extend(more);
    Taker::start(env!("CARGO_BIN_EXE_taker"), &arguments).unwrap()
}

/// Waits until it is so.
#[track_caller]
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = std::time::Instant::now() + SOON;
    while !is_so() {
        assert!(std::time::Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits for the answer to `look`: whether the lock is held.
pub(crate) fn look(taker: &mut Taker) -> bool {
    taker
        .next(SOON, |line| match line.event {
            TakerEvent::Look { held, .. } => Some(held),
            _ => None,
        })
        .unwrap()
}
