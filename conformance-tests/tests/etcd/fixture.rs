//! The fixture of etcd: Leasehold on a real etcd, of one member or of several.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold::etcd::EtcdBackend;
use leasehold_conformance::harness::{Fault, FaultProxy, Reach, TcpPaths};
use leasehold_conformance::{
    Data, Fixture, PathFault, Record, ResourceCounts, Room, Route, ServerFault, Tamper, Unsupported,
};
use leasehold_core::LockName;
use leasehold_core::backend::LockBackend;
use leasehold_test_servers::{EtcdAccess, EtcdKeys, EtcdServer, EtcdSide};

use super::stored::{SECOND, Stored};

/// The time for clients to connect before a fault. They usually need some milliseconds.
const CONNECT_BOUND: Duration = Duration::from_secs(2);

/// For so long the number of connections does not change.
const STABLE: Duration = Duration::from_millis(30);

/// The least permissions, so that every case proves that they are enough.
pub(super) const USER: &str = "locker";
pub(super) const PASSWORD: &str = "pass-word";

/// What every key begins with. In a URL, the space is encoded.
pub(super) const PREFIX: &str = "team a/locks/";

/// The members of an etcd.
pub(super) trait Deployment: Send + Sized + 'static {
    fn start() -> std::io::Result<Self>;

    fn members(&self) -> &[EtcdServer];

    fn members_mut(&mut self) -> &mut [EtcdServer];

    fn each(&mut self, act: impl FnMut(&mut EtcdServer) -> std::io::Result<()>) -> std::io::Result<()> {
        self.members_mut().iter_mut().try_for_each(act)
    }

    /// Calls beside the library under test.
    fn side(&self) -> &EtcdSide;

    fn start_again(&mut self) -> std::io::Result<()>;
}

/// An etcd and the path to it.
pub(super) struct EtcdFixture<D: Deployment> {
    deployment: Mutex<D>,
    paths: TcpPaths,
}

impl<D: Deployment> EtcdFixture<D> {
    /// Synchronous on purpose: nothing may be awaited while it is locked, and every call has a time limit.
    pub(super) fn deployment(&self) -> MutexGuard<'_, D> {
        self.deployment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URL of clients by this route, with these settings on top.
    pub(super) fn url(&self, route: Route, more: &str) -> String {
        format!("etcd://{USER}:{PASSWORD}@{}/team%20a/locks?timeout=1s{more}", self.paths.hosts(route))
    }

    /// The proxies of [`Route::Faulty`].
    pub(super) fn proxies(&self) -> impl Iterator<Item = &FaultProxy> {
        self.paths.proxies()
    }

    fn connections(&self) -> std::io::Result<u64> {
        self.deployment().members().iter().map(|member| member.connections()).sum()
    }

    fn sum(&self, of: impl Fn(&leasehold_test_servers::EtcdStatistics) -> u64) -> u64 {
        let deployment = self.deployment();
        let members = deployment.members().iter();
        let statistics =
            members.map(|member| member.side().statistics().unwrap_or_else(|error| panic!("none: {error}")));
        statistics.map(|statistics| of(&statistics)).sum()
    }
}

/// The number of bytes that a server has not read.
fn unread(addr: SocketAddr) -> u64 {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_else(|error| panic!("no table of sockets: {error}"));
    let port = format!(":{:04X}", addr.port());
    // number, local address, remote address, state, queues for sending and receiving
    let of_server = table.lines().skip(1).filter_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let received = columns.get(4)?.split_once(':')?.1;
        columns.get(1)?.ends_with(&port).then(|| u64::from_str_radix(received, 16).unwrap_or_default())
    });
    of_server.sum()
}

pub(super) fn permit(side: &EtcdSide) -> std::io::Result<()> {
    side.set_user(USER, PASSWORD, &[(EtcdAccess::ReadWrite, EtcdKeys::with_prefix(PREFIX))])
}

#[async_trait]
impl<D: Deployment> Fixture for EtcdFixture<D> {
    async fn new() -> Self {
        let deployment = D::start().unwrap_or_else(|error| panic!("{error}"));
        let paths = TcpPaths::start(deployment.members().iter().map(|member| member.addr()));
        let paths = paths.unwrap_or_else(|error| panic!("no paths: {error}"));
        let side = deployment.side();
        side.enable_users().and_then(|()| permit(side)).unwrap_or_else(|error| panic!("no user: {error}"));
        Self { deployment: Mutex::new(deployment), paths }
    }

