//! What the operations on claims share: the sessions of one client, and what it knows of its locks.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::CoreHandle;
use leasehold_core::backend::kit::{BoundedSet, NotOpened, SessionPool};
use tokio::time::Instant;

use crate::delayed::Delayed;
use crate::errors::Failure;
use crate::link::Link;
use crate::session::Session;
use crate::shared::Shared;

/// The ttl of a session that only reads.
pub(crate) const READER: Duration = Duration::from_secs(10);

/// The most paths of locks that are remembered. A path that was forgotten costs a request more.
pub(crate) const MOST_KNOWN: usize = 4_096;

/// What the parts of the backend share.
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    /// One for each ttl.
    pub(crate) sessions: SessionPool<Session, Failure>,
    pub(crate) delayed: Delayed,
    /// The paths of locks whose nodes this client has used, so that it does not create them again with every acquire. The
    /// server deletes the node of a lock without claims after some time, so a path that is known may not exist.
    pub(crate) known: BoundedSet<Arc<str>>,
}

impl Inner {
    /// The session of claims with this ttl.
    pub(crate) async fn session(
        &self,
        core: &CoreHandle,
        ttl: Duration,
        until: Instant,
    ) -> Result<Arc<Session>, Failure> {
        let open = || {
            let (shared, core) = (self.shared.clone(), core.clone());
            async move { shared.connecting.at_once(|until| Session::open(&shared, &core, ttl, until)).await }
        };
        self.sessions.shared(core, ttl, until, open).await.map_err(|why| match why {
            NotOpened::TimedOut => self.shared.given_up(),
            why => why.into(),
        })
    }

    /// A connection for reads.
    pub(crate) async fn reader(&self, until: Instant) -> Result<Arc<Link>, Failure> {
        let core = self.shared.core.core().map_err(Failure::NotSent)?;
        let now = core.stamp();
        let session = match self.sessions.find(now, |session| session.current_link().is_some()) {
            Some(session) => session,
            None => self.session(core, READER, until).await?,
        };
        session.use_since(now);
        let link = session.link(until).await?;
        // A follower may be behind the leader. A leader that was replaced is, too, for a moment: what it shows may be
        // old, and a write that depends on it fails.
        let root = self.shared.nodes.root();
        link.call(|client| client.sync(root), until).await?;
        Ok(link)
    }
}
