//! The fixture of ZooKeeper: Leasehold on a real ZooKeeper, of one server or of several.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold::zk::ZkBackend;
use leasehold_conformance::harness::TcpPaths;
use leasehold_conformance::{
    Data, Fixture, PathFault, Record, ResourceCounts, Room, Route, ServerFault, Tamper, Unsupported,
};
use leasehold_core::LockName;
use leasehold_core::backend::LockBackend;
use leasehold_test_servers::{ZooKeeperLife, ZooKeeperServer, ZooKeeperSettings, ZooKeeperSide};

use super::reused::{Idle, Reused};
use super::stored::Stored;

/// The time for clients to connect before a fault. They usually need some milliseconds.
const CONNECT_BOUND: Duration = Duration::from_secs(2);

/// For so long the number of connections does not change.
const STABLE: Duration = Duration::from_millis(30);

/// The least permissions, so that every case proves that they are enough.
const USER: &str = "locker";
const PASSWORD: &str = "pass-word";

/// The path of all locks. In a URL, the space is encoded.
pub(super) const ROOT: &str = "/team a/locks";

/// The node above it.
pub(super) const TEAM: &str = "/team a";

/// What the server counts writes below the root under.
const NAMESPACE: &str = "team a";

const QUOTA: &str = "/zookeeper/quota/team a/locks";

/// The settings of every server.
pub(super) fn settings() -> ZooKeeperSettings {
    // The server would delete empty containers every minute, and count that as a write.
    let settings = ZooKeeperSettings::new().property("znode.container.checkIntervalMs=86400000");
    // The longest ttl, and two of `tick`.
    settings.line("maxSessionTimeout=86400400").line("enforceQuota=true")
}

/// The servers.
pub(super) trait Deployment: Send + Sized + 'static {
    /// Those that no case uses.
    fn idle() -> &'static Idle<Self>;

    fn start() -> std::io::Result<Self>;

    fn servers(&self) -> &[ZooKeeperServer];

    fn servers_mut(&mut self) -> &mut [ZooKeeperServer];

    fn each(&mut self, act: impl FnMut(&mut ZooKeeperServer) -> std::io::Result<()>) -> std::io::Result<()> {
        self.servers_mut().iter_mut().try_for_each(act)
    }

    /// Calls beside the library under test.
    fn side(&self) -> &ZooKeeperSide;

    fn start_again(&mut self) -> std::io::Result<()>;
}

/// A ZooKeeper and the path to it.
pub(super) struct ZkFixture<D: Deployment> {
    deployment: Mutex<Reused<D>>,
    pub(super) paths: TcpPaths,
    /// The number of writes when it was set up.
    writes_before: AtomicU64,
    sessions: Mutex<Sessions>,
}

/// The nodes of sessions. The server deletes each with its session.
#[derive(Default)]
struct Sessions {
    seen: BTreeSet<String>,
    deleted: u64,
}

impl<D: Deployment> ZkFixture<D> {
    /// Synchronous on purpose: nothing may be awaited while it is locked, and every call has a time limit.
    pub(super) fn deployment(&self) -> MutexGuard<'_, Reused<D>> {
        self.deployment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URL of clients by this route, with these settings on top. Its tick is longer than that of the servers: on a busy machine the reads
    /// come late that keep a session active, and a lease would get less than its ttl.
    pub(super) fn url(&self, route: Route, more: &str) -> String {
        format!("zk://{USER}:{PASSWORD}@{}/team%20a/locks?timeout=1s&tick=200ms{more}", self.paths.hosts(route))
    }

    fn connections(&self) -> u64 {
        let deployment = self.deployment();
        let connected = deployment.servers().iter().map(|server| server.side().connected_sessions());
        connected.map(|sessions| sessions.map_or(0, |sessions| sessions.len() as u64)).sum()
    }

    /// A number of the server's statistics; 0 if it has none of this name yet.
    pub(super) fn statistic(&self, name: &str) -> u64 {
        let statistics = self.deployment().side().statistics().unwrap_or_else(|error| panic!("no statistics: {error}"));
        statistics.get(name).map_or(0, |number| *number as u64)
    }

