//! One attempt to acquire a lock.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Error;
use leasehold_core::backend::kit::{SessionKeeper, Unconfirmed};
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Claim, Confirmation, CoreHandle, Grant, LeaseKind, OnContention, PlaceNumber, Stamp,
};
use tokio::time::{Instant, timeout_at};
use zookeeper_client::{Client, CreateMode, CreateSequence, Error as ClientError, Stat};

use crate::capabilities::LONGEST_PLACE;
use crate::errors::{Failure, too_long};
use crate::inner::Inner;
use crate::link::Link;
use crate::nodes::{VERSION, data, parse_all};
use crate::queue::{Position, delete, position, position_in};
use crate::session::{Session, create_root};
use crate::slot::{Node, Slot, Stage};
use crate::turn;

/// The pause before the next session, when one has ended at once.
const PAUSE: Duration = Duration::from_millis(20);

/// One acquire.
pub(crate) struct Attempt<'a> {
    pub(crate) inner: &'a Arc<Inner>,
    pub(crate) core: &'a CoreHandle,
    pub(crate) request: &'a AcquireRequest,
    /// When the call began.
    pub(crate) begin: Stamp,
    pub(crate) until: Instant,
}

/// The replies to the requests that create a node and read its queue.
struct Entered {
    created: Result<(Stat, CreateSequence), ClientError>,
    listed: Result<Vec<String>, ClientError>,
    sent: Stamp,
}

