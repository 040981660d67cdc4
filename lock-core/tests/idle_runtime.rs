//! Calls that are dropped on a runtime that is not driven any more, as behind a synchronous wrapper: the keeper ends
//! their claims, and then itself.

#![cfg(target_os = "linux")]

use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, CoreHandle, LockBackend, ReleaseOutcome, ReleaseRequest,
    RenewReplies, RenewRequest, WatchNames,
};
use leasehold_core::memory::{MemoryBackend, MemoryStore};
use leasehold_core::{LockClient, LockName, Result};

const MS: Duration = Duration::from_millis(1);
/// Nothing drives the runtime any more when this is over.
const DELAY: Duration = Duration::from_secs(60);

/// Replies to acquires late.
struct Slow(MemoryBackend);

#[async_trait]
impl LockBackend for Slow {
    fn attach(&self, core: CoreHandle) {
        self.0.attach(core);
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let answer = self.0.acquire(request).await;
        tokio::time::sleep(DELAY).await;
        answer
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

fn keeper_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("leasehold-keep")).count()
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(5), "{what}");
        std::thread::sleep(5 * MS);
    }
}

#[test]
fn an_orphan_ends_soon_and_so_does_the_keeper() {
    let (store, name) = (MemoryStore::default(), LockName::new("job").unwrap());
    let client = LockClient::new(Slow(MemoryBackend::new(&store)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let lock = client.lock("job");
    let dropped = runtime.block_on(async { tokio::time::timeout(10 * MS, lock.acquire()).await });
    assert!(dropped.is_err());
    let held = || store.inspect(&name).is_some_and(|seen| seen.is_held());
    assert!(held(), "the store has granted it");
    // Its ttl is 30 s.
    eventually("nobody took back what the dropped acquire was granted", || !held());
    assert_eq!(keeper_threads(), 1);
    drop((lock, client));
    eventually("the keeper waits for a runtime that is not polled", || keeper_threads() == 0);
    drop(runtime);
}
