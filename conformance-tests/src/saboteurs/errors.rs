//! Saboteurs whose errors or logs are wrong.

use async_trait::async_trait;
use leasehold_core::backend::{AcquireOutcome, AcquireRequest, PlaceNumber, RenewRequest};
use leasehold_core::{Error, ErrorKind, Result};

use super::plain;
use crate::hooks::{Hooks, Inner};

/// More steps than fit into a call on a slow path.
const LOG_IN_STEPS: usize = 7;

plain! {
    /// Returns errors that are sentences.
    WritesErrorsAsSentences;
    /// Writes owner tokens into the log.
    LogsTheOwner;
    /// Starts to connect again with each call.
    ConnectsInEachCall;
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

#[async_trait]
impl Hooks for ConnectsInEachCall {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        // The renewal of a lease that is not there yet stands for a step of the log-in.
        let step = RenewRequest::new(request.claim.clone(), PlaceNumber::NONE, request.ttl);
        let connected = async {
            for _ in 0..LOG_IN_STEPS {
                inner.renew_one(&step).await;
            }
        };
        match tokio::time::timeout(inner.backend.capabilities().call_bound, connected).await {
            Ok(()) => inner.backend.acquire(request).await,
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "no connection in time")),
        }
    }
}
