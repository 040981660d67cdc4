//! Saboteurs whose errors or logs are wrong.

use async_trait::async_trait;
use leasehold_core::backend::{AcquireOutcome, AcquireRequest};
use leasehold_core::{Error, Result};

use super::plain;
use crate::hooks::{Hooks, Inner};

plain! {
    /// Returns errors that are sentences.
    WritesErrorsAsSentences;
    /// Writes owner tokens into the log.
    LogsTheOwner;
}

#[async_trait]
impl Hooks for WritesErrorsAsSentences {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let reply = inner.backend.acquire(request).await;
        reply.map_err(|error| Error::new(error.kind(), "Something went wrong."))
    }
}

#[async_trait]
impl Hooks for LogsTheOwner {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let owner: String = request.claim.owner().as_bytes().iter().map(|byte| format!("{byte:02X}")).collect();
        tracing::debug!(owner, "acquire");
        inner.backend.acquire(request).await
    }
}
