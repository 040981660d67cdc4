//! Access to the store: a client, and fenced writes on etcd, MySQL, Redis and ZooKeeper.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::mysql::sqlx::mysql::MySqlConnection;
use leasehold::mysql::sqlx::{self, Connection};
use leasehold::redis::{FencedScript, RedisBackend};
use leasehold::{Error, ErrorKind, LockClient, LockGuard, Result};

/// How long the first connection is tried.
const CONNECTED_BY: Duration = Duration::from_secs(10);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// One store.
pub(crate) struct Store {
    pub(crate) client: LockClient,
    writes: Writes,
}

/// How the store checks a lease and writes in one step.
enum Writes {
    Redis(Arc<RedisBackend>, FencedScript),
    /// The address of the server.
    #[cfg(feature = "etcd")]
    Etcd(String),
    /// The URL of the database.
    MySql(String),
    /// The addresses of the servers.
    #[cfg(feature = "zk")]
    Zk(String),
    Unsupported,
}

impl Store {
    /// Connects. On a busy machine, a server may need longer for a connection than a call may take. So this is
    /// repeated, at most for [`CONNECTED_BY`].
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let begin = Instant::now();
        loop {
            match Self::try_connect(url).await {
                Err(error)
                    if error.kind() == ErrorKind::Unavailable
                        && !url.starts_with("sqlite")
                        && begin.elapsed() < CONNECTED_BY =>
                {
                    tokio::time::sleep(PAUSE).await;
                }
                done => return done,
            }
        }
    }

    async fn try_connect(url: &str) -> Result<Self> {
        if url.starts_with("redis") {
            // The list shows the writers in the order in which Redis accepted the writes.
            let append = FencedScript::new("return redis.call('RPUSH', KEYS[1], ARGV[1])");
            let backend = Arc::new(RedisBackend::connect(url).await?);
            return Ok(Self { client: LockClient::new(backend.clone()), writes: Writes::Redis(backend, append) });
        }
        let writes = match url.split_once("://") {
            #[cfg(feature = "etcd")]
            Some(("etcd", rest)) => Writes::Etcd(rest.split(['/', ',', '?']).next().unwrap_or_default().to_owned()),
            #[cfg(feature = "zk")]
            Some(("zk", rest)) => Writes::Zk(rest.split(['/', '?']).next().unwrap_or_default().to_owned()),
            Some(("mysql", _)) => Writes::MySql(url.split('?').next().unwrap_or_default().to_owned()),
            _ => Writes::Unsupported,
        };
        Ok(Self { client: leasehold::connect(url).await?, writes })
    }

    /// Writes with the token of this guard, without a check of the guard: the store decides. Returns the key of the
    /// list, or the name of the table.
    pub(crate) async fn write(&self, guard: &LockGuard, text: &str) -> Result<String> {
        match &self.writes {
            Writes::Redis(redis, append) => {
                let fence = redis.fence(guard);
                let key = fence.key("written");
                fence.run(append, &[&key], &[format!("{} {text}", guard.fencing_token())]).await?;
                Ok(key)
            }
            #[cfg(feature = "etcd")]
            Writes::Etcd(address) => put(address, guard, text).await,
            Writes::MySql(url) => insert(url, guard, text).await,
            #[cfg(feature = "zk")]
            Writes::Zk(addresses) => create(addresses, guard, text).await,
            Writes::Unsupported => {
                let text = "only etcd, MySQL, Redis and ZooKeeper check the lease and write in one step here";
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        }
    }
}

/// Puts a key in a fenced transaction. The keys show the order in which etcd accepted the writes.
#[cfg(feature = "etcd")]
async fn put(address: &str, guard: &LockGuard, text: &str) -> Result<String> {
    use leasehold::etcd::etcd_client::{Client, Txn, TxnOp};
    let failed = |error| Error::new(ErrorKind::Unavailable, "the write fails").with_source(error);
    let mut client = Client::connect([address], None).await.map_err(failed)?.kv_client();
    let key = format!("written/{:032x}", rand_of_time());
    let value = format!("{} {text}", guard.fencing_token());
    let write = Txn::new().when([leasehold::etcd::fence(guard)?]).and_then([TxnOp::put(key, value, None)]);
    match client.txn(write).await.map_err(failed)?.succeeded() {
        true => Ok("written".to_owned()),
        false => Err(Error::new(ErrorKind::Lost, "the lease is not current any more")),
    }
}

/// A number that no other write has.
#[cfg(feature = "etcd")]
fn rand_of_time() -> u128 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() << 32 | u128::from(std::process::id())
}

/// Creates a node in a fenced multi. The nodes show the order in which ZooKeeper accepted the writes.
#[cfg(feature = "zk")]
async fn create(addresses: &str, guard: &LockGuard, text: &str) -> Result<String> {
    use leasehold::zk::zookeeper_client::{Acls, Client, CreateMode, Error as ZkError, MultiWriteError};
    const WRITTEN: &str = "/written";
    let failed = |error| Error::new(ErrorKind::Unavailable, "the write fails").with_source(error);
    let client = Client::connect(addresses).await.map_err(failed)?;
    let options = |mode: CreateMode| mode.with_acls(Acls::anyone_all());
    match client.create(WRITTEN, b"", &options(CreateMode::Persistent)).await {
        Ok(_) | Err(ZkError::NodeExists) => {}
        Err(error) => return Err(failed(error)),
    }
    let mut write = client.new_multi_writer();
    leasehold::zk::fence(guard)?.check(&mut write).map_err(failed)?;
    let value = format!("{} {text}", guard.fencing_token());
    let node = format!("{WRITTEN}/w-");
    write.add_create(&node, value.as_bytes(), &options(CreateMode::PersistentSequential)).map_err(failed)?;
    match write.commit().await {
        Ok(_) => Ok(WRITTEN.to_owned()),
        Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. }) => {
            Err(Error::new(ErrorKind::Lost, "the lease is not current any more"))
        }
        Err(error) => Err(failed(error.into())),
    }
}

/// Inserts a row in a fenced transaction.
async fn insert(url: &str, guard: &LockGuard, text: &str) -> Result<String> {
    let failed = |error| Error::new(ErrorKind::Unavailable, "the write fails").with_source(error);
    let mut connection = MySqlConnection::connect(url).await.map_err(failed)?;
    let mut transaction = connection.begin().await.map_err(failed)?;
    // A dropped connection is closed, and the server rolls back.
    leasehold::mysql::fence(&mut transaction, guard).await?;
    let insert = sqlx::query("INSERT INTO written (token, text) VALUES (?, ?)").bind(guard.fencing_token().get());
    insert.bind(text).execute(&mut *transaction).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok("written".to_owned())
}
