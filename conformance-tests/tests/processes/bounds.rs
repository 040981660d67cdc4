//! What the worlds of the process cases have in common: the lock, its times, and what is in time.

use std::time::Duration;

use conformance_tests::harness::{Canary, Taker, TakerEvent};
use lock_core::LockName;

/// How long something may take that is to happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The ttl of these cases: short enough to wait for, long enough that a machine with two cores and other work does not
/// lose a lease that is renewed three times in it.
pub(crate) const TTL: Duration = Duration::from_millis(1_500);

/// What a holder leaves unused of its ttl.
pub(crate) const MARGIN: Duration = Duration::from_millis(150);

/// How late a loss may be told after the validity has ended.
pub(crate) const LOSS_SLACK: Duration = Duration::from_millis(5);

/// The longest call of the takers.
pub(crate) const TIMEOUT: &str = "400ms";

/// The lock of these cases.
const NAME: &str = "processes/1";

/// How many processes and threads have to be woken one after the other, at most, for a waiter to hold, or a holder to say
/// that it is lost: its keeper, the server or the thread that hears of releases, its keeper again, its main task.
const HOPS: u32 = 4;

/// Timers count in milliseconds and round up.
const TICK: Duration = Duration::from_millis(2);

pub(crate) fn name() -> LockName {
    LockName::new(NAME).unwrap()
}

/// What a taker of these cases is told.
pub(crate) fn arguments(url: &str) -> Vec<String> {
    let ttl = format!("{}ms", TTL.as_millis());
    ["--url", url, "--name", NAME, "--ttl", &ttl, "--wait", "60s"].map(str::to_owned).to_vec()
}

/// Starts a taker with these arguments on top.
pub(crate) fn start(url: &str, more: &[&str]) -> Taker {
    let mut arguments = arguments(url);
    arguments.extend(more.iter().map(|more| (*more).to_owned()));
    Taker::start(env!("CARGO_BIN_EXE_taker"), &arguments).unwrap()
}

/// Asserts that something happened in time: not before the first moment, not later than the second and what the machine
/// was late.
#[track_caller]
pub(crate) fn happened(canary: &Canary, what: &str, at_us: u64, earliest: Duration, latest: Duration) {
    let at = Duration::from_micros(at_us);
    assert!(at >= earliest, "{what} {:?} early", earliest.saturating_sub(at));
    let lag = TICK + canary.lag() * HOPS;
    let late = at.saturating_sub(latest);
    assert!(late <= lag, "{what} {late:?} late, with a lag of the machine of {lag:?}");
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
