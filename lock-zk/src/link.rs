//! One connection of a session. Opening and using it take bounded time.
//!
//! The client crate connects again by itself, after pauses that double, and no call of it is bounded. So a client of it
//! serves one connection only. [`Link`] runs the crate's task, and ends it when the connection breaks or a server is
//! silent. The session then opens another link (see `session`), and the server continues the same session on it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_core::Error;
use leasehold_core::backend::Stamp;
use leasehold_core::backend::kit::{Health, Lookups, Progress, connect_to_any, lock};
use spawns_core::{Spawn, Task, enter};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};
use zookeeper_client::{Client, Error as ClientError, SessionInfo, SessionState};

use crate::activity::Activity;
use crate::errors::{Failure, not_connected};
use crate::shared::Shared;
use crate::unreachable;

/// For a link whose session has no leases.
pub(crate) const NEVER: Stamp = Stamp::ZERO;

/// A link that was closed has this long to end its session at the server.
const LINGER: Duration = Duration::from_secs(10);

/// What the client crate does as one step. With TLS, it looks the name up as well.
const ONE_STEP: &str = "TCP and the session";
const ONE_STEP_WITH_TLS: &str = "the lookup of its name, TCP, TLS and the session";

pub(crate) struct Link {
    client: Client,
    /// The index of its server.
    server: usize,
    health: Arc<Health>,
    task: AbortHandle,
    activity: Mutex<Activity>,
    /// A server that has sent no reply for so long to a call that waits is silent.
    silent_after: Duration,
}

/// Why there is no link.
pub(crate) enum NoLink {
    /// The server has ended the session.
    Expired,
    Failed(Failure),
}

impl Link {
    /// Connects to a server, for a new session or to continue one. `sent` is the time just before this call.
    pub(crate) async fn open(
        shared: &Shared,
        server: usize,
        session: Option<&SessionInfo>,
        ttl: Duration,
        sent: Stamp,
        until: Instant,
    ) -> Result<Self, NoLink> {
        let address = &shared.target.servers.all()[server];
        let mut connector = Client::connector().with_fail_eagerly().with_session_timeout(ttl);
        if let Some(session) = session {
            connector = connector.with_session(session.clone());
        }
        if let Some((user, password)) = &shared.target.user {
            connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
        }
        #[cfg(feature = "tls")]
        let (scheme, connector) = match &shared.target.tls {
            Some(tls) => ("tcp+tls://", connector.with_tls(tls.reload().await)),
            None => ("", connector),
        };
        #[cfg(not(feature = "tls"))]
        let scheme = "";
        let spawner = Spawner::default();
        let attempt = shared.connecting.attempt_until(address, until);
        let progress = attempt.progress();
        let connecting = async {
            let cluster = match scheme {
                "" => live_address(&shared.lookups, address, &progress).await,
                // The client crate needs the name, to compare it with that in the certificate.
                _ => format!("{scheme}{address}"),
            };
            InScope { spawner: &spawner, future: Box::pin(connector.connect(&cluster)) }.await
        };
        let first = if shared.target.is_tls() { ONE_STEP_WITH_TLS } else { "the lookup of its name" };
        let connected = tokio::select! {
            biased;
            connected = attempt.step(first, connecting) => connected,
            // Not for each session that is opened or continued: on a slow path, that doubles the connections.
            never = follow(&progress, shared, address, until), if sent == NEVER => match never {},
        };
        let started = lock(&spawner.started).take();
        match (connected, started) {
            (Ok(Ok(client)), Some(started)) => {
                let Started { task, health } = started;
                let activity = Mutex::new(Activity::new(shared.settings.tick, shared.settings.timeout, sent));
                let silent_after = shared.settings.timeout / 2;
                Ok(Self { client, server, health, task, activity, silent_after })
            }
            (Ok(Err(ClientError::SessionExpired)), _) if session.is_some() => Err(NoLink::Expired),
            (Ok(Err(error @ (ClientError::AuthFailed | ClientError::BadArguments(_)))), _) => {
                Err(NoLink::Failed(Failure::of(error)))
            }
            // A session that goes on connects again and again, and nobody reads why that fails.
            (Ok(Err(_)), _) if session.is_some() => Err(NoLink::Failed(not_connected(address, "the connection broke"))),
            (Ok(Err(_)), _) => Err(NoLink::Failed(Failure::NotSent(unreachable::why(shared, address, until).await))),
            (Ok(Ok(_)), _) => Err(NoLink::Failed(not_connected(address, unreachable::SILENT))),
            (Err(too_slow), _) => Err(NoLink::Failed(Failure::NotSent(too_slow))),
        }
    }

    pub(crate) fn session(&self) -> &SessionInfo {
        self.client.session()
    }

    /// The number of its session.
    pub(crate) fn session_number(&self) -> i64 {
        self.client.session_id().0
    }

    /// The ttl that the server gives to the session.
    pub(crate) fn ttl(&self) -> Duration {
        self.client.session_timeout()
    }

    /// A request that was sent then has a reply.
    pub(crate) fn acknowledged(&self, sent: Stamp) {
        lock(&self.activity).acknowledged(sent);
    }

    /// A write that was sent then has a reply. For how long the session lasts at least, counted from then.
    pub(crate) fn proven(&self, sent: Stamp) -> Duration {
        let since = lock(&self.activity).proven(sent);
        self.ttl().saturating_sub(sent.since(since))
    }

