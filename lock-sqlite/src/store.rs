//! The statements: what a lease is in the file, and the rules by which it changes. Synchronous, without thread or clock.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use leasehold_core::backend::{AcquireRequest, Claim, Extend, OnContention, RenewRequest};
use leasehold_core::{Error, ErrorKind, FencingToken, LockName};
use rusqlite::config::DbConfig;
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, OpenFlags, Params, Row, params};

use crate::boot_clock::{Reading, micros};
use crate::errors::{Failure, lost_wal, replaced};
use crate::file_system;
use crate::open_files::{FilesState, OpenFiles, beside};

type Result<T> = std::result::Result<T, Failure>;

const SCHEMA: &str = include_str!("schema.sql");

/// The version of the schema that this code reads and writes.
const VERSION: i64 = 1;

/// The page of a file that is made here. Each write puts a whole page into the WAL, and an ordinary row has 200 bytes: acquire and
/// release are a tenth faster than with SQLite's 4096. A file that is there keeps its own.
const PAGE: i64 = 1024;

/// The version and kind of rows that this code reads and writes. The statements hold the same text.
const FORMAT: &str = "1x";

/// So long after its end a lock is kept for those who wait for it, at most: longer than a thread needs to wake up. Without it
/// whoever releases and asks again at once would always be first. The statements hold the same number, in µs.
pub(crate) const RESERVED_FOR_WAITERS: Duration = Duration::from_millis(10);

/// So long a claim that was refused counts as waiting, unless it asks again. What it costs when nobody waits any more: one
/// newcomer is held back once, by [`RESERVED_FOR_WAITERS`].
const WAITER_TIMEOUT: Duration = Duration::from_secs(30);

/// Takes the row when it is free, or is this claim's already. The assignments read the old row: a repeated claim keeps its
/// token, and its lease never gets shorter. A row of another boot says nothing about time: it is adopted, below, and not taken.
/// [`note_token`] gives the token to this process: for `RETURNING` SQLite opens a table each time, a tenth of an acquire.
const ACQUIRE: &str = "\
INSERT INTO leasehold_locks (name, format, owner, fence, until, boot, ttl, wanted, holder) \
VALUES (?1, '1x', ?2, ?3, ?4 + ?5, ?6, ?5, 0, ?7) \
ON CONFLICT (name) DO UPDATE SET \
fence = leasehold_note_token(CASE WHEN owner = ?2 AND until > ?4 THEN fence ELSE max(fence + 1, ?3) END), \
until = CASE WHEN owner = ?2 THEN max(until, ?4 + ?5) ELSE ?4 + ?5 END, \
wanted = CASE WHEN owner = ?2 THEN wanted ELSE 0 END, \
owner = ?2, boot = ?6, ttl = ?5, holder = ?7 \
WHERE format = '1x' AND (\
(owner = ?2 AND boot = ?6 AND until > ?4) \
OR ((owner = x'' OR (boot = ?6 AND until <= ?4)) \
AND (?8 OR boot <> ?6 OR wanted <= ?4 OR until + 10000 <= ?4)))";

const READ_ROW: &str = "SELECT format, owner, until, boot, ttl, wanted FROM leasehold_locks WHERE name = ?1";

/// A lease from before a reboot gets one whole ttl on the clock of this boot. Its holder was on this machine and is gone; but
/// the file may come from another one, or from a container with a clock of its own.
const ADOPT: &str = "\
UPDATE leasehold_locks SET until = ?4 + ttl, boot = ?5, wanted = 0 WHERE name = ?1 AND owner = ?2 AND boot = ?3";

/// Notes that somebody waits, as long as the lease stands that is in the way.
const NOTE_WAITER: &str = "\
UPDATE leasehold_locks SET wanted = ?5 WHERE name = ?1 AND owner = ?2 AND boot = ?3 AND until > ?4";

const RENEW: &str = "\
UPDATE leasehold_locks SET until = CASE WHEN ?6 THEN ?3 + ?5 ELSE max(until, ?3 + ?5) END, ttl = ?5 \
WHERE name = ?1 AND owner = ?2 AND until > ?3 AND boot = ?4 AND format = '1x'";

