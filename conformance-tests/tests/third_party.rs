//! The suite on a backend from outside: `examples/third_party_backend.rs`, which shows how to write one.
//!
//! This file is all that it takes. There is no proxy for the protocol of this store, so [`Faults`] breaks the path.

// Outside it is a dependency, as the example has it.
extern crate leasehold_core as leasehold;

#[path = "../../examples/third_party_backend.rs"]
#[expect(dead_code, unreachable_pub, reason = "an example, and here a module: it has a main function and is public")]
mod third_party_backend;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_conformance::{Census, Data, Declared, Faults, Fixture, PathFault, Record, Route, ServerFault, Tamper};
use leasehold_core::backend::LockBackend;
use leasehold_core::{FencingToken, LockName};
use third_party_backend::{Table, TableBackend};

struct TableFixture {
    table: Table,
    faults: Faults,
}

#[async_trait]
impl Fixture for TableFixture {
    async fn new() -> Self {
        Self { table: Table::default(), faults: Faults::new(tokio::runtime::Handle::current()) }
    }

    async fn backend(&self, route: Route) -> Arc<dyn LockBackend> {
        Arc::new(self.faults.wrap(Arc::new(TableBackend::new(&self.table)), route))
    }

    async fn backend_with_retention(&self, _: Duration) -> Result<Arc<dyn LockBackend>, Declared> {
        Err(Declared::because("a row stays for ever"))
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
            return Err(Declared::because("the table lives as long as the process"));
        }
        self.faults.server(&fault)
    }

    async fn tamper(&self, name: &LockName, tamper: Tamper) -> Result<(), Declared> {
        match tamper {
            Tamper::Remove => {
                if let Some(row) = self.table.rows().get_mut(name) {
                    row.lease = None;
                }
            }
            Tamper::Spoil | Tamper::OtherVersion => self.faults.spoil(name, true),
        }
        Ok(())
    }

    async fn record(&self, name: &LockName) -> Record {
        let rows = self.table.rows();
        let Some(row) = rows.get(name) else { return Record::default() };
        let now = Instant::now();
        let left = row.lease.and_then(|(_, until)| until.checked_duration_since(now));
        Record {
            holders: left.filter(|left| !left.is_zero()).into_iter().collect(),
            last_token: (row.token > 0).then(|| FencingToken::new(row.token)),
            waiters: None,
        }
    }

    async fn census(&self) -> Census {
        let rows = self.table.rows();
        let now = Instant::now();
        let leases = rows.values().filter(|row| row.lease.is_some_and(|(_, until)| now < until)).count();
        let withdrawn = rows.values().flat_map(|row| &row.withdrawn).filter(|(_, until)| now < *until).count();
        Census {
            leases: leases as u64,
            fences: rows.len() as u64,
            tombstones: withdrawn as u64,
            connections: self.faults.connections(),
            ..Census::default()
        }
    }

    async fn served(&self) -> u64 {
        self.faults.served()
    }
}

mod table {
    leasehold_conformance::suite!(super::TableFixture);
}
