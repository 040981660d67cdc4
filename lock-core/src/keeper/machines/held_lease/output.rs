//! The outputs of a [`HeldLease`](super::HeldLease).

use std::time::Duration;

use crate::backend::PlaceNumber;
use crate::clock::Stamp;
use crate::error::Error;
use crate::keeper::machines::disposal::Ending;
use crate::keeper::machines::outputs::Wake;
use crate::loss::Loss;

/// To be carried out in order.
#[derive(Clone, Debug)]
pub enum LeaseOutput {
    /// Sends a renewal. Only in answer to a wake-up, so that renewals go out together.
    Renew { place: PlaceNumber, ttl: Duration },
    /// Sets when the lease wants to be woken, in place of the former time.
    Wake(Wake),
    /// The lease wants to be woken by then at the latest.
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
