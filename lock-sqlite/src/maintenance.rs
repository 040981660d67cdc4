//! Keeps the file small: checkpoints the WAL, and purges rows of locks that are no longer in use.
//!
//! A checkpoint waits for the disk, some milliseconds or longer. No call makes one. A separate thread does it on its
//! own connection, and then ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use leasehold_core::Result;
use leasehold_core::backend::kit::lock;
use rusqlite::params;

use crate::boot_clock::{Reading, micros};
use crate::errors::Failure;
use crate::file::File;
use crate::store::Store;

/// Maintenance runs once per this many writes of a client: about 2 MB of WAL with pages of 1 KiB.
pub(crate) const WRITES_PER_RUN: u32 = 1024;

/// Above this many pages in the WAL, maintenance stops the writers of all processes for a moment, because they never
/// left a gap in which the WAL could restart.
const RESTART_PAGES: i64 = 16_384;

/// Each run scans up to `BATCHES` batches of `BATCH` rows. That is two rows per write (see [`WRITES_PER_RUN`]), so a
/// scan completes before the table can double, however many new names appear.
const BATCHES: usize = 4;
const BATCH: usize = 512;

/// The state between two runs.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    is_running: AtomicBool,
    /// The last name that was scanned.
    scanned_to: Mutex<Vec<u8>>,
}

/// Reads rows, and whether they have expired. [`ADOPT`] moves a lease of another boot to this one, so that a later scan
/// can purge it.
const SCAN: &str = "\
SELECT name, fence < ?2 AND (owner = x'' OR (boot = ?3 AND until <= ?4)) FROM leasehold_locks \
WHERE name > ?1 AND format = '1x' ORDER BY name LIMIT 512";

/// A purge keeps the order of tokens: the next token is at least the wall clock in µs, which is higher than the purged
/// one.
const PURGE: &str = "\
DELETE FROM leasehold_locks \
WHERE name = ?1 AND fence < ?2 AND (owner = x'' OR (boot = ?3 AND until <= ?4)) AND format = '1x'";

const ADOPT: &str = "\
UPDATE leasehold_locks SET until = ?2 + ttl, boot = ?3, wanted = 0 \
WHERE name > ?1 AND name <= ?4 AND boot <> ?3 AND owner <> x'' AND format = '1x'";

/// Opening a file checkpoints it if its WAL holds this many pages that are not in the file yet. Otherwise the WAL would
/// grow while every process exits before [`WRITES_PER_RUN`] writes and without closing the file.
const OPEN_PAGES: i64 = 2048;

/// Maintains a file that was just opened, if its WAL is long. The caller then waits for the disk; one opening in
/// hundreds does.
pub(crate) fn on_open(file: &Arc<File>, store: &Store) -> Result<(), Failure> {
    let (length, done) = checkpointed(store, "PRAGMA wal_checkpoint(NOOP)")?;
    if length - done < OPEN_PAGES {
        return Ok(());
    }
    start(file);
    checkpoint(store)
}

/// Starts a run in the background, unless one is in progress.
pub(crate) fn start(file: &Arc<File>) {
    if file.maintenance.is_running.swap(true, Ordering::AcqRel) {
        return;
    }
    let mine = file.clone();
    let started = std::thread::Builder::new().name("leasehold-maint".into()).spawn(move || {
        let _running = Running(&mine);
        if let Err(failure) = run(&mine) {
            let error = failure.without_effect();
            tracing::debug!(path = %mine.path.display(), %error, "maintenance of the lock file failed");
        }
    });
    if let Err(error) = started {
        file.maintenance.is_running.store(false, Ordering::Release);
        tracing::debug!(%error, "cannot start the maintenance thread");
    }
}

struct Running<'a>(&'a File);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.maintenance.is_running.store(false, Ordering::Release);
    }
}

fn run(file: &File) -> Result<(), Failure> {
    let store = Store::open(&file.path)?;
    // Otherwise closing could delete the WAL under a client that opens the file at this moment.
    store.keep_wal_on_close();
    if !store.has_tables()? {
        return Ok(());
    }
    let mut scanned_to = lock(&file.maintenance.scanned_to);
    for _ in 0..BATCHES {
        *scanned_to = scan(&store, &scanned_to, file)?;
        if scanned_to.is_empty() {
            break;
        }
    }
    // After a replacement, a checkpoint would write old pages over what others wrote to the new file.
    if store.is_in_place() { checkpoint(&store) } else { Ok(()) }
}

