//! Keeps the connection of one runtime open, in a task of its own.
//!
//! A client has one connection manager for each tokio runtime that calls it: the user's for acquire and release, the
//! keeper's for renewals and pushes. The runtime that waits for a connection also drives it. So no call crosses
//! threads, and a user's runtime that is starved or shut down does not stop the renewals.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::Event;
use leasehold_core::backend::kit::RuntimeTask;
use leasehold_core::{Error, Result};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout_at};

use crate::batcher::Batcher;
use crate::connection::{Connection, Role};
use crate::protocol::Protocol;
use crate::shared::Shared;
use crate::socket::Driver;

/// The pause after the first failed attempt to connect. It doubles with each further failure.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause, and so the longest delay of a renewal once the server is back.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// A connection that lasted this long resets the pause.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// Manages one connection. Dropping it ends its task.
pub(crate) struct ConnectionManager<P: Protocol = Shared> {
    inner: Arc<Inner<P>>,
    task: RuntimeTask,
}

pub(crate) struct Inner<P: Protocol = Shared> {
    pub(crate) protocol: Arc<P>,
    pub(crate) batcher: Batcher<P>,
    role: Role,
    state: watch::Sender<State<P>>,
    /// A call needs a connection.
    requested: Notify,
}

struct State<P: Protocol> {
    /// How many attempts to connect have finished.
    attempts: u64,
    connection: Option<Arc<Connection<P>>>,
    /// Why the last attempt failed.
    last_error: Option<Error>,
}

impl<P: Protocol> ConnectionManager<P> {
    pub(crate) fn new(protocol: Arc<P>, role: Role, runtime: &Handle) -> Self {
        let inner = Arc::new(Inner {
            protocol,
            batcher: Batcher::default(),
            role,
            state: watch::Sender::new(State { attempts: 0, connection: None, last_error: None }),
            requested: Notify::new(),
        });
        let (connected, stopped) = (inner.clone(), inner.clone());
        let connect = async move {
            tokio::select! {
                () = reconnect(&connected) => {}
                () = connected.batcher.fail_overdue() => {}
            }
        };
        let task = RuntimeTask::begin(runtime, connect, move || stopped.batcher.close());
        Self { inner, task }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner<P>> {
        &self.inner
    }

    /// Whether the runtime has stopped, so that a new manager has to replace this one.
    pub(crate) fn is_stopped(&self) -> bool {
        self.task.has_ended()
    }
}

impl<P: Protocol> Inner<P> {
    /// Makes the task connect if there is no connection. Does not wait.
    pub(crate) fn request_connection(&self) {
        if !self.is_connected() {
            self.requested.notify_one();
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.state.borrow().connection.as_ref().is_some_and(|connection| !connection.is_closed())
    }

    /// How many attempts to connect have finished.
    pub(crate) fn attempts(&self) -> u64 {
        self.state.borrow().attempts
    }

    /// Why there is no connection, as far as it is known.
    pub(crate) fn last_error(&self) -> Option<Error> {
        self.state.borrow().last_error.clone()
    }

    /// Returns the connection, and waits for a new one if there is none.
    ///
    /// # Errors
    /// `Unavailable`, or the error of the attempt to connect. Nothing was sent.
    pub(crate) async fn connection(&self, until: Instant) -> Result<Arc<Connection<P>>> {
        let (attempts, connection) = {
            let state = self.state.borrow();
            (state.attempts, state.connection.clone())
        };
        if let Some(connection) = connection {
            if connection.is_idle() {
                self.protocol.note_idle();
                connection.test(until).await;
            }
            if !connection.is_closed() {
                return Ok(connection);
            }
        }
        let mut changes = self.state.subscribe();
        self.requested.notify_one();
        // `attempts` also counts failures: a caller gets the error of the attempt at once, and does not wait for its
        // bound.
        let connected = changes.wait_for(|state| {
            state.connection.as_ref().is_some_and(|connection| !connection.is_closed()) || state.attempts > attempts
        });
        match timeout_at(until, connected).await {
            Ok(Ok(state)) => match (&state.connection, &state.last_error) {
                (Some(connection), _) => Ok(connection.clone()),
                (None, Some(error)) => Err(error.clone()),
                (None, None) => Err(Error::not_sent()),
            },
            Ok(Err(_)) => Err(Error::not_sent()),
            Err(_) => Err(self.state.borrow().last_error.clone().unwrap_or_else(|| {
                let endpoint = self.protocol.endpoint();
                endpoint.connecting.given_up(&endpoint.address)
            })),
        }
    }
}

/// Connects on request, and reconnects until it succeeds. With [`Role::CommandsAndPushes`] it also reconnects without a
/// request. While it is connected, it sends the queued requests.
async fn reconnect<P: Protocol>(manager: &Inner<P>) {
    let mut pause = FIRST_PAUSE;
    manager.requested.notified().await;
    loop {
        match Connection::open(&manager.protocol, manager.role).await {
            Ok((connection, driver)) => {
                let since = Instant::now();
                serve(manager, Arc::new(connection), driver).await;
                if since.elapsed() >= STABLE_AFTER {
                    pause = FIRST_PAUSE;
                }
            }
            Err(error) => {
                let address = &manager.protocol.endpoint().address;
                tracing::debug!(backend = crate::errors::BACKEND, address, %error, "cannot connect");
                manager.batcher.fail_all(&error);
                manager.state.send_modify(|state| {
                    *state = State { attempts: state.attempts + 1, connection: None, last_error: Some(error) };
                });
            }
        }
        // The jitter keeps the clients of a server that comes back from connecting all at once.
        sleep(manager.protocol.attachment().get().map_or(pause, |core| core.jitter(pause))).await;
        pause = (pause * 2).min(MAX_PAUSE);
        if manager.role == Role::Commands {
            manager.requested.notified().await;
        }
    }
}

/// Sends the queued requests over a connection until it closes.
async fn serve<P: Protocol>(manager: &Inner<P>, connection: Arc<Connection<P>>, mut driver: Driver) {
    manager.state.send_modify(|state| {
        *state = State { attempts: state.attempts + 1, connection: Some(connection.clone()), last_error: None };
    });
    if let (Role::CommandsAndPushes, Some(core)) = (manager.role, manager.protocol.attachment().get()) {
        // Grants that were published before the subscription were not received.
        core.event(Event::Resync);
    }
    tokio::select! {
        () = driver.ended() => connection.close(),
        () = connection.closed() => {}
        () = connection.replaced() => {
            let address = connection.address();
            tracing::info!(backend = crate::errors::BACKEND, address, "the Sentinels name another primary");
            connection.close();
        }
        () = manager.batcher.flush(&connection) => {}
    }
    manager.state.send_modify(|state| state.connection = None);
    // Requests were queued when the connection closed. They must not wait for another caller to ask for a connection.
    if !manager.batcher.is_empty() {
        manager.requested.notify_one();
    }
}