/// Ends a lease that nobody waits for.
const RELEASE: &str = "\
UPDATE leasehold_locks SET owner = x'', until = ?3, holder = '' \
WHERE name = ?1 AND owner = ?2 AND until > ?3 AND boot = ?4 AND wanted <= ?3 AND format = '1x'";

/// Ends a lease that somebody waits for.
const RELEASE_WITH_WAITERS: &str = "\
UPDATE leasehold_locks SET owner = x'', until = ?3, holder = '' \
WHERE name = ?1 AND owner = ?2 AND until > ?3 AND boot = ?4 AND format = '1x'";

/// Changes nothing, and is a write all the same.
const WRITE_NOTHING: &str = "UPDATE leasehold_format SET version = version";

const BREAK: &str = "\
UPDATE leasehold_locks SET owner = x'', until = ?4, boot = ?5, holder = '', fence = max(fence + 1, ?3) \
WHERE name = ?1 AND fence = ?2 AND owner <> x'' AND (boot <> ?5 OR until > ?4) AND format = '1x' RETURNING fence";

/// One connection to the file.
pub(crate) struct Store {
    connection: Connection,
    path: PathBuf,
    files: OpenFiles,
    /// The token that the last [`ACQUIRE`] gave to a row that was there.
    last_token: Arc<AtomicI64>,
}

/// Whether a claim was refused before and has waited since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    First,
    Retry,
}

/// What an attempt to take a lock found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AcquireOutcome {
    Granted(FencingToken),
    /// Another has it for so long.
    Held(Duration),
    /// Free, and kept so long for those who wait.
    Reserved(Duration),
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    NotHeld,
    /// It was this claim's, and nobody waits.
    NoWaiters,
    /// It was this claim's, and somebody waits.
    HasWaiters,
}

/// A row as far as it decides who may have the lock.
struct LockRow {
    owner: Vec<u8>,
    until: i64,
    boot: i64,
    ttl: i64,
    waiter_until: i64,
}

impl LockRow {
    fn is_free(&self, now: &Reading) -> bool {
        self.owner.is_empty() || (self.boot == now.boot && self.until <= now.boottime)
    }
}

