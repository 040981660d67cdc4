//! Wakes waiters by `GET_LOCK` (`wakeup=get_lock`).
//!
//! A claim that finds its lock held also waits for a named lock of the server, on a connection of its own. The claim that gets the named
//! lock acquires the row, keeps the named lock with its lease, and releases both in one packet, the row first. The next waiter then
//! acquires the row at once, and not with its next poll. The server serves the waiters of a named lock in their order.
//!
//! The named lock decides nothing: it has no ttl, and a claim that found its lock free does not have it. So the polls continue, a few for
//! a claim that waits for the named lock and the usual number for the claim that has it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::LockName;
use leasehold_core::backend::{Claim, CoreHandle};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::connections::Connections;
use crate::errors::Failure;
use crate::pool::{Checkout, Pool};
use crate::rows::{bytes, get, owner};
use crate::shared::lock;
use crate::statements::{GET_LOCK, GET_LOCK_SECONDS, RELEASE_LOCK, release_both};

/// How long after the last contention the claims of a client wait for the named lock first.
const CONTENTION: Duration = Duration::from_secs(1);

/// A claim that has the named lock and finds the lock held retries after this time, then after twice the time, and so on for so many retries.
/// Then it polls.
pub(crate) const FIRST_RETRY: Duration = Duration::from_millis(2);
pub(crate) const RETRIES: u32 = 6;

/// More contended locks than this are looked through for those that are not contended any more.
const MANY: usize = 1_000;

/// The turn of one claim. Dropping it ends the turn.
pub(crate) struct Turn {
    end: Mutex<Option<oneshot::Sender<Release>>>,
    /// The claim has the named lock.
    has_lock: Arc<AtomicBool>,
}

/// The release of a claim that has the named lock.
struct Release {
    claim: Claim,
    until: Instant,
    /// Whether the claim held the lock.
    reply: oneshot::Sender<Result<bool, Failure>>,
}

impl Turn {
    /// Releases the row and the named lock. `None`: the claim does not have the named lock, and nothing was sent.
    pub(crate) async fn release(&self, claim: &Claim, until: Instant) -> Option<Result<bool, Failure>> {
        if !self.has_lock.load(Ordering::Acquire) {
            return None;
        }
        let (reply, released) = oneshot::channel();
        lock(&self.end).take()?.send(Release { claim: claim.clone(), until, reply }).ok()?;
        // The task replies within the bound. It is gone only with its runtime, which drops the connection with the request.
        Some(released.await.unwrap_or(Err(Failure::TimedOut)))
    }

