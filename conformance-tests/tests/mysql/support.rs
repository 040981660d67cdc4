//! Shared parts of the tests that are specific to MySQL.

use std::time::Duration;

use leasehold::mysql::MySqlBackend;
use leasehold_conformance::{Fixture, Route};
use leasehold_core::{LockClient, LockClientBuilder};

pub(super) use super::common::{SOON, Stopwatch, eventually, hold};
use super::strategy::MySqlFixture;

/// Runs a case as the suite does, with its own server.
pub(super) fn case<C, F>(case: C)
where
    C: FnOnce(MySqlFixture) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    leasehold_conformance::run(leasehold_conformance::DEADLINE, || async { case(MySqlFixture::new().await).await });
}

/// Makes a client that reaches the server directly, with these settings on top of its URL.
pub(super) async fn builder(fixture: &MySqlFixture, more: &str) -> LockClientBuilder {
    let url = fixture.url(Route::Clear, more);
    let backend = MySqlBackend::connect(&url).await.unwrap_or_else(|error| panic!("not connected: {error:?}"));
    LockClient::builder(backend).wait(SOON)
}

pub(super) async fn client(fixture: &MySqlFixture, ttl: Duration) -> LockClient {
    builder(fixture, "").await.ttl(ttl).build().expect("a client")
}
