//! Fenced writes: a transaction of the user in the same database commits only while the lease is current.

use leasehold_core::{Error, LockGuard, Result};
use sqlx::mysql::MySqlConnection;

use crate::errors::{BACKEND, Failure};
use crate::{for_update, row};

/// Checks, inside the user's own transaction in the database of the locks, that the guard's lease is current. Until the
/// transaction ends, no other claim can be granted the lock: the check locks its row, and a grant changes the row.
///
/// Call this before the writes, and keep the transaction short. While it is open, the lease is not renewed and the lock
/// can be neither released nor taken over. The client renews its other leases meanwhile.
///
/// ```no_run
/// # async fn example(
/// #     pool: leasehold_mysql::sqlx::MySqlPool,
/// #     guard: leasehold_core::LockGuard,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// # use leasehold_mysql::sqlx;
/// let mut transaction = pool.begin().await?;
/// leasehold_mysql::fence(&mut transaction, &guard).await?;
/// sqlx::query("UPDATE accounts SET balance = balance + 20 WHERE id = 7").execute(&mut *transaction).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Roll back after an error, with `transaction.rollback().await`. A transaction of sqlx that is dropped is rolled back
/// when its connection is used next, and locks the row until then.
/// - [`Lost`](leasehold_core::ErrorKind::Lost): the lease is not current.
/// - [`Unsupported`](leasehold_core::ErrorKind::Unsupported): the connection uses a database without locks.
/// - Otherwise the error of the server.
///
/// # Cancel safety
/// As that of a query of sqlx: close the connection after a dropped call.
pub async fn fence(transaction: &mut MySqlConnection, guard: &LockGuard) -> Result<()> {
    let lease = guard.lease_ref();
    let (name, token) = (guard.name().as_bytes(), guard.fencing_token().get());
    let query = match for_update::connection_of(&lease.claim) {
        Some(connection) => sqlx::query(for_update::FENCE).bind(name).bind(token).bind(name).bind(connection),
        None => sqlx::query(row::FENCE).bind(name).bind(&lease.claim.owner().as_bytes()[..]).bind(token),
    };
    let checked = match query.fetch_optional(transaction).await {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(Error::lease_ended()),
        Err(error) => Err(Failure::of(error).without_effect()),
    };
    checked.map_err(|error| error.during("fence a write with", guard.name(), BACKEND))
}
