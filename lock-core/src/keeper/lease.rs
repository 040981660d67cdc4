//! A lease, shared by its guards and the keeper.

use std::sync::Mutex;

use tokio::sync::Notify;

use super::LeaseKeeper;
use super::machines::held_lease::{Check, HeldLease, Phase};
use super::report::{Report, Reports};
use crate::backend::{Claim, RenewRequest};
use crate::clock::Stamp;
use crate::loss::Loss;
use crate::sync::lock;
use crate::token::FencingToken;

/// The state of a lease, and what of it never changes.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) claim: Claim,
    pub(crate) token: FencingToken,
    /// Locked after the keeper's state, if both are.
    pub(super) machine: Mutex<HeldLease>,
    /// Notified when the lease has ended.
    pub(crate) ended: Notify,
}

/// The end of the validity of a lease that is held, or how it ended.
pub(crate) type Held = Result<Stamp, Phase>;

impl Lease {
    /// See [`LockGuard::lease_ref`](crate::LockGuard::lease_ref).
    pub(crate) fn lease_ref(&self) -> RenewRequest {
        let machine = lock(&self.machine);
        RenewRequest::new(self.claim.clone(), machine.place(), machine.terms().ttl)
    }
}

impl LeaseKeeper {
    /// The present state of a lease. Locks the lease alone.
    pub(super) fn check(&self, reports: &mut Reports, lease: &Lease) -> Held {
        let check = {
            let mut machine = lock(&lease.machine);
            machine.check(self.now())
        };
        match check {
            Check::Held { valid_until } => Ok(valid_until),
            Check::JustLost(loss) => {
                self.lost(reports, lease, loss);
                Err(Phase::Lost(loss))
            }
            Check::Over(phase) => Err(phase),
        }
    }

    /// Counts the loss of a lease once, whichever task found it, and notifies the holder.
    pub(super) fn lost(&self, reports: &mut Reports, lease: &Lease, loss: Loss) {
        self.counters.lost.add();
        self.counters.held.sub();
        reports.warn(lease.claim.name(), Report::Lost { token: lease.token, reason: loss.reason });
        lease.ended.notify_waiters();
    }
}
