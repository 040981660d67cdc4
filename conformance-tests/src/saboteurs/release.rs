//! Saboteurs with defects in releases.

use std::collections::HashSet;
use std::sync::Mutex;

use async_trait::async_trait;
use leasehold_core::Result;
use leasehold_core::backend::{AcquireOutcome, AcquireRequest, Delivery, OwnerToken, ReleaseOutcome, ReleaseRequest};

use super::{plain, stateful};
use crate::faulty::lock;
use crate::hooks::{Hooks, Inner};

plain! {
    /// Returns `Released` to the first client and keeps its lease.
    DropsReleases;
    /// Leaves no note about a claim that is withdrawn.
    IgnoresInDoubt;
    /// Leaves notes about claims that need none.
    MarksEveryReleaseInDoubt;
    /// Repeats a release that failed, and reports what the second one found.
    AsksAgainAfterAFailure;
}

#[async_trait]
impl Hooks for DropsReleases {
    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        if inner.nth == 0 {
            return Ok(ReleaseOutcome::Released);
        }
        inner.backend.release(request).await
    }
}

#[async_trait]
impl Hooks for IgnoresInDoubt {
    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        inner.backend.release(&ReleaseRequest::new(request.claim.clone(), Delivery::Confirmed)).await
    }
}

/// Drops the releases of claims that had to wait.
#[derive(Default)]
pub struct DropsReleasesOfWaiters {
    waited: Mutex<HashSet<OwnerToken>>,
}

/// Gives up a release that gets no reply at once.
#[derive(Default)]
pub struct TriesReleasesOnce {
    tried: Mutex<HashSet<OwnerToken>>,
}

/// After a failed release, reports a later one that finds no lease as `Released`.
#[derive(Default)]
pub struct TakesGoneForReleased {
    failed: Mutex<HashSet<OwnerToken>>,
}

stateful! {
    DropsReleasesOfWaiters;
    TakesGoneForReleased;
    TriesReleasesOnce;
}

#[async_trait]
impl Hooks for DropsReleasesOfWaiters {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let reply = inner.backend.acquire(request).await;
        if let Ok(AcquireOutcome::Queued { .. }) = &reply {
            lock(&self.waited).insert(*request.claim.owner());
        }
        reply
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        if lock(&self.waited).contains(request.claim.owner()) {
            return Ok(ReleaseOutcome::Released);
        }
        inner.backend.release(request).await
    }
}

#[async_trait]
impl Hooks for MarksEveryReleaseInDoubt {
    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        inner.backend.release(&ReleaseRequest::new(request.claim.clone(), Delivery::InDoubt)).await
    }
}

#[async_trait]
impl Hooks for TriesReleasesOnce {
    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        if !lock(&self.tried).insert(*request.claim.owner()) {
            return Ok(ReleaseOutcome::NotHeld);
        }
        inner.backend.release(request).await
    }
}

#[async_trait]
impl Hooks for TakesGoneForReleased {
    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let (owner, outcome) = (request.claim.owner(), inner.backend.release(request).await);
        match outcome {
            Err(_) => _ = lock(&self.failed).insert(*owner),
            Ok(ReleaseOutcome::NotHeld) if lock(&self.failed).contains(owner) => return Ok(ReleaseOutcome::Released),
            Ok(_) => {}
        }
        outcome
    }
}

#[async_trait]
impl Hooks for AsksAgainAfterAFailure {
    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        match inner.backend.release(request).await {
            Err(_) => inner.backend.release(request).await,
            done => done,
        }
    }
}
