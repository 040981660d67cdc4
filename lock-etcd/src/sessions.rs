//! The sessions of one client: one for each ttl, which its claims share, and one for each fixed lease.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::kit::{PooledSession, SessionPool};
use leasehold_core::backend::{CoreHandle, Stamp};
use tokio::time::Instant;

use crate::connections::Connections;
use crate::errors::Failure;
use crate::session::Session;

/// The shared sessions. An etcd lease for each lock would cost most of a server core for 10,000 locks.
#[derive(Default)]
pub(crate) struct Sessions(SessionPool<Session, Failure>);

impl Sessions {
    /// The shared session with this ttl. Opens it if there is none.
    pub(crate) async fn shared(
        &self,
        connections: &Arc<Connections>,
        core: &CoreHandle,
        ttl: Duration,
        until: Instant,
    ) -> Result<Arc<Session>, Failure> {
        Ok(self.0.shared(core, ttl, until, || open(connections, core, ttl)).await?)
    }

    /// The shared session with this ttl, if there is one.
    pub(crate) fn existing(&self, ttl: Duration, now: Stamp) -> Option<Arc<Session>> {
        self.0.find(now, |session| session.requested() == ttl)
    }

    /// A session for one claim alone.
    pub(crate) async fn own(
        connections: &Arc<Connections>,
        core: &CoreHandle,
        ttl: Duration,
        until: Instant,
    ) -> Result<Arc<Session>, Failure> {
        Ok(SessionPool::unshared(core, until, open(connections, core, ttl)).await?)
    }

    /// Does not use this session any more: the server has ended it.
    pub(crate) fn forget(&self, session: &Arc<Session>) {
        session.end();
        self.0.forget(session);
    }
}

fn open(
    connections: &Arc<Connections>,
    core: &CoreHandle,
    ttl: Duration,
) -> impl Future<Output = Result<Arc<Session>, Failure>> + Send + use<> {
    let (connections, core) = (connections.clone(), core.clone());
    async move {
        let until = connections.shared.until();
        Session::open(&connections, &core, ttl, until).await
    }
}
