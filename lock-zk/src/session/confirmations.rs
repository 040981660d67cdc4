//! Confirmations of a session: the writes of its node, which those that wait for one share.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::Error;
use leasehold_core::backend::Stamp;
use leasehold_core::backend::kit::{KeptSession, SessionKeeper};
use tokio::time::Instant;
use zookeeper_client::CreateMode;

use super::{PAUSES, Session, create_root};
use crate::errors::Failure;
use crate::link::Link;
use crate::nodes::VERSION;

#[async_trait]
impl KeptSession for Session {
    fn keeper(&self) -> &SessionKeeper {
        &self.keeper
    }

    async fn keep_alive(&self, until: Instant) -> leasehold_core::Result<Option<(Duration, Stamp)>> {
        // The task of the session reports its end as soon as that is certain.
        self.write(until).await.map(Some).map_err(Failure::without_effect)
    }
}

impl Session {
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

    /// The names of the nodes of a queue that begin with `prefix`, after every request of the session that was sent
    /// before has taken effect or never will. `None` if the session has ended, and with it its nodes.
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
            return Err(Failure::NotSent(Error::not_sent()));
        }
        // Requests of a session take effect in the order in which they are sent. The server closes an older link of it
        // before a newer one is used. A server that has replied to the write shows all writes of the session before it,
        // so the list is never stale.
        let write = link.client().create(&path, VERSION, &options);
        let list = link.client().list_children(lock_path);
        let (written, listed) = link.wait(async { tokio::join!(write, list) }, until).await?;
        // The leader orders it whether it succeeds or not.
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
