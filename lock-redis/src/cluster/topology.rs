//! What a client knows of the nodes of a cluster.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use leasehold_core::backend::kit::lock;

use super::map::{Map, Node};
use super::slots::Slot;
use crate::epochs::Epochs;
use crate::errors::BACKEND;
use crate::sentinel::Address;

/// Shared by all connections of a client to the nodes of a cluster.
pub(crate) struct Topology {
    /// The nodes of the URL.
    pub(super) seeds: Vec<Address>,
    state: Mutex<State>,
    pub(crate) epochs: Arc<Mutex<Epochs>>,
}

/// What a node has replied.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// The name of the node.
    pub(super) id: String,
    /// `cluster_current_epoch`: rises with each failover, and with each slot that is moved.
    pub(super) epoch: u64,
    pub(super) map: Arc<Map>,
}

#[derive(Default)]
struct State {
    /// `None` before the first node has replied.
    map: Option<Arc<Map>>,
    epoch: u64,
    /// Where the URL names the node with this name. It is reached there whatever address it announces to the others:
    /// there may be a NAT, a tunnel or a proxy in between.
    named: HashMap<String, Address>,
    /// Which nodes have replied at an address of the URL. More than one, if it leads to any node, or if the nodes have
    /// exchanged their addresses: then it is none of theirs.
    shown: HashMap<Address, HashSet<String>>,
    /// How often a whole map was read.
    readings: u64,
    /// How often the map has changed.
    changes: u64,
}

impl State {
    fn reached_at(&self, node: &Node) -> Address {
        node.id.as_ref().and_then(|id| self.named.get(id)).unwrap_or(&node.address).clone()
    }

    fn name(&mut self, id: &str, at: &Address) {
        let shown = self.shown.entry(at.clone()).or_default();
        shown.insert(id.to_owned());
        match shown.len() {
            1 => drop(self.named.insert(id.to_owned(), at.clone())),
            _ => self.named.retain(|_, named| named != at),
        }
    }

    /// Whether a view is better than what is known.
    fn accepts(&self, view: &View, at: &Address) -> bool {
        let nodes = view.map.nodes();
        // A node that has not joined the cluster yet, or has left it, knows no node that serves slots.
        if nodes.is_empty() {
            return false;
        }
        let Some(known) = &self.map else { return true };
        let known = known.nodes();
        if !nodes.iter().any(|node| known.iter().any(|known| known.id == node.id)) {
            tracing::warn!(backend = BACKEND, address = %at, "the node belongs to another cluster than the others");
            return false;
        }
        // A node that is cut off from the others, or was, knows less.
        view.epoch >= self.epoch
    }
}

impl Topology {
    pub(super) fn new(seeds: Vec<Address>) -> Self {
        Self { seeds, state: Mutex::default(), epochs: Arc::default() }
    }

    /// A node that was reached at this address has replied.
    pub(super) fn learn(&self, view: &View, at: &Address) {
        let mut state = lock(&self.state);
        state.readings += 1;
        if !state.accepts(view, at) {
            return;
        }
        if self.seeds.contains(at) {
            state.name(&view.id, at);
        }
        if state.map.as_ref() != Some(&view.map) {
            state.changes += 1;
        }
        (state.map, state.epoch) = (Some(view.map.clone()), view.epoch);
    }

    /// A node says that another one serves this slot.
    pub(super) fn moved(&self, slot: Slot, to: &Address) {
        let mut state = lock(&self.state);
        if let Some(map) = &mut state.map
            && map.owner(slot).is_none_or(|node| node.address != *to)
        {
            Arc::make_mut(map).moved(slot, to);
            state.changes += 1;
        }
    }

    /// How often the nodes that serve the slots have changed.
    pub(crate) fn changes(&self) -> u64 {
        lock(&self.state).changes
    }

    /// Where the node is reached that serves this slot. `None`: it is not known.
    pub(super) fn owner(&self, slot: Slot) -> Option<Address> {
        let state = lock(&self.state);
        Some(state.reached_at(state.map.as_ref()?.owner(slot)?))
    }

    /// Where a node is reached that the others name by this address.
    pub(super) fn reached_at(&self, named: &Address) -> Address {
        let state = lock(&self.state);
        let nodes = state.map.as_ref().map(|map| map.nodes()).unwrap_or_default();
        nodes.into_iter().find(|node| node.address == *named).map_or(named.clone(), |node| state.reached_at(node))
    }

    /// Where the nodes are reached that serve slots.
    pub(super) fn nodes(&self) -> Vec<Address> {
        let state = lock(&self.state);
        let nodes = state.map.as_ref().map(|map| map.nodes()).unwrap_or_default();
        nodes.into_iter().map(|node| state.reached_at(node)).collect()
    }

    /// How often nodes have replied.
    pub(super) fn readings(&self) -> u64 {
        lock(&self.state).readings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str) -> Address {
        Address { host: host.to_owned(), port: 1 }
    }

    /// The view of a node: the hosts of the nodes that share the slots. Each has its host as its name.
    fn view(id: &str, epoch: u64, hosts: &[&str]) -> View {
        View { id: id.to_owned(), epoch, map: Arc::new(Map::shared_by(hosts.iter().map(|host| (at(host), *host)))) }
    }

    fn reached(topology: &Topology) -> Vec<String> {
        topology.nodes().into_iter().map(|address| address.host).collect()
    }

    #[test]
    fn a_node_of_the_url_is_reached_where_the_url_says() {
        let topology = Topology::new(vec![at("proxy")]);
        topology.learn(&view("a", 1, &["a", "b"]), &at("proxy"));
        assert_eq!(reached(&topology), ["proxy", "b"]);
        assert_eq!((topology.reached_at(&at("a")), topology.reached_at(&at("c"))), (at("proxy"), at("c")));
        // It leads to any node.
        topology.learn(&view("b", 1, &["a", "b"]), &at("proxy"));
        topology.learn(&view("a", 1, &["a", "b"]), &at("proxy"));
        assert_eq!(reached(&topology), ["a", "b"]);
    }

    #[test]
    fn a_redirection_changes_one_slot() {
        let (topology, slot) = (Topology::new(vec![at("a")]), Slot::of(b"{job}"));
        topology.learn(&view("a", 1, &["a", "b"]), &at("a"));
        let (owner, changes) = (topology.owner(slot).unwrap(), topology.changes());
        topology.moved(slot, &owner);
        topology.learn(&view("b", 1, &["a", "b"]), &at("b"));
        assert_eq!(topology.changes(), changes, "nothing has changed");
        topology.moved(slot, &at("c"));
        assert_eq!((topology.owner(slot), topology.changes()), (Some(at("c")), changes + 1));
        assert_eq!(topology.nodes().len(), 3);
    }

    #[test]
    fn the_newest_view_of_the_cluster_counts() {
        let topology = Topology::new(vec![at("a")]);
        // It has not joined the cluster yet.
        topology.learn(&view("a", 0, &[]), &at("a"));
        assert_eq!((reached(&topology).len(), topology.readings()), (0, 1));
        topology.learn(&view("b", 7, &["b", "c"]), &at("b"));
        for (id, epoch, hosts) in [("b", 6, &["b", "a"][..]), ("a", 9, &[]), ("x", 9, &["x", "y"])] {
            topology.learn(&view(id, epoch, hosts), &at(id));
            assert_eq!(reached(&topology), ["b", "c"], "{id} {epoch}");
        }
        topology.learn(&view("c", 8, &["c", "d"]), &at("c"));
        assert_eq!(reached(&topology), ["c", "d"]);
    }
}
