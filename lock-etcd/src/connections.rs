//! The connection of one runtime: opened when it is needed, to the first member that serves it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::Client;
use leasehold_core::backend::PerRuntime;
use leasehold_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::connection::Connection;
use crate::errors::{Failure, not_connected};
use crate::shared::{Shared, lock};

/// The pause between two attempts of a request that no member serves now.
const PAUSE: Duration = Duration::from_millis(20);

type Outcome = Option<Result<Arc<Connection>, Failure>>;

/// The connection of one runtime.
pub(crate) struct Connections {
    pub(crate) shared: Arc<Shared>,
    runtime: Handle,
    state: Mutex<State>,
    is_stopped: Arc<AtomicBool>,
    /// Sees the end of the runtime.
    watchdog: AbortHandle,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Connection>>,
    opening: Option<watch::Receiver<Outcome>>,
}

/// Sets its flag when it is dropped.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Connections {
    pub(crate) fn new(shared: Arc<Shared>, runtime: &Handle) -> Arc<Self> {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let flag = Flag(is_stopped.clone());
        let watchdog = runtime.spawn(async move {
            let _flag = flag;
            std::future::pending::<()>().await;
        });
        let watchdog = watchdog.abort_handle();
        Arc::new(Self { shared, runtime: runtime.clone(), state: Mutex::default(), is_stopped, watchdog })
    }

    /// Whether its runtime has ended.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// A connection. Every caller of the runtime shares it.
    pub(crate) async fn get(self: &Arc<Self>, until: Instant) -> Result<Arc<Connection>, Failure> {
        let mut opening = {
            let mut state = lock(&self.state);
            if let Some(current) = state.current.as_ref().filter(|current| !current.is_closed()) {
                return Ok(current.clone());
            }
            state.current = None;
            let is_new =
                |opening: &&watch::Receiver<Outcome>| opening.borrow().is_none() && opening.has_changed().is_ok();
            match state.opening.as_ref().filter(is_new) {
                Some(opening) => opening.clone(),
                None => state.opening.insert(self.open()).clone(),
            }
        };
        let opened = timeout_at(until, opening.wait_for(Option::is_some)).await;
        match opened {
            Ok(Ok(outcome)) => outcome.clone().unwrap_or_else(|| Err(self.unreachable())),
            // The runtime shuts down, or the bound is shorter than that of the attempt.
            Ok(Err(_)) | Err(_) => Err(self.unreachable()),
        }
    }

    /// Begins to connect, so that the first call finds a connection.
    pub(crate) fn warm_up(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if state.current.is_none() && state.opening.is_none() {
            state.opening = Some(self.open());
        }
    }

    fn unreachable(&self) -> Failure {
        let addresses: Vec<_> = self.shared.members.all().iter().map(|member| &*member.address).collect();
        not_connected(&addresses.join(", "), None)
    }

    fn open(self: &Arc<Self>) -> watch::Receiver<Outcome> {
        let (sender, receiver) = watch::channel(None);
        let this = Arc::downgrade(self);
        let shared = self.shared.clone();
        self.runtime.spawn(async move {
            let outcome = open_any(&shared).await;
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
        request: impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
        T: Send + 'static,
    {
        self.attempts(until, Failure::may_repeat, Duration::MAX, request).await
    }

    /// Sends a request that has the same effect when it is repeated, or none. Another member is tried after a part of the bound.
    pub(crate) async fn send_repeatable<T, F>(
        self: &Arc<Self>,
        until: Instant,
        request: impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
        T: Send + 'static,
    {
        self.attempts(until, Failure::may_try_another, self.shared.attempt(), request).await
    }

    async fn attempts<T, F>(
        self: &Arc<Self>,
        until: Instant,
        may_try_again: fn(&Failure) -> bool,
        bound: Duration,
        request: impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
        T: Send + 'static,
    {
        let mut tokens_refused = 0;
        loop {
            let begin = Instant::now();
            let connection = match self.get(until).await {
                Ok(connection) => connection,
                // The members may be electing a leader. Without another member, a retry is the caller's.
                Err(failure)
                    if self.shared.members.all().len() > 1 && failure.may_repeat() && Instant::now() < until =>
                {
                    sleep_until((Instant::now() + PAUSE).min(until)).await;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let deadline = begin.checked_add(bound).map_or(until, |attempt| attempt.min(until));
            let failure = match connection.call(request(connection.client()), deadline).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            self.failed(&connection, &failure);
            if matches!(failure, Failure::Token(_)) {
                tokens_refused += 1;
            }
            if !may_try_again(&failure) || tokens_refused > 1 || Instant::now() >= until {
                return Err(failure);
            }
            if failure.may_repeat() {
                sleep_until((Instant::now() + PAUSE).min(until)).await;
            }
        }
    }

    /// A request or a stream on this connection failed.
    pub(crate) fn failed(&self, connection: &Connection, failure: &Failure) {
        if failure.ends_connection() {
            connection.close();
        }
        if connection.is_closed() && !matches!(failure, Failure::Token(_)) {
            self.shared.members.avoid(connection.member);
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.watchdog.abort();
    }
}

/// Connects to the first member that can be reached.
async fn open_any(shared: &Arc<Shared>) -> Result<Arc<Connection>, Failure> {
    let until = shared.until();
    let mut last = None;
    for member in shared.members.order() {
        let attempt = (Instant::now() + shared.attempt()).min(until);
        match Connection::open(shared, member, attempt).await {
            Ok(connection) => {
                shared.members.prefer(member);
                return Ok(Arc::new(connection));
            }
            Err(failure @ Failure::Refused(_)) => return Err(failure),
            Err(failure) => last = Some(failure),
        }
    }
    Err(last.unwrap_or_else(|| Failure::NotSent(Error::new(ErrorKind::Unavailable, "the URL names no host"))))
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
