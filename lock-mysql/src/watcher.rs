//! Polls the locks that claims of this client wait for: one statement for all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::{Claim, CoreHandle, WatchGuard, Watches};
use leasehold_core::{FencingToken, LockName};
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
    let (mut pause, mut polls) = (MIN_PAUSE, Polls::default());
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
        let names = polls.due(&connections.shared);
        pause = match polls.poll(&connections, names, &core).await {
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

/// The polls of a client.
#[derive(Default)]
struct Polls {
    number: u32,
    /// With `wakeup=get_lock`: locks that the last poll found free, though another claim may have their named locks. With the last tokens.
    free: HashMap<LockName, FencingToken>,
}

impl Polls {
    /// The watched locks that the next poll is about.
    fn due(&mut self, shared: &Shared) -> Vec<LockName> {
        let mut names = shared.watcher.watches.names();
        if shared.settings.wakeup == Wakeup::GetLock && !self.number.is_multiple_of(POLLS_PER_WAKEUP) {
            names.retain(|name| shared.turns.has(name) || self.free.contains_key(name));
        }
        self.number += 1;
        names
    }

    /// Polls some locks, and reports those that are free. Returns whether it has reported any.
    async fn poll(
        &mut self,
        connections: &Connections,
        names: Vec<LockName>,
        core: &CoreHandle,
    ) -> Result<bool, Failure> {
        let shared = &connections.shared;
        let until = Instant::now() + shared.settings.timeout;
        let pool = connections.calls().map_err(Failure::NotSent)?;
        let before = std::mem::take(&mut self.free);
        let mut any = false;
        for names in names.chunks(SIZES[SIZES.len() - 1]) {
            for (name, token) in rows::free(&pool, names, until).await? {
                // The claim that has the named lock is about to acquire the row. Only if no claim has since the last poll, it does not.
                let is_for_others = shared.settings.wakeup == Wakeup::GetLock
                    && !shared.turns.has(&name)
                    && before.get(&name) != Some(&token);
                if is_for_others {
                    self.free.insert(name, token);
                } else {
                    shared.watcher.report(&name, core);
                    any = true;
                }
            }
        }
        Ok(any)
    }
}
