//! The acquires of one client for one lock, and their claim at the store, as a pure state machine: inputs and the time
//! go in, [`QueueOutput`]s come out. It knows no store, clock, lock or source of randomness.
//!
//! The local queue is first come, first served. Whoever is at the front when the claim is granted gets the lease; those behind it get a
//! claim of their own. When the last acquire leaves, the claim is withdrawn.
//!
//! Each input is about the present claim. The keeper hands what concerns an earlier claim to the lease that it became, or to its disposal.

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

/// Exists while an acquire waits. `T` is the channel of an acquire's outcome.
#[derive(Clone, Debug)]
pub struct WaitQueue<T> {
    waiters: Waiters<T>,
    claim: CurrentClaim,
    phase: Phase,
    /// When the newest request was sent that has had a reply since an acquire began to wait.
    answered: Option<Stamp>,
    /// Until then an acquire without a reply may have taken effect: of this claim, or of an earlier one of the queue.
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

/// The pause of the backend until it is worth asking again is spread by so much: the waiters of many clients receive the same one.
const SPREAD: Duration = Duration::from_millis(2);

impl<T> WaitQueue<T> {
    /// A queue of one acquire, whose caller sends the first [`request`](Self::request). No wake-up is scheduled for it: the caller drives
    /// it and has a timeout of its own.
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
    /// `InvalidInput` when its holder waits already, for another kind of lease.
    pub fn join(&mut self, rules: &Rules, joining: Joining<T>, out: &mut Outputs<QueueOutput<T>>) -> Result<()> {
        let confirm_after = joining.confirm_after;
        self.waiters.join(joining)?;
        match self.phase {
            // From now on somebody depends on a first attempt whose future may never be polled again.
            Phase::Acquiring { since } => out.wake_at(since.plus(rules.call_bound)),
            Phase::Queued { renewal: None } | Phase::Retrying => out.push(QueueOutput::WakeBy(confirm_after)),
            // What its reply confirms is compared with what the waiters need.
            Phase::Queued { renewal: Some(_) } => {}
        }
        Ok(())
    }

    /// An acquire leaves. Says why it has no lease, if it still waited.
    pub fn leave(
        &mut self,
        rules: &Rules,
        acquire: AcquireId,
        now: Stamp,
        out: &mut Outputs<QueueOutput<T>>,
    ) -> Option<Error> {
        let confirm_after = self.waiters.remove(acquire)?;
        let in_doubt = self.claim.delivery == Delivery::InDoubt || self.claim.at_store || now < self.in_doubt_until;
        // A place may have become a lease since, because the holder may have released the lock.
        let is_known = self.newest_answer().is_some_and(|newest| newest >= confirm_after);
        let why = match &self.claim.last_error {
            Some(error) if in_doubt => error.clone().with_kind(ErrorKind::Indeterminate),
            Some(error) => error.clone(),
            None if is_known => held_by_another(),
            None => no_answer(),
        };
        if self.waiters.front().is_none() {
            self.withdraw(rules, out);
            out.push(QueueOutput::Finished);
        } else if self.is_outdated(rules) {
            match self.phase {
                Phase::Queued { renewal: None } | Phase::Retrying => out.push(QueueOutput::WakeBy(now)),
                // The reply, or its absence, comes first.
                Phase::Queued { renewal: Some(_) } | Phase::Acquiring { .. } => {}
            }
        }
        Some(why)
    }

    /// Ends the queue, with this error for everybody.
    pub fn close(&mut self, rules: &Rules, error: &Error, out: &mut Outputs<QueueOutput<T>>) {
        for to in self.waiters.drain() {
            out.push(QueueOutput::Failed { to, error: error.clone() });
        }
        self.withdraw(rules, out);
        out.push(QueueOutput::Finished);
    }

    /// The reply to the acquire of the claim.
    pub fn acquired(
        &mut self,
        rules: &Rules,
        answer: Result<AcquireOutcome>,
        now: Stamp,
        out: &mut Outputs<QueueOutput<T>>,
    ) {
        let sent = match self.phase {
            Phase::Acquiring { since } => since,
            // Of an earlier request of the claim, which its renewal has overtaken.
            Phase::Queued { .. } | Phase::Retrying => self.claim.first_sent,
        };
        self.phase = Phase::Retrying;
        match answer {
            Ok(AcquireOutcome::Granted(grant)) => self.granted(rules, grant, now, out),
            Ok(AcquireOutcome::Queued { confirmation, retry_after }) => {
                self.claim.at_store = true;
                if !self.refuse_tries(rules, &held_by_another(), now, out) {
                    out.push(QueueOutput::Note(QueueNote::Queued(confirmation.place)));
                    self.queued(rules, confirmation, retry_after, now, out);
                }
            }
            Ok(AcquireOutcome::Contended { retry_after }) => {
                self.answer(sent);
                self.claim.attempt += 1;
                if self.refuse_tries(rules, &held_by_another(), now, out) {
                    return;
                }
                if self.is_outdated(rules) {
                    // Those who wait want another claim at once.
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
                    ErrorKind::Unsupported | ErrorKind::Auth => self.close(rules, &error, out),
                    ErrorKind::Capacity if !error.passes_by_itself() => self.close(rules, &error, out),
                    _ if self.refuse_tries(rules, &error, now, out) => {}
                    _ => self.failed(rules, error, now, out),
                }
            }
        }
    }

