#![doc = include_str!("../README.md")]
#![warn(clippy::exhaustive_enums)]

// The protocol in short. Format: `schema.sql`. Rules and statements: `store.rs`.
//
//   locks.db          table `leasehold_locks`, one row for each lock: owner, fence, until, boot, wanted
//   locks.db-bell     written to when a lease with waiters ends
//
// - Time is the machine's clock since boot, which all its processes share and nothing steps. A row names its boot: a
//   lease of another boot lasts for one more ttl.
// - Acquire is one `INSERT … ON CONFLICT DO UPDATE`. It takes the row if it is free, and raises the fence to the larger
//   of fence + 1 and the wall clock. Renew and release are one `UPDATE` each. SQLite lets one connection write at a
//   time.
// - A call runs on the caller's thread if the connection is free, and otherwise on the worker thread, which waits for
//   other writers and puts many requests into one transaction (`worker.rs`).
// - Wait: a claim that finds the lock held notes that in `wanted`. A release that finds the note writes to the `-bell`
//   after its commit, and inotify wakes the watcher thread of each waiting process (`notifier.rs`, `watcher.rs`). It
//   reads the row, and reports a lock that is free. A lost notification costs a second: each waiter retries by itself.
//   A lock that was released is reserved for its waiters for 10 ms.
// - If a request has no reply, its claim is marked as withdrawn in this process. All its requests run here, in order,
//   so no note in the file is needed.
// - Each call checks that the opened files are still those at the path (`open_files.rs`). Otherwise two processes would
//   not see each other's writes, and both could hold a lock.
// - Exclusion ends when the files are deleted or replaced while locks are held, or are shared between machines or
//   through two paths. Then the fence decides.

mod admin;
mod backend;
mod boot_clock;
mod capabilities;
mod errors;
mod fence;
mod file;
mod file_system;
mod maintenance;
mod notifier;
mod open_files;
mod read_only;
mod settings;
mod shared;
mod store;
mod watcher;
mod worker;

pub use backend::SqliteBackend;
pub use fence::fence;
pub use rusqlite;
pub use settings::{SCHEMES, Settings, resolve};

/// The SQL that creates the tables, for users who want to read it or to run it themselves.
pub const SCHEMA: &str = include_str!("schema.sql");
