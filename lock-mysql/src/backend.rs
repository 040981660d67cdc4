//! The backend. Acquire, renew and release are one statement each, mostly.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, Confirmation, CoreHandle, Delivery, Extensions, Grant,
    LockBackend, PlaceNumber, ReleaseOutcome, ReleaseRequest, RenewReplies, RenewRequest, WatchGuard, WatchNames,
};
use leasehold_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use crate::SCHEMA;
use crate::capabilities;
use crate::connections::{Connections, TEST_AFTER, Use};
use crate::for_update::ForUpdate;
use crate::maintenance::Maintenance;
use crate::pool::{Limit, Pool};
use crate::row::renewal::Renewals;
use crate::row::rows::{self, Acquired};
use crate::row::wakeup;
use crate::row::watcher::Watcher;
use crate::session::SetUp;
use crate::settings::{Strategy, parse_url};
use crate::shared::Shared;

/// Locks in a table of a MySQL or MariaDB database: one row for each lock.
pub struct MySqlBackend {
    pub(crate) shared: Arc<Shared>,
    pub(crate) connections: Arc<Connections>,
    /// It connected before it was attached.
    is_connected: AtomicBool,
    capabilities: Capabilities,
    renewals: Renewals,
    /// Serves the requests if the strategy is [`Strategy::ForUpdate`].
    for_update: Option<ForUpdate>,
}

impl MySqlBackend {
    /// Connects to the database of a URL, `mysql://user:password@host/database`, and checks that it can be used for locks.
    ///
    /// # Errors
    /// - `InvalidInput`: the URL cannot be used, or the tokio runtime has no timers.
    /// - `Unavailable`: the server cannot be reached within [`timeout`](crate::Settings::timeout).
    /// - `Auth`: the server refuses the user, or the user lacks a permission.
    /// - `Unsupported`: the database or the table does not exist, or the server is too old.
    /// - `Capacity`: the server accepts no more connections.
    ///
    /// # Cancel safety
    /// A dropped call leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self> {
        let backend = Self::connect_lazy(url)?;
        leasehold_core::backend::require_timers()?;
        let pool = backend.connections.calls()?;
        pool.checkout(backend.until()).await?.put_back();
        backend.is_connected.store(true, Ordering::Relaxed);
        Ok(backend)
    }

    /// Parses a URL and sends nothing. The first call connects, and calls fail while the server cannot be reached or used.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a URL that cannot be used.
    pub fn connect_lazy(url: &str) -> Result<Self> {
        let (target, settings) = parse_url(url)?;
        let capabilities = capabilities::of(&settings);
        let shared = Arc::new(Shared::new(target, settings));
        let connections = Arc::new(Connections::new(shared.clone()));
        let for_update = (shared.settings.strategy == Strategy::ForUpdate)
            .then(|| ForUpdate::new(shared.clone(), connections.clone()));
        let (is_connected, renewals) = (AtomicBool::new(false), Renewals::default());
        Ok(Self { shared, connections, is_connected, capabilities, renewals, for_update })
    }

    /// Creates the tables in the database of a URL, if they do not exist. [`SCHEMA`] is the SQL.
    ///
    /// # Errors
    /// As [`connect`](Self::connect). `Auth`: the user may not create tables.
    ///
    /// # Cancel safety
    /// A dropped call may have created the tables.
    pub async fn create_schema(url: &str) -> Result<()> {
        let backend = Self::connect_lazy(url)?;
        leasehold_core::backend::require_timers()?;
        let (until, pool) = (backend.until(), backend.single());
        let mut connection = pool.checkout(until).await?;
        connection.execute_text(SCHEMA.to_owned(), until).await?;
        Ok(())
    }

    /// The deadline of a call that starts now.
    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.shared.settings.timeout
    }

    /// For one new connection, which needs no table.
    pub(crate) fn single(&self) -> Pool {
        Pool::new(self.shared.clone(), SetUp::default(), Limit::Calls(1), TEST_AFTER)
    }
}

