//! Waiting: one state machine for all backends. What the store says about the claim that stands for a local queue,
//! and what is asked of it next.

use std::collections::hash_map;
use std::sync::Arc;
use std::time::Duration;

use super::attempt::Attempt;
use super::hold::Hold;
use super::leases::Start;
use super::queue::{Queue, Stage, Waiter, no_answer};
use super::{Effects, LeaseKeeper, Standing, State, Task};
use crate::backend::{Answer, Certainty, Claim, Confirmation, Grant, OnContention, PlaceNumber, RenewRequest};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind};
use crate::lease::{period, validity_end};
use crate::name::LockName;
use crate::token::{FencingToken, OwnerToken};

impl LeaseKeeper {
    /// The front gets the lease, and the next in the queue draws a claim of its own.
    pub(super) fn granted(self: &Arc<Self>, state: &mut State, effects: &mut Effects, name: &LockName, grant: Grant) {
        let now = self.now();
        let Some(queue) = state.queues.get_mut(name) else { return };
        if grant.confirmation.place < queue.place {
            // An answer about a place that is gone.
            return self.look_at(state, name, now);
        }
        let Some(front) = queue.waiters.front() else { return };
        let too_long = queue.asked_ttl(&self.capabilities.max_place_ttl) > front.terms.ttl;
        let other_lease = self.is_for_another_lease(queue, &front.terms);
        if too_long || other_lease || validity_end(&grant.confirmation, self.margin_percent) <= now {
            // Too late to be of use, or inherited from an acquire of another lease or with a longer ttl, which nobody could shorten.
            queue.at_store = true;
            self.take_back(state, name);
            return self.next_claim(state, effects, name);
        }
        let Some(Waiter { terms, takers, .. }) = queue.waiters.pop_front() else { return };
        let start = Start {
            claim: queue.request.claim.clone(),
            asked: queue.request.ttl,
            certainty: queue.certainty_now(),
            waited: queue.confirmation.is_some(),
        };
        queue.answer(grant.confirmation.sent);
        let lease = self.start_lease(state, start, grant, terms);
        for taker in takers {
            effects.deliveries.push((taker.outcome, Ok(Hold::new(self, &lease))));
        }
        self.next_claim(state, effects, name);
    }

    /// Whoever only tries, at the front, does not want to wait. Whether the front consisted of such: then the claim goes back.
    pub(super) fn refuse_tries(&self, state: &mut State, effects: &mut Effects, name: &LockName, error: Error) -> bool {
        let Some(queue) = state.queues.get_mut(name) else { return false };
        let Some(front) = queue.waiters.front_mut() else { return false };
        for taker in front.takers.extract_if(.., |taker| taker.on_contention == OnContention::Fail) {
            effects.deliveries.push((taker.outcome, Err(error.clone())));
        }
        if !front.takers.is_empty() {
            return false;
        }
        queue.waiters.pop_front();
        if queue.waiters.is_empty() {
            self.disband(state, name);
        } else {
            self.take_back(state, name);
            self.next_claim(state, effects, name);
        }
        true
    }

    /// Draws a claim for those who still wait, and sends it.
    fn next_claim(&self, state: &mut State, effects: &mut Effects, name: &LockName) {
        if let Some(attempt) = self.draw_next(state, name) {
            effects.attempts.push(attempt);
        }
    }

    /// Draws a claim for those who still wait. The former one is not the queue's any more; without a waiter the
    /// queue ends.
    fn draw_next(&self, state: &mut State, name: &LockName) -> Option<Attempt> {
        let hash_map::Entry::Occupied(mut entry) = state.queues.entry(name.clone()) else { return None };
        let owner = entry.get().request.claim.owner();
        if let Some(Standing::Waiting(_)) = state.owners.get(owner) {
            state.owners.remove(owner);
        }
        let front = entry.get().waiters.front().map(|front| (front.terms, front.on_contention()));
        let Some((terms, on_contention)) = front else {
            let queue = entry.remove();
            state.drop_queue(queue);
            return None;
        };
        let (now, queue) = (self.now(), entry.get_mut());
        let request = self.draw_claim(name, &terms, on_contention);
        state.owners.insert(*request.claim.owner(), Standing::Waiting(name.clone()));
        let old = std::mem::replace(queue, Queue::new(request.clone(), now));
        queue.waiters = old.waiters;
        queue.answered = old.answered;
        queue.task = old.task;
        state.unwatched.extend(old.watch);
        queue.unknown_until = old.unknown_until;
        self.due(state, name, now.plus(self.call_bound()));
        Some(Attempt { request, certainty: Certainty::Sure })
    }

