//! The backend.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use etcd_client::GetOptions;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, CoreHandle, Delivery, Extensions, LockBackend, ReleaseOutcome,
    ReleaseRequest, RenewReplies, RenewRequest,
};
use leasehold_core::{Error, Result};
use tokio::task::AbortHandle;

use crate::acquire::{Attempt, revoke};
use crate::capabilities;
use crate::connections::{AllConnections, Connections};
use crate::errors::Failure;
use crate::key_ids::KeyIds;
use crate::keys::range_end;
use crate::renewal;
use crate::session::Session;
use crate::sessions::Sessions;
use crate::settings::parse_url;
use crate::shared::{Shared, lock};
use crate::slot::Slot;
use crate::transactions;
use crate::watcher::Watcher;

/// Locks on an etcd cluster, version 3.4 or later.
pub struct EtcdBackend {
    pub(crate) inner: Arc<Inner>,
    capabilities: Capabilities,
    /// The task of the watcher.
    watching: Mutex<Option<AbortHandle>>,
}

/// What the parts of the backend share.
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) connections: AllConnections,
    pub(crate) sessions: Sessions,
    pub(crate) watcher: Arc<Watcher>,
    key_ids: Arc<KeyIds>,
}

impl Inner {
    /// The connection of the keeper's runtime: it has the keep-alives and the watches.
    pub(crate) fn keeper(&self, core: &CoreHandle) -> Arc<Connections> {
        self.connections.of(&self.shared, core.keeper_runtime())
    }

    /// The key of a claim.
    pub(crate) fn key(&self, claim: &Claim) -> String {
        self.shared.keys.claim(claim.name(), Slot::of(claim).id(&self.key_ids, claim))
    }

    /// The connection of the calling runtime.
    pub(crate) fn caller(&self) -> Result<Arc<Connections>> {
        self.connections.of_caller(&self.shared)
    }
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
        leasehold_core::backend::require_timers()?;
        let (inner, until) = (&backend.inner, backend.inner.shared.until());
        // Whatever listens there accepts a connection. A reply to a read proves that it is an etcd that serves this user. Any reply will do, so
        // its age does not matter.
        let prefix = inner.shared.keys.names_with("").unwrap_or_default();
        let options = GetOptions::new().with_range(range_end(&prefix)).with_keys_only().with_limit(1);
        let connections = inner.caller()?;
        let read = connections.send_repeatable(until, move |client| {
            let (prefix, options) = (prefix.clone(), options.clone());
            async move { client.kv_client().get(prefix, Some(options)).await }
        });
        read.await.map_err(Failure::without_effect)?;
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

    async fn try_release(&self, request: &ReleaseRequest) -> Result<bool, Failure> {
        let (inner, claim, until) = (&self.inner, &request.claim, self.inner.shared.until());
        let core = inner.shared.core.core().map_err(Failure::NotSent)?;
        let connections = inner.caller().map_err(Failure::NotSent)?;
        let slot = Slot::of(claim);
        // Its end is no loss.
        inner.watcher.remove(claim);
        if request.delivery == Delivery::InDoubt {
            slot.withdraw();
        }
        let sessions = slot.sessions();
        let key = inner.key(claim);
        let mut was_held = false;
        let mut ended = sessions.is_empty();
        if request.delivery == Delivery::InDoubt {
            for session in &sessions {
                match slot.send(self.withdraw(&connections, claim, &key, session, until)).await {
                    Ok(deleted) => was_held |= deleted,
                    // The session has ended, and with it everything that was attached to it.
                    Err(Failure::NoLease) => continue,
                    Err(failure) => return Err(failure),
                }
                ended = true;
            }
        }
        if !ended {
            was_held = slot.send(self.delete(&connections, claim, key, until)).await?;
        }
        if let Some(of_claim) = slot.key().filter(|of_claim| of_claim.is_fixed) {
            revoke(inner, core, &of_claim.session);
        }
        slot.has_no_key();
        // A slow server may have replied to an earlier release after that gave up: the lease was not lost, although nothing is left.
        Ok(slot.take_deletion() || was_held)
    }

