//! Confirmations of a session: the writes of its node, which those that wait for one share.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::backend::{Confirmation, Known, PlaceNumber, Stamp};
use tokio::time::{Instant, timeout_at};
use zookeeper_client::CreateMode;

use super::{PAUSES, Session, Unconfirmed, Wanted, create_root};
use crate::errors::Failure;
use crate::link::Link;
use crate::nodes::VERSION;
use crate::shared::lock;

impl Session {
    /// The newest confirmation by a write of the session's node.
    pub(crate) fn newest(&self, place: PlaceNumber) -> Confirmation {
        let (ttl, sent) = self.lease.borrow().newest();
        Confirmation { ttl, sent, place }
    }

    /// Writes the node unless the newest write is as young as `age`, and waits for nothing.
    pub(crate) fn refresh(self: &Arc<Self>, now: Stamp, age: Duration, until: Instant) {
        self.want(Wanted { since: now.minus(age), until });
    }

    /// Waits until the session was confirmed at `since` or later.
    pub(crate) async fn confirm(self: &Arc<Self>, since: Stamp, until: Instant) -> Result<(), Unconfirmed> {
        // A failure that is known already is of an earlier attempt.
        let mut lease = self.lease.subscribe();
        self.want(Wanted { since, until });
        let mut is_first = true;
        loop {
            match lease.borrow_and_update().known_since(since) {
                Known::Confirmed(..) => return Ok(()),
                Known::Gone => return Err(Unconfirmed::Gone),
                Known::Failed(error) if !is_first => return Err(Unconfirmed::Failed(Failure::Disconnected(error))),
                Known::Failed(_) | Known::Unknown => {}
            }
            is_first = false;
            match timeout_at(until, lease.changed()).await {
                Ok(Ok(())) => {}
                // The keeper's runtime has ended.
                Ok(Err(_)) | Err(_) => return Err(Unconfirmed::Failed(Failure::TimedOut)),
            }
        }
    }

    /// Has the node written, unless the session is confirmed already.
    fn want(self: &Arc<Self>, wanted: Wanted) {
        if !matches!(self.lease.borrow().known_since(wanted.since), Known::Unknown | Known::Failed(_)) {
            return;
        }
        let mut keeping = lock(&self.keeping);
        let Wanted { since, until } = wanted;
        let former = keeping.wanted.unwrap_or(wanted);
        keeping.wanted = Some(Wanted { since: former.since.max(since), until: former.until.max(until) });
        if !std::mem::replace(&mut keeping.is_running, true) {
            self.core.keeper_runtime().spawn(self.clone().keep());
        }
    }

    async fn keep(self: Arc<Self>) {
        loop {
            let Wanted { since, until } = {
                let mut keeping = lock(&self.keeping);
                let Some(wanted) = keeping.wanted.take() else {
                    keeping.is_running = false;
                    return;
                };
                wanted
            };
            // The write before it may have confirmed this as well.
            if !matches!(self.lease.borrow().known_since(since), Known::Unknown | Known::Failed(_)) {
                continue;
            }
            match self.write(until).await {
                Ok((ttl, sent)) => self.lease.send_modify(|lease| lease.kept_alive(Some(ttl), sent)),
                // Its task reports the end as soon as that is certain.
                Err(failure) => {
                    let error = failure.without_effect();
                    self.lease.send_modify(|lease| lease.failed(since, error));
                }
            }
        }
    }

    /// Writes the node of the session. A write that has no reply is repeated on another link.
    async fn write(&self, until: Instant) -> Result<(Duration, Stamp), Failure> {
        let path = self.shared.nodes.session(self.number);
        let mut failures = 0;
        loop {
            let link = self.link(until).await?;
            let sent = self.core.stamp();
            let written = match self.has_node.load(Ordering::Relaxed) {
                true => link.call(|client| client.set_data(&path, VERSION, None), until).await.map(drop),
                false => {
                    let options = CreateMode::Ephemeral.with_acls(self.shared.acls());
                    link.call(|client| client.create(&path, VERSION, &options), until).await.map(drop)
                }
            };
            match written {
                Ok(()) => {
                    self.has_node.store(true, Ordering::Relaxed);
                    return Ok((self.confirmed(&link, sent), sent));
                }
                Err(Failure::NodeExists) => self.has_node.store(true, Ordering::Relaxed),
                Err(Failure::NoNode) if self.has_node.swap(false, Ordering::Relaxed) => {}
                Err(Failure::NoNode) => create_root(&self.shared, &link, until).await?,
                // The link is closed, or will be.
                Err(Failure::Disconnected(_) | Failure::NotSent(_)) if Instant::now() < until => {
                    tokio::time::sleep(PAUSES.0).await;
                    continue;
                }
                Err(failure) => return Err(failure),
            }
            failures += 1;
            if failures > 4 {
                return Err(Failure::UnexpectedReply);
            }
        }
    }

    /// The names of the nodes of a queue that begin with `prefix`, after every request of the session that was sent before has taken effect
    /// or never will. `None` if the session has ended, and with it its nodes.
    pub(crate) async fn settled(
        &self,
        lock_path: &str,
        prefix: &str,
        until: Instant,
    ) -> Result<Option<(Vec<String>, Stamp, Duration)>, Failure> {
        loop {
            let link = match self.link(until).await {
                Ok(link) => link,
                Err(Failure::NoSession) if self.gone(until).await => return Ok(None),
                Err(failure) => return Err(failure.not_sent()),
            };
            match self.settled_on(&link, lock_path, prefix, until).await {
                Err(Failure::NoSession) => {
                    return if self.gone(until).await { Ok(None) } else { Err(Failure::TimedOut) };
                }
                // It changes nothing, so it can be repeated on another link.
                Err(Failure::Disconnected(_) | Failure::NotSent(_)) if Instant::now() < until => {
                    drop(link);
                    tokio::time::sleep(PAUSES.0).await;
                }
                settled => return settled.map(Some),
            }
        }
    }

    async fn settled_on(
        &self,
        link: &Link,
        lock_path: &str,
        prefix: &str,
        until: Instant,
    ) -> Result<(Vec<String>, Stamp, Duration), Failure> {
        let (path, sent) = (self.shared.nodes.session(self.number), self.core.stamp());
        let options = CreateMode::Ephemeral.with_acls(self.shared.acls());
        if link.is_closed() {
            return Err(link.not_sent());
        }
        // Requests of a session take effect in the order in which they are sent. The server closes an older link of it before a newer one is
        // used. A write through the leader comes after all writes before it, whether it succeeds or not.
        let write = link.client().create(&path, VERSION, &options);
        let list = link.client().list_children(lock_path);
        let (written, listed) = link.wait(async { tokio::join!(write, list) }, until).await?;
        match written.map_err(Failure::of) {
            Ok(_) | Err(Failure::NodeExists) => self.has_node.store(true, Ordering::Relaxed),
            Err(Failure::NoNode | Failure::Refused(_)) => {}
            Err(failure) => return Err(failure),
        }
        let ttl = self.confirmed(link, sent);
        match listed.map_err(Failure::of) {
            Ok(names) => Ok((names.into_iter().filter(|name| name.starts_with(prefix)).collect(), sent, ttl)),
            Err(Failure::NoNode) => Ok((Vec::new(), sent, ttl)),
            Err(failure) => Err(failure),
        }
    }
}
