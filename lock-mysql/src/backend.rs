//! The backend: one of two strategies, behind one URL.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use leasehold_core::Result;
use leasehold_core::backend::kit::require_timers;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, CoreHandle, LockBackend, ReleaseOutcome, ReleaseRequest,
    RenewReplies, RenewRequest, WatchNames,
};

use crate::SCHEMA;
use crate::connections::Connections;
use crate::errors::Failure;
use crate::for_update::{self, ForUpdate};
use crate::pool::Pool;
use crate::row::{self, RowLease};
use crate::session::SetUp;
use crate::settings::Strategy;
use crate::shared::Shared;

/// Locks in a MySQL or MariaDB database, by the [`Strategy`] that the URL names.
pub struct MySqlBackend {
    connections: Arc<Connections>,
    strategy: Box<dyn LockBackend>,
}

impl MySqlBackend {
    /// Connects to the database of a URL, `mysql://user:password@host/database`, and checks that it can be used for
    /// locks.
    ///
    /// # Errors
    /// - `InvalidInput`: the URL cannot be used, or the tokio runtime has no timers.
    /// - `Unavailable`: the server cannot be reached within [`timeout`](crate::Settings::timeout).
    /// - `Auth`: the server refuses the user, or the user lacks a permission.
    /// - `Unsupported`: the database or the table does not exist, or the server is too old. With
    ///   [`Strategy::ForUpdate`]: it has a limit for idle transactions or long statements that cannot be removed.
    /// - `Capacity`: the server accepts no more connections.
    ///
    /// # Cancel safety
    /// A dropped call leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self> {
        let backend = Self::connect_lazy(url)?;
        require_timers()?;
        let (connections, until) = (&backend.connections, backend.connections.shared.until());
        connections.connect(until).await?;
        if connections.shared.settings.strategy == Strategy::ForUpdate {
            let checked = for_update::check_limits(&*connections.calls.pool()?, until).await;
            checked.map_err(Failure::without_effect)?;
        }
        Ok(backend)
    }

    /// Parses a URL and sends nothing. The first call connects, and calls fail while the server cannot be reached or
    /// used.
    ///
    /// # Errors
    /// [`InvalidInput`](leasehold_core::ErrorKind::InvalidInput) for a URL that cannot be used.
    pub fn connect_lazy(url: &str) -> Result<Self> {
        let shared = Shared::parse(url)?;
        Ok(match shared.settings.strategy {
            Strategy::Row => {
                let connections = Connections::new(shared, row::PREPARED);
                Self { strategy: Box::new(RowLease::new(connections.clone())), connections }
            }
            Strategy::ForUpdate => {
                let connections = Connections::new(shared, for_update::PREPARED);
                Self { strategy: Box::new(ForUpdate::new(connections.clone())), connections }
            }
        })
    }

    /// Creates the tables in the database of a URL, if they do not exist. [`SCHEMA`] is the SQL.
    ///
    /// # Errors
    /// As [`connect`](Self::connect). `Auth`: the user may not create tables.
    ///
    /// # Cancel safety
    /// A dropped call may have created the tables.
    pub async fn create_schema(url: &str) -> Result<()> {
        let shared = Shared::parse(url)?;
        require_timers()?;
        Pool::single(&shared, SetUp::default()).execute_text(SCHEMA.to_owned(), shared.until()).await?;
        Ok(())
    }
}

#[async_trait]
impl LockBackend for MySqlBackend {
    fn attach(&self, core: CoreHandle) {
        self.strategy.attach(core);
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        self.strategy.acquire(request).await
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        self.strategy.renew(requests, replies).await;
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        self.strategy.release(request).await
    }

    fn capabilities(&self) -> Capabilities {
        self.strategy.capabilities()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        self.strategy.admin()
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        self.strategy.watch_names()
    }
}

impl fmt::Debug for MySqlBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = &self.connections.shared;
        f.debug_struct("MySqlBackend")
            .field("address", &shared.address)
            .field("settings", &shared.settings)
            .finish_non_exhaustive()
    }
}
