//! The watcher thread, which reports when a lock may be free.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::LockName;
use leasehold_core::backend::kit::Watches;
use leasehold_core::backend::{CoreHandle, WatchGuard};

use crate::boot_clock;
use crate::errors::Failure;
use crate::file::File;
use crate::notifier::{Listener, ReleaseNotifier, Waker};
use crate::shared::Shared;

/// How long the thread keeps running after the last watch was closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause after a check: at least `MIN_PAUSE`, and `PAUSE_FACTOR` times the processor time that the check took.
/// Notifications that never stop therefore cost at most a fifth of a core. Processor time, not elapsed time, so that a
/// busy machine delays nobody.
const MIN_PAUSE: Duration = Duration::from_micros(200);
const PAUSE_FACTOR: u32 = 4;

/// How soon the thread checks again if another process was writing, so that it could not record the waiter.
const BUSY_RETRY: Duration = Duration::from_millis(2);

/// How many locks the thread checks before it hands the connection back.
const BATCH: usize = 32;

/// Watches the locks that claims of this client wait for.
#[derive(Debug)]
pub(crate) struct Watcher {
    pub(crate) notifier: ReleaseNotifier,
    watches: Watches,
    is_closed: AtomicBool,
    waker: Waker,
}

impl Watcher {
    pub(crate) fn new(notifier: ReleaseNotifier) -> Self {
        Self { notifier, watches: Watches::default(), is_closed: AtomicBool::new(false), waker: Waker::default() }
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Reports when a lock may be free. The lock may have become free before the call.
    pub(crate) fn watch(shared: &Arc<Shared>, name: &LockName) -> WatchGuard {
        let watcher = &shared.watcher;
        let (guard, is_new) = watcher.watches.open(name);
        if !watcher.is_closed() && watcher.watches.begin_serving() {
            start(shared);
        } else if is_new {
            watcher.waker.wake();
        }
        guard
    }

    /// Ends the thread, because the client was dropped.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether the thread continues. It has had no watch since `idle_since`.
    fn should_run(&self, idle_since: Option<Instant>) -> bool {
        let is_idle = idle_since.is_some_and(|since| since.elapsed() >= IDLE_TIMEOUT);
        !(self.is_closed() || (is_idle && self.watches.end_if_unused()))
    }
}

fn start(shared: &Arc<Shared>) {
    let mine = shared.clone();
    let run = move || {
        if let Some(core) = mine.core.get() {
            run(&mine.file, &mine.watcher, core);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("leasehold-watcher".into()).spawn(run) {
        shared.watcher.watches.cancel_serving();
        tracing::debug!(%error, "cannot start the watcher thread: waiters poll instead");
    }
}

fn run(file: &Arc<File>, watcher: &Watcher, core: &CoreHandle) {
    let mut listener = Listener::new(&watcher.notifier, &watcher.waker);
    let mut idle_since = None;
    while watcher.should_run(idle_since) {
        let names = watcher.watches.names();
        if names.is_empty() {
            let since: Instant = *idle_since.get_or_insert_with(Instant::now);
            listener.wait(IDLE_TIMEOUT.saturating_sub(since.elapsed()));
            continue;
        }
        idle_since = None;
        let before = boot_clock::thread_time();
        let Checked { free, was_busy, next_expiry } = check(file, names);
        for name in free {
            watcher.watches.report(&name, core);
        }
        let spent = boot_clock::thread_time().saturating_sub(before);
        std::thread::sleep((spent * PAUSE_FACTOR).max(MIN_PAUSE));
        // A holder may have shortened its lease, so the next expiry may come before the claim retries by itself.
        listener.wait(if was_busy { next_expiry.min(BUSY_RETRY) } else { next_expiry });
    }
}

/// The result of a check.
struct Checked {
    /// Locks that nobody holds.
    free: Vec<LockName>,
    /// Another process was writing, so for some locks the waiter could not be recorded.
    was_busy: bool,
    /// Time until the first of the other leases expires, unless it is renewed.
    next_expiry: Duration,
}

fn check(file: &Arc<File>, mut names: Vec<LockName>) -> Checked {
    names.sort();
    let mut checked = Checked { free: Vec::new(), was_busy: false, next_expiry: Duration::MAX };
    for some in names.chunks(BATCH) {
        let writer = file.writer();
        // The next acquire of a waiter opens the file if it is closed or missing.
        let Some(store) = writer.opened() else { break };
        let now = file.now();
        for name in some {
            match store.held_for(name, &now) {
                // The acquire of the claim reports what is wrong with the row.
                Ok(None) | Err(Failure::Rejected(_)) => checked.free.push(name.clone()),
                Ok(Some(left)) => checked.next_expiry = checked.next_expiry.min(left),
                Err(Failure::Busy) => checked.was_busy = true,
                Err(Failure::Sql(_)) => {}
            }
        }
    }
    checked
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::boot_clock::BootClock;
    use crate::settings::Settings;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(30);

    fn shared(folder: &tempfile::TempDir) -> Arc<Shared> {
        let locks = folder.path().join("locks.db");
        std::fs::write(&locks, "").unwrap();
        Arc::new(Shared::new(File::new(locks, Settings::default(), BootClock::of_this_machine().unwrap())))
    }

    /// A release between the refusal of a claim and its watch notifies only listeners that existed before.
    #[test]
    fn a_new_watch_wakes_the_thread() {
        let folder = tempfile::tempdir().unwrap();
        let shared = shared(&folder);
        let watcher = &shared.watcher;
        // Stands in for the thread.
        assert!(watcher.watches.begin_serving());
        let mut listener = Listener::new(&watcher.notifier, &watcher.waker);
        let mut wakes_within = |timeout: Duration| {
            let begin = Instant::now();
            listener.wait(timeout);
            begin.elapsed() < timeout
        };
        assert!(!wakes_within(SHORT), "no watch is open");
        let _guard = Watcher::watch(&shared, &LockName::new("job").unwrap());
        assert!(wakes_within(LONG), "a new watch");
        watcher.close();
        assert!(wakes_within(LONG), "the client was dropped");
    }

    #[test]
    fn the_thread_ends_when_it_is_idle_or_the_client_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let shared = shared(&folder);
        let watcher = &shared.watcher;
        assert!(watcher.watches.begin_serving());
        let long_ago = Instant::now().checked_sub(IDLE_TIMEOUT);
        let guard = Watcher::watch(&shared, &LockName::new("job").unwrap());
        assert!(watcher.should_run(long_ago), "a watch was opened meanwhile");
        drop(guard);
        assert!(watcher.should_run(Some(Instant::now())) && watcher.should_run(None));
        assert!(!watcher.should_run(long_ago) && watcher.watches.begin_serving());
        watcher.close();
        assert!(!watcher.should_run(None));
    }
}
