//! The task of a claim. It owns the connection that locks the row, and runs on the keeper's runtime.
//!
//! The task runs each statement to its end. Callers wait for it with a bound of their own. So a call that is dropped or
//! takes long leaves the connection in order, and a reply that comes late still counts.
//!
//! The order of a grant: the row is locked; another connection raises the token in a transaction of its own, and checks
//! that the row is still locked; a statement on the own connection proves it too, and starts the ttl. The validity
//! counts from that statement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::LockName;
use leasehold_core::backend::{Confirmation, CoreHandle, Event, OwnerToken, PlaceNumber, Stamp};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use super::connection::Connection;
use super::fences::{self, Raised};
use super::hold::Lease;
use super::slot::{Command, Phase, TaskConnection};
use super::statements::{Grantee, IfTaken, Statements};
use crate::connections::{Connections, Pools};
use crate::errors::Failure;
use crate::pool::Pool;

/// What a claim requests.
pub(super) struct Request {
    pub(super) name: LockName,
    pub(super) statements: Statements,
    pub(super) owner: OwnerToken,
    /// Who requests the lock, for people.
    pub(super) holder: String,
    pub(super) ttl: Duration,
    /// The ttl of a place.
    pub(super) place_ttl: Duration,
    pub(super) place: PlaceNumber,
    /// Whether the claim waits if another one holds.
    pub(super) waits: bool,
}

pub(super) struct Task {
    pub(super) connections: Arc<Connections>,
    pub(super) core: CoreHandle,
    pub(super) request: Request,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) connection: Arc<TaskConnection>,
}

/// Why there is no lease.
enum NoLease {
    /// These statements end the transaction.
    Contended {
        retry_after: Duration,
        leave: String,
    },
    /// The claim does not want it any more.
    Cancelled,
    Failed(Failure),
}

impl From<Failure> for NoLease {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Task {
    /// `leases` has the connections of claims that hold or wait.
    pub(super) async fn run(mut self, leases: Arc<Pools>) {
        let pool = leases.pool_of(self.core.keeper_runtime());
        let mut connection = match Connection::take(&pool, self.until()).await {
            Ok(connection) => connection,
            Err(failure) => return self.set_phase(Phase::Failed(failure.into())),
        };
        if !self.connection.take(connection.endpoint.clone()) {
            return;
        }
        match self.acquire(&mut connection).await {
            Ok(lease) => self.hold(connection, lease).await,
            Err(NoLease::Contended { retry_after, leave }) => {
                let left = connection.end(leave, || self.connection.detach(), self.until()).await;
                self.set_phase(Phase::Contended(retry_after));
                if left.is_err() {
                    self.end_connection().await;
                }
            }
            Err(NoLease::Cancelled) => {
                // At once, because it may have locked the row, and others wait for it. In packets of one statement: the
                // server sends no reply to the rest of a packet when `KILL QUERY` arrives between two of its
                // statements.
                for statement in self.request.statements.unlock_one_by_one() {
                    if connection.execute(statement, self.until()).await.is_err() {
                        // `KILL QUERY` has met it. The named lock is released before the row, so this waits for the
                        // statements below.
                        break;
                    }
                }
                self.connection.wait_for_cancel(self.until()).await;
                let unlock = self.request.statements.unlock();
                if connection.end(unlock, || self.connection.detach(), self.until()).await.is_err() {
                    self.end_connection().await;
                }
                self.set_phase(Phase::Ended);
            }
            Err(NoLease::Failed(failure)) => self.fail(connection, failure).await,
        }
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    pub(super) fn until(&self) -> Instant {
        self.connections.shared.until()
    }

    pub(super) fn confirmation(&self, ttl: Duration, sent: Stamp) -> Confirmation {
        Confirmation { ttl, sent, place: self.place() }
    }

    /// The number of the place, for a claim that has waited.
    fn place(&self) -> PlaceNumber {
        if self.request.waits { self.request.place } else { PlaceNumber::NONE }
    }

    /// How long the server keeps the row for a client that is silent after it has locked the row, in seconds. If the
    /// path loses the connection of a waiter, the server grants it the row all the same, and nobody can hold the lock
    /// until then. The next statement follows at once, and takes no longer than a call.
    fn idle(&self) -> u64 {
        let bound = self.connections.shared.settings.timeout.as_secs() + 2;
        bound.min(self.request.place_ttl.as_secs())
    }

    fn is_waiting(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Waiting)
    }

    /// The claim has a place from now on.
    fn set_waiting(&self) {
        if !self.is_waiting() {
            self.set_phase(Phase::Waiting);
        }
    }

