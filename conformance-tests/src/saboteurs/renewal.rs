//! Saboteurs with defects in renewals.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Confirmation, Event, OwnerToken, ReleaseOutcome, ReleaseRequest, RenewReply,
    RenewRequest,
};
use leasehold_core::{ErrorKind, LockName, Result};
use tokio::runtime::Handle;

use super::exclusion::refused;
use super::{Saboteur, plain, stateful};
use crate::faulty::lock;
use crate::hooks::{Hooks, Inner};

plain! {
    /// Returns `Renewed` without a request to the store.
    PretendsToRenew;
    /// Sends each renewal twice.
    RenewsTwice;
    /// Renews nothing.
    RefusesRenewals;
    /// Takes longer for a renewal than the bound allows.
    RenewsTooSlowly;
    /// Renews half of a batch and drops the rest.
    RenewsHalfABatch;
    /// Takes a round trip for each lease of a batch.
    RenewsOneAfterTheOther;
    /// Treats a missing reply as a successful one.
    TakesSilenceForAReply;
}

fn pretended(inner: &Inner, lease: &RenewRequest) -> RenewReply {
    RenewReply::Renewed(Confirmation { ttl: lease.ttl, sent: inner.now(), place: lease.place })
}

#[async_trait]
impl Hooks for PretendsToRenew {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        leases.iter().map(|lease| pretended(inner, lease)).enumerate().collect()
    }
}

/// Renews only the first lease of each name, and pretends to renew later ones.
#[derive(Default)]
pub struct RenewsTheFirstOnly {
    first: Mutex<HashMap<LockName, OwnerToken>>,
}

stateful! {
    RenewsTheFirstOnly;
}

#[async_trait]
impl Hooks for RenewsTheFirstOnly {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let mut replies = Vec::with_capacity(leases.len());
        for (index, lease) in leases.iter().enumerate() {
            let first = *lock(&self.first).entry(lease.claim.name().clone()).or_insert(*lease.claim.owner());
            let renewed = first == *lease.claim.owner();
            replies.push((index, if renewed { inner.renew_one(lease).await } else { pretended(inner, lease) }));
        }
        replies
    }
}

#[async_trait]
impl Hooks for RenewsTwice {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        inner.renew(leases).await;
        inner.renew(leases).await
    }
}

#[async_trait]
impl Hooks for RefusesRenewals {
    async fn renew(&self, _: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        (0..leases.len()).map(|index| (index, RenewReply::Unknown(refused(ErrorKind::Unavailable)))).collect()
    }
}

#[async_trait]
impl Hooks for RenewsTooSlowly {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let replies = inner.renew(leases).await;
        let longest = leases.iter().map(|lease| lease.ttl).max().unwrap_or_default();
        tokio::time::sleep(longest).await;
        replies
    }
}

#[async_trait]
impl Hooks for RenewsHalfABatch {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let half = inner.backend.capabilities().renew_batch / 2;
        inner.renew(&leases[..leases.len().min(half)]).await
    }
}

#[async_trait]
impl Hooks for RenewsOneAfterTheOther {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let mut replies = Vec::with_capacity(leases.len());
        for (index, lease) in leases.iter().enumerate() {
            replies.push((index, inner.renew_one(lease).await));
        }
        replies
    }
}

#[async_trait]
impl Hooks for TakesSilenceForAReply {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        match inner.backend.acquire(request).await {
            Err(_) => Ok(AcquireOutcome::Contended { retry_after: request.ttl / 4 }),
            reply => reply,
        }
    }

    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let shortest = leases.iter().map(|lease| lease.ttl).min().unwrap_or_default();
        let Ok(mut replies) = tokio::time::timeout(shortest / 8, inner.renew(leases)).await else {
            return PretendsToRenew.renew(inner, leases).await;
        };
        for (index, reply) in &mut replies {
            if let RenewReply::Unknown(_) = reply {
                *reply = pretended(inner, &leases[*index]);
            }
        }
        replies
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        Ok(inner.backend.release(request).await.unwrap_or(ReleaseOutcome::Released))
    }
}

/// Renews all leases of a client with each renewal, as if they shared a session.
#[derive(Default)]
pub struct RenewsAllOfTheClient {
    granted: Mutex<Vec<(usize, RenewRequest)>>,
}

stateful! {
    RenewsAllOfTheClient;
}

#[async_trait]
impl Hooks for RenewsAllOfTheClient {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let reply = inner.backend.acquire(request).await;
        if let Ok(AcquireOutcome::Granted(grant)) = &reply {
            let lease = RenewRequest::new(request.claim.clone(), grant.confirmation.place, request.ttl);
            lock(&self.granted).push((inner.nth, lease));
        }
        reply
    }

    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let of_client = |(nth, lease): &(usize, RenewRequest)| (*nth == inner.nth).then(|| lease.clone());
        let all: Vec<_> = lock(&self.granted).iter().filter_map(of_client).collect();
        inner.renew(&all).await;
        inner.renew(leases).await
    }
}

