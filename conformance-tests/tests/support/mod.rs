//! Shared parts of the tests that are specific to one store.

use std::time::{Duration, Instant};

pub(super) use leasehold_conformance::Stopwatch;
use leasehold_core::{LockClient, LockGuard};

/// The time limit of an expected event.
pub(super) const SOON: Duration = Duration::from_secs(20);

pub(super) async fn hold(client: &LockClient, name: &str) -> LockGuard {
    client.lock(name).acquire().await.unwrap_or_else(|error| panic!("{name:?} is not acquired: {error:?}"))
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
