//! Settings, and the URL that contains them.

use std::time::Duration;

use leasehold_core::backend::kit::url::Url;
use leasehold_core::backend::kit::{CommonSettings, Connecting, OnRestart, StoreUrl, TlsFiles};
use leasehold_core::{Error, Result};
use redis::{ConnectionAddr, IntoConnectionInfo, ProtocolVersion};

use crate::endpoint::Endpoint;
use crate::errors::BACKEND;
use crate::replicas::MinReplicas;
use crate::scripts::ScriptCalls;
use crate::sentinel::{self, Address};
#[cfg(feature = "tls")]
use crate::tls::client;

/// The URL schemes of this build, for error messages.
pub const SCHEMES: &[&str] = if cfg!(feature = "tls") {
    &[
        "redis://",
        "rediss://",
        "redis+unix://",
        "redis+sentinel://",
        "rediss+sentinel://",
        "redis+cluster://",
        "rediss+cluster://",
    ]
} else {
    &["redis://", "redis+unix://", "redis+sentinel://", "redis+cluster://"]
};

/// What to do if the server may evict keys, and with them a held lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnEviction {
    /// Refuse to use the server. The default: tests saw every eviction policy evict a held lock.
    #[default]
    Refuse,
    /// Log a warning and use the server. URL: `eviction=warn`.
    Warn,
}

/// Settings of a [`RedisBackend`](crate::RedisBackend).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The prefix of every key and channel. Default `leasehold:`. At most 100 bytes, no `{`, `}`, spaces and
    /// control characters.
    pub prefix: String,
    /// The upper bound of one call, including connecting. Default 1 s: a renewal at a third of the ttl can then fail
    /// several times before a lease of 5 s is lost. 10 ms to 60 s.
    pub timeout: Duration,
    /// The upper bound of an attempt to connect, which goes on when the call that began it has ended. Default 10 s.
    /// 10 ms to 5 minutes.
    pub connect_timeout: Duration,
    /// How long the record of a free lock is kept after the end of its last lease, with its last fencing token: at
    /// least this long, and at most twice this and a ttl, because most writes leave the record's expiry unchanged.
    /// Default 10 minutes. Tokens keep their order if the server's clock is set back by up to this much. A record takes
    /// about 150 bytes. 1 s to 365 days.
    pub retention: Duration,
    /// What to do after the server was restarted. `Trust` is for a server with `appendfsync always`, or resources that
    /// check the fencing tokens.
    pub on_restart: OnRestart,
    /// What to do if the server may evict keys.
    pub on_eviction: OnEviction,
    /// How the scripts are called.
    pub scripts: ScriptCalls,
    /// How many replicas must have a grant or a renewal before it counts. Default `None`: a failover may lose both.
    pub min_replicas: Option<MinReplicas>,
}

impl Default for Settings {
    fn default() -> Self {
        let CommonSettings { timeout, retention } = CommonSettings::default();
        Self {
            prefix: "leasehold:".to_owned(),
            timeout,
            connect_timeout: Connecting::CONNECT_TIMEOUT,
            retention,
            on_restart: OnRestart::default(),
            on_eviction: OnEviction::default(),
            scripts: ScriptCalls::default(),
            min_replicas: None,
        }
    }
}

impl Settings {
    /// Checks the bounds of all settings.
    pub(crate) fn check(self) -> Result<Self> {
        check_prefix(&self.prefix)?;
        CommonSettings { timeout: self.timeout, retention: self.retention }.check()?;
        Connecting::check_timeout(self.connect_timeout)?;
        self.min_replicas.map(MinReplicas::check).transpose()?;
        Ok(self)
    }
}

/// Checks the prefix of keys and channels. It is part of rules of `ACL SETUSER`, which spaces separate.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    let bad = |c: char| c == '{' || c == '}' || c.is_control() || c.is_whitespace();
    if prefix.is_empty() || prefix.len() > 100 || prefix.contains(bad) {
        let text = "`prefix` must have 1 to 100 bytes, and no `{`, `}`, space or control character";
        return Err(Error::invalid(text));
    }
    Ok(())
}

/// Parses a URL into the server and the settings. No error contains any part of a password.
pub(crate) fn read_url(text: &str) -> Result<(Endpoint, Settings)> {
    if sentinel::SCHEMES.iter().chain(&["rediss+sentinel://"]).any(|scheme| text.starts_with(scheme)) {
        return sentinel::read(text);
    }
    let (client, tls, settings) = read_address(text)?;
    let endpoint = Endpoint::new(&client, tls, settings.timeout, settings.connect_timeout)?;
    Ok((endpoint, settings))
}

