//! A file of locks, and takers.

use std::path::PathBuf;
use std::time::Duration;

use conformance_tests::harness::{Canary, Taker, folder, machine_now};

pub(crate) use super::bounds::{LOSS_SLACK, MARGIN, SOON, TTL, eventually, look, name};
use super::bounds::{TIMEOUT, happened, start};
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

    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}?timeout={TIMEOUT}", self.path().display())
    }

    /// A taker with these arguments on top.
    pub(crate) fn taker(&self, more: &[&str]) -> Taker {
        start(&self.url(), more)
    }

    /// A holder, and its fencing token.
    pub(crate) fn holder(&self, more: &[&str]) -> (Taker, u64) {
        let mut taker = self.taker(more);
        let (_, token) = taker.acquired(SOON).unwrap();
        (taker, token)
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

    /// Between which moments of the machine's clock the lease ends by the file's own record, unless it is renewed.
    pub(crate) fn lease_ends(&self) -> (Duration, Duration) {
        let before = machine_now();
        let left = self.stored().record(&name()).lease.expect("somebody holds the lock");
        (before + left, machine_now() + left)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.stored().record(&name()).lease.is_some()
    }

    /// Asserts that something happened in time.
    #[track_caller]
    pub(crate) fn happened(&self, what: &str, at_us: u64, earliest: Duration, latest: Duration) {
        happened(&self.canary, what, at_us, earliest, latest);
    }
}
