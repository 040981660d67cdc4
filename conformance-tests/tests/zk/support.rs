//! Shared parts of the tests that are specific to ZooKeeper.

use std::time::Duration;

use leasehold_conformance::{DEADLINE, Fixture, Route, run};
use leasehold_core::{LockClient, LockName};

use super::common::SOON;
use super::fixture::ROOT;
use super::one_server::OneServer;
use super::stored::Stored;

/// Runs a case as the suite does, with its own server.
pub(super) fn case<C, F>(case: C)
where
    C: FnOnce(OneServer) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    run(DEADLINE * 2, || async { case(OneServer::new().await).await });
}

pub(super) async fn client(fixture: &OneServer, ttl: Duration) -> LockClient {
    LockClient::builder(fixture.backend(Route::Clear).await).ttl(ttl).wait(SOON * 3).build().expect("a client")
}

pub(super) fn name(text: &str) -> LockName {
    LockName::new(text).expect("a name")
}

/// The number of nodes in the queue of a lock.
pub(super) fn queue(fixture: &OneServer, name: &LockName) -> usize {
    Stored { side: fixture.deployment().side(), root: ROOT }.queue(name).len()
}
