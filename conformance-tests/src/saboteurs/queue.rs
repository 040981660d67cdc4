//! Saboteurs with defects in waiting.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Claim, Confirmation, CoreHandle, Delivery, Event, OwnerToken, ReleaseOutcome,
    ReleaseRequest, RenewReply, RenewRequest, WatchGuard, WatchNames,
};
use leasehold_core::{ErrorKind, FencingToken, LockName, Result};

use super::exclusion::refused;
use super::{plain, stateful};
use crate::faulty::lock;
use crate::hooks::{Hooks, Inner};

plain! {
    /// Pushes no events.
    PushesNothing;
    /// Supports watches, and never reports.
    WatchesNothing;
    /// Reports that a lock is held only after more than the bound of a call.
    SlowToRefuse;
    /// Returns an error that ends the wait if a lock is held or the server is unreachable.
    GivesUpEarly;
    /// Returns a transient error for a permanent one.
    NeverGivesUp;
    /// Returns an error that ends the wait if the server accepts no connection.
    GivesUpWhenFull;
    /// Loses the place of the last client at each renewal.
    LosesPlacesOfTheLast;
    /// Reports that a place is still in the queue if the server does not reply.
    PretendsToKeepPlaces;
}

#[async_trait]
impl Hooks for PushesNothing {
    fn event(&self, _: &Arc<Inner>, _: &CoreHandle, _: Event) {}
}

impl Hooks for WatchesNothing {
    fn watch_names<'a>(&'a self, _: &'a Inner) -> Option<&'a dyn WatchNames> {
        Some(self)
    }
}

impl WatchNames for WatchesNothing {
    fn watch(&self, _: &Claim) -> WatchGuard {
        WatchGuard::none()
    }
}

/// Loses the fifth push.
#[derive(Default)]
pub struct LosesOnePush {
    pushed: AtomicU64,
}

/// Reports for a while that a claim waits although it holds.
#[derive(Default)]
pub struct ReportsStalePlaces {
    granted: Mutex<HashMap<OwnerToken, Instant>>,
}

/// Moves the head of the queue to its end, once.
#[derive(Default)]
pub struct SkipsTheHead {
    seen: Mutex<HashMap<OwnerToken, Claim>>,
    skipped: AtomicU64,
}

/// Polls the lock for each claim that ever waited for it, at every release.
#[derive(Default)]
pub struct WakesEverybody {
    seen: Mutex<HashMap<LockName, Vec<RenewRequest>>>,
}

/// Grants the lock to the next waiter when a waiter gives up.
#[derive(Default)]
pub struct PassesOnItsPlace {
    waiting: Mutex<Vec<(CoreHandle, Claim, Confirmation)>>,
}

stateful! {
    LosesOnePush;
    PassesOnItsPlace;
    ReportsStalePlaces;
    SkipsTheHead;
    WakesEverybody;
}

#[async_trait]
impl Hooks for LosesOnePush {
    fn event(&self, _: &Arc<Inner>, core: &CoreHandle, event: Event) {
        if self.pushed.fetch_add(1, Ordering::SeqCst) != 4 {
            core.event(event);
        }
    }
}

#[async_trait]
impl Hooks for ReportsStalePlaces {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let mut replies = inner.renew(leases).await;
        for (index, reply) in &mut replies {
            let (RenewReply::Granted(grant), lease) = (&*reply, &leases[*index]) else { continue };
            let since = *lock(&self.granted).entry(*lease.claim.owner()).or_insert_with(Instant::now);
            if since.elapsed() < Duration::from_secs(3) {
                *reply = RenewReply::Waiting { confirmation: grant.confirmation, retry_after: lease.ttl };
            }
        }
        replies
    }
}

#[async_trait]
impl Hooks for SlowToRefuse {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let reply = inner.backend.acquire(request).await;
        if !matches!(reply, Ok(AcquireOutcome::Granted(_))) {
            tokio::time::sleep(inner.backend.capabilities().call_bound * 3).await;
        }
        reply
    }
}

