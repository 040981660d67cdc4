//! One session of this client, which its claims share.
//!
//! A task on the keeper's runtime keeps it connected: it opens another link as soon as one breaks, at the same server
//! or at another one. Pings of the client crate keep the session at the server, but they prove nothing: a follower that
//! is cut off from the leader replies to them. So a lease is confirmed by a *write*, which the leader has to order.
//! Claims that wait for a confirmation share one write.
//!
//! A session that was not confirmed for its ttl is closed: no lease of it is valid any more. So a session without
//! claims ends by itself, and a lease ends although its client is still connected.

mod confirmations;
mod connected;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::kit::{PooledSession, SessionKeeper, lock};
use leasehold_core::backend::{Claim, CoreHandle, Event, OwnerToken, PlaceNumber, Stamp};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use zookeeper_client::{CreateMode, SessionInfo};

use crate::errors::{Failure, none_connected};
use crate::link::{Link, NoLink};
use crate::shared::Shared;
use crate::slot::Slot;

/// The pauses between two attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

/// A session with a server.
pub(crate) struct Session {
    /// The ttl that was requested.
    requested: Duration,
    /// The ttl of its leases.
    ttl: Duration,
    pub(crate) shared: Arc<Shared>,
    pub(crate) core: CoreHandle,
    info: SessionInfo,
    number: i64,
    phase: watch::Sender<Phase>,
    /// The writes of its node.
    pub(crate) keeper: SessionKeeper,
    /// When the newest request was sent that the session is open for.
    used: Mutex<Stamp>,
    /// Whether the server has its node, as far as is known.
    has_node: AtomicBool,
    /// The claims that have a node.
    claims: Mutex<HashMap<OwnerToken, Claim>>,
    /// The server has certainly ended it.
    is_gone: watch::Sender<bool>,
}

/// Whether the session can be used.
#[derive(Clone)]
enum Phase {
    /// A link is being opened.
    Down,
    Up(Arc<Link>),
    /// It is not used any more.
    Ended,
}

impl Session {
    /// Opens a session. Call this on the keeper's runtime. If a server is silent, the next one is tried beside it.
    pub(crate) async fn open(
        shared: &Arc<Shared>,
        core: &CoreHandle,
        ttl: Duration,
        until: Instant,
    ) -> Result<Arc<Self>, Failure> {
        let is_final = |failure: &Failure| matches!(failure, Failure::Refused(_));
        let open = |server| {
            let (shared, sent) = (shared.clone(), core.stamp());
            async move {
                let link = timeout_at(until, Link::open(&shared, server, None, ttl + shared.more(), sent, until)).await;
                let failure = match link {
                    Ok(Ok(link)) => return Ok((link, sent)),
                    Ok(Err(NoLink::Failed(failure))) => failure,
                    Ok(Err(NoLink::Expired)) => Failure::NoSession,
                    Err(_) => Failure::TimedOut,
                };
                if !is_final(&failure) {
                    shared.target.servers.avoid(server);
                }
                Err(failure)
            }
        };
        let opened = shared.target.servers.open_any(shared.settings.timeout, open, is_final).await;
        let (link, sent) = opened.map_err(|failures| none_connected(&failures))?;
        Ok(Self::begin(shared, core, ttl, link, sent))
    }

    fn begin(shared: &Arc<Shared>, core: &CoreHandle, requested: Duration, link: Link, sent: Stamp) -> Arc<Self> {
        let (ttl, link) = (promised(shared, &link), Arc::new(link));
        let session = Arc::new(Self {
            requested,
            ttl,
            shared: shared.clone(),
            core: core.clone(),
            info: link.session().clone(),
            number: link.session_number(),
            phase: watch::Sender::new(Phase::Up(link.clone())),
            keeper: SessionKeeper::new(core, ttl, sent),
            used: Mutex::new(sent),
            has_node: AtomicBool::new(false),
            claims: Mutex::default(),
            is_gone: watch::Sender::new(false),
        });
        core.keeper_runtime().spawn(session.clone().run(link));
        session
    }

