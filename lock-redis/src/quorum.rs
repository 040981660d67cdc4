//! Locks on a majority of independent servers.
//!
//! The decisions are pure state machines of lock-core ([`quorum`](leasehold_core::backend::kit::quorum)), which also
//! has the reasons of the protocol. Here are the requests, the connections and the bookkeeping around them.
//!
//! | key | on each server |
//! |---|---|
//! | `<prefix>{<name>}` | its vote for a lock, and its fence (`scripts/exchange.lua`) |
//! | `<prefix>{<name>}:t:<vote>` | a vote that was withdrawn |
//! | `<prefix>quorum` | the run in which it may vote, and the floor of its tokens |
//! | `<prefix>quorum:since` | since when its run is known to be unsettled |
//!
//! - Acquire (`acquire.rs`): a vote of each server, in parallel, with a guess of the token. If a majority votes and
//!   accepts the guess, the lock is held after one round trip. If a majority votes and some fence is above the guess, a
//!   second one raises the token. Otherwise every vote is withdrawn in the same call.
//! - Renew (`renew.rs`): a majority of all servers confirms. Servers that do not vote for the lease are asked to join.
//! - Release (`release.rs`): the vote is withdrawn from all servers.
//! - A withdrawal without a reply (`residues.rs`) is repeated as soon as its server replies.
//! - Wait: clients poll, with random pauses. Queues on independent servers get stuck when waiters split the votes.
//! - A server that was restarted (`settler.rs`) gives no vote until every lease that it may have forgotten has ended.
//!   Meanwhile, holders put their votes back.

mod acquire;
mod admin;
mod backend;
mod capabilities;
mod member;
mod pending;
mod release;
mod renew;
mod replies;
mod request;
mod residues;
mod settings;
mod settler;
mod shared;
mod slot;

pub use backend::QuorumBackend;
pub use settings::QuorumSettings;
pub(crate) use shared::sources;
