//! The task of a claim. It owns the connection that locks the row, and runs on the keeper's runtime.
//!
//! The task runs each statement to its end. Callers wait for it with a bound of their own. So a call that is dropped or takes long leaves the
//! connection in order, and a reply that comes late still counts.
//!
//! The order of a grant: the row is locked; another connection raises the token in a transaction of its own, and checks that the row is
//! still locked; a statement on the own connection proves it too, and starts the ttl. The validity counts from that statement.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::backend::{Confirmation, CoreHandle, Event, Grant, OwnerToken, PlaceNumber, RenewReply, Stamp};
use leasehold_core::{Error, ErrorKind, FencingToken};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::connection::{Connection, Endpoint, LastLease, Locked};
use super::fences;
use super::slot::{Command, Phase};
use super::statements::Statements;
use crate::connections::Connections;
use crate::errors::Failure;

/// What a claim requests.
pub(super) struct Request {
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
    pub(super) endpoint: Arc<OnceLock<Endpoint>>,
}

/// A lease.
struct Lease {
    token: FencingToken,
    /// The ttl on the connection, the one that is recorded, and when the ttl began at the earliest.
    ttl: Duration,
    recorded: Duration,
    sent: (Stamp, Instant),
    /// The claim waited for it, and core may not know of the grant yet.
    waited: bool,
}

impl Lease {
    fn ends(&self) -> Instant {
        self.sent.1 + self.ttl
    }
}

/// Why there is no lease.
enum NoLease {
    /// These statements end the transaction.
    Contended {
        retry_after: Duration,
        leave: String,
    },
    Failed(Failure),
}

impl From<Failure> for NoLease {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Task {
    pub(super) async fn run(mut self) {
        let pool = self.connections.leases(self.core.keeper_runtime());
        let over = match Connection::take(&pool, self.until()).await {
            Err(failure) => Phase::Failed(failure.into()),
            Ok(mut connection) => {
                let _ = self.endpoint.set(connection.endpoint.clone());
                match self.acquire(&mut connection).await {
                    Ok(lease) => self.hold(connection, lease).await,
                    Err(NoLease::Contended { retry_after, leave }) => {
                        if let Err(failure) = connection.end(leave, self.until()).await {
                            self.end_connection(&failure).await;
                        }
                        Phase::Contended(retry_after)
                    }
                    Err(NoLease::Failed(failure)) => self.failed(connection, failure).await,
                }
            }
        };
        self.phase.send_replace(over);
    }

    fn until(&self) -> Instant {
        Instant::now() + self.connections.shared.settings.timeout
    }

    fn confirmation(&self, ttl: Duration, sent: Stamp) -> Confirmation {
        Confirmation { ttl, sent, place: self.place() }
    }

    /// The number of the place, for a claim that has waited.
    fn place(&self) -> PlaceNumber {
        if self.request.waits { self.request.place } else { PlaceNumber::NONE }
    }

    fn is_waiting(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Waiting)
    }

    /// From here on the claim has a place. Returns whether it may wait.
    fn wait(&self) -> bool {
        if self.request.waits && !self.is_waiting() {
            self.phase.send_replace(Phase::Waiting);
        }
        self.request.waits
    }

    /// Locks the row and raises the token.
    async fn acquire(&self, connection: &mut Connection<'_>) -> Result<Lease, NoLease> {
        let (statements, place_ttl) = (&self.request.statements, self.request.place_ttl);
        let last = loop {
            match connection.try_lock(statements, place_ttl.as_secs(), self.until()).await? {
                Locked::Yes(last) => break last,
                Locked::NoRow => match connection.execute(statements.create(), self.until()).await {
                    // Another client has inserted and locked it.
                    Ok(()) | Err(Failure::Conflict(_)) => continue,
                    Err(failure) => return Err(failure.into()),
                },
                Locked::No if !self.wait() => {
                    return Err(NoLease::Contended { retry_after: place_ttl, leave: Statements::leave() });
                }
                Locked::No => {}
            }
            // The server ends this when the claim's connection is ended, and only then. The renewals of the place check that it exists.
            match connection.wait(statements, Instant::now() + FOREVER).await? {
                Locked::Yes(last) => break last,
                Locked::NoRow | Locked::No => {}
            }
        };
        self.wait_after_restart(connection, last).await?;
        self.grant(connection).await
    }

    /// Waits until the server has run for the ttl of the last lease. Its holder does not know yet that a restart has ended it.
    async fn wait_after_restart(
        &self,
        connection: &mut Connection<'_>,
        last: Option<LastLease>,
    ) -> Result<(), NoLease> {
        loop {
            let left = connection.believed_for(last);
            if left.is_zero() {
                return Ok(());
            }
            if !self.wait() {
                return Err(NoLease::Contended { retry_after: left, leave: self.request.statements.unlock() });
            }
            tokio::time::sleep(left.min(self.request.place_ttl / 3)).await;
            let keep = Statements::keep(self.request.place_ttl.as_secs());
            connection.execute(keep, self.until()).await?;
        }
    }

