//! One attempt to acquire a lock.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::kit::{PooledSession, SessionKeeper, Unconfirmed};
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Confirmation, CoreHandle, Grant, LONGEST_PLACE_TTL, LeaseKind, OnContention, Stamp,
};
use leasehold_core::{Error, ErrorKind, FencingToken};
use tokio::time::Instant;

use crate::attach::attach;
use crate::connections::Connections;
use crate::errors::Failure;
use crate::inner::Inner;
use crate::keys;
use crate::pauses::Pauses;
use crate::session::Session;
use crate::sessions::Sessions;
use crate::slot::{ClaimKey, Slot};
use crate::transactions::{Entered, Place, number_of};

/// A lease is granted with a confirmation that is no older than this part of its ttl, so that it is valid for nearly
/// all of it.
const FRESH: u32 = 24;

/// A place is confirmed by a session whose newest confirmation is no older than this part of its ttl.
const OLDEST: u32 = 3;

/// When the key of a claim is created.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Only if the lock is free.
    IfFree,
    /// Also behind others.
    Join,
}

/// One acquire.
pub(crate) struct Attempt<'a> {
    pub(crate) inner: &'a Arc<Inner>,
    pub(crate) core: &'a CoreHandle,
    /// The connection of the caller.
    pub(crate) connections: Arc<Connections>,
    pub(crate) request: &'a AcquireRequest,
    /// When the call began.
    pub(crate) begin: Stamp,
    pub(crate) until: Instant,
}

/// What the server has for the claim: its key, or nothing because another claim holds the lock.
enum Found {
    Key(Box<Key>),
    Held,
}

/// The key of the claim, as the reply to a request shows it that was sent at `sent`.
struct Key {
    place: Place,
    is_first: bool,
    is_new: bool,
    session: Arc<Session>,
    sent: Stamp,
}