    /// A release of a claim that has waited is one request, and two writes. A watch reports the first one.
    pub(super) fn writes(&self) -> u64 {
        let writes = self.statistic(&format!("cnt_{NAMESPACE}_write_per_namespace"));
        writes - self.reported_changes()
    }

    /// How many writes of a node's data the servers have reported to watches.
    fn reported_changes(&self) -> u64 {
        let deployment = self.deployment();
        let reported = deployment.servers().iter().map(|server| {
            let statistics = server.side().statistics().unwrap_or_default();
            statistics.get("cnt_node_changed_watch_count").map_or(0, |number| *number as u64)
        });
        reported.sum()
    }

    /// The names of the nodes of sessions.
    pub(super) fn session_nodes(&self) -> BTreeSet<String> {
        self.deployment().side().sync().unwrap_or_else(|error| panic!("no sync: {error}"));
        let names = self.deployment().side().children(ROOT).unwrap_or_else(|error| panic!("no nodes: {error}"));
        names.into_iter().filter(|name| name.starts_with('.')).collect()
    }

    /// How many nodes of sessions the server has deleted.
    fn ended_sessions(&self) -> u64 {
        let now = self.session_nodes();
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.deleted += sessions.seen.difference(&now).count() as u64;
        sessions.seen = now;
        sessions.deleted
    }
}

/// Creates the root and its user.
pub(super) fn set_up(side: &ZooKeeperSide) -> std::io::Result<()> {
    for path in [TEAM, ROOT] {
        side.create(path, "", ZooKeeperLife::Persistent)?;
    }
    permit(side, USER)
}

fn permit(side: &ZooKeeperSide, user: &str) -> std::io::Result<()> {
    side.permit(ROOT, user, PASSWORD)
}

/// Below this node the server enforces a quota of so many nodes, or does not.
fn limit(side: &ZooKeeperSide, nodes: Option<u64>) -> std::io::Result<()> {
    let limits = format!("{QUOTA}/zookeeper_limits");
    match nodes {
        None => {
            side.delete(&limits)?;
            side.delete(&format!("{QUOTA}/zookeeper_stats")).map(drop)
        }
        Some(nodes) => {
            for (at, _) in QUOTA.match_indices('/').skip(2) {
                if side.get(&QUOTA[..at])?.is_none() {
                    side.create(&QUOTA[..at], "", ZooKeeperLife::Persistent)?;
                }
            }
            if side.get(QUOTA)?.is_none() {
                side.create(QUOTA, "", ZooKeeperLife::Persistent)?;
            }
            let limit = format!("count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit={nodes}");
            side.create(&limits, limit, ZooKeeperLife::Persistent)?;
            side.create(&format!("{QUOTA}/zookeeper_stats"), "count=0,bytes=0", ZooKeeperLife::Persistent).map(drop)
        }
    }
}

#[async_trait]
impl<D: Deployment> Fixture for ZkFixture<D> {
    async fn new() -> Self {
        let deployment = Reused::<D>::take().unwrap_or_else(|error| panic!("{error}"));
        let paths = TcpPaths::start(deployment.servers().iter().map(|server| server.addr()));
        let paths = paths.unwrap_or_else(|error| panic!("no paths: {error}"));
        let fixture = Self {
            deployment: Mutex::new(deployment),
            paths,
            writes_before: AtomicU64::new(0),
            sessions: Mutex::default(),
        };
        fixture.writes_before.store(fixture.writes(), Ordering::Relaxed);
        fixture
    }

    /// Connects if possible, so that a following fault meets a request and not a first connection.
    async fn backend(&self, route: Route) -> Arc<dyn LockBackend> {
        let backend = ZkBackend::connect_lazy(&self.url(route, ""));
        let backend = backend.unwrap_or_else(|error| panic!("no backend: {error:?}"));
        Arc::new(self.paths.wrap(Arc::new(backend), route))
    }

    async fn backend_with_retention(&self, _retention: Duration) -> Result<Arc<dyn LockBackend>, Unsupported> {
        Err(Unsupported::because(
            "the server removes the node of a free lock by itself: tokens are transactions of the store",
        ))
    }

