//! Which files a connection works on, and whether they still are the ones at its path.
//!
//! SQLite finds `-wal` and `-shm` by name when it opens a database, and keeps them open. When somebody deletes or replaces one of the
//! three, the next process opens another one, and the two no longer see each other's writes: both can hold a lock.

use std::io::Result;
use std::path::{Path, PathBuf};

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use linux::OpenFiles;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) use other::OpenFiles;

/// What a check of the files found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilesState {
    Current,
    /// The `-wal` is shorter than before: a program truncated it, by a checkpoint or by mistake.
    WalShrunk,
    /// One of the files was deleted, replaced or truncated.
    Replaced,
}

/// The path of a file that SQLite keeps beside a database.
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

    // Each call checks three files: these cost a quarter less than `std::fs::metadata`.
    use rustix::fs::{Stat, fstat, stat};

    use super::{FilesState, Path, PathBuf, Result, beside};

    /// Device and inode.
    type Identity = (u64, u64);

    fn identity(found: &Stat) -> Identity {
        (found.st_dev, found.st_ino)
    }

    fn length(found: &Stat) -> u64 {
        found.st_size.unsigned_abs()
    }

    /// The database, its `-wal` and its `-shm`, as they were when the connection opened them.
    #[derive(Debug)]
    pub(crate) struct OpenFiles {
        path: PathBuf,
        database: Identity,
        wal: Companion,
        shm: Companion,
    }

    /// A file beside the database. `file` has no access to its contents (`O_PATH`): to close a file that SQLite has open as well
    /// would otherwise end SQLite's locks.
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

        /// The length of the file that was opened, unless its name is gone. A third of the price of a check by path.
        fn length(&self) -> Option<u64> {
            fstat(&self.file).ok().filter(|found| found.st_nlink > 0).map(|found| length(&found))
        }

        fn is_at_its_path(&self) -> bool {
            stat(&self.path).is_ok_and(|found| identity(&found) == self.identity)
        }
    }

    impl OpenFiles {
        /// The files of a connection that was just opened: `path` is what leads to the database now, `resolved` how SQLite names it.
        ///
        /// # Errors
        /// When one of the files at these paths is not open in this process: it was replaced meanwhile, or another connection of
        /// this process makes SQLite use a `-shm` that was deleted.
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

        /// Cheap enough for each call. Whoever moves `-wal` or `-shm` away under its users is found by
        /// [`are_at_their_paths`](Self::are_at_their_paths) only.
        pub(crate) fn state(&self) -> FilesState {
            let Ok(found) = stat(&self.path) else { return FilesState::Replaced };
            // The database has a header before it has a `-wal`, and the `-shm` of a connection never shrinks.
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

        /// The length of the `-wal` now.
        pub(crate) fn wal_length(&self) -> u64 {
            self.wal.length().unwrap_or(0)
        }

        /// From now on a `-wal` of this length is no shrunk one.
        pub(crate) fn accept_wal(&self, length: u64) {
            self.wal.length.set(length);
        }

        pub(crate) fn are_at_their_paths(&self) -> bool {
            self.wal.is_at_its_path() && self.shm.is_at_its_path()
        }
    }

    /// Every file that this process has open.
    fn open_in_this_process() -> Result<Vec<Identity>> {
        let entries = std::fs::read_dir("/proc/self/fd")
            .map_err(|error| Error::new(error.kind(), format!("/proc is not mounted: {error}")))?;
        // Another thread may close one at any time.
        let found = entries.filter_map(|entry| stat(entry.ok()?.path()).ok());
        Ok(found.map(|found| identity(&found)).collect())
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod other {
    use super::{FilesState, Path, Result};

    /// Nothing is opened where there is no clock since boot.
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
