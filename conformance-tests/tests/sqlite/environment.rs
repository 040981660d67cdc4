//! A file of locks, and lock holders.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_conformance::Record;
use leasehold_conformance::harness::{LagMonitor, LockHolder, folder};

pub(crate) use super::bounds::{CALL, LOSS_SLACK, MARGIN, SOON, StoreUnderTest, TTL, eventually, is_held, name};
use super::{bounds, stored::Stored};

/// How late a takeover may be after the lease has ended.
pub(crate) const TAKEOVER_SLACK: Duration = Duration::from_millis(100);

pub(crate) struct Environment {
    folder: tempfile::TempDir,
    lag_monitor: LagMonitor,
}

impl Environment {
    pub(crate) fn new() -> Self {
        let folder = folder("leasehold-sqlite-").unwrap_or_else(|error| panic!("no folder for a file: {error}"));
        Self { folder, lag_monitor: LagMonitor::start() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    /// A lock holder that waits: it has an inotify watch on the notification file.
    pub(crate) fn waiter(&self, more: &[&str]) -> LockHolder {
        let mut lock_holder = self.lock_holder(more);
        let fds = format!("/proc/{}/fdinfo", lock_holder.process().id());
        eventually("the waiter is notified of releases", || {
            let open = std::fs::read_dir(&fds).unwrap_or_else(|error| panic!("the lock holder has ended: {error}"));
            let infos = open.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok());
            infos.into_iter().any(|info| info.contains("inotify wd:"))
        });
        lock_holder
    }

    pub(crate) fn stored(&self) -> Stored {
        Stored::new(&self.path())
    }
}

impl StoreUnderTest for Environment {
    fn store(&self) -> String {
        format!("sqlite://{}", self.path().display())
    }

    fn record(&self) -> Record {
        self.stored().record(&name())
    }

    fn lag_monitor(&self) -> &LagMonitor {
        &self.lag_monitor
    }
}

/// A lock holder that a system program `command` starts. The arguments of `command` come first.
pub(crate) fn under<A: AsRef<str>>(
    command: &str,
    arguments: &[A],
    lock_holder: &Path,
    url: &str,
    more: &[&str],
) -> LockHolder {
    let mut all: Vec<String> = arguments.iter().map(|argument| argument.as_ref().to_owned()).collect();
    all.push(lock_holder.display().to_string());
    all.extend(bounds::arguments(url));
    all.extend(more.iter().map(|more| (*more).to_owned()));
    LockHolder::start(command, &all).unwrap_or_else(|error| panic!("`{command}` (package util-linux): {error}"))
}

/// A copy of the program that every user may run: other users cannot run a program in a folder that they cannot read.
pub(crate) fn holder_for_all(environment: &Environment) -> PathBuf {
    let lock_holder = environment.path().with_file_name("lock-holder");
    if !lock_holder.exists() {
        // Not copied by this process: a child of another case could inherit the open copy, and then the copy could not
        // be run.
        let copied =
            std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_lock-holder")).arg(&lock_holder).status().unwrap();
        assert!(copied.success());
    }
    lock_holder
}

/// Whether a test that needs root can run. Prints a note to standard error if not.
pub(crate) fn is_root(what: &str) -> bool {
    use std::io::Write as _;
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        let _ = writeln!(std::io::stderr(), "NOT TESTED, since it needs root: {what}");
    }
    is_root
}
