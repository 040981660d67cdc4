//! The backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::kit::{BoundedSet, SessionPool};
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, CoreHandle, LockBackend, ReleaseOutcome, ReleaseRequest,
    RenewReplies, RenewRequest, WatchNames,
};
use leasehold_core::{Error, Result};
use tokio::time::Instant;

use crate::acquire::Attempt;
use crate::capabilities;
use crate::delayed::Delayed;
use crate::errors::{Failure, none_connected};
use crate::inner::{Inner, MOST_KNOWN, READER};
use crate::link::{Link, NEVER, NoLink};
use crate::release::release;
use crate::renewal;
use crate::settings::parse_url;
use crate::shared::Shared;

/// Locks on ZooKeeper, version 3.5.3 or later, with one server or several.
pub struct ZkBackend {
    pub(crate) inner: Arc<Inner>,
    capabilities: Capabilities,
}

impl ZkBackend {
    /// Connects to the servers of a URL, `zk://user:password@host:2181,host:2181/root`.
    ///
    /// # Errors
    /// - `InvalidInput`: the URL cannot be used, or the tokio runtime has no timers.
    /// - `Unavailable`: no server can be reached within [`timeout`](crate::Settings::timeout).
    /// - `Auth`: the user may not list the locks.
    ///
    /// # Cancel safety
    /// A dropped call leaves nothing behind, except for a session without nodes for some seconds.
    pub async fn connect(url: &str) -> Result<Self> {
        let backend = Self::connect_lazy(url)?;
        leasehold_core::backend::kit::require_timers()?;
        backend.try_connect().await.map_err(Failure::without_effect)?;
        Ok(backend)
    }

    /// Opens a session for a moment. Whatever listens there accepts a connection. A reply to a read proves that it
    /// serves this user.
    async fn try_connect(&self) -> Result<(), Failure> {
        let (shared, until) = (&self.inner.shared, self.inner.shared.until());
        let link = self.any_link(READER, until).await?;
        let root = shared.nodes.root();
        // The list may be stale: only the permission counts.
        let listed = link.call(|client| client.list_children(root), until).await;
        tokio::spawn(Arc::new(link).close());
        match listed {
            Ok(_) | Err(Failure::NoNode) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// A link of a new session without leases, at the first server that replies.
    pub(crate) async fn any_link(&self, ttl: Duration, until: Instant) -> Result<Link, Failure> {
        let shared = &self.inner.shared;
        let mut failures = Vec::new();
        for _ in 0..shared.target.servers.all().len() {
            let (server, bound) = (shared.target.servers.nth(0), until.min(Instant::now() + shared.attempt()));
            failures.push(match Link::open(shared, server, None, ttl, NEVER, bound).await {
                Ok(link) => return Ok(link),
                Err(NoLink::Failed(failure @ Failure::Refused(_))) => return Err(failure),
                Err(NoLink::Failed(failure)) => failure,
                Err(NoLink::Expired) => Failure::NoSession,
            });
            shared.target.servers.avoid(server);
        }
        Err(none_connected(&failures))
    }

    /// Parses a URL and sends nothing. The first call connects, and calls fail while no server can be reached.
    ///
    /// # Errors
    /// [`InvalidInput`](leasehold_core::ErrorKind::InvalidInput) for a URL that cannot be used.
    pub fn connect_lazy(url: &str) -> Result<Self> {
        let (target, settings) = parse_url(url)?;
        let capabilities = capabilities::of(&settings);
        let inner = Inner {
            shared: Arc::new(Shared::new(target, settings)),
            sessions: SessionPool::default(),
            delayed: Delayed::default(),
            known: BoundedSet::new(MOST_KNOWN),
        };
        Ok(Self { inner: Arc::new(inner), capabilities })
    }
}

#[async_trait]
impl LockBackend for ZkBackend {
    fn attach(&self, core: CoreHandle) {
        self.inner.shared.core.attach(core);
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let inner = &self.inner;
        let (core, until) = (inner.shared.core.core()?, inner.shared.until());
        let attempt = Attempt { inner, core, request, begin: core.stamp(), until };
        Ok(attempt.run().await?)
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        let (inner, until) = (&self.inner, self.inner.shared.until());
        match inner.shared.core.core() {
            Ok(core) => renewal::renew(inner, core, requests, replies, until).await,
            Err(error) => replies.fail_rest(&error),
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let was_held = release(&self.inner, request, self.inner.shared.until()).await.map_err(Error::from)?;
        Ok(if was_held { ReleaseOutcome::Released } else { ReleaseOutcome::NotHeld })
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        None
    }
}

impl Drop for ZkBackend {
    fn drop(&mut self) {
        self.inner.sessions.end();
    }
}

impl fmt::Debug for ZkBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZkBackend")
            .field("servers", &self.inner.shared.target.servers.all())
            .field("settings", &self.inner.shared.settings)
            .finish_non_exhaustive()
    }
}
