//! A file of locks, and takers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_conformance::Record;
use leasehold_conformance::harness::{Canary, Taker, folder};

pub(crate) use super::bounds::{CALL, LOSS_SLACK, MARGIN, SOON, Scene, TTL, eventually, look, name};
use super::{bounds, stored::Stored};

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

/// A taker that runs under `command`, which a program of the system's is; its arguments come first.
pub(crate) fn under<A: AsRef<str>>(command: &str, arguments: &[A], taker: &Path, url: &str, more: &[&str]) -> Taker {
    let mut all: Vec<String> = arguments.iter().map(|argument| argument.as_ref().to_owned()).collect();
    all.push(taker.display().to_string());
    all.extend(bounds::arguments(url));
    all.extend(more.iter().map(|more| (*more).to_owned()));
    Taker::start(command, &all).unwrap_or_else(|error| panic!("`{command}` (package util-linux): {error}"))
}

/// A copy of the program that every user may run: where nobody else may look, nobody else may run anything.
pub(crate) fn taker_for_all(world: &World) -> PathBuf {
    let taker = world.path().with_file_name("taker");
    if !taker.exists() {
        // Not by this process: what another case starts meanwhile would have the copy open for writing, and so nobody could run it.
        let copied = std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_taker")).arg(&taker).status().unwrap();
        assert!(copied.success());
    }
    taker
}

/// Whether this may be tested: it needs root. Says so past the test's own output where it is not.
pub(crate) fn is_root(what: &str) -> bool {
    use std::io::Write as _;
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        let _ = writeln!(std::io::stderr(), "NOT TESTED, since it needs root: {what}");
    }
    is_root
}
