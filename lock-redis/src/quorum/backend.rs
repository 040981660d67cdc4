//! The backend: its connections, and the trait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::kit::quorum::Quorum;
use leasehold_core::backend::kit::{PerRuntime, TlsFiles, require_timers};
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, CoreHandle, LockBackend, ReleaseOutcome, ReleaseRequest,
    RenewReplies, RenewRequest, Stamp, WatchNames,
};
use leasehold_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::capabilities;
use super::member::Member;
use super::settings::{self, QuorumSettings};
use super::settler::Settler;
use super::shared::Shared;
use crate::connection::Role;
use crate::manager::{self, ConnectionManager};

/// How long a connect waits for servers that are slower than twice the majority.
const STRAGGLE: Duration = Duration::from_millis(50);

const POLL: Duration = Duration::from_millis(2);

/// Locks on a majority of three or more independent Redis servers, version 6.2 or later.
pub struct QuorumBackend {
    pub(super) shared: Arc<Shared>,
    members: Vec<Arc<Member>>,
    managers: PerRuntime<Managers>,
    settler: Settler,
    capabilities: Capabilities,
}

/// The connections of one runtime, one for each server.
struct Managers {
    owned: Vec<ConnectionManager<Member>>,
    shared: Connections,
}

/// The same, to use.
pub(super) type Connections = Arc<[Arc<manager::Inner<Member>>]>;

impl QuorumBackend {
    /// Connects to the servers of a URL, `redis+quorum://one,two,three/`, and checks that they can be used for locks.
    ///
    /// # Errors
    /// - `InvalidInput`: the URL cannot be used, the servers do not belong together, or the tokio runtime has no timers.
    /// - `Unavailable`: no majority can be reached within [`timeout`](crate::Settings::timeout).
    /// - `Unsupported`: a server that replied is a replica, belongs to a Cluster, or cannot be used for another reason
    ///   that [`RedisBackend::connect`](crate::RedisBackend::connect) has too.
    /// - `Auth` and `Capacity`: so many servers cannot be used that no majority can.
    ///
    /// # Cancel safety
    /// A dropped call leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self> {
        let it = Self::connect_lazy(url)?;
        require_timers()?;
        let connections = it.connections()?;
        let begin = Instant::now();
        let until = begin + it.shared.timeout();
        it.await_majority(&connections, until).await?;
        // A server that does not belong to the others is seen when it connects, and may be slower than the majority.
        let patience = (Instant::now() + begin.elapsed() + STRAGGLE).min(until);
        let is_open = |manager: &Arc<manager::Inner<Member>>| !manager.is_connected() && manager.last_error().is_none();
        while Instant::now() < patience && connections.iter().any(is_open) {
            tokio::time::sleep(POLL).await;
        }
        let is_refused = |error: &Error| matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported);
        if let Some(refused) = connections.iter().filter_map(|it| it.last_error()).find(is_refused) {
            return Err(refused);
        }
        Ok(it)
    }

    /// Parses a URL and sends nothing. The first call connects. For programs that may start before their servers.
    ///
    /// # Errors
    /// [`InvalidInput`](leasehold_core::ErrorKind::InvalidInput) for a URL that cannot be used.
    pub fn connect_lazy(url: &str) -> Result<Self> {
        let (quorum, clients, tls, settings) = settings::read(url)?;
        Self::unconnected(quorum, &clients, &tls, settings)
    }

    fn unconnected(
        quorum: Quorum,
        clients: &[redis::Client],
        tls: &TlsFiles,
        settings: QuorumSettings,
    ) -> Result<Self> {
        let capabilities = capabilities::of(&settings);
        let shared = Arc::new(Shared::new(quorum, clients, tls, settings)?);
        let members = (0..quorum.servers()).map(|number| Arc::new(Member::new(shared.clone(), number))).collect();
        Ok(Self { shared, members, managers: PerRuntime::new(), settler: Settler::default(), capabilities })
    }

    /// The connections of the calling runtime.
    pub(super) fn connections(&self) -> Result<Connections> {
        Ok(self.connections_of(&PerRuntime::<Managers>::caller()?))
    }

    fn connections_of(&self, runtime: &Handle) -> Connections {
        let make = || {
            // The keeper's connections are opened again as soon as they break, so that renewals and the settler find them.
            let is_kept = self.shared.core.get().is_some_and(|core| core.keeper_runtime().id() == runtime.id());
            let role = if is_kept { Role::CommandsAndPushes } else { Role::Commands };
            let make = |member: &Arc<Member>| ConnectionManager::new(member.clone(), role, runtime);
            let owned: Vec<_> = self.members.iter().map(make).collect();
            let shared: Connections = owned.iter().map(|manager| manager.inner().clone()).collect();
            shared.iter().for_each(|manager| manager.request_connection());
            Managers { owned, shared }
        };
        let is_alive = |managers: &Managers| managers.owned.iter().all(|manager| !manager.is_stopped());
        self.managers.read(runtime, is_alive, make, |managers| managers.shared.clone())
    }

    /// Waits until a majority is connected. A server that is not connected by then is used as soon as it is.
    ///
    /// # Errors
    /// The reasons of all servers that are not connected.
    pub(super) async fn await_majority(&self, connections: &Connections, until: Instant) -> Result<()> {
        let is_enough = || connections.iter().filter(|it| it.is_connected()).count() >= self.shared.quorum.majority();
        if is_enough() {
            connections.iter().for_each(|manager| manager.request_connection());
            return Ok(());
        }
        let mut tasks = tokio::task::JoinSet::new();
        for manager in connections.iter() {
            let manager = manager.clone();
            tasks.spawn(async move { manager.connection(until).await.map(drop) });
        }
        let mut errors = Vec::new();
        while let Some(done) = tasks.join_next().await {
            errors.extend(done.unwrap_or(Ok(())).err());
            if is_enough() {
                return Ok(());
            }
        }
        Err(self.too_few_connected(connections, &errors))
    }

    fn too_few_connected(&self, connections: &Connections, errors: &[Error]) -> Error {
        let why = |server: usize| {
            let error = connections[server].last_error();
            error.map(|error| error.to_string()).filter(|_| !connections[server].is_connected())
        };
        too_few(ErrorKind::Unavailable, self.describe(why), errors.iter())
    }

    /// "a majority of … cannot vote", with the servers that cannot, and why.
    pub(super) fn describe(&self, why: impl Fn(usize) -> Option<String>) -> String {
        let (servers, majority) = (self.shared.quorum.servers(), self.shared.quorum.majority());
        let reasons = (0..servers).filter_map(|server| {
            let why = why(server)?;
            let address = self.members[server].address();
            Some(if why.contains(address) { why } else { format!("{address}: {why}") })
        });
        let reasons: Vec<_> = reasons.collect();
        format!("{majority} of {servers} servers are needed: {}", reasons.join("; "))
    }

    /// The earlier of a stamp, if there is one, and a time, on tokio's clock.
    pub(super) fn earlier(&self, stamp: Option<Stamp>, until: Instant) -> Result<Instant> {
        let Some(stamp) = stamp else { return Ok(until) };
        Ok(until.min(Instant::now() + stamp.since(self.shared.core()?.stamp())))
    }

    pub(super) fn members(&self) -> &[Arc<Member>] {
        &self.members
    }

    pub(super) fn member(&self, server: usize) -> &Arc<Member> {
        &self.members[server]
    }

    pub(super) fn settler(&self) -> &Settler {
        &self.settler
    }
}

