//! Saboteurs that do not remember withdrawn claims for long enough.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_core::backend::{AcquireOutcome, AcquireRequest, Delivery, OwnerToken, ReleaseOutcome, ReleaseRequest};
use leasehold_core::{ErrorKind, Result};

use super::exclusion::refused;
use super::{Saboteur, stateful};
use crate::fault::{ServerFault, Unsupported};
use crate::faulty::lock;
use crate::hooks::{Hooks, Inner};

/// Notes of withdrawn claims that replace those of the store.
#[derive(Default)]
struct Notes(Mutex<HashMap<OwnerToken, Instant>>);

impl Notes {
    fn check(&self, request: &AcquireRequest, kept: Duration) -> Result<()> {
        match lock(&self.0).get(request.claim.owner()) {
            Some(since) if since.elapsed() < kept => Err(refused(ErrorKind::Lost)),
            _ => Ok(()),
        }
    }

    async fn acquire(&self, inner: &Inner, request: &AcquireRequest, kept: Duration) -> Result<AcquireOutcome> {
        self.check(request, kept)?;
        inner.backend.acquire(request).await
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        if request.delivery == Delivery::InDoubt {
            lock(&self.0).insert(*request.claim.owner(), Instant::now());
        }
        inner.backend.release(&ReleaseRequest::new(request.claim.clone(), Delivery::Confirmed)).await
    }
}

/// Remembers a withdrawn claim for two seconds.
#[derive(Default)]
pub struct PurgesWithdrawnClaimsEarly(Notes);

stateful! {
    PurgesWithdrawnClaimsEarly;
}

#[async_trait]
impl Hooks for PurgesWithdrawnClaimsEarly {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        self.0.acquire(inner, request, Duration::from_secs(2)).await
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        self.0.release(inner, request).await
    }
}

/// Reads the notes first and changes the record later, so it misses a withdrawal in between. So does a statement that
/// reads the notes before it has locked the row, and one that reads an older snapshot if withdrawals lock no row.
#[derive(Default)]
pub struct ReadsNotesBeforeItLocks(Notes);

stateful! {
    ReadsNotesBeforeItLocks;
}

#[async_trait]
impl Hooks for ReadsNotesBeforeItLocks {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        self.0.check(request, Duration::MAX)?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        inner.backend.acquire(request).await
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        self.0.release(inner, request).await
    }
}

/// Keeps withdrawn claims in memory that a crash loses.
#[derive(Default)]
pub struct CrashLosesWithdrawnClaims(Notes);

impl Saboteur for CrashLosesWithdrawnClaims {
    fn new() -> Self {
        Self::default()
    }

    fn server(&self, fault: &ServerFault) -> Option<Result<(), Unsupported>> {
        if *fault == ServerFault::Kill {
            lock(&self.0.0).clear();
        }
        None
    }
}

#[async_trait]
impl Hooks for CrashLosesWithdrawnClaims {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        self.0.acquire(inner, request, Duration::MAX).await
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        self.0.release(inner, request).await
    }
}