    fn has_ended(&self) -> bool {
        lock(&self.end).as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

/// The turn of a claim, in its slot.
type Slot = Mutex<Option<Turn>>;

/// What a client knows of the named locks.
#[derive(Default)]
pub(crate) struct Turns(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Those that its claims have.
    held: HashSet<LockName>,
    /// When a lock was held, or its named lock was taken, for the last time that this client tried.
    contended: HashMap<LockName, Instant>,
}

impl Turns {
    /// Whether a claim of this client has the named lock of this lock.
    pub(crate) fn has(&self, name: &LockName) -> bool {
        lock(&self.0).held.contains(name)
    }

    /// Whether a claim waits for the named lock before it tries to acquire the row. A client that has just released a contended lock would
    /// otherwise acquire it again before the next waiter has been woken.
    pub(crate) fn comes_first(&self, name: &LockName) -> bool {
        lock(&self.0).contended.get(name).is_some_and(|at| at.elapsed() < CONTENTION)
    }

    /// Notes that a lock is contended.
    pub(crate) fn contended(&self, name: &LockName) {
        let contended = &mut lock(&self.0).contended;
        if contended.len() > MANY {
            contended.retain(|_, at| at.elapsed() < CONTENTION);
        }
        contended.insert(name.clone(), Instant::now());
    }
}

/// Makes a claim wait for the named lock of its lock, unless it does already.
pub(crate) fn join(connections: &Arc<Connections>, core: &CoreHandle, claim: &Claim) {
    let mut turn = lock(claim.slot::<Slot>());
    if turn.as_ref().is_some_and(|turn| !turn.has_ended()) {
        return;
    }
    let (end, ended) = oneshot::channel();
    let has_lock = Arc::<AtomicBool>::default();
    *turn = Some(Turn { end: Mutex::new(Some(end)), has_lock: has_lock.clone() });
    core.keeper_runtime().spawn(run(connections.clone(), core.clone(), claim.name().clone(), has_lock, ended));
}

/// Takes the turn of a claim whose lease ends.
pub(crate) fn leave(claim: &Claim) -> Option<Turn> {
    lock(claim.slot::<Slot>()).take()
}

async fn run(
    connections: Arc<Connections>,
    core: CoreHandle,
    name: LockName,
    has_lock: Arc<AtomicBool>,
    mut ended: oneshot::Receiver<Release>,
) {
    let bound = connections.shared.settings.timeout;
    let pool = connections.turns(core.keeper_runtime());
    // Without the named lock the claim polls.
    let Ok(mut connection) = pool.checkout(Instant::now() + bound).await else { return };
    let id = connection.id();
    let got = tokio::select! {
        got = wait(&mut connection, &name, &connections) => got,
        _ = &mut ended => {
            // The server does not notice that the connection of a statement that waits is closed.
            drop(connection);
            return kill(&connections, id, bound).await;
        }
    };
    if let Err(failure) = got {
        tracing::debug!(target: "leasehold", backend = "mysql", ?failure, "a claim cannot wait for its named lock");
        return;
    }
    let turns = &connections.shared.turns;
    has_lock.store(true, Ordering::Release);
    lock(&turns.0).held.insert(name.clone());
    connections.shared.watcher.report(&name, &core);
    // A release, or the last use of the claim.
    let end = ended.await;
    lock(&turns.0).held.remove(&name);
    let is_released = match end {
        Ok(Release { claim, until, reply }) => {
            let both = release_both(bytes(&name), owner(&claim));
            let done = connection.execute_text(both, until).await;
            let is_released = done.is_ok();
            // The caller may have been dropped.
            let _ = reply.send(done.map(|rows| rows > 0));
            is_released
        }
        Err(_) => {
            let release = sqlx::query(RELEASE_LOCK).bind(bytes(&name));
            connection.fetch(release, Instant::now() + bound).await.is_ok()
        }
    };
    // The server releases the named lock of a connection that is closed.
    if is_released {
        connection.put_back();
    }
}

/// Waits for the named lock, for ever.
async fn wait(connection: &mut Checkout<'_>, name: &LockName, connections: &Connections) -> Result<(), Failure> {
    loop {
        let until = Instant::now() + Duration::from_secs(GET_LOCK_SECONDS) + connections.shared.settings.timeout;
        let query = sqlx::query(GET_LOCK).bind(bytes(name)).bind(bytes(name)).bind(GET_LOCK_SECONDS);
        let rows = connection.fetch(query, until).await?;
        let row = rows.first().ok_or(Failure::UnexpectedReply)?;
        if get::<i64>(row, 0)? != 0 {
            connections.shared.turns.contended(name);
        }
        match get::<Option<i64>>(row, 1)? {
            Some(1) => return Ok(()),
            Some(_) => {}
            None => return Err(Failure::UnexpectedReply),
        }
    }
}

/// Ends a connection at the server.
async fn kill(connections: &Connections, id: u64, bound: Duration) {
    let until = Instant::now() + bound;
    let Ok(pool) = connections.calls() else { return };
    let killed = async |pool: &Pool| {
        let mut connection = pool.checkout(until).await?;
        connection.execute_text(format!("KILL {id}"), until).await?;
        connection.put_back();
        Ok::<_, Failure>(())
    };
    if let Err(failure) = killed(&pool).await {
        tracing::debug!(target: "leasehold", backend = "mysql", ?failure, "a connection that waits cannot be ended");
    }
}
