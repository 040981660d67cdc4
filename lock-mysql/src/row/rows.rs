//! The operations of the row lease: each is one statement, on a connection for calls.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::kit::BoundedSet;
use leasehold_core::backend::kit::restart::Epoch;
use leasehold_core::backend::{AcquireRequest, Claim, CoreHandle, OnContention, Stamp, WITHDRAWN_TTL};
use leasehold_core::{FencingToken, LockName};
use tokio::time::Instant;

use crate::connections::Connections;
use crate::errors::Failure;
use crate::pool::Checkout;
use crate::row::quarantine;
use crate::row::statements::{self, BUSY, IS_WANTED, OTHER_FORMAT, WAS_HELD, WAS_WITHDRAWN};
use crate::sql::{get, micros};

/// More names of released locks than this are forgotten together.
const MOST_RELEASED: usize = 10_000;

/// The row leases of one client.
pub(crate) struct Rows {
    pub(super) connections: Arc<Connections>,
    /// What this client knows about the runs of the server.
    pub(super) epoch: Mutex<Epoch>,
    /// The locks that this client has released and not acquired since. An acquire of such a lock mostly finds its row,
    /// and finds it free. So it sends a statement for that first, which costs the server a third less than the one for
    /// all cases. A wrong guess costs one round trip.
    released: BoundedSet<LockName>,
}

/// The outcome of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted(FencingToken),
    /// Another claim holds the lock for this long.
    Held(Duration),
    /// Another claim waits for the lock, and this one should wait, too.
    Wanted,
    /// The claim was withdrawn before.
    Withdrawn,
}

pub(crate) fn owner(claim: &Claim) -> &[u8] {
    claim.owner().as_bytes()
}

impl Rows {
    pub(crate) fn new(connections: Arc<Connections>) -> Arc<Self> {
        Arc::new(Self { connections, epoch: Mutex::default(), released: BoundedSet::new(MOST_RELEASED) })
    }

    /// Tries once to take the row. Returns the stamp from just before the statement was sent.
    pub(crate) async fn acquire(
        &self,
        request: &AcquireRequest,
        core: &CoreHandle,
        until: Instant,
    ) -> Result<(Stamp, Acquired), Failure> {
        let pool = self.connections.calls.pool()?;
        let mut connection = pool.checkout(until).await?;
        let done = self.acquire_by(&mut connection, request, core, until).await;
        connection.put_back();
        done
    }

    /// The same, on a connection.
    pub(crate) async fn acquire_by(
        &self,
        connection: &mut Checkout<'_>,
        request: &AcquireRequest,
        core: &CoreHandle,
        until: Instant,
    ) -> Result<(Stamp, Acquired), Failure> {
        quarantine::before_acquire(connection, &self.epoch, request.ttl, until).await?;
        let (claim, ttl) = (&request.claim, micros(request.ttl));
        let (owner, holder) = (owner(claim), claim.holder().encode(None));
        let holder = holder.as_bytes();
        // The smaller statement first.
        if self.released.remove(claim.name()) {
            let statement = sqlx::query(statements::ACQUIRE_FREE)
                .bind(owner)
                .bind(holder)
                .bind(ttl)
                .bind(claim.name().as_bytes())
                .bind(owner)
                .bind(claim.name().as_bytes());
            let sent = core.stamp();
            let done = connection.execute(statement, until).await?;
            if done.rows_affected() > 0 {
                return Ok((sent, Acquired::Granted(FencingToken::new(done.last_insert_id()))));
            }
            // A client that wants the lock again which it has just released gives way to the claims that poll.
            // Otherwise it would always be faster than they are.
            if request.on_contention == OnContention::Queue {
                let rows = connection.fetch(sqlx::query(IS_WANTED).bind(claim.name().as_bytes()), until).await?;
                if get::<i64>(rows.first().ok_or(Failure::UnexpectedReply)?, 0)? != 0 {
                    return Ok((sent, Acquired::Wanted));
                }
            }
        }
        let statement = sqlx::query(statements::ACQUIRE)
            .bind(claim.name().as_bytes())
            .bind(owner)
            .bind(ttl)
            .bind(holder)
            .bind(owner)
            .bind(owner)
            .bind(owner)
            .bind(owner)
            .bind(holder)
            .bind(owner)
            .bind(owner)
            .bind(owner)
            .bind(owner)
            .bind(owner)
            .bind(ttl);
        let sent = core.stamp();
        let acquired = match connection.execute(statement, until).await?.last_insert_id() {
            OTHER_FORMAT => return Err(Failure::other_format()),
            WAS_WITHDRAWN => Acquired::Withdrawn,
            busy if busy & BUSY != 0 => Acquired::Held(Duration::from_micros(busy & !BUSY)),
            token => Acquired::Granted(FencingToken::new(token)),
        };
        Ok((sent, acquired))
    }

    /// Ends the lease of a claim. Returns whether the claim held the lock. `first` is the outcome of a first attempt,
    /// over the connection of the claim's turn.
    ///
    /// The server may have closed a connection that was idle, and the request is lost then. So after a broken
    /// connection this asks once more on another one. If the claim holds its lease until then, the first request had no
    /// effect, and cannot have one later. Otherwise the outcome stays unknown.
    pub(crate) async fn release(
        &self,
        claim: &Claim,
        first: Option<Result<bool, Failure>>,
        until: Instant,
    ) -> Result<bool, Failure> {
        let first = match first {
            Some(done) => done,
            None => self.release_once(claim, until).await,
        };
        let was_held = match first {
            Err(Failure::Disconnected(cause)) => match self.release_once(claim, until).await {
                Ok(true) => true,
                _ => return Err(Failure::Disconnected(cause)),
            },
            done => done?,
        };
        if was_held {
            self.released.add(claim.name().clone());
        }
        Ok(was_held)
    }

    async fn release_once(&self, claim: &Claim, until: Instant) -> Result<bool, Failure> {
        let statement = sqlx::query(statements::RELEASE).bind(claim.name().as_bytes()).bind(owner(claim));
        Ok(self.connections.calls.pool()?.execute(statement, until).await?.rows_affected() > 0)
    }

    /// Ends the lease of a claim, and makes sure that a request of it that is still in flight has no effect.
    pub(crate) async fn withdraw(&self, claim: &Claim, until: Instant) -> Result<bool, Failure> {
        let (owner, ttl) = (owner(claim), micros(WITHDRAWN_TTL));
        let statement = sqlx::query(statements::WITHDRAW)
            .bind(claim.name().as_bytes())
            .bind(owner)
            .bind(ttl)
            .bind(owner)
            .bind(owner)
            .bind(owner)
            .bind(ttl)
            .bind(owner)
            .bind(owner)
            .bind(owner);
        match self.connections.calls.pool()?.execute(statement, until).await?.last_insert_id() {
            OTHER_FORMAT => Err(Failure::other_format()),
            was_held => Ok(was_held == WAS_HELD),
        }
    }

    /// Which of these locks are free.
    pub(crate) async fn free(&self, names: &[LockName], until: Instant) -> Result<Vec<LockName>, Failure> {
        let rows = self
            .connections
            .calls
            .pool()?
            .fetch_text(statements::held(names.iter().map(LockName::as_bytes)), until)
            .await?;
        let held: HashSet<Vec<u8>> = rows.iter().map(|row| get(row, 0)).collect::<Result<_, Failure>>()?;
        Ok(names.iter().filter(|name| !held.contains(name.as_bytes())).cloned().collect())
    }
}
