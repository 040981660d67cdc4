//! Errors that say too little or too much.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::{Acquisition, Claim};
use leasehold_core::{Error, Result};

use super::plain;
use crate::hooks::{Hooks, Inner};

plain! {
    /// Errors that are sentences.
    SpeaksInSentences;
    /// Writes owner tokens into the log.
    LogsTheOwner;
}

#[async_trait]
impl Hooks for SpeaksInSentences {
    async fn acquire(&self, inner: &Inner, claim: &Claim, ttl: Duration) -> Result<Acquisition> {
        let answer = inner.backend.acquire(claim, ttl).await;
        answer.map_err(|error| Error::new(error.kind(), "Something went wrong."))
    }
}

#[async_trait]
impl Hooks for LogsTheOwner {
    async fn acquire(&self, inner: &Inner, claim: &Claim, ttl: Duration) -> Result<Acquisition> {
        let owner: String = claim.owner().as_bytes().iter().map(|byte| format!("{byte:02X}")).collect();
        tracing::debug!(owner, "acquire");
        inner.backend.acquire(claim, ttl).await
    }
}
