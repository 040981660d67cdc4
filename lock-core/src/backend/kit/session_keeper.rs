//! Keeps a session of a store alive for all callers that wait for its confirmation.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::session_lease::{Known, SessionLease};
use crate::backend::{Confirmation, CoreHandle, PlaceNumber};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// The confirmations of a session, and the callers that wait for one. They share one request, which a task on the
/// [keeper's runtime](CoreHandle::keeper_runtime) sends. The task ends when no caller waits any more, so a session
/// without leases and places is not kept alive.
pub struct SessionKeeper {
    core: CoreHandle,
    lease: watch::Sender<SessionLease>,
    state: Mutex<State>,
}

/// A session that a [`SessionKeeper`] keeps alive.
#[async_trait]
pub trait KeptSession: Send + Sync + 'static {
    /// Its keeper.
    fn keeper(&self) -> &SessionKeeper;

    /// Sends one request that prolongs the session, by `until`. Returns the ttl of the reply and when the request was
    /// sent; `None` if the server has ended the session.
    ///
    /// # Errors
    /// If there is no reply. Every waiting caller gets the error.
    async fn keep_alive(&self, until: Instant) -> Result<Option<(Duration, Stamp)>>;
}

/// Why a session has no confirmation.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a backend has to handle each reason")]
pub enum Unconfirmed {
    /// The session has ended, and with it every lease and place.
    Gone,
    /// The server did not reply in time.
    Failed(Error),
}

#[derive(Default)]
struct State {
    wanted: Option<Wanted>,
    /// A task sends requests.
    is_running: bool,
}

/// A confirmation that a caller waits for.
#[derive(Clone, Copy)]
struct Wanted {
    since: Stamp,
    until: Instant,
}

impl SessionKeeper {
    /// A renewal wants a confirmation that is no older than this part of the ttl. It is less than a third, so that
    /// leases that were granted at different times are renewed together from then on.
    pub const AGE: u32 = 6;

    /// The keeper of a session that was opened: the server granted `ttl` to a request that was sent at `sent`.
    pub fn new(core: &CoreHandle, ttl: Duration, sent: Stamp) -> Self {
        let lease = watch::Sender::new(SessionLease::granted(ttl, sent));
        Self { core: core.clone(), lease, state: Mutex::default() }
    }

    /// The newest confirmation, for a place or lease with this number.
    pub fn newest(&self, place: PlaceNumber) -> Confirmation {
        let (ttl, sent) = self.lease.borrow().newest();
        Confirmation { ttl, sent, place }
    }

    /// Whether its ttl has passed since the newest confirmation, or it has ended.
    pub fn is_overdue(&self, now: Stamp) -> bool {
        self.lease.borrow().is_overdue(now)
    }

    /// The server has ended the session. Every waiting caller learns of it.
    pub fn end(&self) {
        self.lease.send_modify(SessionLease::end);
    }

    /// A confirmation that is no older than `since`, if there is one without another request.
    pub fn confirmed_since(&self, since: Stamp, place: PlaceNumber) -> Option<Confirmation> {
        match self.lease.borrow().known_since(since) {
            Known::Confirmed(ttl, sent) => Some(Confirmation { ttl, sent, place }),
            Known::Gone | Known::Unknown | Known::Failed(_) => None,
        }
    }

    /// Makes the task send a request, unless there is a confirmation no older than `since`. Does not wait.
    pub fn refresh(session: &Arc<impl KeptSession>, since: Stamp, until: Instant) {
        let keeper = session.keeper();
        if keeper.is_known_since(since) {
            return;
        }
        let is_idle = {
            let mut state = lock(&keeper.state);
            let former = state.wanted.unwrap_or(Wanted { since, until });
            state.wanted = Some(Wanted { since: former.since.max(since), until: former.until.max(until) });
            !std::mem::replace(&mut state.is_running, true)
        };
        if is_idle {
            keeper.core.keeper_runtime().spawn(run(session.clone()));
        }
    }

    /// Waits for a confirmation that is no older than `since`. Cancel safe.
    ///
    /// # Errors
    /// [`Unconfirmed`], at `until` at the latest.
    pub async fn confirm(
        session: &Arc<impl KeptSession>,
        since: Stamp,
        place: PlaceNumber,
        until: Instant,
    ) -> Result<Confirmation, Unconfirmed> {
        // A failure that is known already belongs to an earlier attempt.
        let mut lease = session.keeper().lease.subscribe();
        Self::refresh(session, since, until);
        let mut is_first = true;
        loop {
            match lease.borrow_and_update().known_since(since) {
                Known::Confirmed(ttl, sent) => return Ok(Confirmation { ttl, sent, place }),
                Known::Gone => return Err(Unconfirmed::Gone),
                Known::Failed(error) if !is_first => return Err(Unconfirmed::Failed(error)),
                Known::Failed(_) | Known::Unknown => {}
            }
            is_first = false;
            match timeout_at(until, lease.changed()).await {
                Ok(Ok(())) => {}
                // The keeper's runtime has ended.
                Ok(Err(_)) | Err(_) => {
                    return Err(Unconfirmed::Failed(Error::new(ErrorKind::Indeterminate, TIMED_OUT)));
                }
            }
        }
    }

