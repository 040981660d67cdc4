//! Polls the locks that claims of this client wait for: one statement for all of them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::LockName;
use leasehold_core::backend::{Claim, CoreHandle, WatchGuard, Watches};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::connections::Connections;
use crate::errors::Failure;
use crate::rows;
use crate::settings::Wakeup;
use crate::shared::{Shared, lock};
use crate::statements::SIZES;
use crate::wakeup;

/// The pause between two polls, while locks become free or new ones are watched.
const MIN_PAUSE: Duration = Duration::from_millis(25);

/// The pause between two polls of locks that stay held. It grows to this.
const MAX_PAUSE: Duration = Duration::from_millis(125);

/// A lock that a claim waits for by `GET_LOCK` is in one of so many polls.
const POLLS_PER_WAKEUP: u32 = 8;

/// The pause after polls that failed. It grows to this.
const MAX_PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);

/// The watches of one client, and the task that polls them.
#[derive(Default)]
pub(crate) struct Watcher {
    watches: Watches,
    /// A lock is watched that was not before.
    is_new: Notify,
    is_running: Mutex<bool>,
}

impl Watcher {
    /// Reports when a lock may be free. The lock may have become free before the call.
    pub(crate) fn watch(connections: &Arc<Connections>, claim: &Claim) -> WatchGuard {
        let Ok(core) = connections.shared.core.core() else { return WatchGuard::none() };
        let watcher = &connections.shared.watcher;
        let (guard, is_new) = watcher.watches.open(claim.name());
        let was_running = std::mem::replace(&mut *lock(&watcher.is_running), true);
        if !was_running {
            core.keeper_runtime().spawn(run(connections.clone(), core.clone()));
        } else if is_new {
            watcher.is_new.notify_one();
        }
        if connections.shared.settings.wakeup == Wakeup::GetLock {
            wakeup::join(connections, core, claim);
        }
        guard
    }

    /// Reports that a lock may be free.
    pub(crate) fn report(&self, name: &LockName, core: &CoreHandle) {
        self.watches.report(name, core);
    }

    /// Whether the task ends. `watch` opens the watch before it reads `is_running`, so one of the two sees the other.
    fn ends(&self) -> bool {
        let mut is_running = lock(&self.is_running);
        *is_running = !self.watches.is_empty();
        !*is_running
    }
}

/// Polls until no lock is watched.
async fn run(connections: Arc<Connections>, core: CoreHandle) {
    let watcher = &connections.shared.watcher;
    let (mut pause, mut polls) = (MIN_PAUSE, 0);
    let mut next = Instant::now() + core.jitter(pause);
    loop {
        tokio::select! {
            () = sleep_until(next) => {}
            () = watcher.is_new.notified() => {
                // Its acquire has just found it held. So a new watch ends a long pause, but many in a row do not delay the poll.
                pause = MIN_PAUSE;
                next = next.min(Instant::now() + core.jitter(pause));
                continue;
            }
        }
        if watcher.ends() {
            return;
        }
        let names = due(&connections.shared, polls);
        polls += 1;
        pause = match poll(&connections, names, &core).await {
            Ok(true) => MIN_PAUSE,
            Ok(false) => (pause * 5 / 4).min(MAX_PAUSE),
            Err(failure) => {
                tracing::debug!(target: "leasehold", backend = "mysql", ?failure, "the locks that are waited for cannot be polled");
                (pause * 2).min(MAX_PAUSE_AFTER_ERROR)
            }
        };
        next = Instant::now() + core.jitter(pause);
    }
}

/// The watched locks that the next poll is about.
fn due(shared: &Shared, polls: u32) -> Vec<LockName> {
    let mut names = shared.watcher.watches.names();
    if shared.settings.wakeup == Wakeup::GetLock && !polls.is_multiple_of(POLLS_PER_WAKEUP) {
        names.retain(|name| shared.turns.has(name));
    }
    names
}

/// Polls these locks, and reports those that are free. Returns whether there are any.
async fn poll(connections: &Connections, names: Vec<LockName>, core: &CoreHandle) -> Result<bool, Failure> {
    let until = Instant::now() + connections.shared.settings.timeout;
    let pool = connections.calls().map_err(Failure::NotSent)?;
    let mut any = false;
    for names in names.chunks(SIZES[SIZES.len() - 1]) {
        let held: HashSet<Vec<u8>> = rows::held_names(&pool, names, until).await?.into_iter().collect();
        for name in names.iter().filter(|name| !held.contains(name.as_str().as_bytes())) {
            connections.shared.watcher.report(name, core);
            any = true;
        }
    }
    Ok(any)
}
