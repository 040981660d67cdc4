//! The acquires of one client for one lock, and their claim at the store, as a pure state machine: inputs and the time
//! go in, [`QueueOutput`]s come out. It knows no store, clock, lock or source of randomness.
//!
//! The local queue is first come, first served. When the claim is granted, the front gets the lease, and those behind
//! it get a claim of their own. When the last acquire leaves, the claim is withdrawn.
//!
//! Each input concerns the present claim. The keeper passes replies about an earlier claim to the lease that it became,
//! or to its disposal.

mod claim;
mod output;
mod waiters;

use std::time::Duration;

use self::claim::CurrentClaim;
pub use self::output::{QueueNote, QueueOutput, Start};
pub use self::waiters::{AcquireId, Joining};
use self::waiters::{Waiter, Waiters};
use super::disposal::{Ending, Why};
use super::outputs::{Outputs, Wake};
use super::rules::{PATIENCE, Rules, backoff};
use crate::backend::{
    AcquireOutcome, AcquireRequest, Claim, Confirmation, Delivery, Grant, OnContention, PlaceNumber, RenewReply,
};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::terms::{period, validity_end};
use crate::token::FencingToken;

/// The acquires that wait for one lock; it exists while there is one. `T` is the channel of an acquire's outcome.
///
/// Its inputs, in order of use:
/// - [`new`](Self::new) with the first acquire, [`join`](Self::join) with each further one,
/// - [`handle_acquire_reply`](Self::handle_acquire_reply), or [`handle_not_sent`](Self::handle_not_sent), for each
///   [`Acquire`](QueueOutput::Acquire),
/// - [`handle_timeout`](Self::handle_timeout) at each wake-up,
/// - [`handle_renewal_reply`](Self::handle_renewal_reply) for each [`Renew`](QueueOutput::Renew),
/// - [`handle_change`](Self::handle_change), [`handle_pushed_grant`](Self::handle_pushed_grant) and
///   [`handle_gone`](Self::handle_gone) for what the store reports without a request,
/// - [`leave`](Self::leave) when an acquire gives up, [`close`](Self::close) at a shutdown.
#[derive(Clone, Debug)]
pub struct WaitQueue<T> {
    waiters: Waiters<T>,
    claim: CurrentClaim,
    phase: Phase,
    /// When the newest request of this queue was sent that has a reply.
    answered: Option<Stamp>,
    /// Until then, the store may have a lease from an acquire without a reply, of this claim or of an earlier claim of
    /// the queue.
    in_doubt_until: Stamp,
}

/// What the claim waits for.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The reply to an acquire that was sent then.
    Acquiring { since: Stamp },
    /// Its turn: it has a place at the store. The reply to a renewal that was sent then may be outstanding.
    Queued { renewal: Option<Stamp> },
    /// The time of the next acquire.
    Retrying,
}

/// Jitter added to the backend's `retry_after`, which the waiters of many clients receive at once.
const SPREAD: Duration = Duration::from_millis(2);

impl<T> WaitQueue<T> {
    /// A queue of one acquire, whose caller sends the first [`request`](Self::request). No wake-up is scheduled for it:
    /// the caller drives it and has a timeout of its own.
    pub fn new(first: Joining<T>, now: Stamp) -> Self {
        let claim = CurrentClaim::new(&first.terms, first.on_contention, now);
        let phase = Phase::Acquiring { since: now };
        Self { waiters: Waiters::new(first), claim, phase, answered: None, in_doubt_until: Stamp::ZERO }
    }

    /// The next acquire of the present claim, which is `claim` at the store.
    pub fn request(&self, claim: Claim) -> AcquireRequest {
        self.claim.request(claim)
    }

    /// How many acquires wait.
    pub fn waiting(&self) -> usize {
        self.waiters.acquires()
    }

    /// One more acquire, which waits.
    ///
    /// # Errors
    /// `InvalidInput` if its holder waits already, for a lease with other terms.
    pub fn join(&mut self, rules: &Rules, joining: Joining<T>, out: &mut Outputs<QueueOutput<T>>) -> Result<()> {
        let confirm_after = joining.confirm_after;
        self.waiters.join(joining)?;
        match self.phase {
            // The caller of the first attempt may never poll it again, and this acquire depends on it: so the attempt
            // needs a timeout.
            Phase::Acquiring { since } => out.wake_at(since.plus(rules.call_bound)),
            Phase::Queued { renewal: None } | Phase::Retrying => out.push(QueueOutput::WakeBy(confirm_after)),
            // The reply is in flight, and `take_place` schedules what the waiters need beyond it.
            Phase::Queued { renewal: Some(_) } => {}
        }
        Ok(())
    }