impl Attempt<'_> {
    pub(crate) async fn run(&self) -> Result<AcquireOutcome, Failure> {
        let (ttl, place_ttl) = (self.request.ttl, self.request.ttl.min(LONGEST_PLACE_TTL));
        let queues = self.request.on_contention == OnContention::Queue;
        let mut pauses = Pauses::default();
        loop {
            // A place has a shorter ttl than a long lease. Its session is opened only when another claim holds the
            // lock, and ends by itself when it is not used.
            let places = match self.request.kind == LeaseKind::Kept && ttl > place_ttl {
                true => self.inner.sessions.existing(place_ttl, self.core.stamp()),
                false => None,
            };
            let how = if queues && (ttl == place_ttl || places.is_some()) { How::Join } else { How::IfFree };
            let found = match self.enter(ttl, how, places.filter(|_| queues)).await? {
                Found::Held if queues => self.enter(place_ttl, How::Join, None).await?,
                found => found,
            };
            match found {
                Found::Held => return Ok(AcquireOutcome::Contended { retry_after: ttl / 3 }),
                Found::Key(key) => {
                    if let Some(outcome) = self.confirmed(*key).await? {
                        return Ok(outcome);
                    }
                }
            }
            // The session had ended, and with it the key.
            if Instant::now() >= self.until {
                return Err(Failure::NoLease);
            }
            pauses.wait(self.until).await;
        }
    }

    fn slot(&self) -> &Slot {
        Slot::of(&self.request.claim)
    }

    /// Sends the transaction until its sessions and their epochs are the current ones.
    async fn enter(&self, ttl: Duration, how: How, mut places: Option<Arc<Session>>) -> Result<Found, Failure> {
        let claim = &self.request.claim;
        let mut pauses = Pauses::default();
        loop {
            let session = self.session(ttl).await?;
            for session in places.iter().chain([&session]) {
                if !self.slot().begin(session) {
                    return Err(Failure::Refused(Error::withdrawn()));
                }
            }
            // Beside the transaction, because a grant needs a confirmation that is this young. An attempt that does not
            // wait is likely to be refused, and sends none.
            if how == How::IfFree && self.request.on_contention == OnContention::Queue {
                SessionKeeper::refresh(&session, self.core.stamp().minus(ttl / FRESH), self.until);
            }
            let entry = self.inner.entry(claim, &session, places.as_deref());
            let sent = self.core.stamp();
            // Never stale, even if it changes nothing: a transaction with a write goes through the log of the cluster.
            let reply = self.connections.send(self.until, |mut kv| {
                let txn = match how {
                    How::IfFree => entry.enter_if_free(),
                    How::Join => entry.join(),
                };
                async move { kv.txn(txn).await }
            });
            let reply = match self.slot().send(reply).await {
                Ok(reply) => entry.entered(&reply)?,
                // One of the two sessions has ended, and the reply does not say which.
                Err(Failure::NoLease) => {
                    self.inner.sessions.forget(&session);
                    places.take().inspect(|places| self.inner.sessions.forget(places));
                    self.check_time()?;
                    pauses.wait(self.until).await;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            match reply {
                Entered::Created { revision, lease, first } => {
                    let is_first = first.revision == revision;
                    if !is_first && keys::read_value(&first.value).is_none() {
                        self.leave(&entry.key).await?;
                        return Err(Failure::other_format());
                    }
                    let session = places.filter(|places| places.id == lease).unwrap_or(session);
                    let place = Place { key: entry.key.into_bytes(), revision, lease, value: Vec::new() };
                    return Ok(Found::Key(Box::new(Key { place, is_first, is_new: true, session, sent })));
                }
                // An earlier request of this claim, whose reply was lost, has created the key.
                Entered::Unchanged { own: Some(place), first, .. } => {
                    let is_first = first.is_some_and(|first| first.revision == place.revision);
                    let session = self.slot().session_with(place.lease).ok_or(Failure::UnexpectedReply)?;
                    return Ok(Found::Key(Box::new(Key { place, is_first, is_new: false, session, sent })));
                }
                // Another claim holds the lock, or a session has another epoch than expected.
                Entered::Unchanged { epochs, own: None, first } => {
                    let mut is_current = self.note_epoch(&session, entry.lease.epoch, epochs[0]);
                    if let (Some(session), Some(place)) = (&places, &entry.place) {
                        is_current &= self.note_epoch(session, place.epoch, epochs[1]);
                        places = places.filter(|session| !session.is_overdue(self.core.stamp()));
                    }
                    if is_current {
                        self.slot().forget_key();
                        self.end_own(&session);
                        let first = first.ok_or(Failure::UnexpectedReply)?;
                        return match keys::read_value(&first.value) {
                            Some(_) => Ok(Found::Held),
                            None => Err(Failure::other_format()),
                        };
                    }
                }
            }
            self.check_time()?;
        }
    }

    /// Notes the epoch of a session. Returns whether the transaction expected it.
    fn note_epoch(&self, session: &Arc<Session>, expected: i64, epoch: i64) -> bool {
        if epoch < expected {
            // The lease that had the epoch is gone.
            self.inner.sessions.forget(session);
        }
        session.note_epoch(epoch);
        epoch == expected
    }

    /// No request had an effect so far.
    fn check_time(&self) -> Result<(), Failure> {
        let is_left = Instant::now() < self.until;
        is_left.then_some(()).ok_or_else(|| {
            Failure::Refused(Error::new(ErrorKind::Unavailable, "the session of this client changed too often"))
        })
    }

    /// The session for the key: that of the client, or one for this claim alone.
    async fn session(&self, ttl: Duration) -> Result<Arc<Session>, Failure> {
        let keeper = self.inner.keeper(self.core);
        let session = match self.request.kind {
            LeaseKind::Fixed => {
                let now = self.core.stamp();
                let is_usable = |session: &Arc<Session>| session.ttl == ttl && !session.is_overdue(now);
                match self.slot().sessions().into_iter().find(is_usable) {
                    Some(session) => Ok(session),
                    None => Sessions::own(&keeper, self.core, ttl, self.until).await,
                }
            }
            _ => self.inner.sessions.shared(&keeper, self.core, ttl, self.until).await,
        };
        // Nothing was requested for the claim yet.
        session.map_err(|failure| match failure {
            Failure::Refused(error) => Failure::Refused(error),
            failure => Failure::NotSent(failure.without_effect()),
        })
    }

    /// Ends the session of a claim that has no key.
    fn end_own(&self, session: &Arc<Session>) {
        if self.request.kind == LeaseKind::Fixed {
            self.inner.revoke(self.core, session);
        }
    }

    /// Deletes the key again.
    async fn leave(&self, key: &str) -> Result<(), Failure> {
        let delete = self.connections.send(self.until, |mut kv| {
            let key = key.to_owned();
            async move { kv.delete(key, None).await }
        });
        self.slot().send(delete).await.map(drop).map_err(|failure| match failure {
            Failure::NoLease => Failure::NoLease,
            // The key may be there.
            failure => Failure::Unknown(Error::from(failure).with_kind(ErrorKind::Indeterminate)),
        })
    }

    /// The key is there. Confirms its session, and keeps track of it. `None` if the session has ended.
    async fn confirmed(&self, found: Key) -> Result<Option<AcquireOutcome>, Failure> {
        let Key { place, is_first, is_new, session, sent } = found;
        let claim = &self.request.claim;
        let key: Arc<str> = String::from_utf8_lossy(&place.key).into();
        let is_fixed = self.request.kind == LeaseKind::Fixed;
        let mut of_claim =
            ClaimKey { key: key.clone(), revision: place.revision, session, has_waited: !is_first, is_fixed };
        self.slot().set_key(of_claim.clone());
        // A repeated acquire: the key is still in the session of places, or an earlier request had a shorter ttl.
        if !is_new && is_first && of_claim.session.ttl < self.request.ttl {
            let keeper = self.inner.keeper(self.core);
            let attached = attach(self.inner, self.core, &keeper, claim, &of_claim, self.request.ttl, self.until);
            match attached.await? {
                Some(attached) => of_claim = attached,
                None => return Ok(None),
            }
        }
        let number = number_of(place.revision);
        let ttl = of_claim.session.keeper.newest(number).ttl;
        let since = match (is_first, is_new && !is_fixed) {
            // A repeated acquire, and a fixed lease, last for the whole ttl from now on.
            (true, false) => self.begin,
            (true, true) => self.begin.minus(ttl / FRESH),
            (false, _) => self.begin.minus(ttl / OLDEST),
        };
        let confirmation = match SessionKeeper::confirm(&of_claim.session, since, number, self.until).await {
            Ok(confirmation) => confirmation,
            Err(Unconfirmed::Gone) => {
                self.slot().forget_key();
                self.inner.sessions.forget(&of_claim.session);
                return Ok(None);
            }
            // The key is there, and nothing says for how long.
            Err(Unconfirmed::Failed(error)) => {
                return Err(Failure::Unknown(error.with_kind(ErrorKind::Indeterminate)));
            }
        };
        // A release that came meanwhile deletes the key. It must not be followed by a grant.
        if self.slot().is_withdrawn() {
            return Err(Failure::Refused(Error::withdrawn()));
        }
        self.inner.watcher.add(self.core, claim, &key, place.revision, is_first);
        Ok(Some(if is_first { granted(confirmation) } else { queued(confirmation.counted_from(sent)) }))
    }
}

fn granted(confirmation: Confirmation) -> AcquireOutcome {
    AcquireOutcome::Granted(Grant::new(FencingToken::new(confirmation.place.get()), confirmation))
}

fn queued(confirmation: Confirmation) -> AcquireOutcome {
    // The watch says when it is the turn of the claim, or that the holder has died.
    AcquireOutcome::Queued { confirmation, retry_after: confirmation.ttl }
}
