//! Withdrawn claims that are remembered, but not for long enough.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_core::backend::{Acquisition, Certainty, Claim, OwnerToken, Release};
use leasehold_core::{ErrorKind, Result};

use super::exclusion::refused;
use super::{Saboteur, stateful};
use crate::fault::{Declared, ServerFault};
use crate::faulty::lock;
use crate::hooks::{Hooks, Inner};

/// Its own notes of withdrawn claims, in the place of the store's.
#[derive(Default)]
struct Notes(Mutex<HashMap<OwnerToken, Instant>>);

impl Notes {
    async fn acquire(&self, inner: &Inner, claim: &Claim, ttl: Duration, kept: Duration) -> Result<Acquisition> {
        if lock(&self.0).get(claim.owner()).is_some_and(|since| since.elapsed() < kept) {
            return Err(refused(ErrorKind::Lost));
        }
        inner.backend.acquire(claim, ttl).await
    }

    async fn release(&self, inner: &Inner, claim: &Claim, certainty: Certainty) -> Result<Release> {
        if certainty == Certainty::Unsure {
            lock(&self.0).insert(*claim.owner(), Instant::now());
        }
        inner.backend.release(claim, Certainty::Sure).await
    }
}

/// Remembers a withdrawn claim for two seconds.
#[derive(Default)]
pub struct ForgetsWithdrawnClaims(Notes);

stateful! {
    ForgetsWithdrawnClaims;
}

#[async_trait]
impl Hooks for ForgetsWithdrawnClaims {
    async fn acquire(&self, inner: &Inner, claim: &Claim, ttl: Duration) -> Result<Acquisition> {
        self.0.acquire(inner, claim, ttl, Duration::from_secs(2)).await
    }

    async fn release(&self, inner: &Inner, claim: &Claim, certainty: Certainty) -> Result<Release> {
        self.0.release(inner, claim, certainty).await
    }
}

/// Keeps withdrawn claims where a crash empties it.
#[derive(Default)]
pub struct CrashForgetsWithdrawnClaims(Notes);

impl Saboteur for CrashForgetsWithdrawnClaims {
    fn new() -> Self {
        Self::default()
    }

    fn server(&self, fault: &ServerFault) -> Option<Result<(), Declared>> {
        if *fault == ServerFault::Kill {
            lock(&self.0.0).clear();
        }
        None
    }
}

#[async_trait]
impl Hooks for CrashForgetsWithdrawnClaims {
    async fn acquire(&self, inner: &Inner, claim: &Claim, ttl: Duration) -> Result<Acquisition> {
        self.0.acquire(inner, claim, ttl, Duration::MAX).await
    }

    async fn release(&self, inner: &Inner, claim: &Claim, certainty: Certainty) -> Result<Release> {
        self.0.release(inner, claim, certainty).await
    }
}