    /// An acquire leaves. Returns why it has no lease, or `None` if it no longer waits.
    pub fn leave(
        &mut self,
        rules: &Rules,
        acquire: AcquireId,
        now: Stamp,
        out: &mut Outputs<QueueOutput<T>>,
    ) -> Option<Error> {
        let confirm_after = self.waiters.remove(acquire)?;
        let in_doubt = self.claim.delivery == Delivery::InDoubt || self.claim.at_store || now < self.in_doubt_until;
        // With only an older reply, "held by another" may be wrong: the holder may have released the lock since.
        let is_known = self.newest_answer().is_some_and(|newest| newest >= confirm_after);
        let why = match &self.claim.last_error {
            Some(error) if in_doubt => error.clone().with_kind(ErrorKind::Indeterminate),
            Some(error) => error.clone(),
            None if is_known => held_by_another(),
            None => no_reply(),
        };
        if self.waiters.front().is_none() {
            self.withdraw(rules, out);
            out.push(QueueOutput::Finished);
        } else if self.is_outdated(rules) {
            match self.phase {
                Phase::Queued { renewal: None } | Phase::Retrying => out.push(QueueOutput::WakeBy(now)),
                // The reply or the timeout of the call in flight comes first.
                Phase::Queued { renewal: Some(_) } | Phase::Acquiring { .. } => {}
            }
        }
        Some(why)
    }

    /// Ends the queue. Every acquire fails with this error.
    pub fn close(&mut self, rules: &Rules, error: &Error, out: &mut Outputs<QueueOutput<T>>) {
        for to in self.waiters.drain() {
            out.push(QueueOutput::Failed { to, error: error.clone() });
        }
        self.withdraw(rules, out);
        out.push(QueueOutput::Finished);
    }

    /// The reply to the acquire of the claim.
    pub fn handle_acquire_reply(
        &mut self,
        rules: &Rules,
        answer: Result<AcquireOutcome>,
        now: Stamp,
        out: &mut Outputs<QueueOutput<T>>,
    ) {
        let sent = match self.phase {
            Phase::Acquiring { since } => since,
            // A reply to an earlier acquire of the claim. It counts from the first one, which is the safe bound.
            Phase::Queued { .. } | Phase::Retrying => self.claim.first_sent,
        };
        self.phase = Phase::Retrying;
        match answer {
            Ok(AcquireOutcome::Granted(grant)) => self.take_grant(rules, grant, now, out),
            Ok(AcquireOutcome::Queued { confirmation, retry_after }) => {
                self.claim.at_store = true;
                if !self.refuse_tries(rules, &held_by_another(), now, out) {
                    out.push(QueueOutput::Note(QueueNote::Queued(confirmation.place)));
                    self.take_place(rules, confirmation, retry_after, now, out);
                }
            }
            Ok(AcquireOutcome::Contended { retry_after }) => {
                self.note_answer(sent);
                self.claim.attempt += 1;
                if self.refuse_tries(rules, &held_by_another(), now, out) {
                    return;
                }
                if self.is_outdated(rules) {
                    // The waiters need another claim, and need not wait for `retry_after`.
                    return self.retry_at(now, Wake::after(now, SPREAD), out);
                }
                out.push(QueueOutput::Watch);
                self.retry_at(now, Wake::after(now.plus(retry_after), SPREAD), out);
            }
            Err(error) => {
                if error.kind() == ErrorKind::Indeterminate {
                    self.doubt(now);
                }
                out.push(QueueOutput::Note(QueueNote::AttemptFailed(error.clone())));
                match error.kind() {
                    // The server may grant the shorter ttl of another acquire.
                    ErrorKind::InvalidInput => self.refuse_ttl(rules, &error, now, out),
                    _ if is_final(&error) => self.close(rules, &error, out),
                    _ if self.refuse_tries(rules, &error, now, out) => {}
                    _ => self.take_failure(rules, error, now, out),
                }
            }
        }
    }

    /// The acquire of the claim was dropped before it was sent.
    pub fn handle_not_sent(&mut self, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        self.retry_at(now, Wake::at(now), out);
    }

