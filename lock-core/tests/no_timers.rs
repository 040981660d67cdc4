//! A tokio runtime without timers: every call is refused with an error, and nothing is sent or left behind.

use std::time::{Duration, Instant};

use leasehold_core::memory::{MemoryBackend, MemoryStore};
use leasehold_core::{ErrorKind, KeeperRuntime, LockClient, LockName};
use tokio::runtime::{Builder, Runtime};

const MS: Duration = Duration::from_millis(1);

fn without_timers() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

fn client(store: &MemoryStore) -> LockClient {
    LockClient::new(MemoryBackend::new(store))
}

#[test]
fn calls_are_refused_and_nothing_is_sent() {
    let (store, name) = (MemoryStore::default(), LockName::new("job").unwrap());
    let client = client(&store);
    let lock = client.lock("job");
    without_timers().block_on(async {
        let error = lock.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("enable_time"), "{error}");
        assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(client.inspect("job").await.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(client.shutdown().await.unwrap_err().kind(), ErrorKind::InvalidInput);
    });
    assert_eq!((client.stats().waiting, store.inspect(&name).is_none()), (0, true));
    // The client still works.
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { lock.acquire().await.unwrap().release().await.unwrap() });
}

/// A refused release continues in the background, as that of a dropped guard.
#[test]
fn a_release_that_is_refused_goes_on_in_the_background() {
    let (store, name) = (MemoryStore::default(), LockName::new("job").unwrap());
    let client = client(&store);
    let guard = futures_executor::block_on(client.lock("job").acquire()).unwrap();
    let released = without_timers().block_on(guard.release());
    assert_eq!(released.unwrap_err().kind(), ErrorKind::InvalidInput);
    let begun = Instant::now();
    while store.inspect(&name).is_some_and(|seen| seen.is_held()) {
        assert!(begun.elapsed() < Duration::from_secs(5), "it is still held");
        std::thread::sleep(5 * MS);
    }
}

/// The keeper cannot run without timers.
#[test]
fn a_keeper_is_refused() {
    without_timers().block_on(async {
        let builder = LockClient::builder(MemoryBackend::new(&MemoryStore::default()));
        let built = builder.keeper(KeeperRuntime::CurrentRuntime).build();
        assert_eq!(built.map(drop).unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}
