//! Reads the stored format of a SQLite file without the library.

use std::path::{Path, PathBuf};

use leasehold::sqlite::rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use leasehold_conformance::Record;
use leasehold_conformance::harness::machine_now;
use leasehold_core::{FencingToken, LockName};

/// Reads a file. Each call opens a connection of its own and closes it.
pub(crate) struct Stored {
    path: PathBuf,
}

impl Stored {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Another program that has the file open.
    pub(crate) fn connection(&self) -> Connection {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || {
            let connection = Connection::open_with_flags(&self.path, flags)?;
            connection.busy_timeout(std::time::Duration::from_secs(10))?;
            Ok::<_, leasehold::sqlite::rusqlite::Error>(connection)
        };
        open().unwrap_or_else(|error| panic!("{} cannot be opened: {error}", self.path.display()))
    }

    /// Changes the row of a lock.
    pub(crate) fn change(&self, what: &str, name: &LockName) {
        let name = name.as_str().as_bytes();
        let changed = self.connection().execute(&format!("{what} WHERE name = ?1"), params![name]);
        assert_eq!(changed.unwrap_or_else(|error| panic!("{what}: {error}")), 1, "{what}: the lock has no row");
    }

    pub(crate) fn record(&self, name: &LockName) -> Record {
        if !self.has_tables() {
            return Record::default();
        }
        let sql = "SELECT owner <> x'', until, fence, format FROM leasehold_locks WHERE name = ?1";
        let row: Option<(bool, i64, i64, String)> = self
            .connection()
            .query_row(sql, params![name.as_str().as_bytes()], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })
            .optional()
            .unwrap_or_else(|error| panic!("the row of {name:?} cannot be read: {error}"));
        let Some((is_owned, until, fence, format)) = row else { return Record::default() };
        assert_eq!(format, "1x", "a row of version 1, exclusive");
        let until = std::time::Duration::from_micros(until.try_into().expect("time since boot is not negative"));
        let left = until.saturating_sub(machine_now());
        Record {
            holders: (is_owned && !left.is_zero()).then_some(left).into_iter().collect(),
            last_token: Some(FencingToken::new(fence.unsigned_abs())),
            waiters: None,
        }
    }

    pub(crate) fn has_tables(&self) -> bool {
        let sql = "SELECT count(*) FROM sqlite_schema WHERE name = 'leasehold_locks'";
        self.path.exists() && self.connection().query_row(sql, [], |row| row.get(0)).unwrap_or(0) == 1
    }
}
