#![doc = include_str!("../README.md")]
#![warn(clippy::exhaustive_enums)]

// # The protocol of `strategy=row`, in `row`
//
// Table `leasehold_locks` has one row for each lock: owner, fence, expires_at, withdrawn. A lock is held until
// expires_at by the server's clock.
// - Acquire: one `INSERT … ON DUPLICATE KEY UPDATE` takes the row if the lease has ended and the claim was not
//   withdrawn. It raises the fence to the larger of fence + 1 and the server's time. A client that released the lock
//   last tries a smaller `UPDATE` first.
// - Renew: one packet for up to 500 leases moves `expires_at` and skips rows that other transactions have locked.
// - Release: one `UPDATE` sets `expires_at` to the past. If a request has no reply, the release also writes the owner
//   into `withdrawn`, so an acquire that arrives late has no effect.
// - Wait: a claim that finds the lock held waits for `GET_LOCK` on a second connection. The server wakes these claims
//   one by one. The one that has the named lock polls the row, acquires it, and releases the row and then the named
//   lock. The row alone decides who holds the lock. The claims that have no connection to wait on (the fifth and
//   further ones of a client) poll together.
// - The row with the empty name has the format of this strategy, the server that clients use and the ttls in use. Each
//   connection reads it before its first acquire. If the server is another one, or may have lost writes, no lock is
//   granted until the longest ttl has passed.
// Exclusion ends when the server's clock steps forward, a former primary still grants locks, or an operator changes the
// row. Then the fence decides.
//
// # The protocol of `strategy=for-update`, in `for_update`
//
// A claim holds a lock while its connection has an open transaction that has locked the row of `leasehold_for_update`.
// - Acquire: `SELECT GET_LOCK(…) … FOR UPDATE` locks the row, and takes a named lock which shows others who holds. A
//   second connection then raises the fence in `leasehold_fences`, because a rollback of the first would undo it, and
//   checks that the first still has the named lock. Meanwhile, the first sets `wait_timeout` to the ttl. Validity
//   counts from before that statement.
// - Renew: a statement on the connection, so that its `wait_timeout` begins again. A claim that waits is renewed if its
//   connection exists.
// - Release: `RELEASE_LOCK` and `COMMIT`. If the connection has a statement without a reply, another one ends it by
//   `KILL`, and waits until the server has rolled it back.
// - Wait: the same `SELECT … FOR UPDATE` blocks in the server, a second at a time. The server wakes one of the claims
//   that wait.
// - After a restart of the server, the ttl in `leasehold_fences` says for how long it must have run before the next
//   grant.
// Exclusion ends when the connection breaks while its client still trusts the lease, or after a failover to a replica.
// Then the fence decides.

mod backend;
mod connections;
mod errors;
mod examine;
mod fence;
mod for_update;
mod idle;
mod maintenance;
mod permissions;
mod pool;
mod row;
mod session;
mod settings;
mod shared;
mod sql;
mod strategy;

pub use backend::MySqlBackend;
pub use fence::fence;
pub use leasehold_core::backend::kit::OnRestart;
pub use permissions::{grants, read_only_grants};
pub use settings::{SCHEMES, Settings, Strategy, Tls};
pub use sqlx;

/// The SQL that creates the tables, for users who want to read it or to run it themselves.
pub const SCHEMA: &str = include_str!("schema.sql");
