//! Waiting: one state machine for all backends.
//!
//! All acquires of one client for one lock stand in a local FIFO queue, and one claim stands for them at the store. Whoever is
//! at the front when that claim is granted gets the lease; the next one draws a claim of its own. The last to leave
//! takes the claim back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::leases::Hold;
use super::schedule::TaskId;
use super::withdraw::Why;
use super::{Effects, LeaseKeeper, Life, Standing, State, Task};
use crate::claim::{Claim, IfHeld};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Acquisition, Certainty, Confirmation, Grant, Place};
use crate::lease::{Terms, period, validity_end};
use crate::name::LockName;
use crate::renewal::{Answer, LeaseRef};
use crate::token::{FencingToken, OwnerToken};

/// The acquires of one client for one lock, and the claim that stands for them. Exists while somebody waits.
pub(super) struct Queue {
    waiters: VecDeque<Waiter>,
    claim: Claim,
    ttl: Duration,
    stage: Stage,
    task: Option<TaskId>,
    first_sent: Stamp,
    /// The newest confirmation of the place with the highest number that was heard of.
    confirmation: Option<Confirmation>,
    place: Place,
    certainty: Certainty,
    failures: u32,
    /// What is in the way of an answer; none when the last call was answered.
    trouble: Option<Error>,
    /// The store has answered since somebody began to wait.
    heard: bool,
    /// An event came while a call was under way: look once more when it has ended.
    look_again: bool,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// An acquire is under way since then.
    Calling(Stamp),
    /// The claim has a place, and maybe a renewal under way.
    Standing(Option<Stamp>),
    /// The next acquire waits for its due time.
    Looking,
}

/// One place in the local queue. Acquires with the same holder share one.
struct Waiter {
    terms: Terms,
    wish: IfHeld,
    takers: Vec<(u64, oneshot::Sender<Result<Hold>>)>,
}

/// How an acquire begins.
pub(crate) enum Entry {
    /// The holder holds it already: its lease is shared.
    Shared(Hold),
    /// In the queue. The first in a queue makes the first attempt itself, on its own runtime.
    Queued(Ticket, Option<(Claim, Duration)>),
    /// Others of this client wait, and this one does not want to.
    Refused,
}

/// A taker's place in the local queue; leaves it when dropped.
pub(crate) struct Ticket {
    keeper: Arc<LeaseKeeper>,
    name: LockName,
    taker: u64,
    pub(crate) outcome: oneshot::Receiver<Result<Hold>>,
}

impl Ticket {
    /// Leaves the queue because the wait is over, with the reason why there is no lease.
    pub(crate) fn time_is_up(mut self) -> Result<Hold> {
        let why = self.keeper.with_state(|state, _| self.keeper.leave(state, &self.name, self.taker));
        match why {
            Some(error) => Err(error),
            // Not in the queue any more: the outcome was on its way.
            None => self.outcome.try_recv().unwrap_or_else(|_| Err(no_answer())),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.keeper.with_state(|state, _| self.keeper.leave(state, &self.name, self.taker));
        self.keeper.counters.waiting.sub();
    }
}

/// Settles an attempt that ends without an answer: dropped with its runtime, or by a panic.
struct Unsettled {
    keeper: Arc<LeaseKeeper>,
    claim: Claim,
    ttl: Duration,
    open: bool,
    sent: bool,
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if self.open && self.sent {
            self.keeper.settle(&self.claim, self.ttl, Err(no_answer()));
        } else if self.open {
            self.keeper.not_sent(&self.claim);
        }
    }
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Indeterminate, "the store has not answered within the wait")
}

fn held_by_another() -> Error {
    Error::new(ErrorKind::Timeout, "another had it for the whole wait")
}

