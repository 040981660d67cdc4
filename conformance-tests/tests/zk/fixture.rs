//! The fixture of ZooKeeper: Leasehold on a real ZooKeeper, of one server or of several.

use std::collections::BTreeSet;
use std::io;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold::zk::ZkBackend;
use leasehold_conformance::{Data, Record, ResourceCounts, Room, ServerFault, Tamper, Unsupported};
use leasehold_core::LockName;
use leasehold_core::backend::LockBackend;
use leasehold_test_servers::{ZooKeeperLife, ZooKeeperSettings, ZooKeeperSide};

use super::reused::{Reusable, Reused};
use super::servers::{ServersFixture, Store};
use super::stored::Stored;

/// The least permissions, so that every case proves that they are enough.
const USER: &str = "locker";
const PASSWORD: &str = "pass-word";

/// The path of all locks. In a URL, the space is encoded.
pub(super) const ROOT: &str = "/team a/locks";

/// The node above it.
pub(super) const TEAM: &str = "/team a";

/// The name under which the server counts writes below the root.
const NAMESPACE: &str = "team a";

const QUOTA: &str = "/zookeeper/quota/team a/locks";

/// The settings of every server.
pub(super) fn settings() -> ZooKeeperSettings {
    // Otherwise the server would delete empty containers every minute, and count that as a write.
    let settings = ZooKeeperSettings::new().property("znode.container.checkIntervalMs=86400000");
    // The longest ttl, and two of `tick`.
    settings.line("maxSessionTimeout=86400400").line("enforceQuota=true")
}

pub(super) type ZkFixture<D> = ServersFixture<Zk<D>>;

/// A ZooKeeper with these servers.
pub(super) struct Zk<D> {
    /// The number of writes when it was set up.
    writes_before: u64,
    sessions: Mutex<Sessions>,
    servers: PhantomData<fn() -> D>,
}

/// The nodes of sessions. The server deletes each with its session.
#[derive(Default)]
struct Sessions {
    seen: BTreeSet<String>,
    deleted: u64,
}

/// A number of the server's statistics; 0 if it has none of this name yet.
pub(super) fn statistic(side: &ZooKeeperSide, name: &str) -> u64 {
    let statistics = side.statistics().unwrap_or_else(|error| panic!("no statistics: {error}"));
    statistics.get(name).map_or(0, |number| *number as u64)
}

/// The number of requests that have written. The release of a claim that has waited is one request with two writes. A
/// watch reports the first of them, so those are subtracted.
pub(super) fn writes(servers: &impl Reusable) -> u64 {
    statistic(servers.side(), &format!("cnt_{NAMESPACE}_write_per_namespace")) - reported_changes(servers)
}

/// How many writes of a node's data the servers have reported to watches.
fn reported_changes(servers: &impl Reusable) -> u64 {
    let reported = servers.all().iter().map(|server| {
        let statistics = server.side().statistics().unwrap_or_default();
        statistics.get("cnt_node_changed_watch_count").map_or(0, |number| *number as u64)
    });
    reported.sum()
}

/// The names of the nodes of sessions.
pub(super) fn session_nodes(side: &ZooKeeperSide) -> BTreeSet<String> {
    side.sync().unwrap_or_else(|error| panic!("no sync: {error}"));
    let names = side.children(ROOT).unwrap_or_else(|error| panic!("no nodes: {error}"));
    names.into_iter().filter(|name| name.starts_with('.')).collect()
}

impl<D: Reusable> Zk<D> {
    /// How many nodes of sessions the server has deleted.
    fn ended_sessions(&self, side: &ZooKeeperSide) -> u64 {
        let now = session_nodes(side);
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.deleted += sessions.seen.difference(&now).count() as u64;
        sessions.seen = now;
        sessions.deleted
    }
}

/// Creates the root and its user.
pub(super) fn set_up(side: &ZooKeeperSide) -> io::Result<()> {
    for path in [TEAM, ROOT] {
        side.create(path, "", ZooKeeperLife::Persistent)?;
    }
    permit(side, USER)
}

