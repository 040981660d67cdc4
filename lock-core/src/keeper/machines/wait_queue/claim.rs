//! What a queue knows of its claim.

use std::time::Duration;

use super::waiters::Waiter;
use crate::backend::{
    AcquireRequest, Claim, Confirmation, Delivery, Grant, LeaseKind, Mode, OnContention, PlaceNumber,
};
use crate::clock::Stamp;
use crate::error::Error;
use crate::terms::Terms;
use crate::token::FencingToken;

/// A claim from its first request until it is granted or withdrawn.
#[derive(Clone, Debug)]
pub(super) struct CurrentClaim {
    pub(super) mode: Mode,
    pub(super) ttl: Duration,
    pub(super) kind: LeaseKind,
    pub(super) on_contention: OnContention,
    /// How many of its acquires had the reply that the lock is held.
    pub(super) attempt: u32,
    pub(super) first_sent: Stamp,
    /// The newest confirmation of the place with the highest number that the store has named.
    pub(super) confirmation: Option<Confirmation>,
    pub(super) place: PlaceNumber,
    /// The token of a grant of that place, which the store has pushed without a confirmation.
    pub(super) pushed: Option<FencingToken>,
    pub(super) delivery: Delivery,
    /// According to its replies, the store may have a place or a lease of the claim.
    pub(super) at_store: bool,
    pub(super) failures: u32,
    /// Why the last call failed. `None` if it had a reply.
    pub(super) last_error: Option<Error>,
    /// The backend reported a change while a call was in flight. The queue sends another request when that call has
    /// ended.
    pub(super) recheck: bool,
}

impl CurrentClaim {
    pub(super) fn new(terms: &Terms, on_contention: OnContention, now: Stamp) -> Self {
        let Terms { mode, ttl, kind, .. } = *terms;
        Self {
            mode,
            ttl,
            kind,
            on_contention,
            attempt: 0,
            first_sent: now,
            confirmation: None,
            place: PlaceNumber::NONE,
            pushed: None,
            delivery: Delivery::Confirmed,
            at_store: false,
            failures: 0,
            last_error: None,
            recheck: false,
        }
    }

    /// A claim for the waiter at the front.
    pub(super) fn of<T>(front: &Waiter<T>, now: Stamp) -> Self {
        Self::new(&front.terms, front.on_contention(), now)
    }

    /// Its next acquire.
    pub(super) fn request(&self, claim: Claim) -> AcquireRequest {
        let &Self { mode, ttl, kind, on_contention, attempt, .. } = self;
        AcquireRequest { claim, mode, ttl, kind, on_contention, attempt }
    }

    /// Whether it cannot become a lease with these terms.
    pub(super) fn is_for_another_lease(&self, sessions: bool, terms: &Terms) -> bool {
        self.mode != terms.mode || sessions && (self.ttl, self.kind) != (terms.ttl, terms.kind)
    }

    /// The store has named a place. It replaces what is known of a place with a lower number.
    pub(super) fn note_place(&mut self, place: PlaceNumber) {
        if place > self.place {
            self.place = place;
            self.confirmation = None;
            self.pushed = None;
        }
    }

    /// Takes a confirmation, unless it is about an earlier place, or older than the newest one.
    pub(super) fn confirm(&mut self, confirmation: Confirmation) {
        self.note_place(confirmation.place);
        if confirmation.place == self.place && self.confirmation.is_none_or(|newest| newest.sent < confirmation.sent) {
            self.confirmation = Some(confirmation);
        }
    }

    /// The ttl of its newest request: that of its place, if it has one.
    pub(super) fn asked_ttl(&self, max_place_ttl: Duration) -> Duration {
        if self.confirmation.is_some() { self.place_ttl(max_place_ttl) } else { self.ttl }
    }

    /// The ttl to request for a place. A store may confirm another one, or what is left of it.
    pub(super) fn place_ttl(&self, max_place_ttl: Duration) -> Duration {
        self.ttl.min(max_place_ttl)
    }

    /// A pushed grant and the newest confirmation of the same place make a lease.
    pub(super) fn pushed_grant(&self) -> Option<Grant> {
        Some(Grant::new(self.pushed?, self.confirmation?))
    }
}