impl LeaseKeeper {
    /// Begins an acquire.
    pub(crate) fn enter(self: &Arc<Self>, name: &LockName, terms: Terms, wish: IfHeld) -> Result<Entry> {
        self.with_state(|state, _| {
            if state.life != Life::Open {
                return Err(Error::new(ErrorKind::Unavailable, "the client is shut down"));
            }
            if let Some(hold) = self.shared_hold(state, name, &terms)? {
                return Ok(Entry::Shared(hold));
            }
            let taker = state.next_waiter;
            let (sender, outcome) = oneshot::channel();
            if let Some(queue) = state.queues.get_mut(name) {
                if wish == IfHeld::Leave {
                    return Ok(Entry::Refused);
                }
                queue.join(terms, wish, (taker, sender))?;
                // From now on somebody depends on a first attempt whose future may never be polled again.
                if let (None, Stage::Calling(since)) = (queue.task, queue.stage) {
                    let id = state.schedule.insert(Task::Queue(name.clone()));
                    queue.task = Some(id);
                    state.schedule.at(id, since.plus(self.call_bound()));
                }
                return Ok(Entry::Queued(self.ticket(state, name, taker, outcome), None));
            }
            let claim = self.draw_claim(name, wish);
            let now = self.now();
            state.owners.insert(*claim.owner(), Standing::Waiting(name.clone()));
            let mut queue = Queue::new(claim.clone(), terms.ttl, now);
            queue.waiters.push_back(Waiter { terms, wish, takers: vec![(taker, sender)] });
            state.queues.insert(name.clone(), queue);
            Ok(Entry::Queued(self.ticket(state, name, taker, outcome), Some((claim, terms.ttl))))
        })
    }

    fn ticket(
        self: &Arc<Self>,
        state: &mut State,
        name: &LockName,
        taker: u64,
        outcome: oneshot::Receiver<Result<Hold>>,
    ) -> Ticket {
        state.next_waiter += 1;
        self.counters.waiting.add();
        Ticket { keeper: self.clone(), name: name.clone(), taker, outcome }
    }

