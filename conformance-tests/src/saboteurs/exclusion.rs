//! Saboteurs that break exclusion.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Claim, Confirmation, Delivery, Grant, OnContention, OwnerToken, PlaceNumber,
    ReleaseOutcome, ReleaseRequest, RenewReply, RenewRequest,
};
use leasehold_core::{Error, ErrorKind, FencingToken, LockName, Result};

use super::{plain, stateful};
use crate::faulty::lock;
use crate::hooks::{Hooks, Inner};

/// A grant that the store did not give.
pub(super) fn made_up(inner: &Inner, ttl: Duration) -> AcquireOutcome {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    let token = FencingToken::new(NEXT.fetch_add(1, Ordering::Relaxed));
    AcquireOutcome::Granted(Grant::new(token, Confirmation { ttl, sent: inner.now(), place: PlaceNumber::NONE }))
}

/// Grants a claim that the store did not grant, and releases its place so that it does not block others.
async fn grant_all_the_same(inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
    inner.backend.release(&ReleaseRequest::new(request.claim.clone(), Delivery::Confirmed)).await?;
    Ok(made_up(inner, request.ttl))
}

plain! {
    /// Grants a held lock.
    GrantsEverybody;
    /// Reads whether a lock is free, and takes it by a second request.
    ChecksThenGrants;
    /// Uses one lock for all names.
    OneLockForAll;
    /// Distinguishes names by fifty hashes.
    CollidingNames;
    /// Ignores the case of names.
    FoldsCase;
    /// Stores locks under a form of their names that is not the frozen one.
    RenamesLocks;
    /// Uses one owner for all claims of a client, like the lock of a session.
    OneOwnerPerClient;
    /// Gives a place to acquires without one.
    QueuesEverybody;
}

#[async_trait]
impl Hooks for GrantsEverybody {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        match inner.backend.acquire(request).await? {
            AcquireOutcome::Granted(grant) => Ok(AcquireOutcome::Granted(grant)),
            _ => grant_all_the_same(inner, request).await,
        }
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        inner.backend.release(request).await.map(|_| ReleaseOutcome::Released)
    }
}

/// Between the two requests of [`ChecksThenGrants`].
const ROUND_TRIP: Duration = Duration::from_millis(100);

#[async_trait]
impl Hooks for ChecksThenGrants {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let found = inner.admin().inspect(request.claim.name()).await?;
        if found.is_some_and(|found| found.holder().is_some()) {
            return inner.backend.acquire(request).await;
        }
        tokio::time::sleep(ROUND_TRIP).await;
        match inner.backend.acquire(request).await? {
            AcquireOutcome::Granted(grant) => Ok(AcquireOutcome::Granted(grant)),
            _ => grant_all_the_same(inner, request).await,
        }
    }
}

/// Grants every tenth claim that had to wait.
#[derive(Default)]
pub struct GrantsEveryTenth {
    refused: AtomicU64,
}

stateful! {
    GrantsEveryTenth;
}

#[async_trait]
impl Hooks for GrantsEveryTenth {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        match inner.backend.acquire(request).await? {
            AcquireOutcome::Granted(grant) => Ok(AcquireOutcome::Granted(grant)),
            _ if self.refused.fetch_add(1, Ordering::Relaxed) % 10 == 9 => grant_all_the_same(inner, request).await,
            other => Ok(other),
        }
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        inner.backend.release(request).await.map(|_| ReleaseOutcome::Released)
    }
}

/// A backend that sends claims under another name or owner.
trait Renames: Send + Sync + 'static {
    fn renamed(&self, inner: &Inner, claim: &Claim) -> Claim;
}

macro_rules! renaming {
    ($($name:ident)*) => {
        $(#[async_trait]
        impl Hooks for $name {
            async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
                inner.backend.acquire(&request.by(self.renamed(inner, &request.claim))).await
            }

            async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
                let mut leases = leases.to_vec();
                for lease in &mut leases {
                    lease.claim = self.renamed(inner, &lease.claim);
                }
                inner.renew(&leases).await
            }

            async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
                inner.backend.release(&request.by(self.renamed(inner, &request.claim))).await
            }
        })*
    };
}

renaming! { OneLockForAll CollidingNames FoldsCase RenamesLocks OneOwnerPerClient }

fn named(claim: &Claim, name: String) -> Claim {
    claim.renamed(LockName::new(name).expect("not empty, and no longer than it was"))
}

impl Renames for OneLockForAll {
    fn renamed(&self, _: &Inner, claim: &Claim) -> Claim {
        named(claim, "the lock".to_owned())
    }
}

impl Renames for CollidingNames {
    fn renamed(&self, _: &Inner, claim: &Claim) -> Claim {
        let mut hasher = DefaultHasher::new();
        claim.name().hash(&mut hasher);
        named(claim, format!("hash {}", hasher.finish() % 50))
    }
}

impl Renames for FoldsCase {
    fn renamed(&self, _: &Inner, claim: &Claim) -> Claim {
        named(claim, claim.name().as_str().to_lowercase())
    }
}

impl Renames for RenamesLocks {
    fn renamed(&self, _: &Inner, claim: &Claim) -> Claim {
        // The length does not change, so the longest name stays valid.
        let turned = claim.name().as_str().chars().map(|c| {
            if c == 'x' {
                'z'
            } else if c == 'j' {
                'x'
            } else {
                c
            }
        });
        named(claim, turned.collect())
    }
}

impl Renames for OneOwnerPerClient {
    fn renamed(&self, inner: &Inner, claim: &Claim) -> Claim {
        let owner = OwnerToken::from_bytes([inner.nth as u8 + 1; 16]);
        Claim::new(claim.name().clone(), owner, claim.holder().clone().into())
    }
}

#[async_trait]
impl Hooks for QueuesEverybody {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        inner.backend.acquire(&request.clone().on_contention(OnContention::Queue)).await
    }
}

/// Returns the current holder's token as a grant to a claim whose lease has ended.
#[derive(Default)]
pub struct ReturnsTheCurrentToken {
    last: Mutex<HashMap<LockName, (FencingToken, Vec<OwnerToken>)>>,
}

stateful! {
    ReturnsTheCurrentToken;
}

#[async_trait]
impl Hooks for ReturnsTheCurrentToken {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let reply = inner.backend.acquire(request).await?;
        let mut last = lock(&self.last);
        let (token, owners) = last.entry(request.claim.name().clone()).or_insert((FencingToken::new(0), Vec::new()));
        Ok(match reply {
            AcquireOutcome::Granted(grant) => {
                *token = grant.token;
                owners.push(*request.claim.owner());
                AcquireOutcome::Granted(grant)
            }
            _ if owners.contains(request.claim.owner()) => AcquireOutcome::Granted(Grant::new(
                *token,
                Confirmation { ttl: request.ttl, sent: inner.now(), place: PlaceNumber::NONE },
            )),
            other => other,
        })
    }
}

plain! {
    /// Grants when the server could not be reached or did not reply.
    GrantsOnError;
}

#[async_trait]
impl Hooks for GrantsOnError {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        match inner.backend.acquire(request).await {
            Err(error) if error.kind() != ErrorKind::InvalidInput => Ok(made_up(inner, request.ttl)),
            reply => reply,
        }
    }
}

/// An error that a saboteur returns.
pub(super) fn refused(kind: ErrorKind) -> Error {
    Error::new(kind, "injected error")
}
