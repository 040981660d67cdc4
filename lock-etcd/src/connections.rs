//! The connection of one runtime: opened when it is needed, to the first member that serves it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::{Client, KvClient};
use leasehold_core::backend::kit::{PerRuntime, RuntimeTask, lock};
use leasehold_core::{Error, Result};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::connection::Connection;
use crate::errors::{Failure, most_hopeful};
use crate::pauses::Pauses;
use crate::shared::Shared;

type Outcome = Option<Result<Arc<Connection>, Failure>>;

/// The connection of one runtime.
pub(crate) struct Connections {
    pub(crate) shared: Arc<Shared>,
    runtime: Handle,
    state: Mutex<State>,
    /// Sees the end of the runtime.
    watchdog: RuntimeTask,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Connection>>,
    opening: Option<watch::Receiver<Outcome>>,
}

impl State {
    fn usable(&self) -> Option<&Arc<Connection>> {
        self.current.as_ref().filter(|current| current.health.is_usable())
    }
}

impl Connections {
    pub(crate) fn new(shared: Arc<Shared>, runtime: &Handle) -> Arc<Self> {
        let watchdog = RuntimeTask::begin(runtime, std::future::pending(), || {});
        Arc::new(Self { shared, runtime: runtime.clone(), state: Mutex::default(), watchdog })
    }

    /// Whether its runtime has ended.
    pub(crate) fn is_stopped(&self) -> bool {
        self.watchdog.has_ended()
    }

    /// A connection. Every caller of the runtime shares it.
    pub(crate) async fn get(self: &Arc<Self>, until: Instant) -> Result<Arc<Connection>, Failure> {
        let mut opening = match self.ready_or_opening() {
            Ok(ready) => return Ok(ready),
            Err(opening) => opening,
        };
        let opened = timeout_at(until, opening.wait_for(Option::is_some)).await;
        match opened {
            Ok(Ok(outcome)) => outcome.clone().unwrap_or_else(|| Err(self.unreachable())),
            // The runtime shuts down, or the bound is shorter than that of the attempt.
            Ok(Err(_)) | Err(_) => Err(self.unreachable()),
        }
    }

    /// Begins to connect, or to test a connection that was idle, so that the next call need not wait for that.
    pub(crate) fn warm_up(self: &Arc<Self>) {
        let _ = self.ready_or_opening();
    }

    /// The connection if it may be used, or the attempt to open one.
    fn ready_or_opening(self: &Arc<Self>) -> Result<Arc<Connection>, watch::Receiver<Outcome>> {
        let mut state = lock(&self.state);
        if let Some(current) = state.usable().filter(|current| !current.health.is_idle()) {
            return Ok(current.clone());
        }
        let is_new = |opening: &&watch::Receiver<Outcome>| opening.borrow().is_none() && opening.has_changed().is_ok();
        Err(match state.opening.as_ref().filter(is_new) {
            Some(opening) => opening.clone(),
            None => {
                let former = state.current.take();
                state.opening.insert(self.open(former)).clone()
            }
        })
    }

    fn unreachable(&self) -> Failure {
        Failure::NotSent(self.shared.connecting.given_up(&self.shared.addresses()))
    }

    /// Opens a connection, or waits for the former one.
    fn open(self: &Arc<Self>, former: Option<Arc<Connection>>) -> watch::Receiver<Outcome> {
        let (sender, receiver) = watch::channel(None);
        let this = Arc::downgrade(self);
        let shared = self.shared.clone();
        self.runtime.spawn(async move {
            let outcome = tokio::select! {
                outcome = reopen(&shared, former) => outcome,
                // The client is gone.
                () = sender.closed() => return,
            };
            if let (Some(this), Ok(connection)) = (this.upgrade(), &outcome) {
                lock(&this.state).current = Some(connection.clone());
            }
            sender.send_replace(Some(outcome));
        });
        receiver
    }

