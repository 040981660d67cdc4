//! The fixture of etcd: Leasehold on a real etcd of one member.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold::etcd::EtcdBackend;
use leasehold_conformance::harness::TcpPath;
use leasehold_conformance::{
    Data, Fixture, PathFault, Record, ResourceCounts, Room, Route, ServerFault, Tamper, Unsupported,
};
use leasehold_core::LockName;
use leasehold_core::backend::LockBackend;
use leasehold_test_servers::{EtcdAccess, EtcdKeys, EtcdServer, EtcdSettings};

use super::stored::{SECOND, Stored};

/// The time for clients to connect before a fault. They usually need some milliseconds.
const CONNECT_BOUND: Duration = Duration::from_secs(2);

/// For so long the number of connections does not change.
const STABLE: Duration = Duration::from_millis(30);

/// The least permissions, so that every case proves that they are enough.
const USER: &str = "locker";
const PASSWORD: &str = "pass-word";

/// What every key begins with. In a URL, the space is encoded.
const PREFIX: &str = "team a/locks/";

/// An etcd and the path to it.
pub(super) struct EtcdFixture {
    server: Mutex<EtcdServer>,
    path: TcpPath,
}

impl EtcdFixture {
    /// Synchronous on purpose: nothing may be awaited while the server is locked, and every call has a time limit.
    pub(super) fn server(&self) -> MutexGuard<'_, EtcdServer> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URL of clients by this route, with these settings on top.
    pub(super) fn url(&self, route: Route, more: &str) -> String {
        format!("etcd://{USER}:{PASSWORD}@{}/team%20a/locks?timeout=1s{more}", self.path.addr(route))
    }
}

fn permit(server: &EtcdServer) -> std::io::Result<()> {
    server.side().set_user(USER, PASSWORD, &[(EtcdAccess::ReadWrite, EtcdKeys::with_prefix(PREFIX))])
}

#[async_trait]
impl Fixture for EtcdFixture {
    async fn new() -> Self {
        let server = EtcdSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
        let set_up = server.side().enable_users().and_then(|()| permit(&server));
        set_up.unwrap_or_else(|error| panic!("no user: {error}"));
        let path = TcpPath::start(server.addr()).unwrap_or_else(|error| panic!("no fault proxy: {error}"));
        Self { server: Mutex::new(server), path }
    }

    /// Connects if possible, so that a following fault meets a request and not a first connection.
    async fn backend(&self, route: Route) -> Arc<dyn LockBackend> {
        let url = self.url(route, "");
        let connected = match self.path.is_broken(route) {
            true => None,
            false => EtcdBackend::connect(&url).await.ok(),
        };
        let backend = match connected {
            Some(backend) => backend,
            None => EtcdBackend::connect_lazy(&url).unwrap_or_else(|error| panic!("no backend: {error:?}")),
        };
        Arc::new(self.path.wrap(Arc::new(backend), route))
    }

    async fn backend_with_retention(&self, _retention: Duration) -> Result<Arc<dyn LockBackend>, Unsupported> {
        Err(Unsupported::because(
            "the record of a free lock is gone with its last key: tokens are revisions of the store",
        ))
    }

    fn secrets(&self) -> Vec<String> {
        vec![PASSWORD.to_owned()]
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn connected(&self) {
        let until = Instant::now() + CONNECT_BOUND;
        let mut since = None;
        while Instant::now() < until && !self.path.is_broken(Route::Faulty) {
            let connections = self.server().connections().unwrap_or_default();
            let (seen, begin) = *since.get_or_insert((connections, Instant::now()));
            if seen != connections {
                since = None;
            } else if connections >= self.path.clients() && begin.elapsed() > STABLE {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn path(&self, fault: PathFault) {
        // The fault then meets a request and not the first connection.
        self.connected().await;
        self.path.apply(fault);
    }

    async fn heal(&self) {
        self.path.heal();
    }

    async fn deliver(&self) {
        self.path.deliver();
        // The server has begun with what was delivered when it has no more requests to count.
        let mut before = None;
        loop {
            let served = self.served().await;
            if before.replace(served) == Some(served) {
                return;
            }
            tokio::time::sleep(STABLE).await;
        }
    }

    async fn server(&self, fault: ServerFault) -> Result<(), Unsupported> {
        let mut server = self.server();
        let done = match fault {
            ServerFault::Stop => server.stop(),
            ServerFault::Kill => server.kill(),
            ServerFault::Start(Data::Kept) => server.start_again(Data::Kept),
            ServerFault::Start(Data::Lost) => {
                return Err(Unsupported::by_nature(
                    "an etcd without its data is another cluster, whose revisions begin again",
                ));
            }
            ServerFault::Pause => server.pause(),
            ServerFault::Resume => server.resume(),
            ServerFault::RefuseUser => server.side().delete_user(USER),
            ServerFault::Fill(Room::Data) => server.side().raise_no_space(),
            ServerFault::Restore => server.side().disarm().and_then(|()| permit(&server)),
            ServerFault::ReadOnly => return Err(Unsupported::by_nature("a member forwards writes to its leader")),
            ServerFault::Fill(Room::Connections) => {
                return Err(Unsupported::by_nature("it has no limit of connections"));
            }
            ServerFault::FlushScripts => return Err(Unsupported::because("it runs no scripts")),
            ServerFault::ClockForward(_) | ServerFault::ClockBack(_) => {
                return Err(Unsupported::because("its leases end by a clock that is never stepped"));
            }
        };
        done.unwrap_or_else(|error| panic!("the server cannot be {fault:?}: {error}"));
        Ok(())
    }

    async fn tamper(&self, name: &LockName, tamper: Tamper) -> Result<(), Unsupported> {
        let server = self.server();
        let stored = Stored { side: server.side(), prefix: PREFIX };
        let queue = stored.queue_prefix(name);
        let value = match tamper {
            Tamper::Remove => {
                server.side().delete_all(&queue).unwrap_or_else(|error| panic!("not deleted: {error}"));
                return Ok(());
            }
            Tamper::Corrupt => "??",
            Tamper::OtherVersion => "2\thost",
        };
        let first = stored.queue(name).into_iter().next();
        let (key, lease) = match first {
            Some(first) => (first.key, first.lease),
            None => (format!("{queue}{}", "0".repeat(32)).into_bytes(), 0),
        };
        server.side().put(key, value, lease).unwrap_or_else(|error| panic!("not written: {error}"));
        Ok(())
    }

    fn record_step(&self) -> Duration {
        SECOND
    }

    async fn record(&self, name: &LockName) -> Record {
        Stored { side: self.server().side(), prefix: PREFIX }.record(name)
    }

    async fn resource_counts(&self) -> ResourceCounts {
        let server = self.server();
        let counts = Stored { side: server.side(), prefix: PREFIX }.resource_counts();
        let statistics = server.side().statistics().unwrap_or_else(|error| panic!("no statistics: {error}"));
        let connections = server.connections().unwrap_or_else(|error| panic!("no connections: {error}"));
        ResourceCounts { connections, other: statistics.watches(), ..counts }
    }

    async fn served(&self) -> u64 {
        let server = self.server();
        let statistics = server.side().statistics().unwrap_or_else(|error| panic!("no statistics: {error}"));
        // A session is opened and closed as a connection is, and a watch is followed by a read.
        let is_about_locks =
            |method: &str| !matches!(method, "Authenticate" | "LeaseGrant" | "LeaseRevoke" | "Range" | "Watch");
        statistics.requests().iter().filter(|(method, _)| is_about_locks(method)).map(|(_, count)| count).sum()
    }
}
