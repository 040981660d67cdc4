//! Waiting by a named lock of the server (`GET_LOCK`), as the right to poll.
//!
//! A claim that finds its lock held waits for the named lock on a connection of its own. The server serves the waiters
//! of a named lock in their order. The claim that has the named lock polls the row, acquires it over the same
//! connection, and releases row and named lock in one packet. So the next claim is woken by a release, and polls only
//! if the holder has no named lock: it found its lock free, or has held it for [`KEPT_FOR`].
//!
//! The named lock decides nothing: the row alone says who holds. A claim that cannot wait for it is polled for by the
//! watcher.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::LockName;
use leasehold_core::backend::kit::{Watches, lock};
use leasehold_core::backend::{AcquireRequest, Claim, CoreHandle, Stamp};
use sqlx::mysql::MySqlRow;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::errors::Failure;
use crate::pool::{Checkout, Pool};
use crate::row::rows::{Acquired, Rows, owner};
use crate::row::statements::{GET_LOCK_SECONDS, get_lock, is_held, release_both, release_lock};
use crate::sql::get;

/// A lease that lasts for longer does without the named lock, and so without a connection. A chain of short leases
/// needs no poll.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// How long a claim whose client has just released the lock leaves it to the claim that polls. Without it, that client
/// always acquires the row before the next poll: of 80 processes that each hold a lock for 20 ms, 36 to 80 held it
/// within a minute.
pub(crate) const GIVES_WAY_FOR: Duration = Duration::from_millis(100);

/// The pause between two polls: a hundredth of the time for which the claim has polled, within these bounds. With `n`
/// turns of a client, `n²` hundredths, so that the polls of many cost the server less than those of one.
const PAUSE: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(500);

/// The most claims of a client that have or wait for named locks.
const MOST: usize = 4;

/// After a failure, as of a proxy that has no named locks, the claims of a client do without for this time.
const WITHOUT: Duration = Duration::from_secs(1);

/// The turn of one claim. Dropping it ends the turn.
#[derive(Clone)]
pub(crate) struct Turn {
    requests: UnboundedSender<Request>,
    /// The claim has the named lock.
    has_lock: Arc<AtomicBool>,
}

/// What a claim that has the named lock asks of its connection. Each has a reply within its bound.
enum Request {
    Acquire { request: AcquireRequest, until: Instant, reply: Reply<(Stamp, Acquired)> },
    Release { claim: Claim, until: Instant, reply: Reply<bool> },
}

/// `None`: the request was not sent.
type Reply<T> = oneshot::Sender<Option<Result<T, Failure>>>;

impl Turn {
    /// Sends a request over the connection of the turn. `None`: it has none with the named lock, and nothing was sent.
    async fn send<T>(&self, until: Instant, request: impl FnOnce(Reply<T>) -> Request) -> Option<Result<T, Failure>> {
        if !self.has_lock.load(Ordering::Acquire) {
            return None;
        }
        let (reply, replied) = oneshot::channel();
        self.requests.send(request(reply)).ok()?;
        // A poll without a reply may keep the task from the request. The task drops the request without a reply only if
        // its runtime ends, and the connection with it. So the request may have been sent.
        match timeout_at(until, replied).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) | Err(_) => Some(Err(Failure::TimedOut)),
        }
    }

    /// Releases the row, and then the named lock.
    pub(crate) async fn release(&self, claim: &Claim, until: Instant) -> Option<Result<bool, Failure>> {
        self.send(until, |reply| Request::Release { claim: claim.clone(), until, reply }).await
    }
}

/// The turn of a claim, in its slot.
type Slot = Mutex<Option<Turn>>;

/// Tries once to take the row, over the connection of the claim's turn. `None`: nothing was sent.
pub(crate) async fn acquire(request: &AcquireRequest, until: Instant) -> Option<Result<(Stamp, Acquired), Failure>> {
    let turn = lock(request.claim.slot::<Slot>()).clone()?;
    turn.send(until, |reply| Request::Acquire { request: request.clone(), until, reply }).await
}

/// Takes the turn of a claim that ends, or that was granted its lock without.
pub(crate) fn leave(claim: &Claim) -> Option<Turn> {
    lock(claim.slot::<Slot>()).take()
}

