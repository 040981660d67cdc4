//! A lease as its holder sees it.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{Certainty, Claim, Confirmation, Grant, LeaseKind, Mode, PlaceNumber};
use crate::clock::Stamp;
use crate::defaults::{LEAST_MARGIN, RENEWALS_PER_TTL};
use crate::holder_id::HolderId;
use crate::loss::{Loss, LossReason};
use crate::sync::lock;
use crate::token::FencingToken;

/// What a user asked for, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) mode: Mode,
    /// No longer than `max_hold`, as far as the store has ttls that short.
    pub(crate) ttl: Duration,
    pub(crate) kind: LeaseKind,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) holder: Option<HolderId>,
}

/// The time a holder keeps between the end of its validity and the earliest end of the lease at the store.
pub(crate) fn margin(ttl: Duration, percent: u8) -> Duration {
    (ttl / 100 * u32::from(percent)).max(LEAST_MARGIN)
}

/// When validity that counts from this confirmation ends.
pub(crate) fn validity_end(confirmation: &Confirmation, margin_percent: u8) -> Stamp {
    confirmation.sent.plus(confirmation.ttl.saturating_sub(margin(confirmation.ttl, margin_percent)))
}

/// How long after it was sent a confirmation is to be renewed.
pub(crate) fn period(ttl: Duration) -> Duration {
    (ttl / RENEWALS_PER_TTL).max(Duration::from_millis(1))
}

/// How a lease stands with its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Held,
    /// Released, or given up by its last guard.
    Released,
    Lost(Loss),
}

/// Shared by the guards and the keeper. Its own small mutex makes "is the validity over?" and "a renewal came" one
/// decision: whoever asks first after the end makes the loss final, and no later answer revives it.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) claim: Claim,
    pub(crate) token: FencingToken,
    pub(crate) place: PlaceNumber,
    pub(crate) terms: Terms,
    /// The longest ttl that a request of the claim asked for: what is left of it at the store has ended by itself then.
    pub(crate) claim_ttl: Duration,
    pub(crate) granted: Stamp,
    state: Mutex<State>,
    pub(crate) ended: Notify,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    valid_until: Stamp,
    /// What the store confirmed lasts until `max_hold` is reached: no renewal could prolong the hold.
    reaches_max_hold: bool,
    guards: u32,
    certainty: Certainty,
}

/// What a look at a lease found. Only `keeper/report.rs` looks: it accounts for the loss that a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Held {
        valid_until: Stamp,
    },
    /// The validity had passed unnoticed; this look ended it.
    JustLost(Loss),
    Over(Phase),
}

impl Lease {
    pub(crate) fn new(
        claim: Claim,
        grant: &Grant,
        (terms, claim_ttl): (Terms, Duration),
        granted: Stamp,
        certainty: Certainty,
        margin_percent: u8,
    ) -> Self {
        let Grant { token, confirmation } = grant;
        // A fixed lease whose ttl is `max_hold` ends by that, though it was sent a little earlier than it was granted.
        let reaches_max_hold = terms.kind == LeaseKind::Fixed && terms.max_hold.is_some_and(|max| max <= terms.ttl);
        let state = State { phase: Phase::Held, valid_until: Stamp::ZERO, reaches_max_hold, guards: 0, certainty };
        let place = confirmation.place;
        let lease = Self {
            claim,
            token: *token,
            place,
            terms,
            claim_ttl,
            granted,
            state: Mutex::new(state),
            ended: Notify::new(),
        };
        lease.count(&mut lock(&lease.state), confirmation, margin_percent);
        lease
    }

    /// When the hold ends at the latest.
    pub(crate) fn max_hold_ends(&self) -> Stamp {
        self.terms.max_hold.map_or(Stamp::ZERO.plus(Duration::MAX), |max| self.granted.plus(max))
    }

