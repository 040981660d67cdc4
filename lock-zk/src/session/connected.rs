//! Staying connected: the task of a session.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::kit::{Connecting, PooledSession};
use tokio::time::Instant;

use super::{PAUSES, Phase, Session};
use crate::errors::Failure;
use crate::link::{Link, NoLink};

/// After this time without a client, at least, the server has ended a session.
const GONE_BY: Duration = Duration::from_secs(60);

impl Session {
    pub(super) async fn run(self: Arc<Self>, mut link: Arc<Link>) {
        loop {
            let is_expired = tokio::select! {
                is_expired = link.broken() => is_expired,
                () = self.overdue() => {
                    self.end();
                    false
                }
                () = self.ended() => false,
                () = self.stay_active(&link) => false,
            };
            if is_expired {
                link.kill();
                return self.expired();
            }
            if self.has_ended() {
                self.report_gone();
                // A confirmed close frees the locks of the session at once. Otherwise it lasts at the server until that
                // ends it, or until it can be closed over another link.
                return match link.close().await {
                    true => self.expired(),
                    false => self.end_at_server().await,
                };
            }
            // The link is broken or silent, and the session is continued elsewhere before the server ends it.
            link.kill();
            self.shared.target.servers.avoid(link.server());
            self.become_down();
            link = match self.reconnect().await {
                Some(link) => link,
                None => return,
            };
        }
    }

    /// Reads again and again, so that each write proves a recent activity, and ends the link if its server is silent.
    async fn stay_active(&self, link: &Link) {
        let pause = self.shared.settings.tick / 2;
        // A server may be slow. Other calls end the link sooner, but a waiter sends none.
        let timeout = self.shared.settings.timeout;
        let bound = (self.ttl / 4).clamp(timeout, timeout * 2);
        loop {
            tokio::time::sleep(pause).await;
            let sent = self.core.stamp();
            // Only the fact that there is a reply counts.
            let read = link.call(|client| client.check_stat("/"), Instant::now() + bound).await;
            match read {
                Ok(_) | Err(Failure::Refused(_)) => link.acknowledged(sent),
                // The link has broken, or will.
                Err(_) => tokio::time::sleep(pause).await,
            }
        }
    }

    async fn ended(&self) {
        let mut phase = self.phase.subscribe();
        let _ = phase.wait_for(|phase| matches!(phase, Phase::Ended)).await;
    }

    fn become_down(&self) {
        self.phase.send_if_modified(|phase| {
            let is_up = matches!(phase, Phase::Up(_));
            if is_up {
                *phase = Phase::Down;
            }
            is_up
        });
    }

    /// Resolves when the session was not confirmed for its ttl.
    async fn overdue(&self) {
        loop {
            let left = self.ends_at().since(self.core.stamp());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    /// Opens another link. `None` if the session has ended.
    async fn reconnect(self: &Arc<Self>) -> Option<Arc<Link>> {
        // Not a part of it for each server: on a slow path the first attempts would take what is left of a short ttl.
        let connecting = Connecting::new(self.shared.settings.timeout, self.shared.settings.connect_timeout);
        let (mut pause, mut is_first) = (PAUSES.0, true);
        loop {
            if !std::mem::take(&mut is_first) {
                tokio::time::sleep(self.core.jitter(pause)).await;
                pause = (pause * 2).min(PAUSES.1);
            }
            // After the pause: a lease of a second is over soon after seven eighths of it.
            if self.is_too_late() {
                tokio::select! {
                    () = self.overdue() => self.end(),
                    () = self.ended() => {}
                }
                self.report_gone();
                self.end_at_server().await;
                return None;
            }
            match connecting.at_once(|until| self.try_link(until)).await {
                Ok(link) => {
                    let link = Arc::new(link);
                    self.phase.send_if_modified(|phase| {
                        let is_down = matches!(phase, Phase::Down);
                        if is_down {
                            *phase = Phase::Up(link.clone());
                        }
                        is_down
                    });
                    return Some(link);
                }
                Err(NoLink::Expired) => {
                    self.expired();
                    return None;
                }
                Err(NoLink::Failed(_)) => {}
            }
        }
    }

    /// Tries once to connect to a server that knows all that this session has done.
    async fn try_link(&self, until: Instant) -> Result<Link, NoLink> {
        let server = self.shared.target.servers.nth(0);
        let caught_up = match self.open_link(server, until).await {
            // Its own bound: on a slow path, both would never fit in one.
            Ok(link) => self.catch_up(link, Instant::now() + self.shared.settings.timeout).await,
            Err(failure) => Err(failure),
        };
        if caught_up.is_err() {
            self.shared.target.servers.avoid(server);
        }
        caught_up
    }

    async fn open_link(&self, server: usize, until: Instant) -> Result<Link, NoLink> {
        let (ttl, sent) = (self.requested + self.shared.more(), self.core.stamp());
        Link::open(&self.shared, server, Some(&self.info), ttl, sent, until).await
    }

    /// Waits until the server of a new link has everything that this session has seen at the server before. The client
    /// crate does not tell the server how much that is, and a follower accepts a session before it has caught up. A
    /// read there does not show nodes that this session has created, so leases that live would be taken for lost, and
    /// nobody would delete their nodes.
    ///
    /// Only the reply to a write proves it. A leader that others have replaced replies to `sync` until it misses its
    /// followers.
    async fn catch_up(&self, link: Link, until: Instant) -> Result<Link, NoLink> {
        let path = self.shared.nodes.session(self.number);
        // No node has this version. The leader orders the request like any other write, and it changes nothing.
        let failure = match link.call(|client| client.delete(&path, Some(i32::MAX)), until).await {
            Ok(()) | Err(Failure::NoNode | Failure::UnexpectedReply | Failure::Refused(_)) => return Ok(link),
            Err(Failure::NoSession) => NoLink::Expired,
            Err(failure) => NoLink::Failed(failure),
        };
        // A link that is dropped alone would end the session.
        link.kill();
        Err(failure)
    }

    /// Makes sure that the server has ended the session, although there is no link. Usually it has, as soon as the ttl
    /// is over.
    ///
    /// If replies are lost, an attempt to connect before that end prolongs the session. So no pause is shorter than the
    /// ttl of the session, and the tick in which the server ends it. With random pauses from three quarters of that on,
    /// at least one of 48 clients prolonged its session in most runs.
    async fn end_at_server(&self) {
        let pause = self.ttl() + self.shared.more() + self.shared.settings.tick;
        let until = Instant::now() + GONE_BY.max(pause * 2);
        let mut next = pause;
        while Instant::now() < until {
            tokio::time::sleep(next + self.core.jitter(PAUSES.0)).await;
            let (server, begin) = (self.shared.target.servers.nth(0), Instant::now());
            match self.open_link(server, begin + self.shared.attempt()).await {
                Ok(link) => {
                    if Arc::new(link).close().await {
                        break;
                    }
                }
                Err(NoLink::Expired) => break,
                Err(NoLink::Failed(_)) => {
                    self.shared.target.servers.avoid(server);
                    // A server that is silent may have prolonged it.
                    next = if begin.elapsed() >= self.shared.attempt() / 2 { pause } else { PAUSES.1 };
                }
            }
        }
        self.expired();
    }

    /// The server has ended the session.
    fn expired(&self) {
        self.end();
        self.is_gone.send_replace(true);
        self.keeper.end();
        self.report_gone();
    }
}