impl Attempt<'_> {
    pub(crate) async fn run(&self) -> Result<AcquireOutcome, Failure> {
        let slot = self.slot();
        // Two acquires of one claim at once would create two nodes.
        let Ok(_serial) = timeout_at(self.until, slot.serial.lock()).await else {
            return Err(Failure::TimedOut.not_sent());
        };
        loop {
            if slot.is_withdrawn() {
                return Err(Failure::Refused(Error::withdrawn()));
            }
            // Requests of an earlier call may have created a node, and had no reply. That node is found before another
            // one is created.
            if slot.node().is_none() {
                for session in slot.in_doubt() {
                    self.recover(&session).await?;
                }
            }
            let outcome = match slot.node() {
                Some(node) => self.again(node).await?,
                None => {
                    let opened = self.inner.session(self.core, self.request.ttl, self.until).await;
                    let session = opened.map_err(Failure::not_sent)?;
                    // Before a node is created: the lease would end sooner than its holder expects.
                    if session.ttl() < self.request.ttl {
                        return Err(Failure::Refused(too_long(self.request.ttl, session.ttl())));
                    }
                    match self.enter(&session).await {
                        Err(Failure::NoSession) => {
                            // It has ended, and the request had no effect.
                            self.inner.sessions.forget(&session);
                            slot.settle(&session);
                            // A server that ends each session would get one after the other.
                            tokio::time::sleep(self.core.jitter(PAUSE)).await;
                            None
                        }
                        entered => entered?,
                    }
                }
            };
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
            if Instant::now() >= self.until {
                return Err(Failure::NoSession);
            }
        }
    }

    fn slot(&self) -> &Slot {
        Slot::of(self.claim())
    }

    fn claim(&self) -> &Claim {
        &self.request.claim
    }

    /// When the lease ends by itself. Only a lease that is not renewed does so.
    fn ends(&self, sent: Stamp, session: &Session) -> Option<Stamp> {
        (self.request.kind == LeaseKind::Fixed).then(|| sent.plus(session.ttl()))
    }

    /// Creates the node and reads the queue. `None` if the node is gone again.
    async fn enter(&self, session: &Arc<Session>) -> Result<Option<AcquireOutcome>, Failure> {
        let (slot, shared) = (self.slot(), &self.inner.shared);
        let lock: Arc<str> = shared.nodes.lock(self.claim().name()).into();
        // A refused attempt costs a read, and no write.
        if self.request.on_contention == OnContention::Fail && self.is_held(session, &lock).await? {
            return Ok(Some(AcquireOutcome::Contended { retry_after: self.request.ttl / 3 }));
        }
        let link = session.link(self.until).await?;
        // The first request of this client for a lock also creates the lock's node.
        let (mut has_parent, mut has_root) = (self.inner.known.contains(&*lock), true);
        loop {
            let Entered { created, listed, sent } = self.send(session, &link, &lock, has_parent).await?;
            let (stat, number) = match created.map_err(Failure::of) {
                Ok(created) => created,
                // A container without children was deleted by the server.
                Err(Failure::NoNode) if has_parent => {
                    slot.settle(session);
                    has_parent = false;
                    continue;
                }
                Err(Failure::NoNode) if has_root => {
                    slot.settle(session);
                    has_root = false;
                    create_root(shared, &link, self.until).await.map_err(Failure::not_sent)?;
                    continue;
                }
                // In doubt: the node may have been created.
                Err(failure @ (Failure::Disconnected(_) | Failure::TimedOut | Failure::UnexpectedReply)) => {
                    return Err(failure);
                }
                Err(failure) => {
                    slot.settle(session);
                    return Err(failure);
                }
            };
            self.inner.known.add(lock.clone());
            let ttl = session.confirmed(&link, sent);
            let node = Node {
                lock,
                name: format!("{}{number}", slot.prefix()).into(),
                created: stat.czxid,
                session: session.clone(),
                sent,
                ttl,
                stage: Stage::Waits,
                ends: self.ends(sent, session),
            };
            slot.set_node(self.claim(), node.clone());
            slot.settle(session);
            let position = match listed {
                Ok(names) => position_in(&link, &names, &node, self.until).await,
                Err(_) => position(&link, &node, self.until).await,
            };
            return self.entered(&link, node, position).await;
        }
    }

    /// Whether the lock is held. A claim that does not wait costs a read then, and no write.
    async fn is_held(&self, session: &Session, lock: &str) -> Result<bool, Failure> {
        let read = async |client: &Client| {
            // A follower may not know the newest release yet. A leader that was replaced may not know it either: the
            // claim is then refused, or its creation fails.
            let (sync, list) = (client.sync(lock), client.list_children(lock));
            let (synced, names) = tokio::join!(sync, list);
            synced.and(names)
        };
        loop {
            let link = session.link(self.until).await?;
            return match link.call(read, self.until).await {
                Ok(names) => parse_all(&names).map(|children| !children.is_empty()),
                Err(Failure::NoNode) => Ok(false),
                Err(failure @ (Failure::Refused(_) | Failure::NoSession)) => Err(failure),
                // It had no effect, so it can be sent again.
                Err(Failure::Disconnected(_)) if Instant::now() < self.until => {
                    link.kill();
                    continue;
                }
                Err(failure) => Err(failure.not_sent()),
            };
        }
    }

    /// Sends the requests that create the node and list the queue at once: they take effect in this order.
    async fn send(
        &self,
        session: &Arc<Session>,
        link: &Link,
        lock: &str,
        has_parent: bool,
    ) -> Result<Entered, Failure> {
        let (slot, acls, client) = (self.slot(), self.inner.shared.acls(), link.client());
        let path = format!("{lock}/{}", slot.prefix());
        let data = data(session.ttl(), self.claim().holder());
        let (container, node) =
            (CreateMode::Container.with_acls(acls), CreateMode::EphemeralSequential.with_acls(acls));
        let sent = self.core.stamp();
        // Nothing was sent yet, so nothing is in doubt.
        if link.is_closed() {
            return Err(Failure::NotSent(Error::not_sent()));
        }
        let requests = slot.send(session, || {
            let parent = (!has_parent).then(|| client.create(lock, VERSION, &container));
            (parent, client.create(&path, data.as_bytes(), &node), client.list_children(lock))
        });
        let Some((parent, create, list)) = requests else { return Err(Failure::Refused(Error::withdrawn())) };
        session.use_since(sent);
        let replies = async {
            let parent = async {
                match parent {
                    Some(parent) => parent.await.map(drop),
                    None => Ok(()),
                }
            };
            tokio::join!(parent, create, list)
        };
        let (parent, created, listed) = link.wait(replies, self.until).await?;
        let created = match (parent, created) {
            // The reason why there is no parent.
            (Err(error @ (ClientError::NoAuth | ClientError::QuotaExceeded | ClientError::InvalidAcl)), Err(_)) => {
                Err(error)
            }
            (_, created) => created,
        };
        Ok(Entered { created, listed, sent })
    }

    /// The node is there, and was created by this call.
    async fn entered(
        &self,
        link: &Link,
        node: Node,
        position: Result<Position, Failure>,
    ) -> Result<Option<AcquireOutcome>, Failure> {
        match position {
            // Another node has another format.
            Err(Failure::Refused(error)) => {
                self.leave(link, &node).await?;
                Err(Failure::Refused(error))
            }
            Err(failure) => Err(failure.in_doubt()),
            Ok(position) => self.outcome(link, node, position, true).await,
        }
    }

    async fn outcome(
        &self,
        link: &Link,
        node: Node,
        position: Position,
        is_new: bool,
    ) -> Result<Option<AcquireOutcome>, Failure> {
        let (slot, claim) = (self.slot(), self.claim());
        if slot.is_withdrawn() {
            return Err(Failure::Refused(Error::withdrawn()));
        }
        match position {
            Position::Gone => {
                slot.forget_node(claim);
                Ok(None)
            }
            Position::First => {
                // A lease that is not renewed counts from the request that created its node. Its session may live
                // longer.
                let confirmation = match node.is_fixed() && is_new {
                    true => node.created_by(),
                    false => node.confirmation(),
                };
                match slot.hold(&node, Stage::Holds, confirmation) {
                    None => return Ok(None),
                    Some(true) => turn::begin_hold(self.inner, self.core, claim, &node),
                    Some(false) => {}
                }
                Ok(Some(AcquireOutcome::Granted(Grant::new(node.token(), confirmation))))
            }
            Position::Behind(_) if self.request.on_contention == OnContention::Fail => {
                self.leave(link, &node).await?;
                Ok(Some(AcquireOutcome::Contended { retry_after: self.request.ttl / 3 }))
            }
            Position::Behind(before) => {
                // A repeated acquire finds the task that the first one has started.
                if !slot.has_task() {
                    turn::wait(self.inner, self.core, claim, &node, before);
                }
                let confirmation = of_place(node.confirmation(), self.begin);
                Ok(Some(AcquireOutcome::Queued { confirmation, retry_after: confirmation.ttl }))
            }
        }
    }

    /// Deletes the node again.
    async fn leave(&self, link: &Link, node: &Node) -> Result<(), Failure> {
        match delete(link, &node.path(), self.until).await {
            Ok(_) | Err(Failure::NoSession) => {
                self.slot().forget_node(self.claim());
                Ok(())
            }
            // It may be there.
            Err(failure) => Err(failure.in_doubt()),
        }
    }

    /// The claim has a node from an earlier call. Confirms it for the ttl that is requested. `None` if it is gone.
    async fn again(&self, node: Node) -> Result<Option<AcquireOutcome>, Failure> {
        let slot = self.slot();
        let since = self.begin.minus(node.session.ttl().saturating_sub(self.request.ttl));
        let confirmed = match node.sent >= since {
            true => Ok(()),
            false => SessionKeeper::confirm(&node.session, since, PlaceNumber::NONE, self.until).await.map(drop),
        };
        match confirmed {
            Ok(()) => {}
            Err(Unconfirmed::Gone) => {
                slot.forget_node(self.claim());
                return Ok(None);
            }
            // The node is there, and nothing says for how long.
            Err(Unconfirmed::Failed(error)) => return Err(Failure::Disconnected(error).in_doubt()),
        }
        let link = node.session.link(self.until).await.map_err(Failure::in_doubt)?;
        let position = position(&link, &node, self.until).await;
        match position {
            Ok(position) => self.outcome(&link, node, position, false).await,
            Err(failure @ Failure::Refused(_)) => Err(failure),
            Err(failure) => Err(failure.in_doubt()),
        }
    }

    /// Finds the node of an earlier call that had no reply. Other nodes of the claim do not count, and are deleted.
    async fn recover(&self, session: &Arc<Session>) -> Result<(), Failure> {
        let (slot, claim) = (self.slot(), self.claim());
        let (lock, prefix): (Arc<str>, _) = (self.inner.shared.nodes.lock(claim.name()).into(), slot.prefix());
        let settled = session.settled(&lock, &prefix, self.until).await;
        let Some((mut names, sent, ttl)) = settled.map_err(Failure::in_doubt)? else {
            slot.settle(session);
            return Ok(());
        };
        names.sort();
        let link = session.link(self.until).await.map_err(Failure::in_doubt)?;
        for name in names {
            let path = format!("{lock}/{name}");
            // This may be another link than that of the list, but it is no older. What it does not show is gone, and
            // deleting it does no harm.
            let found = link.call(|client| client.check_stat(&path), self.until).await.map_err(Failure::in_doubt)?;
            let is_own = found.filter(|stat| stat.ephemeral_owner == session.number() && slot.node().is_none());
            let Some(stat) = is_own else {
                delete(&link, &path, self.until).await.map_err(Failure::in_doubt)?;
                continue;
            };
            session.use_since(sent);
            let node = Node {
                lock: lock.clone(),
                name: name.into(),
                created: stat.czxid,
                session: session.clone(),
                sent,
                ttl,
                stage: Stage::Waits,
                ends: self.ends(sent, session),
            };
            slot.set_node(claim, node);
        }
        slot.settle(session);
        Ok(())
    }
}

/// The confirmation of a place, counted from a later request whose reply proves the state of the queue.
pub(crate) fn of_place(confirmation: Confirmation, sent: Stamp) -> Confirmation {
    let counted = confirmation.counted_from(sent);
    Confirmation { ttl: counted.ttl.min(LONGEST_PLACE), ..counted }
}
