//! The outputs of a [`HeldLease`](super::HeldLease).

use std::time::Duration;

use crate::backend::PlaceNumber;
use crate::clock::Stamp;
use crate::error::Error;
use crate::keeper::machines::disposal::Ending;
use crate::keeper::machines::outputs::Wake;
use crate::loss::Loss;

/// What the keeper does for a lease. It carries outputs out in their order.
#[derive(Clone, Debug)]
pub enum LeaseOutput {
    /// Sends a renewal. Follows only from a wake-up, so that renewals go out in batches.
    Renew { place: PlaceNumber, ttl: Duration },
    /// Sets the next wake-up, in place of the earlier one.
    Wake(Wake),
    /// Wakes the lease at this time at the latest.
    WakeBy(Stamp),
    /// The holder has released the lease.
    Released,
    /// The lease is lost. The keeper notifies its holder.
    Lost(Loss),
    /// Renewal stops, and the keeper drops the lease.
    Unschedule,
    /// Ends the claim at the store, in the background.
    End(Ending),
    /// For logs and counters.
    Note(LeaseNote),
}

#[derive(Clone, Debug)]
pub enum LeaseNote {
    /// The store has confirmed that it keeps the lease. The request was sent at this time.
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