    /// One attempt at the store. Dropped before it was polled, nothing was sent; dropped later, its outcome is unknown.
    pub(crate) fn attempt(self: Arc<Self>, claim: Claim, ttl: Duration) -> impl Future<Output = ()> + Send + 'static {
        let mut unsettled = Unsettled { keeper: self.clone(), claim, ttl, open: true, sent: false };
        async move {
            unsettled.sent = true;
            let answer = self.backend.acquire(&unsettled.claim, ttl).await;
            unsettled.open = false;
            self.settle(&unsettled.claim, ttl, answer);
        }
    }

    /// Takes a taker out of the local queue. Says why it has no lease, if it still waited.
    fn leave(&self, state: &mut State, name: &LockName, taker: u64) -> Option<Error> {
        let queue = state.queues.get_mut(name)?;
        let index = queue.waiters.iter().position(|waiter| waiter.takers.iter().any(|(id, _)| *id == taker))?;
        let why = match &queue.trouble {
            Some(trouble) if queue.certainty == Certainty::Unsure => {
                trouble.clone().with_kind(ErrorKind::Indeterminate)
            }
            Some(trouble) => trouble.clone(),
            None if queue.heard => held_by_another(),
            None => no_answer(),
        };
        let waiter = &mut queue.waiters[index];
        waiter.takers.retain(|(id, _)| *id != taker);
        if waiter.takers.is_empty() {
            queue.waiters.remove(index);
        }
        if queue.waiters.is_empty() {
            self.disband(state, name);
        }
        Some(why)
    }

    /// Nobody waits any more: takes the claim back.
    fn disband(&self, state: &mut State, name: &LockName) {
        let Some(queue) = state.queues.remove(name) else { return };
        state.owners.remove(queue.claim.owner());
        if let Some(id) = queue.task {
            state.schedule.remove(id);
        }
        let has_place = matches!(queue.stage, Stage::Standing(_));
        // An acquire under way takes itself back when it settles.
        if has_place || queue.certainty == Certainty::Unsure {
            self.withdraw(state, &queue.claim, queue.certainty, queue.ttl, Why::Withdraw);
        }
    }

    /// The same for everybody, with an error for each.
    pub(super) fn disband_all(&self, state: &mut State, effects: &mut Effects, error: &Error) {
        let names: Vec<_> = state.queues.keys().cloned().collect();
        for name in names {
            self.fail_all(state, effects, &name, error);
        }
    }

    fn fail_all(&self, state: &mut State, effects: &mut Effects, name: &LockName, error: &Error) {
        if let Some(queue) = state.queues.get_mut(name) {
            for (_, taker) in queue.waiters.drain(..).flat_map(|waiter| waiter.takers) {
                effects.deliveries.push((taker, Err(error.clone())));
            }
            self.disband(state, name);
        }
    }

    /// The queue whose current claim this is.
    fn queue_of<'s>(state: &'s mut State, claim: &Claim) -> Option<&'s mut Queue> {
        state.queues.get_mut(claim.name()).filter(|queue| queue.claim.owner() == claim.owner())
    }

    /// Takes the answer of an attempt.
    fn settle(self: &Arc<Self>, claim: &Claim, ttl: Duration, answer: Result<Acquisition>) {
        self.with_state(|state, effects| {
            let name = claim.name();
            let Some(queue) = Self::queue_of(state, claim) else {
                // Everybody left meanwhile.
                match answer {
                    Ok(Acquisition::Granted(_) | Acquisition::Queued { .. }) => {
                        self.withdraw(state, claim, Certainty::Sure, ttl, Why::Withdraw);
                    }
                    Err(error) if error.kind() == ErrorKind::Indeterminate => {
                        self.withdraw(state, claim, Certainty::Unsure, ttl, Why::Withdraw);
                    }
                    Ok(Acquisition::Held { .. }) | Err(_) => {}
                }
                return;
            };
            let only_tries = queue.waiters.front().is_some_and(|waiter| waiter.wish == IfHeld::Leave);
            match answer {
                Ok(Acquisition::Granted(grant)) => self.granted(state, effects, name, grant),
                Ok(Acquisition::Queued { .. }) if only_tries => {
                    queue.stage = Stage::Standing(None);
                    self.refuse_front(state, effects, name, held_by_another());
                }
                Ok(Acquisition::Held { .. }) if only_tries => {
                    queue.stage = Stage::Looking;
                    self.refuse_front(state, effects, name, held_by_another());
                }
                Ok(Acquisition::Queued { confirmation, look_in }) => {
                    self.counters.queued.add();
                    tracing::debug!(lock = %name, place = confirmation.place, "queued");
                    self.stands(state, name, confirmation, look_in);
                }
                Ok(Acquisition::Held { look_in }) => {
                    queue.answered();
                    let pause = look_in + self.entropy.jitter(Duration::from_millis(2));
                    self.look_at(state, name, self.now().plus(pause));
                }
                Err(error) => {
                    tracing::debug!(lock = %name, %error, "attempt failed");
                    if error.kind() == ErrorKind::Indeterminate {
                        queue.certainty = Certainty::Unsure;
                    }
                    queue.stage = Stage::Looking;
                    match error.kind() {
                        ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::Auth | ErrorKind::Capacity => {
                            self.fail_all(state, effects, name, &error)
                        }
                        _ if only_tries => self.refuse_front(state, effects, name, error),
                        _ => self.failed(state, name, error),
                    }
                }
            }
        });
    }

    /// An attempt was dropped before anything was sent: the next one may begin at once.
    fn not_sent(self: &Arc<Self>, claim: &Claim) {
        self.with_state(|state, _| {
            if Self::queue_of(state, claim).is_some() {
                self.look_at(state, claim.name(), self.now());
            }
        });
    }

    /// The front gets the lease, and the next in the queue draws a claim of its own.
    fn granted(self: &Arc<Self>, state: &mut State, effects: &mut Effects, name: &LockName, grant: Grant) {
        let now = self.now();
        let Some(queue) = state.queues.get_mut(name) else { return };
        if grant.confirmation.place < queue.place {
            // An answer about a place that is gone.
            return self.look_at(state, name, now);
        }
        let Some(front) = queue.waiters.front() else { return };
        let too_long = queue.asked_ttl(&self.capabilities.max_place_ttl) > front.terms.ttl;
        if too_long || validity_end(&grant.confirmation, self.margin_percent) <= now {
            // Too late to be of use, or inherited from an acquire with a longer ttl, which nobody could shorten.
            let (claim, certainty, ttl) = (queue.claim.clone(), queue.certainty, queue.ttl);
            self.withdraw(state, &claim, certainty, ttl, Why::Withdraw);
            return self.next_claim(state, effects, name);
        }
        let Some(Waiter { terms, takers, .. }) = queue.waiters.pop_front() else { return };
        let (claim, certainty) = (queue.claim.clone(), queue.certainty);
        queue.heard = true;
        let lease = self.start_lease(state, claim, grant, terms, certainty);
        for (_, taker) in takers {
            effects.deliveries.push((taker, Ok(Hold::new(self, &lease))));
        }
        self.next_claim(state, effects, name);
    }

    /// The front does not want to wait.
    fn refuse_front(&self, state: &mut State, effects: &mut Effects, name: &LockName, error: Error) {
        let Some(queue) = state.queues.get_mut(name) else { return };
        let Some(front) = queue.waiters.pop_front() else { return };
        for (_, taker) in front.takers {
            effects.deliveries.push((taker, Err(error.clone())));
        }
        if queue.waiters.is_empty() {
            return self.disband(state, name);
        }
        let has_place = matches!(queue.stage, Stage::Standing(_));
        let (claim, certainty, ttl) = (queue.claim.clone(), queue.certainty, queue.ttl);
        if has_place || certainty == Certainty::Unsure {
            self.withdraw(state, &claim, certainty, ttl, Why::Withdraw);
        }
        self.next_claim(state, effects, name);
    }

    /// Draws a claim for those who still wait, and sends it.
    fn next_claim(&self, state: &mut State, effects: &mut Effects, name: &LockName) {
        if let Some(attempt) = self.draw_next(state, name) {
            effects.attempts.push(attempt);
        }
    }

    /// Draws a claim for those who still wait. The former one is not the queue's any more; without a waiter the
    /// queue ends.
    fn draw_next(&self, state: &mut State, name: &LockName) -> Option<(Claim, Duration)> {
        let now = self.now();
        let queue = state.queues.get_mut(name)?;
        if let Some(Standing::Waiting(_)) = state.owners.get(queue.claim.owner()) {
            state.owners.remove(queue.claim.owner());
        }
        let Some(front) = queue.waiters.front() else {
            if let Some(id) = state.queues.remove(name).and_then(|queue| queue.task) {
                state.schedule.remove(id);
            }
            return None;
        };
        let ttl = front.terms.ttl;
        let claim = self.draw_claim(name, front.wish);
        state.owners.insert(*claim.owner(), Standing::Waiting(name.clone()));
        let old = std::mem::replace(queue, Queue::new(claim.clone(), ttl, now));
        queue.waiters = old.waiters;
        queue.heard = old.heard;
        queue.task = old.task;
        self.due(state, name, now.plus(self.call_bound()));
        Some((claim, ttl))
    }

    /// The claim has a place that the store confirmed.
    fn stands(&self, state: &mut State, name: &LockName, confirmation: Confirmation, look_in: Duration) {
        let now = self.now();
        let Some(queue) = state.queues.get_mut(name) else { return };
        let again = queue.look_again;
        queue.answered();
        queue.stage = Stage::Standing(None);
        let newest = queue.confirmation.filter(|newest| newest.place == confirmation.place);
        if confirmation.place >= queue.place && newest.is_none_or(|newest| newest.sent < confirmation.sent) {
            queue.place = confirmation.place;
            queue.confirmation = Some(confirmation);
        }
        let renewal = confirmation.sent.plus(period(confirmation.ttl));
        let look = now.plus(look_in + self.entropy.jitter(Duration::from_millis(2)));
        self.due(state, name, if again { now } else { renewal.min(look) });
    }

    /// A call failed, or its outcome is unknown.
    fn failed(&self, state: &mut State, name: &LockName, error: Error) {
        let now = self.now();
        let Some(queue) = state.queues.get_mut(name) else { return };
        queue.failures += 1;
        queue.trouble = Some(error);
        let pause = self.backoff(super::withdraw::PATIENCE.min(period(queue.ttl)), queue.failures);
        if now.since(queue.first_sent) >= queue.ttl && !matches!(queue.stage, Stage::Standing(_)) {
            // The first request may have been applied a whole ttl ago: nothing that is heard of this claim now is news.
            let (claim, certainty, ttl) = (queue.claim.clone(), queue.certainty, queue.ttl);
            let trouble = queue.trouble.take();
            if certainty == Certainty::Unsure {
                self.withdraw(state, &claim, certainty, ttl, Why::Withdraw);
            }
            self.draw_next(state, name);
            if let Some(queue) = state.queues.get_mut(name) {
                queue.stage = Stage::Looking;
                queue.trouble = trouble;
            }
        }
        self.due(state, name, now.plus(pause));
    }

    /// The next acquire of the same claim is due at `at`.
    fn look_at(&self, state: &mut State, name: &LockName, at: Stamp) {
        if let Some(queue) = state.queues.get_mut(name) {
            queue.stage = Stage::Looking;
            let at = if std::mem::take(&mut queue.look_again) { self.now() } else { at };
            self.due(state, name, at);
        }
    }

    fn due(&self, state: &mut State, name: &LockName, at: Stamp) {
        if let Some(queue) = state.queues.get_mut(name) {
            let id = *queue.task.get_or_insert_with(|| state.schedule.insert(Task::Queue(name.clone())));
            state.schedule.at(id, at);
        }
    }

    /// The queue's task is due: a renewal of its place to send, or something that is done here.
    pub(super) fn queue_due(
        &self,
        state: &mut State,
        effects: &mut Effects,
        name: &LockName,
        now: Stamp,
    ) -> Option<LeaseRef> {
        let bound = self.call_bound();
        let queue = state.queues.get_mut(name)?;
        match queue.stage {
            Stage::Calling(since) if now < since.plus(bound) => self.due(state, name, since.plus(bound)),
            Stage::Calling(_) => {
                let (claim, ttl) = (queue.claim.clone(), queue.ttl);
                self.withdraw(state, &claim, Certainty::Unsure, ttl, Why::Withdraw);
                self.next_claim(state, effects, name);
                if let Some(queue) = state.queues.get_mut(name) {
                    queue.trouble = Some(no_answer());
                }
            }
            Stage::Standing(flight) => {
                let place_ttl =
                    queue.confirmation.map_or(queue.ttl.min(self.capabilities.max_place_ttl), |newest| newest.ttl);
                let bound = bound.min(period(place_ttl));
                match flight {
                    Some(sent) if now < sent.plus(bound) => self.due(state, name, sent.plus(bound)),
                    Some(_) => {
                        queue.stage = Stage::Standing(None);
                        queue.certainty = Certainty::Unsure;
                        self.counters.renewal_errors.add();
                        self.failed(state, name, no_answer());
                    }
                    None => {
                        queue.stage = Stage::Standing(Some(now));
                        let renewal = LeaseRef::new(queue.claim.clone(), queue.place, place_ttl);
                        self.due(state, name, now.plus(bound));
                        return Some(renewal);
                    }
                }
            }
            Stage::Looking => {
                queue.stage = Stage::Calling(now);
                effects.attempts.push((queue.claim.clone(), queue.ttl));
                self.due(state, name, now.plus(bound));
            }
        }
        None
    }

    /// Takes the answer to the renewal of a place.
    pub(super) fn on_place_answer(self: &Arc<Self>, claim: &Claim, answer: Answer) {
        self.with_state(|state, effects| {
            let name = claim.name();
            let Some(queue) = Self::queue_of(state, claim) else { return };
            if !matches!(queue.stage, Stage::Standing(_)) {
                return;
            }
            queue.stage = Stage::Standing(None);
            match answer {
                Answer::Waiting { confirmation, look_in } => {
                    self.counters.renewed.add();
                    self.stands(state, name, confirmation, look_in);
                }
                Answer::Granted(grant) => self.granted(state, effects, name, grant),
                Answer::Free | Answer::Renewed(_) => self.look_at(state, name, self.now()),
                Answer::Lost => {
                    let (claim, certainty, ttl) = (queue.claim.clone(), queue.certainty, queue.ttl);
                    if certainty == Certainty::Unsure {
                        self.withdraw(state, &claim, certainty, ttl, Why::Withdraw);
                    }
                    self.next_claim(state, effects, name);
                }
                Answer::Unknown(error) => {
                    self.counters.renewal_errors.add();
                    if error.kind() != ErrorKind::Unavailable {
                        queue.certainty = Certainty::Unsure;
                    }
                    self.failed(state, name, error);
                }
            }
        });
    }

    /// The store says that a place became a lease. It does not say when, so the validity counts from the newest
    /// confirmation of this very place; without a live one the place is renewed first.
    pub(super) fn on_pushed_grant(
        self: &Arc<Self>,
        owner: OwnerToken,
        place: Place,
        token: FencingToken,
        own: Option<Confirmation>,
    ) {
        let overtaken = self.with_state(|state, effects| {
            let name = match state.owners.get(&owner) {
                Some(Standing::Waiting(name)) => name.clone(),
                Some(Standing::Holding(_)) => return true,
                None => return false,
            };
            let now = self.now();
            let Some(queue) = state.queues.get_mut(&name) else { return false };
            if place < queue.place {
                return false;
            }
            if place > queue.place {
                queue.place = place;
                queue.confirmation = None;
            }
            let confirmation = own.or(queue.confirmation).filter(|newest| newest.place == place);
            match confirmation {
                Some(newest) if validity_end(&newest, self.margin_percent) > now => {
                    self.granted(state, effects, &name, Grant::new(token, newest));
                }
                _ => Self::look_now(state, &name, now),
            }
            false
        });
        if overtaken {
            self.on_grant_while_held(owner, place, own);
        }
    }

    /// The store says that the place is gone.
    pub(super) fn on_place_gone(&self, state: &mut State, effects: &mut Effects, name: &LockName) {
        let Some(queue) = state.queues.get_mut(name) else { return };
        if let Stage::Calling(_) = queue.stage {
            queue.look_again = true;
            return;
        }
        let (claim, certainty, ttl) = (queue.claim.clone(), queue.certainty, queue.ttl);
        self.withdraw(state, &claim, certainty, ttl, Why::Withdraw);
        self.next_claim(state, effects, name);
    }

    /// It is worth another look at one lock, or at all.
    pub(super) fn look_again(self: &Arc<Self>, name: Option<&LockName>) {
        self.with_state(|state, _| {
            let now = self.now();
            match name {
                Some(name) => Self::look_now(state, name, now),
                None => {
                    let names: Vec<_> = state.queues.keys().cloned().collect();
                    for name in names {
                        Self::look_now(state, &name, now);
                    }
                }
            }
        });
    }

    fn look_now(state: &mut State, name: &LockName, now: Stamp) {
        let Some(queue) = state.queues.get_mut(name) else { return };
        match (queue.stage, queue.task) {
            (Stage::Standing(None) | Stage::Looking, Some(id)) => state.schedule.at(id, now),
            _ => queue.look_again = true,
        }
    }
}