/// The claims of one client that wait, and what it knows of the named locks.
pub(crate) struct Turns {
    pub(super) rows: Arc<Rows>,
    pub(super) watches: Watches,
    inner: Mutex<Inner>,
    permits: Arc<Semaphore>,
}

#[derive(Default)]
struct Inner {
    /// The locks for which a claim waits by its turn, and the number of the newest turn of each.
    waiting: HashMap<LockName, u64>,
    last: u64,
    /// When a claim could not wait for its named lock.
    failed_at: Option<Instant>,
}

impl Turns {
    pub(crate) fn new(rows: Arc<Rows>) -> Arc<Self> {
        let (watches, inner, permits) = (Watches::default(), Mutex::default(), Arc::new(Semaphore::new(MOST)));
        Arc::new(Self { rows, watches, inner, permits })
    }

    /// Whether a claim of this client waits for the lock by its turn.
    pub(crate) fn is_waiting(&self, name: &LockName) -> bool {
        lock(&self.inner).waiting.contains_key(name)
    }

    /// How many claims of this client have or wait for named locks.
    fn count(&self) -> u32 {
        u32::try_from(MOST - self.permits.available_permits()).unwrap_or(1)
    }

    /// A claim could not wait for its named lock. For [`WITHOUT`], the claims of this client do without.
    fn note_failure(&self) {
        lock(&self.inner).failed_at = Some(Instant::now());
    }

    /// Makes a claim wait for the named lock of its lock, unless it does already or cannot.
    pub(crate) fn join(self: &Arc<Self>, core: &CoreHandle, claim: &Claim) {
        let mut slot = lock(claim.slot::<Slot>());
        if slot.as_ref().is_some_and(|turn| !turn.requests.is_closed()) {
            return;
        }
        // Each turn needs a connection of its own. Claims beyond the limit are polled together.
        let Ok(permit) = self.permits.clone().try_acquire_owned() else { return };
        let name = claim.name().clone();
        let waiting = {
            let mut inner = lock(&self.inner);
            if inner.is_without() {
                return;
            }
            inner.last += 1;
            let number = inner.last;
            inner.waiting.insert(name.clone(), number);
            Waiting { turns: self.clone(), name, number }
        };
        let (requests, requested) = unbounded_channel();
        let has_lock = Arc::<AtomicBool>::default();
        *slot = Some(Turn { requests, has_lock: has_lock.clone() });
        let task = Task {
            turns: self.clone(),
            core: core.clone(),
            name: claim.name().clone(),
            requested,
            has_lock,
            waiting: Some(waiting),
        };
        core.keeper_runtime().spawn(task.run(permit));
    }
}

impl Inner {
    fn is_without(&self) -> bool {
        self.failed_at.is_some_and(|at| at.elapsed() < WITHOUT)
    }
}

/// A claim that waits by its turn, until this is dropped.
struct Waiting {
    turns: Arc<Turns>,
    name: LockName,
    number: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let waiting = &mut lock(&self.turns.inner).waiting;
        if waiting.get(&self.name) == Some(&self.number) {
            waiting.remove(&self.name);
        }
    }
}

/// The task of a turn.
struct Task {
    turns: Arc<Turns>,
    core: CoreHandle,
    name: LockName,
    requested: UnboundedReceiver<Request>,
    has_lock: Arc<AtomicBool>,
    /// Until the claim is granted its lock.
    waiting: Option<Waiting>,
}

