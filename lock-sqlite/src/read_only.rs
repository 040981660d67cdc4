//! Reads the file as a user who may not write to it.
//!
//! SQLite reads a file in WAL mode through its `-wal` and `-shm`, and creates them if they are missing. A read-only
//! user must not create them, because users with write permission could then not open them. If both exist, SQLite reads
//! through them. If neither exists, no connection is open and the file is complete: SQLite reads it as immutable, and
//! the result counts if no file changed meanwhile.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use leasehold_core::{Error, Result};
use rusqlite::{Connection, OpenFlags};
use url::Url;

use crate::errors::{Failure, busy, half_closed};
use crate::file_system;
use crate::open_files::beside;

/// The pause between attempts while a writer opens, closes or repairs the file.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs `work` on a read-only connection. Retries until `until` if a writer interfered.
///
/// # Errors
/// `Auth` without the permission to read. `Unavailable` if a writer interfered with every attempt, or one of `-wal` and
/// `-shm` is missing.
pub(crate) fn read<T>(path: &Path, until: Instant, work: impl Fn(&Connection) -> Result<T, Failure>) -> Result<T> {
    file_system::check_readable(path)?;
    // SQLite follows symbolic links, and keeps `-wal` and `-shm` beside the target.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    loop {
        let interference = match attempt(&path, &work) {
            Ok(done) => return done.map_err(Failure::without_effect),
            Err(interference) => interference,
        };
        if Instant::now() >= until {
            return Err(interference);
        }
        std::thread::sleep(PAUSE);
    }
}

/// # Errors
/// How a writer interfered.
fn attempt<T>(path: &Path, work: impl Fn(&Connection) -> Result<T, Failure>) -> Result<Result<T, Failure>> {
    let before = Files::of(path);
    let mode = match (before.has_wal, before.has_shm) {
        (true, true) => "readonly_shm=1",
        (false, false) => "immutable=1",
        // A writer is opening or closing the file, or was killed meanwhile; or somebody deleted one of the two.
        _ => return Err(half_closed()),
    };
    let done = open(path, mode).and_then(|connection| work(&connection));
    match done {
        // SQLite reports a `-shm` that a writer is initialising or repairing as one that needs to be written.
        Err(failure) if failure.is_transient() || failure.needs_writer() => Err(busy()),
        // An immutable read does not check for writers.
        _ if !before.has_wal && Files::of(path) != before => Err(busy()),
        done => Ok(done),
    }
}

fn open(path: &Path, mode: &str) -> Result<Connection, Failure> {
    let mut url = Url::from_file_path(path)
        .map_err(|()| Failure::Rejected(Error::invalid(format!("{} is not an absolute path", path.display()))))?;
    url.set_query(Some(mode));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(url.as_str(), flags)?;
    connection.busy_timeout(Duration::ZERO)?;
    Ok(connection)
}

/// State that differs after a write.
#[derive(PartialEq)]
struct Files {
    length: Option<u64>,
    modified: Option<SystemTime>,
    has_wal: bool,
    has_shm: bool,
}

impl Files {
    fn of(path: &Path) -> Self {
        let found = std::fs::metadata(path).ok();
        Self {
            length: found.as_ref().map(std::fs::Metadata::len),
            modified: found.and_then(|found| found.modified().ok()),
            has_wal: beside(path, "-wal").exists(),
            has_shm: beside(path, "-shm").exists(),
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::ErrorKind;

    use super::*;
    use crate::store::Store;

    /// A file with some rows, closed cleanly.
    fn file(folder: &tempfile::TempDir) -> std::path::PathBuf {
        let path = folder.path().join("a file #1?.db");
        let store = Store::open(&path).unwrap();
        store.prepare().unwrap();
        store.connection().execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1)").unwrap();
        path
    }

    fn count(connection: &Connection) -> Result<i64, Failure> {
        Ok(connection.query_row("SELECT count(*) FROM t", [], |row| row.get(0))?)
    }

    fn files(folder: &tempfile::TempDir) -> usize {
        std::fs::read_dir(folder.path()).unwrap().count()
    }

    fn now() -> Instant {
        Instant::now()
    }

    #[test]
    fn the_wal_is_read_and_no_file_is_created() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder);
        assert_eq!((read(&path, now(), count).unwrap(), files(&folder)), (1, 1));
        let writer = Store::open(&path).unwrap();
        writer.connection().execute_batch("INSERT INTO t VALUES (2)").unwrap();
        assert_eq!((read(&path, now(), count).unwrap(), files(&folder)), (2, 3));
        // As a killed writer leaves it.
        let copy = tempfile::tempdir().unwrap();
        for suffix in ["", "-wal", "-shm"] {
            std::fs::copy(beside(&path, suffix), copy.path().join(format!("locks.db{suffix}"))).unwrap();
        }
        let copied = copy.path().join("locks.db");
        assert_eq!((read(&copied, now(), count).unwrap(), files(&copy)), (2, 3));
        drop(writer);
        assert_eq!((read(&path, now(), count).unwrap(), files(&folder)), (2, 1));
    }

    #[test]
    fn nothing_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder);
        for writer in [None, Some(Store::open(&path).unwrap())] {
            let insert = |connection: &Connection| Ok(connection.execute_batch("INSERT INTO t VALUES (2)")?);
            let error = read(&path, now(), insert).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
            drop(writer);
        }
    }

    /// A reader of an immutable file does not notice that a writer opens the file, or has opened and closed it.
    #[test]
    fn a_read_that_a_writer_interrupted_is_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder);
        // File times advance in steps of some milliseconds.
        std::thread::sleep(Duration::from_millis(50));
        let writers = std::cell::RefCell::new(Vec::new());
        let attempts = std::cell::Cell::new(0);
        let interrupted = |connection: &Connection| {
            let seen = count(connection);
            attempts.set(attempts.get() + 1);
            if attempts.get() <= 2 {
                let writer = Store::open(&path).unwrap();
                writer.connection().execute_batch("INSERT INTO t VALUES (2)").unwrap();
                // The first writer closes the file again.
                writers.borrow_mut().extend((attempts.get() == 2).then_some(writer));
            }
            seen
        };
        let until = now() + Duration::from_secs(20);
        assert_eq!(read(&path, until, interrupted).unwrap(), 3);
        assert_eq!(attempts.get(), 3);
    }

    #[test]
    fn a_wal_without_its_shm_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(&folder);
        for suffix in ["-wal", "-shm"] {
            std::fs::write(beside(&path, suffix), "").unwrap();
            let error = read(&path, now(), count).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{suffix}: {error}");
            std::fs::remove_file(beside(&path, suffix)).unwrap();
        }
    }
}