    /// Locks the row and raises the token.
    async fn acquire(&self, connection: &mut Connection<'_>) -> Result<Lease, NoLease> {
        let Request { statements, place_ttl, .. } = &self.request;
        let calls = self.connections.calls.pool()?;
        loop {
            let done = match self.request.waits {
                true => self.wait(connection).await,
                false => {
                    let lock = statements.lock(IfTaken::Skip, self.idle());
                    connection.lock(lock, self.until()).await
                }
            };
            match done {
                _ if self.connection.is_cancelled() => return Err(NoLease::Cancelled),
                Ok(true) => break,
                Ok(false) if !self.request.waits => {
                    return Err(NoLease::Contended { retry_after: *place_ttl, leave: Statements::leave() });
                }
                // The row was removed; another client inserts it; an operator has cancelled the statement.
                Ok(false) | Err(Failure::Conflict(_)) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        self.grant(connection, &calls).await
    }

    /// Waits until the row is locked. The claim has a place when another one holds.
    async fn wait(&self, connection: &mut Connection<'_>) -> Result<bool, Failure> {
        let Request { statements, place_ttl, .. } = &self.request;
        let waits = statements.waits(connection.endpoint.id);
        let (lock, is_used) = (statements.lock(IfTaken::Wait, self.idle()), AtomicBool::new(false));
        // The renewals of the place check that the connection exists. Statements of operators may delay a slice, so it
        // has no bound.
        let slices = async {
            loop {
                match connection.wait(lock.clone(), &is_used, Instant::now() + FOREVER).await {
                    Err(Failure::Conflict(_)) if !self.connection.is_cancelled() => {}
                    done => return done,
                }
            }
        };
        let mut locked = std::pin::pin!(slices);
        if let Ok(done) = tokio::time::timeout(SOON, &mut locked).await {
            return done;
        }
        // The process list is asked only if no connection has the named lock yet: asking for each waiter took most of
        // the server with 100 of them.
        if self.is_waiting() || is_used.load(Ordering::Relaxed) {
            self.set_waiting();
        } else {
            // On a connection of its own, because others are needed for the grant, and in a task of its own, because a
            // query that is dropped closes its connection.
            let (pool, until) = (self.connections.renewals.pool()?, self.until());
            let (needed, is_needed) = tokio::sync::oneshot::channel::<()>();
            let placed = tokio::spawn(async move {
                let is_needed = || !needed.is_closed();
                fences::waits(&pool, waits, is_needed, until).await
            });
            // Until the row is locked, or the place is known.
            let _is_needed = is_needed;
            tokio::select! {
                biased;
                done = &mut locked => return done,
                placed = placed => {
                    // Without a place, the call ends after its bound, and the task with it.
                    if let Ok(Ok(true)) = placed {
                        self.set_waiting();
                    }
                }
            }
        }
        // The claim was dropped without a release: the place lasts until its ttl is over.
        let dropped = async {
            self.phase.closed().await;
            tokio::time::sleep(*place_ttl).await;
        };
        tokio::select! {
            done = locked => done,
            () = dropped => Err(Failure::NoSuchConnection),
        }
    }

    async fn grant(&self, connection: &mut Connection<'_>, calls: &Pool) -> Result<Lease, NoLease> {
        let Request { statements, holder, ttl, place_ttl, .. } = &self.request;
        let until = self.until();
        loop {
            let grantee = Grantee {
                id: connection.endpoint.id,
                started: connection.started,
                uptime: connection.uptime().as_secs(),
                ttl: ttl.as_secs(),
                holder: holder.as_bytes(),
            };
            // Both at once: the row is locked, so no other claim raises the token meanwhile.
            let raise = fences::raise(calls, statements.raise(&grantee), self.until());
            // The validity counts from the statement that starts `wait_timeout`.
            let sent = (self.core.stamp(), Instant::now());
            self.connection.begin_grant(sent.0);
            let keep = connection.execute(Statements::keep(ttl.as_secs()), sent.1 + *ttl);
            let (kept, raised) = tokio::join!(keep, self.with_a_place_soon(raise));
            if self.connection.is_cancelled() {
                return Err(NoLease::Cancelled);
            }
            kept?;
            match raised {
                Ok(Raised::To(token)) => {
                    let waited = self.is_waiting();
                    return Ok(Lease::new(token, *ttl, sent, waited));
                }
                // A restart of the server has ended the lease of a holder that may still trust it. The call can end
                // while the claim has a place.
                Ok(Raised::NotBefore(left)) if self.request.waits => {
                    self.connection.end_grant();
                    self.set_waiting();
                    tokio::time::sleep(left.min(*place_ttl / 3)).await;
                }
                Ok(Raised::NotBefore(left)) => {
                    return Err(NoLease::Contended { retry_after: left, leave: statements.unlock() });
                }
                // A fenced write with the last token is not committed yet.
                Err(Failure::Conflict(_) | Failure::TimedOut) if self.is_waiting() => {}
                Err(Failure::Conflict(_)) if Instant::now() < until => {}
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// If this takes long, the claim has a place meanwhile, and its call can end.
    async fn with_a_place_soon<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let soon = Instant::now() + self.connections.shared.settings.timeout / 2;
        match timeout_at(soon, &mut work).await {
            Ok(done) => done,
            Err(_) => {
                if self.request.waits {
                    self.set_waiting();
                }
                work.await
            }
        }
    }

    /// Ends the connection, which may still have locked the row. The server ends it after the ttl otherwise. Returns
    /// whether the connection existed; `None` if that is not known.
    pub(super) async fn end_connection(&self) -> Option<bool> {
        let (Ok(pool), Some(endpoint)) = (self.connections.calls.pool(), self.connection.condemn()) else {
            return None;
        };
        match fences::end(&pool, &endpoint, self.until()).await {
            Ok(existed) => Some(existed),
            Err(failure) => {
                tracing::debug!(
                    target: "leasehold", backend = "mysql", ?failure,
                    "the connection of a claim cannot be ended"
                );
                None
            }
        }
    }

    /// Ends the task with this failure.
    async fn fail(&self, connection: Connection<'_>, failure: Failure) {
        let had_place = self.is_waiting();
        let left = connection.end(self.request.statements.unlock(), || self.connection.detach(), self.until()).await;
        let error = if left.is_ok() { failure.without_effect() } else { failure.into() };
        let is_refused = had_place && self.connection.note_refusal(&error);
        self.set_phase(Phase::Failed(error));
        if is_refused {
            // The keeper acquires again and gets the error. Otherwise a claim that is refused each time would
            // begin to wait again at once, until its wait ends.
            self.core.event(Event::Changed(self.request.name.clone()));
        } else if had_place {
            self.core.event(Event::Gone { owner: self.request.owner });
        }
        if left.is_err() {
            self.end_connection().await;
        }
    }
}

/// A free row is locked within this time, mostly.
const SOON: Duration = Duration::from_millis(5);

/// Longer than any wait.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
