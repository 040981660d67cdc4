//! The operations of the row lease, on a pool of connections.

use std::collections::HashSet;
use std::time::Duration;

use leasehold_core::backend::{AcquireRequest, Claim, OnContention, Stamp, WITHDRAWN_TTL};
use leasehold_core::{FencingToken, LockName};
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::query::Query;
use sqlx::{MySql, Row};
use tokio::time::Instant;

use crate::errors::{Failure, other_format};
use crate::pool::{Checkout, Pool};
use crate::row::quarantine;
use crate::row::statements::{
    self, BUSY, IS_WANTED, OTHER_FORMAT, POLL, PURGE, PURGE_ROWS, PURGEABLE, PURGEABLE_ROWS, SIZES, Sized, WAS_HELD,
    WAS_WITHDRAWN,
};
use crate::row::wakeup::Turn;

/// The outcome of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted(FencingToken),
    /// Another claim holds the lock for this long.
    Held(Duration),
    /// A claim waits for the lock, and this one should do so, too.
    Wanted,
    /// The claim was withdrawn before.
    Withdrawn,
}

pub(crate) type Statement<'q> = Query<'q, MySql, MySqlArguments>;

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

pub(crate) fn bytes(name: &LockName) -> &[u8] {
    name.as_str().as_bytes()
}

pub(crate) fn owner(claim: &Claim) -> &[u8] {
    claim.owner().as_bytes()
}

/// Tries once to take the row. Returns the stamp from just before the statement was sent.
pub(crate) async fn acquire(
    pool: &Pool,
    request: &AcquireRequest,
    stamp: impl Fn() -> Stamp,
    until: Instant,
) -> Result<(Stamp, Acquired), Failure> {
    let mut connection = pool.checkout(until).await?;
    let done = acquire_by(&mut connection, request, stamp, until).await;
    connection.put_back();
    done
}

/// The same, on a connection.
pub(crate) async fn acquire_by(
    connection: &mut Checkout<'_>,
    request: &AcquireRequest,
    stamp: impl Fn() -> Stamp,
    until: Instant,
) -> Result<(Stamp, Acquired), Failure> {
    quarantine::before_acquire(connection, request.ttl, until).await?;
    let (claim, ttl) = (&request.claim, micros(request.ttl));
    let (owner, holder) = (owner(claim), claim.holder().encode(None));
    let holder = holder.as_bytes();
    if connection.shared().released.take(claim.name()) {
        let statement = sqlx::query(statements::ACQUIRE_FREE)
            .bind(owner)
            .bind(holder)
            .bind(ttl)
            .bind(bytes(claim.name()))
            .bind(owner)
            .bind(bytes(claim.name()));
        let sent = stamp();
        let done = connection.execute(statement, until).await?;
        if done.rows_affected() > 0 {
            return Ok((sent, Acquired::Granted(FencingToken::new(done.last_insert_id()))));
        }
        // A client that wants a lock again, which it has just released, would otherwise always be faster than the claims that poll.
        if request.on_contention == OnContention::Queue {
            let rows = connection.fetch(sqlx::query(IS_WANTED).bind(bytes(claim.name())), until).await?;
            if get::<i64>(rows.first().ok_or(Failure::UnexpectedReply)?, 0)? != 0 {
                return Ok((sent, Acquired::Wanted));
            }
        }
    }
    let statement = sqlx::query(statements::ACQUIRE)
        .bind(bytes(claim.name()))
        .bind(owner)
        .bind(ttl)
        .bind(holder)
        .bind(owner)
        .bind(owner)
        .bind(owner)
        .bind(owner)
        .bind(holder)
        .bind(owner)
        .bind(owner)
        .bind(owner)
        .bind(owner)
        .bind(owner)
        .bind(ttl);
    let sent = stamp();
    let acquired = match connection.execute(statement, until).await?.last_insert_id() {
        OTHER_FORMAT => return Err(Failure::Refused(other_format())),
        WAS_WITHDRAWN => Acquired::Withdrawn,
        busy if busy & BUSY != 0 => Acquired::Held(Duration::from_micros(busy & !BUSY)),
        token => Acquired::Granted(FencingToken::new(token)),
    };
    Ok((sent, acquired))
}