    /// The reply to a renewal of the place with this number.
    pub fn handle_renewal_reply(
        &mut self,
        rules: &Rules,
        asked: PlaceNumber,
        answer: RenewReply,
        now: Stamp,
        out: &mut Outputs<QueueOutput<T>>,
    ) {
        let Phase::Queued { .. } = self.phase else {
            // A newer acquire is in flight or scheduled, and its reply decides.
            return;
        };
        self.phase = Phase::Queued { renewal: None };
        match answer {
            RenewReply::Waiting { confirmation, retry_after } => {
                out.push(QueueOutput::Note(QueueNote::Renewed));
                self.take_place(rules, confirmation, retry_after, now, out);
            }
            RenewReply::Granted(grant) => self.take_grant(rules, grant, now, out),
            // Stale: about an earlier place. Check the present one again.
            RenewReply::Lost | RenewReply::Free if asked < self.claim.place => out.wake_at(now),
            RenewReply::Free => {
                self.claim.at_store = false;
                self.retry_at(now, Wake::at(now), out);
            }
            RenewReply::Renewed(_) => self.retry_at(now, Wake::at(now), out),
            RenewReply::Lost => {
                self.claim.at_store = false;
                self.start_over(rules, now, out);
            }
            RenewReply::Unknown(error) => {
                out.push(QueueOutput::Note(QueueNote::RenewalFailed));
                if error.kind() != ErrorKind::Unavailable {
                    self.claim.delivery = Delivery::InDoubt;
                }
                // The server may refuse the client since it connected again.
                if is_final(&error) {
                    return self.close(rules, &error, out);
                }
                self.take_failure(rules, error, now, out);
            }
        }
    }

    /// The store reports that a place became a lease. The report does not say when, so the validity counts from the
    /// newest confirmation of the same place. Without a live confirmation, the queue waits for the reply that is in
    /// flight (the report may have overtaken that of the acquire), or renews the place.
    pub fn handle_pushed_grant(
        &mut self,
        rules: &Rules,
        (place, token): (PlaceNumber, FencingToken),
        own: Option<Confirmation>,
        now: Stamp,
        out: &mut Outputs<QueueOutput<T>>,
    ) {
        if place < self.claim.place {
            return;
        }
        self.claim.at_store = true;
        self.claim.note_place(place);
        self.claim.pushed = Some(token);
        if let Some(own) = own.filter(|own| own.place == place) {
            self.claim.confirm(own);
        }
        if !self.join_push(rules, now, out) {
            self.handle_change(now, out);
        }
    }

    /// The store reports that the claim's place is gone.
    pub fn handle_gone(&mut self, rules: &Rules, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        match self.phase {
            Phase::Acquiring { .. } => self.claim.recheck = true,
            Phase::Queued { .. } | Phase::Retrying => self.start_over(rules, now, out),
        }
    }

    /// The lock may be free, or the state of the claim may have changed.
    pub fn handle_change(&mut self, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        match self.phase {
            Phase::Queued { renewal: None } | Phase::Retrying => out.wake_at(now),
            Phase::Queued { renewal: Some(_) } | Phase::Acquiring { .. } => self.claim.recheck = true,
        }
    }

    /// A wake-up is due.
    pub fn handle_timeout(&mut self, rules: &Rules, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        match self.phase {
            Phase::Acquiring { since } if now < since.plus(rules.call_bound) => {
                out.wake_at(since.plus(rules.call_bound))
            }
            Phase::Acquiring { .. } => {
                self.doubt(now);
                self.start_over(rules, now, out);
                self.claim.last_error = Some(no_reply());
            }
            Phase::Queued { renewal: None } | Phase::Retrying if self.is_outdated(rules) => {
                self.start_over(rules, now, out)
            }
            Phase::Queued { renewal } => self.renewal_due(rules, renewal, now, out),
            Phase::Retrying => {
                self.phase = Phase::Acquiring { since: now };
                out.push(QueueOutput::Acquire { delivery: self.claim.delivery });
                out.wake_at(now.plus(rules.call_bound));
            }
        }
    }

    fn renewal_due(&mut self, rules: &Rules, renewal: Option<Stamp>, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        let ttl = self.claim.place_ttl(rules.max_place_ttl);
        let bound = rules.call_bound.min(period(ttl));
        match renewal {
            Some(sent) if now < sent.plus(bound) => out.wake_at(sent.plus(bound)),
            Some(_) => {
                self.phase = Phase::Queued { renewal: None };
                self.claim.delivery = Delivery::InDoubt;
                out.push(QueueOutput::Note(QueueNote::RenewalFailed));
                self.take_failure(rules, no_reply(), now, out);
            }
            None => {
                self.phase = Phase::Queued { renewal: Some(now) };
                out.push(QueueOutput::Renew { place: self.claim.place, ttl });
                out.wake_at(now.plus(bound));
            }
        }
    }

