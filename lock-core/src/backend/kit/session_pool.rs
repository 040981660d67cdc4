//! The sessions of one client: one for each ttl, which its claims share.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::backend::CoreHandle;
use crate::clock::Stamp;
use crate::sync::lock;

/// The sessions of a client, by the ttls that were requested. All claims with a ttl share its session.
pub struct SessionPool<S, E>(Mutex<HashMap<Duration, Entry<S, E>>>);

/// A session that a [`SessionPool`] keeps.
pub trait PooledSession: Send + Sync + 'static {
    /// The ttl that was requested.
    fn requested(&self) -> Duration;

    /// Whether its ttl has passed since the newest confirmation, or it has ended.
    fn is_overdue(&self, now: Stamp) -> bool;

    /// Ends the session: no claim uses it any more.
    fn end(&self);
}

/// Why there is no session. Nothing was requested in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a backend has to handle each reason")]
pub enum NotOpened<E> {
    /// The attempt to open it failed.
    Failed(E),
    /// It was not open in time. The attempt continues.
    TimedOut,
    /// The keeper's runtime has ended.
    ShutDown,
}

type Opening<S, E> = watch::Receiver<Option<Result<Arc<S>, E>>>;

enum Entry<S, E> {
    Open(Arc<S>),
    Opening(Opening<S, E>),
}

impl<S: PooledSession, E: Clone + Send + Sync + 'static> SessionPool<S, E> {
    /// The session with this ttl. Opens it by `open` if there is none. Cancel safe: `open` continues in a task on the
    /// [keeper's runtime](CoreHandle::keeper_runtime), and must have a bound of its own.
    ///
    /// # Errors
    /// [`NotOpened`], at `until` at the latest. The next call tries again.
    pub async fn shared<F>(
        &self,
        core: &CoreHandle,
        ttl: Duration,
        until: Instant,
        open: impl FnOnce() -> F + Send,
    ) -> Result<Arc<S>, NotOpened<E>>
    where
        F: Future<Output = Result<Arc<S>, E>> + Send + 'static,
    {
        let mut opening = {
            let (mut sessions, now) = (lock(&self.0), core.stamp());
            match sessions.get(&ttl) {
                Some(Entry::Open(session)) if !session.is_overdue(now) => return Ok(session.clone()),
                Some(Entry::Opening(opening)) if is_live(opening) => opening.clone(),
                _ => {
                    // Drops sessions that have ended by themselves, because no claim used them.
                    sessions.retain(|_, entry| match entry {
                        Entry::Open(session) => !session.is_overdue(now),
                        Entry::Opening(opening) => is_live(opening),
                    });
                    let opening = begin(core, open());
                    sessions.insert(ttl, Entry::Opening(opening.clone()));
                    opening
                }
            }
        };
        let session = opened(&mut opening, until).await?;
        let mut sessions = lock(&self.0);
        if let Some(Entry::Opening(known)) = sessions.get(&ttl)
            && known.same_channel(&opening)
        {
            sessions.insert(ttl, Entry::Open(session.clone()));
        }
        Ok(session)
    }

    /// Opens a session that is not shared. Cancel safe, as [`shared`](Self::shared).
    ///
    /// # Errors
    /// The same.
    pub async fn unshared<F>(core: &CoreHandle, until: Instant, open: F) -> Result<Arc<S>, NotOpened<E>>
    where
        F: Future<Output = Result<Arc<S>, E>> + Send + 'static,
    {
        opened(&mut begin(core, open), until).await
    }

    /// A session that is open, not overdue, and usable.
    pub fn find(&self, now: Stamp, is_usable: impl Fn(&S) -> bool) -> Option<Arc<S>> {
        lock(&self.0).values().find_map(|entry| match entry {
            Entry::Open(session) if !session.is_overdue(now) && is_usable(session) => Some(session.clone()),
            _ => None,
        })
    }

    /// Removes this session from the pool.
    pub fn forget(&self, session: &Arc<S>) {
        let (mut sessions, ttl) = (lock(&self.0), session.requested());
        if let Some(Entry::Open(known)) = sessions.get(&ttl)
            && Arc::ptr_eq(known, session)
        {
            sessions.remove(&ttl);
        }
    }

    /// Ends all sessions.
    pub fn end(&self) {
        for entry in std::mem::take(&mut *lock(&self.0)).into_values() {
            match entry {
                Entry::Open(session) => session.end(),
                Entry::Opening(opening) => {
                    if let Some(Ok(session)) = &*opening.borrow() {
                        session.end();
                    }
                }
            }
        }
    }
}

impl<S, E> Default for SessionPool<S, E> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S, E> fmt::Debug for SessionPool<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sessions = lock(&self.0);
        let ttls: Vec<_> = sessions.keys().collect();
        f.debug_struct("SessionPool").field("ttls", &ttls).finish_non_exhaustive()
    }
}

