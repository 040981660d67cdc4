//! What the cases of the keeper plant between it and the backend.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::LockName;
use leasehold_core::backend::{RenewReply, RenewRequest};
use tokio::sync::Notify;

use crate::faulty::lock;
use crate::hooks::{Hooks, Inner};
use crate::support::Stopwatch;

/// Panics in every renewal of which this name is part.
pub(super) struct Panics {
    pub(super) name: LockName,
    pub(super) seen: AtomicU64,
}

#[async_trait]
impl Hooks for Panics {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        if leases.iter().any(|lease| *lease.claim.name() == self.name) {
            self.seen.fetch_add(1, Ordering::Relaxed);
            // Not by `panic!`: to print a backtrace takes the keeper's thread longer than a short ttl lasts.
            std::panic::resume_unwind(Box::new("planted"));
        }
        inner.renew(leases).await
    }
}

/// Keeps the replies of renewals until it is told to let them go, though the store has worked on them.
#[derive(Default)]
pub(super) struct LateReplies {
    pub(super) go: Notify,
    pub(super) kept: Mutex<u64>,
}

#[async_trait]
impl Hooks for LateReplies {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let replies = inner.renew(leases).await;
        *lock(&self.kept) += 1;
        self.go.notified().await;
        replies
    }
}

/// Has the store reply the first renewal at once, and lets nothing run on the keeper's thread until so long after `since`: then
/// the reply is the first thing that the keeper sees.
#[derive(Default)]
pub(super) struct BlocksTheKeeper {
    pub(super) since: Mutex<Option<Stopwatch>>,
    pub(super) until_after: Duration,
    pub(super) blocked: AtomicBool,
    pub(super) done: AtomicBool,
}

#[async_trait]
impl Hooks for BlocksTheKeeper {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let replies = inner.renew(leases).await;
        let since = *lock(&self.since);
        if let (Some(since), false) = (since, self.done.swap(true, Ordering::SeqCst)) {
            self.blocked.store(true, Ordering::SeqCst);
            std::thread::sleep(self.until_after.saturating_sub(since.elapsed()));
            self.blocked.store(false, Ordering::SeqCst);
        }
        replies
    }
}
