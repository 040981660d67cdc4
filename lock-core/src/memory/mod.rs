//! Locks within one process: for the tests of programs, for examples, and as the reference for every other backend.
//!
//! [`MemoryStore`] is the store and [`MemoryBackend`] a client's way to it. [`LockRecord`] has the rules, without
//! clock, task or network. The model checks them, and the scripts of real stores are compared with them.

mod backend;
mod record;
mod store;

pub use self::backend::MemoryBackend;
pub use self::record::{ClaimState, LeaseRecord, LockRecord, QueuedPlace};
pub use self::store::{MemoryStore, RequestCounts, ResourceCounts};
