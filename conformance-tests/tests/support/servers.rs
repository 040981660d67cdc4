//! The fixture of a store that clients reach over TCP, with one server or several. What differs between stores is a
//! [`Store`], and what differs between one server and several is a [`Servers`].

use std::io;
use std::net::SocketAddr;
use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_conformance::harness::{Fault, FaultProxy, Reach, TcpPaths};
use leasehold_conformance::{
    Data, Fixture, PathFault, Record, ResourceCounts, Route, ServerFault, Tamper, Unsupported,
};
use leasehold_core::LockName;
use leasehold_core::backend::LockBackend;
use leasehold_test_servers::ServerProcess;

/// The time for clients to connect before a fault. They usually need some milliseconds.
const CONNECT_BOUND: Duration = Duration::from_secs(2);

/// The number of connections counts as stable when it has not changed for this long.
const STABLE: Duration = Duration::from_millis(30);

/// One server of a store, or all servers of a cluster.
pub(super) trait Servers: Send + Sized + 'static {
    type Server: DerefMut<Target = ServerProcess>;
    /// Calls beside the library under test.
    type Side;

    fn start() -> io::Result<Self>;

    fn all(&self) -> &[Self::Server];

    fn all_mut(&mut self) -> &mut [Self::Server];

    /// The side of a server that knows all acknowledged writes.
    fn side(&self) -> &Self::Side;

    /// Starts all servers again with their data.
    fn start_again(&mut self) -> io::Result<()>;
}

/// A store, as its clients and its tests use it.
pub(super) trait Store: Send + Sync + Sized + 'static {
    type Servers: Servers;
    /// Keeps the servers of a case. Every fault borrows them mutably, and the next case must not get servers that had a
    /// fault.
    type Taken: DerefMut<Target = Self::Servers> + Send;

    const PASSWORD: &'static str;
    /// Why no backend can be made with another retention.
    const NO_RETENTION: &'static str;
    /// [`Fixture::record_step`].
    const RECORD_STEP: Duration = Duration::ZERO;
    /// [`Fixture::late_requests_arrive`].
    const LATE_REQUESTS_ARRIVE: bool = true;
    /// [`Fixture::back_within`].
    const BACK_WITHIN: Duration = Duration::from_secs(2);
    /// A client has a connection as soon as its backend is attached.
    const CONNECTS_AT_ONCE: bool = true;
    /// A server cancels the requests of a connection that have no reply yet, when it reads the end of that
    /// connection.
    const CANCELS_AT_END: bool = false;

    /// Servers without locks, and with the least permissions for the user in the URL.
    fn take() -> io::Result<Self::Taken>;

    /// Notes what the servers have counted until now.
    fn new(servers: &Self::Servers) -> Self;

    /// The URL of clients, with these settings on top.
    fn url(hosts: &str, more: &str) -> String;

    /// A backend with this URL.
    fn backend(url: String, is_reachable: bool) -> impl Future<Output = Arc<dyn LockBackend>> + Send;

    /// Makes servers that were never used what every client but the first one finds.
    fn first_use(_url: String, _servers: &Mutex<Self::Taken>) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// The number of connections of clients.
    fn connections(servers: &Self::Servers) -> io::Result<u64>;

    /// A fault other than those of processes.
    fn fault(servers: &mut Self::Servers, fault: &ServerFault) -> Result<io::Result<()>, Unsupported>;

    /// [`Fixture::tamper`].
    fn tamper(servers: &Self::Servers, name: &LockName, tamper: Tamper);

    /// [`Fixture::record`].
    fn record(servers: &Self::Servers, name: &LockName) -> Record;

    /// [`Fixture::resource_counts`] without connections.
    fn resource_counts(servers: &Self::Servers) -> ResourceCounts;

    /// [`Fixture::served`].
    fn served(&self, servers: &Self::Servers) -> u64;
}

/// The servers of a case, and the paths to them. Each fault affects all of them.
pub(super) struct ServersFixture<S: Store> {
    servers: Mutex<S::Taken>,
    paths: TcpPaths,
    store: S,
    /// A client has come.
    is_used: AtomicBool,
}

impl<S: Store> ServersFixture<S> {
    /// Synchronous on purpose: nothing may be awaited while it is locked, and every call has a time limit.
    pub(super) fn deployment(&self) -> MutexGuard<'_, S::Taken> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URL of clients by this route, with these settings on top.
    pub(super) fn url(&self, route: Route, more: &str) -> String {
        S::url(&self.paths.hosts(route), more)
    }

    /// The proxies of [`Route::Faulty`].
    pub(super) fn proxies(&self) -> impl Iterator<Item = &FaultProxy> {
        self.paths.proxies()
    }

