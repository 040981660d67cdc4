//! The suite on a store in this process whose leases belong to sessions and that notifies waiters, as etcd and
//! ZooKeeper do.

mod store;

use std::sync::Arc;
use std::time::Instant;

use leasehold_conformance::{InProcessStore, Record, ResourceCounts};
use leasehold_core::backend::LockBackend;
use leasehold_core::{FencingToken, LockName};

use self::store::{SessionBackend, Store};

impl InProcessStore for Store {
    fn new() -> Self {
        Self::default()
    }

    fn backend(&self) -> Arc<dyn LockBackend> {
        Arc::new(SessionBackend::new(self))
    }

    fn remove(&self, name: &LockName) {
        self.end(name);
    }

    fn record(&self, name: &LockName) -> Record {
        let state = self.state();
        let Some(row) = state.rows.get(name) else { return Record::default() };
        Record {
            holders: state.lease(row).into_iter().collect(),
            last_token: (row.token > 0).then(|| FencingToken::new(row.token)),
            waiters: None,
        }
    }

    fn resource_counts(&self) -> ResourceCounts {
        let (state, now) = (self.state(), Instant::now());
        let withdrawn = state.rows.values().flat_map(|row| &row.withdrawn).filter(|(_, until)| now < *until).count();
        let leases = state.rows.values().filter(|row| state.lease(row).is_some()).count();
        let fences = state.rows.len() as u64;
        ResourceCounts { leases: leases as u64, fences, tombstones: withdrawn as u64, ..ResourceCounts::default() }
    }
}

mod sessions {
    leasehold_conformance::suite!(leasehold_conformance::InProcess<super::Store>);
}
