//! The lock file of one client: its path, and the one connection that writes to it.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use leasehold_core::Result;
use leasehold_core::backend::kit::lock;

use crate::boot_clock::{BootClock, Reading};
use crate::errors::Failure;
use crate::file_system;
use crate::maintenance::{self, Maintenance};
use crate::settings::{Settings, make_state_folder};
use crate::store::Store;

/// The lock file, and the connection that all calls of a client share.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) clock: BootClock,
    pub(crate) maintenance: Maintenance,
    /// Its folder is created if it does not exist.
    pub(crate) in_state_folder: bool,
    /// Empty before the first use and after a failure.
    writer: Mutex<Option<Store>>,
    writes: AtomicU32,
    /// The last write found the disk full.
    disk_is_full: AtomicBool,
}

impl File {
    pub(crate) fn new(path: PathBuf, settings: Settings, clock: BootClock) -> Self {
        let (writer, writes, maintenance) = (Mutex::default(), AtomicU32::new(0), Maintenance::default());
        let disk_is_full = AtomicBool::new(false);
        Self { path, settings, clock, maintenance, in_state_folder: false, writer, writes, disk_is_full }
    }

    /// The same file in the user's state folder, which is created when the file is opened.
    pub(crate) fn in_state_folder(self) -> Self {
        Self { in_state_folder: true, ..self }
    }

    pub(crate) fn now(&self) -> Reading {
        self.clock.now()
    }

    pub(crate) fn is_empty(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|found| found.len() == 0)
    }

    /// Runs `work` on the connection if it is open, unused by this process, and still refers to the files at the path.
    /// Otherwise returns `None`. Never blocks: a write that finds another process writing fails as busy.
    pub(crate) fn try_run<T>(
        self: &Arc<Self>,
        work: impl FnOnce(&Store, &Reading) -> Result<T, Failure>,
    ) -> Option<Result<T, Failure>> {
        let mut writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let store = writer.as_ref().filter(|store| store.is_current())?;
        let done = work(store, &self.now());
        if let Err(failure) = &done {
            self.note_failure(failure);
            if failure.closes_connection() {
                *writer = None;
            }
        }
        drop(writer);
        if done.is_ok() {
            self.count_writes(1);
        }
        Some(done)
    }

    /// Locks the connection for the worker thread, which may wait for it.
    pub(crate) fn writer(self: &Arc<Self>) -> Writer<'_> {
        Writer { file: self, slot: lock(&self.writer) }
    }

    /// Makes the worker thread checkpoint before its next write, if the disk is full.
    pub(crate) fn note_failure(&self, failure: &Failure) {
        if failure.is_full_disk() {
            self.disk_is_full.store(true, Ordering::Release);
        }
    }

    /// Closes a connection that can no longer be used. Without this, an idle client would keep deleted files open. It
    /// would also keep others from repairing the database, because SQLite repairs it after the last connection is
    /// closed.
    pub(crate) fn check_connection(&self) {
        let Ok(mut writer) = self.writer.try_lock() else { return };
        if let Some(store) = &*writer
            && !(store.is_in_place() && store.has_tables().unwrap_or(false))
        {
            tracing::warn!(path = %self.path.display(), "the lock file was deleted, replaced or damaged");
            *writer = None;
        }
    }

    /// Counts writes, and starts maintenance at every [`WRITES_PER_RUN`](maintenance::WRITES_PER_RUN)th one.
    pub(crate) fn count_writes(self: &Arc<Self>, count: u32) {
        let before = self.writes.fetch_add(count, Ordering::Relaxed);
        if before / maintenance::WRITES_PER_RUN != before.wrapping_add(count) / maintenance::WRITES_PER_RUN {
            maintenance::start(self);
        }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("path", &self.path).field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Exclusive access to the connection.
pub(crate) struct Writer<'a> {
    file: &'a Arc<File>,
    slot: MutexGuard<'a, Option<Store>>,
}

impl Writer<'_> {
    /// The store. Opens it if it is closed, or if its files are no longer the ones at the path.
    pub(crate) fn store(&mut self) -> Result<&Store, Failure> {
        if let Some(store) = self.slot.take() {
            if store.is_in_place() {
                if self.file.disk_is_full.swap(false, Ordering::AcqRel) {
                    store.checkpoint_passive();
                }
                return Ok(self.slot.insert(store));
            }
            let path = self.file.path.display();
            tracing::warn!(%path, "the lock file was deleted or replaced; opening it again");
        }
        if self.file.in_state_folder {
            let home = std::env::var_os("HOME").map(PathBuf::from);
            make_state_folder(&self.file.path, home.as_deref()).map_err(Failure::Rejected)?;
        }
        file_system::check(&self.file.path).map_err(Failure::Rejected)?;
        file_system::create(&self.file.path);
        let store = Store::open(&self.file.path)?;
        store.prepare()?;
        let begun = if store.has_empty_wal() { store.begin_wal() } else { maintenance::on_open(self.file, &store) };
        match begun {
            // Another process writes, and thereby begins the WAL.
            Ok(()) | Err(Failure::Busy) => {}
            // A release may still fit on a full disk. The call itself reports the error.
            Err(failure) => {
                let error = failure.without_effect();
                tracing::debug!(path = %self.file.path.display(), %error, "cannot begin the write-ahead log");
            }
        }
        Ok(self.slot.insert(store))
    }

    /// The store, if it is open and still refers to the files at the path.
    pub(crate) fn opened(&self) -> Option<&Store> {
        self.slot.as_ref().filter(|store| store.is_current())
    }

    /// Closes the connection. SQLite rolls back a transaction that is still open.
    pub(crate) fn close(mut self) {
        *self.slot = None;
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn only_a_broken_connection_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let file = Arc::new(File::new(path, Settings::default(), BootClock::of_this_machine().unwrap()));
        let fails = |failure: Failure| {
            file.writer().store().unwrap();
            file.try_run(move |_, _| Err::<(), _>(failure)).expect("the connection is open").unwrap_err();
            file.writer().opened().is_some()
        };
        let sql = |code| Failure::from(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
        assert!(fails(Failure::Busy));
        assert!(fails(sql(ffi::SQLITE_FULL)));
        assert!(!fails(sql(ffi::SQLITE_IOERR_WRITE)));
        assert!(!fails(sql(ffi::SQLITE_CORRUPT)));
    }
}
