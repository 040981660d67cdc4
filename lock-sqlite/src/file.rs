//! The file of one client: its path, and the one connection that writes to it.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use leasehold_core::Result;

use crate::boot_clock::{BootClock, Reading};
use crate::errors::Failure;
use crate::file_system;
use crate::maintenance::{self, Maintenance};
use crate::settings::{Settings, make_state_folder};
use crate::store::Store;

/// The file, and the connection that all calls of a client share.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) clock: BootClock,
    pub(crate) maintenance: Maintenance,
    /// Its folder is made when it is not there.
    pub(crate) in_state_folder: bool,
    /// Empty until it is first needed, and after it has failed.
    writer: Mutex<Option<Store>>,
    writes: AtomicU32,
    /// The last write found no room on the disk.
    disk_is_full: AtomicBool,
}

impl File {
    pub(crate) fn new(path: PathBuf, settings: Settings, clock: BootClock) -> Self {
        let (writer, writes, maintenance) = (Mutex::default(), AtomicU32::new(0), Maintenance::default());
        let disk_is_full = AtomicBool::new(false);
        Self { path, settings, clock, maintenance, in_state_folder: false, writer, writes, disk_is_full }
    }

    /// The same in the user's state folder, which is made when the file is opened.
    pub(crate) fn in_state_folder(self) -> Self {
        Self { in_state_folder: true, ..self }
    }

    pub(crate) fn now(&self) -> Reading {
        self.clock.now()
    }

    pub(crate) fn is_empty(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|found| found.len() == 0)
    }

    /// Works with the connection here and now, if nothing is in the way: it is open, nobody of this process uses it, and it
    /// still is the file at the path. None when it is not so. Never blocks: a write that another process is in the way of
    /// fails as busy.
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

    /// The connection for the file's thread, which may wait.
    pub(crate) fn writer(self: &Arc<Self>) -> Writer<'_> {
        Writer { file: self, slot: self.writer.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Has room made in the `-wal` before the next write of the file's thread, if there was none for this one.
    pub(crate) fn note_failure(&self, failure: &Failure) {
        if failure.is_full_disk() {
            self.disk_is_full.store(true, Ordering::Release);
        }
    }

    /// Closes the connection if it is of no more use. While nobody calls, it would keep deleted files alive, and others from repairing
    /// the database: SQLite does that when the last connection is closed.
    pub(crate) fn check_connection(&self) {
        let Ok(mut writer) = self.writer.try_lock() else { return };
        if let Some(store) = &*writer
            && !(store.is_in_place() && store.has_tables().unwrap_or(false))
        {
            tracing::warn!(path = %self.path.display(), "the file of the locks was deleted, replaced or damaged");
            *writer = None;
        }
    }

    /// Has the file looked after, every so many writes.
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

/// The connection, in hand.
pub(crate) struct Writer<'a> {
    file: &'a Arc<File>,
    slot: MutexGuard<'a, Option<Store>>,
}

impl Writer<'_> {
    /// The store; opened when it is not, or not the file at the path any more.
    pub(crate) fn store(&mut self) -> Result<&Store, Failure> {
        if let Some(store) = self.slot.take() {
            if store.is_in_place() {
                if self.file.disk_is_full.swap(false, Ordering::AcqRel) {
                    store.checkpoint_passive();
                }
                return Ok(self.slot.insert(store));
            }
            let path = self.file.path.display();
            tracing::warn!(%path, "the file of the locks was deleted or replaced; it is opened anew");
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
            // Somebody else does.
            Ok(()) | Err(Failure::Busy) => {}
            // What is full may be emptied by a release: the call itself tells.
            Err(failure) => {
                let error = failure.without_effect();
                tracing::debug!(path = %self.file.path.display(), %error, "the write-ahead log cannot be begun");
            }
        }
        Ok(self.slot.insert(store))
    }

    /// The store, if it is open and still is the file at the path.
    pub(crate) fn opened(&self) -> Option<&Store> {
        self.slot.as_ref().filter(|store| store.is_current())
    }

    /// Closes the connection: what is in doubt is rolled back with it.
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
