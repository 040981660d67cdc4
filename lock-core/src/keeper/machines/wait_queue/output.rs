//! The outputs of a [`WaitQueue`](super::WaitQueue).

use std::time::Duration;

use crate::backend::{Delivery, Grant, PlaceNumber};
use crate::clock::Stamp;
use crate::error::Error;
use crate::keeper::machines::disposal::Ending;
use crate::keeper::machines::outputs::{Outputs, Wake};
use crate::terms::Terms;

/// To be carried out in order. "The claim" is the present one, up to the next [`NewClaim`](Self::NewClaim).
#[derive(Clone, Debug)]
pub enum QueueOutput<T> {
    /// The queue has a new claim from now on.
    NewClaim,
    /// Sends the [`request`](super::WaitQueue::request) of the claim. In doubt when an earlier one has no reply.
    Acquire { delivery: Delivery },
    /// Sends a renewal of the claim's place. Only in answer to a wake-up, so that renewals go out together.
    Renew { place: PlaceNumber, ttl: Duration },
    /// Ends the claim at the store, in the background.
    End(Ending),
    /// Leaves the claim to the acquire that is in flight, and ends it if that has no reply by then.
    EndWhenOverdue(Ending, Stamp),
    /// The claim has become a lease, which these acquires share.
    Granted { start: Start, to: Vec<T> },
    /// This acquire fails.
    Failed { to: T, error: Error },
    /// Sets when the queue wants to be woken, in place of the former time.
    Wake(Wake),
    /// The queue wants to be woken by then at the latest.
    WakeBy(Stamp),
    /// Has the backend report when the lock may be free.
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
    /// It had a place before, whose ttl may be shorter and whose last confirmation may be old.
    pub waited: bool,
}

#[derive(Clone, Debug)]
pub enum QueueNote {
    Queued(PlaceNumber),
    AttemptFailed(Error),
    Renewed,
    RenewalFailed,
    /// The store has confirmed that it keeps the claim, in answer to a request that was sent then.
    Confirmed(Stamp),
}

impl<T> Outputs<QueueOutput<T>> {
    pub(super) fn wake_at(&mut self, at: Stamp) {
        self.push(QueueOutput::Wake(Wake::at(at)));
    }
}
