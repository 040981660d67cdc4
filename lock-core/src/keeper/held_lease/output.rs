//! What a [`HeldLease`](super::HeldLease) has the keeper do.

use std::time::Duration;

use crate::backend::PlaceNumber;
use crate::clock::Stamp;
use crate::error::Error;
use crate::keeper::disposal::{Ending, Why};
use crate::keeper::rules::Wake;
use crate::loss::Loss;

/// To be carried out in order.
#[derive(Debug)]
pub(in crate::keeper) enum Output {
    /// Sends a renewal. Only in answer to a wake-up, so that renewals go out together.
    Renew { place: PlaceNumber, ttl: Duration },
    /// Sets when the lease wants to be woken, in place of the former time.
    Wake(Wake),
    /// The lease wants to be woken by then at the latest.
    WakeBy(Stamp),
    /// The holder has given the lease up.
    Released,
    /// The lease is lost: its holder is told.
    Lost(Loss),
    /// Renewal stops, and the keeper drops the lease.
    Unschedule,
    /// Ends the claim at the store, in the background.
    End(Ending, Why),
    /// For logs and counters.
    Note(Note),
}

#[derive(Debug)]
pub(in crate::keeper) enum Note {
    /// The store has confirmed that it keeps the lease, in answer to a request that was sent then.
    Confirmed(Stamp),
    Renewed,
    RenewalError,
    RenewalFailed {
        error: Error,
        failures: u32,
    },
    RenewalUnanswered {
        failures: u32,
    },
}

/// The outputs of one input, in order.
#[derive(Debug, Default)]
pub(in crate::keeper) struct Outputs(Vec<Output>);

impl Outputs {
    pub(super) fn push(&mut self, output: Output) {
        self.0.push(output);
    }

    pub(in crate::keeper) fn drain(&mut self) -> impl Iterator<Item = Output> {
        self.0.drain(..)
    }
}