impl Store {
    /// Opens the file, and makes it when it is not there. It is used in WAL mode, so that readers never wait. No statement waits
    /// for another process that writes: it fails as busy. Nobody checkpoints but who is told to.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Self::open_files(path).map_err(|failure| match file_system::check_folder(path) {
            Err(error) if failure.cannot_open() => Failure::Rejected(error),
            _ => failure,
        })
    }

    fn open_files(path: &Path) -> Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(Duration::ZERO)?;
        connection.pragma_update(None, "page_size", PAGE)?;
        let mode: String = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
        if !mode.eq_ignore_ascii_case("wal") {
            let text = format!("the file system of {} cannot do SQLite's WAL (it stays with {mode})", path.display());
            return Err(Failure::Rejected(Error::new(ErrorKind::Unsupported, text)));
        }
        // Writes are lost with the power only. Leases are judged by the boot then, and tokens rise by the wall clock.
        connection.pragma_update(None, "synchronous", "normal")?;
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        // What is read makes SQLite open all of its files.
        connection.query_row("PRAGMA schema_version", [], |_| Ok(()))?;
        let resolved = connection.path().map_or_else(|| path.to_owned(), PathBuf::from);
        let files = OpenFiles::of(path, &resolved).map_err(|error| Failure::Rejected(replaced().with_source(error)))?;
        let last_token = note_token(&connection)?;
        let store = Self { connection, path: path.to_owned(), files, last_token };
        if store.has_whole_wal()? { Ok(store) } else { Err(Failure::Rejected(lost_wal())) }
    }

    /// Makes the tables when they are missing, and refuses another version of them.
    pub(crate) fn prepare(&self) -> Result<()> {
        if !self.has_tables()? {
            // One transaction: whoever opens it next finds all of it or nothing.
            self.in_transaction(|| self.connection.execute_batch(SCHEMA).map_err(Failure::from))??;
            // What is in the file already can be written again on a full disk.
            self.checkpoint_passive();
        }
        let version: i64 =
            self.connection.query_row("SELECT max(version) FROM leasehold_format", [], |row| row.get(0))?;
        if version == VERSION {
            return Ok(());
        }
        let text = format!(
            "the file {} has version {version} of Leasehold's tables, and this is for version {VERSION}: update Leasehold",
            self.path.display()
        );
        Err(Failure::Rejected(Error::new(ErrorKind::Unsupported, text)))
    }

    /// Begins the WAL. The first write to an empty one, or to one that was checkpointed, waits for the disk once: better this one
    /// than a call's.
    pub(crate) fn begin_wal(&self) -> Result<()> {
        self.execute(WRITE_NOTHING, []).map(drop)
    }

    /// Copies the WAL into the file, so that the next write begins the WAL anew: that needs no room on the disk.
    pub(crate) fn checkpoint_passive(&self) {
        // Where that fails too, the next write tells.
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }

    /// Whether the WAL has nothing in it: nobody else has the file open, or nobody has written yet.
    pub(crate) fn has_empty_wal(&self) -> bool {
        std::fs::metadata(beside(&self.path, "-wal")).is_ok_and(|found| found.len() == 0)
    }

    pub(crate) fn has_tables(&self) -> Result<bool> {
        has_tables(&self.connection)
    }

    /// Whether the path still leads to the files that were opened: somebody may have deleted, replaced or truncated one. Cheap
    /// enough for each call.
    pub(crate) fn is_current(&self) -> bool {
        match self.files.state() {
            FilesState::Current => true,
            FilesState::WalShrunk => self.has_whole_wal().unwrap_or(false),
            FilesState::Replaced => false,
        }
    }

    /// The same and more, for whoever is in no hurry: that nobody moved `-wal` or `-shm` away either.
    pub(crate) fn is_in_place(&self) -> bool {
        self.is_current() && self.files.are_at_their_paths()
    }

    /// Whether the `-wal` has all the frames that the `-shm` counts. One that was deleted or truncated under its users has not, and
    /// what is written behind the gap would damage the database.
    fn has_whole_wal(&self) -> Result<bool> {
        let page: i64 = self.connection.query_row("PRAGMA page_size", [], |row| row.get(0))?;
        // Another program's checkpoint may truncate it between the two readings.
        for _ in 0..3 {
            let frames: i64 = self.connection.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get(1))?;
            let length = self.files.wal_length();
            // A header, then frames with a header each.
            if frames <= 0 || (32 + frames * (24 + page)).unsigned_abs() <= length {
                self.files.accept_wal(length);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Leaves what belongs to the path alone when this is closed. The last connection to a file checkpoints and deletes `-wal`
    /// by its name: that would be another file's by now.
    pub(crate) fn keep_wal_on_close(&self) {
        // Without it the worst is an empty `-wal` too few, which is made again.
        let _ = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Takes the lock, if it is free.
    pub(crate) fn acquire(&self, request: &AcquireRequest, attempt: Attempt, now: &Reading) -> Result<AcquireOutcome> {
        let claim = &request.claim;
        if attempt == Attempt::Retry {
            // A look costs an eighth of an attempt, and does not wait for who writes.
            let outcome = self.check(request, attempt, now)?;
            if outcome != AcquireOutcome::Held(Duration::ZERO) {
                return Ok(outcome);
            }
        }
        // Who does not want to wait is not held back: it would not come again.
        let ignores_reservation = attempt == Attempt::Retry || request.on_contention == OnContention::Fail;
        let holder = claim.holder().encode(None);
        let row = params![
            name_of(claim.name()),
            owner_of(claim),
            now.wall,
            now.boottime,
            micros(request.ttl),
            now.boot,
            holder,
            ignores_reservation
        ];
        // Of a new row, unless the statement notes another.
        self.last_token.store(now.wall, Ordering::Relaxed);
        match self.execute(ACQUIRE, row)? {
            0 => self.check(request, attempt, now),
            _ => Ok(AcquireOutcome::Granted(token(self.last_token.load(Ordering::Relaxed)))),
        }
    }

    /// Who has the lock, for a claim that was refused or has waited. `Held` for no time at all: it is free.
    fn check(&self, request: &AcquireRequest, attempt: Attempt, now: &Reading) -> Result<AcquireOutcome> {
        let AcquireRequest { claim, on_contention, .. } = request;
        let Some(row) = self.lock_row(claim.name())? else { return Ok(AcquireOutcome::Held(Duration::ZERO)) };
        let name = name_of(claim.name());
        if row.is_free(now) {
            let reserved = row.until.saturating_add(micros(RESERVED_FOR_WAITERS)).saturating_sub(now.boottime);
            let is_reserved = row.boot == now.boot && row.waiter_until > now.boottime && reserved > 0;
            return Ok(match attempt {
                Attempt::First if is_reserved && *on_contention == OnContention::Queue => {
                    AcquireOutcome::Reserved(duration(reserved))
                }
                _ => AcquireOutcome::Held(Duration::ZERO),
            });
        }
        if row.boot != now.boot {
            self.execute(ADOPT, params![name, row.owner, row.boot, now.boottime, now.boot])?;
            return Ok(AcquireOutcome::Held(duration(row.ttl)));
        }
        let left = duration(row.until - now.boottime);
        let is_current_lease = *on_contention == OnContention::Fail || self.note_waiter(claim.name(), &row, now)?;
        // Else its end came between the two statements, and nobody was told of it.
        Ok(AcquireOutcome::Held(if is_current_lease { left } else { Duration::ZERO }))
    }

    /// Has the end of a lease told to those who wait. Whether it still stands.
    fn note_waiter(&self, name: &LockName, lease: &LockRow, now: &Reading) -> Result<bool> {
        let long = micros(WAITER_TIMEOUT);
        if lease.waiter_until > now.boottime + long / 3 {
            return Ok(true);
        }
        let row = params![name_of(name), lease.owner, lease.boot, now.boottime, now.boottime + long];
        Ok(self.execute(NOTE_WAITER, row)? > 0)
    }

    /// Whether the lease stood and was renewed.
    pub(crate) fn renew(&self, request: &RenewRequest, now: &Reading) -> Result<bool> {
        let RenewRequest { claim, ttl, extend, .. } = request;
        let exactly = *extend == Extend::Exactly;
        let row = params![name_of(claim.name()), owner_of(claim), now.boottime, now.boot, micros(*ttl), exactly];
        let renewed = self.execute(RENEW, row)? > 0;
        if !renewed {
            self.lock_row(claim.name())?;
        }
        Ok(renewed)
    }

    /// Ends the lease of a claim.
    pub(crate) fn release(&self, claim: &Claim, now: &Reading) -> Result<ReleaseOutcome> {
        let row = params![name_of(claim.name()), owner_of(claim), now.boottime, now.boot];
        if self.execute(RELEASE, row)? > 0 {
            return Ok(ReleaseOutcome::NoWaiters);
        }
        if self.execute(RELEASE_WITH_WAITERS, row)? > 0 {
            return Ok(ReleaseOutcome::HasWaiters);
        }
        self.lock_row(claim.name())?;
        Ok(ReleaseOutcome::NotHeld)
    }

    /// Ends the lease with this token, whoever has it. Gives the raised token.
    pub(crate) fn break_lease(
        &self,
        name: &LockName,
        broken: FencingToken,
        now: &Reading,
    ) -> Result<Option<FencingToken>> {
        let Ok(fence) = i64::try_from(broken.get()) else { return Ok(None) };
        let row = params![name_of(name), fence, now.wall, now.boottime, now.boot];
        let raised = self.one(BREAK, row, |row| row.get(0))?;
        if raised.is_none() {
            self.lock_row(name)?;
        }
        Ok(raised.map(token))
    }

    /// How long the lock is still held by its record, on behalf of somebody who waits; none when nobody has it now. An earlier end
    /// is notified: whoever was granted the lock since then does not know that somebody waits.
    pub(crate) fn held_for(&self, name: &LockName, now: &Reading) -> Result<Option<Duration>> {
        let Some(row) = self.lock_row(name)?.filter(|row| !row.is_free(now)) else { return Ok(None) };
        if row.boot != now.boot {
            // Nobody knows: the next attempt adopts it.
            return Ok(Some(Duration::MAX));
        }
        Ok(self.note_waiter(name, &row, now)?.then(|| duration(row.until - now.boottime)))
    }

    /// The row of a lock.
    ///
    /// # Errors
    /// When it is of a format that this version does not know.
    fn lock_row(&self, name: &LockName) -> Result<Option<LockRow>> {
        let row = self.one(READ_ROW, params![name_of(name)], |row| {
            let format: String = row.get(0)?;
            let row = LockRow {
                owner: row.get(1)?,
                until: row.get(2)?,
                boot: row.get(3)?,
                ttl: row.get(4)?,
                waiter_until: row.get(5)?,
            };
            Ok((format, row))
        })?;
        match row {
            Some((format, row)) => check_format(&format).map(|()| Some(row)),
            None => Ok(None),
        }
    }

    /// [`one`] on this connection.
    pub(crate) fn one<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>> {
        one(&self.connection, sql, params, read)
    }

    fn execute(&self, sql: &str, params: impl Params) -> Result<usize> {
        Ok(self.connection.prepare_cached(sql)?.execute(params)?)
    }

    /// Runs several requests in one transaction.
    pub(crate) fn in_transaction<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        self.begin()?;
        let done = work();
        self.commit()?;
        Ok(done)
    }

    pub(crate) fn begin(&self) -> Result<()> {
        Ok(self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)?)
    }

    /// What cannot be committed is rolled back.
    pub(crate) fn commit(&self) -> Result<()> {
        let committed = self.connection.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([]));
        if committed.is_err() && !self.connection.is_autocommit() {
            // When this fails too, the transaction ends with the connection.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        Ok(committed.map(drop)?)
    }

    /// Whether a transaction that was begun still is: some errors roll all of it back.
    pub(crate) fn is_in_transaction(&self) -> bool {
        !self.connection.is_autocommit()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if !self.is_in_place() {
            self.keep_wal_on_close();
        }
    }
}