#[async_trait]
impl Hooks for GivesUpEarly {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        match inner.backend.acquire(request).await {
            Ok(AcquireOutcome::Granted(grant)) => Ok(AcquireOutcome::Granted(grant)),
            _ => Err(refused(ErrorKind::Capacity)),
        }
    }
}

#[async_trait]
impl Hooks for NeverGivesUp {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        inner.backend.acquire(request).await.map_err(|error| error.with_kind(ErrorKind::Unavailable))
    }
}

#[async_trait]
impl Hooks for GivesUpWhenFull {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        inner.backend.acquire(request).await.map_err(|error| match error.kind() {
            ErrorKind::Capacity => refused(ErrorKind::Capacity),
            _ => error,
        })
    }
}

#[async_trait]
impl Hooks for LosesPlacesOfTheLast {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let mut replies = inner.renew(leases).await;
        for (index, reply) in &mut replies {
            if let (3, RenewReply::Waiting { .. }) = (inner.nth, &*reply) {
                let _ = inner
                    .backend
                    .release(&ReleaseRequest::new(leases[*index].claim.clone(), Delivery::Confirmed))
                    .await;
                *reply = RenewReply::Lost;
            }
        }
        replies
    }
}

#[async_trait]
impl Hooks for PretendsToKeepPlaces {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let mut replies = inner.renew(leases).await;
        for (index, reply) in &mut replies {
            if let RenewReply::Unknown(_) = reply {
                let RenewRequest { ttl, place, .. } = leases[*index];
                let confirmation = Confirmation { ttl, sent: inner.now(), place };
                *reply = RenewReply::Waiting { confirmation, retry_after: ttl };
            }
        }
        replies
    }
}

#[async_trait]
impl Hooks for PassesOnItsPlace {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let reply = inner.backend.acquire(request).await;
        if let (Ok(AcquireOutcome::Queued { confirmation, .. }), Some(core)) = (&reply, inner.core()) {
            lock(&self.waiting).push((core.clone(), request.claim.clone(), *confirmation));
        }
        reply
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let reply = inner.backend.release(request).await;
        let mut waiting = lock(&self.waiting);
        if let Some(own) = waiting.iter().position(|(_, claim, _)| claim.owner() == request.claim.owner()) {
            let (_, left, _) = waiting.remove(own);
            if let Some((core, claim, confirmation)) = waiting.iter().find(|(_, claim, _)| claim.name() == left.name())
            {
                let (owner, place) = (*claim.owner(), confirmation.place);
                let token = FencingToken::new(place.get());
                core.event(Event::Granted { owner, place, token, confirmation: Some(*confirmation) });
            }
        }
        reply
    }
}

#[async_trait]
impl Hooks for SkipsTheHead {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        lock(&self.seen).insert(*request.claim.owner(), request.claim.clone());
        inner.backend.acquire(request).await
    }

    fn event(&self, inner: &Arc<Inner>, core: &CoreHandle, event: Event) {
        let Event::Granted { owner, .. } = &event else { return core.event(event) };
        let claim = lock(&self.seen).get(owner).cloned();
        match claim {
            Some(claim) if self.skipped.fetch_add(1, Ordering::SeqCst) == 0 => {
                let (inner, core, owner) = (inner.clone(), core.clone(), *claim.owner());
                core.keeper_runtime().clone().spawn(async move {
                    let _ = inner.backend.release(&ReleaseRequest::new(claim, Delivery::Confirmed)).await;
                    core.event(Event::Gone { owner });
                });
            }
            _ => core.event(event),
        }
    }
}

#[async_trait]
impl Hooks for WakesEverybody {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let reply = inner.backend.acquire(request).await;
        if let Ok(AcquireOutcome::Queued { confirmation: Confirmation { place, .. }, .. }) = &reply {
            let lease = RenewRequest::new(request.claim.clone(), *place, request.ttl);
            lock(&self.seen).entry(request.claim.name().clone()).or_default().push(lease);
        }
        reply
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let reply = inner.backend.release(request).await;
        let waiting = lock(&self.seen).get(request.claim.name()).cloned().unwrap_or_default();
        for lease in &waiting {
            inner.renew_one(lease).await;
        }
        reply
    }
}
