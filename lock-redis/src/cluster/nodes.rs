//! The nodes of a cluster, and a client's connections to them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::CoreHandle;
use leasehold_core::backend::kit::{Attachment, TlsFiles, lock};
use leasehold_core::{Error, ErrorKind, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::node::ClusterNode;
use super::topology::Topology;
use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::errors::not_connected;
use crate::keys::Keys;
use crate::manager::Inner;
use crate::sentinel::{Address, half_until};
use crate::server::Server;
use crate::settings::{self, Settings};
use crate::shared::Shared;

/// A node that serves no slots any more is kept for this time, for the calls that use it, and because it may be given
/// some again.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// How often the nodes are asked beside the calls. Until then, two clients may keep the ttls of a node under different
/// keys, if the slot of one of them was moved.
const REFRESH: Duration = Duration::from_secs(10);

/// The nodes are not asked again beside calls before this time has passed: many calls fail together.
const SELDOM: Duration = Duration::from_millis(100);

pub(crate) struct Cluster {
    pub(crate) settings: Settings,
    pub(crate) keys: Keys,
    pub(super) topology: Arc<Topology>,
    /// Has the user and the TLS of every node, and the address of one.
    client: redis::Client,
    tls: TlsFiles,
    core: Attachment,
    /// With the time when a node was last used.
    servers: Mutex<HashMap<Address, (Arc<Server>, Instant)>>,
    /// Held while the nodes are asked.
    asking: tokio::sync::Mutex<()>,
    /// When the nodes were asked beside a call.
    asked: Mutex<Option<Instant>>,
}

/// The nodes of the URL.
impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seeds: Vec<_> = self.topology.seeds.iter().map(Address::to_string).collect();
        f.write_str(&seeds.join(", "))
    }
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Address>, client: redis::Client, tls: TlsFiles, settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            keys: Keys::new(&settings.prefix, rand::random()),
            settings,
            topology: Arc::new(Topology::new(seeds)),
            client,
            tls,
            core: Attachment::new(),
            servers: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            asked: Mutex::default(),
        })
    }

    pub(crate) fn attach(self: &Arc<Self>, core: CoreHandle) {
        if self.core.attach(core.clone()) {
            let it = Arc::downgrade(self);
            core.keeper_runtime().spawn(async move {
                loop {
                    sleep(REFRESH).await;
                    let Some(it) = it.upgrade() else { return };
                    it.refresh_beside();
                    it.forget_former_nodes();
                }
            });
            let servers: Vec<_> = lock(&self.servers).values().map(|(server, _)| server.clone()).collect();
            servers.iter().for_each(|server| server.attach(core.clone()));
        }
    }

    /// The node that is reached at this address.
    pub(super) fn server(&self, at: &Address) -> Result<Arc<Server>> {
        let mut servers = lock(&self.servers);
        if let Some((server, used)) = servers.get_mut(at) {
            *used = Instant::now();
            return Ok(server.clone());
        }
        let Settings { timeout, connect_timeout, .. } = self.settings;
        let client = settings::moved(&self.client, at)?;
        let endpoint = Endpoint::new(&client, self.tls.clone(), timeout, connect_timeout)?;
        let node = ClusterNode::new(at.clone(), self.topology.clone());
        let server = Arc::new(Server::new(Shared::of(endpoint, self.settings.clone(), self.keys.clone(), Some(node))));
        if let Some(core) = self.core.get() {
            server.attach(core.clone());
        }
        servers.insert(at.clone(), (server.clone(), Instant::now()));
        Ok(server)
    }

    /// A connection to each node that serves slots, as the nodes say now.
    ///
    /// # Errors
    /// A node cannot be reached.
    pub(crate) async fn connections(&self, until: Instant) -> Result<Vec<Arc<Connection>>> {
        self.refresh(until).await?;
        let mut connections = Vec::new();
        for at in self.topology.nodes() {
            connections.push(self.server(&at)?.manager()?.connection(until).await?);
        }
        Ok(connections)
    }

    /// Asks all nodes which of them serves which slot. Takes what the first one replies, and what others know better
    /// that reply soon. Cancel safe.
    ///
    /// # Errors
    /// `Unavailable`, or the error of a node that cannot be used: no node that has replied knows the cluster.
    pub(crate) async fn refresh(&self, until: Instant) -> Result<()> {
        let before = self.topology.readings();
        // The call that asks may belong to a runtime that is busy with something else, so the others do not wait for
        // long.
        let _one = timeout_at(half_until(until), self.asking.lock()).await;
        if self.topology.readings() != before && !self.topology.nodes().is_empty() {
            return Ok(());
        }
        let mut at = self.topology.nodes();
        at.extend(self.topology.seeds.iter().filter(|seed| !at.contains(seed)).cloned().collect::<Vec<_>>());
        let (begin, mut asked) = (Instant::now(), JoinSet::new());
        for at in &at {
            let manager = self.server(at)?.manager()?;
            asked.spawn(async move { ask(&manager, until).await });
        }
        let (mut error, mut end) = (None, None);
        while let Ok(Some(done)) = timeout_at(end.unwrap_or(until), asked.join_next()).await {
            match done {
                Ok(Ok(())) => {
                    end = end.or_else(|| Some((Instant::now() + begin.elapsed() + STRAGGLE).min(until)));
                }
                Ok(Err(why)) => error = error.or(Some(why)),
                // Its task has panicked.
                Err(_) => {}
            }
        }
        if self.topology.nodes().is_empty() {
            let unknown = || Error::new(ErrorKind::Unavailable, NO_SLOTS);
            return Err(error.unwrap_or_else(unknown));
        }
        if end.is_none() {
            return Err(error.unwrap_or_else(Error::not_sent));
        }
        self.note_former_nodes();
        Ok(())
    }

    /// The same, beside the calls.
    pub(super) fn refresh_beside(self: &Arc<Self>) {
        {
            let mut asked = lock(&self.asked);
            if asked.is_some_and(|at| at.elapsed() < SELDOM) {
                return;
            }
            *asked = Some(Instant::now());
        }
        let it = self.clone();
        let refresh = async move {
            let until = Instant::now() + it.settings.timeout;
            if let Err(error) = it.refresh(until).await {
                tracing::debug!(backend = crate::errors::BACKEND, %error, "no node says which one serves which slot");
            }
        };
        match self.core.get() {
            Some(core) => drop(core.keeper_runtime().spawn(refresh)),
            None => drop(tokio::spawn(refresh)),
        }
    }

    /// A node that serves nothing now may be demoted, and promoted again later: it is read again before it is used.
    fn note_former_nodes(&self) {
        let nodes = self.topology.nodes();
        for (at, (server, _)) in &*lock(&self.servers) {
            if !nodes.contains(at) {
                server.shared.note_replacement();
            }
        }
    }

    /// Closes the connections to nodes that serve nothing, and that no call has used for a while.
    fn forget_former_nodes(&self) {
        let nodes = self.topology.nodes();
        lock(&self.servers).retain(|at, (_, used)| {
            nodes.contains(at) || self.topology.seeds.contains(at) || used.elapsed() < KEPT_FOR
        });
    }
}

/// Asks a node. Nothing is sent that could have an effect.
async fn ask(manager: &Inner, until: Instant) -> Result<()> {
    let attempts = manager.attempts();
    let connection = manager.connection(until).await?;
    match &connection.protocol().node {
        // A new connection has asked already.
        Some(node) if manager.attempts() == attempts => {
            let lost = |failure| not_connected(failure, connection.address());
            node.identify(&connection, until).await.map_err(lost)?.map(drop)
        }
        _ => Ok(()),
    }
}

/// How much longer than the first node the others may take, beside its own time.
const STRAGGLE: Duration = Duration::from_millis(20);

const NO_SLOTS: &str = "the node has not joined a Redis Cluster, or no node of it serves slots";
