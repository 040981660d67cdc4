//! Reads the stored format of ZooKeeper without the library.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_conformance::Record;
use leasehold_core::{FencingToken, LockName};
use leasehold_test_servers::{ZooKeeperNode, ZooKeeperSide, percent_encoded};

/// The unit of the server's times, which are rounded down.
const UNIT: Duration = Duration::from_millis(1);

/// The nodes below a root.
pub(super) struct Stored<'a> {
    pub(super) side: &'a ZooKeeperSide,
    /// Begins with a slash, and ends without one.
    pub(super) root: &'a str,
}

impl Stored<'_> {
    pub(super) fn lock(&self, name: &LockName) -> String {
        format!("{}/{}", self.root, percent_encoded(name.as_str()))
    }

    /// The nodes of a lock, in the order of their creation.
    pub(super) fn queue(&self, name: &LockName) -> Vec<ZooKeeperNode> {
        self.try_queue(name).unwrap_or_else(|error| panic!("no nodes: {error}"))
    }

    pub(super) fn try_queue(&self, name: &LockName) -> std::io::Result<Vec<ZooKeeperNode>> {
        self.side.sync()?;
        let mut queue: Vec<_> = self.side.tree(&self.lock(name))?.into_iter().skip(1).collect();
        queue.sort_by_key(|node| node.created);
        Ok(queue)
    }

    /// What is left of a lease, by the clock of the server, which is that of this machine. A session lasts for its ttl
    /// after its last write, and no longer than this server has granted it.
    fn left(&self, node: &ZooKeeperNode) -> Duration {
        let data = String::from_utf8_lossy(&node.data);
        let ttl = data.split('\t').nth(1).and_then(|ttl| ttl.parse().ok()).expect("a node has the ttl of its session");
        let granted = self.side.session_timeouts().unwrap_or_else(|error| panic!("no sessions: {error}"));
        let ttl = granted.get(&node.session).copied().unwrap_or(Duration::MAX).min(Duration::from_millis(ttl));
        let path = format!("{}/.session-{:016x}", self.root, node.session);
        let written = self.side.get(&path).unwrap_or_else(|error| panic!("no session: {error}"));
        let written = written.map(|node| node.changed_at).into_iter();
        // Every write of the session counts.
        let siblings = self.side.tree(self.root).unwrap_or_else(|error| panic!("no nodes: {error}"));
        let created = siblings.iter().filter(|other| other.session == node.session).map(|other| other.created_at);
        let last = created.chain(written).max().unwrap_or(node.created_at);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
        (last + UNIT + ttl).saturating_sub(now)
    }

    pub(super) fn record(&self, name: &LockName) -> Record {
        let queue = self.queue(name);
        let Some(first) = queue.first() else { return Record::default() };
        Record {
            holders: vec![self.left(first)],
            last_token: Some(FencingToken::new(u64::try_from(first.created).expect("a transaction is positive"))),
            waiters: Some(queue.len() as u64 - 1),
        }
    }
}
