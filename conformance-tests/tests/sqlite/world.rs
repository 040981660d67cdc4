//! A file of locks, and takers.

use std::path::PathBuf;
use std::time::Duration;

use conformance_tests::Record;
use conformance_tests::harness::{Canary, Taker, folder};

pub(crate) use super::bounds::{CALL, LOSS_SLACK, MARGIN, SOON, Scene, TTL, eventually, look, name};
use super::stored::Stored;

/// How late a takeover may be after the lease has ended.
pub(crate) const TAKEOVER_SLACK: Duration = Duration::from_millis(100);

pub(crate) struct World {
    folder: tempfile::TempDir,
    canary: Canary,
}

impl World {
    pub(crate) fn new() -> Self {
        let folder = folder("leasehold-sqlite-").unwrap_or_else(|error| panic!("no folder for a file: {error}"));
        Self { folder, canary: Canary::start() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    /// A taker that waits: the system watches the bell for it.
    pub(crate) fn waiter(&self, more: &[&str]) -> Taker {
        let mut taker = self.taker(more);
        let fds = format!("/proc/{}/fdinfo", taker.process().id());
        eventually("the waiter hears of releases", || {
            let open = std::fs::read_dir(&fds).unwrap_or_else(|error| panic!("the taker has ended: {error}"));
            let infos = open.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok());
            infos.into_iter().any(|info| info.contains("inotify wd:"))
        });
        taker
    }

    pub(crate) fn stored(&self) -> Stored {
        Stored::new(&self.path())
    }
}

impl Scene for World {
    fn store(&self) -> String {
        format!("sqlite://{}", self.path().display())
    }

    fn record(&self) -> Record {
        self.stored().record(&name())
    }

    fn canary(&self) -> &Canary {
        &self.canary
    }
}
