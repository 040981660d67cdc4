//! Distributed locks: the part that does not depend on a store.
//!
//! # When not to use one
//! - **Inside one process** use [`tokio::sync::Mutex`](https://docs.rs/tokio/latest/tokio/sync/struct.Mutex.html) or
//!   `std::sync::Mutex`: they cannot be lost.
//! - **When the protected resource can decide by itself**, let it: a unique key, a conditional write, a
//!   transaction with `SELECT … FOR UPDATE` on the row in question. No lease is as strong as that.
//! - **When correctness depends on the lock alone**, a lock is not enough. A holder can be paused after it checks the
//!   lease and before it writes. Send the [`FencingToken`] to the resource with each write, and let the resource refuse
//!   lower tokens.
//!
//! What such a lock does well: it keeps work from being done twice at the same time by mistake, across many machines,
//! and notifies the holder when it must stop.
//!
//! # Overview
//! A [`LockClient`] combines a [`LockBackend`](backend::LockBackend) with defaults. [`LockClient::lock`] returns a
//! [`Lock`] by name, and acquiring it returns a [`LockGuard`]. The client's lease keeper renews the lease of each guard
//! and reports a [`Loss`]. [`MemoryBackend`](memory::MemoryBackend) is the backend for the tests of programs, and the
//! reference for every other backend.
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
//! The store counts a ttl from the moment at which it processes the request. The holder counts it from before it
//! *sends* that request, and leaves a margin of 10 % unused. So the validity ends before the store can grant the lock
//! to another client. This holds as long as the store keeps what it acknowledged, and neither clock gains more than the
//! margin on the other. [`Clock`](backend::Clock) says which clock of the system the holder reads. Every instant in
//! this crate is a [`Stamp`](backend::Stamp) of that clock. No wall clock is read.
//!
//! # Renewal
//! The lease keeper renews each lease, and each place in a queue, at a third of its ttl. It retries a renewal that
//! failed, with growing pauses, until the validity ends, and then notifies the holder. A renewal without a reply within
//! the backend's call bound has failed. One slow, failing or panicking renewal harms no other lease.
//!
//! # Runtimes
//! The futures of this crate run on any executor. On tokio, a call runs on the caller's runtime. That runtime needs
//! timers (`enable_time`), or the call fails with [`InvalidInput`](ErrorKind::InvalidInput). On another executor, a
//! call runs on the keeper's runtime. The keeper runs on a thread of its own, unless [`KeeperRuntime`] says otherwise.
//!
//! # Logs
//! This crate emits `tracing` events: `debug` for a grant, a place in a queue and a withdrawn claim, `warn` for a lease
//! that is lost or cannot be renewed. [`LockClient::stats`] returns counters for a metrics exporter. Neither contains
//! an owner token.

#![warn(clippy::exhaustive_enums)]

pub mod admin;
pub mod backend;
mod client;
mod clock;
pub mod defaults;
mod entropy;
mod error;
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
pub use holder_id::HolderId;
pub use holder_info::HolderInfo;
#[doc(hidden)]
pub use keeper::machines;
pub use keeper::{KeeperRuntime, LockGuard};
pub use lock::Lock;
pub use lock_info::{LeaseInfo, LockInfo};
pub use loss::{Loss, LossReason};
pub use name::LockName;
pub use stats::Stats;
pub use token::FencingToken;
