//! From a URL to a client.

use std::sync::OnceLock;

use leasehold_core::memory::{MemoryBackend, MemoryStore};
use leasehold_core::{Error, LockClient, LockClientBuilder, Result};
use url::Url;

/// A scheme, the feature that it needs, and whether that is on.
type Row = (&'static str, &'static str, bool);

/// The schemes of URLs, for error texts. The command uses them too, because its features have the same names.
pub const SCHEMES: &[Row] = &[
    ("memory", "", true),
    ("sqlite", "sqlite", cfg!(feature = "sqlite")),
    ("mysql", "mysql", cfg!(feature = "mysql")),
    ("etcd", "etcd", cfg!(feature = "etcd")),
    ("etcds", "etcd-tls", cfg!(feature = "etcd-tls")),
    ("redis", "redis", cfg!(feature = "redis")),
    ("redis+unix", "redis", cfg!(feature = "redis")),
    ("rediss", "redis-tls", cfg!(feature = "redis-tls")),
    ("redis+quorum", "redis", cfg!(feature = "redis")),
    ("rediss+quorum", "redis-tls", cfg!(feature = "redis-tls")),
    ("redis+sentinel", "redis", cfg!(feature = "redis")),
    ("rediss+sentinel", "redis-tls", cfg!(feature = "redis-tls")),
    ("redis+cluster", "redis", cfg!(feature = "redis")),
    ("rediss+cluster", "redis-tls", cfg!(feature = "redis-tls")),
    ("zk", "zk", cfg!(feature = "zk")),
    ("zks", "zk-tls", cfg!(feature = "zk-tls")),
];

/// A client for the store of a URL, with the defaults: ttl 30 s, wait 60 s, a lease keeper on its own thread. Use
/// [`connect_builder`] to change them.
///
/// - `memory://`: a store inside this process, for tests and examples. Every call uses the same store.
/// - `redis://[user:password@]host[:port][/database][?…]`, `rediss://…`, `redis+unix:///path[?…]` (features `redis`,
///   `redis-tls`): one Redis server. This connects to it and checks it before it returns.
/// - `redis+sentinel://[user:password@]one,two,three/name[/database][?…]`, `rediss+sentinel://…` (the same features):
///   the primary that a majority of these Sentinels names.
/// - `redis+cluster://[user:password@]one,two,three[?…]`, `rediss+cluster://…` (the same features): a Redis Cluster.
///   The URL names some of its nodes.
/// - `redis+quorum://[user:password@]one,two,three[/database][?…]`, `rediss+quorum://…` (the same features): a majority
///   of independent Redis servers.
/// - `mysql://user[:password]@host[:port]/database[?…]` (features `mysql`, `mysql-tls`): a MySQL or MariaDB server. The
///   table of locks must exist: `MySqlBackend::create_schema` creates it.
/// - `etcd://[user:password@]host[:port][,host[:port]…][/prefix][?…]`, `etcds://…` (features `etcd`, `etcd-tls`): an
///   etcd cluster.
/// - `zk://[user:password@]host[:port][,host[:port]…][/root][?…]`, `zks://…` (features `zk`, `zk-tls`): a ZooKeeper
///   server or ensemble.
/// - `sqlite:///path/locks.db[?…]`, `sqlite://` for a file in the user's state folder (feature `sqlite`): a file for
///   the processes of this machine. This creates the file if it does not exist, and checks it before it returns.
///
/// # Errors
/// - [`InvalidInput`](leasehold_core::ErrorKind::InvalidInput): the URL cannot be parsed, or its scheme is unknown (the
///   text names the schemes that are compiled in, and the feature that is missing), or the tokio runtime has no timers
///   (`enable_time`). Nothing was sent.
/// - [`Unavailable`](leasehold_core::ErrorKind::Unavailable), [`Auth`](leasehold_core::ErrorKind::Auth),
///   [`Unsupported`](leasehold_core::ErrorKind::Unsupported), [`Capacity`](leasehold_core::ErrorKind::Capacity): the
///   server cannot be reached or used.
///
/// Makes one attempt, and ends within the backend's call bound. For a server and for SQLite this is `timeout` in the
/// URL, 1 s by default. Only a slow disk under a SQLite file may take 10 s. If a program may start before its store,
/// use [`connect_lazy`]. No error contains a password.
///
/// # Cancel safety
/// Dropped, it leaves nothing behind.
pub async fn connect(url: &str) -> Result<LockClient> {
    connect_builder(url).await?.build()
}

/// [`connect`] with other defaults, such as a label, a ttl or a clock. It connects before it returns.
///
/// # Errors
/// As [`connect`].
///
/// # Cancel safety
/// Dropped, it leaves nothing behind.
pub async fn connect_builder(url: &str) -> Result<LockClientBuilder> {
    match &*scheme(url)? {
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Ok(LockClient::builder(leasehold_etcd::EtcdBackend::connect(url).await?)),
        #[cfg(feature = "mysql")]
        "mysql" => Ok(LockClient::builder(leasehold_mysql::MySqlBackend::connect(url).await?)),
        #[cfg(feature = "redis")]
        "redis+quorum" | "rediss+quorum" => {
            Ok(LockClient::builder(leasehold_redis::QuorumBackend::connect(url).await?))
        }
        #[cfg(feature = "redis")]
        "redis" | "redis+unix" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
        | "rediss+cluster" => Ok(LockClient::builder(leasehold_redis::RedisBackend::connect(url).await?)),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(LockClient::builder(leasehold_sqlite::SqliteBackend::connect(url).await?)),
        #[cfg(feature = "zk")]
        "zk" | "zks" => Ok(LockClient::builder(leasehold_zk::ZkBackend::connect(url).await?)),
        _ => connect_builder_lazy(url),
    }
}