/// Parses the URL of one server.
fn read_address(text: &str) -> Result<(redis::Client, TlsFiles, Settings)> {
    if !cfg!(feature = "tls") && text.starts_with("rediss://") {
        return Err(Error::invalid(
            "`rediss://` needs the feature `tls` of leasehold-redis, which is `redis-tls` of leasehold",
        ));
    }
    let mut url = StoreUrl::parse(text, "Redis", SCHEMES)?;
    if url.url().fragment().is_some() {
        return Err(Error::invalid(
            "the Redis URL must not contain `#`: write it as `%23` in a user or password, and name a private \
             certificate authority with `ca=file.pem`",
        ));
    }
    let min_replicas = MinReplicas::take(&mut url)?;
    let settings = Settings { min_replicas, ..take_settings(&mut url)? };
    let mut tls = TlsFiles::default();
    let mut rest: Vec<(&str, String)> = Vec::new();
    match url.url().scheme() {
        "redis+unix" => rest.extend(["db", "user", "pass"].into_iter().filter_map(|key| Some((key, url.take(key)?)))),
        "rediss" => tls = TlsFiles::take(&mut url)?,
        _ => {}
    }
    let mut url = url.finish()?;
    if !rest.is_empty() {
        url.query_pairs_mut().extend_pairs(rest);
    }
    Ok((client_of(url, &tls)?, tls, settings))
}

/// Takes the parameters that all kinds of servers have in common.
pub(crate) fn take_settings(url: &mut StoreUrl) -> Result<Settings> {
    let CommonSettings { timeout, retention } = CommonSettings::take(url)?;
    let mut settings = Settings { timeout, retention, ..Settings::default() };
    settings.connect_timeout = Connecting::take_timeout(url)?;
    if let Some(prefix) = url.take("prefix") {
        settings.prefix = prefix;
    }
    settings.on_restart = OnRestart::take(url)?;
    let on_eviction = [("refuse", OnEviction::Refuse), ("warn", OnEviction::Warn)];
    settings.on_eviction = url.take_choice("eviction", &on_eviction)?.unwrap_or_default();
    let scripts = [("eval", ScriptCalls::Eval), ("functions", ScriptCalls::Functions)];
    settings.scripts = url.take_choice("scripts", &scripts)?.unwrap_or_default();
    settings.check()
}

/// The client of the server at a URL.
pub(crate) fn client_of(url: Url, tls: &TlsFiles) -> Result<redis::Client> {
    let info = url.into_connection_info().map_err(|why| {
        let detail = why.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
        Error::invalid(format!("the Redis URL cannot be used{detail}")).with_source(why)
    })?;
    client(info, tls)
}

/// How to log in to each of several hosts.
pub(crate) struct Login<'a> {
    pub(crate) is_tls: bool,
    /// User and password.
    pub(crate) user: Option<&'a (String, String)>,
    pub(crate) database: &'a str,
}

/// The client of one of several hosts.
pub(crate) fn client_of_host((host, port): &(String, u16), login: &Login<'_>, tls: &TlsFiles) -> Result<redis::Client> {
    let scheme = if login.is_tls { "rediss" } else { "redis" };
    let mut one = Url::parse(&format!("{scheme}://{host}:{port}/{}", login.database))
        .map_err(|why| Error::invalid(format!("a host in the Redis URL cannot be used: {why}")))?;
    if let Some((name, password)) = login.user {
        // A URL with a host takes both.
        let _ = one.set_username(name);
        let _ = one.set_password(Some(password));
    }
    client_of(one, tls)
}

/// The same client with another address, which Sentinels or other nodes name.
pub(crate) fn moved(client: &redis::Client, to: &Address) -> Result<redis::Client> {
    let info = client.get_connection_info();
    let (host, port) = (to.host.clone(), to.port);
    let addr = match info.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    open(info.clone().set_addr(addr))
}

/// Without TLS there are no files.
#[cfg(not(feature = "tls"))]
fn client(info: redis::ConnectionInfo, _files: &TlsFiles) -> Result<redis::Client> {
    open(info)
}

/// The client with the present contents of the files.
pub(crate) async fn reload(client: &redis::Client, files: &TlsFiles) -> redis::Client {
    let info = client.get_connection_info().clone();
    files.reload(BACKEND, |files| self::client(info, files)).await.unwrap_or_else(|| client.clone())
}

pub(crate) fn open(info: redis::ConnectionInfo) -> Result<redis::Client> {
    redis::Client::open(info)
        .map_err(|why| Error::invalid("the address of the Redis server cannot be used").with_source(why))
}

