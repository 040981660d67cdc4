//! Shared parts of the tests that are specific to ZooKeeper.

use leasehold_conformance::{DEADLINE, Fixture, run};

use super::one_server::OneServer;

/// Runs a case as the suite does, with its own server.
pub(super) fn case<C, F>(case: C)
where
    C: FnOnce(OneServer) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    run(DEADLINE * 2, || async { case(OneServer::new().await).await });
}