/// Ends the lease of a claim, and its turn. Returns whether the claim held the lock.
///
/// The server may have closed a connection that was idle, and the request is lost then. So after a broken connection this asks once more on
/// another one. If the claim holds its lease until then, the first request had no effect, and cannot have one later. Otherwise the outcome
/// stays unknown.
pub(crate) async fn release(pool: &Pool, claim: &Claim, turn: Option<&Turn>, until: Instant) -> Result<bool, Failure> {
    let by_turn = match turn {
        Some(turn) => turn.release(claim, until).await,
        None => None,
    };
    let first = match by_turn {
        Some(done) => done,
        None => release_once(pool, claim, until).await,
    };
    let was_held = match first {
        Err(Failure::Disconnected(cause)) => match release_once(pool, claim, until).await {
            Ok(true) => true,
            _ => return Err(Failure::Disconnected(cause)),
        },
        done => done?,
    };
    if was_held {
        pool.shared().released.note(claim.name());
    }
    Ok(was_held)
}

async fn release_once(pool: &Pool, claim: &Claim, until: Instant) -> Result<bool, Failure> {
    let statement = sqlx::query(statements::RELEASE).bind(bytes(claim.name())).bind(owner(claim));
    Ok(pool.execute(statement, until).await?.rows_affected() > 0)
}

/// The same, and makes sure that a request of the claim that is still in flight has no effect.
pub(crate) async fn withdraw(pool: &Pool, claim: &Claim, until: Instant) -> Result<bool, Failure> {
    let (owner, ttl) = (owner(claim), micros(WITHDRAWN_TTL));
    let statement = sqlx::query(statements::WITHDRAW)
        .bind(bytes(claim.name()))
        .bind(owner)
        .bind(ttl)
        .bind(owner)
        .bind(owner)
        .bind(owner)
        .bind(ttl)
        .bind(owner)
        .bind(owner)
        .bind(owner);
    match pool.execute(statement, until).await?.last_insert_id() {
        OTHER_FORMAT => Err(Failure::Refused(other_format())),
        was_held => Ok(was_held == WAS_HELD),
    }
}

/// Picks the statement for so many rows, and the number that it takes.
pub(crate) fn sized(statements: &Sized, rows: usize) -> (&'static str, usize) {
    let index = SIZES.iter().position(|size| rows <= *size).unwrap_or(SIZES.len() - 1);
    (statements[index], SIZES[index])
}

/// Binds a value for each row, and repeats the last one up to `size`.
pub(crate) fn bind_all<'r, 'q, T>(
    mut statement: Statement<'q>,
    rows: &'r [T],
    size: usize,
    value: impl Fn(&'r T) -> &'q [u8],
) -> Statement<'q> {
    for index in 0..size {
        statement = statement.bind(value(&rows[index.min(rows.len() - 1)]));
    }
    statement
}

/// A duration in microseconds; nothing for one that has passed.
pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

/// Those locks that are free.
pub(crate) async fn free(pool: &Pool, names: &[LockName], until: Instant) -> Result<Vec<LockName>, Failure> {
    let (text, size) = sized(&POLL, names.len());
    let query = bind_all(sqlx::query(text), names, size, |name| bytes(name));
    let rows = pool.fetch(query, until).await?;
    let held: HashSet<Vec<u8>> = rows.iter().map(|row| get(row, 0)).collect::<Result<_, Failure>>()?;
    Ok(names.iter().filter(|name| !held.contains(bytes(name))).cloned().collect())
}

/// Some names after `after` whose rows may be removed, and the name to continue after; `None` for that at the end of the table.
pub(crate) async fn purgeable(
    pool: &Pool,
    after: &[u8],
    retention: Duration,
    until: Instant,
) -> Result<(Vec<Vec<u8>>, Option<Vec<u8>>), Failure> {
    let retention = micros(retention);
    let query = sqlx::query(PURGEABLE).bind(retention).bind(retention).bind(after);
    let rows = pool.fetch(query, until).await?;
    let last = match rows.last() {
        Some(last) if rows.len() >= PURGEABLE_ROWS => Some(get(last, 0)?),
        _ => None,
    };
    let mut names = Vec::new();
    for row in &rows {
        if get::<i64>(row, 1)? != 0 {
            names.push(get(row, 0)?);
        }
    }
    Ok((names, last))
}

/// Removes rows that may be removed, and returns how many.
pub(crate) async fn purge(pool: &Pool, names: &[Vec<u8>], retention: Duration, until: Instant) -> Result<u64, Failure> {
    let retention = micros(retention);
    let statement = bind_all(sqlx::query(PURGE), names, PURGE_ROWS, |name| &**name).bind(retention).bind(retention);
    Ok(pool.execute(statement, until).await?.rows_affected())
}

/// Reads a column.
pub(crate) fn get<'r, T>(row: &'r MySqlRow, index: usize) -> Result<T, Failure>
where
    T: sqlx::Decode<'r, MySql> + sqlx::Type<MySql>,
{
    row.try_get(index).map_err(|_| Failure::UnexpectedReply)
}
