//! A fixture for stores in the test process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::LockName;
use leasehold_core::backend::LockBackend;

use crate::fault::{Data, PathFault, ServerFault, Tamper, Unsupported};
use crate::faulty::Faults;
use crate::fixture::{Fixture, Record, ResourceCounts, Route};

/// A store in the test process, without unreadable records.
pub trait InProcessStore: Send + Sync + 'static {
    /// A store without any lock.
    fn new() -> Self;

    /// A backend for one client, not yet attached.
    fn backend(&self) -> Arc<dyn LockBackend>;

    /// Ends the lease of a lock without its clients.
    fn remove(&self, name: &LockName);

    /// Loses every lease and place, as a server that starts without its data.
    ///
    /// # Errors
    /// If the store does not support it, which is the default.
    fn lose_data(&self) -> Result<(), Unsupported> {
        Err(Unsupported::because("the store lives as long as the process"))
    }

    /// The record of a lock.
    fn record(&self, name: &LockName) -> Record;

    /// Counts what the store holds, without connections.
    fn resource_counts(&self) -> ResourceCounts;
}

/// The [`Fixture`] of an [`InProcessStore`]: [`Faults`] injects its faults, because there is no proxy for its protocol.
pub struct InProcess<S> {
    pub(crate) store: S,
    pub(crate) faults: Faults,
}

#[async_trait]
impl<S: InProcessStore> Fixture for InProcess<S> {
    async fn new() -> Self {
        Self { store: S::new(), faults: Faults::new(tokio::runtime::Handle::current()) }
    }

    async fn backend(&self, route: Route) -> Arc<dyn LockBackend> {
        Arc::new(self.faults.wrap(self.store.backend(), route))
    }

    async fn backend_with_retention(&self, _: Duration) -> Result<Arc<dyn LockBackend>, Unsupported> {
        Err(Unsupported::because("a record stays as long as the store"))
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }

    async fn path(&self, fault: PathFault) {
        self.faults.path(fault);
    }

    async fn heal(&self) {
        self.faults.heal();
    }

    async fn deliver(&self) {
        self.faults.deliver().await;
    }

    async fn server(&self, fault: ServerFault) -> Result<(), Unsupported> {
        if fault == ServerFault::Start(Data::Lost) {
            self.store.lose_data()?;
        }
        self.faults.server(&fault)
    }

    async fn tamper(&self, name: &LockName, tamper: Tamper) -> Result<(), Unsupported> {
        match tamper {
            Tamper::Remove => self.store.remove(name),
            Tamper::Corrupt | Tamper::OtherVersion => self.faults.spoil(name, true),
        }
        Ok(())
    }

    async fn record(&self, name: &LockName) -> Record {
        self.store.record(name)
    }

    async fn resource_counts(&self) -> ResourceCounts {
        ResourceCounts { connections: self.faults.connections(), ..self.store.resource_counts() }
    }

    async fn served(&self) -> u64 {
        self.faults.served()
    }
}
