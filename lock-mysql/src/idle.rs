//! The connections of a pool that are idle, and those that are being opened.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::kit::lock;
use leasehold_core::{Error, ErrorKind};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::session::{Session, SetUp};
use crate::shared::Shared;

/// An idle connection is closed after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// All idle connections but one are closed after this time.
const SURPLUS_TIMEOUT: Duration = Duration::from_millis(300);

/// The most connections of a pool that are being opened. Otherwise many that are opened at once would all take too
/// long.
const MAX_OPENING: usize = 16;

/// The idle connections of a pool.
#[derive(Default)]
pub(crate) struct Idle {
    /// The last one was used last.
    sessions: Mutex<Vec<Session>>,
    /// There is more than one.
    has_surplus: Notify,
    /// There is one more.
    is_returned: Notify,
    /// Why the newest attempt to open one failed.
    failures: watch::Sender<Option<Error>>,
    /// The runtime was shut down, or the backend was dropped.
    is_stopped: AtomicBool,
}

impl Idle {
    /// Takes the one that was used last.
    pub(crate) fn pop(&self) -> Option<Session> {
        lock(&self.sessions).pop()
    }

    pub(crate) fn put(&self, session: Session) {
        if self.is_stopped() {
            return;
        }
        let mut sessions = lock(&self.sessions);
        sessions.push(session);
        self.is_returned.notify_one();
        if sessions.len() > 1 {
            self.has_surplus.notify_one();
        }
    }

    /// Closes all of them.
    pub(crate) fn clear(&self) {
        lock(&self.sessions).clear();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.clear();
    }

    /// Closes connections that were idle for too long, and all when the server has no room. Never returns.
    pub(crate) async fn close_old(&self, shared: &Shared) {
        let mut refusals = shared.refusals();
        loop {
            let has_surplus = {
                let mut sessions = lock(&self.sessions);
                let last = sessions.len().saturating_sub(1);
                let mut index = 0;
                sessions.retain(|session| {
                    let bound = if index == last { IDLE_TIMEOUT } else { SURPLUS_TIMEOUT };
                    index += 1;
                    !session.is_idle_for(bound)
                });
                sessions.len() > 1
            };
            let next = async {
                match has_surplus {
                    true => sleep(SURPLUS_TIMEOUT / 2).await,
                    false => drop(timeout(IDLE_TIMEOUT / 4, self.has_surplus.notified()).await),
                }
            };
            tokio::select! {
                () = next => {}
                Ok(()) = refusals.changed() => self.clear(),
            }
        }
    }
}

/// The connections of a pool that are being opened, each in a task. It goes on when the call that needed it has given
/// up, and the next call finds the connection: on a slow path no call would live to see its own. Dropping this ends the
/// tasks.
#[derive(Default)]
pub(crate) struct Opening {
    attempts: Mutex<JoinSet<()>>,
    /// The number of attempts without an outcome. Not that of tasks: a call that is woken by the outcome may use the
    /// connection and close it before the task has ended, and the next call would wait in vain.
    open: Arc<AtomicUsize>,
    /// The number of calls that wait.
    waiting: Arc<AtomicUsize>,
}

impl Opening {
    /// Waits until a connection is opened, or another call returns one.
    ///
    /// # Errors
    /// The failure of the newest attempt, or no connection until `until`.
    pub(crate) async fn next(
        &self,
        idle: &Arc<Idle>,
        shared: &Arc<Shared>,
        set_up: SetUp,
        until: Instant,
    ) -> Result<Session, Error> {
        let _waiting = Counted::new(&self.waiting);
        let mut failures = idle.failures.subscribe();
        loop {
            self.begin(idle, shared, set_up);
            tokio::select! {
                () = idle.is_returned.notified() => {
                    if let Some(session) = idle.pop() {
                        return Ok(session);
                    }
                }
                Ok(()) = failures.changed() => {
                    if let Some(error) = failures.borrow_and_update().clone() {
                        return Err(error);
                    }
                }
                () = sleep_until(until) => return Err(shared.given_up()),
            }
        }
    }

    /// Begins an attempt for each call that waits.
    fn begin(&self, idle: &Arc<Idle>, shared: &Arc<Shared>, set_up: SetUp) {
        let mut attempts = lock(&self.attempts);
        while attempts.try_join_next().is_some() {}
        while self.open.load(Ordering::Acquire) < self.waiting.load(Ordering::Acquire).min(MAX_OPENING) {
            let (idle, shared, attempt) = (idle.clone(), shared.clone(), Counted::new(&self.open));
            attempts.spawn(async move {
                let opened = Session::open(&shared, set_up).await;
                drop(attempt);
                match opened {
                    Ok(session) => idle.put(session),
                    Err(error) => {
                        if error.kind() == ErrorKind::Capacity {
                            shared.note_no_room();
                        }
                        idle.failures.send_replace(Some(error));
                    }
                }
            });
        }
    }

    /// Ends all attempts.
    pub(crate) fn stop(&self) {
        lock(&self.attempts).abort_all();
    }
}

/// Counts one until it is dropped: an attempt without an outcome, or a call that waits.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
