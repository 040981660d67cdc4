//! The backend.

use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use etcd_client::GetOptions;
use leasehold_core::backend::kit::{Connecting, lock};
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, CoreHandle, LockBackend, ReleaseOutcome, ReleaseRequest,
    RenewReplies, RenewRequest, WatchNames,
};
use leasehold_core::{Error, Result};
use tokio::task::AbortHandle;

use crate::acquire::Attempt;
use crate::capabilities;
use crate::connections::AllConnections;
use crate::errors::Failure;
use crate::inner::Inner;
use crate::key_ids::KeyIds;
use crate::keys::range_end;
use crate::release::release;
use crate::renewal;
use crate::sessions::Sessions;
use crate::settings::parse_url;
use crate::shared::Shared;

/// Locks on an etcd cluster, version 3.4 or later.
pub struct EtcdBackend {
    pub(crate) inner: Arc<Inner>,
    capabilities: Capabilities,
    /// The task of the watcher.
    watching: Mutex<Option<AbortHandle>>,
}

impl EtcdBackend {
    /// Connects to the cluster of a URL, `etcd://user:password@host:2379,host:2379/prefix`.
    ///
    /// # Errors
    /// - `InvalidInput`: the URL cannot be used, or the tokio runtime has no timers.
    /// - `Unavailable`: no member can be reached within [`timeout`](crate::Settings::timeout).
    /// - `Auth`: the server refuses the user, or the user may not read the keys of locks.
    ///
    /// # Cancel safety
    /// A dropped call leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self> {
        let backend = Self::connect_lazy(url)?;
        leasehold_core::backend::kit::require_timers()?;
        let (inner, until) = (&backend.inner, backend.inner.shared.until());
        // Whatever listens there accepts a connection. A reply to a read proves that it is an etcd server that serves
        // this user. Any reply will do, so its age does not matter.
        let prefix = inner.shared.keys.names_with("").unwrap_or_default();
        let options = GetOptions::new().with_range(range_end(&prefix)).with_keys_only().with_limit(1);
        let connections = inner.caller()?;
        let read = connections.send_repeatable(until, move |client| {
            let (prefix, options) = (prefix.clone(), options.clone());
            async move { client.kv_client().get(prefix, Some(options)).await }
        });
        read.await.map_err(|failure| match failure {
            Failure::TimedOut => {
                let shared = &inner.shared;
                Connecting::too_slow(&shared.addresses(), "the first reply", shared.settings.timeout)
            }
            failure => failure.without_effect(),
        })?;
        Ok(backend)
    }

    /// Parses a URL and sends nothing. The first call connects, and calls fail while no member can be reached.
    ///
    /// # Errors
    /// [`InvalidInput`](leasehold_core::ErrorKind::InvalidInput) for a URL that cannot be used.
    pub fn connect_lazy(url: &str) -> Result<Self> {
        let (target, settings) = parse_url(url)?;
        let capabilities = capabilities::of(&settings);
        let inner = Inner {
            shared: Arc::new(Shared::new(target, settings)),
            connections: AllConnections::default(),
            sessions: Sessions::default(),
            watcher: Arc::default(),
            key_ids: KeyIds::new(),
        };
        Ok(Self { inner: Arc::new(inner), capabilities, watching: Mutex::default() })
    }
}

#[async_trait]
impl LockBackend for EtcdBackend {
    fn attach(&self, core: CoreHandle) {
        let inner = &self.inner;
        if inner.shared.core.attach(core.clone()) {
            let keeper = inner.keeper(&core);
            // Sessions and watches use the keeper's connection. The first acquire need not wait until it is open.
            keeper.warm_up();
            let task = core.keeper_runtime().spawn(inner.watcher.clone().run(keeper, core.clone()));
            *lock(&self.watching) = Some(task.abort_handle());
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let inner = &self.inner;
        let (core, until) = (inner.shared.core.core()?, inner.shared.until());
        let (connections, begin) = (inner.caller()?, core.stamp());
        // Connects on the caller's runtime while the keeper's opens the session.
        connections.warm_up();
        let attempt = Attempt { inner, core, connections, request, begin, until };
        Ok(attempt.run().await?)
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        let (inner, until) = (&self.inner, self.inner.shared.until());
        let connections = inner.shared.core.core().and_then(|core| Ok((core, inner.caller()?)));
        match connections {
            Ok((core, connections)) => renewal::renew(inner, core, &connections, requests, replies, until).await,
            Err(error) => replies.fail_rest(&error),
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let was_held = release(&self.inner, request).await.map_err(Error::from)?;
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

impl Drop for EtcdBackend {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.watching).take() {
            task.abort();
        }
    }
}

impl fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.inner.shared.members.all().iter().map(|member| &*member.address).collect();
        f.debug_struct("EtcdBackend")
            .field("members", &addresses)
            .field("settings", &self.inner.shared.settings)
            .finish_non_exhaustive()
    }
}
