//! Fenced writes: a transaction of the user on the lock file commits only while the lease is current.

use leasehold_core::{Error, LockGuard, Result};
use rusqlite::{OptionalExtension, Transaction, params};

use crate::boot_clock::BootClock;
use crate::errors::{BACKEND, Failure};

const CURRENT: &str = "\
SELECT 1 FROM leasehold_locks \
WHERE name = ?1 AND owner = ?2 AND fence = ?3 AND boot = ?4 AND until > ?5 AND format = '1x'";

/// Checks, inside the user's own transaction on the lock file, that the guard's lease is current. The transaction can
/// then commit only if no other claim is granted the lock before. A takeover writes to the same file, and two writers
/// cannot both commit.
///
/// Call this first in the transaction. If the transaction has only read and another process writes meanwhile, its own
/// writes fail with `SQLITE_BUSY_SNAPSHOT`. Begin it with
/// [`TransactionBehavior::Immediate`](rusqlite::TransactionBehavior::Immediate) to wait for other writers first. Keep
/// it short: while it is open, nobody can acquire, renew or release a lock in this file.
///
/// # Errors
/// - [`Lost`](leasehold_core::ErrorKind::Lost): the lease is not current. Roll back.
/// - [`Unsupported`](leasehold_core::ErrorKind::Unsupported): the transaction is on another file, which has no locks.
/// - Otherwise the error of SQLite. Roll back.
pub fn fence(transaction: &Transaction<'_>, guard: &LockGuard) -> Result<()> {
    check(transaction, guard).map_err(|error| error.during("fence a write with", guard.name(), BACKEND))
}

fn check(transaction: &Transaction<'_>, guard: &LockGuard) -> Result<()> {
    let now = BootClock::of_this_machine()?.now();
    let lease = guard.lease_ref();
    let owner: &[u8] = lease.claim.owner().as_bytes();
    let Ok(fence) = i64::try_from(guard.fencing_token().get()) else { return Err(Error::lease_ended()) };
    let row = params![guard.name().as_bytes(), owner, fence, now.boot, now.boottime];
    let current =
        transaction.prepare_cached(CURRENT).and_then(|mut current| current.query_row(row, |_| Ok(())).optional());
    match current {
        Ok(Some(())) => Ok(()),
        Ok(None) => Err(Error::lease_ended()),
        Err(error) => Err(Failure::from(error).without_effect()),
    }
}
