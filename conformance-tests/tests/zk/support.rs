//! Shared parts of the tests that are specific to ZooKeeper.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold::zk::ZkBackend;
use leasehold_conformance::{DEADLINE, Direct, Fixture, Route, run};
use leasehold_core::{LockClient, LockName};

use super::common::SOON;
use super::fixture::{self, ROOT};
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

impl OneServer {
    pub(super) fn statistic(&self, name: &str) -> u64 {
        fixture::statistic(self.deployment().side(), name)
    }

    pub(super) fn writes(&self) -> u64 {
        fixture::writes(&**self.deployment())
    }

    pub(super) fn session_nodes(&self) -> BTreeSet<String> {
        fixture::session_nodes(self.deployment().side())
    }
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

/// A client with a longer bound of a call, because a busy machine may need a second until a path is healed.
pub(super) fn patient(fixture: &OneServer) -> Arc<Direct> {
    let url = fixture.url(Route::Faulty, "").replace("timeout=1s", "timeout=10s");
    Arc::new(Direct::attach(Arc::new(ZkBackend::connect_lazy(&url).expect("a URL"))))
}
