//! The fixture of the memory backend: the reference for other fixtures without a server.

use std::sync::Arc;

use leasehold_core::LockName;
use leasehold_core::backend::{Clock, LockBackend};
use leasehold_core::memory::{MemoryBackend, MemoryStore};

use crate::fault::Unsupported;
use crate::fixture::{Record, ResourceCounts};
use crate::hooks::{Hooked, Hooks};
use crate::in_process::{InProcess, InProcessStore};

/// The fixture of a [`MemoryStore`].
pub type MemoryFixture = InProcess<Memory>;

/// A [`MemoryStore`], and hooks behind the path to it.
pub struct Memory {
    store: MemoryStore,
    hooks: Option<Arc<dyn Hooks>>,
}

impl Memory {
    /// Ends leases by this clock.
    pub(crate) fn set_clock(&mut self, clock: Arc<dyn Clock>) {
        self.store = MemoryStore::new(clock);
    }

    /// Modifies the store itself, behind the path.
    pub(crate) fn set_hooks(&mut self, hooks: Arc<dyn Hooks>) {
        self.hooks = Some(hooks);
    }
}

impl InProcessStore for Memory {
    fn new() -> Self {
        Self { store: MemoryStore::default(), hooks: None }
    }

    fn backend(&self) -> Arc<dyn LockBackend> {
        let plain: Arc<dyn LockBackend> = Arc::new(MemoryBackend::new(&self.store));
        match &self.hooks {
            None => plain,
            Some(hooks) => Arc::new(Hooked::new(plain, 0, hooks.clone())),
        }
    }

    fn remove(&self, name: &LockName) {
        self.store.remove(name);
    }

    fn lose_data(&self) -> Result<(), Unsupported> {
        self.store.forget_everything();
        Ok(())
    }

    fn record(&self, name: &LockName) -> Record {
        let Some(seen) = self.store.inspect(name) else { return Record::default() };
        let holders = seen.holders.iter().map(|lease| lease.ttl_left).collect();
        Record { holders, last_token: seen.last_token, waiters: seen.waiters }
    }

    fn resource_counts(&self) -> ResourceCounts {
        let resource_counts = self.store.resource_counts();
        ResourceCounts {
            leases: resource_counts.leases,
            places: resource_counts.places,
            fences: resource_counts.records,
            tombstones: resource_counts.tombstones,
            ..ResourceCounts::default()
        }
    }
}