    async fn grant(&self, connection: &mut Connection<'_>) -> Result<Lease, NoLease> {
        let Request { statements, holder, ttl, .. } = &self.request;
        let calls = self.connections.calls().map_err(Failure::NotSent)?;
        let (id, started, until) = (connection.endpoint.id, connection.started, self.until());
        loop {
            let sent = (self.core.stamp(), Instant::now());
            let keep = connection.execute(Statements::keep(ttl.as_secs()), sent.1 + *ttl);
            let text = statements.raise(id, started, ttl.as_secs(), holder.as_bytes());
            let raise = fences::raise(&calls, text, self.until());
            let raise = self.with_a_place_soon(raise);
            let (kept, raised) = tokio::join!(keep, raise);
            kept?;
            match raised {
                Ok(token) => {
                    let waited = self.is_waiting();
                    return Ok(Lease { token, ttl: *ttl, recorded: *ttl, sent, waited });
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
                self.wait();
                work.await
            }
        }
    }

    /// Ends a connection that may still have locked the row.
    async fn end_connection(&self, why: &Failure) {
        tracing::debug!(target: "leasehold", backend = "mysql", failure = ?why, "the connection of a claim is closed");
        let (Ok(pool), Some(endpoint)) = (self.connections.calls(), self.endpoint.get()) else { return };
        // The server ends it after the ttl otherwise.
        let _ = fences::end(&pool, endpoint, self.until()).await;
    }

    async fn failed(&self, connection: Connection<'_>, failure: Failure) -> Phase {
        let had_place = self.is_waiting();
        let unlocked = connection.end(self.request.statements.unlock(), self.until()).await;
        let error = match &unlocked {
            Ok(()) => failure.without_effect(),
            Err(failed) => {
                self.end_connection(failed).await;
                failure.into()
            }
        };
        if had_place {
            self.core.event(Event::Gone { owner: self.request.owner });
        }
        Phase::Failed(error)
    }

    /// Keeps the lease until it is released or lost.
    async fn hold(&mut self, mut connection: Connection<'_>, mut lease: Lease) -> Phase {
        let confirmation = self.confirmation(lease.ttl, lease.sent.0);
        self.phase.send_replace(Phase::Held(lease.token, confirmation));
        if lease.waited {
            let (owner, place, token) = (self.request.owner, self.request.place, lease.token);
            self.core.event(Event::Granted { owner, place, token, confirmation: Some(confirmation) });
        }
        loop {
            match self.commands.recv().await {
                Some(Command::Renew { ttl, index, replies }) => {
                    let renewed = self.renew(&mut connection, &mut lease, ttl).await;
                    let is_lost = matches!(renewed, RenewReply::Lost);
                    // The caller may have given up.
                    let _ = replies.send((index, renewed));
                    if is_lost {
                        drop(connection);
                        self.end_connection(&Failure::NoSuchConnection).await;
                        return Phase::Ended;
                    }
                }
                Some(Command::Release { reply }) => {
                    let done = connection.end(self.request.statements.unlock(), self.until()).await;
                    let _ = reply.send(done);
                    return Phase::Ended;
                }
                // The claim was dropped without a release: the lease lasts until its deadline.
                None => {
                    sleep_until(lease.ends()).await;
                    return Phase::Ended;
                }
            }
        }
    }

    async fn renew(&self, connection: &mut Connection<'_>, lease: &mut Lease, ttl: Duration) -> RenewReply {
        match self.try_renew(connection, lease, ttl).await {
            Ok(Some(confirmation)) if lease.waited => RenewReply::Granted(Grant::new(lease.token, confirmation)),
            Ok(Some(confirmation)) => RenewReply::Renewed(confirmation),
            Ok(None) => RenewReply::Lost,
            Err(failure) => RenewReply::Unknown(failure.into()),
        }
    }

    /// Returns `None` if the lease is lost.
    async fn try_renew(
        &self,
        connection: &mut Connection<'_>,
        lease: &mut Lease,
        ttl: Duration,
    ) -> Result<Option<Confirmation>, Failure> {
        let (statements, calls) = (&self.request.statements, self.connections.calls().map_err(Failure::NotSent)?);
        let (stamp, now) = (self.core.stamp(), Instant::now());
        // A statement on the connection would shorten the lease.
        if lease.ends() >= now + ttl {
            let holds = fences::holds(&calls, statements, connection.endpoint.id, self.until()).await?;
            return Ok(holds.then(|| self.confirmation(ttl, stamp)));
        }
        if ttl > lease.recorded {
            fences::lengthen(&calls, statements, lease.token, ttl.as_secs(), self.until()).await?;
            lease.recorded = ttl;
        }
        let sent = (self.core.stamp(), Instant::now());
        let renew = if ttl == lease.ttl { Statements::renew() } else { Statements::keep(ttl.as_secs()) };
        match connection.execute(renew, lease.ends().max(self.until())).await {
            Ok(()) => {
                (lease.ttl, lease.sent) = (ttl, sent);
                Ok(Some(self.confirmation(ttl, sent.0)))
            }
            // Whatever it was: the connection is not usable any more, and the lease ends with it.
            Err(_) => Ok(None),
        }
    }
}

/// Longer than any wait.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The error of an acquire whose claim was withdrawn.
pub(super) fn withdrawn() -> Error {
    Error::new(ErrorKind::Lost, "this claim was withdrawn before the request arrived")
}