/// Gives a connection the function `leasehold_note_token`: its result is its argument, which is kept here as well.
fn note_token(connection: &Connection) -> Result<Arc<AtomicI64>> {
    let noted = Arc::<AtomicI64>::default();
    let note = noted.clone();
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DIRECTONLY;
    connection.create_scalar_function("leasehold_note_token", 1, flags, move |arguments| {
        let token = arguments.get(0)?;
        note.store(token, Ordering::Relaxed);
        Ok(token)
    })?;
    Ok(noted)
}

/// Runs a statement that gives one row at most, to its end: what it writes is only then committed.
pub(crate) fn one<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let found = rows.next()?.map(read).transpose();
    rows.next()?;
    Ok(found?)
}

/// Whether both of our tables are there.
pub(crate) fn has_tables(connection: &Connection) -> Result<bool> {
    let known = "SELECT count(*) FROM sqlite_schema WHERE name IN ('leasehold_locks', 'leasehold_format')";
    Ok(connection.query_row(known, [], |row| row.get::<_, i64>(0))? == 2)
}

/// Refuses a row of another format.
pub(crate) fn check_format(format: &str) -> Result<()> {
    if format == FORMAT {
        return Ok(());
    }
    let text =
        format!("the lock's record has the format {format:?}, and this version knows {FORMAT:?}: update Leasehold");
    Err(Failure::Rejected(Error::new(ErrorKind::Unsupported, text)))
}

fn name_of(name: &LockName) -> &[u8] {
    name.as_str().as_bytes()
}

fn owner_of(claim: &Claim) -> &[u8] {
    claim.owner().as_bytes()
}

pub(crate) fn token(fence: i64) -> FencingToken {
    FencingToken::new(fence.unsigned_abs())
}

pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(micros.try_into().unwrap_or(0))
}

#[cfg(test)]
pub(crate) mod tests;