    /// The claim has a place that the store confirmed.
    pub(super) fn stands(
        self: &Arc<Self>,
        state: &mut State,
        effects: &mut Effects,
        name: &LockName,
        confirmation: Confirmation,
        look_in: Duration,
    ) {
        state.confirmed(confirmation.sent);
        let now = self.now();
        let Some(queue) = state.queues.get_mut(name) else { return };
        let again = std::mem::take(&mut queue.look_again);
        queue.answer(confirmation.sent);
        queue.stage = Stage::Standing(None);
        queue.at_store = true;
        queue.confirm(confirmation);
        let (confirmation_due, is_outdated) = (queue.confirmation_due(), self.is_outdated(queue));
        if self.join_push(state, effects, name) {
            return;
        }
        let renewal = confirmation.sent.plus(period(confirmation.ttl));
        let look = now.plus(look_in.saturating_add(self.entropy.jitter(Duration::from_millis(2))));
        let next = renewal.min(look).min(confirmation_due.unwrap_or(renewal));
        self.due(state, name, if again || is_outdated { now } else { next });
    }

    /// A grant that was pushed and a live confirmation of its very place are a lease together.
    fn join_push(self: &Arc<Self>, state: &mut State, effects: &mut Effects, name: &LockName) -> bool {
        let Some(queue) = state.queues.get(name) else { return false };
        let (Some(token), Some(newest)) = (queue.pushed, queue.confirmation) else { return false };
        if matches!(queue.stage, Stage::Calling(_)) || validity_end(&newest, self.margin_percent) <= self.now() {
            return false;
        }
        self.granted(state, effects, name, Grant::new(token, newest));
        true
    }

    /// A call failed, or its outcome is unknown.
    pub(super) fn failed(&self, state: &mut State, name: &LockName, error: Error) {
        let now = self.now();
        let Some(queue) = state.queues.get_mut(name) else { return };
        queue.failures += 1;
        queue.trouble = Some(error);
        let pause = self.backoff(super::withdraw::PATIENCE.min(period(queue.request.ttl)), queue.failures);
        if now.since(queue.first_sent) >= queue.request.ttl && !matches!(queue.stage, Stage::Standing(_)) {
            // The first request may have been applied a whole ttl ago: nothing that is heard of this claim now is news.
            let trouble = queue.trouble.take();
            self.take_back(state, name);
            self.draw_next(state, name);
            if let Some(queue) = state.queues.get_mut(name) {
                queue.stage = Stage::Looking;
                queue.trouble = trouble;
            }
        }
        self.due(state, name, now.plus(pause));
    }

