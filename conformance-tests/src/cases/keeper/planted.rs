//! What the cases of the keeper plant between it and the backend.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use lock_core::{Answer, LeaseRef, LockName};
use tokio::sync::Notify;

use crate::faulty::lock;
use crate::hooks::{Hooks, Inner};

/// Panics in every renewal of which this name is part.
pub(super) struct Panics {
    pub(super) name: LockName,
    pub(super) seen: AtomicU64,
}

#[async_trait]
impl Hooks for Panics {
    async fn renew(&self, inner: &Inner, leases: &[LeaseRef]) -> Vec<(usize, Answer)> {
        if leases.iter().any(|lease| *lease.claim.name() == self.name) {
            self.seen.fetch_add(1, Ordering::Relaxed);
            // Not by `panic!`: to print a backtrace takes the keeper's thread longer than a short ttl lasts.
            std::panic::resume_unwind(Box::new("planted"));
        }
        inner.renew(leases).await
    }
}

/// Keeps the answers of renewals until it is told to let them go, though the store has worked on them.
#[derive(Default)]
pub(super) struct LateAnswers {
    pub(super) go: Notify,
    pub(super) kept: Mutex<u64>,
}

#[async_trait]
impl Hooks for LateAnswers {
    async fn renew(&self, inner: &Inner, leases: &[LeaseRef]) -> Vec<(usize, Answer)> {
        let answers = inner.renew(leases).await;
        *lock(&self.kept) += 1;
        self.go.notified().await;
        answers
    }
}
