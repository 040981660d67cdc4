//! The sessions of one client: one for each ttl.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::{CoreHandle, Stamp};
use leasehold_core::{Error, ErrorKind};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::errors::Failure;
use crate::session::Session;
use crate::shared::{Shared, lock};

type Outcome = Option<Result<Arc<Session>, Failure>>;

/// The sessions, by the ttls that were requested.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<Duration, Entry>>);

enum Entry {
    Open(Arc<Session>),
    Opening(watch::Receiver<Outcome>),
}

impl Sessions {
    /// The session with this ttl. Opens it if there is none.
    pub(crate) async fn with_ttl(
        &self,
        shared: &Arc<Shared>,
        core: &CoreHandle,
        ttl: Duration,
        until: Instant,
    ) -> Result<Arc<Session>, Failure> {
        let mut opening = {
            let (mut sessions, now) = (lock(&self.0), core.stamp());
            match sessions.get(&ttl) {
                Some(Entry::Open(session)) if !session.is_overdue(now) => return Ok(session.clone()),
                Some(Entry::Opening(opening)) if is_live(opening) => opening.clone(),
                _ => {
                    sessions.retain(|_, entry| match entry {
                        Entry::Open(session) => !session.is_overdue(now),
                        Entry::Opening(opening) => is_live(opening),
                    });
                    let opening = open(shared, core, ttl);
                    sessions.insert(ttl, Entry::Opening(opening.clone()));
                    opening
                }
            }
        };
        let outcome = timeout_at(until, opening.wait_for(Option::is_some)).await;
        let outcome = outcome.map(|outcome| outcome.map(|outcome| outcome.clone()));
        let session = match outcome {
            Ok(Ok(outcome)) => outcome.unwrap_or(Err(Failure::TimedOut))?,
            Ok(Err(_)) => return Err(Failure::NotSent(Error::new(ErrorKind::Unavailable, "the client is shut down"))),
            Err(_) => return Err(Failure::TimedOut),
        };
        let mut sessions = lock(&self.0);
        if let Some(Entry::Opening(known)) = sessions.get(&ttl)
            && known.same_channel(&opening)
        {
            sessions.insert(ttl, Entry::Open(session.clone()));
        }
        Ok(session)
    }

    /// A session that is connected, for reads.
    pub(crate) fn any(&self, now: Stamp) -> Option<Arc<Session>> {
        let sessions = lock(&self.0);
        sessions.values().find_map(|entry| match entry {
            Entry::Open(session) if !session.is_overdue(now) && session.current_link().is_some() => {
                Some(session.clone())
            }
            _ => None,
        })
    }

    /// Does not use this session any more.
    pub(crate) fn forget(&self, session: &Arc<Session>) {
        let mut sessions = lock(&self.0);
        if let Some(Entry::Open(known)) = sessions.get(&session.requested)
            && Arc::ptr_eq(known, session)
        {
            sessions.remove(&session.requested);
        }
    }

    /// Does not use this session any more, if it has ended.
    pub(crate) fn forget_ended(&self, session: &Arc<Session>) {
        if session.has_ended() {
            self.forget(session);
        }
    }

    /// Ends all sessions.
    pub(crate) fn end(&self) {
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

fn is_live(opening: &watch::Receiver<Outcome>) -> bool {
    matches!(&*opening.borrow(), Some(Ok(_))) || opening.borrow().is_none() && opening.has_changed().is_ok()
}

/// Opens a session in a task, so that a caller who is dropped holds nobody else up.
fn open(shared: &Arc<Shared>, core: &CoreHandle, ttl: Duration) -> watch::Receiver<Outcome> {
    let (sender, receiver) = watch::channel(None);
    let (shared, core) = (shared.clone(), core.clone());
    core.keeper_runtime().clone().spawn(async move {
        let until = shared.until();
        let opened = Session::open(&shared, &core, ttl, until).await;
        if let (Ok(session), true) = (&opened, sender.is_closed()) {
            // The client was dropped meanwhile.
            session.end();
        }
        sender.send_replace(Some(opened));
    });
    receiver
}
