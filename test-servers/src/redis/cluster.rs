//! A real Redis Cluster for one test.

use std::io;
use std::time::{Duration, Instant};

use super::{RedisServer, RedisSettings, Reply};

/// How long the nodes may take to agree.
const BOUND: Duration = Duration::from_secs(30);

const SLOTS: usize = 16_384;

/// Primaries that share the slots evenly, each with one replica. It needs Redis 7.0 or later.
#[derive(Debug)]
pub struct RedisCluster {
    /// The primaries, and then their replicas in the same order.
    pub nodes: Vec<RedisServer>,
    primaries: usize,
}

impl RedisCluster {
    /// Starts it, and waits until all nodes serve and the replicas are connected.
    ///
    /// # Errors
    /// If a server does not start, or the nodes do not agree.
    pub fn start(primaries: usize, settings: &RedisSettings) -> io::Result<Self> {
        let nodes =
            (0..primaries * 2).map(|_| settings.clone().cluster_node().start()).collect::<io::Result<Vec<_>>>()?;
        let it = Self { nodes, primaries };
        for (number, node) in it.nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
        }
        let (ip, port, bus) = it.nodes[0].cluster_address();
        for node in &it.nodes[1..] {
            node.command(&["CLUSTER", "MEET", &ip, &port, &bus])?;
        }
        for (number, node) in it.nodes[..primaries].iter().enumerate() {
            let first = SLOTS * number / primaries;
            let last = SLOTS * (number + 1) / primaries - 1;
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
        }
        it.know_each_other()?;
        for (replica, primary) in it.nodes[primaries..].iter().zip(&it.nodes) {
            let id = primary.command(&["CLUSTER", "MYID"])?.text();
            replica.command(&["CLUSTER", "REPLICATE", &id])?;
        }
        let wanted = format!("cluster_state:ok cluster_slots_assigned:{SLOTS} cluster_size:{primaries}");
        it.all("serve", |node| {
            let info = node.command(&["CLUSTER", "INFO"])?.text();
            let is_up = wanted.split(' ').all(|line| info.lines().any(|found| found == line));
            let role = node.command(&["INFO", "replication"])?.text();
            Ok(is_up && (role.contains("connected_slaves:1") || role.contains("master_link_status:up")))
        })?;
        Ok(it)
    }

    /// Another node joins, without slots and without a replica. Returns its number.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn join(&mut self, settings: &RedisSettings) -> io::Result<usize> {
        let node = settings.clone().cluster_node().start()?;
        let (ip, port, bus) = self.nodes[0].cluster_address();
        node.command(&["CLUSTER", "MEET", &ip, &port, &bus])?;
        self.nodes.push(node);
        self.know_each_other()?;
        self.all("serve", |node| Ok(node.command(&["CLUSTER", "INFO"])?.text().contains("cluster_state:ok")))?;
        Ok(self.nodes.len() - 1)
    }

    /// The slot of a key.
    ///
    /// # Errors
    /// Those of [`RedisServer::command`].
    pub fn slot(&self, key: &str) -> io::Result<u16> {
        let slot = self.nodes[0].command(&["CLUSTER", "KEYSLOT", key])?.int();
        slot.and_then(|slot| u16::try_from(slot).ok()).ok_or_else(|| io::Error::other("KEYSLOT is no slot"))
    }

    /// The node that began with this slot.
    pub fn owner(&self, slot: u16) -> usize {
        (0..self.primaries).rfind(|number| SLOTS * number / self.primaries <= usize::from(slot)).unwrap_or(0)
    }

    /// Begins to move a slot. No key has moved.
    ///
    /// # Errors
    /// Those of [`RedisServer::command`].
    pub fn begin_to_move(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        let (source, target) = (self.id(from)?, self.id(to)?);
        self.nodes[to].command(&["CLUSTER", "SETSLOT", &slot.to_string(), "IMPORTING", &source])?;
        self.nodes[from].command(&["CLUSTER", "SETSLOT", &slot.to_string(), "MIGRATING", &target])?;
        Ok(())
    }

    /// Moves one key.
    ///
    /// # Errors
    /// Those of [`RedisServer::command`], also if there is no such key.
    pub fn move_key(&self, key: &[u8], from: usize, to: usize) -> io::Result<()> {
        match self.migrate(key, from, to)? {
            text if text == "OK" => Ok(()),
            other => Err(io::Error::other(format!("no key is moved: {other}"))),
        }
    }

    /// Moves the keys that the source still has, such as the note about a withdrawn request. Then all nodes learn that
    /// the slot has moved.
    ///
    /// # Errors
    /// Those of [`RedisServer::command`], also if the target has one of the keys already.
    pub fn end_the_move(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        let begin = Instant::now();
        loop {
            let left = self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"])?.items();
            if left.is_empty() {
                break;
            }
            if begin.elapsed() > BOUND {
                return Err(io::Error::other(format!("the source has keys of the slot after {BOUND:?}: {left:?}")));
            }
            for key in left {
                if let Reply::Bytes(key) = key {
                    // The reply is not `OK` for a key that has expired since. It is not listed again.
                    self.migrate(&key, from, to)?;
                }
            }
        }
        let target = self.id(to)?;
        let primaries = (0..self.primaries).filter(|node| ![from, to].contains(node));
        for node in [to, from].into_iter().chain(primaries) {
            self.nodes[node].command(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &target])?;
        }
        Ok(())
    }

    /// Returns what the source replies.
    fn migrate(&self, key: &[u8], from: usize, to: usize) -> io::Result<String> {
        let (ip, port, _) = self.nodes[to].cluster_address();
        let moved = self.nodes[from].command(&[b"MIGRATE", ip.as_bytes(), port.as_bytes(), key, b"0", b"5000"])?;
        Ok(moved.text())
    }

    /// Waits until each node knows all the others, and not only their addresses.
    fn know_each_other(&self) -> io::Result<()> {
        self.all("know each other", |node| {
            let known = node.command(&["CLUSTER", "NODES"])?.text();
            let lines: Vec<_> = known.lines().filter(|line| !line.is_empty()).collect();
            Ok(lines.len() == self.nodes.len() && lines.iter().all(|line| !line.contains("handshake")))
        })
    }

    fn id(&self, node: usize) -> io::Result<String> {
        Ok(self.nodes[node].command(&["CLUSTER", "MYID"])?.text())
    }

    fn all(&self, what: &str, is_so: impl Fn(&RedisServer) -> io::Result<bool>) -> io::Result<()> {
        let begin = Instant::now();
        for node in &self.nodes {
            while !is_so(node)? {
                if begin.elapsed() > BOUND {
                    return Err(io::Error::other(format!("the nodes of the cluster do not {what} within {BOUND:?}")));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}
