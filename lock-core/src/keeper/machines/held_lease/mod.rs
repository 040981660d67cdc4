//! One lease from its grant to its end, as a pure state machine: inputs and the time go in, [`LeaseOutput`]s come out.
//! It knows no store, clock, lock or source of randomness.
//!
//! The lease's own mutex guards it, and `now` must be read while that mutex is locked. A check of the clock and a reply
//! to a renewal then cannot overlap: whichever comes first after the end of the validity makes the loss final, and no
//! later reply revives the lease. With a `now` from before the mutex was locked, a process that was paused in between
//! would take a late reply for a timely one.

mod output;

use std::cmp::Ordering;
use std::time::Duration;

pub use self::output::{LeaseNote, LeaseOutput};
use super::disposal::{Ending, RunOut, Why};
use super::outputs::{Outputs, Wake};
use super::rules::{Rules, backoff};
use super::wait_queue::Start;
use crate::backend::{Confirmation, Delivery, LeaseKind, PlaceNumber, RenewReply};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind};
use crate::loss::{Loss, LossReason};
use crate::terms::{Terms, period, validity_end};
use crate::token::FencingToken;

/// The state of a lease for its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Held,
    /// Its last guard was released or dropped.
    Released,
    Lost(Loss),
}

/// One lease, from its grant until it is released or lost.
///
/// Its inputs, in order of use:
/// - [`new`](Self::new) with the grant, [`add_guard`](Self::add_guard) for each acquire that shares it,
///   [`share`](Self::share) at each re-entry,
/// - [`check`](Self::check) whenever a guard or the keeper asks whether the lease is held,
/// - [`handle_timeout`](Self::handle_timeout) at each wake-up,
/// - [`handle_renewal_reply`](Self::handle_renewal_reply) for each [`Renew`](LeaseOutput::Renew),
/// - [`handle_place_reply`](Self::handle_place_reply) for a renewal of its place that was in flight at the grant,
/// - [`handle_pushed_grant`](Self::handle_pushed_grant) and [`handle_gone`](Self::handle_gone) for what the store
///   reports without a request,
/// - [`drop_guard`](Self::drop_guard), and [`release`](Self::release) after the last one; [`close`](Self::close) at a
///   shutdown.
#[derive(Clone, Debug)]
pub struct HeldLease {
    token: FencingToken,
    place: PlaceNumber,
    terms: Terms,
    /// The longest ttl that a request of the claim had. After it, whatever the store granted has expired.
    claim_ttl: Duration,
    granted: Stamp,
    phase: Phase,
    valid_until: Stamp,
    /// The store has confirmed the lease until the end of `max_hold`, so no renewal can prolong the hold.
    reaches_max_hold: bool,
    guards: u32,
    /// Whether a request of the claim has no reply, not counting the renewal in flight.
    delivery: Delivery,
    renewal: Renewal,
}

/// Whether the keeper still renews the lease.
#[derive(Clone, Copy, Debug)]
enum Renewal {
    Active(Active),
    /// The keeper has dropped it from its schedule.
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Active {
    /// When the renewal was sent that has no reply yet.
    in_flight: Option<Stamp>,
    failures: u32,
    /// The ttl of the last confirmation. It sets when the next renewal is due, and the pauses if that fails.
    confirmed: Duration,
    /// The grant was confirmed some time ago or for a shorter ttl, as that of a place. The lease has not yet been
    /// renewed to its own ttl.
    top_up: bool,
    /// Set when the lease was released within its `min_hold`, and its session cannot let a single lease expire. The
    /// keeper renews the lease until then, and then releases it.
    held_over: Option<Stamp>,
}

/// A lease that came out of a queue is renewed to its own ttl this long after the grant. A shorter hold saves that
/// renewal.
const TOP_UP_DELAY: Duration = Duration::from_millis(100);

impl HeldLease {
    /// A lease that was just granted, its first wake-up, and the end of its validity.
    pub fn new(rules: &Rules, start: &Start, now: Stamp) -> (Self, Wake, Stamp) {
        let Start { grant, terms, asked, delivery, waited } = *start;
        let confirmation = grant.confirmation;
        let used_up = waited && now.since(confirmation.sent) > TOP_UP_DELAY;
        let active = Active {
            in_flight: None,
            failures: 0,
            confirmed: confirmation.ttl.min(terms.ttl),
            top_up: used_up || confirmation.ttl < terms.ttl,
            held_over: None,
        };
        let mut lease = Self {
            token: grant.token,
            place: confirmation.place,
            terms,
            claim_ttl: asked.max(terms.ttl),
            granted: now,
            phase: Phase::Held,
            valid_until: Stamp::ZERO,
            // The ttl counts from the request and `max_hold` from the grant, a little later. Without this, a fixed
            // lease whose ttl equals its `max_hold` would end as `Expired` and not as `MaxHold`.
            reaches_max_hold: terms.kind == LeaseKind::Fixed && terms.max_hold.is_some_and(|max| max <= terms.ttl),
            guards: 0,
            delivery,
            renewal: Renewal::Active(active),
        };
        lease.count(rules, &confirmation);
        let wake = lease.next_renewal(active.top_up, &confirmation, lease.valid_until, now);
        let valid_until = lease.valid_until;
        (lease, wake, valid_until)
    }

