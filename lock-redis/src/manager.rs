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

use crate::batcher::Outbox;
use crate::connection::{Conn, Role};
use crate::shared::Shared;
use crate::socket::Driver;

/// The pause after the first failed attempt to connect; doubled with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause: in front of a server that comes back, a renewal is late by this at most.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// A connection that lived this long ends a row of failures.
const STEADY: Duration = Duration::from_secs(1);

/// Ends its task when it is dropped.
pub(crate) struct Line {
    inner: Arc<Inner>,
    task: AbortHandle,
}

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) outbox: Outbox,
    role: Role,
    state: watch::Sender<State>,
    /// Somebody wants the connection.
    wanted: Notify,
    /// The runtime was shut down.
    gone: AtomicBool,
}

#[derive(Clone, Default)]
struct State {
    /// How many attempts to connect have ended.
    attempts: u64,
    conn: Option<Arc<Conn>>,
    /// Why the last attempt failed.
    why: Option<Error>,
}

impl Line {
    pub(crate) fn new(shared: Arc<Shared>, role: Role, runtime: &Handle) -> Self {
        let inner = Arc::new(Inner {
            shared,
            outbox: Outbox::default(),
            role,
            state: watch::Sender::default(),
            wanted: Notify::new(),
            gone: AtomicBool::new(false),
        });
        // Made here, since a runtime that was shut down drops the task unseen.
        let gone = Gone(inner.clone());
        let task = runtime.spawn(async move {
            tokio::select! {
                () = keep_up(&gone.0) => {}
                () = gone.0.outbox.refuse_late() => {}
            }
        });
        Self { inner, task: task.abort_handle() }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Whether its runtime is gone, and another line has to take its place.
    pub(crate) fn is_gone(&self) -> bool {
        self.inner.gone.load(Ordering::Acquire)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Inner {
    /// Sees to it that there is a connection, without waiting for it.
    pub(crate) fn want(&self) {
        let up = self.state.borrow().conn.as_ref().is_some_and(|conn| !conn.is_cut());
        if !up {
            self.wanted.notify_one();
        }
    }

    /// The connection, made first where there is none.
    ///
    /// # Errors
    /// `Unavailable` and whatever else connecting ends in; nothing was sent.
    pub(crate) async fn conn(&self, until: Instant) -> Result<Arc<Conn>> {
        let attempts = {
            let state = self.state.borrow();
            match &state.conn {
                Some(conn) if !conn.is_cut() => return Ok(conn.clone()),
                _ => state.attempts,
            }
        };
        let mut changes = self.state.subscribe();
        self.wanted.notify_one();
        let up = changes
            .wait_for(|state| state.conn.as_ref().is_some_and(|conn| !conn.is_cut()) || state.attempts > attempts);
        match timeout_at(until, up).await {
            Ok(Ok(state)) => match (&state.conn, &state.why) {
                (Some(conn), _) => Ok(conn.clone()),
                (None, Some(why)) => Err(why.clone()),
                (None, None) => Err(broke()),
            },
            Ok(Err(_)) => Err(broke()),
            Err(_) => Err(self.state.borrow().why.clone().unwrap_or_else(|| {
                let address = &self.shared.address;
                Error::new(ErrorKind::Unavailable, format!("no connection to the server at {address} within the bound"))
            })),
        }
    }
}

fn broke() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection broke before the request was sent")
}

/// Connects when it is wanted, and when it hears of grants also unasked; tries again until it is up. While it is up,
/// sends what waits.
async fn keep_up(line: &Inner) {
    let mut pause = FIRST_PAUSE;
    line.wanted.notified().await;
    loop {
        match Conn::open(&line.shared, line.role).await {
            Ok((conn, driver)) => {
                let since = Instant::now();
                serve(line, Arc::new(conn), driver).await;
                if since.elapsed() >= STEADY {
                    pause = FIRST_PAUSE;
                }
            }
            Err(why) => {
                let address = &line.shared.address;
                tracing::debug!(backend = crate::errors::BACKEND, address, error = %why, "cannot connect");
                line.outbox.refuse_all(&why);
                line.state.send_modify(|state| {
                    *state = State { attempts: state.attempts + 1, conn: None, why: Some(why) };
                });
            }
        }
        // The clients of a server that comes back do not come all at once.
        sleep(line.shared.core.get().map_or(pause, |core| core.jitter(pause))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        if line.role == Role::Asks {
            line.wanted.notified().await;
        }
    }
}

/// Sends what waits over a connection, until it is cut.
async fn serve(line: &Inner, conn: Arc<Conn>, mut driver: Driver) {
    line.state.send_modify(|state| {
        *state = State { attempts: state.attempts + 1, conn: Some(conn.clone()), why: None };
    });
    if let (Role::AsksAndListens, Some(core)) = (line.role, line.shared.core.get()) {
        // Grants that were published before the subscription stood were not heard.
        core.event(Event::LookAtAll);
    }
    tokio::select! {
        () = driver.ended() => conn.cut(),
        () = conn.wait_for_cut() => {}
        () = line.outbox.flush(&line.shared, &conn) => {}
    }
    line.state.send_modify(|state| state.conn = None);
}

/// Says that the task was dropped, as a runtime does with all of its tasks when it is shut down.
struct Gone(Arc<Inner>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.gone.store(true, Ordering::Release);
        self.0.outbox.close();
    }
}