/// The end of the share that one of this many servers has of the time until `until`, so that a silent one leaves time
/// for the others.
pub(super) fn share(until: Instant, servers: usize) -> Instant {
    let now = Instant::now();
    now + until.saturating_duration_since(now) / u32::try_from(servers).unwrap_or(1).max(1)
}

/// The error of too few servers. If all of them give the same reason, that is its kind, so that the caller can do
/// something about it.
pub(super) fn too_few<'a>(
    otherwise: ErrorKind,
    text: String,
    errors: impl Iterator<Item = &'a Error> + Clone,
) -> Error {
    let kind = errors.clone().next().map_or(otherwise, Error::kind);
    let is_common = otherwise != ErrorKind::Indeterminate && errors.clone().all(|error| error.kind() == kind);
    let error = Error::new(if is_common { kind } else { otherwise }, text);
    // A waiter goes on while a reason may pass.
    if errors.clone().any(Error::passes_by_itself) { error.passing_by_itself() } else { error }
}

#[async_trait]
impl LockBackend for QuorumBackend {
    fn attach(&self, core: CoreHandle) {
        let keeper = core.keeper_runtime().clone();
        if self.shared.core.attach(core) {
            // Those from before the attach are not kept open.
            self.managers.remove(&keeper);
            let connections = self.connections_of(&keeper);
            self.settler.start(&keeper, self.shared.clone(), connections);
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        self.try_acquire(request).await
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        let until = Instant::now() + self.shared.timeout();
        if let Err(error) = self.try_renew(requests, replies, until).await {
            replies.fail_rest(&error);
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        self.try_release(request).await
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

impl fmt::Debug for QuorumBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.members.iter().map(|member| member.address()).collect();
        f.debug_struct("QuorumBackend")
            .field("servers", &addresses)
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}
