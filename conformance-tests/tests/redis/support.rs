//! Shared parts of the tests that are specific to Redis.

use std::time::{Duration, Instant};

use leasehold::redis::RedisBackend;
use leasehold_conformance::harness::LagMonitor;
use leasehold_conformance::{Fixture, Route};
use leasehold_core::{LockClient, LockClientBuilder, LockGuard};

use super::fixture::{Plain, RedisFixture};

pub(super) type Redis = RedisFixture<Plain>;

/// The time limit of an expected event.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// Runs a case as the suite does, with its own server.
pub(super) fn case<C, F>(case: C)
where
    C: FnOnce(Redis) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    leasehold_conformance::run(leasehold_conformance::DEADLINE, || async { case(Redis::new().await).await });
}

/// Makes a client that reaches the server directly, with these settings on top of its URL.
pub(super) async fn builder(fixture: &Redis, more: &str) -> LockClientBuilder {
    let url = fixture.url(Route::Clear, more);
    let backend = RedisBackend::connect(&url).await.unwrap_or_else(|error| panic!("not connected: {error:?}"));
    LockClient::builder(backend).wait(SOON)
}

pub(super) async fn client(fixture: &Redis, ttl: Duration) -> LockClient {
    builder(fixture, "").await.ttl(ttl).build().expect("a client")
}

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
