//! Releases that are forgotten or not finished.

use std::collections::HashSet;
use std::sync::Mutex;

use async_trait::async_trait;
use leasehold_core::Result;
use leasehold_core::backend::{AcquireOutcome, AcquireRequest, Delivery, OwnerToken, ReleaseOutcome, ReleaseRequest};

use super::{plain, stateful};
use crate::faulty::lock;
use crate::hooks::{Hooks, Inner};

plain! {
    /// Says "released" to the first client and keeps its lease.
    ForgetsReleases;
    /// Leaves no note about a claim that is withdrawn.
    IgnoresDoubt;
    /// Leaves notes about claims that need none.
    DoubtsEveryRelease;
}

#[async_trait]
impl Hooks for ForgetsReleases {
    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        if inner.nth == 0 {
            return Ok(ReleaseOutcome::Released);
        }
        inner.backend.release(request).await
    }
}

#[async_trait]
impl Hooks for IgnoresDoubt {
    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        inner.backend.release(&ReleaseRequest::new(request.claim.clone(), Delivery::Confirmed)).await
    }
}

/// Forgets the releases of claims that had to wait.
#[derive(Default)]
pub struct ForgetsWaiters {
    waited: Mutex<HashSet<OwnerToken>>,
}

/// Gives a release up that was not answered at once.
#[derive(Default)]
pub struct TriesReleasesOnce {
    tried: Mutex<HashSet<OwnerToken>>,
}

stateful! {
    ForgetsWaiters;
    TriesReleasesOnce;
}

#[async_trait]
impl Hooks for ForgetsWaiters {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let answer = inner.backend.acquire(request).await;
        if let Ok(AcquireOutcome::Queued { .. }) = &answer {
            lock(&self.waited).insert(*request.claim.owner());
        }
        answer
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        if lock(&self.waited).contains(request.claim.owner()) {
            return Ok(ReleaseOutcome::Released);
        }
        inner.backend.release(request).await
    }
}

#[async_trait]
impl Hooks for DoubtsEveryRelease {
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
