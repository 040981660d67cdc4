#![doc = include_str!("../README.md")]
#![warn(clippy::exhaustive_enums)]

// The protocol in short. Format and words: `nodes.rs`.
//
//   <root>/<name>                       container, which the server deletes when it is empty
//   <root>/<name>/<claim>-<number>      ephemeral and sequential: one for each claim that holds or waits
//   <root>/.session-<session>           ephemeral, written to confirm the session
//
// - Queue: the nodes of a name, in the order of their numbers (`order.rs`). The first node holds the lock. Its fencing
//   token is the transaction that created it. All claims of a client with the same ttl share a session (`session.rs`).
// - Acquire (`acquire.rs`): create the node and list the queue, sent together. The server keeps their order.
// - Watch (`turn.rs`): a waiter watches the data of the node just before its own, so a release wakes one client. The
//   release of a claim that has waited changes the data of its node and deletes it in one transaction: the waiter sees
//   the change, and holds without another request. If it sees only a deletion, others may still be before it: it reads
//   the queue again. A holder watches its own node, and has lost the lock when that is gone.
// - Renew (`renewal.rs`): one write of the session's node for all claims of a session. Pings prove nothing, since a
//   follower that is cut off from the leader replies to them. An acknowledged write proves that the leader knows what
//   the session did a tick before (`activity.rs`). So a session lasts two ticks longer than its leases.
// - Release (`release.rs`): delete the node. If an earlier request has no reply, the claim is withdrawn: a write, then
//   a list of the queue in the same session, then the deletion of every node of the claim. Requests of a session take
//   effect in the order in which they were sent, so none of them creates a node after that.
// - Links (`link.rs`): a session moves to another connection or server, and uses it only after a write there has
//   succeeded. A follower that lags behind would not show the session's own nodes, and its leases would seem lost.
// - Exclusion ends with the node. The server deletes it with its session, later than the client stops: the client
//   counts the ttl from what the leader certainly knew. What else can delete it: `capabilities.rs`.

mod acquire;
mod activity;
mod admin;
mod backend;
mod capabilities;
mod delayed;
mod errors;
mod examine;
mod fence;
mod inner;
mod link;
mod nodes;
mod order;
mod queue;
mod release;
mod renewal;
mod session;
mod settings;
mod shared;
mod slot;
mod turn;
mod unreachable;

pub use backend::ZkBackend;
pub use fence::{Fence, fence};
pub use nodes::acl;
pub use settings::{SCHEMES, Settings};
pub use zookeeper_client;
