//! Shared parts of the tests that are specific to MySQL.

use std::time::Duration;

use leasehold::mysql::MySqlBackend;
use leasehold_conformance::{Fixture, Route, report_unsupported};
use leasehold_core::{LockClient, LockClientBuilder};
use leasehold_test_servers::is_named;

pub(super) use super::common::{SOON, Stopwatch, eventually, hold};
use super::fixture::NOT_OURS;
use super::strategy::MySqlFixture;

/// Runs a case as the suite does, with its own server.
pub(super) fn case<C, F>(case: C)
where
    C: FnOnce(MySqlFixture) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    leasehold_conformance::run(leasehold_conformance::DEADLINE, || async { case(MySqlFixture::new().await).await });
}

/// Runs a case that starts servers of its own. If the variable names a server, such a case says nothing about that
/// server: it is reported as unsupported.
pub(super) fn own_servers<C, F>(case: C)
where
    C: FnOnce() -> F + Send + 'static,
    F: Future<Output = ()>,
{
    if !is_named() {
        return leasehold_conformance::run(leasehold_conformance::DEADLINE, case);
    }
    // The name of the test is that of its thread.
    let test = std::thread::current().name().unwrap_or(std::any::type_name::<C>()).to_owned();
    println!("{test}: nothing to prove, {}", NOT_OURS.reason);
    report_unsupported(&test, "servers of its own", NOT_OURS);
}

/// Makes a client that reaches the server directly, with these settings on top of its URL.
pub(super) async fn builder(fixture: &MySqlFixture, more: &str) -> LockClientBuilder {
    builder_of(&fixture.url(Route::Clear, more)).await
}

/// The same for cases that do not test the bound of a call: a busy machine may take longer than a second.
pub(super) async fn patient_builder(fixture: &MySqlFixture, more: &str) -> LockClientBuilder {
    builder_of(&fixture.url(Route::Clear, more).replace("timeout=1s", "timeout=10s")).await
}

async fn builder_of(url: &str) -> LockClientBuilder {
    let backend = MySqlBackend::connect(url).await.unwrap_or_else(|error| panic!("not connected: {error:?}"));
    LockClient::builder(backend).wait(SOON)
}

pub(super) async fn client(fixture: &MySqlFixture, ttl: Duration) -> LockClient {
    builder(fixture, "").await.ttl(ttl).build().expect("a client")
}