#[async_trait]
impl LockBackend for MySqlBackend {
    fn attach(&self, core: CoreHandle) {
        if self.shared.core.attach(core.clone()) && self.is_connected.load(Ordering::Relaxed) {
            Connections::warm_up(&self.connections, &core, Use::Calls);
            if self.for_update.is_some() {
                Connections::warm_up(&self.connections, &core, Use::Leases);
                Connections::warm_up(&self.connections, &core, Use::Renewals);
            }
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        if let Some(for_update) = &self.for_update {
            return for_update.acquire(request).await;
        }
        let (core, until) = (self.shared.core.core()?, self.until());
        let (sent, acquired) = match wakeup::acquire(request, until).await {
            Some(done) => done?,
            None => {
                let pool = self.connections.calls()?;
                let done = rows::acquire(&pool, request, || core.stamp(), until).await?;
                if let (_, Acquired::Granted(_)) = done {
                    drop(wakeup::leave(&request.claim));
                }
                done
            }
        };
        Connections::warm_up(&self.connections, core, Use::Calls);
        match acquired {
            Acquired::Granted(token) => {
                // Not before: a client that only waits should not take one more connection.
                Connections::warm_up(&self.connections, core, Use::Renewals);
                Maintenance::acquired(&self.shared, core);
                let confirmation = Confirmation { ttl: request.ttl, sent, place: PlaceNumber::NONE };
                Ok(AcquireOutcome::Granted(Grant::new(token, confirmation)))
            }
            Acquired::Held(left) => {
                // Retry before the lease ends: a notification may be lost.
                Ok(AcquireOutcome::Contended { retry_after: left.min(request.ttl / 3) })
            }
            // The next attempt takes the lock if it is free: the claim that has the right to poll may be paused.
            Acquired::Wanted => {
                Ok(AcquireOutcome::Contended { retry_after: wakeup::GIVES_WAY_FOR.min(request.ttl / 3) })
            }
            Acquired::Withdrawn => {
                Err(Error::new(ErrorKind::Lost, "this claim was withdrawn before the request arrived"))
            }
        }
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        if let Some(for_update) = &self.for_update {
            return for_update.renew(requests, replies).await;
        }
        let connections = self.connections.renewals().and_then(|pool| Ok((pool, self.shared.core.core()?)));
        match connections {
            Ok((pool, core)) => self.renewals.renew(&pool, core, requests, replies, self.until()).await,
            Err(error) => replies.fail_rest(&error),
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        if let Some(for_update) = &self.for_update {
            return for_update.release(request).await;
        }
        let (until, pool) = (self.until(), self.connections.calls()?);
        // Dropped after the row is free, or the claim that is woken then would find the lock held.
        let turn = wakeup::leave(&request.claim);
        let was_held = match request.delivery {
            Delivery::Confirmed => rows::release(&pool, &request.claim, turn.as_ref(), until).await?,
            Delivery::InDoubt => rows::withdraw(&pool, &request.claim, until).await?,
        };
        Ok(if was_held { ReleaseOutcome::Released } else { ReleaseOutcome::NotHeld })
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn extensions(&self) -> Extensions<'_> {
        if let Some(for_update) = &self.for_update {
            let mut extensions = for_update.extensions();
            extensions.examine = Some(self);
            return extensions;
        }
        let mut extensions = Extensions::default();
        extensions.inspect = Some(self);
        extensions.list = Some(self);
        extensions.break_lock = Some(self);
        extensions.examine = Some(self);
        extensions.watch = Some(self);
        extensions
    }
}

impl WatchNames for MySqlBackend {
    fn watch(&self, claim: &Claim) -> WatchGuard {
        Watcher::watch(&self.connections, claim)
    }
}

impl fmt::Debug for MySqlBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlBackend")
            .field("address", &self.shared.address)
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}
