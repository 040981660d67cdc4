//! Which node serves which slot.

use std::sync::Arc;

use redis::Value;

use super::redirection::host_of;
use super::slots::{Slot, tag};
use crate::replies::text;
use crate::sentinel::Address;

/// The primary of some slots.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// As the other nodes name it.
    pub(super) address: Address,
    /// Its name in the cluster. `None`: known from a redirection only.
    pub(super) id: Option<String>,
}

/// The nodes that serve the slots, as a client knows them. It may be old: a node that is asked for another's slot says
/// so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Map(Vec<Option<Arc<Node>>>);

impl Map {
    /// Reads the reply of the node `from` to `CLUSTER SLOTS`. `None`: it is no such reply.
    ///
    /// Not `CLUSTER SHARDS`: servers before 7.0 do not know it, and it says nothing more that a client needs.
    pub(super) fn read(reply: &Value, from: &Address) -> Option<Self> {
        let Value::Array(ranges) = reply else { return None };
        let mut map = Self(vec![None; usize::from(Slot::COUNT)]);
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        for range in ranges {
            let Value::Array(parts) = range else { return None };
            // Replicas follow.
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &parts[..] else { return None };
            let [host, Value::Int(port), id, ..] = &primary[..] else { return None };
            let host = match host {
                Value::Nil => None,
                named => Some(text(named)?),
            };
            let address = Address { host: host_of(host.as_deref(), from), port: u16::try_from(*port).ok()? };
            let id = Some(text(id)?);
            let node = nodes.iter().find(|node| node.id == id).cloned().unwrap_or_else(|| {
                let node = Arc::new(Node { address, id });
                nodes.push(node.clone());
                node
            });
            let slots = usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?;
            map.0.get_mut(slots).filter(|slots| !slots.is_empty())?.fill(Some(node));
        }
        Some(map)
    }

    /// The node that serves a slot. `None`: as far as the client knows, none does.
    pub(super) fn owner(&self, slot: Slot) -> Option<&Arc<Node>> {
        self.0[usize::from(slot.number())].as_ref()
    }

    /// Notes that a node serves a slot, which another one has served so far.
    pub(super) fn moved(&mut self, slot: Slot, to: &Address) {
        let known = self.nodes().into_iter().find(|node| node.address == *to).cloned();
        let node = known.unwrap_or_else(|| Arc::new(Node { address: to.clone(), id: None }));
        self.0[usize::from(slot.number())] = Some(node);
    }

    /// A hash tag of a slot of the node with this name, but of none of these. `None`: it serves no other slot.
    pub(super) fn tag_of(&self, id: &str, but: &[String]) -> Option<String> {
        let is_own = |node: &Node| node.id.as_deref() == Some(id);
        let serves = |slot: Slot| {
            self.owner(slot).is_some_and(|node| is_own(node)) && but.iter().all(|tag| Slot::of(tag.as_bytes()) != slot)
        };
        // Without this, all numbers would be tried for a node without such a slot.
        (0..Slot::COUNT).filter_map(Slot::new).any(serves).then(|| tag(serves))?
    }