/// Continues to fail for a while after the first failure of a client.
#[derive(Default)]
pub struct StaysBroken {
    since: Mutex<HashMap<usize, Instant>>,
}

stateful! {
    StaysBroken;
}

/// Longer than any case waits for recovery, and shorter than the wait of its acquires.
const BROKEN_FOR: Duration = Duration::from_secs(12);

impl StaysBroken {
    fn is_broken(&self, client: usize) -> bool {
        lock(&self.since).get(&client).is_some_and(|since| since.elapsed() < BROKEN_FOR)
    }

    fn breaks(&self, client: usize) {
        lock(&self.since).entry(client).or_insert_with(Instant::now);
    }
}

#[async_trait]
impl Hooks for StaysBroken {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        if self.is_broken(inner.nth) {
            return Err(refused(ErrorKind::Unavailable));
        }
        let reply = inner.backend.acquire(request).await;
        if reply.is_err() {
            self.breaks(inner.nth);
        }
        reply
    }

    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        if self.is_broken(inner.nth) {
            return RefusesRenewals.renew(inner, leases).await;
        }
        let replies = inner.renew(leases).await;
        if replies.iter().any(|(_, reply)| matches!(reply, RenewReply::Unknown(_))) {
            self.breaks(inner.nth);
        }
        replies
    }
}

/// Renews every claim that it has seen, without requests, until the end of the case. A release does not stop it.
pub struct RenewsByItself {
    runtime: Handle,
}

impl Saboteur for RenewsByItself {
    fn new() -> Self {
        Self { runtime: Handle::current() }
    }
}

#[async_trait]
impl Hooks for RenewsByItself {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let reply = inner.backend.acquire(request).await;
        let place = match &reply {
            Ok(AcquireOutcome::Granted(grant)) => grant.confirmation.place,
            Ok(AcquireOutcome::Queued { confirmation, .. }) => confirmation.place,
            _ => return reply,
        };
        let (backend, ttl) = (inner.backend.clone(), request.ttl);
        let lease = RenewRequest::new(request.claim.clone(), place, ttl);
        self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(ttl / 4).await;
                crate::faulty::renew_collected(&*backend, std::slice::from_ref(&lease)).await;
            }
        });
        reply
    }
}

/// Renews on the runtime of the first acquire, which is the user's.
#[derive(Default)]
pub struct RenewsOnTheUsersRuntime {
    user: Mutex<Option<Handle>>,
}

stateful! {
    RenewsOnTheUsersRuntime;
}

#[async_trait]
impl Hooks for RenewsOnTheUsersRuntime {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        lock(&self.user).get_or_insert_with(Handle::current);
        inner.backend.acquire(request).await
    }

    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let user = lock(&self.user).clone();
        if let Some(user) = user {
            let _ = user.spawn(async {}).await;
        }
        inner.renew(leases).await
    }
}

/// Reports every lease as gone after a quarter of its ttl.
#[derive(Default)]
pub struct ReportsFalseLosses {
    cried: AtomicBool,
}

stateful! {
    ReportsFalseLosses;
}

#[async_trait]
impl Hooks for ReportsFalseLosses {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let reply = inner.backend.acquire(request).await;
        if let (Ok(AcquireOutcome::Granted(_)), Some(core), false) =
            (&reply, inner.core(), self.cried.swap(true, Ordering::SeqCst))
        {
            let (core, owner, ttl) = (core.clone(), *request.claim.owner(), request.ttl);
            core.keeper_runtime().clone().spawn(async move {
                tokio::time::sleep(ttl / 4).await;
                core.event(Event::Gone { owner });
            });
        }
        reply
    }
}

/// Has its connection on the runtime of the first acquire. The first renewal fails if that runtime is busy, and the
/// next one gets its own connection.
#[derive(Default)]
pub struct LosesARenewalWithTheUsersRuntime {
    user: Mutex<Option<Handle>>,
}

stateful! {
    LosesARenewalWithTheUsersRuntime;
}

#[async_trait]
impl Hooks for LosesARenewalWithTheUsersRuntime {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        lock(&self.user).get_or_insert_with(Handle::current);
        inner.backend.acquire(request).await
    }

    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let user = lock(&self.user).clone();
        if let Some(user) = user
            && tokio::time::timeout(Duration::from_millis(200), user.spawn(async {})).await.is_err()
        {
            *lock(&self.user) = None;
            return RefusesRenewals.renew(inner, leases).await;
        }
        inner.renew(leases).await
    }
}
