//! What a connection asks a node of a cluster before it uses it.

use std::sync::Arc;

use leasehold_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::map::Map;
use super::topology::{Topology, View};
use crate::connection::Connection;
use crate::errors::Failure;
use crate::info::Info;
use crate::replies::text;
use crate::sentinel::Address;

/// A node, for the connections to it.
pub(crate) struct ClusterNode {
    /// Where it is reached.
    pub(crate) address: Address,
    pub(crate) topology: Arc<Topology>,
}

/// What a node has said of itself and of the others.
pub(crate) struct Identity {
    view: View,
    /// The hash tags of slots that are just being moved. An abandoned move must not keep clients from a node.
    moving: Vec<String>,
}

/// How many slots of a node may be moved at once without keeping clients from it.
const MOST_MOVING: usize = 8;

impl Identity {
    /// Its name in the cluster.
    pub(crate) fn id(&self) -> &str {
        &self.view.id
    }

    /// A hash tag of one of its slots. `None`: it serves none, as a replica.
    pub(crate) fn tag(&self) -> Option<String> {
        self.view.map.tag_of(&self.view.id, &self.moving)
    }

    /// The slot of the tag is just being moved. Returns whether there is another one.
    pub(crate) fn avoid(&mut self, tag: String) -> bool {
        self.moving.push(tag);
        self.moving.len() <= MOST_MOVING && self.tag().is_some()
    }

    /// Whether the node with this name serves slots.
    pub(crate) fn serves(&self, id: &str) -> bool {
        self.view.map.nodes().iter().any(|node| node.id.as_deref() == Some(id))
    }
}

impl ClusterNode {
    pub(super) fn new(address: Address, topology: Arc<Topology>) -> Self {
        Self { address, topology }
    }

    /// Asks the node who it is, and which node serves which slot. The outer error is that of the connection, the inner
    /// one that of the node.
    pub(crate) async fn identify(&self, connection: &Connection, until: Instant) -> Result<Result<Identity>, Failure> {
        // One after the other, without waiting for the replies.
        let (id, info, slots) = tokio::join!(
            biased;
            connection.query(&["CLUSTER", "MYID"], until),
            connection.query(&["CLUSTER", "INFO"], until),
            connection.query(&["CLUSTER", "SLOTS"], until),
        );
        let id = match id {
            Err(Failure::ErrorReply(text)) if text.contains("cluster support disabled") => {
                let text = format!("{NO_NODE} ({})", self.address);
                return Ok(Err(Error::new(ErrorKind::Unsupported, text)));
            }
            id => text(&id?).ok_or(Failure::UnexpectedReply)?,
        };
        let epoch = Info::of(&text(&info?).ok_or(Failure::UnexpectedReply)?).number("cluster_current_epoch");
        let map = Arc::new(Map::read(&slots?, &self.address).ok_or(Failure::UnexpectedReply)?);
        let view = View { id, epoch, map };
        self.topology.learn(&view, &self.address);
        Ok(Ok(Identity { view, moving: Vec::new() }))
    }
}

const NO_NODE: &str = "the server belongs to no Redis Cluster: use `redis://` for a single server";