/// Whether there is a session, or may be one soon.
fn is_live<S, E>(opening: &Opening<S, E>) -> bool {
    matches!(&*opening.borrow(), Some(Ok(_))) || opening.borrow().is_none() && opening.has_changed().is_ok()
}

/// Opens a session in a task, so that a dropped caller does not delay the others.
fn begin<S, E, F>(core: &CoreHandle, open: F) -> Opening<S, E>
where
    S: PooledSession,
    E: Send + Sync + 'static,
    F: Future<Output = Result<Arc<S>, E>> + Send + 'static,
{
    let (sender, receiver) = watch::channel(None);
    core.keeper_runtime().spawn(async move {
        let opened = open.await;
        if let (Ok(session), true) = (&opened, sender.is_closed()) {
            // All callers were dropped since, and the client too if the session was a shared one.
            session.end();
        }
        sender.send_replace(Some(opened));
    });
    receiver
}

async fn opened<S, E: Clone>(opening: &mut Opening<S, E>, until: Instant) -> Result<Arc<S>, NotOpened<E>> {
    match timeout_at(until, opening.wait_for(Option::is_some)).await {
        Ok(Ok(outcome)) => match &*outcome {
            Some(Ok(session)) => Ok(session.clone()),
            Some(Err(failure)) => Err(NotOpened::Failed(failure.clone())),
            None => Err(NotOpened::TimedOut),
        },
        Ok(Err(_)) => Err(NotOpened::ShutDown),
        Err(_) => Err(NotOpened::TimedOut),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use tokio::runtime::Handle;

    use super::*;
    use crate::clock::SystemClock;

    const TTL: Duration = Duration::from_secs(3);

    #[derive(Debug, Default)]
    struct Planted {
        is_ended: AtomicBool,
    }

    impl Planted {
        fn has_ended(&self) -> bool {
            self.is_ended.load(Ordering::Relaxed)
        }
    }

    impl PooledSession for Planted {
        fn requested(&self) -> Duration {
            TTL
        }

        fn is_overdue(&self, _now: Stamp) -> bool {
            self.has_ended()
        }

        fn end(&self) {
            self.is_ended.store(true, Ordering::Relaxed);
        }
    }

    type Pool = SessionPool<Planted, &'static str>;

    fn core() -> CoreHandle {
        CoreHandle::new(Arc::new(SystemClock::new()), Handle::current(), |_| {})
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    async fn open() -> Result<Arc<Planted>, &'static str> {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(Arc::default())
    }

    #[tokio::test(start_paused = true)]
    async fn all_share_one_session_until_it_has_ended() {
        let (pool, core, opened) = (Pool::default(), core(), AtomicU32::new(0));
        let shared = || {
            pool.shared(&core, TTL, soon(), || {
                opened.fetch_add(1, Ordering::Relaxed);
                open()
            })
        };
        let (one, other) = tokio::join!(shared(), shared());
        let (one, other) = (one.unwrap(), other.unwrap());
        assert!(Arc::ptr_eq(&one, &other) && opened.load(Ordering::Relaxed) == 1);
        assert!(pool.find(core.stamp(), |_| true).is_some() && pool.find(core.stamp(), |_| false).is_none());
        one.end();
        assert!(pool.find(core.stamp(), |_| true).is_none());
        let next = shared().await.unwrap();
        assert!(!next.has_ended() && opened.load(Ordering::Relaxed) == 2);
        // Forgetting an earlier session leaves the next one.
        pool.forget(&one);
        assert!(pool.find(core.stamp(), |_| true).is_some());
        pool.forget(&next);
        assert!(pool.find(core.stamp(), |_| true).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_not_kept() {
        let (pool, core) = (Pool::default(), core());
        let failed = pool.shared(&core, TTL, soon(), || async { Err("planted") }).await;
        assert_eq!(failed.unwrap_err(), NotOpened::Failed("planted"));
        assert!(pool.shared(&core, TTL, soon(), open).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_outlives_the_caller() {
        let (pool, core) = (Pool::default(), core());
        let late = pool.shared(&core, TTL, Instant::now() + Duration::from_millis(5), open).await;
        assert_eq!(late.unwrap_err(), NotOpened::TimedOut);
        let never = || async { panic!("a second attempt") };
        assert!(pool.shared(&core, TTL, soon(), never).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_nobody_waits_for_ends() {
        let session = Arc::new(Planted::default());
        let opening = {
            let session = session.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Ok(session)
            }
        };
        let core = core();
        let late = Pool::unshared(&core, Instant::now() + Duration::from_millis(5), opening).await;
        assert_eq!(late.unwrap_err(), NotOpened::TimedOut);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(session.has_ended());
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_client_ends_its_sessions() {
        let (pool, core) = (Pool::default(), core());
        let session = pool.shared(&core, TTL, soon(), open).await.unwrap();
        pool.end();
        assert!(session.has_ended() && pool.find(core.stamp(), |_| true).is_none());
    }
}
