//! Shared parts of the environments of the process cases: the lock, its times, its lock holders, and the check of
//! times.

use std::time::Duration;

use leasehold_conformance::Record;
use leasehold_conformance::harness::{HolderEvent, LagMonitor, LockHolder, machine_now};
use leasehold_core::LockName;
use leasehold_core::backend::TtlScope;

/// The time limit of short operations. Only a hang takes longer, even on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// The ttl of these cases: short enough to wait for, long enough that no lease is lost if a busy machine pauses for two
/// seconds between two renewals.
pub(crate) const TTL: Duration = Duration::from_secs(4);

/// The part of the ttl that a holder leaves unused.
pub(crate) const MARGIN: Duration = Duration::from_millis(400);

/// The latest report of a loss after the validity has ended.
pub(crate) const LOSS_SLACK: Duration = Duration::from_millis(5);

/// The bound of a call of the lock holders: several calls fit into the rest of a lease when its renewal is due.
pub(crate) const CALL: Duration = Duration::from_millis(600);

/// The lock of these cases.
const NAME: &str = "processes/1";

pub(crate) fn name() -> LockName {
    LockName::new(NAME).unwrap()
}

/// The arguments of a lock holder of these cases.
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

/// A store that has the lock of these cases.
pub(crate) trait StoreUnderTest {
    /// The URL of the store, without the setting for [`CALL`].
    fn store(&self) -> String;

    /// The store's own record of the lock.
    fn record(&self) -> Record;

    /// Measures the lag of the machine.
    fn lag_monitor(&self) -> &LagMonitor;

    /// What a lease ends with: its own ttl, the session that it shares, or the connection that keeps it.
    fn ttl_scope(&self) -> TtlScope {
        TtlScope::Lease
    }

    /// The ttl of cases that do not wait for the end of a lease.
    fn shortest_ttl(&self) -> Duration {
        Duration::from_millis(400)
    }

    /// The pause between two kills: in it, what a killed process has left at the store ends.
    fn kill_pause(&self) -> Duration {
        Duration::from_millis(700)
    }

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

    /// The earliest and the latest end of the lease by the store's own record, on the machine's clock, unless it is
    /// renewed.
    #[track_caller]
    fn lease_ends(&self) -> (Duration, Duration) {
        let before = machine_now();
        let left = self.record().lease().expect("a client holds the lock");
        (before + left, machine_now() + left)
    }

    /// How long a lease or a place outlives its process at most: for its ttl, or not at all if it ends with its
    /// connection.
    fn outlives_its_process(&self) -> Duration {
        match self.ttl_scope() {
            TtlScope::Connection => Duration::ZERO,
            _ => TTL,
        }
    }

    /// The earliest and the latest end of the lease of a process that has ended since `since`.
    #[track_caller]
    fn lease_of_the_dead_ends(&self, since: Duration) -> (Duration, Duration) {
        match self.outlives_its_process() {
            Duration::ZERO => (since, machine_now()),
            _ => self.lease_ends(),
        }
    }

    fn is_held(&self) -> bool {
        self.record().lease().is_some()
    }

    /// Asserts that something happened in time: not before the first moment, not later than the second one plus the lag
    /// of the machine.
    #[track_caller]
    fn happened(&self, what: &str, at_us: u64, earliest: Duration, latest: Duration) {
        let at = Duration::from_micros(at_us);
        assert!(at >= earliest, "{what} {:?} early", earliest.saturating_sub(at));
        let (late, allowance) = (at.saturating_sub(latest), self.lag_monitor().allowance());
        assert!(late <= allowance, "{what} {late:?} late, and the lag of the machine allows {allowance:?}");
    }
}

/// The URL of a store with the call bound [`CALL`].
pub(crate) fn with_call(store: &str) -> String {
    let separator = if store.contains('?') { '&' } else { '?' };
    format!("{store}{separator}timeout={}ms", CALL.as_millis())
}

/// Waits until the condition is true.
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
