//! A connection that locks one row.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::{Error, ErrorKind};
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use tokio::time::Instant;

use super::statements::{LIMITS, TRY_LIMITS};
use crate::errors::Failure;
use crate::pool::{Checkout, Pool};
use crate::sql::get;

/// A connection at the server. The number alone is not enough: a server that was restarted uses numbers again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) id: u64,
    /// The client's address, as the server sees it.
    pub(super) host: String,
}

/// A connection that locks one row. Dropping it closes it.
pub(super) struct Connection<'a> {
    checkout: Checkout<'a>,
    pub(super) endpoint: Endpoint,
    /// When the server was started, in seconds since the Unix epoch by its wall clock. A step of that clock moves
    /// `Uptime` too, and so does not change this.
    pub(super) started: u64,
    /// The server's uptime when the connection was opened, and when that was.
    uptime: (Duration, Instant),
}

impl<'a> Connection<'a> {
    /// Takes a connection of the pool.
    pub(super) async fn take(pool: &'a Pool, until: Instant) -> Result<Self, Failure> {
        loop {
            if let Some(connection) = Self::try_take(pool, until).await? {
                return Ok(connection);
            }
        }
    }

    /// Returns `None` if a second ended while the server's state was read.
    async fn try_take(pool: &'a Pool, until: Instant) -> Result<Option<Self>, Failure> {
        let checkout = pool.checkout(until).await?;
        let session = checkout.session().ok_or(Failure::UnexpectedReply)?;
        let fact = |name| fact(&session.facts, name);
        let is_on = |name| fact(name).is_some_and(|value: String| !matches!(&*value, "" | "OFF" | "0"));
        if is_on("wsrep_on") || is_on("group_replication_group_name") {
            return Err(Failure::NotSent(Error::new(ErrorKind::Unsupported, CLUSTER)));
        }
        refuse_limits(&session.facts)?;
        let id = session.id;
        let number = |name| fact(name).and_then(|it: String| it.parse::<u64>().ok());
        let (before, uptime, after) = (number("before"), number("Uptime").unwrap_or_default(), number("after"));
        // In the same second, so that the difference is exact.
        let (Some(now), true) = (before, before == after) else { return Ok(None) };
        let host = fact("host").unwrap_or_default();
        let endpoint = Endpoint { id, host };
        let started = now.wrapping_sub(uptime);
        // The server's clock may have been set back: the number is then negative.
        let uptime = (Duration::from_secs(u64::try_from(uptime.cast_signed()).unwrap_or_default()), session.opened);
        Ok(Some(Self { endpoint, started, uptime, checkout }))
    }

    /// How long the server has run, at least.
    pub(super) fn uptime(&self) -> Duration {
        self.uptime.0 + self.uptime.1.elapsed()
    }

    /// Locks the row. Returns whether it is locked.
    pub(super) async fn lock(&mut self, statements: String, until: Instant) -> Result<bool, Failure> {
        locked(self.checkout.fetch_text(statements, until).await?.first())
    }

    /// Waits for the row and locks it. Returns whether it is locked. Sets `is_used` when the server has replied that
    /// another connection holds, and waits for it.
    pub(super) async fn wait(
        &mut self,
        statements: String,
        is_used: &AtomicBool,
        until: Instant,
    ) -> Result<bool, Failure> {
        let note = |row: &MySqlRow| {
            // The first row says which connection holds the lock. The row of the lock itself sets the flag too, which
            // does no harm: the wait is over then.
            if matches!(get(row, 0), Ok(Some::<i64>(_))) {
                is_used.store(true, Ordering::Relaxed);
            }
        };
        locked(self.checkout.fetch_text_noting(statements, note, until).await?.get(1))
    }

    /// Runs statements that return nothing.
    pub(super) async fn execute(&mut self, statements: String, until: Instant) -> Result<(), Failure> {
        self.checkout.execute_text(statements, until).await.map(drop)
    }

    /// Runs statements and reads all their rows.
    pub(super) async fn fetch(&mut self, statements: String, until: Instant) -> Result<Vec<MySqlRow>, Failure> {
        self.checkout.fetch_text(statements, until).await
    }

    /// Returns the connection to the pool. It has no transaction.
    pub(super) fn put_back(self) {
        self.checkout.put_back();
    }

    /// Returns the connection to the pool, unless `may_return` denies it.
    fn put_back_if(self, may_return: impl FnOnce() -> bool) {
        if may_return() {
            self.put_back();
        }
    }

    /// As [`Self::end`], of a lease. Sets `was_held` when the server has replied to the first statement: the row was
    /// still locked then.
    pub(super) async fn release(
        mut self,
        statements: &str,
        was_held: &AtomicBool,
        may_return: impl FnOnce() -> bool,
        until: Instant,
    ) -> Result<(), Failure> {
        let note = |_: &MySqlRow| was_held.store(true, Ordering::Relaxed);
        self.checkout.fetch_text_noting(format!("SELECT 1; {statements}"), note, until).await?;
        self.put_back_if(may_return);
        Ok(())
    }

    /// Runs the statements that end the transaction, and returns the connection to the pool unless `may_return` denies
    /// it.
    pub(super) async fn end(
        mut self,
        statements: String,
        may_return: impl FnOnce() -> bool,
        until: Instant,
    ) -> Result<(), Failure> {
        self.checkout.execute_text(statements, until).await?;
        self.put_back_if(may_return);
        Ok(())
    }
}

const CLUSTER: &str = "`strategy=for-update` needs one server that accepts writes: the nodes of Galera and of group \
     replication do not share the locks of rows. Use `strategy=row`";

const LIMITED: &str = "`strategy=for-update` needs connections whose transactions may be idle and whose statements may \
     take long, and this one has a limit, which the client could not set to 0: is there a proxy in between?";

/// Checks that the limits of the server can be removed, by a connection for calls: no other one has to be opened for
/// that. The connection keeps no limits, which does no harm.
pub(crate) async fn check_limits(pool: &Pool, until: Instant) -> Result<(), Failure> {
    refuse_limits(&pool.fetch_text(TRY_LIMITS.to_owned(), until).await?)
}

/// An error if these rows show a limit.
fn refuse_limits(rows: &[MySqlRow]) -> Result<(), Failure> {
    match LIMITS.iter().find(|limit| fact(rows, limit).is_some_and(|value| !is_zero(&value))) {
        Some(limit) => Err(Failure::NotSent(Error::new(ErrorKind::Unsupported, format!("{LIMITED}: `{limit}`")))),
        None => Ok(()),
    }
}

fn fact(rows: &[MySqlRow], name: &str) -> Option<String> {
    rows.iter().find_map(|row| value(row, name))
}

fn is_zero(limit: &str) -> bool {
    limit.parse::<f64>() == Ok(0.0)
}

/// The value of a row with a name and a value.
fn value(row: &MySqlRow, name: &str) -> Option<String> {
    let found: String = row.try_get_unchecked(0).ok()?;
    if found.eq_ignore_ascii_case(name) { row.try_get_unchecked(1).ok() } else { None }
}

fn locked(row: Option<&MySqlRow>) -> Result<bool, Failure> {
    let Some(row) = row else { return Ok(false) };
    match get::<Option<i64>>(row, 0)? {
        Some(1) => Ok(true),
        _ => Err(Failure::Refused(Error::new(ErrorKind::Unavailable, NAMED_LOCK))),
    }
}

const NAMED_LOCK: &str = "another program uses the named lock (`GET_LOCK`) of this lock";