    /// The next acquire of the same claim is due at `at`.
    pub(super) fn look_at(&self, state: &mut State, name: &LockName, at: Stamp) {
        if let Some(queue) = state.queues.get_mut(name) {
            queue.stage = Stage::Looking;
            let at = at.min(queue.confirmation_due().unwrap_or(at));
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
    ) -> Option<RenewRequest> {
        let bound = self.call_bound();
        let queue = state.queues.get_mut(name)?;
        match queue.stage {
            Stage::Calling(since) if now < since.plus(bound) => self.due(state, name, since.plus(bound)),
            Stage::Calling(_) => {
                queue.doubt(now);
                self.take_back(state, name);
                self.next_claim(state, effects, name);
                if let Some(queue) = state.queues.get_mut(name) {
                    queue.trouble = Some(no_answer());
                }
            }
            Stage::Looking | Stage::Standing(None) if self.is_outdated(queue) => {
                self.take_back(state, name);
                self.next_claim(state, effects, name);
            }
            Stage::Standing(flight) => {
                let place_ttl = queue
                    .confirmation
                    .map_or(queue.request.ttl.min(self.capabilities.max_place_ttl), |newest| newest.ttl);
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
                        let renewal = RenewRequest::new(queue.request.claim.clone(), queue.place, place_ttl);
                        self.due(state, name, now.plus(bound));
                        return Some(renewal);
                    }
                }
            }
            Stage::Looking => {
                queue.stage = Stage::Calling(now);
                let (request, certainty) = (queue.request.clone(), queue.certainty);
                effects.attempts.push(Attempt { request, certainty });
                self.due(state, name, now.plus(bound));
            }
        }
        None
    }

    /// Takes the answer to the renewal of a place.
    pub(super) fn on_place_answer(self: &Arc<Self>, claim: &Claim, place: PlaceNumber, answer: Answer) {
        let overtaken = self.with_state(|state, effects| {
            let name = claim.name();
            let Some(queue) = Self::queue_of(state, claim) else { return Some(answer) };
            if !matches!(queue.stage, Stage::Standing(_)) {
                return None;
            }
            queue.stage = Stage::Standing(None);
            match answer {
                Answer::Waiting { confirmation, look_in } => {
                    self.counters.renewed.add();
                    self.stands(state, effects, name, confirmation, look_in);
                }
                Answer::Granted(grant) => self.granted(state, effects, name, grant),
                // About a place that is gone since longer: the answer about the present one is asked for.
                Answer::Lost | Answer::Free if place < queue.place => self.due(state, name, self.now()),
                Answer::Free => {
                    queue.at_store = false;
                    self.look_at(state, name, self.now());
                }
                Answer::Renewed(_) => self.look_at(state, name, self.now()),
                Answer::Lost => {
                    queue.at_store = false;
                    self.take_back(state, name);
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
            None
        });
        if let Some(answer) = overtaken {
            self.on_overtaken_answer(claim.owner(), place, answer);
        }
    }

    /// The store says that a place became a lease. It does not say when, so the validity counts from the newest
    /// confirmation of this very place. Without a live one the answer that is under way is waited for, as that of the acquire
    /// which this message has overtaken, or the place is renewed first.
    pub(super) fn on_pushed_grant(
        self: &Arc<Self>,
        owner: OwnerToken,
        place: PlaceNumber,
        token: FencingToken,
        own: Option<Confirmation>,
    ) {
        let overtaken = self.with_state(|state, effects| {
            let name = match state.owners.get(&owner) {
                Some(Standing::Waiting(name)) => name.clone(),
                Some(Standing::Holding(_)) => return true,
                Some(&Standing::Ending(id)) => {
                    self.hurry(state, id);
                    return false;
                }
                None => return false,
            };
            let Some(queue) = state.queues.get_mut(&name) else { return false };
            if place < queue.place {
                return false;
            }
            queue.at_store = true;
            queue.hear_of(place);
            queue.pushed = Some(token);
            if let Some(own) = own.filter(|own| own.place == place) {
                queue.confirm(own);
            }
            if !self.join_push(state, effects, &name) {
                Self::look_now(state, &name, self.now());
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
        self.take_back(state, name);
        self.next_claim(state, effects, name);
    }

    /// It is worth another look at one lock, or at all.
    pub(super) fn look_again(self: &Arc<Self>, name: Option<&LockName>) {
        self.with_state(|state, _| {
            let now = self.now();
            match name {
                Some(name) => Self::look_now(state, name, now),
                None => {
                    for name in state.queued_names() {
                        Self::look_now(state, &name, now);
                    }
                }
            }
        });
    }

    /// The same for the queue for which this claim stands.
    pub(super) fn look_again_for(self: &Arc<Self>, owner: &OwnerToken) {
        self.with_state(|state, _| {
            if let Some(Standing::Waiting(name)) = state.owners.get(owner) {
                let name = name.clone();
                Self::look_now(state, &name, self.now());
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
