//! Access to the store: a client, fenced writes if the store is Redis, and an optional fault proxy.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use leasehold::redis::{FencedScript, RedisBackend};
use leasehold::{Error, ErrorKind, LockClient, LockGuard, Result};
use leasehold_conformance::harness::{Fault, FaultProxy};

/// One store.
pub(crate) struct Store {
    pub(crate) client: LockClient,
    /// The backend, if it can check a lease and write in one step.
    redis: Option<Arc<RedisBackend>>,
    append: FencedScript,
    proxy: Option<FaultProxy>,
}

impl Store {
    /// Connects, through its own proxy if `by_proxy` is set.
    pub(crate) async fn connect(url: &str, by_proxy: bool) -> Result<Self> {
        let (url, proxy) = if by_proxy { behind_a_proxy(url)? } else { (url.to_owned(), None) };
        // The list shows the writers in the order in which Redis accepted the writes.
        let append = FencedScript::new("return redis.call('RPUSH', KEYS[1], ARGV[1])");
        if !url.starts_with("redis") {
            return Ok(Self { client: leasehold::connect(&url).await?, redis: None, append, proxy });
        }
        let backend = Arc::new(RedisBackend::connect(&url).await?);
        Ok(Self { client: LockClient::new(backend.clone()), redis: Some(backend), append, proxy })
    }

    /// Writes with the token of this guard, without a check of the guard: the store decides. Returns the key of the list.
    pub(crate) async fn write(&self, guard: &LockGuard, text: &str) -> Result<String> {
        let Some(redis) = &self.redis else {
            return Err(Error::new(ErrorKind::Unsupported, "only Redis checks the lease and writes in one step"));
        };
        let fence = redis.fence(guard);
        let key = fence.key("written");
        fence.run(&self.append, &[&key], &[format!("{} {text}", guard.fencing_token())]).await?;
        Ok(key)
    }

    /// Runs a command of the proxy. Returns false if there is no such command or no proxy.
    pub(crate) fn handles(&self, command: &str) -> bool {
        let Some(proxy) = &self.proxy else { return false };
        match command {
            "cut" => {
                proxy.apply(Fault::Refuse);
                proxy.apply(Fault::Disconnect);
            }
            "silence" => proxy.apply(Fault::DropTraffic),
            "heal" => proxy.heal(),
            _ => return false,
        }
        true
    }
}

/// A proxy in front of the server of a URL, and the URL through it.
fn behind_a_proxy(url: &str) -> Result<(String, Option<FaultProxy>)> {
    let unfit = || Error::invalid("a proxy goes in front of redis://[user:password@]host:port only");
    let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| *scheme == "redis").ok_or_else(unfit)?;
    let (authority, path) = rest.find(['/', '?']).map_or((rest, ""), |at| rest.split_at(at));
    let (user, host) = authority.rsplit_once('@').map_or(("", authority), |(user, host)| (user, host));
    let server: SocketAddr = host.to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(unfit)?;
    let proxy = FaultProxy::start(server)
        .map_err(|error| Error::new(ErrorKind::Unavailable, "the proxy does not start").with_source(error))?;
    let at = if user.is_empty() { "" } else { "@" };
    Ok((format!("{scheme}://{user}{at}{}{path}", proxy.addr()), Some(proxy)))
}