    pub(crate) fn server(&self) -> usize {
        self.server
    }

    pub(crate) fn is_closed(&self) -> bool {
        !self.health.is_usable()
    }

    /// Resolves when the link is of no use any more. It does not keep the link.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let health = self.health.clone();
        async move { health.closed().await }
    }

    /// Resolves when the connection has broken, and returns whether the server has ended the session.
    pub(crate) fn broken(&self) -> impl Future<Output = bool> + Send + 'static {
        let (mut state, closed) = (self.client.state_watcher(), self.closed());
        async move {
            let mut closed = std::pin::pin!(closed);
            loop {
                match state.peek_state() {
                    SessionState::SyncConnected | SessionState::ConnectedReadOnly => {}
                    state => return state == SessionState::Expired,
                }
                tokio::select! {
                    _ = state.changed() => {}
                    () = &mut closed => return state.peek_state() == SessionState::Expired,
                }
            }
        }
    }

    /// Ends the connection, and leaves the session at the server. Requests that have no reply get none.
    pub(crate) fn kill(&self) {
        self.health.close();
        self.task.abort();
    }

    /// Sends requests by `send`, and waits for their replies until `until`. The requests are sent in the order of the
    /// calls, before the first await.
    pub(crate) async fn call<'a, T, F>(
        &'a self,
        send: impl FnOnce(&'a Client) -> F,
        until: Instant,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        if self.is_closed() {
            return Err(Failure::NotSent(Error::not_sent()));
        }
        let sent = send(&self.client);
        self.wait(sent, until).await?.map_err(Failure::of)
    }

    /// Waits for the replies to requests that were sent on this link.
    pub(crate) async fn wait<F: Future>(&self, sent: F, until: Instant) -> Result<F::Output, Failure> {
        let (replies, begin) = (self.health.replies(), Instant::now());
        match timeout_at(until, sent).await {
            Ok(reply) => {
                self.health.note_reply();
                Ok(reply)
            }
            Err(_) => {
                // A call that has spent its time on connecting says nothing about the link: on a slow path, each new
                // session would lose its first link.
                if self.health.is_silent_since(replies) && begin.elapsed() >= self.silent_after {
                    self.kill();
                }
                Err(Failure::TimedOut)
            }
        }
    }

    /// For requests that are sent together.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Ends the session at the server, unless others still use the link. Resolves when that is done, when the
    /// connection has broken or when it has taken too long, and returns whether it is done.
    pub(crate) async fn close(self: Arc<Self>) -> bool {
        let (broken, task, state) = (self.broken(), self.task.clone(), self.client.state_watcher());
        // The crate ends the session when its last client is dropped.
        drop(self);
        let _ = tokio::time::timeout(LINGER, broken).await;
        // The crate would connect again, and a server whose replies are lost would prolong the session.
        task.abort();
        matches!(state.peek_state(), SessionState::Closed | SessionState::Expired)
    }
}

/// The address of a host that accepts connections, if it has several. The client crate tries one after the other, each
/// until it gives up.
async fn live_address(lookups: &Lookups, address: &str, progress: &Progress) -> String {
    let Ok(addresses) = lookups.of(address, address.to_owned()).await else { return address.to_owned() };
    progress.begins(ONE_STEP);
    let live = match addresses[..] {
        [only] => Ok(only),
        _ => connect_to_any(addresses, TcpStream::connect).await.and_then(|stream| stream.peer_addr()),
    };
    live.map_or_else(|_| address.to_owned(), |live| live.to_string())
}

/// Finds out which step takes long, for the error of the attempt. The client crate takes TCP, TLS and the session as
/// one step, so another connection shows whether the server accepts any. Never returns.
async fn follow(progress: &Progress, shared: &Shared, address: &str, until: Instant) -> Infallible {
    let left = until.saturating_duration_since(Instant::now());
    tokio::time::sleep(left.min(shared.settings.timeout) / 4).await;
    if let Ok(addresses) = shared.lookups.of(address, address.to_owned()).await {
        progress.turns_out("the TCP connection");
        if connect_to_any(addresses, TcpStream::connect).await.is_ok() {
            progress.turns_out(if shared.target.is_tls() { "TLS and the session" } else { "the session" });
        }
    }
    std::future::pending().await
}

/// The task of a connection.
struct Started {
    task: AbortHandle,
    health: Arc<Health>,
}

/// Starts the task of the client crate as one that can be aborted.
#[derive(Default)]
struct Spawner {
    started: Mutex<Option<Started>>,
}

impl Spawn for Spawner {
    fn spawn(&self, task: Task) {
        let health = Arc::<Health>::default();
        let end = CloseOnDrop(health.clone());
        let serve = Box::into_pin(task.future);
        let task = tokio::spawn(async move {
            let _end = end;
            serve.await;
        });
        *lock(&self.started) = Some(Started { task: task.abort_handle(), health });
    }
}

/// Marks a link as closed when its task has ended, for whichever reason.
struct CloseOnDrop(Arc<Health>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A future whose tasks are started by `spawner`.
struct InScope<'a, F> {
    spawner: &'a Spawner,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for InScope<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _scope = enter(self.spawner);
        self.future.as_mut().poll(cx)
    }
}
