//! The backend. Acquire, renew and release are one script call each.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::kit::{PerRuntime, TlsFiles};
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, Claim, Confirmation, CoreHandle, Delivery, Grant,
    LONGEST_PLACE_TTL, LockBackend, OnContention, ReleaseOutcome, ReleaseRequest, RenewPolicy, RenewReplies,
    RenewReply, RenewRequest, Stamp, WatchNames,
};
use leasehold_core::{Error, ErrorKind, FencingToken, Result};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::capabilities;
use crate::connection::{Connection, Role, script_call};
use crate::endpoint::Endpoint;
use crate::errors::Failure;
use crate::exchange::{AcquireOptions, Operation, Reply, ReplyBody, Request};
use crate::manager::{self, ConnectionManager};
use crate::put_back::{self, Confirmed, Lease};
use crate::replies::{self, Acquired, Renewed};
use crate::run::Run;
use crate::settings::{Settings, read_url};
use crate::shared::{Shared, millis};
use crate::tombstones;

/// Locks on one Redis server, version 6.2 or later, or on the primary that Sentinels name.
pub struct RedisBackend {
    pub(crate) shared: Arc<Shared>,
    managers: PerRuntime<ConnectionManager>,
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
        let (endpoint, settings) = read_url(url)?;
        Self::unconnected(endpoint, settings).connected().await
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
        self.connection().await?;
        Ok(self)
    }

    /// Parses a URL and sends nothing. The first call connects, and calls fail while the server cannot be reached or
    /// used. For programs that may start before their server.
    ///
    /// # Errors
    /// [`InvalidInput`](leasehold_core::ErrorKind::InvalidInput) for a URL that cannot be used.
    pub fn connect_lazy(url: &str) -> Result<Self> {
        let (endpoint, settings) = read_url(url)?;
        Ok(Self::unconnected(endpoint, settings))
    }

    fn unconnected(endpoint: Endpoint, settings: Settings) -> Self {
        let capabilities = match endpoint.sentinels() {
            None => capabilities::of(&settings),
            Some(_) => capabilities::behind_sentinels(&settings),
        };
        Self { shared: Arc::new(Shared::new(endpoint, settings)), managers: PerRuntime::new(), capabilities }
    }

    /// The connection manager of the calling runtime.
    pub(crate) fn manager(&self) -> Result<Arc<manager::Inner>> {
        Ok(self.manager_of(&PerRuntime::<ConnectionManager>::caller()?))
    }

    fn manager_of(&self, runtime: &Handle) -> Arc<manager::Inner> {
        let make = || {
            let receives_pushes = self.shared.core.get().is_some_and(|core| core.keeper_runtime().id() == runtime.id());
            let role = if receives_pushes { Role::CommandsAndPushes } else { Role::Commands };
            let manager = ConnectionManager::new(self.shared.clone(), role, runtime);
            manager.inner().request_connection();
            manager
        };
        self.managers.read(runtime, |manager| !manager.is_stopped(), make, |manager| manager.inner().clone())
    }

    /// The connection of the calling runtime, and the deadline of a call that starts now.
    pub(crate) async fn connection(&self) -> Result<(Arc<Connection>, Instant)> {
        let until = Instant::now() + self.shared.bound();
        Ok((self.manager()?.connection(until).await?, until))
    }

    async fn send_request(&self, claim: &Claim, operation: Operation) -> Result<Reply> {
        let until = Instant::now() + self.shared.bound();
        self.manager()?.send_request(Request { claim: claim.clone(), operation }, until).await
    }

    async fn try_renew(&self, requests: &[RenewRequest]) -> Result<Vec<RenewReply>> {
        let (shared, until) = (&self.shared, Instant::now() + self.shared.bound());
        let connection = self.manager()?.connection(until).await?;
        // One reading serves the whole batch: a ttl that other clients know of covers every shorter one.
        let longest = requests.iter().map(|request| request.ttl).max().unwrap_or_default();
        let quarantine = connection.prepare(longest, until).await?;
        let mut command = script_call(&shared.scripts.renew, requests.len());
        for request in requests {
            shared.keys.add_record(&mut command, request.claim.name());
        }
        // Most renewals have the same ttl and never shorten a lease. That ttl is sent once, and the others as
        // exceptions (`renew.lua`).
        let common_ttl = requests.first().map_or(Duration::ZERO, |request| request.ttl);
        command.arg(shared.common_to_renewals(quarantine.is_none(), common_ttl));
        let (mut packed, mut exceptions) = (Vec::with_capacity(24 * requests.len()), Vec::new());
        for (number, request) in (1_u16..).zip(requests) {
            packed.extend(request.place.get().to_be_bytes());
            packed.extend(request.claim.owner().as_bytes());
            if request.ttl != common_ttl || request.policy == RenewPolicy::Exactly {
                exceptions.extend(number.to_be_bytes());
                exceptions.extend(millis(request.ttl).to_be_bytes());
                exceptions.push(if request.policy == RenewPolicy::Exactly { b'e' } else { b'm' });
            }
        }
        command.arg(packed).arg(exceptions);
        let core = shared.core()?;
        // After `prepare`, which may take a round trip: the validity counts from the request itself.
        let (sent, run) = (core.stamp(), connection.run_read());
        let put_back = run.as_ref().map(|run| put_back::argument(requests, run, sent, shared)).unwrap_or_default();
        if !put_back.is_empty() {
            command.arg(put_back);
        }
        let request = connection.run(&shared.scripts.renew, &command, until);
        let shortest = requests.iter().map(|request| request.ttl).min().unwrap_or_default();
        let primary = connection.primary().map(|primary| (primary, primary.now()));
        let value = match primary {
            None => request.await?,
            Some((primary, _)) => primary.ask_beside(request, shortest, until).await?,
        };
        let (time, renewals) = replies::renewed(value, requests.len()).ok_or(Failure::UnexpectedReply)?;
        shared.server_clock.observe(time, sent, core.stamp());
        let is_new = |(request, renewed): (&RenewRequest, &Renewed)| match renewed {
            Renewed::Granted { token, .. } => !Lease::of(&request.claim).has(*token),
            _ => false,
        };
        let unreplicated = match renewals.iter().any(Renewed::is_lease) {
            true => connection.count_replicas(run.clone(), until).await.err(),
            false => None,
        };
        let unconfirmed = match primary {
            Some((primary, _)) if requests.iter().zip(&renewals).any(is_new) => {
                primary.confirm_grant(until).await.err()
            }
            _ => None,
        };
        let doubt = |request: &RenewRequest, renewed: &Renewed| {
            let is_place = renewed.is_lease() || matches!(renewed, Renewed::Waiting { .. });
            // The next renewal finds the grant again.
            let grant = unconfirmed.as_ref().filter(|_| is_new((request, renewed)));
            let lease = unreplicated.as_ref().filter(|_| renewed.is_lease());
            // A former primary goes on confirming requests for a while.
            let former = || match primary {
                Some((primary, at)) if is_place => primary.check(request.ttl, at).err(),
                _ => None,
            };
            grant.or(lease).cloned().or_else(former)
        };
        let answer = |(request, renewed): (&RenewRequest, Renewed)| {
            if let Some(why) = doubt(request, &renewed) {
                return RenewReply::Unknown(why.with_kind(ErrorKind::Indeterminate));
            }
            let confirmation = |ttl, place| Confirmation { ttl, sent, place };
            note_renewal(request, &renewed, run.as_ref(), sent);
            match renewed {
                Renewed::Held | Renewed::PutBack => RenewReply::Renewed(confirmation(request.ttl, request.place)),
                Renewed::Granted { place, token } => {
                    RenewReply::Granted(Grant::new(FencingToken::new(token), confirmation(request.ttl, place)))
                }
                // The lock is granted to nobody before the quarantine ends, so an earlier retry is wasted.
                Renewed::Waiting { place, retry_after } => RenewReply::Waiting {
                    confirmation: confirmation(request.ttl.min(LONGEST_PLACE_TTL), place),
                    retry_after: retry_after.max(quarantine.unwrap_or_default()),
                },
                Renewed::Lost => RenewReply::Lost,
                Renewed::Failed(text) => RenewReply::Unknown(connection.refused(&text)),
            }
        };
        Ok(requests.iter().zip(renewals).map(answer).collect())
    }
}