    /// Whether the session was confirmed at `since` or later, or has ended.
    fn is_known_since(&self, since: Stamp) -> bool {
        matches!(self.lease.borrow().known_since(since), Known::Confirmed(..) | Known::Gone)
    }

    /// What to confirm next. `None` if the task ends.
    fn next(&self) -> Option<Wanted> {
        let mut state = lock(&self.state);
        let wanted = state.wanted.take();
        state.is_running = wanted.is_some();
        wanted
    }
}

impl fmt::Debug for SessionKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionKeeper").field("lease", &*self.lease.borrow()).finish_non_exhaustive()
    }
}

const TIMED_OUT: &str =
    "the server did not confirm the session in time (`timeout` in the URL): it may or may not have prolonged it";

async fn run(session: Arc<impl KeptSession>) {
    let keeper = session.keeper();
    while let Some(Wanted { since, until }) = keeper.next() {
        // The request before it may have confirmed this as well.
        if keeper.is_known_since(since) {
            continue;
        }
        let kept = session.keep_alive(until).await;
        keeper.lease.send_modify(|lease| match kept {
            Ok(Some((ttl, sent))) => lease.kept_alive(ttl, sent),
            Ok(None) => lease.end(),
            Err(error) => lease.failed(since, error),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::runtime::Handle;

    use super::*;
    use crate::clock::SystemClock;

    const TTL: Duration = Duration::from_secs(3);

    /// A session whose requests have these outcomes.
    struct Planted {
        keeper: SessionKeeper,
        core: CoreHandle,
        outcomes: Mutex<VecDeque<Result<Option<Duration>>>>,
    }

    #[async_trait]
    impl KeptSession for Planted {
        fn keeper(&self) -> &SessionKeeper {
            &self.keeper
        }

        async fn keep_alive(&self, _until: Instant) -> Result<Option<(Duration, Stamp)>> {
            let sent = self.core.stamp();
            tokio::time::sleep(Duration::from_millis(20)).await;
            let outcome = lock(&self.outcomes).pop_front();
            outcome.unwrap_or_else(|| panic!("a request too many")).map(|ttl| ttl.map(|ttl| (ttl, sent)))
        }
    }

    fn planted(outcomes: impl IntoIterator<Item = Result<Option<Duration>>>) -> Arc<Planted> {
        let core = CoreHandle::new(Arc::new(SystemClock::new()), Handle::current(), |_| {});
        let outcomes = Mutex::new(outcomes.into_iter().collect());
        Arc::new(Planted { keeper: SessionKeeper::new(&core, TTL, core.stamp()), core, outcomes })
    }

    async fn confirm(session: &Arc<Planted>, since: Stamp) -> Result<Confirmation, Unconfirmed> {
        let until = Instant::now() + Duration::from_secs(10);
        SessionKeeper::confirm(session, since, PlaceNumber::NONE, until).await
    }

    #[tokio::test(start_paused = true)]
    async fn all_that_wait_share_one_request() {
        let session = planted([Ok(Some(TTL))]);
        // The request is sent later than this.
        let since = session.core.stamp();
        let (one, other) = tokio::join!(confirm(&session, since), confirm(&session, since));
        assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
        assert!(confirm(&session, since).await.is_ok());
        assert!(session.keeper.confirmed_since(since, PlaceNumber::NONE).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_reaches_all_that_wait_and_no_later_one() {
        let error = Error::new(ErrorKind::Unavailable, "planted");
        let session = planted([Err(error), Ok(Some(TTL))]);
        let since = session.core.stamp();
        let (one, other) = tokio::join!(confirm(&session, since), confirm(&session, since));
        assert!(matches!((one, other), (Err(Unconfirmed::Failed(_)), Err(Unconfirmed::Failed(_)))));
        assert!(confirm(&session, since).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_has_ended_sends_nothing_more() {
        let session = planted([Ok(None)]);
        for _ in 0..2 {
            let since = session.core.stamp();
            assert!(matches!(confirm(&session, since).await, Err(Unconfirmed::Gone)));
        }
        assert!(session.keeper.is_overdue(session.core.stamp()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_in_time() {
        let session = planted([Ok(Some(TTL))]);
        let since = session.core.stamp();
        let until = Instant::now() + Duration::from_millis(5);
        let confirmed = SessionKeeper::confirm(&session, since, PlaceNumber::NONE, until).await;
        assert!(matches!(confirmed, Err(Unconfirmed::Failed(error)) if error.kind() == ErrorKind::Indeterminate));
    }
}
