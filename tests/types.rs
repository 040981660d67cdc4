//! Checks at compile time what the types promise to a program that moves them between tasks and threads.

use leasehold::admin::{Check, Listed, Listing};
use leasehold::backend::{Capabilities, Claim, CoreHandle, Event, LockBackend, RenewReplies, Stamp, SystemClock};
use leasehold::memory::{MemoryBackend, MemoryStore};
use leasehold::{
    Error, FencingToken, HolderId, HolderInfo, KeeperRuntime, Lock, LockClient, LockClientBuilder, LockGuard, LockInfo,
    LockName, Loss, Stats,
};

const fn moves<T: Send + Sync + Unpin + 'static>() {}
const fn is_cheap<T: Send + Sync + Clone + 'static>() {}
fn is_sent<T: Send>(_: &T) {}

/// Every type that a program stores can be stored in a task on any thread.
const _: () = {
    moves::<LockClient>();
    moves::<LockClientBuilder>();
    moves::<Lock>();
    moves::<LockGuard>();
    moves::<KeeperRuntime>();
    moves::<LockName>();
    moves::<LockInfo>();
    moves::<HolderInfo>();
    moves::<FencingToken>();
    moves::<HolderId>();
    moves::<Loss>();
    moves::<Stats>();
    moves::<Error>();
    moves::<Listing>();
    moves::<Listed>();
    moves::<Check>();
    moves::<Capabilities>();
    moves::<Claim>();
    moves::<CoreHandle>();
    moves::<RenewReplies>();
    moves::<Event>();
    moves::<Stamp>();
    moves::<SystemClock>();
    moves::<MemoryBackend>();
    moves::<MemoryStore>();
    moves::<Box<dyn LockBackend>>();
    is_cheap::<LockClient>();
    is_cheap::<Lock>();
    is_cheap::<Claim>();
    is_cheap::<CoreHandle>();
    is_cheap::<Error>();
};

#[cfg(feature = "etcd")]
const _: () = moves::<leasehold::etcd::EtcdBackend>();
#[cfg(feature = "zk")]
const _: () = moves::<leasehold::zk::ZkBackend>();

#[cfg(feature = "mysql")]
const _: () = moves::<leasehold::mysql::MySqlBackend>();

#[cfg(feature = "redis")]
const _: () = moves::<leasehold::redis::RedisBackend>();
#[cfg(feature = "redis")]
const _: () = moves::<leasehold::redis::QuorumBackend>();

#[cfg(feature = "sqlite")]
const _: () = moves::<leasehold::sqlite::SqliteBackend>();

/// Futures that a program spawns.
#[tokio::test]
async fn futures_are_sent_between_threads() {
    is_sent(&leasehold::connect("memory://"));
    is_sent(&leasehold::connect_builder("memory://"));
    let client = leasehold::connect("memory://").await.unwrap();
    let lock = client.lock("types");
    is_sent(&lock.acquire());
    is_sent(&lock.try_acquire());
    is_sent(&lock.run(async |_| ()));
    is_sent(&client.inspect("types"));
    is_sent(&client.list("", 1));
    is_sent(&client.break_lock("types", FencingToken::new(1)));
    is_sent(&client.examine());
    is_sent(&client.shutdown());
    let guard = lock.acquire().await.unwrap();
    is_sent(&guard.lost());
    is_sent(&guard.release());
}