/// Scans one batch. Returns the name to continue from, or an empty name at the end of the table.
fn scan(store: &Store, from: &[u8], file: &File) -> Result<Vec<u8>, Failure> {
    let now = file.now();
    let oldest = now.wall.saturating_sub(micros(file.settings.retention));
    let mut statement = store.connection().prepare_cached(SCAN)?;
    let mut rows = statement.query(params![from, oldest, now.boot, now.boottime])?;
    let (mut last, mut expired, mut count) = (Vec::new(), Vec::new(), 0);
    while let Some(row) = rows.next()? {
        last = row.get(0)?;
        count += 1;
        if row.get(1)? {
            expired.push(last.clone());
        }
    }
    // Ends the read: after it, a write fails if another process has written meanwhile (`SQLITE_BUSY_SNAPSHOT`).
    drop(rows);
    purge(store, (from, &last), &expired, oldest, &now)?;
    Ok(if count < BATCH { Vec::new() } else { last })
}

fn purge(
    store: &Store,
    (from, to): (&[u8], &[u8]),
    expired: &[Vec<u8>],
    oldest: i64,
    now: &Reading,
) -> Result<(), Failure> {
    let connection = store.connection();
    let foreign =
        "SELECT 1 FROM leasehold_locks WHERE name > ?1 AND name <= ?2 AND boot <> ?3 AND owner <> x'' LIMIT 1";
    let adopts = store.one(foreign, params![from, to, now.boot], |_| Ok(()))?.is_some();
    // Mostly there is nothing to write, and a transaction would make all other writers wait.
    if expired.is_empty() && !adopts {
        return Ok(());
    }
    store.in_transaction(|| {
        let mut purge = connection.prepare_cached(PURGE)?;
        for name in expired {
            purge.execute(params![name, oldest, now.boot, now.boottime])?;
        }
        if adopts {
            connection.execute(ADOPT, params![from, now.boottime, now.boot, to])?;
        }
        Ok(())
    })?
}

fn checkpoint(store: &Store) -> Result<(), Failure> {
    let (length, done) = checkpointed(store, "PRAGMA wal_checkpoint(PASSIVE)")?;
    // The next write begins the WAL anew and waits for the disk. It is made here, and not by a call.
    if length > 0 && done == length {
        store.begin_wal()?;
    } else if length > RESTART_PAGES {
        // A restart keeps all writers waiting until no reader needs the WAL.
        store.connection().busy_timeout(std::time::Duration::from_millis(100))?;
        checkpointed(store, "PRAGMA wal_checkpoint(RESTART)")?;
        store.begin_wal()?;
    }
    Ok(())
}

