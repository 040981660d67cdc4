#![doc = include_str!("../README.md")]
#![warn(clippy::exhaustive_enums)]

// The protocol in short. Format and words: `keys.rs`.
//
//   <prefix>/<name>/<claim>     one key for each claim that holds or waits, attached to an etcd lease of its client
//   <prefix>/.epochs/<lease>    written only to withdraw a claim; its mod revision is the epoch of that etcd lease
//
// - Queue: the keys of a name, ordered by create revision. The first key holds the lock, and its create revision is the
//   fencing token. All claims of a client with the same ttl share one etcd lease, their session (`sessions.rs`).
// - Acquire (`acquire.rs`) is one transaction (`transactions.rs`):
//     if    the epoch of the session is the expected one, and the queue is empty (a claim that waits: its own key is
//           absent)
//     then  put the own key, read the first key of the queue
//     else  read the epoch, the own key and the first key
//   The ttl counts from before the newest confirmed keep-alive was sent: a key in a session that is about to end is not
//   granted for longer than that session lasts.
// - A waiter with a long ttl attaches its key to a second session of at most 10 s, so that a waiter that dies does not
//   block others for the whole ttl. Once it holds, the key moves to the session with the long ttl (`attach.rs`).
// - Watch (`watcher.rs`, `mirror.rs`): one stream watches the queues of all claims of a client. Each queue is read once
//   after its watch was created. A waiter holds when its key is the first one: no request is needed. A holder whose key
//   is gone has lost the lock.
// - Renew (`renewal.rs`): one keep-alive for all claims of a session. The watch proves that a key is still there; if it
//   lags behind, a linearizable read does.
// - Release (`release.rs`): delete the key. If an earlier request has no reply, the claim is withdrawn instead: one
//   transaction changes the epoch and deletes the key. A late copy of the earlier request then fails its comparison.
// - Exclusion ends with the key. etcd deletes it with its etcd lease, later than the client stops: the client counts
//   the ttl from before it sent the keep-alive, etcd from when that arrived. What else deletes it: `capabilities.rs`.

mod acquire;
mod admin;
mod attach;
mod backend;
mod capabilities;
mod connection;
mod connections;
mod errors;
mod examine;
mod fence;
mod inner;
mod key_ids;
mod keys;
mod members;
mod mirror;
mod pauses;
mod release;
mod renewal;
mod session;
mod sessions;
mod settings;
mod shared;
mod slot;
mod transactions;
mod watch_stream;
mod watcher;

pub use backend::EtcdBackend;
pub use etcd_client;
pub use fence::fence;
pub use keys::{read_only_role, role};
pub use settings::{SCHEMES, Settings};
