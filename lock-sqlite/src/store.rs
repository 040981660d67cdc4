//! The SQL statements and the rules of a lease. Synchronous; the caller supplies thread and clock.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use leasehold_core::backend::{AcquireRequest, Claim, OnContention, RenewPolicy, RenewRequest};
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

/// The schema version that this code reads and writes.
const VERSION: i64 = 1;

/// The page size of a new file. Each write puts a whole page into the WAL, and a typical row has 200 bytes. Acquire and
/// release are a tenth faster than with SQLite's default of 4096. An existing file keeps its page size.
const PAGE: i64 = 1024;

/// The version and kind of the rows that this code reads and writes. The statements contain the same text.
const FORMAT: &str = "1x";

/// For this long after its end, a lock is reserved for known waiters. It is longer than a thread needs to wake up.
/// Without it, a client that releases and acquires again at once would always win. The statements contain the same
/// number, in µs.
pub(crate) const RESERVED_FOR_WAITERS: Duration = Duration::from_millis(10);

/// How long a refused claim counts as a waiter after its last attempt. If the waiter is gone, one newcomer is delayed
/// once, by [`RESERVED_FOR_WAITERS`].
const WAITER_TIMEOUT: Duration = Duration::from_secs(30);

/// Takes the row if it is free or already belongs to this claim. The assignments read the old row: a repeated claim
/// keeps its token, and its lease never gets shorter. A row of another boot cannot be compared with this clock, so
/// [`ADOPT`] handles it. [`note_token`] returns the token, because `RETURNING` opens a table each time, which costs a
/// tenth of an acquire.
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

/// Gives a lease from another boot one whole ttl on the clock of this boot. After a reboot its holder is gone, but the
/// file may also come from another machine, or from a container that has its own clock.
const ADOPT: &str = "\
UPDATE leasehold_locks SET until = ?4 + ttl, boot = ?5, wanted = 0 WHERE name = ?1 AND owner = ?2 AND boot = ?3";

/// Records that somebody waits, if the lease is still the one that was read.
const NOTE_WAITER: &str = "\
UPDATE leasehold_locks SET wanted = ?5 WHERE name = ?1 AND owner = ?2 AND boot = ?3 AND until > ?4";

const RENEW: &str = "\
UPDATE leasehold_locks SET until = CASE WHEN ?6 THEN ?3 + ?5 ELSE max(until, ?3 + ?5) END, ttl = ?5 \
WHERE name = ?1 AND owner = ?2 AND until > ?3 AND boot = ?4 AND format = '1x'";

/// Ends a lease without waiters.
const RELEASE: &str = "\
UPDATE leasehold_locks SET owner = x'', until = ?3, holder = '' \
WHERE name = ?1 AND owner = ?2 AND until > ?3 AND boot = ?4 AND wanted <= ?3 AND format = '1x'";

/// Ends a lease with waiters.
const RELEASE_WITH_WAITERS: &str = "\
UPDATE leasehold_locks SET owner = x'', until = ?3, holder = '' \
WHERE name = ?1 AND owner = ?2 AND until > ?3 AND boot = ?4 AND format = '1x'";

/// A write that changes nothing.
const WRITE_NOTHING: &str = "UPDATE leasehold_format SET version = version";

const BREAK: &str = "\
UPDATE leasehold_locks SET owner = x'', until = ?4, boot = ?5, holder = '', fence = max(fence + 1, ?3) \
WHERE name = ?1 AND fence = ?2 AND owner <> x'' AND (boot <> ?5 OR until > ?4) AND format = '1x' RETURNING fence";

/// One connection to the file.
pub(crate) struct Store {
    connection: Connection,
    path: PathBuf,
    files: OpenFiles,
    /// The token that the last [`ACQUIRE`] gave to an existing row.
    last_token: Arc<AtomicI64>,
}

/// Whether a claim tries for the first time, or was refused before and has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    First,
    Retry,
}

/// The outcome of an acquire.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AcquiredRow {
    Granted(FencingToken),
    /// Another claim holds the lock for this long.
    Held(Duration),
    /// Free, but reserved for waiters for this long.
    Reserved(Duration),
}