    pub fn place(&self) -> PlaceNumber {
        self.place
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The end of the validity, or how the lease ended. The first check after the validity makes the loss final.
    pub fn check(&mut self, now: Stamp, out: &mut Outputs<LeaseOutput>) -> Result<Stamp, Phase> {
        if self.phase == Phase::Held && now >= self.valid_until {
            let reached_max = self.terms.max_hold.is_some() && (self.reaches_max_hold || now >= self.max_hold_ends());
            self.lose(if reached_max { LossReason::MaxHold } else { LossReason::Expired }, out);
        }
        if self.phase == Phase::Held { Ok(self.valid_until) } else { Err(self.phase) }
    }

    /// One more guard.
    pub fn add_guard(&mut self) {
        self.guards += 1;
    }

    /// One more guard, unless the last one is gone. Then a release is in flight.
    pub fn share(&mut self) -> bool {
        let shared = self.guards > 0;
        self.guards += u32::from(shared);
        shared
    }

    /// Removes a guard. Returns whether it was the last.
    pub fn drop_guard(&mut self) -> bool {
        self.guards = self.guards.saturating_sub(1);
        self.guards == 0
    }

    /// A wake-up is due.
    pub fn handle_timeout(&mut self, rules: &Rules, now: Stamp, out: &mut Outputs<LeaseOutput>) {
        let Renewal::Active(Active { held_over, .. }) = self.renewal else { return };
        let lasts_until = match held_over {
            Some(until) if until <= now => return self.end_with_session(Why::Release { valid: None }, out),
            Some(until) => until,
            None => match self.check(now, out) {
                Ok(valid_until) => valid_until,
                Err(_) => return self.let_go(rules, out),
            },
        };
        let can_be_prolonged = self.can_be_prolonged(now);
        let ttl = self.ttl_to_ask(rules, now);
        let is_kept = self.terms.kind == LeaseKind::Kept;
        let Renewal::Active(active) = &mut self.renewal else { return };
        let bound = rules.call_bound.min(period(active.confirmed));
        let wake = match active.in_flight {
            Some(sent) if now < sent.plus(bound) => Wake::at(sent.plus(bound)),
            Some(_) => {
                active.in_flight = None;
                active.failures += 1;
                self.delivery = Delivery::InDoubt;
                out.push(LeaseOutput::Note(LeaseNote::RenewalUnanswered { failures: active.failures }));
                Wake::after(now, backoff(period(active.confirmed), active.failures))
            }
            None if (is_kept || active.top_up || held_over.is_some()) && can_be_prolonged => {
                active.in_flight = Some(now);
                out.push(LeaseOutput::Renew { place: self.place, ttl });
                Wake::at(now.plus(bound))
            }
            None => Wake::at(lasts_until),
        };
        out.push(LeaseOutput::Wake(wake.by(Some(lasts_until))));
    }

    /// Whether it may be renewed now, a few percent early, in a batch that goes out anyway. That saves a call.
    pub fn may_go_along(&self, early: Duration) -> bool {
        match self.renewal {
            // A top-up waits until it is due, because most holds end before that and need none.
            Renewal::Active(active) => {
                active.in_flight.is_none() && !active.top_up && early <= period(active.confirmed) / 32
            }
            Renewal::Done => false,
        }
    }

    /// The reply to a renewal of the lease.
    pub fn handle_renewal_reply(
        &mut self,
        rules: &Rules,
        answer: RenewReply,
        now: Stamp,
        out: &mut Outputs<LeaseOutput>,
    ) {
        match answer {
            RenewReply::Renewed(confirmation) => self.take_confirmation(rules, &confirmation, now, out),
            RenewReply::Granted(grant) if grant.token == self.token => {
                self.take_confirmation(rules, &grant.confirmation, now, out)
            }
            RenewReply::Unknown(error) => {
                self.note_failure(&error, out);
                self.take_failure(rules, Some(error), now, out);
            }
            RenewReply::Granted(_) | RenewReply::Waiting { .. } | RenewReply::Free | RenewReply::Lost => {
                self.handle_gone(now, out)
            }
        }
    }

    /// The reply to a renewal of the place with this number, which has become a lease since. What it confirms counts
    /// for the lease.
    pub fn handle_place_reply(
        &mut self,
        rules: &Rules,
        asked: PlaceNumber,
        answer: RenewReply,
        now: Stamp,
        out: &mut Outputs<LeaseOutput>,
    ) {
        let confirmation = match answer {
            RenewReply::Waiting { confirmation, .. } | RenewReply::Renewed(confirmation) => confirmation,
            RenewReply::Granted(grant) if grant.token == self.token => grant.confirmation,
            RenewReply::Granted(grant) if grant.confirmation.place < self.place => return,
            RenewReply::Lost | RenewReply::Free if asked < self.place => return,
            RenewReply::Granted(_) | RenewReply::Lost | RenewReply::Free => return self.handle_gone(now, out),
            RenewReply::Unknown(error) => return self.note_failure(&error, out),
        };
        out.push(LeaseOutput::Note(LeaseNote::Renewed));
        match confirmation.place.cmp(&self.place) {
            Ordering::Less => {}
            Ordering::Greater => self.handle_gone(now, out),
            Ordering::Equal => {
                if self.prolong(rules, &confirmation, now, out).is_err() {
                    self.let_go(rules, out);
                }
            }
        }
    }

    /// The store reports a grant of the claim at a place, and the claim holds a lease already.
    pub fn handle_pushed_grant(
        &mut self,
        rules: &Rules,
        place: PlaceNumber,
        own: Option<Confirmation>,
        now: Stamp,
        out: &mut Outputs<LeaseOutput>,
    ) {
        match own {
            Some(confirmation) => self.take_confirmation(rules, &confirmation, now, out),
            // This lease is gone, and a late copy of its acquire has taken a new place.
            None if place > self.place => self.handle_gone(now, out),
            None => {}
        }
    }

    /// The store reports that the lease is gone.
    pub fn handle_gone(&mut self, now: Stamp, out: &mut Outputs<LeaseOutput>) {
        let in_doubt = self.phase == Phase::Held && self.delivery == Delivery::InDoubt;
        // After a pause of the process, this report often arrives before a check of the clock. The reason is then the
        // expiry.
        if self.check(now, out).is_ok() {
            self.lose(LossReason::Gone, out);
        }
        self.stop(out);
        if in_doubt {
            // A late copy of its acquire may still take the lock.
            out.push(LeaseOutput::End(Ending::now(Why::Withdraw, Delivery::InDoubt, self.claim_ttl)));
        }
    }

    /// The last guard is gone. Returns how the caller ends the claim now, or `None` if there is nothing to send: the
    /// lease is held until the end of its `min_hold`, or was released before.
    ///
    /// # Errors
    /// The loss of a lease that was lost before.
    pub fn release(
        &mut self,
        rules: &Rules,
        now: Stamp,
        out: &mut Outputs<LeaseOutput>,
    ) -> Result<Option<Ending>, Loss> {
        match self.check(now, out) {
            Ok(_) => {
                self.phase = Phase::Released;
                out.push(LeaseOutput::Released);
                if self.hold_over(rules, now, out) {
                    return Ok(None);
                }
                self.stop(out);
                Ok(Some(self.ending(Some(self.token), now)))
            }
            // The store may still have the lease. Releasing it saves the next waiter the rest of the ttl. After
            // `Shutdown`, the keeper has released it, or does so at the end of `min_hold`.
            Err(Phase::Lost(loss)) => {
                match loss.reason {
                    LossReason::Expired | LossReason::MaxHold if rules.sessions => {
                        self.end_with_session(Why::Release { valid: None }, out);
                    }
                    LossReason::Expired | LossReason::MaxHold => {
                        self.stop(out);
                        out.push(LeaseOutput::End(self.ending(None, now)));
                    }
                    LossReason::Gone | LossReason::Shutdown => {}
                }
                Err(loss)
            }
            // A released lease has no guard left, and `check` does not fail with `Held`.
            Err(Phase::Held | Phase::Released) => {
                self.stop(out);
                Ok(None)
            }
        }
    }

    /// The client is shut down.
    pub fn close(&mut self, rules: &Rules, now: Stamp, out: &mut Outputs<LeaseOutput>) {
        match self.check(now, out) {
            Ok(_) => {
                self.lose(LossReason::Shutdown, out);
                if !self.hold_over(rules, now, out) {
                    self.stop(out);
                    out.push(LeaseOutput::End(self.ending(Some(self.token), now)));
                }
            }
            Err(Phase::Lost(_)) => self.stop(out),
            // The lease is renewed until the end of its `min_hold`. If that has passed and the keeper has not woken up
            // yet, the lease ends here, so that the shutdown waits for its release. A process that exits before that
            // would leave the lease to the ttl of its session.
            Err(Phase::Held | Phase::Released) => {
                if let Renewal::Active(Active { held_over: Some(until), .. }) = self.renewal
                    && until <= now
                {
                    self.end_with_session(Why::Release { valid: None }, out);
                }
            }
        }
    }

    fn take_confirmation(
        &mut self,
        rules: &Rules,
        confirmation: &Confirmation,
        now: Stamp,
        out: &mut Outputs<LeaseOutput>,
    ) {
        match confirmation.place.cmp(&self.place) {
            // Stale: about an earlier place.
            Ordering::Less => return self.take_failure(rules, None, now, out),
            Ordering::Greater => return self.handle_gone(now, out),
            Ordering::Equal => out.push(LeaseOutput::Note(LeaseNote::Confirmed(confirmation.sent))),
        }
        let held_over = match self.renewal {
            Renewal::Active(active) => active.held_over,
            Renewal::Done => None,
        };
        let prolonged = held_over.map_or_else(|| self.prolong(rules, confirmation, now, out), Ok);
        let Ok(lasts_until) = prolonged else { return self.let_go(rules, out) };
        let Renewal::Active(active) = &mut self.renewal else { return };
        *active = Active {
            in_flight: None,
            failures: 0,
            confirmed: confirmation.ttl.min(self.terms.ttl),
            top_up: false,
            held_over,
        };
        out.push(LeaseOutput::Note(LeaseNote::Renewed));
        out.push(LeaseOutput::Wake(self.next_renewal(false, confirmation, lasts_until, now)));
    }

    fn take_failure(&mut self, rules: &Rules, error: Option<Error>, now: Stamp, out: &mut Outputs<LeaseOutput>) {
        let Renewal::Active(active) = &mut self.renewal else { return };
        active.in_flight = None;
        active.failures += 1;
        let (failures, held_over) = (active.failures, active.held_over);
        let wake = Wake::after(now, backoff(period(active.confirmed), failures));
        if let Some(error) = error {
            out.push(LeaseOutput::Note(LeaseNote::RenewalFailed { error, failures }));
        }
        match held_over.map_or_else(|| self.check(now, out), Ok) {
            Ok(lasts_until) => out.push(LeaseOutput::Wake(wake.by(Some(lasts_until)))),
            Err(_) => self.let_go(rules, out),
        }
    }

    fn note_failure(&mut self, error: &Error, out: &mut Outputs<LeaseOutput>) {
        out.push(LeaseOutput::Note(LeaseNote::RenewalError));
        if error.kind() != ErrorKind::Unavailable {
            self.delivery = Delivery::InDoubt;
        }
    }

    /// Takes a confirmation, unless the validity is over: a late reply never revives a lease.
    fn prolong(
        &mut self,
        rules: &Rules,
        confirmation: &Confirmation,
        now: Stamp,
        out: &mut Outputs<LeaseOutput>,
    ) -> Result<Stamp, Phase> {
        self.check(now, out)?;
        self.count(rules, confirmation);
        Ok(self.valid_until)
    }

    fn count(&mut self, rules: &Rules, confirmation: &Confirmation) {
        let ends = self.max_hold_ends();
        self.valid_until = self.valid_until.max(validity_end(confirmation, rules.margin_percent).min(ends));
        self.reaches_max_hold |= confirmation.sent.plus(confirmation.ttl) >= ends;
    }

    fn lose(&mut self, reason: LossReason, out: &mut Outputs<LeaseOutput>) {
        let loss = Loss::new(reason);
        self.phase = Phase::Lost(loss);
        out.push(LeaseOutput::Lost(loss));
    }

    /// The clock shows that the lease is lost. If it shares a session, other leases keep it alive at the store, so the
    /// keeper ends it there.
    fn let_go(&mut self, rules: &Rules, out: &mut Outputs<LeaseOutput>) {
        if rules.sessions && self.terms.kind == LeaseKind::Kept {
            self.end_with_session(Why::Withdraw, out);
        } else {
            self.stop(out);
        }
    }

    /// Ends the lease at the store, unless that has begun.
    fn end_with_session(&mut self, why: Why, out: &mut Outputs<LeaseOutput>) {
        if let Renewal::Active(_) = self.renewal {
            self.stop(out);
            out.push(LeaseOutput::End(Ending::now(why, self.delivery, self.claim_ttl)));
        }
    }

    /// Stops renewal for good. A renewal in flight counts as one without a reply.
    fn stop(&mut self, out: &mut Outputs<LeaseOutput>) {
        if let Renewal::Active(active) = std::mem::replace(&mut self.renewal, Renewal::Done) {
            if active.in_flight.is_some() {
                self.delivery = Delivery::InDoubt;
            }
            out.push(LeaseOutput::Unschedule);
        }
    }

    /// Renews the lease for the rest of its `min_hold` if it shares a session. Returns whether it does.
    fn hold_over(&mut self, rules: &Rules, now: Stamp, out: &mut Outputs<LeaseOutput>) -> bool {
        let until = self.min_hold_ends(now).filter(|_| rules.sessions);
        if let (Some(until), Renewal::Active(active)) = (until, &mut self.renewal) {
            active.held_over = Some(until);
            // A fixed lease is not renewed by itself, and a single renewal just before its end may fail.
            out.push(LeaseOutput::WakeBy(if self.terms.kind == LeaseKind::Fixed { now } else { until }));
        }
        until.is_some()
    }

    /// How the lease ends if it is released now. `valid` is its token, unless the holder knows that it was lost.
    fn ending(&self, valid: Option<FencingToken>, now: Stamp) -> Ending {
        let run_out = self.min_hold_ends(now).map(|at| RunOut { at, place: self.place, begun: false });
        Ending { run_out, ..Ending::now(Why::Release { valid }, self.delivery, self.claim_ttl) }
    }

    /// The end of `min_hold`, if that is still to come.
    fn min_hold_ends(&self, now: Stamp) -> Option<Stamp> {
        let at = self.granted.plus(self.terms.min_hold?);
        (at > now).then_some(at)
    }

    /// When the hold ends at the latest.
    fn max_hold_ends(&self) -> Stamp {
        self.terms.max_hold.map_or(Stamp::ZERO.plus(Duration::MAX), |max| self.granted.plus(max))
    }

    /// Whether a renewal could prolong the hold.
    fn can_be_prolonged(&self, now: Stamp) -> bool {
        now < self.max_hold_ends() && !self.reaches_max_hold
    }

    /// The ttl that a renewal requests now: at most what is left of `max_hold`, unless the ttl is that of a session.
    fn ttl_to_ask(&self, rules: &Rules, now: Stamp) -> Duration {
        let Terms { ttl, .. } = self.terms;
        if rules.sessions { ttl } else { rules.ttl(ttl.min(self.max_hold_ends().since(now))) }
    }

    /// When to renew the lease next, or when it ends if it is not renewed again: a fixed lease is not renewed beyond
    /// its own ttl, unless its `min_hold` is longer, and no lease beyond its `max_hold`.
    fn next_renewal(&self, top_up: bool, confirmation: &Confirmation, lasts_until: Stamp, now: Stamp) -> Wake {
        let regular = confirmation.sent.plus(period(confirmation.ttl.min(self.terms.ttl)));
        let is_held_over = matches!(self.renewal, Renewal::Active(Active { held_over: Some(_), .. }));
        let at = match self.terms.kind {
            _ if !self.can_be_prolonged(now) => None,
            _ if top_up => Some(regular.min(now.plus(TOP_UP_DELAY))),
            LeaseKind::Fixed if !is_held_over => None,
            LeaseKind::Kept | LeaseKind::Fixed => Some(regular),
        };
        Wake::at(at.map_or(lasts_until, |at| at.min(lasts_until)))
    }
}

#[cfg(test)]
mod tests;