/// Returns the same client with the connection settings that a lock needs.
///
/// - RESP3, because pushes and replies share a connection.
/// - No delay (`TCP_NODELAY`): a renewal must not wait for more data.
/// - Keepalive and user timeout: a connection to a host that is gone ends by itself, whether idle or waiting for a
///   reply.
/// - Linger 0: closing a socket resets it. Data that has not left this machine is not sent any more, and the server
///   learns at once that the client is gone. Commands that have arrived still run. Only the tombstone of a withdrawn
///   claim keeps them from taking effect.
pub(crate) fn prepare(client: &redis::Client, timeout: Duration) -> Result<redis::Client> {
    use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
    let info = client.get_connection_info();
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(1));
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    let keepalive = keepalive.with_retries(3);
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive).set_linger_time(Duration::ZERO);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let tcp = tcp.set_user_timeout(timeout * 3);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = timeout;
    let server = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP3)
        .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
    open(info.clone().set_tcp_settings(tcp).set_redis_settings(server))
}

/// The address of the server, for errors and logs. Never contains user or password.
pub(crate) fn address(client: &redis::Client) -> String {
    match client.get_connection_info().addr() {
        ConnectionAddr::Unix(path) => path.display().to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::ErrorKind;

    use super::*;

    #[test]
    fn a_url_carries_every_setting() {
        let (client, _, settings) = read_address(
            "redis://u:p%40ss@localhost:7000/3?prefix=app%3A&timeout=250ms&connect_timeout=5s&retention=2h&\
             restart=trust&eviction=warn&scripts=functions&min_replicas=2",
        )
        .unwrap();
        let info = client.get_connection_info();
        assert_eq!(address(&client), "localhost:7000");
        assert_eq!(info.redis_settings().db(), 3);
        assert_eq!(info.redis_settings().username(), Some("u"));
        assert_eq!(info.redis_settings().password(), Some("p@ss"));
        assert_eq!(settings.prefix, "app:");
        assert_eq!((settings.timeout, settings.connect_timeout), (Duration::from_millis(250), Duration::from_secs(5)));
        assert_eq!(settings.retention, Duration::from_secs(7200));
        assert_eq!(settings.on_restart, OnRestart::Trust);
        assert_eq!((settings.on_eviction, settings.scripts), (OnEviction::Warn, ScriptCalls::Functions));
        assert_eq!(settings.min_replicas, Some(MinReplicas::AtLeast(2)));
        let (.., all) = read_address("redis://localhost?min_replicas=all").unwrap();
        assert_eq!(all.min_replicas, Some(MinReplicas::All));
    }

    #[test]
    fn a_unix_socket_has_database_user_and_password_as_parameters() {
        let (client, ..) = read_address("redis+unix:///run/redis.sock?db=2&user=u&pass=secret&timeout=1s").unwrap();
        assert_eq!(address(&client), "/run/redis.sock");
        let server = client.get_connection_info().redis_settings();
        assert_eq!((server.db(), server.username(), server.password()), (2, Some("u"), Some("secret")));
    }

    #[test]
    fn bad_urls_are_refused_with_a_hint_and_without_the_password() {
        for (url, hint) in [
            ("http://localhost", "redis://"),
            ("redis://:hunter2@localhost?prefx=a", "`prefix`"),
            ("redis://:hunter2@localhost?db=1", "`prefix`"),
            ("redis://:hunter2@localhost/notanumber", "cannot be used"),
            ("redis://:hunter2@localhost?timeout=5", "`250ms`"),
            ("redis://:hunter2@localhost?timeout=0s", "`250ms`"),
            ("redis://:hunter2@localhost?timeout=2m", "60s"),
            ("redis://:hunter2@localhost?connect_timeout=6m", "300s"),
            ("redis://:hunter2@localhost?retention=1ms", "1s"),
            ("redis://:hunter2@localhost?retention=99999999999999999999d", "`250ms`"),
            ("redis://:hunter2@localhost?restart=maybe", "`trust`"),
            ("redis://:hunter2@localhost?eviction=no", "`warn`"),
            ("redis://:hunter2@localhost?scripts=lua", "`functions`"),
            ("redis://:hunter2@localhost?min_replicas=0", "`all` or a number from 1"),
            ("redis://:hunter2@localhost?min_replicas=most", "`all` or a number from 1"),
            ("redis://:hunter2@localhost?prefix=", "`prefix`"),
            ("redis://:hunter2@localhost?prefix=a%20b", "space"),
            ("redis://:hunter2@localhost?prefix=%7Btag%7D", "`prefix`"),
            ("redis://:hunter2@localhost#insecure", "ca="),
            ("redis://:hun#hunter2@localhost", "%23"),
            ("redis://user:12#hunter2@localhost", "%23"),
            ("redis://:hunter2@local host", "cannot be read"),
        ] {
            let error = read_address(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            let text = format!("{error} {error:?}");
            assert!(text.contains(hint), "{url}: {text}");
            assert!(!text.contains("hunter2"), "{url}: {text}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_without_the_feature_names_it() {
        let text = read_address("rediss://localhost").unwrap_err().to_string();
        assert!(text.contains("`tls`") && text.contains("`redis-tls`"), "{text}");
    }
}