/// The outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleasedRow {
    NotHeld,
    /// The claim held the lease, and nobody waits.
    NoWaiters,
    /// The claim held the lease, and somebody waits.
    HasWaiters,
}

/// The columns of a row that decide who may hold the lock.
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
    /// Opens the file, and creates it if it does not exist. In WAL mode readers never wait. No statement waits for
    /// another writer: it fails as busy. SQLite does not checkpoint on its own.
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
            let text =
                format!("the file system of {} does not support SQLite's WAL (journal mode {mode})", path.display());
            return Err(Failure::Rejected(Error::new(ErrorKind::Unsupported, text)));
        }
        // Only a power loss can lose writes. After it the boot id differs, and tokens rise with the wall clock.
        connection.pragma_update(None, "synchronous", "normal")?;
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        // SQLite opens all three files at the first read.
        connection.query_row("PRAGMA schema_version", [], |_| Ok(()))?;
        let resolved = connection.path().map_or_else(|| path.to_owned(), PathBuf::from);
        let files = OpenFiles::of(path, &resolved).map_err(|error| Failure::Rejected(replaced().with_source(error)))?;
        let last_token = note_token(&connection)?;
        let store = Self { connection, path: path.to_owned(), files, last_token };
        if store.has_whole_wal()? { Ok(store) } else { Err(Failure::Rejected(lost_wal())) }
    }

    /// Creates missing tables, and refuses tables of another version.
    pub(crate) fn prepare(&self) -> Result<()> {
        if !self.has_tables()? {
            // In one transaction, so that others find all tables or none.
            self.in_transaction(|| self.connection.execute_batch(SCHEMA).map_err(Failure::from))??;
            // On a full disk, only pages that are already in the file can be written again.
            self.checkpoint_passive();
        }
        let version: i64 =
            self.connection.query_row("SELECT max(version) FROM leasehold_format", [], |row| row.get(0))?;
        if version == VERSION {
            return Ok(());
        }
        let text = format!(
            "the file {} has version {version} of Leasehold's tables, and this is for version {VERSION}: update \
             Leasehold",
            self.path.display()
        );
        Err(Failure::Rejected(Error::new(ErrorKind::Unsupported, text)))
    }

    /// Begins the WAL. The first write after a checkpoint, or to an empty WAL, waits for the disk. This write does so
    /// in place of a call.
    pub(crate) fn begin_wal(&self) -> Result<()> {
        self.execute(WRITE_NOTHING, []).map(drop)
    }

    /// Copies the WAL into the file. The next write then starts at the beginning of the WAL and needs no more disk
    /// space.
    pub(crate) fn checkpoint_passive(&self) {
        // If this fails, the next write reports it.
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }

    /// Whether the WAL is empty: nobody else has the file open, or nobody has written yet.
    pub(crate) fn has_empty_wal(&self) -> bool {
        std::fs::metadata(beside(&self.path, "-wal")).is_ok_and(|found| found.len() == 0)
    }

    pub(crate) fn has_tables(&self) -> Result<bool> {
        has_tables(&self.connection)
    }

    /// Whether the path still leads to the opened files. Somebody may have deleted, replaced or truncated one. Cheap
    /// enough for every call.
    pub(crate) fn is_current(&self) -> bool {
        match self.files.state() {
            FilesState::Current => true,
            FilesState::WalShrunk => self.has_whole_wal().unwrap_or(false),
            FilesState::Replaced => false,
        }
    }

    /// A stricter and slower check than [`is_current`](Self::is_current): also finds a `-wal` or `-shm` that was moved
    /// away.
    pub(crate) fn is_in_place(&self) -> bool {
        self.is_current() && self.files.are_at_their_paths()
    }

    /// Whether the `-wal` has all the frames that the `-shm` counts. It lacks some after somebody deleted or truncated
    /// it while it was in use, and writes behind the gap would damage the database.
    fn has_whole_wal(&self) -> Result<bool> {
        let page: i64 = self.connection.query_row("PRAGMA page_size", [], |row| row.get(0))?;
        // The checkpoint of another program may truncate it between the two reads.
        for _ in 0..3 {
            let frames: i64 = self.connection.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get(1))?;
            let length = self.files.wal_length();
            // A header, then the frames, each with its own header.
            if frames <= 0 || (32 + frames * (24 + page)).unsigned_abs() <= length {
                self.files.accept_wal(length);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes closing leave the files at the path alone. The last connection checkpoints and deletes the `-wal` by name,
    /// and that name may belong to another file by now.
    pub(crate) fn keep_wal_on_close(&self) {
        // If this fails, the worst case is that an empty `-wal` is deleted, which the next connection creates again.
        let _ = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Acquires the lock if it is free.
    pub(crate) fn acquire(&self, request: &AcquireRequest, attempt: Attempt, now: &Reading) -> Result<AcquiredRow> {
        let claim = &request.claim;
        if attempt == Attempt::Retry {
            // A read costs an eighth of a write, and does not wait for a writer.
            let outcome = self.check(request, attempt, now)?;
            if outcome != AcquiredRow::Held(Duration::ZERO) {
                return Ok(outcome);
            }
        }
        // A claim that does not wait is not delayed for waiters, because it would not retry.
        let ignores_reservation = attempt == Attempt::Retry || request.on_contention == OnContention::Fail;
        let holder = claim.holder().encode(None);
        let row = params![
            claim.name().as_bytes(),
            owner_of(claim),
            now.wall,
            now.boottime,
            micros(request.ttl),
            now.boot,
            holder,
            ignores_reservation
        ];
        // The token of a new row, unless the statement records another one.
        self.last_token.store(now.wall, Ordering::Relaxed);
        match self.execute(ACQUIRE, row)? {
            0 => self.check(request, attempt, now),
            _ => Ok(AcquiredRow::Granted(token(self.last_token.load(Ordering::Relaxed)))),
        }
    }

    /// Reads who holds the lock, for a claim that was refused or has waited. `Held` for a zero duration means that it
    /// is free.
    fn check(&self, request: &AcquireRequest, attempt: Attempt, now: &Reading) -> Result<AcquiredRow> {
        let AcquireRequest { claim, on_contention, .. } = request;
        let Some(row) = self.lock_row(claim.name())? else { return Ok(AcquiredRow::Held(Duration::ZERO)) };
        let name = claim.name().as_bytes();
        if row.is_free(now) {
            let reserved = row.until.saturating_add(micros(RESERVED_FOR_WAITERS)).saturating_sub(now.boottime);
            let is_reserved = row.boot == now.boot && row.waiter_until > now.boottime && reserved > 0;
            return Ok(match attempt {
                Attempt::First if is_reserved && *on_contention == OnContention::Queue => {
                    AcquiredRow::Reserved(duration(reserved))
                }
                _ => AcquiredRow::Held(Duration::ZERO),
            });
        }
        if row.boot != now.boot {
            self.execute(ADOPT, params![name, row.owner, row.boot, now.boottime, now.boot])?;
            return Ok(AcquiredRow::Held(duration(row.ttl)));
        }
        let left = duration(row.until - now.boottime);
        let is_current_lease = *on_contention == OnContention::Fail || self.note_waiter(claim.name(), &row, now)?;
        // Otherwise the lease ended between the two statements, before the waiter was recorded.
        Ok(AcquiredRow::Held(if is_current_lease { left } else { Duration::ZERO }))
    }

    /// Records a waiter, so that the end of the lease is notified. Returns whether the lease is still the current one.
    fn note_waiter(&self, name: &LockName, lease: &LockRow, now: &Reading) -> Result<bool> {
        let long = micros(WAITER_TIMEOUT);
        if lease.waiter_until > now.boottime + long / 3 {
            return Ok(true);
        }
        let row = params![name.as_bytes(), lease.owner, lease.boot, now.boottime, now.boottime + long];
        Ok(self.execute(NOTE_WAITER, row)? > 0)
    }

    /// Renews the lease if it is still current. Returns whether it was.
    pub(crate) fn renew(&self, request: &RenewRequest, now: &Reading) -> Result<bool> {
        let RenewRequest { claim, ttl, policy, .. } = request;
        let exactly = *policy == RenewPolicy::Exactly;
        let row = params![claim.name().as_bytes(), owner_of(claim), now.boottime, now.boot, micros(*ttl), exactly];
        let renewed = self.execute(RENEW, row)? > 0;
        // Reports a row of another format, which the statement has left alone.
        if !renewed {
            self.lock_row(claim.name())?;
        }
        Ok(renewed)
    }

    /// Ends the lease of a claim.
    pub(crate) fn release(&self, claim: &Claim, now: &Reading) -> Result<ReleasedRow> {
        let row = params![claim.name().as_bytes(), owner_of(claim), now.boottime, now.boot];
        // Two statements, so that a release without waiters notifies none.
        if self.execute(RELEASE, row)? > 0 {
            return Ok(ReleasedRow::NoWaiters);
        }
        if self.execute(RELEASE_WITH_WAITERS, row)? > 0 {
            return Ok(ReleasedRow::HasWaiters);
        }
        // Reports a row of another format, which both statements have left alone.
        self.lock_row(claim.name())?;
        Ok(ReleasedRow::NotHeld)
    }

    /// Ends the lease with this token, whoever holds it. Returns the raised token.
    pub(crate) fn break_lease(
        &self,
        name: &LockName,
        broken: FencingToken,
        now: &Reading,
    ) -> Result<Option<FencingToken>> {
        let Ok(fence) = i64::try_from(broken.get()) else { return Ok(None) };
        let row = params![name.as_bytes(), fence, now.wall, now.boottime, now.boot];
        let raised = self.one(BREAK, row, |row| row.get(0))?;
        // Reports a row of another format, which the statement has left alone.
        if raised.is_none() {
            self.lock_row(name)?;
        }
        Ok(raised.map(token))
    }

    /// How long the lock is still held, or `None` if nobody holds it. Records the waiter again: a holder that got the
    /// lock in the meantime does not know that somebody waits.
    pub(crate) fn held_for(&self, name: &LockName, now: &Reading) -> Result<Option<Duration>> {
        let Some(row) = self.lock_row(name)?.filter(|row| !row.is_free(now)) else { return Ok(None) };
        if row.boot != now.boot {
            // Unknown. The next acquire adopts the lease.
            return Ok(Some(Duration::MAX));
        }
        Ok(self.note_waiter(name, &row, now)?.then(|| duration(row.until - now.boottime)))
    }

    /// The row of a lock.
    ///
    /// # Errors
    /// `Unsupported` if this version does not know the format of the row.
    fn lock_row(&self, name: &LockName) -> Result<Option<LockRow>> {
        let row = self.one(READ_ROW, params![name.as_bytes()], |row| {
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

    /// Runs `work` in one transaction.
    pub(crate) fn in_transaction<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        self.begin()?;
        let done = work();
        self.commit()?;
        Ok(done)
    }

    pub(crate) fn begin(&self) -> Result<()> {
        Ok(self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)?)
    }

    /// Commits, or rolls back if that fails.
    pub(crate) fn commit(&self) -> Result<()> {
        let committed = self.connection.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([]));
        if committed.is_err() && !self.connection.is_autocommit() {
            // If this fails too, closing the connection ends the transaction.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        Ok(committed.map(drop)?)
    }

    /// Whether the transaction is still open. Some errors roll back the whole transaction.
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

/// Adds the SQL function `leasehold_note_token` to a connection. The function returns its argument and stores it here.
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

/// Runs a statement that returns at most one row. Steps to the end, because SQLite commits the statement only then.
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

/// Whether both tables of Leasehold exist.
pub(crate) fn has_tables(connection: &Connection) -> Result<bool> {
    let known = "SELECT count(*) FROM sqlite_schema WHERE name IN ('leasehold_locks', 'leasehold_format')";
    Ok(connection.query_row(known, [], |row| row.get::<_, i64>(0))? == 2)
}

/// Rejects a row of another format.
pub(crate) fn check_format(format: &str) -> Result<()> {
    if format == FORMAT {
        return Ok(());
    }
    let text =
        format!("the lock's record has the format {format:?}, and this version knows {FORMAT:?}: update Leasehold");
    Err(Failure::Rejected(Error::new(ErrorKind::Unsupported, text)))
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