impl Task {
    async fn run(mut self, _permit: OwnedSemaphorePermit) {
        let turns = self.turns.clone();
        let (connections, bound) = (&turns.rows.connections, turns.rows.connections.shared.settings.timeout);
        let pool = connections.calls.pool_of(self.core.keeper_runtime());
        let Ok(mut connection) = pool.checkout(Instant::now() + bound).await else { return turns.note_failure() };
        if !connection.set_aside() {
            return connection.put_back();
        }
        let id = connection.id();
        let got = tokio::select! {
            got = wait(&mut connection, &self.name, &turns, &self.core) => got,
            // The claim has left. Without the named lock the turn sends nothing on this channel, so it can only be
            // closed.
            _ = self.requested.recv() => {
                // The server does not notice that the connection of a statement that waits is closed.
                drop(connection);
                return kill(&pool, id, bound).await;
            }
        };
        let is_released = match got {
            Ok(()) => {
                self.has_lock.store(true, Ordering::Release);
                self.serve(&mut connection).await
            }
            Err(failure) => {
                let name = &self.name;
                tracing::debug!(
                    target: "leasehold", backend = "mysql", %name, ?failure,
                    "a claim cannot wait for its named lock"
                );
                return turns.note_failure();
            }
        };
        self.has_lock.store(false, Ordering::Release);
        self.requested.close();
        while let Ok(request) = self.requested.try_recv() {
            match request {
                Request::Acquire { reply, .. } => drop(reply.send(None)),
                Request::Release { reply, .. } => drop(reply.send(None)),
            }
        }
        // The server releases the named lock of a connection that is closed.
        if !is_released {
            let _ = connection.execute_text(release_lock(self.name.as_bytes()), Instant::now() + bound).await;
        }
        connection.put_back();
    }

    /// Polls the row, acquires and releases it. Returns whether the named lock was released.
    async fn serve(&mut self, connection: &mut Checkout<'_>) -> bool {
        let (turns, mut since, mut granted) = (self.turns.clone(), Instant::now(), None);
        while connection.session().is_some() {
            let pause = since.elapsed() * turns.count().pow(2) / 100;
            let pause = pause.clamp(*PAUSE.start(), *PAUSE.end());
            let next = granted.map_or_else(|| Instant::now() + self.core.jitter(pause), |at| at + KEPT_FOR);
            tokio::select! {
                request = self.requested.recv() => match request {
                    None => return false,
                    // Its caller was dropped.
                    Some(Request::Acquire { reply, .. }) if reply.is_closed() => {}
                    Some(Request::Acquire { request, until, reply }) => {
                        let done = turns.rows.acquire_by(connection, &request, &self.core, until).await;
                        if let Ok((_, Acquired::Granted(_))) = done {
                            granted = Some(Instant::now());
                            self.waiting = None;
                        }
                        since = Instant::now();
                        let _ = reply.send(Some(done));
                    }
                    Some(Request::Release { claim, until, reply }) => {
                        let both = release_both(self.name.as_bytes(), owner(&claim));
                        let done = connection.execute_text(both, until).await;
                        let _ = reply.send(Some(done.map(|rows| rows > 0)));
                        return true;
                    }
                },
                () = sleep_until(next) => {
                    if granted.is_some() {
                        return false;
                    }
                    let until = turns.rows.connections.shared.until();
                    let polled = connection.fetch_text(is_held(self.name.as_bytes()), until).await;
                    if let Ok(false) = polled.and_then(|rows| read_is_held(rows.first())) {
                        since = Instant::now();
                        turns.watches.report(&self.name, &self.core);
                    }
                }
            }
        }
        true
    }
}

/// Waits for the named lock, for ever. In slices, because its owner may be paused: then a claim that waits sees that
/// its lock is free.
async fn wait(connection: &mut Checkout<'_>, name: &LockName, turns: &Turns, core: &CoreHandle) -> Result<(), Failure> {
    loop {
        let until = turns.rows.connections.shared.until() + Duration::from_secs(GET_LOCK_SECONDS);
        let rows = connection.fetch_text(get_lock(name.as_bytes()), until).await?;
        let row = rows.first().ok_or(Failure::UnexpectedReply)?;
        let got = get::<Option<i64>>(row, 0)?.ok_or(Failure::UnexpectedReply)?;
        if !read_is_held(rows.get(1))? {
            turns.watches.report(name, core);
        }
        if got == 1 {
            return Ok(());
        }
    }
}

/// Whether the lock of a row is held. No row: it is free.
fn read_is_held(row: Option<&MySqlRow>) -> Result<bool, Failure> {
    row.map_or(Ok(false), |row| Ok(get::<i64>(row, 0)? != 0))
}

/// Ends a connection at the server.
async fn kill(pool: &Pool, id: u64, bound: Duration) {
    let killed = pool.execute_text(format!("KILL {id}"), Instant::now() + bound);
    if let Err(failure) = killed.await {
        tracing::debug!(target: "leasehold", backend = "mysql", ?failure, "a connection that waits cannot be ended");
    }
}