    /// The front gets the lease, and those behind it get a claim of their own.
    fn take_grant(&mut self, rules: &Rules, grant: Grant, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        if grant.confirmation.place < self.claim.place {
            // Stale: about an earlier place.
            return self.retry_at(now, Wake::at(now), out);
        }
        let Some(front) = self.waiters.front() else { return };
        let too_long = self.claim.asked_ttl(rules.max_place_ttl) > front.terms.ttl;
        let other_lease = self.claim.is_for_another_lease(rules.sessions, &front.terms);
        if too_long || other_lease || validity_end(&grant.confirmation, rules.margin_percent) <= now {
            // The validity is over, or the claim was drawn for an acquire that has left and wanted a longer ttl or a
            // lease with other terms. A granted ttl cannot be shortened.
            self.claim.at_store = true;
            return self.start_over(rules, now, out);
        }
        let Some((terms, to)) = self.waiters.pop_front() else { return };
        let (asked, delivery, waited) = (self.claim.ttl, self.delivery(), self.claim.confirmation.is_some());
        self.note_answer(grant.confirmation.sent);
        out.push(QueueOutput::Granted { start: Start { grant, terms, asked, delivery, waited }, to });
        self.next_claim(rules, now, out);
    }

    /// Fails the acquires at the front that do not wait. If there is no other acquire at the front, withdraws the claim
    /// and returns true.
    fn refuse_tries(&mut self, rules: &Rules, error: &Error, now: Stamp, out: &mut Outputs<QueueOutput<T>>) -> bool {
        let refused = self.waiters.refuse_tries(|to| out.push(QueueOutput::Failed { to, error: error.clone() }));
        if refused {
            self.start_over(rules, now, out);
        }
        refused
    }

    /// Fails every acquire with the ttl of the claim, and starts over with another claim for the others.
    fn refuse_ttl(&mut self, rules: &Rules, error: &Error, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        for to in self.waiters.take_with_ttl(self.claim.ttl) {
            out.push(QueueOutput::Failed { to, error: error.clone() });
        }
        self.start_over(rules, now, out);
    }

    /// Withdraws the claim, and sends another one for the waiters.
    fn start_over(&mut self, rules: &Rules, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        self.withdraw(rules, out);
        self.next_claim(rules, now, out);
    }

    /// Sends a claim for the waiters. Without a waiter, the queue ends.
    fn next_claim(&mut self, rules: &Rules, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        let Some(front) = self.waiters.front() else { return out.push(QueueOutput::Finished) };
        self.claim = CurrentClaim::of(front, now);
        self.phase = Phase::Acquiring { since: now };
        out.push(QueueOutput::NewClaim);
        out.push(QueueOutput::Acquire { delivery: self.claim.delivery });
        out.wake_at(now.plus(rules.call_bound));
    }

    /// Withdraws the claim if the store may have a place or lease of it. While a first acquire is in flight, its reply
    /// will show that. The reply may never come, as on a runtime that nothing drives any more: the claim is then
    /// withdrawn when the acquire is overdue.
    fn withdraw(&self, rules: &Rules, out: &mut Outputs<QueueOutput<T>>) {
        let ending = Ending::now(Why::Withdraw, self.delivery(), self.claim.ttl);
        if self.claim.at_store || self.claim.delivery == Delivery::InDoubt {
            out.push(QueueOutput::End(ending));
        } else if let Phase::Acquiring { since } = self.phase {
            out.push(QueueOutput::EndWhenOverdue(ending, since.plus(rules.call_bound)));
        }
    }

    /// The claim has a place that the store has confirmed.
    fn take_place(
        &mut self,
        rules: &Rules,
        confirmation: Confirmation,
        retry_after: Duration,
        now: Stamp,
        out: &mut Outputs<QueueOutput<T>>,
    ) {
        out.push(QueueOutput::Note(QueueNote::Confirmed(confirmation.sent)));
        let recheck = std::mem::take(&mut self.claim.recheck);
        self.note_answer(confirmation.sent);
        self.phase = Phase::Queued { renewal: None };
        self.claim.at_store = true;
        self.claim.confirm(confirmation);
        if self.join_push(rules, now, out) {
            return;
        }
        if recheck || self.is_outdated(rules) {
            return out.wake_at(now);
        }
        let renewal = confirmation.sent.plus(period(confirmation.ttl));
        let wake = Wake::after(now.plus(retry_after), SPREAD).by(Some(renewal)).by(self.confirmation_due());
        out.push(QueueOutput::Wake(wake));
    }

