//! The run of the server, and the row that names it: what a client reads and writes to decide on a quarantine.
//!
//! A server that keeps what it acknowledged has one run until another server takes its place. A run of any other server
//! ends with a restart. The row also says since when its clients use a run, because a server that takes the place of
//! another one may have been up for long, and a client may live for less than a quarantine lasts.

use std::time::Duration;

use leasehold_core::backend::kit::restart::Reading;
use sqlx::mysql::MySqlRow;

use crate::errors::Failure;
use crate::settings::Strategy;
use crate::sql::{duration, get, literal};
use crate::strategy;

/// The condition on the row of the run. Its name is that of no lock.
macro_rules! row {
    () => {
        concat!("name = '' AND format = '", strategy::row!(), "'")
    };
}

/// The server: what tells it from others, the start of its run in seconds if it is not durable, whether it is
/// read-only, its time in µs; and the row of the run: format, the server that was last seen, since when in µs, the
/// epoch key.
///
/// Each of the comments is executed by either MySQL or MariaDB, which has no `server_uuid`. `Uptime` is the time of the
/// statement minus that of the start, both in whole seconds, so the difference has the same value for the whole run.
const READ: &str = "\
SELECT LEFT(SHA2(CONCAT_WS('/', /*!80000 @@server_uuid */ \
/*M!100600 @@hostname, @@port, @@server_id, @@datadir */), 256), 32), \
IF(@@innodb_flush_log_at_trx_commit = 1, NULL, CAST(UNIX_TIMESTAMP() - (SELECT variable_value FROM \
/*!80000 performance_schema.global_status */ /*M!100600 information_schema.global_status */ \
WHERE variable_name = 'Uptime') AS SIGNED)), CAST(@@read_only AS CHAR), \
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), \
kept.format, kept.withdrawn, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', kept.withdrawn_until), kept.holder \
FROM (SELECT 1) AS one LEFT JOIN leasehold_locks AS kept ON kept.name = ''";

/// The server and the row of the run at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// The server and, if a restart may lose data, the start of its run.
    pub(crate) server: Server,
    /// It refuses writes, as a replica does.
    pub(crate) is_read_only: bool,
    /// Its clock, since the Unix epoch.
    now: Duration,
    /// `None` for a table without the row.
    row: Option<RunRow>,
}

/// What tells a server from others, and the start of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    id: String,
    /// In seconds since the Unix epoch. `None` for a server that keeps what it acknowledged.
    started: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct RunRow {
    seen: Vec<u8>,
    /// When a client saw this server first, by the server's clock.
    since: Duration,
    key: String,
}

/// The statements that read the state, and before it change the row.
pub(crate) fn read_after(change: Option<String>) -> String {
    match change {
        Some(change) => format!("{change}; {READ}"),
        None => READ.to_owned(),
    }
}

impl Server {
    /// As the row has it.
    fn text(&self) -> String {
        match self.started {
            Some(started) => format!("{}@{started}", self.id),
            None => self.id.clone(),
        }
    }

    /// Whether a run, as [`State::run`] names it, was one of this server before it started again.
    fn was_restarted_since(&self, run: &str) -> bool {
        let server = run.split_once('~').map_or(run, |(server, _)| server);
        let id = server.split_once('@').map_or(server, |(id, _)| id);
        self.started.is_some() && id == self.id && server != self.text()
    }
}

impl State {
    /// Decodes the row of [`READ`].
    pub(crate) fn decode(rows: &[MySqlRow]) -> Result<Self, Failure> {
        let row = rows.first().ok_or(Failure::UnexpectedReply)?;
        let started: Option<i64> = get(row, 1)?;
        let read_only: String = get(row, 2)?;
        let format: Option<Vec<u8>> = get(row, 4)?;
        let kept = match format.as_deref() {
            None => None,
            Some(format) => {
                strategy::refuse_other(Strategy::Row, format)?;
                Some(RunRow {
                    seen: get(row, 5)?,
                    since: duration(get(row, 6)?),
                    key: String::from_utf8(get(row, 7)?).map_err(|_| Failure::other_format())?,
                })
            }
        };
        Ok(Self {
            server: Server { id: get(row, 0)?, started: started.and_then(|started| u64::try_from(started).ok()) },
            is_read_only: !matches!(&*read_only, "0" | "OFF"),
            now: duration(get(row, 3)?),
            row: kept,
        })
    }

    /// The rest of the second in which a run started that may lose data. Two runs can have started in one second, and
    /// then have one name: neither may grant a lock within it.
    pub(crate) fn starts_for(&self) -> Option<Duration> {
        let left = Duration::from_secs(self.server.started? + 1).saturating_sub(self.now);
        (!left.is_zero()).then_some(left)
    }

    /// The statement to run first, if the row does not have this server: it notes since when clients see the server.
    pub(crate) fn note(&self) -> Option<String> {
        let seen = literal(self.server.text().as_bytes());
        match &self.row {
            None => Some(format!(
                "INSERT INTO leasehold_locks (name, format, owner, fence, expires_at, withdrawn, withdrawn_until, \
                 holder) VALUES ('', '{}', '', 0, '1970-01-02', {seen}, UTC_TIMESTAMP(6), '') \
                 ON DUPLICATE KEY UPDATE name = name",
                strategy::row!()
            )),
            Some(row) if row.seen != self.server.text().as_bytes() => Some(format!(
                concat!(
                    "UPDATE leasehold_locks SET withdrawn = {}, withdrawn_until = UTC_TIMESTAMP(6) \
                     WHERE withdrawn = {} AND ",
                    row!()
                ),
                seen,
                literal(&row.seen)
            )),
            Some(_) => None,
        }
    }

    /// The statement that writes the epoch key, if the row has not changed since it was read.
    pub(crate) fn write(&self, key: &str) -> String {
        let (seen, read): (&[u8], &str) = self.row.as_ref().map_or((&[], ""), |row| (&row.seen, &row.key));
        format!(
            concat!("UPDATE leasehold_locks SET holder = {} WHERE withdrawn = {} AND holder = {} AND ", row!()),
            literal(key.as_bytes()),
            literal(seen),
            literal(read.as_bytes())
        )
    }

    /// What follows for a client that was last allowed to lock on the run `known`. The row has this server.
    pub(crate) fn reading(&self, known: Option<&str>) -> Reading {
        let (since, key) = self.row.as_ref().map_or((self.now, ""), |row| (row.since, &*row.key));
        // A server that takes its own place again later has another run then.
        let run = format!("{}~{}", self.server.text(), since.as_micros());
        let named = key.split(' ').nth(1);
        let seen_for = self.now.saturating_sub(since);
        let no_grant_of = |earlier: &str| {
            // The start is in whole seconds, and its second may have just ended.
            let started = self.server.started.map(|started| Duration::from_secs(started + 1));
            let uptime = started.filter(|_| self.server.was_restarted_since(earlier));
            let uptime = uptime.map_or(Duration::ZERO, |started| self.now.saturating_sub(started));
            // The row was changed after the end of the run that it names. It says nothing about another one.
            uptime.max(if named == Some(earlier) { seen_for } else { Duration::ZERO })
        };
        let earlier = [named, known].into_iter().flatten().filter(|earlier| *earlier != run);
        let uptime = earlier.map(no_grant_of).min().unwrap_or(seen_for);
        let now = Duration::from_millis(u64::try_from(self.now.as_millis()).unwrap_or(u64::MAX));
        Reading { uptime: Some(uptime), now, key: key.to_owned(), run }
    }
}

#[cfg(test)]
mod tests;
