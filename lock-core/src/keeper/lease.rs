//! A lease, shared by its guards and the keeper.

use std::sync::Mutex;

use tokio::sync::Notify;

use super::LeaseKeeper;
use super::machines::held_lease::{HeldLease, LeaseOutput, Phase};
use super::machines::outputs::Outputs;
use super::report::{Report, Reports};
use crate::backend::Claim;
use crate::clock::Stamp;
use crate::loss::Loss;
use crate::sync::lock;
use crate::token::FencingToken;

/// A lease: its state machine, and what never changes.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) claim: Claim,
    pub(super) token: FencingToken,
    /// Lock order: the keeper's state comes first.
    pub(super) machine: Mutex<HeldLease>,
    /// Notified when the lease has ended.
    pub(super) ended: Notify,
}

impl LeaseKeeper {
    /// The end of the validity of a lease, or how it ended. Locks the lease alone.
    pub(super) fn check(&self, reports: &mut Reports, lease: &Lease) -> Result<Stamp, Phase> {
        let mut outputs = Outputs::default();
        let checked = {
            let mut machine = lock(&lease.machine);
            machine.check(self.now(), &mut outputs)
        };
        for output in outputs.drain() {
            // A check has no other output.
            if let LeaseOutput::Lost(loss) = output {
                self.note_loss(reports, lease, loss);
            }
        }
        checked
    }

    /// Counts the loss of a lease once, whichever task found it, and notifies the holder.
    pub(super) fn note_loss(&self, reports: &mut Reports, lease: &Lease, loss: Loss) {
        self.counters.lost.add();
        self.counters.held.sub();
        reports.push(lease.claim.name(), Report::Lost { token: lease.token, reason: loss.reason });
        lease.ended.notify_waiters();
    }
}
