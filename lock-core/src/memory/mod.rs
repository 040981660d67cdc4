//! Locks within one process: for programs' own tests and examples, and the reference that every backend is held against.
//!
//! [`MemoryStore`] is the store and [`MemoryBackend`] a client's way to it. [`LockRecord`] has the rules, without clock,
//! task or network: what a model checks and what the scripts of real stores are compared with.

mod backend;
mod record;
mod store;

pub use self::backend::MemoryBackend;
pub use self::record::{ClaimState, LeaseRecord, LockRecord, QueuedPlace};
pub use self::store::{MemoryStore, RequestCounts, ResourceCounts};