    /// A pushed grant and a live confirmation of the same place make a lease.
    fn join_push(&mut self, rules: &Rules, now: Stamp, out: &mut Outputs<QueueOutput<T>>) -> bool {
        let grant = match self.phase {
            Phase::Acquiring { .. } => None,
            Phase::Queued { .. } | Phase::Retrying => self.claim.pushed_grant(),
        };
        let live = grant.filter(|grant| validity_end(&grant.confirmation, rules.margin_percent) > now);
        let Some(grant) = live else { return false };
        self.take_grant(rules, grant, now, out);
        true
    }

    /// A call failed, or its outcome is unknown.
    fn take_failure(&mut self, rules: &Rules, error: Error, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        self.claim.failures += 1;
        let pause = backoff(PATIENCE.min(period(self.claim.ttl)), self.claim.failures);
        let is_old = now.since(self.claim.first_sent) >= self.claim.ttl;
        match self.phase {
            // The store may have processed the first request a whole ttl ago, so no reply about this claim proves
            // anything now.
            Phase::Acquiring { .. } | Phase::Retrying if is_old => {
                self.withdraw(rules, out);
                if let Some(front) = self.waiters.front() {
                    self.claim = CurrentClaim::of(front, now);
                    self.phase = Phase::Retrying;
                    out.push(QueueOutput::NewClaim);
                }
            }
            Phase::Acquiring { .. } | Phase::Retrying | Phase::Queued { .. } => {}
        }
        self.claim.last_error = Some(error);
        out.push(QueueOutput::Wake(Wake::after(now, pause)));
    }

    /// Schedules the next acquire of the claim: at `wake`, or earlier if a waiter needs a reply before the end of its
    /// wait.
    fn retry_at(&mut self, now: Stamp, wake: Wake, out: &mut Outputs<QueueOutput<T>>) {
        self.phase = Phase::Retrying;
        if std::mem::take(&mut self.claim.recheck) {
            out.wake_at(now);
        } else {
            out.push(QueueOutput::Wake(wake.by(self.confirmation_due())));
        }
    }

    /// The store has replied to a request that was sent at `sent`.
    fn note_answer(&mut self, sent: Stamp) {
        self.answered = self.answered.max(Some(sent));
        self.claim.failures = 0;
        self.claim.last_error = None;
    }

    /// An acquire of the claim has no reply.
    fn doubt(&mut self, now: Stamp) {
        self.claim.delivery = Delivery::InDoubt;
        self.in_doubt_until = now.plus(self.claim.ttl);
    }

    /// When the newest request was sent whose reply shows the state of the lock. If the claim has a place, only a
    /// confirmation of that place shows it.
    fn newest_answer(&self) -> Option<Stamp> {
        self.claim.confirmation.map_or(self.answered, |newest| Some(newest.sent))
    }

    fn confirmation_due(&self) -> Option<Stamp> {
        self.waiters.confirmation_due(self.newest_answer()?)
    }

    /// Whether a request of the claim has no reply, the one in flight included.
    fn delivery(&self) -> Delivery {
        match self.phase {
            Phase::Acquiring { .. } | Phase::Queued { renewal: Some(_) } => Delivery::InDoubt,
            Phase::Queued { renewal: None } | Phase::Retrying => self.claim.delivery,
        }
    }

    /// Whether the front needs another claim, because the present one was drawn for an acquire that has left and did
    /// not wait, or wanted a lease with other terms.
    fn is_outdated(&self, rules: &Rules) -> bool {
        let is_other = |front: &Waiter<T>| self.claim.is_for_another_lease(rules.sessions, &front.terms);
        self.claim.on_contention == OnContention::Fail || self.waiters.front().is_some_and(is_other)
    }
}

/// Whether waiting does not help.
fn is_final(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Unsupported | ErrorKind::Auth => true,
        ErrorKind::Capacity => !error.passes_by_itself(),
        _ => false,
    }
}

pub(in crate::keeper) fn no_reply() -> Error {
    Error::new(ErrorKind::Indeterminate, "the store did not reply within the wait")
}

fn held_by_another() -> Error {
    Error::new(ErrorKind::Timeout, "another claim held the lock for the whole wait")
}

#[cfg(test)]
mod tests;
