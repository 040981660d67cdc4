//! What a lock costs: allocations of the caller, and calls to the store when all waiters send a request at once.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, CoreHandle, Event, LockBackend, ReleaseOutcome,
    ReleaseRequest, RenewReplies, RenewRequest, WatchNames,
};
use leasehold_core::memory::{MemoryBackend, MemoryStore};
use leasehold_core::{KeeperRuntime, LockClient, Result};

/// An uncontended acquire and its release make a claim, a lease, the channel of the outcome and the futures of the two
/// calls, and nothing for a schedule, a timer or a task of their own.
#[test]
fn an_uncontended_pair_allocates_little() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = MemoryStore::default();
    let client = runtime.block_on(async {
        LockClient::builder(MemoryBackend::new(&store)).keeper(KeeperRuntime::CurrentRuntime).build().unwrap()
    });
    let pairs = |count: u32| {
        runtime.block_on(async {
            for _ in 0..count {
                client.lock("job").acquire().await.unwrap().release().await.unwrap();
            }
        });
    };
    pairs(100);
    let counted = allocation_counter::measure(|| pairs(100));
    let (calls, bytes) = (counted.count_total / 100, counted.bytes_total / 100);
    assert!(calls <= 12 && bytes <= 1536, "{calls} allocations of {bytes} bytes in all");
}

/// The memory backend, with the handle that it was attached to.
struct Resyncing(MemoryBackend, Arc<OnceLock<CoreHandle>>);

#[async_trait::async_trait]
impl LockBackend for Resyncing {
    fn attach(&self, core: CoreHandle) {
        self.1.set(core.clone()).ok();
        self.0.attach(core);
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        self.0.acquire(request).await
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        self.0.renew(requests, replies).await;
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        self.0.release(request).await
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        self.0.admin()
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        self.0.watch_names()
    }
}

/// After a reconnect, every waiter renews its place. They do so in batches.
#[tokio::test]
async fn a_thousand_waiters_ask_in_batches() {
    const WAITERS: u64 = 1000;
    let store = MemoryStore::default();
    let holder = LockClient::new(MemoryBackend::new(&store));
    let core = Arc::new(OnceLock::new());
    let client = LockClient::new(Resyncing(MemoryBackend::new(&store), core.clone()));
    let mut waiting = tokio::task::JoinSet::new();
    let mut guards = Vec::new();
    for index in 0..WAITERS {
        guards.push(holder.lock(format!("job {index}")).acquire().await.unwrap());
        let client = client.clone();
        waiting.spawn(async move { client.lock(format!("job {index}")).acquire().await.map(drop) });
    }
    while store.resource_counts().places < WAITERS {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let before = store.counts();
    core.get().unwrap().event(Event::Resync);
    while store.counts().renewals < before.renewals + WAITERS {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let calls = store.counts().renew_calls - before.renew_calls;
    let batch = client.capabilities().renew_batch as u64;
    assert!(calls <= WAITERS / batch + 1, "{calls} calls for {WAITERS} waiters");
    drop(guards);
    while let Some(waited) = waiting.join_next().await {
        waited.unwrap().unwrap();
    }
}