/// A client that connects by itself with its first call, for a program that may start before its store. This function
/// sends nothing.
///
/// An acquire connects within its `wait`: if the store cannot be reached, the acquire tries again with growing pauses
/// until the wait is over, and then fails with `Unavailable`. [`try_acquire`](leasehold_core::Lock::try_acquire) and
/// every other call make one attempt. Errors that waiting does not cure (`Auth`, `Unsupported`, `Capacity`) end the
/// first call at once, as they end [`connect`]. Only if the server has too many connections, an acquire continues to
/// wait, because other clients may close theirs.
///
/// # Errors
/// [`InvalidInput`](leasehold_core::ErrorKind::InvalidInput), as for [`connect`]. `Unavailable` if the system cannot
/// start a thread, `Unsupported` for a SQLite file on a system that has no clock since boot.
pub fn connect_lazy(url: &str) -> Result<LockClient> {
    connect_builder_lazy(url)?.build()
}

/// [`connect_lazy`] with other defaults, such as a label, a ttl or a clock.
///
/// # Errors
/// As [`connect_lazy`].
pub fn connect_builder_lazy(url: &str) -> Result<LockClientBuilder> {
    match &*scheme(url)? {
        "memory" => {
            static STORE: OnceLock<MemoryStore> = OnceLock::new();
            Ok(LockClient::builder(MemoryBackend::new(STORE.get_or_init(MemoryStore::default))))
        }
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Ok(LockClient::builder(leasehold_etcd::EtcdBackend::connect_lazy(url)?)),
        #[cfg(feature = "mysql")]
        "mysql" => Ok(LockClient::builder(leasehold_mysql::MySqlBackend::connect_lazy(url)?)),
        #[cfg(feature = "redis")]
        "redis+quorum" | "rediss+quorum" => Ok(LockClient::builder(leasehold_redis::QuorumBackend::connect_lazy(url)?)),
        #[cfg(feature = "redis")]
        "redis" | "redis+unix" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
        | "rediss+cluster" => Ok(LockClient::builder(leasehold_redis::RedisBackend::connect_lazy(url)?)),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(LockClient::builder(leasehold_sqlite::SqliteBackend::connect_lazy(url)?)),
        #[cfg(feature = "zk")]
        "zk" | "zks" => Ok(LockClient::builder(leasehold_zk::ZkBackend::connect_lazy(url)?)),
        other => Err(unknown(other)),
    }
}

fn scheme(url: &str) -> Result<String> {
    // The backend parses the rest. A URL with several hosts is not valid for a URL parser.
    let known = url.split_once("://").filter(|(scheme, _)| SCHEMES.iter().any(|(known, ..)| known == scheme));
    if let Some((scheme, _)) = known {
        return Ok(scheme.to_owned());
    }
    let parsed = Url::parse(url).map_err(|why| {
        Error::invalid(format!(
            "the store must be a URL such as `redis://host:6379` or `sqlite:///path/locks.db` ({why})"
        ))
    })?;
    Ok(parsed.scheme().to_owned())
}

fn unknown(scheme: &str) -> Error {
    let (there, missing): (Vec<Row>, Vec<Row>) = SCHEMES.iter().copied().partition(|(_, _, is_on)| *is_on);
    let there = there.iter().map(|(scheme, ..)| format!("`{scheme}://`")).collect::<Vec<_>>().join(", ");
    Error::invalid(match missing.iter().find(|(known, ..)| *known == scheme) {
        Some((_, feature, _)) => {
            format!("`{scheme}://` needs the feature `{feature}` of leasehold; compiled in: {there}")
        }
        None => {
            let missing =
                missing.iter().map(|(scheme, feature, _)| format!("; `{scheme}://` needs feature `{feature}`"));
            format!("no store has URLs with `{scheme}://`; compiled in: {there}{}", missing.collect::<String>())
        }
    })
}

#[cfg(test)]
mod tests {
    use leasehold_core::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn every_client_of_memory_has_the_same_store() {
        let (one, other) = (connect("memory://").await.unwrap(), connect("memory://").await.unwrap());
        let guard = one.lock("connect").acquire().await.unwrap();
        assert!(other.lock("connect").try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        assert!(other.lock("connect").try_acquire().await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_scheme_that_is_not_there_names_those_that_are_and_the_feature() {
        let error = connect("consul://u:hunter2@localhost").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let text = format!("{error} {error:?}");
        assert!(text.contains("`memory://`") && text.contains("redis://") && !text.contains("hunter2"), "{text}");
        let error = connect("not a URL with hunter2").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }

    #[test]
    fn a_lazy_client_refuses_wrong_urls_at_once() {
        for url in ["consul://u:hunter2@localhost", "not a URL with hunter2"] {
            let error = connect_lazy(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
        connect_lazy("memory://").unwrap();
    }

    #[cfg(not(feature = "redis"))]
    #[tokio::test]
    async fn redis_without_its_feature_names_it() {
        let error = connect("redis://:hunter2@localhost").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let text = error.to_string();
        assert!(text.contains("feature `redis`") && !text.contains("hunter2"), "{text}");
    }

    #[cfg(feature = "redis")]
    #[tokio::test]
    async fn a_redis_that_is_not_there_is_unavailable() {
        let error = connect("redis://:hunter2@127.0.0.1:1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }

    #[cfg(any(feature = "redis", feature = "sqlite"))]
    #[test]
    fn a_runtime_without_timers_is_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let urls =
            [(cfg!(feature = "redis"), "redis://127.0.0.1:1"), (cfg!(feature = "sqlite"), "sqlite:///no/folder/locks")];
        for (_, url) in urls.into_iter().filter(|(is_on, _)| *is_on) {
            let error = runtime.block_on(connect(url)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.to_string().contains("enable_time"), "{error}");
        }
    }
}
