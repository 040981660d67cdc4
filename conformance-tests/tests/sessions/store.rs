//! A store whose leases belong to sessions, and a backend for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_core::backend::kit::{Attachment, Watches};
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, Claim, Confirmation, CoreHandle, Delivery, Event, Grant,
    LeaseKind, LockBackend, LossNotice, OwnerToken, PlaceNumber, ReleaseOutcome, ReleaseRequest, RenewReplies,
    RenewReply, RenewRequest, Restart, Scope, Stamp, StoreClock, TtlScope, WITHDRAWN_TTL, Waiting, WatchGuard,
    WatchNames,
};
use leasehold_core::{Error, ErrorKind, FencingToken, LockName, Result};

/// The shared store of all clients.
#[derive(Clone, Default)]
pub(crate) struct Store(Arc<Mutex<State>>);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) rows: HashMap<LockName, Row>,
    sessions: HashMap<u64, Session>,
    clients: Vec<Weak<Client>>,
    next_session: u64,
}

/// The record of one lock. It is never removed, so that its tokens do not restart.
#[derive(Default)]
pub(crate) struct Row {
    pub(crate) token: u64,
    holder: Option<(OwnerToken, u64)>,
    pub(crate) withdrawn: Vec<(OwnerToken, Instant)>,
}

struct Session {
    until: Instant,
    /// The client that is notified when a lease of the session is removed.
    client: Weak<Client>,
}

impl Store {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the lease of a lock, as an operator does, and notifies its holder.
    pub(crate) fn end(&self, name: &LockName) {
        let removed = self.state().remove(name);
        if let Some((owner, client)) = removed
            && let Some(core) = client.core.get()
        {
            core.event(Event::Gone { owner });
        }
        self.changed(name);
    }

    /// Notifies the watchers that a lock is free.
    fn changed(&self, name: &LockName) {
        let clients: Vec<_> = self.state().clients.iter().filter_map(Weak::upgrade).collect();
        for client in clients {
            if let Some(core) = client.core.get() {
                client.watches.report(name, core);
            }
        }
    }
}

impl State {
    fn remove(&mut self, name: &LockName) -> Option<(OwnerToken, Arc<Client>)> {
        let (owner, session) = self.rows.get_mut(name)?.holder.take()?;
        Some((owner, self.sessions.get(&session)?.client.upgrade()?))
    }

    /// What is left of a session; `None` if it has ended.
    fn left(&self, session: u64) -> Option<Duration> {
        let left = self.sessions.get(&session)?.until.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }

    /// The holder of a lock, and what is left of its session.
    fn holder(&self, row: &Row) -> Option<(OwnerToken, u64, Duration)> {
        let (owner, session) = row.holder?;
        Some((owner, session, self.left(session)?))
    }

    pub(crate) fn lease(&self, row: &Row) -> Option<Duration> {
        self.holder(row).map(|(.., left)| left)
    }

    /// Keeps a session alive. Returns whether it is alive.
    fn keep_alive(&mut self, session: u64, ttl: Duration) -> bool {
        let lives = self.left(session).is_some();
        if lives && let Some(session) = self.sessions.get_mut(&session) {
            session.until = session.until.max(Instant::now() + ttl);
        }
        lives
    }

    fn open(&mut self, ttl: Duration, client: &Arc<Client>) -> u64 {
        self.sessions.retain(|_, session| session.until > Instant::now());
        self.next_session += 1;
        let session = Session { until: Instant::now() + ttl, client: Arc::downgrade(client) };
        self.sessions.insert(self.next_session, session);
        self.next_session
    }
}

/// What one client has.
#[derive(Default)]
struct Client {
    core: Attachment,
    watches: Watches,
    /// Its sessions.
    sessions: Mutex<HashMap<u64, Opened>>,
}

/// A session as its client knows it.
#[derive(Clone, Copy)]
struct Opened {
    ttl: Duration,
    /// Whether several leases may belong to it. A fixed lease has its own session.
    is_shared: bool,
    /// When the last keep-alive was sent.
    sent: Stamp,
}

pub(crate) struct SessionBackend {
    store: Store,
    client: Arc<Client>,
}

impl SessionBackend {
    pub(crate) fn new(store: &Store) -> Self {
        let client = Arc::default();
        let mut state = store.state();
        state.clients.retain(|client| client.strong_count() > 0);
        state.clients.push(Arc::downgrade(&client));
        drop(state);
        Self { store: store.clone(), client }
    }

    /// The session that a claim's lease belongs to, kept alive, or opened if none is alive.
    fn session(&self, state: &mut State, request: &AcquireRequest, held: Option<u64>, sent: Stamp) -> u64 {
        let AcquireRequest { ttl, kind, .. } = *request;
        let mut sessions = lock(&self.client.sessions);
        sessions.retain(|session, _| state.left(*session).is_some());
        let is_shared = kind == LeaseKind::Kept;
        let shared = |(session, opened): (&u64, &Opened)| (opened.is_shared && opened.ttl == ttl).then_some(*session);
        let known = held.or_else(|| sessions.iter().find_map(shared).filter(|_| is_shared));
        let session = known.filter(|session| state.keep_alive(*session, ttl));
        let session = session.unwrap_or_else(|| state.open(ttl, &self.client));
        sessions.entry(session).or_insert(Opened { ttl, is_shared, sent }).sent = sent;
        session
    }

