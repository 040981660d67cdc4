#![doc = include_str!("../README.md")]
#![warn(clippy::exhaustive_enums)]

// The protocol of a single server in short. Format and words: `scripts/prelude.lua`. What Sentinels add:
// `sentinel.rs`. What a cluster adds: `cluster.rs`. That of a quorum: `quorum.rs`.
//
//   <prefix>{<name>}               the record of a lock: deadline, fencing token, owner, holder information
//   <prefix>{<name>}:q             its queue, a hash that exists only while clients wait
//   <prefix>{<name>}:t:<owner>     a tombstone: this claim was withdrawn
//   <prefix>epoch                  the run of the server that clients use, and the ttls in use. In a cluster, each node
//                                  has one, `<prefix>epoch{<number>}` with the first number whose slot it serves
//
// - Every operation is one Lua script, and so atomic. Time is the server's. Each script first hands a lock whose lease
//   has ended to the oldest live place (`library.lua`), so any request of any client advances the queue.
// - Acquire (`acquire.lua`): a free lock without a queue is granted, with a token of at least the last one + 1 and
//   TIME. Otherwise the claim gets a place of at most 10 s.
// - Renew (`renew.lua`): moves the deadlines of up to 100 leases and places, and creates nothing, except that a lease
//   comes back that the server has lost with its data (`put_back.rs`).
// - Release (`release.lua`): sets the deadline to 0 and hands the lock over. The record stays, because it keeps the
//   token. If an earlier request has no reply, the release also writes a tombstone, so a late copy has no effect.
// - Wait: the script that hands a lock over publishes the grant on the channel of the new holder's client. A message
//   may get lost: a renewal of the place finds the grant too. After each reconnect, every waiter checks again
//   (`manager.rs`).
// - Connections (`manager.rs`, `connection.rs`): one for each runtime. The keeper's also receives the grants. Requests
//   that wait for a busy connection share a script call (`batcher.rs`, `exchange.rs`).
// - A server that lost its data would grant a held lock. Each connection reads the run of the server first (`run.rs`,
//   `epoch.lua`). After a restart or a failover, no lock is granted until the longest ttl in use has passed. Meanwhile
//   the holders put their leases back.
// - Exclusion ends when the server's clock steps forward, a former primary still confirms requests, or keys are deleted
//   or evicted. Then the fencing token decides.

mod admin;
mod backend;
mod batcher;
mod capabilities;
mod check;
mod cluster;
mod connection;
mod endpoint;
mod epochs;
mod errors;
mod examine;
mod exchange;
mod fence;
mod info;
mod keys;
mod manager;
mod protocol;
mod put_back;
mod quorum;
mod renew;
mod replicas;
mod replies;
mod reply;
mod run;
mod scripts;
mod sentinel;
mod server;
mod server_clock;
mod servers;
mod settings;
mod shared;
mod single;
mod socket;
#[cfg(feature = "tls")]
mod tls;
mod tombstones;

pub use backend::RedisBackend;
pub use fence::{Fence, FencedScript};
pub use keys::{acl, operator_acl, read_only_acl};
pub use leasehold_core::backend::kit::OnRestart;
pub use quorum::{QuorumBackend, QuorumSettings};
pub use redis;
pub use replicas::MinReplicas;
pub use scripts::{ScriptCalls, functions};
pub use settings::{OnEviction, SCHEMES, Settings};