impl Queue {
    fn new(claim: Claim, ttl: Duration, now: Stamp) -> Self {
        Self {
            waiters: VecDeque::new(),
            claim,
            ttl,
            stage: Stage::Calling(now),
            task: None,
            first_sent: now,
            confirmation: None,
            place: 0,
            certainty: Certainty::Sure,
            failures: 0,
            trouble: None,
            heard: false,
            look_again: false,
        }
    }

    /// Adds a taker: to the waiter with the same holder, or at the end.
    fn join(&mut self, terms: Terms, wish: IfHeld, taker: (u64, oneshot::Sender<Result<Hold>>)) -> Result<()> {
        let same = |waiter: &&mut Waiter| terms.holder.is_some() && waiter.terms.holder == terms.holder;
        match self.waiters.iter_mut().find(same) {
            Some(waiter) => {
                waiter.terms.agree(&terms)?;
                waiter.takers.push(taker);
            }
            None => self.waiters.push_back(Waiter { terms, wish, takers: vec![taker] }),
        }
        Ok(())
    }

    fn answered(&mut self) {
        self.heard = true;
        self.failures = 0;
        self.trouble = None;
        self.look_again = false;
    }

    /// The ttl that the claim was sent with: of its place, if it has one.
    fn asked_ttl(&self, max_place_ttl: &Duration) -> Duration {
        if self.confirmation.is_some() { self.ttl.min(*max_place_ttl) } else { self.ttl }
    }
}
