//! Maps every failure of SQLite or of the file to an error. The kind says what the failure means for the lock.

use leasehold_core::{Error, ErrorKind};
use rusqlite::{ErrorCode, ffi};

/// The backend's name in errors and capabilities.
pub(crate) const BACKEND: &str = "sqlite";

/// Why a statement has no usable result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another connection is writing. The statement had no effect and may be retried at once.
    Busy,
    /// SQLite or the operating system failed the statement.
    Sql(rusqlite::Error),
    /// Leasehold's own checks failed. The connection is fine.
    Rejected(Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            // SQLite returns "locking protocol" when it gives up on a contended lock of the WAL.
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
    /// Whether the connection may be unusable for the next statement.
    pub(crate) fn closes_connection(&self) -> bool {
        match self {
            Self::Busy | Self::Rejected(_) => false,
            Self::Sql(error) => {
                !matches!(error.sqlite_error_code(), Some(ErrorCode::DiskFull | ErrorCode::OutOfMemory))
            }
        }
    }

    /// Whether a retry on the worker thread may succeed: the statement had no effect, because another writer or a full
    /// disk was in the way.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Busy) || self.is_full_disk()
    }

    /// Whether a read-only connection found a `-shm` that only a writer can initialise or repair.
    pub(crate) fn needs_writer(&self) -> bool {
        let Self::Sql(rusqlite::Error::SqliteFailure(error, _)) = self else { return false };
        [ffi::SQLITE_READONLY_RECOVERY, ffi::SQLITE_READONLY_CANTINIT].contains(&error.extended_code)
    }

    /// Whether one of the three files could be neither opened nor created.
    pub(crate) fn cannot_open(&self) -> bool {
        matches!(self, Self::Sql(error) if error.sqlite_error_code() == Some(ErrorCode::CannotOpen))
    }

    /// Whether the disk is full.
    pub(crate) fn is_full_disk(&self) -> bool {
        matches!(self, Self::Sql(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull))
    }

    /// The error of an operation that certainly had no effect on any lock.
    pub(crate) fn without_effect(self) -> Error {
        Error::from(self).without_effect()
    }
}

/// Another process kept writing for the whole call.
pub(crate) fn busy() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "another process was writing to the file for the whole call (`timeout` in the URL); does one keep a \
         transaction open, or is one stopped?",
    )
}

/// The files at the path are not the ones that SQLite has open.
pub(crate) fn replaced() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the file, its `-wal` or its `-shm` was deleted or replaced, and a connection of this process still uses the \
         old one: close it",
    )
}

/// The `-wal` at the path is not the one that other processes wrote to.
pub(crate) fn lost_wal() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the `-wal` was deleted or truncated while processes had the file open: close the file in all of them \
         (`fuser`), then retry",
    )
}

/// Only one of `-wal` and `-shm` exists, and this user may not create the other one.
pub(crate) fn half_closed() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "one of `-wal` and `-shm` is missing, as after a process was killed while it closed the file: \
         run `leasehold status` once as a user who may write to the folder",
    )
}

/// Other processes kept an empty file busy for the whole call. A file that others have open was not always empty.
pub(crate) fn truncated() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the file is empty and other processes have it open: was it truncated? Stop them (`fuser`), then retry",
    )
}

/// The worker thread did not get to the request within the bound of the call, and no other process was writing.
pub(crate) fn slow() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the file was not opened, read or written in time (`timeout` in the URL, 10 s to connect): is the disk slow, \
         or is the machine short of CPU time?",
    )
}

/// Maps an error of SQLite. Every statement is atomic, so a failed one had no effect. After an I/O error the effect is
/// unknown.
fn native(error: rusqlite::Error) -> Error {
    let (kind, text) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => (ErrorKind::Capacity, "the disk is full"),
        Some(ErrorCode::OutOfMemory | ErrorCode::TooBig) => (ErrorKind::Capacity, "SQLite ran out of memory"),
        Some(ErrorCode::ReadOnly) => {
            (ErrorKind::Auth, "the file cannot be written: check its permissions and those of its folder")
        }
        Some(ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => {
            (ErrorKind::Auth, "access to the file was denied: check its permissions")
        }
        Some(ErrorCode::CannotOpen) => (
            ErrorKind::Unavailable,
            "the file cannot be opened: check that its folder exists and that you may write to it",
        ),
        Some(ErrorCode::NotADatabase) => {
            (ErrorKind::Unsupported, "the file is not a SQLite database: use another path for the locks")
        }
        Some(ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Unsupported,
            "the file is damaged: stop the programs that use it, and delete it together with its `-wal` and `-shm`",
        ),
        Some(ErrorCode::SystemIoFailure) => (ErrorKind::Indeterminate, "reading or writing the file failed"),
        Some(_) => (ErrorKind::Unsupported, "the tables in the file are not the ones that Leasehold creates"),
        // Not an error of SQLite: a value does not have the type of its column.
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
    fn an_operation_without_effect_is_never_indeterminate() {
        let failure = Failure::from(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR), None));
        assert!(failure.closes_connection());
        assert_eq!(failure.without_effect().kind(), ErrorKind::Unavailable);
        assert!(!Failure::Busy.closes_connection());
    }
}
