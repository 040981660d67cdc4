//! Saboteurs whose errors or logs are wrong.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::{AcquireOutcome, AcquireRequest, Claim, PlaceNumber, RenewReply, RenewRequest};
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

impl ConnectsInEachCall {
    /// Connects for a call of this claim.
    async fn connect(inner: &Inner, claim: &Claim, ttl: Duration) -> Result<()> {
        // A renewal in another place stands for a step of the log-in.
        let step = RenewRequest::new(claim.clone(), PlaceNumber::NONE, ttl);
        let connected = async {
            for _ in 0..LOG_IN_STEPS {
                inner.renew_one(&step).await;
            }
        };
        let connected = tokio::time::timeout(inner.backend.capabilities().call_bound, connected).await;
        connected.map_err(|_| Error::new(ErrorKind::Unavailable, "no connection in time"))
    }
}

#[async_trait]
impl Hooks for ConnectsInEachCall {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        Self::connect(inner, &request.claim, request.ttl).await?;
        inner.backend.acquire(request).await
    }

    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let Some(first) = leases.first() else { return Vec::new() };
        match Self::connect(inner, &first.claim, first.ttl).await {
            Ok(()) => inner.renew(leases).await,
            Err(error) => (0..leases.len()).map(|index| (index, RenewReply::Unknown(error.clone()))).collect(),
        }
    }
}
