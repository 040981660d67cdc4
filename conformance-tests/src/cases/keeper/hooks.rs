//! Hooks between the keeper and the backend.

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

/// Panics in every renewal call that contains this name.
pub(super) struct Panics {
    pub(super) name: LockName,
    pub(super) seen: AtomicU64,
}

#[async_trait]
impl Hooks for Panics {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        if leases.iter().any(|lease| *lease.claim.name() == self.name) {
            self.seen.fetch_add(1, Ordering::Relaxed);
            // Not with `panic!`: printing a backtrace takes longer than a short ttl.
            std::panic::resume_unwind(Box::new("injected panic"));
        }
        inner.renew(leases).await
    }
}

/// Withholds the replies of renewals that the store has processed until the case releases them.
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

/// Lets the store process the first renewal at once, then blocks the keeper's thread until a given time after `since`.
/// The reply is then the first event of the keeper.
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