    fn secrets(&self) -> Vec<String> {
        vec![PASSWORD.to_owned()]
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn late_requests_arrive(&self) -> bool {
        false
    }

    async fn connected(&self) {
        let until = Instant::now() + CONNECT_BOUND;
        let mut since = None;
        while Instant::now() < until && !self.paths.is_broken(Route::Faulty) {
            let connections = self.connections();
            let (seen, begin) = *since.get_or_insert((connections, Instant::now()));
            if seen != connections {
                since = None;
            } else if begin.elapsed() > STABLE {
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
        self.paths.deliver();
        // The servers have processed what they read when they count nothing more.
        let mut same = 0;
        let mut before = None;
        while same < 3 {
            tokio::time::sleep(STABLE).await;
            let now = self.served().await;
            same = if before == Some(now) { same + 1 } else { 0 };
            before = Some(now);
        }
    }

    async fn server(&self, fault: ServerFault) -> Result<(), Unsupported> {
        let mut deployment = self.deployment();
        deployment.spoil();
        let done = match fault {
            ServerFault::Stop => deployment.each(|server| server.stop()),
            ServerFault::Kill => deployment.each(|server| server.kill()),
            ServerFault::Start(Data::Kept) => deployment.start_again(),
            ServerFault::Start(Data::Lost) => {
                return Err(Unsupported::by_nature(
                    "a ZooKeeper without its data is another one, whose transactions begin again",
                ));
            }
            ServerFault::Pause => deployment.each(|server| server.pause()),
            ServerFault::Resume => deployment.each(|server| server.resume()),
            ServerFault::RefuseUser => permit(deployment.side(), "nobody"),
            ServerFault::Fill(Room::Data) => limit(deployment.side(), Some(1)),
            ServerFault::Restore => limit(deployment.side(), None).and_then(|()| permit(deployment.side(), USER)),
            ServerFault::ReadOnly => return Err(Unsupported::by_nature("a server forwards writes to its leader")),
            ServerFault::Fill(Room::Connections) => {
                return Err(Unsupported::by_nature(
                    "its limit of connections is set when it starts, and it closes those above it without a reason",
                ));
            }
            ServerFault::FlushScripts => return Err(Unsupported::because("it runs no scripts")),
            ServerFault::ClockForward(_) | ServerFault::ClockBack(_) => {
                return Err(Unsupported::because("its sessions end by a clock that is never stepped"));
            }
        };
        done.unwrap_or_else(|error| panic!("the server cannot be {fault:?}: {error}"));
        Ok(())
    }

    async fn tamper(&self, name: &LockName, tamper: Tamper) -> Result<(), Unsupported> {
        let deployment = self.deployment();
        let side = deployment.side();
        let stored = Stored { side, root: ROOT };
        let lock = stored.lock(name);
        let node = match tamper {
            Tamper::Remove => {
                for node in stored.queue(name) {
                    side.delete(&node.path).unwrap_or_else(|error| panic!("not deleted: {error}"));
                }
                return Ok(());
            }
            Tamper::Corrupt => "??",
            Tamper::OtherVersion => "2-0123456789abcdef0123456789abcdef-0000000001",
        };
        if side.get(&lock).unwrap_or_else(|error| panic!("no node: {error}")).is_none() {
            side.create(&lock, "1", ZooKeeperLife::Container).unwrap_or_else(|error| panic!("not created: {error}"));
        }
        let created = side.create(&format!("{lock}/{node}"), "2\thost", ZooKeeperLife::Persistent);
        created.unwrap_or_else(|error| panic!("not created: {error}"));
        Ok(())
    }

    async fn record(&self, name: &LockName) -> Record {
        Stored { side: self.deployment().side(), root: ROOT }.record(name)
    }

    async fn resource_counts(&self) -> ResourceCounts {
        let counts = Stored { side: self.deployment().side(), root: ROOT }.resource_counts();
        ResourceCounts { connections: self.connections(), other: self.statistic("watch_count"), ..counts }
    }

    async fn served(&self) -> u64 {
        let (ended, writes) = (self.ended_sessions(), self.writes());
        (writes - ended).saturating_sub(self.writes_before.load(Ordering::Relaxed))
    }
}
