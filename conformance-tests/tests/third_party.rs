//! The suite on an external backend, `examples/third_party_backend.rs`, which shows how to write one. It needs only
//! this file.

// In another crate it is a dependency, as in the example.
extern crate leasehold_core as leasehold;

#[path = "../../examples/third_party_backend.rs"]
#[expect(dead_code, unreachable_pub, reason = "an example, and here a module: it has a main function and is public")]
mod third_party_backend;

use std::sync::Arc;
use std::time::Instant;

use leasehold_conformance::{InProcessStore, Record, ResourceCounts};
use leasehold_core::backend::LockBackend;
use leasehold_core::{FencingToken, LockName};
use third_party_backend::{Table, TableBackend};

impl InProcessStore for Table {
    fn new() -> Self {
        Self::default()
    }

    fn backend(&self) -> Arc<dyn LockBackend> {
        Arc::new(TableBackend::new(self))
    }

    fn remove(&self, name: &LockName) {
        self.rows().entry(name.clone()).or_default().lease = None;
    }

    fn record(&self, name: &LockName) -> Record {
        let row = self.rows().get(name).cloned().unwrap_or_default();
        let left = row.lease.map(|(_, until)| until.saturating_duration_since(Instant::now()));
        Record {
            holders: left.filter(|left| !left.is_zero()).into_iter().collect(),
            last_token: (row.token > 0).then(|| FencingToken::new(row.token)),
            waiters: None,
        }
    }

    fn resource_counts(&self) -> ResourceCounts {
        let (rows, now) = (self.rows(), Instant::now());
        let leases = rows.values().filter(|row| row.lease.is_some_and(|(_, until)| now < until)).count();
        let withdrawn = rows.values().flat_map(|row| &row.withdrawn).filter(|(_, until)| now < *until).count();
        ResourceCounts {
            leases: leases as u64,
            fences: rows.len() as u64,
            tombstones: withdrawn as u64,
            ..ResourceCounts::default()
        }
    }
}

mod table {
    leasehold_conformance::suite!(leasehold_conformance::InProcess<super::Table>);
}
