//! The row lease as a backend. Acquire, renew and release are one statement each, mostly.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::kit::OnRestart;
use leasehold_core::backend::kit::limits::{FAILOVER_TRUSTED, STEP};
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, Claim, Confirmation, CoreHandle, Delivery, Grant, LockBackend,
    PlaceNumber, ReleaseOutcome, ReleaseRequest, RenewReplies, RenewRequest, Restart, StoreClock, Waiting, WatchGuard,
    WatchNames,
};
use leasehold_core::{Error, Result};
use tokio::time::Instant;

use crate::connections::Connections;
use crate::errors::BACKEND;
use crate::maintenance::Maintenance;
use crate::row::renewal::Renewals;
use crate::row::rows::{Acquired, Rows};
use crate::row::statements::RENEW_ROWS;
use crate::row::wakeup;
use crate::row::watcher::Watcher;

/// `strategy=row`: one row for each lock, with the time at which the lease ends.
pub(crate) struct RowLease {
    pub(super) rows: Arc<Rows>,
    renewals: Renewals,
    watcher: Arc<Watcher>,
    maintenance: Arc<Maintenance>,
}

impl RowLease {
    pub(crate) fn new(connections: Arc<Connections>) -> Self {
        let maintenance = Maintenance::new(connections.shared.clone());
        let rows = Rows::new(connections);
        Self { renewals: Renewals::new(rows.clone()), watcher: Watcher::new(rows.clone()), rows, maintenance }
    }

    fn core(&self) -> Result<&CoreHandle> {
        self.rows.connections.shared.core.core()
    }

    /// The deadline of a call that starts now.
    pub(super) fn until(&self) -> Instant {
        self.rows.connections.shared.until()
    }
}

#[async_trait]
impl LockBackend for RowLease {
    fn attach(&self, core: CoreHandle) {
        if self.rows.connections.attach(&core) {
            self.rows.connections.calls.warm_up(&core);
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let (core, until) = (self.core()?, self.until());
        let (sent, acquired) = match wakeup::acquire(request, until).await {
            Some(done) => done?,
            None => {
                let done = self.rows.acquire(request, core, until).await?;
                // It was granted the lock without its turn, so others can have the connection and the named lock.
                if let (_, Acquired::Granted(_)) = done {
                    drop(wakeup::leave(&request.claim));
                }
                done
            }
        };
        self.rows.connections.calls.warm_up(core);
        match acquired {
            Acquired::Granted(token) => {
                // Not before: a client that only waits should not take one more connection.
                self.rows.connections.renewals.warm_up(core);
                self.maintenance.acquired::<Self>(core);
                let confirmation = Confirmation { ttl: request.ttl, sent, place: PlaceNumber::NONE };
                Ok(AcquireOutcome::Granted(Grant::new(token, confirmation)))
            }
            Acquired::Held(left) => {
                // Retry before the lease ends: a notification may be lost.
                Ok(AcquireOutcome::Contended { retry_after: left.min(request.ttl / 3) })
            }
            // The next attempt takes the lock if it is free: the claim that has the right to poll may be paused.
            Acquired::Wanted => {
                Ok(AcquireOutcome::Contended { retry_after: wakeup::GIVES_WAY_FOR.min(request.ttl / 3) })
            }
            Acquired::Withdrawn => Err(Error::withdrawn()),
        }
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        match self.core() {
            Ok(core) => self.renewals.renew(core, requests, replies, self.until()).await,
            Err(error) => replies.fail_rest(&error),
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let (claim, until) = (&request.claim, self.until());
        // Dropped only when the row is free. Otherwise the claim that the named lock wakes would find the lock held.
        let turn = wakeup::leave(claim);
        let was_held = match (request.delivery, &turn) {
            (Delivery::Confirmed, Some(turn)) => {
                self.rows.release(claim, turn.release(claim, until).await, until).await?
            }
            (Delivery::Confirmed, None) => self.rows.release(claim, None, until).await?,
            // Not over the connection of the turn, which may still wait for the reply to the request in doubt.
            (Delivery::InDoubt, _) => self.rows.withdraw(claim, until).await?,
        };
        Ok(if was_held { ReleaseOutcome::Released } else { ReleaseOutcome::NotHeld })
    }

    fn capabilities(&self) -> Capabilities {
        let mut it = Capabilities::new(BACKEND);
        it.clock = StoreClock::ServerWall;
        it.ttl_granularity = Duration::from_millis(1);
        it.waiting = Waiting::Poll;
        it.takeover_slack = self.rows.connections.shared.settings.timeout;
        it.fencing = "the last token + 1, at least the server's time in µs; kept in the lock's row";
        it.restart = Restart::KeepsAll;
        it.call_bound = self.rows.connections.shared.settings.timeout;
        it.renew_batch = RENEW_ROWS;
        it.limits_of_exclusion = match self.rows.connections.shared.settings.on_restart {
            OnRestart::Trust => &[STEP, FAILOVER_TRUSTED, CRASH_TRUSTED, SPLIT, DELETED],
            OnRestart::Quarantine => &[STEP, TTL_LOST, SPLIT, DELETED],
            _ => &[STEP, TTL_LOST, UNKNOWN, SPLIT, DELETED],
        };
        it
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        Some(self)
    }
}

impl WatchNames for RowLease {
    fn watch(&self, claim: &Claim) -> WatchGuard {
        Watcher::watch(&self.watcher, claim)
    }
}

const CRASH_TRUSTED: &str =
    "the server loses acknowledged writes in a crash (`innodb_flush_log_at_trx_commit` other than 1, `restart=trust`)";
const TTL_LOST: &str = "a failover to a lagging replica, or a crash of a server whose `innodb_flush_log_at_trx_commit` \
     is not 1, loses the first use of a ttl: clients then wait only for the longest ttl that they know and their own";
const UNKNOWN: &str = "the server is replaced by one whose table does not name it, and a client that never saw the \
     former one requests a lock before any client that did";
const SPLIT: &str = "the former server still grants locks after a failover";
const DELETED: &str = "somebody changes or deletes the lock's row, or restores the table from a backup";