    /// The number of bytes that no server has read yet.
    fn unread(&self) -> u64 {
        self.deployment().all().iter().map(|server| unread(server.addr())).sum()
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

fn each(servers: &mut impl Servers, act: fn(&mut ServerProcess) -> io::Result<()>) -> io::Result<()> {
    servers.all_mut().iter_mut().try_for_each(|server| act(server))
}

#[async_trait]
impl<S: Store> Fixture for ServersFixture<S> {
    async fn new() -> Self {
        let servers = S::take().unwrap_or_else(|error| panic!("{error}"));
        let paths = TcpPaths::start(servers.all().iter().map(|server| server.addr()));
        let paths = paths.unwrap_or_else(|error| panic!("no paths: {error}"));
        let store = S::new(&servers);
        Self { servers: Mutex::new(servers), paths, store, is_used: AtomicBool::new(false) }
    }

    async fn backend(&self, route: Route) -> Arc<dyn LockBackend> {
        let is_reachable = !self.paths.is_broken(route);
        if is_reachable && !self.is_used.swap(true, Ordering::Relaxed) {
            S::first_use(self.url(Route::Clear, ""), &self.servers).await;
        }
        let backend = S::backend(self.url(route, ""), is_reachable).await;
        Arc::new(self.paths.wrap(backend, route))
    }

    async fn backend_with_retention(&self, _retention: Duration) -> Result<Arc<dyn LockBackend>, Unsupported> {
        Err(Unsupported::because(S::NO_RETENTION))
    }

    fn secrets(&self) -> Vec<String> {
        vec![S::PASSWORD.to_owned()]
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn late_requests_arrive(&self) -> bool {
        S::LATE_REQUESTS_ARRIVE
    }

    fn back_within(&self) -> Duration {
        S::BACK_WITHIN
    }

    async fn connected(&self) {
        let until = Instant::now() + CONNECT_BOUND;
        let mut since = None;
        while Instant::now() < until && !self.paths.is_broken(Route::Faulty) {
            let connections = S::connections(&self.deployment()).unwrap_or_default();
            let fewest = if S::CONNECTS_AT_ONCE { self.paths.clients() } else { 0 };
            let (seen, begin) = *since.get_or_insert((connections, Instant::now()));
            if seen != connections {
                since = None;
            } else if connections >= fewest && begin.elapsed() > STABLE {
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
        if S::CANCELS_AT_END {
            // Keeps the ends of the connections from the servers.
            self.proxies().for_each(|proxy| proxy.apply_to(Fault::HalfOpen, Reach::Open));
        }
        self.paths.deliver();
        // The servers have read their sockets, and processed what they read, when they count nothing more.
        let mut same = 0;
        let mut before = None;
        while same < 3 {
            tokio::time::sleep(STABLE).await;
            let now = (self.unread(), self.served().await);
            same = if now.0 == 0 && before == Some(now) { same + 1 } else { 0 };
            before = Some(now);
        }
        if S::CANCELS_AT_END && !self.paths.is_broken(Route::Faulty) {
            self.proxies().for_each(FaultProxy::heal);
        }
    }

    async fn server(&self, fault: ServerFault) -> Result<(), Unsupported> {
        let mut taken = self.deployment();
        let servers = &mut **taken;
        let done = match &fault {
            ServerFault::Stop => each(servers, ServerProcess::stop),
            ServerFault::Kill => each(servers, ServerProcess::kill),
            ServerFault::Start(Data::Kept) => servers.start_again(),
            ServerFault::Pause => each(servers, ServerProcess::pause),
            ServerFault::Resume => each(servers, ServerProcess::resume),
            fault => S::fault(servers, fault)?,
        };
        done.unwrap_or_else(|error| panic!("the server cannot be {fault:?}: {error}"));
        Ok(())
    }

    async fn tamper(&self, name: &LockName, tamper: Tamper) -> Result<(), Unsupported> {
        S::tamper(&self.deployment(), name, tamper);
        Ok(())
    }

    fn record_step(&self) -> Duration {
        S::RECORD_STEP
    }

    async fn record(&self, name: &LockName) -> Record {
        S::record(&self.deployment(), name)
    }

    async fn resource_counts(&self) -> ResourceCounts {
        let servers = self.deployment();
        let connections = S::connections(&servers).unwrap_or_else(|error| panic!("no connections: {error}"));
        ResourceCounts { connections, ..S::resource_counts(&servers) }
    }

    async fn served(&self) -> u64 {
        self.store.served(&self.deployment())
    }
}
