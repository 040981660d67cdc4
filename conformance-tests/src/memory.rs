//! The fixture of the memory backend: the reference for other fixtures without a server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::LockName;
use leasehold_core::backend::{Clock, LockBackend};
use leasehold_core::memory::{MemoryBackend, MemoryStore};

use crate::fault::{Data, Declared, PathFault, ServerFault, Tamper};
use crate::faulty::Faults;
use crate::fixture::{Census, Fixture, Record, Route};
use crate::hooks::{Hooked, Hooks};

/// A [`MemoryStore`] behind [`Faults`].
pub struct MemoryFixture {
    store: MemoryStore,
    faults: Faults,
    hooks: Option<Arc<dyn Hooks>>,
}

impl MemoryFixture {
    /// Has leases end by this clock.
    pub(crate) fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.store = MemoryStore::new(clock);
        self
    }

    /// Changes the store itself, behind the path.
    pub(crate) fn with_hooks(mut self, hooks: Arc<dyn Hooks>) -> Self {
        self.hooks = Some(hooks);
        self
    }
}

#[async_trait]
impl Fixture for MemoryFixture {
    async fn new() -> Self {
        Self { store: MemoryStore::default(), faults: Faults::new(tokio::runtime::Handle::current()), hooks: None }
    }

    async fn backend(&self, route: Route) -> Arc<dyn LockBackend> {
        let store = Arc::new(MemoryBackend::new(&self.store));
        match &self.hooks {
            None => Arc::new(self.faults.wrap(store, route)),
            Some(hooks) => Arc::new(self.faults.wrap(Arc::new(Hooked::new(store, 0, hooks.clone())), route)),
        }
    }

    async fn backend_with_retention(&self, _: Duration) -> Result<Arc<dyn LockBackend>, Declared> {
        Err(Declared::because("it keeps the counters of free locks, however old they are"))
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

    async fn server(&self, fault: ServerFault) -> Result<(), Declared> {
        if fault == ServerFault::Start(Data::Lost) {
            self.store.forget_everything();
        }
        self.faults.server(&fault)
    }

    async fn tamper(&self, name: &LockName, tamper: Tamper) -> Result<(), Declared> {
        match tamper {
            Tamper::Remove => self.store.remove(name),
            Tamper::Spoil | Tamper::OtherVersion => self.faults.spoil(name, true),
        }
        Ok(())
    }

    async fn record(&self, name: &LockName) -> Record {
        let Some(seen) = self.store.inspect(name) else { return Record::default() };
        let holders = seen.holders.iter().map(|lease| lease.ttl_left).collect();
        Record { holders, last_token: seen.last_token, waiters: seen.waiters }
    }

    async fn census(&self) -> Census {
        let census = self.store.census();
        Census {
            leases: census.leases,
            places: census.places,
            fences: census.records,
            tombstones: census.tombstones,
            connections: self.faults.connections(),
            other: 0,
        }
    }

    async fn served(&self) -> u64 {
        self.faults.served()
    }
}
