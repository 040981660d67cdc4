//! `SELECT … FOR UPDATE` (`strategy=for-update`): a lease is an open transaction that has locked a row, on a connection
//! of its own.
//!
//! The server ends the lease when it hears nothing from the connection for the ttl (`wait_timeout`), and at once when
//! the connection ends.

mod admin;
mod backend;
mod connection;
mod fences;
mod hold;
mod purge;
mod slot;
mod statements;
mod task;

use leasehold_core::backend::Claim;

pub(crate) use self::backend::ForUpdate;
pub(crate) use self::connection::check_limits;
pub(crate) use self::statements::{FENCE, PREPARED};

/// The number of the connection that keeps a claim's lease; `None` for a row lease.
pub(crate) fn connection_of(claim: &Claim) -> Option<u64> {
    claim.slot::<slot::Slot>().connection()
}
