//! Saboteurs that leak resources.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Claim, Delivery, LockBackend, OwnerToken, ReleaseOutcome, ReleaseRequest,
};
use leasehold_core::{LockName, Result};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::{Saboteur, plain, stateful};
use crate::faulty::lock;
use crate::hooks::{Hooks, Inner};

/// Leaves an extra lease at the store with every fifth acquire.
#[derive(Default)]
pub struct LeavesLeases {
    acquired: AtomicU64,
}

/// Keeps every backend for ever.
#[derive(Default)]
pub struct KeepsBackends {
    kept: Mutex<Vec<Arc<dyn LockBackend>>>,
}

stateful! {
    LeavesLeases;
    KeepsBackends;
}

plain! {
    /// Leaves a task on the user's runtime with every acquire.
    LeavesTasks;
}

fn stranger(inner: &Inner, like: &Claim, number: u64) -> Claim {
    let name = LockName::new(format!("left behind {} {number}", inner.nth)).expect("a name");
    let mut owner = [0xEE; 16];
    owner[..8].copy_from_slice(&number.to_be_bytes());
    Claim::new(name, OwnerToken::from_bytes(owner), like.holder().clone().into())
}

#[async_trait]
impl Hooks for LeavesLeases {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let number = self.acquired.fetch_add(1, Ordering::Relaxed);
        if number % 5 == 4 {
            let stranger = stranger(inner, &request.claim, number);
            inner.backend.acquire(&AcquireRequest::new(stranger, Duration::from_secs(60))).await?;
        }
        inner.backend.acquire(request).await
    }
}

#[async_trait]
impl Hooks for KeepsBackends {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        lock(&self.kept).push(inner.backend.clone());
        inner.backend.acquire(request).await
    }
}

#[async_trait]
impl Hooks for LeavesTasks {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        tokio::spawn(tokio::time::sleep(Duration::from_secs(20)));
        inner.backend.acquire(request).await
    }
}

/// Sends a request every few milliseconds that no caller needs.
pub struct SendsStrayRequests {
    runtime: Handle,
}

impl Saboteur for SendsStrayRequests {
    fn new() -> Self {
        Self { runtime: Handle::current() }
    }
}

#[async_trait]
impl Hooks for SendsStrayRequests {
    fn attached(&self, inner: &Arc<Inner>) {
        let inner = Arc::downgrade(inner);
        self.runtime.spawn(async move {
            let holder = Arc::new(leasehold_core::HolderInfo::of_this_process("").expect("no label"));
            let name = LockName::new("chatter").expect("a name");
            let request =
                ReleaseRequest::new(Claim::new(name, OwnerToken::from_bytes([0xCC; 16]), holder), Delivery::Confirmed);
            while let Some(inner) = inner.upgrade() {
                let _ = inner.backend.release(&request).await;
                drop(inner);
                tokio::time::sleep(Duration::from_millis(40)).await;
            }
        });
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        inner.backend.release(request).await
    }
}

/// Has permits for a hundred concurrent calls, and loses one with each dropped acquire.
pub struct LeaksPermits {
    connections: Semaphore,
}

impl Saboteur for LeaksPermits {
    fn new() -> Self {
        Self { connections: Semaphore::new(100) }
    }
}

#[async_trait]
impl Hooks for LeaksPermits {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        self.connections.acquire().await.expect("it is never closed").forget();
        let reply = inner.backend.acquire(request).await;
        self.connections.add_permits(1);
        reply
    }
}

/// Treats an old lease as the record of a free lock, and removes it with the next acquire of any lock.
#[derive(Default)]
pub struct SweepsHeldLeases {
    granted: Mutex<HashMap<OwnerToken, (Claim, Instant)>>,
}

stateful! {
    SweepsHeldLeases;
}

/// The retention that the case requests.
const RETENTION: Duration = Duration::from_secs(1);

#[async_trait]
impl Hooks for SweepsHeldLeases {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let old: Vec<_> = lock(&self.granted)
            .extract_if(|_, (_, since)| since.elapsed() > RETENTION)
            .map(|(_, (claim, _))| claim)
            .collect();
        for claim in old {
            inner.backend.release(&ReleaseRequest::new(claim, Delivery::Confirmed)).await?;
        }
        let reply = inner.backend.acquire(request).await;
        if let Ok(AcquireOutcome::Granted(_)) = &reply {
            lock(&self.granted).insert(*request.claim.owner(), (request.claim.clone(), Instant::now()));
        }
        reply
    }
}

/// Lists the free locks, and removes them a moment later without checking whether they are held by then.
#[derive(Default)]
pub struct SweepsByAnOldList {
    free: Mutex<HashMap<LockName, Instant>>,
    held: Mutex<HashMap<LockName, Claim>>,
}

impl Saboteur for SweepsByAnOldList {
    fn new() -> Self {
        Self::default()
    }

    fn claims_retention(&self) -> bool {
        true
    }
}

#[async_trait]
impl Hooks for SweepsByAnOldList {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let old: Vec<_> = {
            let mut free = lock(&self.free);
            free.extract_if(|_, since| since.elapsed() > RETENTION).map(|(name, _)| name).collect()
        };
        tokio::time::sleep(Duration::from_millis(1)).await;
        for name in old {
            let held = lock(&self.held).remove(&name);
            if let Some(claim) = held {
                inner.backend.release(&ReleaseRequest::new(claim, Delivery::Confirmed)).await?;
            }
        }
        let reply = inner.backend.acquire(request).await;
        if let Ok(AcquireOutcome::Granted(_)) = &reply {
            lock(&self.held).insert(request.claim.name().clone(), request.claim.clone());
            lock(&self.free).remove(request.claim.name());
        }
        reply
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        lock(&self.held).remove(request.claim.name());
        lock(&self.free).insert(request.claim.name().clone(), Instant::now());
        inner.backend.release(request).await
    }
}
