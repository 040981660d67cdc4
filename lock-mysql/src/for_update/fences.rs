//! Fencing tokens, and which connections exist. None of this runs on the connection of a lease: a rollback there would
//! take the token back.

use std::collections::HashSet;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, FencingToken};
use sqlx::mysql::MySqlRow;
use tokio::time::{Instant, sleep, timeout_at};

use super::connection::Endpoint;
use super::statements::{self, Kill, OTHER_FORMAT, Statements, addresses};
use crate::errors::Failure;
use crate::pool::{Checkout, Pool};
use crate::settings::Strategy;
use crate::sql::get;
use crate::strategy::{MARK_FOR_UPDATE, refuse_other};

/// The pause between two looks at a connection. It doubles.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// The outcome of an attempt to raise the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Raised {
    To(FencingToken),
    /// How long an earlier holder may still trust a lease that a restart of the server has ended.
    NotBefore(Duration),
}

/// Raises the token for the lease that a connection keeps.
pub(super) async fn raise(pool: &Pool, statements: String, until: Instant) -> Result<Raised, Failure> {
    let mut connection = pool.checkout(until).await?;
    let row = raise_on(&mut connection, statements, until).await;
    connection.put_back();
    let row = &row?;
    let (token, still_holds, wait): (u64, i64, i64) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
    match (token, u64::try_from(wait).unwrap_or_default()) {
        (OTHER_FORMAT, _) => Err(Failure::other_format()),
        _ if still_holds != 1 => {
            let text = "the server ended the connection of the lease";
            Err(Failure::Refused(Error::new(ErrorKind::Unavailable, text)))
        }
        (_, 1..) => Ok(Raised::NotBefore(Duration::from_secs(wait.unsigned_abs()))),
        (token, 0) => Ok(Raised::To(FencingToken::new(token))),
    }
}

async fn raise_on(connection: &mut Checkout<'_>, statements: String, until: Instant) -> Result<MySqlRow, Failure> {
    // Terminates: once there is a row that names the strategy, each client reads it.
    loop {
        let row = connection.fetch_text(statements.clone(), until).await?.pop().ok_or(Failure::UnexpectedReply)?;
        match get::<Option<Vec<u8>>>(&row, 3)? {
            Some(format) => return refuse_other(Strategy::ForUpdate, &format).map(|()| row),
            None => connection.execute_text(MARK_FOR_UPDATE.to_owned(), until).await?,
        };
    }
}

/// Records that the lease with this token has a longer ttl.
pub(super) async fn lengthen(
    pool: &Pool,
    of: &Statements,
    token: FencingToken,
    ttl: u64,
    until: Instant,
) -> Result<(), Failure> {
    pool.execute_text(of.lengthen(token.get(), ttl), until).await.map(drop)
}

/// Whether the connection with this number holds the lock.
pub(super) async fn holds(pool: &Pool, of: &Statements, id: u64, until: Instant) -> Result<bool, Failure> {
    let rows = pool.fetch_text(of.holds(id), until).await?;
    Ok(get::<i64>(rows.first().ok_or(Failure::UnexpectedReply)?, 0)? == 1)
}

/// Returns `true` as soon as the server shows that a connection waits for a row, and `false` when the time is over or
/// the result is not needed any more.
pub(super) async fn waits(
    pool: &Pool,
    statement: String,
    is_needed: impl Fn() -> bool,
    until: Instant,
) -> Result<bool, Failure> {
    let mut pause = FIRST_PAUSE;
    while is_needed() && Instant::now() + pause < until {
        let rows = pool.fetch_text(statement.clone(), until).await?;
        if get::<i64>(rows.first().ok_or(Failure::UnexpectedReply)?, 0)? > 0 {
            return Ok(true);
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Ok(false)
}

/// Which of these connections exist, by their numbers.
pub(super) async fn existing(
    pool: &Pool,
    endpoints: impl Iterator<Item = &Endpoint> + Clone,
    until: Instant,
) -> Result<HashSet<u64>, Failure> {
    let rows = pool.fetch_text(addresses(endpoints.clone().map(|it| it.id)), until).await;
    let found =
        rows?.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect::<Result<HashSet<(u64, String)>, _>>()?;
    let exists = |it: &&Endpoint| found.contains(&(it.id, it.host.clone()));
    Ok(endpoints.filter(exists).map(|it| it.id).collect())
}

/// Ends a connection at the server, or its statement. Returns whether the connection existed.
pub(super) async fn kill(pool: &Pool, what: Kill, endpoint: &Endpoint, until: Instant) -> Result<bool, Failure> {
    match pool.execute_text(statements::kill(what, endpoint.id, &endpoint.host), until).await {
        Ok(_) => Ok(true),
        Err(Failure::NoSuchConnection) => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Ends a connection at the server, and returns when the server has rolled its transaction back. Returns whether it
/// existed.
pub(super) async fn end(pool: &Pool, endpoint: &Endpoint, until: Instant) -> Result<bool, Failure> {
    if !kill(pool, Kill::Connection, endpoint, until).await? {
        return Ok(false);
    }
    gone(pool, endpoint, until).await?;
    Ok(true)
}

/// Waits until the server has rolled back the transaction of a connection that was ended.
pub(super) async fn gone(pool: &Pool, endpoint: &Endpoint, until: Instant) -> Result<(), Failure> {
    let mut pause = FIRST_PAUSE;
    while !existing(pool, std::iter::once(endpoint), until).await?.is_empty() {
        timeout_at(until, sleep(pause)).await.map_err(|_| Failure::TimedOut)?;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Ok(())
}
