//! What Leasehold is compared with. Each peer has one connection of its own to the same server.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold_core::{KeeperRuntime, LockClient};
use leasehold_redis::RedisBackend;
use redis::Script;
use redis::aio::MultiplexedConnection;

use crate::recorded::{self, Call};

const TTL: Duration = Duration::from_secs(30);

/// A client of Leasehold with its defaults.
pub(crate) async fn client(url: &str, keeper: KeeperRuntime) -> Result<LockClient> {
    Ok(LockClient::builder(RedisBackend::connect(url).await?).keeper(keeper).build()?)
}

/// A bare connection.
pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection> {
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection().await?)
}

/// One way to acquire and release a lock.
pub(crate) enum Peer {
    Leasehold(LockClient),
    /// The same two scripts, called on a bare connection, without a client, a keeper and a guard.
    SameScripts(SameScripts),
    /// `SET NX PX` and a compare-and-delete: no fencing, no queue, no renewal, no withdraw.
    SmallestPair(SmallestPair),
    Rslock(rslock::LockManager),
    AsyncRedisLock(Box<async_redis_lock::Locker>, async_redis_lock::Options),
}

impl Peer {
    /// All peers, connected through `url`. Leasehold is the first. `server` is the address of the server itself.
    pub(crate) async fn all(url: &str, server: SocketAddr) -> Result<Vec<Self>> {
        let client = client(url, KeeperRuntime::OwnThread).await?;
        let [acquire, release] = recorded::pair(&client, server).await?;
        let locker = async_redis_lock::Locker::from_redis_url(url).await?;
        Ok(vec![
            Self::Leasehold(client),
            Self::SameScripts(SameScripts { connection: connect(url).await?, acquire, release }),
            Self::SmallestPair(SmallestPair::new(connect(url).await?).await?),
            Self::Rslock(rslock::LockManager::new(vec![url])),
            Self::AsyncRedisLock(Box::new(locker), async_redis_lock::Options::new().ttl(TTL)),
        ])
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Leasehold(_) => "leasehold",
            Self::SameScripts(_) => "the same scripts on a bare connection",
            Self::SmallestPair(_) => "the smallest safe pair",
            Self::Rslock(_) => "rslock",
            Self::AsyncRedisLock(..) => "async-redis-lock",
        }
    }

    /// Whether it is another lock library, and not one of the two pairs that this benchmark defines as the floor.
    pub(crate) fn is_library(&self) -> bool {
        matches!(self, Self::Rslock(_) | Self::AsyncRedisLock(..))
    }

    /// The goal of Leasehold compared with this peer.
    pub(crate) fn goal(&self, tasks: usize) -> Option<f64> {
        matches!((self, tasks), (Self::SameScripts(_), 1)).then_some(0.9)
    }

    /// Acquires and releases a lock for which no other client waits.
    pub(crate) async fn pair(&self, name: &str) -> Result<()> {
        match self {
            Self::Leasehold(client) => client.lock(name).ttl(TTL).acquire().await?.release().await?,
            Self::SameScripts(scripts) => scripts.pair(name).await?,
            Self::SmallestPair(pair) => pair.pair(name).await?,
            Self::Rslock(manager) => manager.acquire(name, TTL).await?.release().await,
            Self::AsyncRedisLock(locker, options) => {
                locker.acquire_with_options(options, name).await?.release().await?;
            }
        }
        Ok(())
    }
}

pub(crate) struct SameScripts {
    connection: MultiplexedConnection,
    acquire: Call,
    release: Call,
}

impl SameScripts {
    async fn pair(&self, name: &str) -> Result<()> {
        let mut connection = self.connection.clone();
        let token: u64 = self.acquire.about(name).query_async(&mut connection).await?;
        ensure!(token > 1, "the script has not granted");
        let code: u64 = self.release.about(name).query_async(&mut connection).await?;
        ensure!(code == 1, "the script has not released: {code}");
        Ok(())
    }
}

pub(crate) struct SmallestPair {
    connection: MultiplexedConnection,
    release: String,
    drawn: AtomicU64,
}

impl SmallestPair {
    async fn new(mut connection: MultiplexedConnection) -> Result<Self> {
        let release =
            Script::new("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0");
        Ok(Self { release: release.load_async(&mut connection).await?, connection, drawn: AtomicU64::default() })
    }

    async fn pair(&self, name: &str) -> Result<()> {
        let mut connection = self.connection.clone();
        // A unique owner token.
        let mut owner = [7; 16];
        owner[..8].copy_from_slice(&self.drawn.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        let mut acquire = redis::cmd("SET");
        acquire.arg(name).arg(&owner).arg("NX").arg("PX").arg(30_000);
        let granted: Option<String> = acquire.query_async(&mut connection).await?;
        granted.context("the lock was not free")?;
        let mut release = redis::cmd("EVALSHA");
        let deleted: u64 = release.arg(&self.release).arg(1).arg(name).arg(&owner).query_async(&mut connection).await?;
        ensure!(deleted == 1, "the lock was not held");
        Ok(())
    }
}
