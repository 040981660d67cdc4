//! Locks on a Redis Cluster: which node serves a lock, and what follows from a reply that says otherwise.
//!
//! The keys of a lock share a hash tag, and so a slot. One primary serves a slot. While a slot is moved to another
//! node, its keys are moved one by one: each of the two nodes refuses a request unless it has all keys that the request
//! declares. A key that does not exist counts as one that the node does not have. So a request first declares all keys
//! that it may need. If a node says that it lacks one of them, the request is sent again with the record alone, which
//! one of the two nodes always accepts (`route.rs`).

mod declared;
mod examine;
mod map;
mod node;
mod nodes;
mod redirection;
mod route;
mod router;
mod settings;
mod slots;
mod topology;

pub(crate) use declared::{DISAGREE, Declared, MoreKeys, Refusal};
pub(crate) use node::ClusterNode;
pub(crate) use nodes::Cluster;
pub(crate) use redirection::Redirection;
pub(crate) use settings::{SCHEMES, read};
