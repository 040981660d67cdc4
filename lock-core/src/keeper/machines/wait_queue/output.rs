//! The outputs of a [`WaitQueue`](super::WaitQueue).

use std::time::Duration;

use crate::backend::{Delivery, Grant, PlaceNumber};
use crate::clock::Stamp;
use crate::error::Error;
use crate::keeper::machines::disposal::Ending;
use crate::keeper::machines::outputs::{Outputs, Wake};
use crate::terms::Terms;

/// What the keeper does for a queue. It carries outputs out in their order. "The claim" is the present one, up to the
/// next [`NewClaim`](Self::NewClaim).
#[derive(Clone, Debug)]
pub enum QueueOutput<T> {
    /// The queue has a new claim from now on.
    NewClaim,
    /// Sends the [`request`](super::WaitQueue::request) of the claim. In doubt if an earlier one has no reply.
    Acquire { delivery: Delivery },
    /// Sends a renewal of the claim's place. Follows only from a wake-up, so that renewals go out in batches.
    Renew { place: PlaceNumber, ttl: Duration },
    /// Ends the claim at the store, in the background.
    End(Ending),
    /// Leaves the claim to the acquire in flight, and ends it if there is no reply by this time.
    EndWhenOverdue(Ending, Stamp),
    /// The claim has become a lease, which these acquires share.
    Granted { start: Start, to: Vec<T> },
    /// This acquire fails.
    Failed { to: T, error: Error },
    /// Sets the next wake-up, in place of the earlier one.
    Wake(Wake),
    /// Wakes the queue at this time at the latest.
    WakeBy(Stamp),
    /// Asks the backend to report when the lock may be free.
    Watch,
    /// For logs and counters.
    Note(QueueNote),
    /// No acquire waits any more.
    Finished,
}

/// What a lease begins with.
#[derive(Clone, Debug)]
pub struct Start {
    pub grant: Grant,
    pub terms: Terms,
    /// The ttl that the acquires of its claim requested.
    pub asked: Duration,
    pub delivery: Delivery,
    /// The claim had a place before. The ttl of a place may be shorter, and its last confirmation may be old.
    pub waited: bool,
}

#[derive(Clone, Debug)]
pub enum QueueNote {
    Queued(PlaceNumber),
    AttemptFailed(Error),
    Renewed,
    RenewalFailed,
    /// The store has confirmed that it keeps the claim. The request was sent at this time.
    Confirmed(Stamp),
}

impl<T> Outputs<QueueOutput<T>> {
    pub(super) fn wake_at(&mut self, at: Stamp) {
        self.push(QueueOutput::Wake(Wake::at(at)));
    }
}
