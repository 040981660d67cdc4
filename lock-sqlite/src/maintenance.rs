//! What keeps a file small: checkpoints of its WAL, and the end of records that nobody needs.
//!
//! A checkpoint waits for the disk, some milliseconds and more. So no call makes one: a thread of its own does, with a
//! connection of its own, and ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::Result;
use rusqlite::params;

use crate::boot_clock::{Reading, micros};
use crate::errors::Failure;
use crate::file::File;
use crate::store::Store;

/// The file is looked after at each so many writes of this client: about 2 MB of WAL with pages of 1 KiB.
pub(crate) const WRITES_PER_RUN: u32 = 1024;

/// A WAL of so many pages is worth stopping the writers of all processes for a moment: they never left it a chance to begin anew.
const RESTART_PAGES: i64 = 16_384;

/// So many rows are looked at each time. With [`WRITES_PER_RUN`], two for each write: so the walk comes round before the table has
/// doubled, however many new names there are.
const BATCHES: usize = 4;
const BATCH: usize = 512;

/// Between two walks.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    is_running: AtomicBool,
    /// The name up to which the table was walked.
    scanned_to: Mutex<Vec<u8>>,
}

/// Rows of free locks, and whether they have expired. A lease of another boot is only adopted: it may be free at the next walk.
const SCAN: &str = "\
SELECT name, fence < ?2 AND (owner = x'' OR (boot = ?3 AND until <= ?4)) FROM leasehold_locks \
WHERE name > ?1 AND format = '1x' ORDER BY name LIMIT 512";

/// The next grant's token, which is at least the wall clock's microseconds, is higher than this one all the same.
const PURGE: &str = "\
DELETE FROM leasehold_locks \
WHERE name = ?1 AND fence < ?2 AND (owner = x'' OR (boot = ?3 AND until <= ?4)) AND format = '1x'";

const ADOPT: &str = "\
UPDATE leasehold_locks SET until = ?2 + ttl, boot = ?3, wanted = 0 \
WHERE name > ?1 AND name <= ?4 AND boot <> ?3 AND owner <> x'' AND format = '1x'";

/// Begins a WAL of so many pages anew when the file is opened. Processes that exit before they have written [`WRITES_PER_RUN`] times, and without
/// closing the file, would let it grow.
const OPEN_PAGES: i64 = 2048;

/// Looks after a file that was just opened, if it needs that. The caller waits for the disk here at one of hundreds of openings.
pub(crate) fn on_open(file: &Arc<File>, store: &Store) -> Result<(), Failure> {
    let (length, done) = checkpointed(store, "PRAGMA wal_checkpoint(NOOP)")?;
    if length - done < OPEN_PAGES {
        return Ok(());
    }
    start(file);
    checkpoint(store)
}

/// Looks after the file in the background, unless that is under way.
pub(crate) fn start(file: &Arc<File>) {
    if file.maintenance.is_running.swap(true, Ordering::AcqRel) {
        return;
    }
    let mine = file.clone();
    let started = std::thread::Builder::new().name("leasehold-maint".into()).spawn(move || {
        let _running = Running(&mine);
        if let Err(failure) = run(&mine) {
            let error = failure.without_effect();
            tracing::debug!(path = %mine.path.display(), %error, "the file of the locks could not be looked after");
        }
    });
    if let Err(error) = started {
        file.maintenance.is_running.store(false, Ordering::Release);
        tracing::debug!(%error, "the thread that looks after the file of the locks cannot be started");
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
    // It would take the WAL away from under a client that comes at this moment.
    store.keep_wal_on_close();
    if !store.has_tables()? {
        return Ok(());
    }
    let mut scanned_to = file.maintenance.scanned_to.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..BATCHES {
        *scanned_to = scan(&store, &scanned_to, file)?;
        if scanned_to.is_empty() {
            break;
        }
    }
    // A checkpoint would write what is in a file that nobody else uses over what they wrote.
    if store.is_in_place() { checkpoint(&store) } else { Ok(()) }
}

/// Looks at some rows. Gives the name to go on from; empty at the end of the table.
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
    if length > 0 && done == length {
        store.begin_wal()?;
    } else if length > RESTART_PAGES {
        store.connection().busy_timeout(std::time::Duration::from_millis(100))?;
        checkpointed(store, "PRAGMA wal_checkpoint(RESTART)")?;
        store.begin_wal()?;
    }
    Ok(())
}

/// Pages in the WAL, and how many of them are in the file by now.
fn checkpointed(store: &Store, pragma: &str) -> Result<(i64, i64), Failure> {
    Ok(store.connection().query_row(pragma, [], |row| Ok((row.get(1)?, row.get(2)?)))?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::boot_clock::BootClock;
    use crate::settings::Settings;

    /// A file with rows of names `0`, `1`, … whose fences are this old.
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
    fn only_what_nobody_needs_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let hour = Duration::from_secs(3600);
        let file = file(&folder, &[hour, hour, hour, hour, Duration::ZERO]);
        let until = file.now().boottime + 60_000_000;
        // Held; of another format; held in a boot that is over.
        execute(
            &file,
            &format!("UPDATE leasehold_locks SET owner = x'01', until = {until} WHERE name = x'3030303031'"),
        );
        execute(&file, "UPDATE leasehold_locks SET format = '2x' WHERE name = x'3030303032'");
        execute(&file, "UPDATE leasehold_locks SET owner = x'01', boot = boot + 1 WHERE name = x'3030303033'");
        run(&file).unwrap();
        assert_eq!(names(&file), [b"00001", b"00002", b"00003", b"00004"]);
        // The ttl of a lease of another boot is 1 ms here: at the next walk it is free.
        std::thread::sleep(Duration::from_millis(2));
        run(&file).unwrap();
        assert_eq!(names(&file), [b"00001", b"00002", b"00004"]);
    }

    #[test]
    fn a_long_table_is_walked_in_steps_and_the_walk_begins_again() {
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
    fn the_wal_does_not_grow_for_ever() {
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
    fn processes_that_exit_do_not_let_the_wal_grow() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder, &[Duration::ZERO]);
        for _ in 0..100 {
            let mut writer = file.writer();
            let store = writer.store().unwrap();
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
