//! What the worlds of the process cases have in common: the lock, its times, its lock holders, and what is in time.

use std::time::Duration;

use leasehold_conformance::Record;
use leasehold_conformance::harness::{HolderEvent, LagMonitor, LockHolder, machine_now};
use leasehold_core::LockName;

/// How long anything may take that takes a moment: only a hang is longer, whatever else the machine does.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// The ttl of these cases: short enough to wait for, long enough that no lease is lost when a busy machine stands still for two
/// seconds between two of its renewals.
pub(crate) const TTL: Duration = Duration::from_secs(4);

/// What a holder leaves unused of its ttl.
pub(crate) const MARGIN: Duration = Duration::from_millis(400);

/// How late a loss may be told after the validity has ended.
pub(crate) const LOSS_SLACK: Duration = Duration::from_millis(5);

/// The longest call of the lock holders: several fit into what is left of a lease when its renewal is due.
pub(crate) const CALL: Duration = Duration::from_millis(600);

/// The lock of these cases.
const NAME: &str = "processes/1";

pub(crate) fn name() -> LockName {
    LockName::new(NAME).unwrap()
}

/// What a lock holder of these cases is told.
pub(crate) fn arguments(url: &str) -> Vec<String> {
    let ttl = format!("{}ms", TTL.as_millis());
    ["--url", url, "--name", NAME, "--ttl", &ttl, "--wait", "120s"].map(str::to_owned).to_vec()
}

/// Starts a lock holder with these arguments on top.
pub(crate) fn start(url: &str, more: &[&str]) -> LockHolder {
    let mut arguments = arguments(url);
    arguments.extend(more.iter().map(|more| (*more).to_owned()));
    LockHolder::start(env!("CARGO_BIN_EXE_lock-holder"), &arguments).unwrap()
}

/// A store with the lock of these cases in it.
pub(crate) trait StoreUnderTest {
    /// Where the lock holders find it, but for what they are told about [`CALL`].
    fn store(&self) -> String;

    /// The store's own record of the lock.
    fn record(&self) -> Record;

    /// Measures how late the machine is.
    fn lag_monitor(&self) -> &LagMonitor;

    /// The URL of the lock holders.
    fn url(&self) -> String {
        with_call(&self.store())
    }

    /// A lock holder with these arguments on top.
    fn lock_holder(&self, more: &[&str]) -> LockHolder {
        start(&self.url(), more)
    }

    /// A holder, and its fencing token.
    fn holder(&self, more: &[&str]) -> (LockHolder, u64) {
        let mut lock_holder = self.lock_holder(more);
        let (_, token) = lock_holder.acquired(SOON).unwrap();
        (lock_holder, token)
    }

    /// Between which moments of the machine's clock the lease ends by the store's own record, unless it is renewed.
    #[track_caller]
    fn lease_ends(&self) -> (Duration, Duration) {
        let before = machine_now();
        let left = self.record().lease().expect("somebody holds the lock");
        (before + left, machine_now() + left)
    }

    fn is_held(&self) -> bool {
        self.record().lease().is_some()
    }

    /// Asserts that something happened in time: not before the first moment, not later than the second and what the machine
    /// was late.
    #[track_caller]
    fn happened(&self, what: &str, at_us: u64, earliest: Duration, latest: Duration) {
        let at = Duration::from_micros(at_us);
        assert!(at >= earliest, "{what} {:?} early", earliest.saturating_sub(at));
        let (late, allowance) = (at.saturating_sub(latest), self.lag_monitor().allowance());
        assert!(late <= allowance, "{what} {late:?} late, and what the machine was late allows {allowance:?}");
    }
}

/// A URL of a store whose calls take [`CALL`] at most.
pub(crate) fn with_call(store: &str) -> String {
    format!("{store}?timeout={}ms", CALL.as_millis())
}

/// Waits until it is so.
#[track_caller]
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = std::time::Instant::now() + SOON;
    while !is_so() {
        assert!(std::time::Instant::now() < until, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits for the reply to `check`: whether the lock is held.
pub(crate) fn is_held(lock_holder: &mut LockHolder) -> bool {
    lock_holder
        .next(SOON, |line| match line.event {
            HolderEvent::Checked { held, .. } => Some(held),
            _ => None,
        })
        .unwrap()
}