    /// The ttl of a session, and when its newest confirmation was sent: now, unless that was a short while ago.
    fn confirmed(&self, state: &mut State, session: u64, now: Stamp) -> Option<(Duration, Stamp)> {
        let mut sessions = lock(&self.client.sessions);
        let opened = sessions.get_mut(&session)?;
        if now.since(opened.sent) >= opened.ttl / 6 {
            opened.sent = now;
            return state.keep_alive(session, opened.ttl).then_some((opened.ttl, now));
        }
        Some((opened.ttl, opened.sent))
    }

    fn renew_one(&self, state: &mut State, request: &RenewRequest, now: Stamp) -> RenewReply {
        let Some((owner, session, _)) = state.rows.get(request.claim.name()).and_then(|row| state.holder(row)) else {
            return RenewReply::Lost;
        };
        if owner != *request.claim.owner() {
            return RenewReply::Lost;
        }
        match self.confirmed(state, session, now) {
            Some((ttl, sent)) => RenewReply::Renewed(Confirmation { ttl, sent, place: PlaceNumber::NONE }),
            None => RenewReply::Lost,
        }
    }
}

#[async_trait]
impl LockBackend for SessionBackend {
    fn attach(&self, core: CoreHandle) {
        self.client.core.attach(core);
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let AcquireRequest { ref claim, ttl, .. } = *request;
        let sent = self.client.core.core()?.stamp();
        let mut state = self.store.state();
        let row = state.rows.entry(claim.name().clone()).or_default();
        row.withdrawn.retain(|(_, until)| *until > Instant::now());
        if row.withdrawn.iter().any(|(owner, _)| owner == claim.owner()) {
            return Err(Error::new(ErrorKind::Lost, "the claim was withdrawn before this request"));
        }
        let held = match state.rows.get(claim.name()).and_then(|row| state.holder(row)) {
            Some((owner, session, _)) if owner == *claim.owner() => Some(session),
            Some((.., left)) => return Ok(AcquireOutcome::Contended { retry_after: left.min(ttl / 3) }),
            None => None,
        };
        let session = self.session(&mut state, request, held, sent);
        let row = state.rows.entry(claim.name().clone()).or_default();
        if row.holder != Some((*claim.owner(), session)) {
            row.holder = Some((*claim.owner(), session));
            row.token += 1;
        }
        let confirmation = Confirmation { ttl, sent, place: PlaceNumber::NONE };
        Ok(AcquireOutcome::Granted(Grant::new(FencingToken::new(row.token), confirmation)))
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        let Ok(core) = self.client.core.core() else { return };
        let now = core.stamp();
        for (index, request) in requests.iter().enumerate() {
            let reply = self.renew_one(&mut self.store.state(), request, now);
            replies.put(index, reply);
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let ReleaseRequest { claim, delivery, .. } = request;
        let was_held = {
            let mut state = self.store.state();
            let row = state.rows.entry(claim.name().clone()).or_default();
            if *delivery == Delivery::InDoubt {
                row.withdrawn.push((*claim.owner(), Instant::now() + WITHDRAWN_TTL));
            }
            let holds = |row: &Row| state.holder(row).is_some_and(|(owner, ..)| owner == *claim.owner());
            let was_held = state.rows.get(claim.name()).is_some_and(holds);
            if was_held {
                state.remove(claim.name());
            }
            was_held
        };
        if !was_held {
            return Ok(ReleaseOutcome::NotHeld);
        }
        self.store.changed(claim.name());
        Ok(ReleaseOutcome::Released)
    }

    fn capabilities(&self) -> Capabilities {
        let mut it = Capabilities::new("sessions");
        it.scope = Scope::Process;
        it.clock = StoreClock::MachineBoot;
        it.ttl_scope = TtlScope::Session;
        it.waiting = Waiting::Notification;
        it.loss_notice = LossNotice::Pushed;
        it.takeover_slack = Duration::from_millis(100);
        it.fencing = "a counter in the row, which is never removed";
        it.restart = Restart::KeepsNothing;
        it.call_bound = Duration::from_millis(250);
        it.limits_of_exclusion = &["an operator changes the table by hand"];
        it
    }

    fn admin(&self) -> Option<&dyn Admin> {
        None
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        Some(self)
    }
}

impl WatchNames for SessionBackend {
    fn watch(&self, claim: &Claim) -> WatchGuard {
        let (guard, is_new) = self.client.watches.open(claim.name());
        let is_free = {
            let state = self.store.state();
            state.rows.get(claim.name()).is_none_or(|row| state.lease(row).is_none())
        };
        if is_new
            && is_free
            && let Some(core) = self.client.core.get()
        {
            self.client.watches.report(claim.name(), core);
        }
        guard
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
