//! Notifications that a lock may be free, for stores without a queue.

use std::fmt;

use crate::backend::Claim;

/// Reports when a lock may be free.
pub trait WatchNames: Send + Sync {
    /// Watches the lock of a claim that waits after the reply [`Contended`](crate::backend::AcquireOutcome::Contended).
    /// Sends at most one [`Event::Changed`](crate::backend::Event::Changed) for it, even if the lock became free before
    /// this call. lock-core calls this after every such reply. A watch replaces the previous watch of that lock.
    /// Dropping the guard ends the watch.
    ///
    /// Does not block. May send the event before it returns.
    fn watch(&self, claim: &Claim) -> WatchGuard;
}

/// Ends a watch when it is dropped.
#[must_use = "dropping the guard ends the watch"]
pub struct WatchGuard(Option<Box<dyn FnOnce() + Send>>);

impl WatchGuard {
    /// A guard that calls `end` when it is dropped. `end` may be called on any thread and does not block.
    pub fn new(end: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(end)))
    }

    /// The guard of a claim that is not watched.
    pub const fn none() -> Self {
        Self(None)
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

impl fmt::Debug for WatchGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchGuard").field(&self.0.is_some()).finish()
    }
}