    /// Connects if possible, so that a following fault meets a request and not a first connection.
    async fn backend(&self, route: Route) -> Arc<dyn LockBackend> {
        let url = self.url(route, "");
        let connected = match self.paths.is_broken(route) {
            true => None,
            false => EtcdBackend::connect(&url).await.ok(),
        };
        let backend = match connected {
            Some(backend) => backend,
            None => EtcdBackend::connect_lazy(&url).unwrap_or_else(|error| panic!("no backend: {error:?}")),
        };
        Arc::new(self.paths.wrap(Arc::new(backend), route))
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
        while Instant::now() < until && !self.paths.is_broken(Route::Faulty) {
            let connections = self.connections().unwrap_or_default();
            let (seen, begin) = *since.get_or_insert((connections, Instant::now()));
            if seen != connections {
                since = None;
            } else if connections >= self.paths.clients() && begin.elapsed() > STABLE {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn path(&self, fault: PathFault) {
        // The fault then meets a request and not the first connection.
        self.connected().await;
        self.paths.apply(&fault);
    }

    async fn heal(&self) {
        self.paths.heal();
    }

    async fn deliver(&self) {
        // The ends of their connections stay held, because the server cancels what it has read when it reads an end.
        self.proxies().for_each(|proxy| proxy.apply_to(Fault::HalfOpen, Reach::Open));
        self.paths.deliver();
        // The servers have read their sockets, and processed what they read, when they count nothing more.
        let mut same = 0;
        let mut before = None;
        while same < 3 {
            tokio::time::sleep(STABLE).await;
            let unread: u64 = self.deployment().members().iter().map(|member| unread(member.addr())).sum();
            let now = (unread, self.served().await);
            same = if unread == 0 && before == Some(now) { same + 1 } else { 0 };
            before = Some(now);
        }
        if !self.paths.is_broken(Route::Faulty) {
            self.proxies().for_each(FaultProxy::heal);
        }
    }

    async fn server(&self, fault: ServerFault) -> Result<(), Unsupported> {
        let mut deployment = self.deployment();
        let done = match fault {
            ServerFault::Stop => deployment.each(|member| member.stop()),
            ServerFault::Kill => deployment.each(|member| member.kill()),
            ServerFault::Start(Data::Kept) => deployment.start_again(),
            ServerFault::Start(Data::Lost) => {
                return Err(Unsupported::by_nature(
                    "an etcd without its data is another cluster, whose revisions begin again",
                ));
            }
            ServerFault::Pause => deployment.each(|member| member.pause()),
            ServerFault::Resume => deployment.each(|member| member.resume()),
            ServerFault::RefuseUser => deployment.side().delete_user(USER),
            ServerFault::Fill(Room::Data) => deployment.side().raise_no_space(),
            ServerFault::Restore => deployment.side().disarm().and_then(|()| permit(deployment.side())),
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
        let deployment = self.deployment();
        let side = deployment.side();
        let stored = Stored { side, prefix: PREFIX };
        let queue = stored.queue_prefix(name);
        let value = match tamper {
            Tamper::Remove => {
                side.delete_all(&queue).unwrap_or_else(|error| panic!("not deleted: {error}"));
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
        side.put(key, value, lease).unwrap_or_else(|error| panic!("not written: {error}"));
        Ok(())
    }

    fn record_step(&self) -> Duration {
        SECOND
    }

    async fn record(&self, name: &LockName) -> Record {
        Stored { side: self.deployment().side(), prefix: PREFIX }.record(name)
    }

    async fn resource_counts(&self) -> ResourceCounts {
        let counts = Stored { side: self.deployment().side(), prefix: PREFIX }.resource_counts();
        let connections = self.connections().unwrap_or_else(|error| panic!("no connections: {error}"));
        ResourceCounts { connections, other: self.sum(|statistics| statistics.watches()), ..counts }
    }

    async fn served(&self) -> u64 {
        // A session is opened and closed as a connection is, and a watch is followed by a read.
        let is_about_locks =
            |method: &str| !matches!(method, "Authenticate" | "LeaseGrant" | "LeaseRevoke" | "Range" | "Watch");
        self.sum(|statistics| {
            let requests = statistics.requests();
            requests.iter().filter(|(method, _)| is_about_locks(method)).map(|(_, count)| count).sum()
        })
    }
}