    /// Sends a request that must not be repeated when it may have had an effect.
    pub(crate) async fn send<T, F>(
        self: &Arc<Self>,
        until: Instant,
        request: impl Fn(KvClient) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
        T: Send + 'static,
    {
        let (mut tokens_refused, mut pauses, retry_until) = (0, Pauses::default(), self.retry_until(until));
        loop {
            let connection = match self.get(until).await {
                Ok(connection) => connection,
                // The members may be electing a leader. Without another member, a retry is the caller's.
                Err(failure)
                    if self.shared.members.are_several() && failure.may_repeat() && Instant::now() < retry_until =>
                {
                    pauses.wait(retry_until).await;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let failure = match connection.call(request(connection.kv()), until).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            self.failed(&connection, &failure);
            tokens_refused += u32::from(matches!(failure, Failure::Token(_)));
            if !failure.may_repeat() || tokens_refused > 1 || Instant::now() >= retry_until {
                return Err(failure);
            }
            pauses.wait(retry_until).await;
        }
    }

    /// No attempt begins later. A caller that waits for as long as a call lasts would leave just before its end
    /// otherwise, and not learn that nothing was sent.
    fn retry_until(&self, until: Instant) -> Instant {
        until - self.shared.settings.timeout / 4
    }

    /// Sends a request that has the same effect when it is repeated, or none. If a member does not reply soon, the next
    /// one is asked as well: the first reply counts. So a slow path is no fault, and a member that is paused is a short
    /// delay.
    pub(crate) async fn send_repeatable<T, F, R>(self: &Arc<Self>, until: Instant, request: R) -> Result<T, Failure>
    where
        R: Fn(Client) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
        T: Send + 'static,
    {
        let (mut attempts, is_sent) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
        let (mut asked, mut last, mut pauses, retry_until) = (0, None, Pauses::default(), self.retry_until(until));
        let members = self.shared.members.all().len();
        // The path may have forgotten an idle connection, so another one is opened beside the request. The preferred
        // member may then be asked twice.
        let is_idle = lock(&self.state).usable().is_some_and(|current| current.health.is_idle());
        let (may_ask, patience) = match is_idle {
            true => (members + 1, self.shared.test()),
            false => (members, self.shared.attempt()),
        };
        loop {
            let begin = Instant::now();
            let ask = |attempts: &mut JoinSet<_>, nth: usize| {
                let (this, request, is_sent) = (self.clone(), request.clone(), is_sent.clone());
                attempts.spawn(async move { this.attempt(nth, until, request, &is_sent).await });
            };
            ask(&mut attempts, asked);
            asked += 1;
            let next = match asked < may_ask {
                true => (begin + patience).min(until),
                false => until,
            };
            loop {
                tokio::select! {
                    ended = attempts.join_next(), if !attempts.is_empty() => match ended {
                        Some(Ok(Ok((connection, reply)))) => {
                            self.adopt(connection);
                            return Ok(reply);
                        }
                        Some(Ok(Err(failure))) if !failure.may_try_another() => return Err(failure),
                        Some(Ok(Err(failure))) => last = most_hopeful(last.into_iter().chain([failure])),
                        // The runtime shuts down.
                        Some(Err(_)) | None => return Err(Failure::TimedOut),
                    },
                    () = sleep_until(next), if !attempts.is_empty() => break,
                    else => break,
                }
            }
            if Instant::now() >= until {
                return Err(match last {
                    Some(failure) => failure,
                    None if is_sent.load(Ordering::Relaxed) => Failure::TimedOut,
                    None => self.unreachable(),
                });
            }
            if attempts.is_empty() {
                // A single member that cannot be connected to is down. More attempts would only use up the bound.
                let is_down = !self.shared.members.are_several() && last.as_ref().is_some_and(is_not_sent);
                if is_down || Instant::now() >= retry_until {
                    return Err(last.unwrap_or(Failure::TimedOut));
                }
                asked = 0;
                pauses.wait(retry_until).await;
            }
        }
    }

    /// Asks one member: the present one, even if its connection was idle, or the `nth` after it. Sets `is_sent` before
    /// it sends the request.
    async fn attempt<T, F, R>(
        self: &Arc<Self>,
        nth: usize,
        until: Instant,
        request: R,
        is_sent: &AtomicBool,
    ) -> Result<(Arc<Connection>, T), Failure>
    where
        R: Fn(Client) -> F,
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
        T: Send + 'static,
    {
        let mut is_refused = false;
        loop {
            let present = lock(&self.state).usable().cloned();
            let connection = match (nth, present) {
                (0, Some(present)) => present,
                (0, None) => self.get(until).await?,
                _ => {
                    let member = self.shared.members.nth(nth);
                    Arc::new(Connection::open(&self.shared, member, until).await?)
                }
            };
            is_sent.store(true, Ordering::Relaxed);
            match connection.call(request(connection.client()), until).await {
                Ok(reply) => return Ok((connection, reply)),
                Err(failure) => {
                    self.failed(&connection, &failure);
                    // The token of the log-in may have expired. A new connection logs in again, but only once: a server
                    // that refuses each token would otherwise be asked without end.
                    if !matches!(failure, Failure::Token(_)) || std::mem::replace(&mut is_refused, true) {
                        return Err(failure);
                    }
                }
            }
        }
    }

    /// Stays with the connection that served a request.
    fn adopt(&self, connection: Arc<Connection>) {
        let mut state = lock(&self.state);
        if state.current.as_ref().is_none_or(|current| !Arc::ptr_eq(current, &connection)) {
            self.shared.members.prefer(connection.member);
            if let Some(former) = state.current.replace(connection) {
                former.health.close();
            }
        }
    }

    /// A request or a stream on this connection failed. If the connection is of no use now, the next member is tried
    /// first.
    pub(crate) fn failed(&self, connection: &Connection, failure: &Failure) {
        if !connection.health.is_usable() && !matches!(failure, Failure::Token(_)) {
            self.shared.members.avoid(connection.member);
        }
    }
}

fn is_not_sent(failure: &Failure) -> bool {
    matches!(failure, Failure::NotSent(_))
}

/// Opens a connection unless a late reply makes the former one usable again: to log in anew costs an overloaded server
/// more than its reply.
async fn reopen(shared: &Arc<Shared>, former: Option<Arc<Connection>>) -> Result<Arc<Connection>, Failure> {
    if let Some(former) = former {
        if former.health.is_usable() {
            return test(shared, &former).await;
        }
        // Another member may reply sooner.
        let patience = if shared.members.are_several() { Duration::ZERO } else { shared.settings.timeout };
        if timeout(patience, former.health.decided()).await == Ok(true) {
            return Ok(former);
        }
        former.health.close();
    }
    open_any(shared).await
}

/// Tests a connection that was idle. If the reply takes long, another connection is opened beside it, and the first one
/// wins: a slow path is no fault.
async fn test(shared: &Arc<Shared>, idle: &Arc<Connection>) -> Result<Arc<Connection>, Failure> {
    let key = shared.keys.names_with("").unwrap_or_default();
    let mut alive = std::pin::pin!(idle.is_alive(key, shared.until()));
    let outcome = match timeout(shared.test(), &mut alive).await {
        Ok(true) => return Ok(idle.clone()),
        Ok(false) => open_any(shared).await,
        Err(_) => tokio::select! {
            true = &mut alive => return Ok(idle.clone()),
            outcome = open_any(shared) => outcome,
        },
    };
    idle.health.close();
    outcome
}

/// Connects to the first member that can be reached.
async fn open_any(shared: &Arc<Shared>) -> Result<Arc<Connection>, Failure> {
    let opened = shared.connecting.at_once(|until| {
        let open = move |member| {
            let shared = shared.clone();
            async move { Connection::open(&shared, member, until).await }
        };
        shared.members.open_any(shared.settings.timeout, open, |failure| matches!(failure, Failure::Refused(_)))
    });
    // Without a failure, the runtime shuts down.
    let last = |failures: Vec<_>| most_hopeful(failures).unwrap_or_else(|| Failure::NotSent(Error::shut_down()));
    let connection = opened.await.map_err(last)?;
    shared.members.prefer(connection.member);
    Ok(Arc::new(connection))
}

/// The connections of all runtimes that call the backend.
#[derive(Default)]
pub(crate) struct AllConnections(PerRuntime<Arc<Connections>>);

impl AllConnections {
    /// The connection of the calling runtime.
    pub(crate) fn of_caller(&self, shared: &Arc<Shared>) -> Result<Arc<Connections>> {
        Ok(self.of(shared, &PerRuntime::<()>::caller()?))
    }

    pub(crate) fn of(&self, shared: &Arc<Shared>, runtime: &Handle) -> Arc<Connections> {
        let make = || Connections::new(shared.clone(), runtime);
        self.0.read(runtime, |it| !it.is_stopped(), make, Arc::clone)
    }
}
