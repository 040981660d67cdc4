//! One session of this client, which its claims share.
//!
//! A task on the keeper's runtime keeps it connected: it opens another link as soon as one breaks, at the same server or at another one.
//! Pings of the client crate keep the session at the server, but they prove nothing: a follower that is cut off from the leader answers
//! them. So a lease is confirmed by a *write*, which the leader has to order. Claims that wait for a confirmation share one write.
//!
//! A session that was not confirmed for its ttl is closed: no lease of it is valid any more. So a session without claims ends by itself, and
//! a lease ends although its client is still connected.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::{
    Claim, Confirmation, CoreHandle, Event, Known, OwnerToken, PlaceNumber, SessionLease, Stamp,
};
use leasehold_core::{Error, ErrorKind};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use zookeeper_client::{CreateMode, SessionInfo};

use crate::errors::Failure;
use crate::link::{Link, NoLink};
use crate::nodes::VERSION;
use crate::shared::{Shared, lock};
use crate::slot::Slot;

/// The pauses between two attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

/// After this time without a client, at least, the server has ended a session.
const GONE_BY: Duration = Duration::from_secs(60);

/// A session with a server.
pub(crate) struct Session {
    /// The ttl that was requested.
    pub(crate) requested: Duration,
    /// The ttl of its leases.
    ttl: Duration,
    pub(crate) shared: Arc<Shared>,
    pub(crate) core: CoreHandle,
    info: SessionInfo,
    number: i64,
    phase: watch::Sender<Phase>,
    /// The writes of its node.
    lease: watch::Sender<SessionLease>,
    keeping: Mutex<Keeping>,
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

/// The state of the writes.
#[derive(Default)]
struct Keeping {
    wanted: Option<Wanted>,
    /// A task sends them.
    is_running: bool,
}

/// A confirmation that is waited for.
#[derive(Clone, Copy)]
struct Wanted {
    since: Stamp,
    until: Instant,
}

/// Why a session has no confirmation.
#[derive(Debug)]
pub(crate) enum Unconfirmed {
    /// It has ended, and with it every node.
    Gone,
    /// The server did not reply.
    Failed(Failure),
}

impl Session {
    /// Opens a session. Call this on the keeper's runtime. If a server is silent, the next one is tried beside it.
    pub(crate) async fn open(
        shared: &Arc<Shared>,
        core: &CoreHandle,
        ttl: Duration,
        until: Instant,
    ) -> Result<Arc<Self>, Failure> {
        let mut last = Failure::TimedOut;
        let mut attempts = JoinSet::new();
        let (first, servers) = (shared.server(), shared.target.addresses.len());
        let mut next = 0;
        loop {
            if next < servers {
                let (shared, server, sent) = (shared.clone(), (first + next) % servers, core.stamp());
                next += 1;
                attempts.spawn(async move {
                    let opened = Link::open(&shared, server, None, ttl + shared.more(), sent, until).await;
                    (server, sent, opened)
                });
            }
            let stagger = if next < servers { Instant::now() + shared.attempt() } else { until };
            match timeout_at(stagger, attempts.join_next()).await {
                Ok(Some(Ok((_, sent, Ok(link))))) => return Ok(Self::begin(shared, core, ttl, link, sent)),
                Ok(Some(Ok((_, _, Err(NoLink::Failed(failure @ Failure::Refused(_))))))) => return Err(failure),
                Ok(Some(Ok((server, _, Err(NoLink::Failed(failure)))))) => {
                    shared.leave_server(server);
                    last = failure;
                }
                Ok(Some(Ok((.., Err(NoLink::Expired))) | Err(_))) => {}
                Err(_) if next < servers => {}
                Ok(None) if next < servers => {}
                Ok(None) | Err(_) => return Err(last),
            }
        }
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
            lease: watch::Sender::new(SessionLease::granted(ttl, sent)),
            keeping: Mutex::default(),
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

    /// The ttl of its leases. That of the session at the server is longer, because the leader learns late of what a client does.
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
        self.lease.borrow().newest().1.max(*lock(&self.used)).plus(self.ttl)
    }