/// Notes what a reply to a renewal says about the lease of its claim.
fn note_renewal(request: &RenewRequest, renewed: &Renewed, run: Option<&Arc<Run>>, sent: Stamp) {
    let Some(run) = run else { return };
    let confirmed = || Confirmed { run: run.clone(), sent, ttl: request.ttl };
    let lease = || Lease::of(&request.claim);
    match renewed {
        Renewed::Held => lease().renewed(confirmed()),
        Renewed::PutBack => {
            lease().renewed(confirmed());
            tracing::info!(
                backend = crate::errors::BACKEND,
                lock = %request.claim.name(),
                "the server had lost this lease, and it was put back: it was not interrupted"
            );
        }
        Renewed::Granted { token, .. } => lease().granted(*token, confirmed()),
        Renewed::Lost => lease().lost(),
        Renewed::Waiting { .. } | Renewed::Failed(_) => {}
    }
}

#[async_trait]
impl LockBackend for RedisBackend {
    fn attach(&self, core: CoreHandle) {
        let keeper = core.keeper_runtime().clone();
        if self.shared.core.attach(core) {
            if let Some(sentinels) = self.shared.endpoint.sentinels() {
                sentinels.attach(&keeper);
            }
            if let (Some(replicas), Some(core)) = (&self.shared.replicas, self.shared.core.get()) {
                replicas.attach(core.clone());
            }
            // Connects and subscribes now, or the first waiter would miss its grant. A manager from before the attach
            // has no subscription.
            self.managers.remove(&keeper);
            self.manager_of(&keeper);
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let AcquireRequest { ref claim, ttl, on_contention, .. } = *request;
        let options = AcquireOptions { ttl, queue: on_contention == OnContention::Queue };
        // Before the request is sent: a withdrawal may overlap with it, and its tombstone has to outlast this ttl.
        tombstones::acquiring(claim, ttl);
        let Reply { sent, run, body } = self.send_request(claim, Operation::Acquire(options)).await?;
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
            ReplyBody::Released(_) => Err(Failure::UnexpectedReply.into()),
        }
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        replies.put_all(self.try_renew(requests).await);
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let ReleaseRequest { ref claim, delivery, .. } = *request;
        // Before the request is sent: a renewal that is in flight must not make the client put the lease back later.
        Lease::of(claim).released();
        let tombstone_ttl = (delivery == Delivery::InDoubt).then(|| tombstones::ttl_of(claim));
        let ReplyBody::Released(was_held) = self.send_request(claim, Operation::Release(tombstone_ttl)).await?.body
        else {
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
            .field("address", &self.shared.endpoint.address)
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}