    /// The nodes that serve slots, each once.
    pub(super) fn nodes(&self) -> Vec<&Arc<Node>> {
        let mut nodes: Vec<&Arc<Node>> = Vec::new();
        for node in self.0.iter().flatten() {
            // Most neighbours are the same.
            if nodes.last().is_none_or(|last| !Arc::ptr_eq(last, node))
                && !nodes.iter().any(|known| Arc::ptr_eq(known, node))
            {
                nodes.push(node);
            }
        }
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Map {
        /// Nodes with these addresses and names share the slots.
        pub(in super::super) fn shared_by<'a>(nodes: impl Iterator<Item = (Address, &'a str)>) -> Self {
            let nodes: Vec<_> =
                nodes.map(|(address, id)| Arc::new(Node { address, id: Some(id.to_owned()) })).collect();
            let count = usize::from(Slot::COUNT);
            Self((0..count).map(|slot| nodes.get(slot * nodes.len() / count).cloned()).collect())
        }
    }

    fn at(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    fn words(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn node(host: Value, port: i64, id: &str) -> Value {
        // RESP3: a map with the other addresses of the node.
        Value::Array(vec![host, Value::Int(port), words(id), Value::Map(Vec::new())])
    }

    fn range(first: i64, last: i64, nodes: &[Value]) -> Value {
        Value::Array([&[Value::Int(first), Value::Int(last)], nodes].concat())
    }

    fn slot(number: u16) -> Slot {
        Slot::new(number).unwrap()
    }

    fn address(map: &Map, number: u16) -> Option<Address> {
        map.owner(slot(number)).map(|node| node.address.clone())
    }

    #[test]
    fn a_map_names_the_primary_of_each_slot() {
        let (one, two) = (node(words("127.0.0.1"), 7801, "one"), node(words("127.0.0.1"), 7802, "two"));
        let replica = node(words("127.0.0.1"), 7803, "replica");
        let reply = Value::Array(vec![
            range(0, 99, &[one.clone(), replica.clone()]),
            range(100, 100, std::slice::from_ref(&two)),
            range(101, 8_191, &[one, replica]),
            range(8_193, 16_383, &[two]),
        ]);
        let mut map = Map::read(&reply, &at("seed", 1)).unwrap();
        let owners = [0, 99, 100, 101, 8_191, 8_192, 8_193, 16_383].map(|number| address(&map, number));
        let (one, two) = (Some(at("127.0.0.1", 7801)), Some(at("127.0.0.1", 7802)));
        assert_eq!(owners, [&one, &one, &two, &one, &one, &None, &two, &two].map(Option::clone));
        let ids: Vec<_> = map.nodes().iter().map(|node| node.id.as_deref()).collect();
        assert_eq!(ids, [Some("one"), Some("two")]);
        map.moved(slot(0), &at("127.0.0.1", 7802));
        assert_eq!((address(&map, 0), map.owner(slot(0)).unwrap().id.as_deref()), (two, Some("two")));
        // A node without slots that gets its first one.
        map.moved(slot(8_192), &at("127.0.0.1", 7804));
        assert_eq!((address(&map, 8_192), map.nodes().len()), (Some(at("127.0.0.1", 7804)), 3));
    }

    #[test]
    fn a_node_without_a_name_has_the_host_that_was_asked() {
        // A node that has met no other one, `unknown-endpoint`, and `hostname` without a name.
        for host in [words(""), Value::Nil, words("?")] {
            let reply = Value::Array(vec![range(0, 16_383, &[node(host, 7801, "one")])]);
            let map = Map::read(&reply, &at("seed.example", 1)).unwrap();
            assert_eq!(address(&map, 7), Some(at("seed.example", 7801)));
        }
    }

    #[test]
    fn each_node_has_a_tag_of_its_own_slots() {
        let nodes = [node(words("h"), 1, "one"), node(words("h"), 2, "two")];
        let reply = Value::Array(vec![range(0, 8_191, &nodes[..1]), range(8_192, 16_383, &nodes[1..])]);
        let map = Map::read(&reply, &at("seed", 1)).unwrap();
        let tags: Vec<_> = ["one", "two"].map(|id| map.tag_of(id, &[]).unwrap()).to_vec();
        let owners: Vec<_> =
            tags.iter().map(|tag| map.owner(Slot::of(tag.as_bytes())).unwrap().id.as_deref()).collect();
        assert_eq!(owners, [Some("one"), Some("two")]);
        let another = map.tag_of("one", &tags).unwrap();
        assert!(another != tags[0] && map.owner(Slot::of(another.as_bytes())).unwrap().id.as_deref() == Some("one"));
        assert_eq!(map.tag_of("three", &[]), None);
    }

    #[test]
    fn an_unexpected_reply_is_no_map() {
        let one = || node(words("h"), 1, "one");
        for ranges in [
            Value::Nil,
            Value::Array(vec![Value::Nil]),
            Value::Array(vec![range(0, 16_383, &[])]),
            Value::Array(vec![range(0, 16_384, &[one()])]),
            Value::Array(vec![range(-1, 7, &[one()])]),
            Value::Array(vec![range(8, 7, &[one()])]),
            Value::Array(vec![range(0, 7, &[node(words("h"), 70_000, "one")])]),
            Value::Array(vec![range(0, 7, &[node(Value::Int(1), 1, "one")])]),
            Value::Array(vec![range(0, 7, &[Value::Array(vec![words("h"), Value::Int(1)])])]),
        ] {
            assert!(Map::read(&ranges, &at("seed", 1)).is_none(), "{ranges:?}");
        }
        let nothing = Map::read(&Value::Array(Vec::new()), &at("seed", 1)).unwrap();
        assert!(nothing.nodes().is_empty() && nothing.owner(slot(0)).is_none());
    }
}