    /// The acquire of the claim was given up before it was sent.
    pub fn not_sent(&mut self, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        self.retry_at(now, Wake::at(now), out);
    }

    /// The reply to a renewal of the place with this number.
    pub fn renewed(
        &mut self,
        rules: &Rules,
        asked: PlaceNumber,
        answer: RenewReply,
        now: Stamp,
        out: &mut Outputs<QueueOutput<T>>,
    ) {
        let Phase::Queued { .. } = self.phase else {
            // An acquire has followed it: its reply is newer.
            return;
        };
        self.phase = Phase::Queued { renewal: None };
        match answer {
            RenewReply::Waiting { confirmation, retry_after } => {
                out.push(QueueOutput::Note(QueueNote::Renewed));
                self.queued(rules, confirmation, retry_after, now, out);
            }
            RenewReply::Granted(grant) => self.granted(rules, grant, now, out),
            // About a place that is gone since longer: the queue requests the state of the present one.
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
                self.failed(rules, error, now, out);
            }
        }
    }

    /// The store reports that a place became a lease. It does not say when, so the validity counts from the newest confirmation of this
    /// very place. Without a live one the reply that is in flight comes first, as that of the acquire which the push has overtaken, or
    /// the place is renewed.
    pub fn grant_pushed(
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
            self.changed(now, out);
        }
    }

    /// The store reports that the claim's place is gone.
    pub fn gone(&mut self, rules: &Rules, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        match self.phase {
            Phase::Acquiring { .. } => self.claim.recheck = true,
            Phase::Queued { .. } | Phase::Retrying => self.start_over(rules, now, out),
        }
    }

    /// The lock may be free, or the state of the claim may have changed.
    pub fn changed(&mut self, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        match self.phase {
            Phase::Queued { renewal: None } | Phase::Retrying => out.wake_at(now),
            Phase::Queued { renewal: Some(_) } | Phase::Acquiring { .. } => self.claim.recheck = true,
        }
    }

    /// The time has come that the queue wanted to be woken at.
    pub fn due(&mut self, rules: &Rules, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        match self.phase {
            Phase::Acquiring { since } if now < since.plus(rules.call_bound) => {
                out.wake_at(since.plus(rules.call_bound))
            }
            Phase::Acquiring { .. } => {
                self.doubt(now);
                self.start_over(rules, now, out);
                self.claim.last_error = Some(no_answer());
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
                self.failed(rules, no_answer(), now, out);
            }
            None => {
                self.phase = Phase::Queued { renewal: Some(now) };
                out.push(QueueOutput::Renew { place: self.claim.place, ttl });
                out.wake_at(now.plus(bound));
            }
        }
    }

    /// The front gets the lease, and those behind it get a claim of their own.
    fn granted(&mut self, rules: &Rules, grant: Grant, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        if grant.confirmation.place < self.claim.place {
            // A reply about a place that is gone.
            return self.retry_at(now, Wake::at(now), out);
        }
        let Some(front) = self.waiters.front() else { return };
        let too_long = self.claim.asked_ttl(rules.max_place_ttl) > front.terms.ttl;
        let other_lease = self.claim.is_for_another_lease(rules.sessions, &front.terms);
        if too_long || other_lease || validity_end(&grant.confirmation, rules.margin_percent) <= now {
            // Too late to be of use, or inherited from an acquire of another lease or with a longer ttl, which cannot be shortened.
            self.claim.at_store = true;
            return self.start_over(rules, now, out);
        }
        let Some((terms, to)) = self.waiters.pop_front() else { return };
        let (asked, delivery, waited) = (self.claim.ttl, self.delivery(), self.claim.confirmation.is_some());
        self.answer(grant.confirmation.sent);
        out.push(QueueOutput::Granted { start: Start { grant, terms, asked, delivery, waited }, to });
        self.next_claim(rules, now, out);
    }

    /// Whoever only tries, at the front, does not want to wait. Whether the front consisted of such: then the claim is withdrawn.
    fn refuse_tries(&mut self, rules: &Rules, error: &Error, now: Stamp, out: &mut Outputs<QueueOutput<T>>) -> bool {
        let refused = self.waiters.refuse_tries(|to| out.push(QueueOutput::Failed { to, error: error.clone() }));
        if refused {
            self.start_over(rules, now, out);
        }
        refused
    }

    /// Fails every acquire with the ttl of the claim, and sends another claim for the others.
    fn refuse_ttl(&mut self, rules: &Rules, error: &Error, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        for to in self.waiters.take_with_ttl(self.claim.ttl) {
            out.push(QueueOutput::Failed { to, error: error.clone() });
        }
        self.start_over(rules, now, out);
    }

    /// Withdraws the claim, and sends another one for those who wait.
    fn start_over(&mut self, rules: &Rules, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        self.withdraw(rules, out);
        self.next_claim(rules, now, out);
    }

    /// Sends a claim for those who wait. Without a waiter the queue ends.
    fn next_claim(&mut self, rules: &Rules, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        let Some(front) = self.waiters.front() else { return out.push(QueueOutput::Finished) };
        self.claim = CurrentClaim::of(front, now);
        self.phase = Phase::Acquiring { since: now };
        out.push(QueueOutput::NewClaim);
        out.push(QueueOutput::Acquire { delivery: self.claim.delivery });
        out.wake_at(now.plus(rules.call_bound));
    }

    /// Withdraws the claim, where the store may have anything of it. What a first acquire in flight leaves at the store is seen from its
    /// answer. It may have none, as on a runtime that is not driven any more: the claim is withdrawn then.
    fn withdraw(&self, rules: &Rules, out: &mut Outputs<QueueOutput<T>>) {
        let ending = Ending::now(Why::Withdraw, self.delivery(), self.claim.ttl);
        if self.claim.at_store || self.claim.delivery == Delivery::InDoubt {
            out.push(QueueOutput::End(ending));
        } else if let Phase::Acquiring { since } = self.phase {
            out.push(QueueOutput::EndWhenOverdue(ending, since.plus(rules.call_bound)));
        }
    }

    /// The claim has a place that the store has confirmed.
    fn queued(
        &mut self,
        rules: &Rules,
        confirmation: Confirmation,
        retry_after: Duration,
        now: Stamp,
        out: &mut Outputs<QueueOutput<T>>,
    ) {
        out.push(QueueOutput::Note(QueueNote::Confirmed(confirmation.sent)));
        let recheck = std::mem::take(&mut self.claim.recheck);
        self.answer(confirmation.sent);
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

    /// A grant that was pushed and a live confirmation of its very place are a lease together.
    fn join_push(&mut self, rules: &Rules, now: Stamp, out: &mut Outputs<QueueOutput<T>>) -> bool {
        let grant = match self.phase {
            Phase::Acquiring { .. } => None,
            Phase::Queued { .. } | Phase::Retrying => self.claim.pushed_grant(),
        };
        let live = grant.filter(|grant| validity_end(&grant.confirmation, rules.margin_percent) > now);
        let Some(grant) = live else { return false };
        self.granted(rules, grant, now, out);
        true
    }

    /// A call failed, or its outcome is unknown.
    fn failed(&mut self, rules: &Rules, error: Error, now: Stamp, out: &mut Outputs<QueueOutput<T>>) {
        self.claim.failures += 1;
        let pause = backoff(PATIENCE.min(period(self.claim.ttl)), self.claim.failures);
        let is_old = now.since(self.claim.first_sent) >= self.claim.ttl;
        match self.phase {
            // The first request may have been applied a whole ttl ago: no reply about this claim is news now.
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

    /// The next acquire of the claim is due then, or when somebody needs a reply before.
    fn retry_at(&mut self, now: Stamp, wake: Wake, out: &mut Outputs<QueueOutput<T>>) {
        self.phase = Phase::Retrying;
        if std::mem::take(&mut self.claim.recheck) {
            out.wake_at(now);
        } else {
            out.push(QueueOutput::Wake(wake.by(self.confirmation_due())));
        }
    }

    /// The store has replied to a request that was sent then.
    fn answer(&mut self, sent: Stamp) {
        self.answered = self.answered.max(Some(sent));
        self.claim.failures = 0;
        self.claim.last_error = None;
    }

    /// An acquire of the claim has no reply.
    fn doubt(&mut self, now: Stamp) {
        self.claim.delivery = Delivery::InDoubt;
        self.in_doubt_until = now.plus(self.claim.ttl);
    }

    /// When the request was sent from whose reply the state of the lock is known: of the place, where there is one.
    fn newest_answer(&self) -> Option<Stamp> {
        self.claim.confirmation.map_or(self.answered, |newest| Some(newest.sent))
    }

    fn confirmation_due(&self) -> Option<Stamp> {
        self.waiters.confirmation_due(self.newest_answer()?)
    }

    /// A call that is in flight has no reply either.
    fn delivery(&self) -> Delivery {
        match self.phase {
            Phase::Acquiring { .. } | Phase::Queued { renewal: Some(_) } => Delivery::InDoubt,
            Phase::Queued { renewal: None } | Phase::Retrying => self.claim.delivery,
        }
    }

    /// Whether the front wants something else than the claim: who drew it only tried or wanted another lease, and has left.
    fn is_outdated(&self, rules: &Rules) -> bool {
        let is_other = |front: &Waiter<T>| self.claim.is_for_another_lease(rules.sessions, &front.terms);
        self.claim.on_contention == OnContention::Fail || self.waiters.front().is_some_and(is_other)
    }
}

pub(in crate::keeper) fn no_answer() -> Error {
    Error::new(ErrorKind::Indeterminate, "the store has not answered within the wait")
}

fn held_by_another() -> Error {
    Error::new(ErrorKind::Timeout, "another claim held the lock for the whole wait")
}

#[cfg(test)]
mod tests;
