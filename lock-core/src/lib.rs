//! Distributed locks: the part that knows no store.
//!
//! # When not to use one
//! - **Inside one process** use [`tokio::sync::Mutex`](https://docs.rs/tokio/latest/tokio/sync/struct.Mutex.html) or
//!   `std::sync::Mutex`: they cannot be lost.
//! - **When the protected resource can decide by itself**, let it: a unique key, a conditional write, a
//!   transaction with `SELECT … FOR UPDATE` on the row in question. No lease is as strong as that.
//! - **When correctness hangs on the lock alone**, it is not enough. A holder can be paused after it looked and before
//!   it writes. Hand the [`FencingToken`] to the resource, and let it refuse lower ones.
//!
//! What a lock of this kind does well: it keeps work from being done twice at the same time by mistake, on many
//! machines, and notifies a holder at once that it must stop.
//!
//! # What is where
//! A [`LockClient`] is one [`LockBackend`](backend::LockBackend) and its defaults. It gives [`Lock`]s by name; acquiring one gives a
//! [`LockGuard`]. The [`LeaseKeeper`] renews what is held and reports a [`Loss`]. [`MemoryBackend`](memory::MemoryBackend) is the backend for
//! programs' own tests, and the reference that every other backend is held against.
//!
//! ```
//! use std::time::Duration;
//! use leasehold_core::LockClient;
//! use leasehold_core::memory::{MemoryBackend, MemoryStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> leasehold_core::Result<()> {
//! let client = LockClient::new(MemoryBackend::new(&MemoryStore::default()));
//! let guard = client.lock("orders/42").ttl(Duration::from_secs(30)).wait(Duration::from_secs(5)).acquire().await?;
//! println!("held with fencing token {}", guard.fencing_token());
//! guard.release().await
//! # }
//! ```
//!
//! # Time
//! A ttl counts at the store from when it worked on a request. Its holder counts from before that request was
//! *sent*, and leaves a margin of 10 % unused, so it stops believing in its lease before the store gives it to another: as
//! long as the store keeps what it acknowledged, and neither clock gains more than the margin on the other. [`Clock`](backend::Clock)
//! says which clock that is on each system. Every instant here is a [`Stamp`](backend::Stamp) of that clock; wall clocks are never asked.
//!
//! # Runtimes
//! Futures of this crate run on any executor. Inside tokio calls run on the caller's runtime, which needs timers (`enable_time`):
//! else they fail with [`InvalidInput`](ErrorKind::InvalidInput). Elsewhere they run on the keeper's runtime. The keeper has a thread of its own unless [`KeeperRuntime`] says otherwise.
//!
//! # Logs
//! Events of `tracing`: `debug` for granted, queued and withdrawn, `warn` for a lease that is lost or cannot be renewed.
//! [`LockClient::stats`] has counters for an exporter. Neither ever shows an owner token.

#![warn(clippy::exhaustive_enums)]

pub mod admin;
pub mod backend;
mod client;
mod clock;
pub mod defaults;
mod entropy;
mod error;
mod guard;
mod holder_id;
mod holder_info;
mod keeper;
mod lock;
mod lock_info;
mod loss;
pub mod memory;
mod name;
mod run_to_end;
mod stats;
mod sync;
mod terms;
mod timers;
mod token;

pub use backend::Mode;
pub use client::{LockClient, LockClientBuilder};
pub use error::{Error, ErrorKind, Result};
pub use guard::LockGuard;
pub use holder_id::HolderId;
pub use holder_info::HolderInfo;
#[doc(hidden)]
pub use keeper::machines;
pub use keeper::{KeeperRuntime, LeaseKeeper};
pub use lock::Lock;
pub use lock_info::{LeaseInfo, LockInfo};
pub use loss::{Loss, LossReason};
pub use name::LockName;
pub use stats::Stats;
pub use token::FencingToken;
