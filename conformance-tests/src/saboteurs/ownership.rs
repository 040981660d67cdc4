//! Saboteurs that ignore ownership.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Claim, CoreHandle, Delivery, Event, OwnerToken, ReleaseOutcome, ReleaseRequest,
    RenewReply, RenewRequest,
};
use leasehold_core::{LockName, Result};

use super::{Saboteur, plain, stateful};
use crate::faulty::lock;
use crate::hooks::{Hooks, Inner};

/// The last claim that was granted each lock. It learns of grants from replies and from events, because a late reply
/// has no receiver.
#[derive(Default)]
struct Holders {
    by_name: Mutex<HashMap<LockName, Claim>>,
    requested: Mutex<HashMap<OwnerToken, Claim>>,
}

impl Holders {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        lock(&self.requested).insert(*request.claim.owner(), request.claim.clone());
        let reply = inner.backend.acquire(request).await;
        if let Ok(AcquireOutcome::Granted(_)) = reply {
            self.holds(&request.claim);
        }
        reply
    }

    fn event(&self, core: &CoreHandle, event: Event) {
        if let Event::Granted { owner, .. } = &event {
            let claim = lock(&self.requested).get(owner).cloned();
            claim.iter().for_each(|claim| self.holds(claim));
        }
        core.event(event);
    }

    fn holds(&self, claim: &Claim) {
        lock(&self.by_name).insert(claim.name().clone(), claim.clone());
    }

    /// The claim that holds the lock of a claim.
    fn of(&self, claim: &Claim) -> Claim {
        lock(&self.by_name).get(claim.name()).unwrap_or(claim).clone()
    }
}

/// Releases the current holder.
#[derive(Default)]
pub struct ReleasesByName(Holders);

/// Renews the current holder.
#[derive(Default)]
pub struct RenewsByName(Holders);

stateful! {
    ReleasesByName;
    RenewsByName;
}

#[async_trait]
impl Hooks for ReleasesByName {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        self.0.acquire(inner, request).await
    }

    fn event(&self, _inner: &Arc<Inner>, core: &CoreHandle, event: Event) {
        self.0.event(core, event);
    }

    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let replies = inner.renew(leases).await;
        for (index, reply) in &replies {
            if let RenewReply::Granted(_) | RenewReply::Renewed(_) = reply {
                self.0.holds(&leases[*index].claim);
            }
        }
        replies
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        inner.backend.release(&request.by(self.0.of(&request.claim))).await
    }
}

#[async_trait]
impl Hooks for RenewsByName {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        self.0.acquire(inner, request).await
    }

    fn event(&self, _inner: &Arc<Inner>, core: &CoreHandle, event: Event) {
        self.0.event(core, event);
    }

    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let mut leases = leases.to_vec();
        for lease in &mut leases {
            lease.claim = self.0.of(&lease.claim);
        }
        inner.renew(&leases).await
    }
}

plain! {
    /// Acquires a lock again whose renewal returns `Lost`.
    RenewalRevives;
    /// Always returns `Released`.
    AlwaysReleased;
}

/// [`RenewalRevives`] in the server, for renewals that arrive late.
pub struct RenewalRevivesAtServer;

impl Saboteur for RenewalRevivesAtServer {
    fn new() -> Self {
        Self
    }

    const AT_SERVER: bool = true;
}

async fn revive(inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
    let mut replies = inner.renew(leases).await;
    for (index, reply) in &mut replies {
        let lease = &leases[*index];
        if let RenewReply::Lost = reply
            && let Ok(AcquireOutcome::Granted(grant)) =
                inner.backend.acquire(&AcquireRequest::new(lease.claim.clone(), lease.ttl)).await
        {
            *reply = RenewReply::Renewed(grant.confirmation);
        }
    }
    replies
}

#[async_trait]
impl Hooks for RenewalRevives {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        revive(inner, leases).await
    }
}

#[async_trait]
impl Hooks for RenewalRevivesAtServer {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        revive(inner, leases).await
    }

    /// Does not withdraw claims, because a withdrawn claim could not be revived.
    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        inner.backend.release(&ReleaseRequest::new(request.claim.clone(), Delivery::Confirmed)).await
    }
}

#[async_trait]
impl Hooks for AlwaysReleased {
    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        inner.backend.release(request).await.map(|_| ReleaseOutcome::Released)
    }
}

/// Treats each request of a claim as a new one: it ends the lease or place of the claim and starts again.
pub struct NewGrantEachTime;

impl Saboteur for NewGrantEachTime {
    fn new() -> Self {
        Self
    }

    const AT_SERVER: bool = true;
}

#[async_trait]
impl Hooks for NewGrantEachTime {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        inner.backend.release(&ReleaseRequest::new(request.claim.clone(), Delivery::Confirmed)).await?;
        inner.backend.acquire(request).await
    }
}
