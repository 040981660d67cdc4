//! Saboteurs that treat their connections badly.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use leasehold_core::Result;
use leasehold_core::backend::{AcquireOutcome, AcquireRequest, ReleaseOutcome, ReleaseRequest};
use leasehold_core::{Error, ErrorKind};
use tokio::sync::Notify;

use super::{Saboteur, stateful};
use crate::fixture::ResourceCounts;
use crate::hooks::{Hooks, Inner};

/// Closes the connection of a call that is given up, although other calls use it.
#[derive(Default)]
pub struct AbortsCallsBeside {
    closed: Notify,
}

stateful! {
    AbortsCallsBeside;
}

/// A call in flight. It is given up if this is dropped early.
struct InFlight<'a> {
    closed: &'a Notify,
    has_ended: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.closed.notify_waiters();
        }
    }
}

impl AbortsCallsBeside {
    async fn run<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let mut this = InFlight { closed: &self.closed, has_ended: false };
        let reply = tokio::select! {
            reply = call => reply,
            () = self.closed.notified() => {
                Err(Error::new(ErrorKind::Indeterminate, "injected: the connection was closed"))
            }
        };
        this.has_ended = true;
        reply
    }
}

#[async_trait]
impl Hooks for AbortsCallsBeside {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        self.run(inner.backend.acquire(request)).await
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        self.run(inner.backend.release(request)).await
    }
}

/// Opens a new connection after a call without a reply, and does not close the old one.
#[derive(Default)]
pub struct KeepsTimedOutConnections {
    timed_out: AtomicU64,
}

impl Saboteur for KeepsTimedOutConnections {
    fn new() -> Self {
        Self::default()
    }

    fn resource_counts(&self, seen: ResourceCounts) -> ResourceCounts {
        ResourceCounts { connections: seen.connections + self.timed_out.load(Ordering::Relaxed), ..seen }
    }
}

#[async_trait]
impl Hooks for KeepsTimedOutConnections {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let reply = inner.backend.acquire(request).await;
        if reply.as_ref().is_err_and(|error| error.kind() == ErrorKind::Indeterminate) {
            self.timed_out.fetch_add(1, Ordering::Relaxed);
        }
        reply
    }
}
