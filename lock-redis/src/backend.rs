//! The backend. Acquire, renew and release are one script call each.

use std::fmt;

use async_trait::async_trait;
use leasehold_core::backend::kit::TlsFiles;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, Confirmation, CoreHandle, Delivery, Grant, LONGEST_PLACE_TTL,
    LockBackend, OnContention, ReleaseOutcome, ReleaseRequest, RenewReplies, RenewRequest, WatchNames,
};
use leasehold_core::{Error, FencingToken, Result};

use crate::endpoint::Endpoint;
use crate::errors::Failure;
use crate::exchange::{AcquireOptions, Operation, Reply, ReplyBody, Request};
use crate::put_back::{Confirmed, Lease};
use crate::replies::Acquired;
use crate::server::Server;
use crate::servers::Servers;
use crate::settings::{Settings, read_url};
use crate::shared::Shared;
use crate::{capabilities, cluster, tombstones};

/// Locks on one Redis server, version 6.2 or later, on the primary that Sentinels name, or on a Redis Cluster.
pub struct RedisBackend {
    pub(crate) servers: Servers,
    capabilities: Capabilities,
}

impl RedisBackend {
    /// Connects to the server of a URL, and checks that it can be used for locks.
    ///
    /// # Errors
    /// - `InvalidInput`: the URL cannot be used, or the tokio runtime has no timers.
    /// - `Unavailable`: the server cannot be reached within [`timeout`](Settings::timeout), or is not ready.
    /// - `Auth`: the server refuses the user.
    /// - `Unsupported`: the server cannot be used for locks.
    /// - `Capacity`: the server accepts no more connections.
    ///
    /// # Cancel safety
    /// A dropped call leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_lazy(url)?.connected().await
    }

    /// Connects with a client of the `redis` crate. Uses its address, database, user, password and TLS. The protocol
    /// and the TCP settings are those of Leasehold.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// A dropped call leaves nothing behind.
    pub async fn connect_with(client: &redis::Client, settings: Settings) -> Result<Self> {
        let settings = settings.check()?;
        let endpoint = Endpoint::new(client, TlsFiles::default(), settings.timeout, settings.connect_timeout)?;
        Self::unconnected(endpoint, settings).connected().await
    }

    async fn connected(self) -> Result<Self> {
        leasehold_core::backend::kit::require_timers()?;
        self.servers.connect().await?;
        Ok(self)
    }

    /// Parses a URL and sends nothing. The first call connects, and calls fail while the server cannot be reached or
    /// used. For programs that may start before their server.
    ///
    /// # Errors
    /// [`InvalidInput`](leasehold_core::ErrorKind::InvalidInput) for a URL that cannot be used.
    pub fn connect_lazy(url: &str) -> Result<Self> {
        if cluster::SCHEMES.iter().chain(&["rediss+cluster://"]).any(|scheme| url.starts_with(scheme)) {
            let cluster = cluster::read(url)?;
            let capabilities = capabilities::of_cluster(&cluster.settings);
            return Ok(Self { servers: Servers::Cluster(cluster), capabilities });
        }
        let (endpoint, settings) = read_url(url)?;
        Ok(Self::unconnected(endpoint, settings))
    }

    fn unconnected(endpoint: Endpoint, settings: Settings) -> Self {
        let capabilities = match endpoint.sentinels() {
            None => capabilities::of(&settings),
            Some(_) => capabilities::behind_sentinels(&settings),
        };
        Self { servers: Servers::One(Server::new(Shared::new(endpoint, settings))), capabilities }
    }
}

#[async_trait]
impl LockBackend for RedisBackend {
    fn attach(&self, core: CoreHandle) {
        self.servers.attach(core);
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let AcquireRequest { ref claim, ttl, on_contention, .. } = *request;
        let options = AcquireOptions { ttl, queue: on_contention == OnContention::Queue };
        // Before the request is sent: a withdrawal may overlap with it, and its tombstone has to outlast this ttl.
        tombstones::acquiring(claim, ttl);
        let Reply { sent, run, body } =
            self.servers.send(Request { claim: claim.clone(), operation: Operation::Acquire(options) }).await?;
        let confirmation = |ttl, place| Confirmation { ttl, sent, place };
        match body {
            ReplyBody::Acquired(Acquired::Granted { place, token }) => {
                if let Some(run) = run {
                    Lease::of(claim).granted(token, Confirmed { run, sent, ttl });
                }
                Ok(AcquireOutcome::Granted(Grant::new(FencingToken::new(token), confirmation(ttl, place))))
            }
            ReplyBody::Acquired(Acquired::Queued { place, retry_after }) => Ok(AcquireOutcome::Queued {
                confirmation: confirmation(ttl.min(LONGEST_PLACE_TTL), place),
                retry_after,
            }),
            ReplyBody::Acquired(Acquired::Held { retry_after }) => Ok(AcquireOutcome::Contended { retry_after }),
            ReplyBody::Acquired(Acquired::Withdrawn) => Err(Error::withdrawn()),
            ReplyBody::Released(_) | ReplyBody::Refused(_) => Err(Failure::UnexpectedReply.into()),
        }
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        self.servers.renew(requests, replies).await;
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let ReleaseRequest { ref claim, delivery, .. } = *request;
        // Before the request is sent: a renewal that is in flight must not make the client put the lease back later.
        Lease::of(claim).released();
        let tombstone_ttl = (delivery == Delivery::InDoubt).then(|| tombstones::ttl_of(claim));
        let request = Request { claim: claim.clone(), operation: Operation::Release(tombstone_ttl) };
        let ReplyBody::Released(was_held) = self.servers.send(request).await?.body else {
            return Err(Failure::UnexpectedReply.into());
        };
        Ok(if was_held { ReleaseOutcome::Released } else { ReleaseOutcome::NotHeld })
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        None
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend")
            .field("address", &self.servers.to_string())
            .field("settings", self.servers.settings())
            .finish_non_exhaustive()
    }
}