/// Pages in the WAL, and how many of them are already in the file.
fn checkpointed(store: &Store, pragma: &str) -> Result<(i64, i64), Failure> {
    Ok(store.connection().query_row(pragma, [], |row| Ok((row.get(1)?, row.get(2)?)))?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::boot_clock::BootClock;
    use crate::settings::Settings;

    /// A file with rows named `0`, `1`, … whose tokens have these ages.
    fn file(folder: &tempfile::TempDir, ages: &[Duration]) -> Arc<File> {
        let clock = BootClock::of_this_machine().unwrap();
        let file = Arc::new(File::new(folder.path().join("locks.db"), Settings::default(), clock));
        let mut writer = file.writer();
        let store = writer.store().unwrap();
        let now = clock.now();
        for (index, age) in ages.iter().enumerate() {
            let sql = "INSERT INTO leasehold_locks VALUES (?1, '1x', x'', ?2, ?3, ?4, 1000, 0, '')";
            let name = format!("{index:05}").into_bytes();
            store.connection().execute(sql, params![name, now.wall - micros(*age), now.boottime, now.boot]).unwrap();
        }
        drop(writer);
        file
    }

    fn names(file: &Arc<File>) -> Vec<Vec<u8>> {
        let mut writer = file.writer();
        let connection = writer.store().unwrap().connection();
        let mut statement = connection.prepare("SELECT name FROM leasehold_locks").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(|name| name.unwrap()).collect()
    }

    fn execute(file: &Arc<File>, sql: &str) {
        file.writer().store().unwrap().connection().execute_batch(sql).unwrap();
    }

    #[test]
    fn only_expired_rows_are_purged() {
        let folder = tempfile::tempdir().unwrap();
        let hour = Duration::from_secs(3600);
        let file = file(&folder, &[hour, hour, hour, hour, Duration::ZERO]);
        let until = file.now().boottime + 60_000_000;
        // The first is held, the second has another format, the third was held in an earlier boot.
        execute(
            &file,
            &format!("UPDATE leasehold_locks SET owner = x'01', until = {until} WHERE name = x'3030303031'"),
        );
        execute(&file, "UPDATE leasehold_locks SET format = '2x' WHERE name = x'3030303032'");
        execute(&file, "UPDATE leasehold_locks SET owner = x'01', boot = boot + 1 WHERE name = x'3030303033'");
        run(&file).unwrap();
        assert_eq!(names(&file), [b"00001", b"00002", b"00003", b"00004"]);
        // The lease of the earlier boot was adopted with its ttl of 1 ms, so the next scan finds it free.
        std::thread::sleep(Duration::from_millis(2));
        run(&file).unwrap();
        assert_eq!(names(&file), [b"00001", b"00002", b"00004"]);
    }

    /// Rows that have changed since the scan listed them stay.
    #[test]
    fn a_row_that_was_acquired_after_the_scan_stays() {
        let folder = tempfile::tempdir().unwrap();
        let hour = Duration::from_secs(3600);
        let file = file(&folder, &[hour, hour]);
        let now = file.now();
        let listed = names(&file);
        let until = now.boottime + 60_000_000;
        execute(
            &file,
            &format!("UPDATE leasehold_locks SET owner = x'01', until = {until} WHERE name = x'3030303031'"),
        );
        let mut writer = file.writer();
        purge(writer.store().unwrap(), (b"", b"9"), &listed, now.wall, &now).unwrap();
        drop(writer);
        assert_eq!(names(&file), [b"00001"]);
    }

    #[test]
    fn a_long_table_is_scanned_in_batches_and_the_scan_starts_over() {
        let folder = tempfile::tempdir().unwrap();
        let mut ages = vec![Duration::ZERO; BATCH * BATCHES + 10];
        let last = ages.len() - 1;
        ages[last] = Duration::from_secs(3600);
        let file = file(&folder, &ages);
        run(&file).unwrap();
        assert_eq!(names(&file).len(), ages.len());
        run(&file).unwrap();
        assert_eq!(names(&file).len(), last);
        assert!(file.maintenance.scanned_to.lock().unwrap().is_empty());
    }

    #[test]
    fn the_wal_stays_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder, &[Duration::ZERO]);
        let wal = || std::fs::metadata(folder.path().join("locks.db-wal")).unwrap().len();
        let write = || execute(&file, "UPDATE leasehold_locks SET until = until + 1");
        for _ in 0..WRITES_PER_RUN {
            write();
        }
        let long = wal();
        for _ in 0..5 {
            run(&file).unwrap();
            for _ in 0..WRITES_PER_RUN {
                write();
            }
        }
        assert!(wal() <= long + 100_000, "{} bytes, and {long} after the first {WRITES_PER_RUN} writes", wal());
    }

    #[test]
    fn the_wal_does_not_grow_when_processes_exit_early() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder, &[Duration::ZERO]);
        for _ in 0..100 {
            let mut writer = file.writer();
            let store = writer.store().unwrap();
            // Opening a file with a long WAL starts a run. Beside these writes it would keep the WAL from starting
            // over.
            while file.maintenance.is_running.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            for _ in 0..100 {
                store.connection().execute_batch("UPDATE leasehold_locks SET until = until + 1").unwrap();
            }
            store.keep_wal_on_close();
            writer.close();
        }
        let length = std::fs::metadata(folder.path().join("locks.db-wal")).unwrap().len();
        assert!(length < 4_000_000, "{length} bytes");
    }
}
