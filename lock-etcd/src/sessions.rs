//! The sessions of one client: one for each ttl, which its claims share, and one for each fixed lease.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::{CoreHandle, Stamp};
use leasehold_core::{Error, ErrorKind};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::connections::Connections;
use crate::errors::Failure;
use crate::session::Session;
use crate::shared::lock;

type Outcome = Option<Result<Arc<Session>, Failure>>;

/// The shared sessions, by their ttls.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<Duration, Entry>>);

enum Entry {
    Open(Arc<Session>),
    Opening(watch::Receiver<Outcome>),
}

impl Sessions {
    /// The shared session with this ttl. Opens it if there is none.
    pub(crate) async fn shared(
        &self,
        connections: &Arc<Connections>,
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
                    // A session that no claim uses any more has ended by itself.
                    sessions.retain(|_, entry| match entry {
                        Entry::Open(session) => !session.is_overdue(now),
                        Entry::Opening(opening) => is_live(opening),
                    });
                    let opening = open(connections, core, ttl);
                    sessions.insert(ttl, Entry::Opening(opening.clone()));
                    opening
                }
            }
        };
        let outcome = wait(&mut opening, until).await?;
        let (mut sessions, session) = (lock(&self.0), outcome);
        if let Some(Entry::Opening(known)) = sessions.get(&ttl)
            && known.same_channel(&opening)
        {
            sessions.insert(ttl, Entry::Open(session.clone()));
        }
        Ok(session)
    }

    /// The shared session with this ttl, if there is one.
    pub(crate) fn existing(&self, ttl: Duration, now: Stamp) -> Option<Arc<Session>> {
        match lock(&self.0).get(&ttl) {
            Some(Entry::Open(session)) if !session.is_overdue(now) => Some(session.clone()),
            _ => None,
        }
    }

    /// A session for one claim alone.
    pub(crate) async fn own(
        connections: &Arc<Connections>,
        core: &CoreHandle,
        ttl: Duration,
        until: Instant,
    ) -> Result<Arc<Session>, Failure> {
        wait(&mut open(connections, core, ttl), until).await
    }

    /// Does not use this session any more: the server has ended it.
    pub(crate) fn forget(&self, session: &Arc<Session>) {
        session.end();
        let mut sessions = lock(&self.0);
        if let Some(Entry::Open(known)) = sessions.get(&session.ttl)
            && Arc::ptr_eq(known, session)
        {
            sessions.remove(&session.ttl);
        }
    }
}

fn is_live(opening: &watch::Receiver<Outcome>) -> bool {
    matches!(&*opening.borrow(), Some(Ok(_))) || opening.borrow().is_none() && opening.has_changed().is_ok()
}

/// Opens a session in a task, so that a caller who is dropped holds nobody else up.
fn open(connections: &Arc<Connections>, core: &CoreHandle, ttl: Duration) -> watch::Receiver<Outcome> {
    let (sender, receiver) = watch::channel(None);
    let (connections, core) = (connections.clone(), core.clone());
    core.keeper_runtime().clone().spawn(async move {
        let until = connections.shared.until();
        sender.send_replace(Some(Session::open(&connections, &core, ttl, until).await));
    });
    receiver
}

async fn wait(opening: &mut watch::Receiver<Outcome>, until: Instant) -> Result<Arc<Session>, Failure> {
    match timeout_at(until, opening.wait_for(Option::is_some)).await {
        Ok(Ok(outcome)) => outcome.clone().unwrap_or(Err(Failure::TimedOut)),
        // No key was requested yet, so nothing is in doubt.
        Ok(Err(_)) => Err(Failure::NotSent(Error::new(ErrorKind::Unavailable, "the client is shut down"))),
        Err(_) => Err(Failure::TimedOut),
    }
}