    /// Deletes the key of a claim. Returns whether there was one.
    async fn delete(
        &self,
        connections: &Arc<Connections>,
        claim: &Claim,
        key: String,
        until: tokio::time::Instant,
    ) -> Result<bool, Failure> {
        let of_claim = Slot::of(claim).key().filter(|_| self.inner.shared.members.are_several());
        let Some(of_claim) = of_claim else {
            let deleted = connections.send(until, |mut kv| {
                let (key, claim) = (key.clone(), claim.clone());
                async move {
                    let reply = kv.delete(key, None).await?;
                    if reply.deleted() > 0 {
                        Slot::of(&claim).note_deletion();
                    }
                    Ok(reply)
                }
            });
            return Ok(deleted.await?.deleted() > 0);
        };
        // A member that is silent delays this only until the next one is asked as well. Its late request deletes nothing else: the next
        // claim may have the same key, but with another create revision.
        let sent = Arc::new(AtomicUsize::new(0));
        let (count, claim) = (sent.clone(), claim.clone());
        let deleted = connections.send_repeatable(until, move |client| {
            count.fetch_add(1, Ordering::Relaxed);
            let (count, claim, txn) = (count.clone(), claim.clone(), transactions::delete(&key, of_claim.revision));
            async move {
                let reply = client.kv_client().txn(txn).await?;
                if reply.succeeded() {
                    Slot::of(&claim).note_deletion();
                }
                if !reply.succeeded() && count.load(Ordering::Relaxed) > 1 {
                    // Another request may have deleted it. Its reply says so, or the outcome is unknown when the time is over.
                    std::future::pending::<()>().await;
                }
                Ok(reply)
            }
        });
        let reply = match deleted.await {
            // One member got the request, and no other one could be connected to.
            Err(Failure::NotSent(_)) if sent.load(Ordering::Relaxed) > 0 => return Err(Failure::TimedOut),
            reply => reply?,
        };
        match reply.succeeded() {
            true => Ok(true),
            false if sent.load(Ordering::Relaxed) == 1 => Ok(false),
            // One of the others may have deleted it, and nobody knows whether it was still there.
            false => Err(Failure::TimedOut),
        }
    }

    /// Makes sure that no request of this session that was sent before takes effect any more.
    async fn withdraw(
        &self,
        connections: &Arc<Connections>,
        claim: &Claim,
        key: &str,
        session: &Session,
        until: tokio::time::Instant,
    ) -> Result<bool, Failure> {
        let epoch_key = self.inner.shared.keys.epoch(session.id);
        let reply = connections.send(until, |mut kv| {
            let (txn, claim) = (transactions::withdraw(key, &epoch_key, session.id), claim.clone());
            async move {
                let reply = kv.txn(txn).await?;
                if let Ok((_, true)) = transactions::withdrawn(&reply) {
                    Slot::of(&claim).note_deletion();
                }
                Ok(reply)
            }
        });
        let (epoch, deleted) = transactions::withdrawn(&reply.await?)?;
        session.note_epoch(epoch);
        Ok(deleted)
    }
}

#[async_trait]
impl LockBackend for EtcdBackend {
    fn attach(&self, core: CoreHandle) {
        let inner = &self.inner;
        if inner.shared.core.attach(core.clone()) {
            let keeper = inner.keeper(&core);
            keeper.warm_up();
            let task = core.keeper_runtime().spawn(inner.watcher.clone().run(keeper, core.clone()));
            *lock(&self.watching) = Some(task.abort_handle());
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let inner = &self.inner;
        let (core, until) = (inner.shared.core.core()?, inner.shared.until());
        let (connections, begin) = (inner.caller()?, core.stamp());
        // While the session is opened on the other connection.
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
        let was_held = self.try_release(request).await.map_err(Error::from)?;
        Ok(if was_held { ReleaseOutcome::Released } else { ReleaseOutcome::NotHeld })
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn extensions(&self) -> Extensions<'_> {
        let mut extensions = Extensions::default();
        extensions.inspect = Some(self);
        extensions.list = Some(self);
        extensions.break_lock = Some(self);
        extensions.examine = Some(self);
        extensions
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