    /// The ttl that a renewal asks for that is sent now: no more than what is left of `max_hold`.
    pub(crate) fn ttl_to_ask(&self, now: Stamp, min_ttl: Duration) -> Duration {
        self.terms.ttl.min(self.max_hold_ends().since(now)).max(min_ttl)
    }

    /// Whether a renewal could prolong the hold.
    pub(crate) fn can_be_prolonged(&self, now: Stamp) -> bool {
        now < self.max_hold_ends() && !lock(&self.state).reaches_max_hold
    }

    /// Takes a confirmation of the store into account.
    fn count(&self, state: &mut State, confirmation: &Confirmation, margin_percent: u8) {
        let ends = self.max_hold_ends();
        state.valid_until = state.valid_until.max(validity_end(confirmation, margin_percent).min(ends));
        state.reaches_max_hold |= confirmation.sent.plus(confirmation.ttl) >= ends;
    }

    /// Asks the clock. `now` is read inside the critical section: a reading from before a pause proves nothing after it.
    pub(crate) fn look(&self, now: impl FnOnce() -> Stamp) -> Look {
        let mut state = lock(&self.state);
        self.look_at(&mut state, now())
    }

    fn look_at(&self, state: &mut State, now: Stamp) -> Look {
        if state.phase != Phase::Held {
            return Look::Over(state.phase);
        }
        if now < state.valid_until {
            return Look::Held { valid_until: state.valid_until };
        }
        let reached_max = self.terms.max_hold.is_some() && (state.reaches_max_hold || now >= self.max_hold_ends());
        let loss = Loss::new(if reached_max { LossReason::MaxHold } else { LossReason::Expired });
        self.end(state, Phase::Lost(loss));
        Look::JustLost(loss)
    }

    /// Takes a confirmation, unless the validity is over: a late answer never revives a lease.
    pub(crate) fn confirm(&self, now: impl FnOnce() -> Stamp, confirmation: &Confirmation, margin_percent: u8) -> Look {
        let mut state = lock(&self.state);
        let look = self.look_at(&mut state, now());
        if let Look::Held { .. } = look {
            self.count(&mut state, confirmation, margin_percent);
            return Look::Held { valid_until: state.valid_until };
        }
        look
    }

    /// The store ends the lease. What is known of its requests; nothing when it was over already.
    pub(crate) fn lose(&self, reason: LossReason) -> Option<Certainty> {
        let mut state = lock(&self.state);
        if state.phase != Phase::Held {
            return None;
        }
        self.end(&mut state, Phase::Lost(Loss::new(reason)));
        Some(state.certainty)
    }

    /// The holder gives the lease up, or the client is shut down. Says how the look at it was just before, and what
    /// is known of its requests.
    pub(crate) fn give_up(&self, phase: Phase, now: impl FnOnce() -> Stamp) -> (Look, Certainty) {
        let mut state = lock(&self.state);
        let look = self.look_at(&mut state, now());
        if let Look::Held { .. } = look {
            self.end(&mut state, phase);
        }
        (look, state.certainty)
    }

    /// What is known of the requests of the claim.
    pub(crate) fn certainty(&self) -> Certainty {
        lock(&self.state).certainty
    }

    /// A request of the claim has no answer.
    pub(crate) fn unsure(&self) {
        lock(&self.state).certainty = Certainty::Unsure;
    }

    /// One more guard.
    pub(crate) fn add_guard(&self) {
        lock(&self.state).guards += 1;
    }

    /// One more guard, if any is left: a lease whose last guard is going cannot be shared again.
    pub(crate) fn share(&self) -> bool {
        let mut state = lock(&self.state);
        let shared = state.guards > 0;
        state.guards += u32::from(shared);
        shared
    }

    /// One guard less. True for the last.
    pub(crate) fn drop_guard(&self) -> bool {
        let mut state = lock(&self.state);
        state.guards = state.guards.saturating_sub(1);
        state.guards == 0
    }

    fn end(&self, state: &mut State, phase: Phase) {
        state.phase = phase;
        self.ended.notify_waiters();
    }
}
