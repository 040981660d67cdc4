//! The connection of one runtime, kept up by a task of its own.
//!
//! A client has one line for every tokio runtime that calls it: the user's for acquire and release, the keeper's for
//! renewals and pushes. So a connection is always driven by the runtime that waits for it, a call never pays for
//! crossing threads, and a user's runtime that starves does not stop the renewals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::backend::Event;
use leasehold_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::batcher::Batcher;
use crate::connection::{Connection, Role};
use crate::shared::Shared;
use crate::socket::Driver;

/// The pause after the first failed attempt to connect; doubled with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause: in front of a server that comes back, a renewal is late by this at most.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// A connection that lived this long ends a row of failures.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// Ends its task when it is dropped.
pub(crate) struct ConnectionManager {
    inner: Arc<Inner>,
    task: AbortHandle,
}

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) batcher: Batcher,
    role: Role,
    state: watch::Sender<State>,
    /// Somebody wants the connection.
    requested: Notify,
    /// The runtime was shut down.
    is_stopped: AtomicBool,
}

#[derive(Clone, Default)]
struct State {
    /// How many attempts to connect have ended.
    attempts: u64,
    connection: Option<Arc<Connection>>,
    /// Why the last attempt failed.
    last_error: Option<Error>,
}

impl ConnectionManager {
    pub(crate) fn new(shared: Arc<Shared>, role: Role, runtime: &Handle) -> Self {
        let inner = Arc::new(Inner {
            shared,
            batcher: Batcher::default(),
            role,
            state: watch::Sender::default(),
            requested: Notify::new(),
            is_stopped: AtomicBool::new(false),
        });
        // Made here, since a runtime that was shut down drops the task unseen.
        let guard = StopGuard(inner.clone());
        let task = runtime.spawn(async move {
            tokio::select! {
                () = reconnect(&guard.0) => {}
                () = guard.0.batcher.fail_overdue() => {}
            }
        });
        Self { inner, task: task.abort_handle() }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Whether its runtime is gone, and another line has to take its place.
    pub(crate) fn is_stopped(&self) -> bool {
        self.inner.is_stopped.load(Ordering::Acquire)
    }
}

impl Drop for ConnectionManager {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Inner {
    /// Sees to it that there is a connection, without waiting for it.
    pub(crate) fn request_connection(&self) {
        let is_connected = self.state.borrow().connection.as_ref().is_some_and(|connection| !connection.is_closed());
        if !is_connected {
            self.requested.notify_one();
        }
    }

    /// The connection, made first where there is none.
    ///
    /// # Errors
    /// `Unavailable` and whatever else connecting ends in; nothing was sent.
    pub(crate) async fn connection(&self, until: Instant) -> Result<Arc<Connection>> {
        let attempts = {
            let state = self.state.borrow();
            match &state.connection {
                Some(connection) if !connection.is_closed() => return Ok(connection.clone()),
                _ => state.attempts,
            }
        };
        let mut changes = self.state.subscribe();
        self.requested.notify_one();
        let connected = changes.wait_for(|state| {
            state.connection.as_ref().is_some_and(|connection| !connection.is_closed()) || state.attempts > attempts
        });
        match timeout_at(until, connected).await {
            Ok(Ok(state)) => match (&state.connection, &state.last_error) {
                (Some(connection), _) => Ok(connection.clone()),
                (None, Some(error)) => Err(error.clone()),
                (None, None) => Err(disconnected()),
            },
            Ok(Err(_)) => Err(disconnected()),
            Err(_) => Err(self.state.borrow().last_error.clone().unwrap_or_else(|| {
                let address = &self.shared.address;
                Error::new(ErrorKind::Unavailable, format!("no connection to the server at {address} within the bound"))
            })),
        }
    }
}

fn disconnected() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection broke before the request was sent")
}

/// Connects when it is wanted, and when it hears of grants also unasked; tries again until it is up. While it is up,
/// sends what waits.
async fn reconnect(manager: &Inner) {
    let mut pause = FIRST_PAUSE;
    manager.requested.notified().await;
    loop {
        match Connection::open(&manager.shared, manager.role).await {
            Ok((connection, driver)) => {
                let since = Instant::now();
                serve(manager, Arc::new(connection), driver).await;
                if since.elapsed() >= STABLE_AFTER {
                    pause = FIRST_PAUSE;
                }
            }
            Err(error) => {
                let address = &manager.shared.address;
                tracing::debug!(backend = crate::errors::BACKEND, address, %error, "cannot connect");
                manager.batcher.fail_all(&error);
                manager.state.send_modify(|state| {
                    *state = State { attempts: state.attempts + 1, connection: None, last_error: Some(error) };
                });
            }
        }
        // The clients of a server that comes back do not come all at once.
        sleep(manager.shared.core.get().map_or(pause, |core| core.jitter(pause))).await;
        pause = (pause * 2).min(MAX_PAUSE);
        if manager.role == Role::Commands {
            manager.requested.notified().await;
        }
    }
}

/// Sends what waits over a connection, until it is cut.
async fn serve(manager: &Inner, connection: Arc<Connection>, mut driver: Driver) {
    manager.state.send_modify(|state| {
        *state = State { attempts: state.attempts + 1, connection: Some(connection.clone()), last_error: None };
    });
    if let (Role::CommandsAndPushes, Some(core)) = (manager.role, manager.shared.core.get()) {
        // Grants that were published before the subscription stood were not heard.
        core.event(Event::LookAtAll);
    }
    tokio::select! {
        () = driver.ended() => connection.close(),
        () = connection.closed() => {}
        () = manager.batcher.flush(&manager.shared, &connection) => {}
    }
    manager.state.send_modify(|state| state.connection = None);
}

/// Says that the task was dropped, as a runtime does with all of its tasks when it is shut down.
struct StopGuard(Arc<Inner>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.0.is_stopped.store(true, Ordering::Release);
        self.0.batcher.close();
    }
}