    /// The number of the session at the server.
    pub(crate) fn number(&self) -> i64 {
        self.number
    }

    /// The ttl of its leases. That of the session at the server is longer, because the leader learns late of what a
    /// client does.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// A write that was sent then on this link has a reply. For how long its leases last at least, counted from then.
    pub(crate) fn confirmed(&self, link: &Link, sent: Stamp) -> Duration {
        let proven = link.proven(sent);
        link.acknowledged(sent);
        proven.min(self.ttl)
    }

    /// A request was sent then that the session stays open for.
    pub(crate) fn use_since(&self, sent: Stamp) {
        let mut used = lock(&self.used);
        *used = sent.max(*used);
    }

    /// When its ttl is over.
    fn ends_at(&self) -> Stamp {
        self.keeper.newest(PlaceNumber::NONE).sent.max(*lock(&self.used)).plus(self.ttl)
    }

    /// Whether it is too late to connect again. A server whose replies are lost prolongs the session with each attempt,
    /// and the leases of the session are not valid for much longer.
    fn is_too_late(&self) -> bool {
        self.has_ended() || self.core.stamp() >= self.ends_at().minus(self.ttl() / 8)
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Ended)
    }

    /// The link, as soon as there is one.
    pub(crate) async fn link(&self, until: Instant) -> Result<Arc<Link>, Failure> {
        let mut phase = self.phase.subscribe();
        let up = async {
            loop {
                match &*phase.borrow_and_update() {
                    Phase::Up(link) if !link.is_closed() => return Ok(link.clone()),
                    Phase::Ended => return Err(Failure::NoSession),
                    Phase::Up(_) | Phase::Down => {}
                }
                if phase.changed().await.is_err() {
                    return Err(Failure::NoSession);
                }
            }
        };
        match timeout_at(until, up).await {
            Ok(link) => link,
            Err(_) => Err(self.shared.given_up()),
        }
    }

    /// The link, if there is one.
    pub(crate) fn current_link(&self) -> Option<Arc<Link>> {
        match &*self.phase.borrow() {
            Phase::Up(link) if !link.is_closed() => Some(link.clone()),
            _ => None,
        }
    }

    /// The claim has a node.
    pub(crate) fn add(&self, claim: &Claim) {
        lock(&self.claims).insert(*claim.owner(), claim.clone());
        if self.has_ended() {
            self.report_gone();
        }
    }

    /// The claim has no node.
    pub(crate) fn remove(&self, claim: &Claim) {
        let removed = lock(&self.claims).remove(claim.owner());
        drop(removed);
    }

    /// Resolves when the server has certainly ended the session.
    pub(crate) async fn gone(&self, until: Instant) -> bool {
        let mut is_gone = self.is_gone.subscribe();
        let gone = timeout_at(until, is_gone.wait_for(|is_gone| *is_gone)).await;
        matches!(gone, Ok(Ok(_)))
    }

    fn report_gone(&self) {
        let claims = std::mem::take(&mut *lock(&self.claims));
        for (owner, claim) in claims {
            if Slot::of(&claim).lost(self) {
                self.core.event(Event::Gone { owner });
            }
        }
    }
}

impl PooledSession for Session {
    fn requested(&self) -> Duration {
        self.requested
    }

    fn is_overdue(&self, now: Stamp) -> bool {
        self.has_ended() || now >= self.ends_at()
    }

    /// Ends the session at the server, and with it all its nodes.
    fn end(&self) {
        // The task of the session does the rest.
        self.phase.send_replace(Phase::Ended);
    }
}

/// The ttl of leases in the session of a link.
fn promised(shared: &Shared, link: &Link) -> Duration {
    link.ttl().saturating_sub(shared.more()).max(link.ttl() / 2)
}

/// Creates the root and the nodes above it.
pub(crate) async fn create_root(shared: &Shared, link: &Link, until: Instant) -> Result<(), Failure> {
    for path in shared.nodes.roots() {
        let options = CreateMode::Persistent.with_acls(shared.acls());
        match link.call(|client| client.create(path, b"", &options), until).await {
            Ok(_) | Err(Failure::NodeExists) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}