fn permit(side: &ZooKeeperSide, user: &str) -> io::Result<()> {
    side.permit(ROOT, user, PASSWORD)
}

/// Makes the server enforce a quota of nodes below the root, or removes the quota.
fn limit(side: &ZooKeeperSide, nodes: Option<u64>) -> io::Result<()> {
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

impl<D: Reusable> Store for Zk<D> {
    type Servers = D;
    type Taken = Reused<D>;

    const PASSWORD: &'static str = PASSWORD;
    const NO_RETENTION: &'static str =
        "the server removes the node of a free lock by itself: tokens are transactions of the store";
    const LATE_REQUESTS_ARRIVE: bool = false;
    const CONNECTS_AT_ONCE: bool = false;

    fn take() -> io::Result<Reused<D>> {
        Reused::take()
    }

    fn new(servers: &D) -> Self {
        Self { writes_before: writes(servers), sessions: Mutex::default(), servers: PhantomData }
    }

    /// Its tick is longer than that of the servers: on a busy machine the reads come late that keep a session active,
    /// and a lease would get less than its ttl.
    fn url(hosts: &str, more: &str) -> String {
        format!("zk://{USER}:{PASSWORD}@{hosts}/team%20a/locks?timeout=1s&tick=200ms{more}")
    }

    async fn backend(url: String, _is_reachable: bool) -> Arc<dyn LockBackend> {
        Arc::new(ZkBackend::connect_lazy(&url).unwrap_or_else(|error| panic!("no backend: {error:?}")))
    }

    fn connections(servers: &D) -> io::Result<u64> {
        let connected = servers.all().iter().map(|server| server.side().connected_sessions());
        Ok(connected.map(|sessions| sessions.map_or(0, |sessions| sessions.len() as u64)).sum())
    }

    fn fault(servers: &mut D, fault: &ServerFault) -> Result<io::Result<()>, Unsupported> {
        // Called only where it is needed: servers that are stopped have no leader.
        let side = || servers.side();
        Ok(match fault {
            ServerFault::RefuseUser => permit(side(), "nobody"),
            ServerFault::Fill(Room::Data) => limit(side(), Some(1)),
            ServerFault::Restore => limit(side(), None).and_then(|()| permit(side(), USER)),
            ServerFault::Start(Data::Lost) => {
                return Err(Unsupported::by_nature(
                    "a ZooKeeper server without its data is another one, whose transactions begin again",
                ));
            }
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
            of_processes => unreachable!("{of_processes:?}"),
        })
    }

    fn tamper(servers: &D, name: &LockName, tamper: Tamper) {
        let side = servers.side();
        let stored = Stored { side, root: ROOT };
        let lock = stored.lock(name);
        let node = match tamper {
            Tamper::Remove => {
                for node in stored.queue(name) {
                    side.delete(&node.path).unwrap_or_else(|error| panic!("not deleted: {error}"));
                }
                return;
            }
            Tamper::Corrupt => "??",
            Tamper::OtherVersion => "2-0123456789abcdef0123456789abcdef-0000000001",
        };
        if side.get(&lock).unwrap_or_else(|error| panic!("no node: {error}")).is_none() {
            side.create(&lock, "1", ZooKeeperLife::Container).unwrap_or_else(|error| panic!("not created: {error}"));
        }
        let created = side.create(&format!("{lock}/{node}"), "2\thost", ZooKeeperLife::Persistent);
        created.unwrap_or_else(|error| panic!("not created: {error}"));
    }

    fn record(servers: &D, name: &LockName) -> Record {
        Stored { side: servers.side(), root: ROOT }.record(name)
    }

    fn resource_counts(servers: &D) -> ResourceCounts {
        let other = statistic(servers.side(), "watch_count");
        ResourceCounts { other, ..Stored { side: servers.side(), root: ROOT }.resource_counts() }
    }

    fn served(&self, servers: &D) -> u64 {
        let (ended, writes) = (self.ended_sessions(servers.side()), writes(servers));
        (writes - ended).saturating_sub(self.writes_before)
    }
}
