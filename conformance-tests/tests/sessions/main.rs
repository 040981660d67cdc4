//! The suite on a store in this process whose leases belong to sessions, and that notifies waiters: what etcd and ZooKeeper need of
//! lock-core.

mod store;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_conformance::{Census, Data, Declared, Faults, Fixture, PathFault, Record, Route, ServerFault, Tamper};
use leasehold_core::backend::LockBackend;
use leasehold_core::{FencingToken, LockName};

use self::store::{SessionBackend, Store};

struct SessionFixture {
    store: Store,
    faults: Faults,
}

#[async_trait]
impl Fixture for SessionFixture {
    async fn new() -> Self {
        Self { store: Store::default(), faults: Faults::new(tokio::runtime::Handle::current()) }
    }

    async fn backend(&self, route: Route) -> Arc<dyn LockBackend> {
        Arc::new(self.faults.wrap(Arc::new(SessionBackend::new(&self.store)), route))
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
            return Err(Declared::because("the store lives as long as the process"));
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
        let state = self.store.state();
        let Some(row) = state.rows.get(name) else { return Record::default() };
        Record {
            holders: state.lease(row).into_iter().collect(),
            last_token: (row.token > 0).then(|| FencingToken::new(row.token)),
            waiters: None,
        }
    }

    async fn census(&self) -> Census {
        let state = self.store.state();
        let now = Instant::now();
        let withdrawn = state.rows.values().flat_map(|row| &row.withdrawn).filter(|(_, until)| now < *until).count();
        Census {
            leases: state.rows.values().filter(|row| state.lease(row).is_some()).count() as u64,
            fences: state.rows.len() as u64,
            tombstones: withdrawn as u64,
            connections: self.faults.connections(),
            ..Census::default()
        }
    }

    async fn served(&self) -> u64 {
        self.faults.served()
    }
}

mod sessions {
    leasehold_conformance::suite!(super::SessionFixture);
}
