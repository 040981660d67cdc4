//! What a [`WaitQueue`](super::WaitQueue) has the keeper do.

use std::time::Duration;

use crate::backend::{Certainty, Grant, LeaseKind, Mode, OnContention, PlaceNumber};
use crate::clock::Stamp;
use crate::error::Error;
use crate::keeper::rules::Wake;
use crate::terms::Terms;

/// To be carried out in order. "The claim" is the present one, up to the next [`NewClaim`](Self::NewClaim).
#[derive(Debug)]
pub(in crate::keeper) enum Output<T> {
    /// A new claim stands for the queue from now on.
    NewClaim,
    /// Sends an acquire of the claim.
    Acquire(AcquireCall),
    /// Sends a renewal of the claim's place. Only in answer to a wake-up, so that renewals go out together.
    Renew { place: PlaceNumber, ttl: Duration },
    /// Withdraws the claim, beginning at once.
    Withdraw { certainty: Certainty, ttl: Duration },
    /// Leaves the claim to the acquire that is under way, and withdraws it when that has no answer at `overdue`.
    WithdrawOverdue { certainty: Certainty, ttl: Duration, overdue: Stamp },
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
    Note(Note),
    /// Nobody waits any more.
    Finished,
}

/// An acquire that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::keeper) struct AcquireCall {
    pub(in crate::keeper) mode: Mode,
    pub(in crate::keeper) ttl: Duration,
    pub(in crate::keeper) kind: LeaseKind,
    pub(in crate::keeper) on_contention: OnContention,
    pub(in crate::keeper) attempt: u32,
    /// Unsure when an earlier acquire of the claim was never answered.
    pub(in crate::keeper) certainty: Certainty,
}

/// What a lease begins with.
#[derive(Clone, Debug)]
pub(in crate::keeper) struct Start {
    pub(in crate::keeper) grant: Grant,
    pub(in crate::keeper) terms: Terms,
    /// The ttl that the acquires of its claim asked for.
    pub(in crate::keeper) asked: Duration,
    pub(in crate::keeper) certainty: Certainty,
    /// It had a place before, whose ttl may be shorter and whose last confirmation may be old.
    pub(in crate::keeper) waited: bool,
}

#[derive(Debug)]
pub(in crate::keeper) enum Note {
    Queued(PlaceNumber),
    AttemptFailed(Error),
    Renewed,
    RenewalFailed,
    /// The store has confirmed that it keeps the claim, in answer to a request that was sent then.
    Confirmed(Stamp),
}

/// The outputs of one input, in order.
#[derive(Debug)]
pub(in crate::keeper) struct Outputs<T>(Vec<Output<T>>);

impl<T> Default for Outputs<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Outputs<T> {
    pub(super) fn push(&mut self, output: Output<T>) {
        self.0.push(output);
    }

    pub(super) fn wake_at(&mut self, at: Stamp) {
        self.push(Output::Wake(Wake::at(at)));
    }

    pub(in crate::keeper) fn drain(&mut self) -> impl Iterator<Item = Output<T>> {
        self.0.drain(..)
    }
}
