//! Polls the locks that claims of this client wait for: one statement for all of them.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{Claim, CoreHandle, WatchGuard};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::errors::Failure;
use crate::row::rows::Rows;
use crate::row::statements::POLL_ROWS;
use crate::row::wakeup::Turns;

/// The pause between two polls, while locks become free or new ones are watched.
const MIN_PAUSE: Duration = Duration::from_millis(25);

/// The pause between two polls of locks that stay held. It grows to this.
const MAX_PAUSE: Duration = Duration::from_millis(125);

/// The pause after polls that failed. It grows to this.
const MAX_PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);

/// The task that polls for the claims of one client.
pub(crate) struct Watcher {
    turns: Arc<Turns>,
    /// A lock is watched that was not before.
    is_new: Notify,
}

impl Watcher {
    pub(crate) fn new(rows: Arc<Rows>) -> Arc<Self> {
        Arc::new(Self { turns: Turns::new(rows), is_new: Notify::new() })
    }

    /// Reports when a lock may be free. The lock may have become free before the call.
    pub(crate) fn watch(self: &Arc<Self>, claim: &Claim) -> WatchGuard {
        let Ok(core) = self.turns.rows.connections.shared.core.core() else { return WatchGuard::none() };
        let (guard, is_new) = self.turns.watches.open(claim.name());
        if self.turns.watches.begin_serving() {
            core.keeper_runtime().spawn(run(self.clone(), core.clone()));
        } else if is_new {
            self.is_new.notify_one();
        }
        self.turns.join(core, claim);
        guard
    }
}

/// Polls until no lock is watched.
async fn run(watcher: Arc<Watcher>, core: CoreHandle) {
    let mut pause = MIN_PAUSE;
    let mut next = Instant::now() + core.jitter(pause);
    loop {
        tokio::select! {
            () = sleep_until(next) => {}
            () = watcher.is_new.notified() => {
                // Its acquire has just found it held. So a new watch ends a long pause, but many in a row do not delay
                // the poll.
                pause = MIN_PAUSE;
                next = next.min(Instant::now() + core.jitter(pause));
                continue;
            }
        }
        if watcher.turns.watches.end_if_unused() {
            return;
        }
        pause = match poll(&watcher.turns, &core).await {
            Ok(true) => MIN_PAUSE,
            Ok(false) => (pause * 5 / 4).min(MAX_PAUSE),
            Err(failure) => {
                tracing::debug!(
                    target: "leasehold", backend = "mysql", ?failure,
                    "the locks that are waited for cannot be polled"
                );
                (pause * 2).min(MAX_PAUSE_AFTER_ERROR)
            }
        };
        next = Instant::now() + core.jitter(pause);
    }
}

/// Polls the locks that are watched, but for those whose claims wait by their turns, and reports those that are free.
/// Returns whether it has reported any.
async fn poll(turns: &Turns, core: &CoreHandle) -> Result<bool, Failure> {
    let mut names = turns.watches.names();
    names.retain(|name| !turns.is_waiting(name));
    let until = turns.rows.connections.shared.until();
    let mut any = false;
    for names in names.chunks(POLL_ROWS) {
        for name in turns.rows.free(names, until).await? {
            turns.watches.report(&name, core);
            any = true;
        }
    }
    Ok(any)
}
