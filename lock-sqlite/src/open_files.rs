//! Checks whether the files that a connection has open are still the ones at its path.
//!
//! SQLite opens `-wal` and `-shm` by name together with the database, and keeps them open. If somebody deletes or
//! replaces one of the three, the next process opens a different one. The two processes then do not see each other's
//! writes, and both can hold a lock.

use std::io::Result;
use std::path::{Path, PathBuf};

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use linux::OpenFiles;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) use other::OpenFiles;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilesState {
    Current,
    /// The `-wal` is shorter than before. A program truncated it, in a checkpoint or by mistake.
    WalShrunk,
    /// One of the files was deleted, replaced or truncated.
    Replaced,
}

/// The path of a file beside the database.
pub(crate) fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::cell::Cell;
    use std::fs::{File, OpenOptions};
    use std::io::{Error, ErrorKind};
    use std::os::unix::fs::OpenOptionsExt;

    // Every call checks three files. These functions cost a quarter less than `std::fs::metadata`.
    use rustix::fs::{Stat, fstat, stat};

    use super::{FilesState, Path, PathBuf, Result, beside};

    /// Device and inode numbers.
    type Identity = (u64, u64);

    fn identity(found: &Stat) -> Identity {
        (found.st_dev, found.st_ino)
    }

    fn length(found: &Stat) -> u64 {
        found.st_size.unsigned_abs()
    }

    /// The database, its `-wal` and its `-shm`, as the connection opened them.
    #[derive(Debug)]
    pub(crate) struct OpenFiles {
        path: PathBuf,
        database: Identity,
        wal: Companion,
        shm: Companion,
    }

    /// A file beside the database. `file` is opened with `O_PATH`, without access to the contents. Otherwise closing it
    /// would drop the POSIX locks that SQLite holds on the same file.
    #[derive(Debug)]
    struct Companion {
        path: PathBuf,
        identity: Identity,
        file: File,
        length: Cell<u64>,
    }

    impl Companion {
        fn open(path: PathBuf) -> Result<Self> {
            let flags = rustix::fs::OFlags::PATH.bits().cast_signed();
            let file = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
            let found = fstat(&file)?;
            Ok(Self { path, identity: identity(&found), file, length: Cell::new(length(&found)) })
        }

        /// The length of the opened file, or `None` if it was unlinked. Costs a third of a check by path.
        fn length(&self) -> Option<u64> {
            fstat(&self.file).ok().filter(|found| found.st_nlink > 0).map(|found| length(&found))
        }

        fn is_at_its_path(&self) -> bool {
            stat(&self.path).is_ok_and(|found| identity(&found) == self.identity)
        }
    }

    impl OpenFiles {
        /// Finds the files of a connection that was just opened. `path` leads to the database, and `resolved` is
        /// SQLite's name for it.
        ///
        /// # Errors
        /// This process does not have one of the files at these paths open. Somebody replaced the file, or another
        /// connection of this process makes SQLite use a deleted `-shm`.
        pub(crate) fn of(path: &Path, resolved: &Path) -> Result<Self> {
            let open = open_in_this_process()?;
            let files = Self {
                path: path.to_owned(),
                database: identity(&stat(path)?),
                wal: Companion::open(beside(resolved, "-wal"))?,
                shm: Companion::open(beside(resolved, "-shm"))?,
            };
            let ours = [files.database, files.wal.identity, files.shm.identity];
            if ours.iter().all(|file| open.contains(file)) { Ok(files) } else { Err(ErrorKind::NotFound.into()) }
        }

        /// Cheap enough for every call. Only [`are_at_their_paths`](Self::are_at_their_paths) finds a `-wal` or `-shm`
        /// that was moved away while in use.
        pub(crate) fn state(&self) -> FilesState {
            let Ok(found) = stat(&self.path) else { return FilesState::Replaced };
            // A database gets its header before its `-wal`, and the `-shm` of a connection never shrinks.
            if identity(&found) != self.database || length(&found) == 0 {
                return FilesState::Replaced;
            }
            let (Some(wal), Some(shm)) = (self.wal.length(), self.shm.length()) else { return FilesState::Replaced };
            if shm < self.shm.length.get() {
                return FilesState::Replaced;
            }
            if wal < self.wal.length.get() {
                return FilesState::WalShrunk;
            }
            self.wal.length.set(wal);
            FilesState::Current
        }

        /// The current length of the `-wal`.
        pub(crate) fn wal_length(&self) -> u64 {
            self.wal.length().unwrap_or(0)
        }

        /// Accepts a `-wal` of this length as complete.
        pub(crate) fn accept_wal(&self, length: u64) {
            self.wal.length.set(length);
        }

        pub(crate) fn are_at_their_paths(&self) -> bool {
            self.wal.is_at_its_path() && self.shm.is_at_its_path()
        }
    }

    /// All files that this process has open.
    fn open_in_this_process() -> Result<Vec<Identity>> {
        let entries = std::fs::read_dir("/proc/self/fd")
            .map_err(|error| Error::new(error.kind(), format!("/proc is not mounted: {error}")))?;
        // Another thread may close a descriptor at any time.
        let found = entries.filter_map(|entry| stat(entry.ok()?.path()).ok());
        Ok(found.map(|found| identity(&found)).collect())
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod other {
    use super::{FilesState, Path, Result};

    /// Without a clock since boot, nothing is opened.
    #[derive(Debug)]
    pub(crate) struct OpenFiles;

    impl OpenFiles {
        pub(crate) fn of(_path: &Path, _resolved: &Path) -> Result<Self> {
            Ok(Self)
        }

        pub(crate) fn state(&self) -> FilesState {
            FilesState::Current
        }

        pub(crate) fn wal_length(&self) -> u64 {
            0
        }

        pub(crate) fn accept_wal(&self, _length: u64) {}

        pub(crate) fn are_at_their_paths(&self) -> bool {
            true
        }
    }
}
