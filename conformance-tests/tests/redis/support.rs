//! Shared parts of the tests that are specific to Redis.

use std::time::Duration;

use leasehold::redis::RedisBackend;
use leasehold_conformance::{Fixture, Route};
use leasehold_core::{LockClient, LockClientBuilder};

pub(super) use super::common::{SOON, Stopwatch, eventually, hold};
use super::fixture::RedisFixture;
use super::setups::Plain;

pub(super) type Redis = RedisFixture<Plain>;

/// Runs a case as the suite does, with its own server.
pub(super) fn case<C, F>(case: C)
where
    C: FnOnce(Redis) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    leasehold_conformance::run(leasehold_conformance::DEADLINE, || async { case(Redis::new().await).await });
}

/// Makes a client that reaches the server by this route, with these settings on top of its URL.
pub(super) async fn builder_by(fixture: &Redis, route: Route, more: &str) -> LockClientBuilder {
    let backend = RedisBackend::connect(&fixture.url(route, more)).await;
    LockClient::builder(backend.unwrap_or_else(|error| panic!("not connected: {error:?}"))).wait(SOON)
}

/// The same for one that reaches it directly.
pub(super) async fn builder(fixture: &Redis, more: &str) -> LockClientBuilder {
    builder_by(fixture, Route::Clear, more).await
}

pub(super) async fn client_by(fixture: &Redis, route: Route, ttl: Duration) -> LockClient {
    builder_by(fixture, route, "").await.ttl(ttl).build().expect("a client")
}

pub(super) async fn client(fixture: &Redis, ttl: Duration) -> LockClient {
    client_by(fixture, Route::Clear, ttl).await
}
