//! Shared parts of the tests that are specific to one store.

use std::time::{Duration, Instant};

use leasehold_conformance::harness::LagMonitor;
use leasehold_core::{LockClient, LockGuard};

/// The time limit of an expected event.
pub(super) const SOON: Duration = Duration::from_secs(20);

pub(super) async fn hold(client: &LockClient, name: &str) -> LockGuard {
    client.lock(name).acquire().await.unwrap_or_else(|error| panic!("{name:?} is not acquired: {error:?}"))
}

/// Measures time, and the lag of the machine beside it.
pub(super) struct Stopwatch {
    lag_monitor: LagMonitor,
    begin: Instant,
}

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self { lag_monitor: LagMonitor::start(), begin: Instant::now() }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    pub(super) fn lag(&self) -> Duration {
        self.lag_monitor.allowance()
    }

    #[track_caller]
    pub(super) fn within(&self, bound: Duration, what: &str) {
        let (took, lag) = (self.elapsed(), self.lag());
        assert!(took <= bound + lag, "{what}: it took {took:?}, the bound is {bound:?} and the machine's lag {lag:?}");
    }
}

/// Waits until the condition is true.
#[track_caller]
pub(super) fn eventually(what: &str, is_so: impl Fn() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let until = Instant::now() + SOON;
        while !is_so() {
            assert!(Instant::now() < until, "never: {what} (at {caller})");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
