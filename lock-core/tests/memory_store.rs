//! What the memory store counts and shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::backend::{Clock, Stamp};
use leasehold_core::memory::{MemoryBackend, MemoryStore};
use leasehold_core::{FencingToken, KeeperRuntime, LockClient, LockName};

/// A clock that a test sets.
#[derive(Debug, Default)]
struct Set(AtomicU64);

impl Clock for Set {
    fn now(&self) -> Stamp {
        Stamp::from_start(Duration::from_millis(self.0.load(Ordering::SeqCst)))
    }

    fn sleep_time(&self, _: Stamp) -> Duration {
        Duration::from_secs(3600)
    }
}

#[tokio::test(start_paused = true)]
async fn everything_is_counted_once() {
    let clock = Arc::new(Set::default());
    let store = MemoryStore::new(clock.clone());
    let client = || {
        let builder = LockClient::builder(MemoryBackend::new(&store)).clock(clock.clone());
        builder.keeper(KeeperRuntime::CurrentRuntime).build().unwrap()
    };
    let (ann, bob) = (client(), client());
    let held = [ann.lock("a").acquire().await.unwrap(), ann.lock("b").acquire().await.unwrap()];
    let waits = ["a", "b"].map(|name| {
        let lock = bob.lock(name);
        tokio::spawn(async move { lock.acquire().await })
    });
    tokio::time::sleep(Duration::from_millis(1)).await;
    ann.lock("c").acquire().await.unwrap().release().await.unwrap();
    let (resource_counts, counts) = (store.resource_counts(), store.counts());
    assert_eq!(
        (resource_counts.records, resource_counts.leases, resource_counts.places, resource_counts.tombstones),
        (3, 2, 2, 0)
    );
    assert_eq!((counts.acquires, counts.renew_calls, counts.renewals, counts.releases), (5, 0, 0, 1));

    let name = |name: &str| LockName::new(name).unwrap();
    let seen = store.inspect(&name("a")).unwrap();
    assert_eq!((seen.last_token, seen.waiters), (Some(FencingToken::new(1)), Some(1)));
    assert_eq!(seen.holders.len(), 1);
    assert!(store.inspect(&name("never")).is_none());

    // Everything ends exactly at its deadline.
    clock.0.store(10_000, Ordering::SeqCst);
    let resource_counts = store.resource_counts();
    assert_eq!((resource_counts.leases, resource_counts.places), (2, 0));
    clock.0.store(30_000, Ordering::SeqCst);
    assert_eq!(store.resource_counts().leases, 0);
    waits.iter().for_each(|wait| wait.abort());
    drop(held);
}
