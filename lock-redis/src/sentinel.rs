//! One primary with replicas, behind Sentinels. Locks are those of a single server ([`RedisBackend`]). Here is what
//! names the server, and what makes a client leave it.
//!
//! - `naming.rs` decides: which server a majority of the Sentinels in the URL names, and whether what a server confirms
//!   counts. It says why two clients do not hold a lock across a failover.
//! - Connect: all Sentinels are asked, in parallel, for each attempt. A connection to the server that a majority names
//!   is used if this server says, on the same connection, that it is a primary (`single.rs`).
//! - Acquire: the Sentinels are asked first, if a majority has not named the server within a quarter of the ttl.
//! - Grant: they are asked again after it has arrived: by the reply to an acquire or a renewal, or by a message.
//! - Renew: the Sentinels are asked beside the request, and the replies count if a majority names the server.
//! - Failover: the keeper's runtime subscribes to `+switch-master` on every Sentinel. A message is a hint that makes
//!   the client ask all of them. If a majority names another server, every connection to the former one closes. So it does
//!   if the server replies that it is a replica.
//! - After a failover, the quarantine of `run.rs` is longer than on a single server: [`naming::lasting`].
//!
//! [`RedisBackend`]: crate::RedisBackend

mod examine;
mod member;
mod naming;
mod plain;
mod primary;
mod sentinels;
mod settings;

pub(crate) use naming::{Address, lasting};
pub(crate) use plain::is_sentinel;
pub(crate) use primary::{Primary, half_until};
pub(crate) use sentinels::Sentinels;
pub(crate) use settings::{SCHEMES, read};
