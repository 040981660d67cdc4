//! The life of a lease on the memory backend, with a few clients and tasks. The conformance suite has what every
//! backend must do; these tests are the first to run after a change in this crate.

mod support;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::memory::{MemoryBackend, MemoryStore};
use leasehold_core::{ErrorKind, HolderId, KeeperRuntime, LockClient, LockName, LossReason};
use support::eventually;

const MS: Duration = Duration::from_millis(1);

/// A lease with this ttl is renewed in time even if the machine pauses the keeper for a second.
const STEADY: Duration = Duration::from_secs(3);

/// Longer than any step of these tests takes.
const SOON: Duration = Duration::from_secs(20);

fn client(store: &MemoryStore) -> LockClient {
    LockClient::new(MemoryBackend::new(store))
}

#[tokio::test]
async fn acquire_release_and_again() {
    let client = client(&MemoryStore::default());
    let guard = client.lock("job").acquire().await.unwrap();
    assert!(guard.is_held());
    assert!(client.lock("job").try_acquire().await.unwrap().is_none());
    let first = guard.fencing_token();
    guard.release().await.unwrap();
    let guard = client.lock("job").try_acquire().await.unwrap().unwrap();
    assert!(guard.fencing_token() > first);
}

#[tokio::test]
async fn a_waiter_gets_it_when_the_guard_is_dropped() {
    let store = MemoryStore::default();
    let (one, two) = (client(&store), client(&store));
    let guard = one.lock("job").acquire().await.unwrap();
    let waiter = tokio::spawn(async move { two.lock("job").acquire().await });
    tokio::time::sleep(50 * MS).await;
    drop(guard);
    let guard = tokio::time::timeout(SOON, waiter).await.unwrap().unwrap().unwrap();
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_hundred_tasks_take_turns() {
    let client = client(&MemoryStore::default());
    let counter = Arc::new(std::sync::Mutex::new((0, 0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (client, counter) = (client.clone(), counter.clone());
        tasks.spawn(async move {
            let guard = client.lock("job").acquire().await.unwrap();
            let inside = {
                let mut counter = counter.lock().unwrap();
                counter.0 += 1;
                counter.0
            };
            assert_eq!(inside, 1);
            tokio::task::yield_now().await;
            {
                let mut counter = counter.lock().unwrap();
                counter.0 -= 1;
                counter.1 += 1;
            }
            guard.release().await.unwrap();
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(counter.lock().unwrap().1, 100);
    assert_eq!((client.stats().held, client.stats().waiting), (0, 0));
}

#[tokio::test]
async fn it_is_renewed_while_held_and_told_when_gone() {
    let store = MemoryStore::default();
    let client = client(&store);
    let guard = client.lock("job").ttl(STEADY).acquire().await.unwrap();
    eventually("it is renewed", || client.stats().renewed >= 2);
    assert!(guard.is_held());
    store.remove(guard.name());
    let loss = tokio::time::timeout(STEADY, guard.lost()).await.unwrap();
    assert_eq!(loss.reason, LossReason::Gone);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn a_fixed_lease_and_a_longest_hold_run_out() {
    let client = client(&MemoryStore::default());
    let guard = client.lock("fixed").ttl(150 * MS).without_renewal().acquire().await.unwrap();
    assert_eq!(guard.lost().await.reason, LossReason::Expired);
    let guard = client.lock("max").ttl(STEADY).max_hold(STEADY + 500 * MS).acquire().await.unwrap();
    assert_eq!(guard.lost().await.reason, LossReason::MaxHold);
}

#[tokio::test]
async fn a_shortest_hold_outlives_its_release() {
    let client = client(&MemoryStore::default());
    let lock = client.lock("min").min_hold(2000 * MS);
    lock.acquire().await.unwrap().release().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    tokio::time::sleep(2020 * MS).await;
    assert!(lock.try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn the_same_holder_shares_a_lease() {
    let client = client(&MemoryStore::default());
    let lock = client.lock("job").holder(HolderId::new());
    let (one, two) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
    assert_eq!(one.fencing_token(), two.fencing_token());
    one.release().await.unwrap();
    assert!(two.is_held());
    let other = lock.clone().ttl(Duration::from_secs(7)).acquire().await.unwrap_err();
    assert_eq!(other.kind(), ErrorKind::InvalidInput);
    two.release().await.unwrap();
    assert!(client.lock("job").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_wait_ends_in_time_and_leaves_nothing() {
    let store = MemoryStore::default();
    let (one, two) = (client(&store), client(&store));
    let _guard = one.lock("job").acquire().await.unwrap();
    let started = std::time::Instant::now();
    let error = two.lock("job").wait(100 * MS).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(started.elapsed() >= 100 * MS);
    let name = LockName::new("job").unwrap();
    eventually("its place is withdrawn", || store.inspect(&name).is_some_and(|seen| seen.waiters == Some(0)));
    assert!(store.inspect(&name).is_some_and(|seen| seen.is_held()));
}

#[tokio::test]
async fn shutdown_releases_and_tells() {
    let store = MemoryStore::default();
    let (one, two) = (client(&store), client(&store));
    let guard = one.lock("job").acquire().await.unwrap();
    one.shutdown().await.unwrap();
    assert_eq!(guard.lost().await.reason, LossReason::Shutdown);
    assert!(two.lock("job").try_acquire().await.unwrap().is_some());
    assert_eq!(one.lock("job").acquire().await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn it_works_on_another_executor_and_outside_a_runtime() {
    let store = MemoryStore::default();
    let client = client(&store);
    let guard = futures_executor::block_on(client.lock("job").acquire()).unwrap();
    drop(guard);
    let name = LockName::new("job").unwrap();
    eventually("the keeper releases it", || store.inspect(&name).is_some_and(|seen| !seen.is_held()));
    let guard = futures_executor::block_on(client.lock("job").wait(Duration::ZERO).acquire()).unwrap();
    futures_executor::block_on(guard.release()).unwrap();
}

#[tokio::test]
async fn an_operator_lists_and_breaks() {
    let store = MemoryStore::default();
    let (one, two) = (client(&store), client(&store));
    let guard = one.lock("team/b").ttl(SOON).acquire().await.unwrap();
    one.lock("team/a").acquire().await.unwrap().release().await.unwrap();
    let _other = one.lock("other").acquire().await.unwrap();
    let names =
        |listed: Vec<leasehold_core::admin::Listed>| listed.iter().map(|it| it.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(two.list("team/", 10).await.unwrap().locks), ["team/b", "team/a"]);
    assert_eq!(names(two.list("", 2).await.unwrap().locks), ["other", "team/b"]);
    assert_eq!(two.list("", 0).await.unwrap_err().kind(), ErrorKind::InvalidInput);

    let token = guard.fencing_token();
    let raised = two.break_lock("team/b", token).await.unwrap().unwrap();
    assert!(raised > token);
    assert_eq!(two.break_lock("team/b", token).await.unwrap(), None);
    assert!(two.lock("team/b").acquire().await.unwrap().fencing_token() > raised);
    assert_eq!(guard.lost().await.reason, LossReason::Gone);
}

/// A keeper on the runtime that its client was built on renews nothing once that runtime has shut down.
#[test]
fn holders_learn_that_the_runtime_of_their_keeper_has_shut_down() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let guard = runtime.block_on(async {
        let backend = MemoryBackend::new(&MemoryStore::default());
        let client = LockClient::builder(backend).keeper(KeeperRuntime::CurrentRuntime).build().unwrap();
        client.lock("job").acquire().await.unwrap()
    });
    assert!(guard.is_held());
    drop(runtime);
    assert!(!guard.is_held(), "nobody renews it");
}

/// Outside of tokio, calls run on the keeper's runtime. They must not wait for one that has shut down.
#[test]
fn calls_outside_a_runtime_end_when_the_runtime_of_their_keeper_has_shut_down() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (client, guard) = runtime.block_on(async {
        let backend = MemoryBackend::new(&MemoryStore::default());
        let client = LockClient::builder(backend).keeper(KeeperRuntime::CurrentRuntime).build().unwrap();
        let guard = client.lock("job").acquire().await.unwrap();
        (client, guard)
    });
    drop(runtime);
    let kinds = [
        futures_executor::block_on(client.lock("other").acquire()).unwrap_err().kind(),
        futures_executor::block_on(guard.release()).unwrap_err().kind(),
        futures_executor::block_on(client.list("", 10)).unwrap_err().kind(),
        futures_executor::block_on(client.shutdown()).unwrap_err().kind(),
    ];
    assert_eq!(kinds, [ErrorKind::Indeterminate; 4]);
}
