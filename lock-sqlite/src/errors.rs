//! What goes wrong between us and a file, and what it says about the lock. The one place where errors are mapped.

use leasehold_core::{Error, ErrorKind};
use rusqlite::{ErrorCode, ffi};

/// The backend's name in errors and capabilities.
pub(crate) const BACKEND: &str = "sqlite";

/// Why a statement has no answer that can be used.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another connection writes: it had no effect and may be tried again at once.
    Busy,
    /// SQLite, or the system below it, refused.
    Sql(rusqlite::Error),
    /// What we found is an error by our own rules; nothing is wrong with the connection.
    Rejected(Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            // SQLite gives up on a lock of the WAL that many fight for with an error of its "locking protocol".
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed) => {
                Self::Busy
            }
            _ => Self::Sql(error),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Busy => busy(),
            Failure::Sql(error) => native(error),
            Failure::Rejected(error) => error,
        }
    }
}

impl Failure {
    /// Whether the connection may be unfit for the next statement.
    pub(crate) fn closes_connection(&self) -> bool {
        match self {
            Self::Busy | Self::Rejected(_) => false,
            Self::Sql(error) => {
                !matches!(error.sqlite_error_code(), Some(ErrorCode::DiskFull | ErrorCode::OutOfMemory))
            }
        }
    }

    /// Whether the file's thread may succeed with the same: it had no effect, and was in the way of another or of a full disk.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Busy) || self.is_full_disk()
    }

    /// Whether a read-only connection met a `-shm` that only a writer can begin or repair.
    pub(crate) fn needs_writer(&self) -> bool {
        let Self::Sql(rusqlite::Error::SqliteFailure(error, _)) = self else { return false };
        [ffi::SQLITE_READONLY_RECOVERY, ffi::SQLITE_READONLY_CANTINIT].contains(&error.extended_code)
    }

    /// Whether one of the three files could be neither opened nor made.
    pub(crate) fn cannot_open(&self) -> bool {
        matches!(self, Self::Sql(error) if error.sqlite_error_code() == Some(ErrorCode::CannotOpen))
    }

    /// Whether the disk has no room for a write.
    pub(crate) fn is_full_disk(&self) -> bool {
        matches!(self, Self::Sql(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull))
    }

    /// The same failure of something that certainly had no effect on any lock.
    pub(crate) fn without_effect(self) -> Error {
        Error::from(self).without_effect()
    }
}

/// Nobody got to write within the bound of a call.
pub(crate) fn busy() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "another process was writing to the file for the whole call; does one hold a transaction open, or stand still in it?",
    )
}

/// The files at the path are not those that SQLite works on.
pub(crate) fn replaced() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the file, its `-wal` or its `-shm` was deleted or replaced, and a connection of this process still uses the old one: close it",
    )
}

/// The `-wal` is not the one that other processes have written to.
pub(crate) fn lost_wal() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the `-wal` was deleted or truncated while processes had the file open: SQLite can use the file when all have closed it (`fuser`)",
    )
}

/// Only one of `-wal` and `-shm` is there, and whoever asks may not make the other one.
pub(crate) fn half_closed() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "one of `-wal` and `-shm` is missing, as after the kill of a process that was closing the file: \
         run `leasehold status` once as a user who may write the folder",
    )
}

/// Nobody got to write within the bound of a call, to a file that is empty: others have it open, so it was not so before.
pub(crate) fn truncated() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the file is empty and other processes have it open: was it truncated? Stop them (`fuser`), then try again",
    )
}

/// The file's thread did not come to it within the bound of a call, and no other process was in the way.
pub(crate) fn slow() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the file was not opened in time, or not read or written: is the disk slow, or the machine short of processor time?",
    )
}

/// What an error of SQLite says about the effect of its statement. Every statement here is atomic, so one that failed had
/// none, except after an error of input or output, when nothing is known.
fn native(error: rusqlite::Error) -> Error {
    let (kind, text) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => (ErrorKind::Capacity, "the disk is full"),
        Some(ErrorCode::OutOfMemory | ErrorCode::TooBig) => (ErrorKind::Capacity, "SQLite ran out of memory"),
        Some(ErrorCode::ReadOnly) => {
            (ErrorKind::Auth, "the file cannot be written: check its permissions and those of its folder")
        }
        Some(ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => {
            (ErrorKind::Auth, "access to the file was refused: check its permissions")
        }
        Some(ErrorCode::CannotOpen) => (
            ErrorKind::Unavailable,
            "the file cannot be opened: check that its folder exists and that you may write there",
        ),
        Some(ErrorCode::NotADatabase) => {
            (ErrorKind::Unsupported, "the file is not a SQLite database: give another path for the locks")
        }
        Some(ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Unsupported,
            "the file is damaged: stop its users, and delete it together with its `-wal` and `-shm`",
        ),
        Some(ErrorCode::SystemIoFailure) => (ErrorKind::Indeterminate, "reading or writing the file failed"),
        Some(_) => (ErrorKind::Unsupported, "the tables of the file are not those that Leasehold made"),
        // Not from SQLite: a value of a row that is not of its column's type.
        None => (ErrorKind::Unsupported, "a record in the file cannot be read"),
    };
    Error::new(kind, text).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: i32) -> Error {
        Failure::from(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)).into()
    }

    #[test]
    fn each_code_has_its_kind() {
        use ErrorKind::{Auth, Capacity, Indeterminate, Unavailable, Unsupported};
        for (code, kind) in [
            (ffi::SQLITE_BUSY, Unavailable),
            (ffi::SQLITE_BUSY_SNAPSHOT, Unavailable),
            (ffi::SQLITE_BUSY_RECOVERY, Unavailable),
            (ffi::SQLITE_LOCKED, Unavailable),
            (ffi::SQLITE_PROTOCOL, Unavailable),
            (ffi::SQLITE_FULL, Capacity),
            (ffi::SQLITE_NOMEM, Capacity),
            (ffi::SQLITE_READONLY, Auth),
            (ffi::SQLITE_READONLY_DIRECTORY, Auth),
            (ffi::SQLITE_PERM, Auth),
            (ffi::SQLITE_CANTOPEN, Unavailable),
            (ffi::SQLITE_NOTADB, Unsupported),
            (ffi::SQLITE_CORRUPT, Unsupported),
            (ffi::SQLITE_IOERR_FSYNC, Indeterminate),
            (ffi::SQLITE_IOERR_WRITE, Indeterminate),
            (ffi::SQLITE_ERROR, Unsupported),
            (ffi::SQLITE_CONSTRAINT, Unsupported),
        ] {
            let error = of(code);
            assert_eq!(error.kind(), kind, "{error:?}");
        }
        assert_eq!(Error::from(Failure::from(rusqlite::Error::InvalidQuery)).kind(), Unsupported);
    }

    #[test]
    fn what_had_no_effect_is_never_indeterminate() {
        let failure = Failure::from(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR), None));
        assert!(failure.closes_connection());
        assert_eq!(failure.without_effect().kind(), ErrorKind::Unavailable);
        assert!(!Failure::Busy.closes_connection());
    }
}