    /// Whether it is too late to connect again. A server whose replies are lost prolongs the session with each attempt, and the leases of the
    /// session are not valid for much longer.
    fn is_too_late(&self) -> bool {
        self.has_ended() || self.core.stamp() >= self.ends_at().minus(self.ttl() / 8)
    }

    /// Whether its ttl has passed since the newest confirmation, or it has ended.
    pub(crate) fn is_overdue(&self, now: Stamp) -> bool {
        self.has_ended() || now >= self.ends_at()
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
            Err(_) => {
                let text = "no connection to a server, which is connected to again";
                Err(Failure::NotSent(Error::new(ErrorKind::Unavailable, text)))
            }
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

    /// Ends the session at the server, and with it all its nodes.
    pub(crate) fn end(&self) {
        // The task of the session does the rest.
        self.phase.send_replace(Phase::Ended);
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

/// Staying connected.
impl Session {
    async fn run(self: Arc<Self>, mut link: Arc<Link>) {
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
                if link.is_closed() {
                    drop(link);
                    return self.end_at_server().await;
                }
                return match link.close().await {
                    true => self.expired(),
                    false => self.end_at_server().await,
                };
            }
            link.kill();
            self.shared.leave_server(link.server());
            self.become_down();
            link = match self.reconnect().await {
                Some(link) => link,
                None => return,
            };
        }
    }

    /// Reads again and again, so that each write proves a recent activity.
    async fn stay_active(&self, link: &Link) {
        let pause = self.shared.settings.tick / 2;
        // A server may be slow. A call that gets no reply ends the link sooner.
        let bound = self.shared.settings.timeout.max(self.ttl / 4);
        loop {
            tokio::time::sleep(pause).await;
            let sent = self.core.stamp();
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
        let (mut pause, mut bound) = (PAUSES.0, self.shared.attempt());
        let mut is_first = true;
        loop {
            if self.is_too_late() {
                tokio::select! {
                    () = self.overdue() => self.end(),
                    () = self.ended() => {}
                }
                self.report_gone();
                self.end_at_server().await;
                return None;
            }
            if !std::mem::take(&mut is_first) {
                tokio::time::sleep(self.core.jitter(pause)).await;
                pause = (pause * 2).min(PAUSES.1);
            }
            match self.try_link(&mut bound).await {
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

    /// Tries once, for at most `bound`, which grows if the server is silent.
    async fn try_link(&self, bound: &mut Duration) -> Result<Link, NoLink> {
        let (server, begin, sent) = (self.shared.server(), Instant::now(), self.core.stamp());
        let ttl = self.requested + self.shared.more();
        let link = Link::open(&self.shared, server, Some(&self.info), ttl, sent, begin + *bound).await;
        if link.is_err() {
            self.shared.leave_server(server);
            if begin.elapsed() >= *bound {
                *bound = (*bound * 2).min(self.shared.settings.timeout);
            }
        }
        link
    }

    /// Makes sure that the server has ended the session, although there is no link. Usually it has, as soon as the ttl is over.
    async fn end_at_server(&self) {
        let pause = self.ttl() + self.shared.settings.tick * 2;
        let until = Instant::now() + GONE_BY.max(pause * 2);
        let mut next = pause;
        while Instant::now() < until {
            tokio::time::sleep(self.core.jitter(next)).await;
            let begin = Instant::now();
            match self.try_link(&mut self.shared.attempt()).await {
                Ok(link) => {
                    if Arc::new(link).close().await {
                        break;
                    }
                }
                Err(NoLink::Expired) => break,
                // A server that is silent may have prolonged it.
                Err(NoLink::Failed(_)) if begin.elapsed() >= self.shared.attempt() / 2 => next = pause,
                Err(NoLink::Failed(_)) => next = PAUSES.1,
            }
        }
        self.expired();
    }

    /// The server has ended the session.
    fn expired(&self) {
        self.end();
        self.is_gone.send_replace(true);
        self.lease.send_modify(|lease| lease.kept_alive(None, *lock(&self.used)));
        self.report_gone();
    }
}

/// Confirmations.
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
