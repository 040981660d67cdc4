//! The local queue: all acquires of one client for one lock, first come, first served.
//!
//! One claim stands for them at the store. Whoever is at the front when it is granted gets the lease; the next one draws
//! a claim of its own. The last to leave takes the claim back.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use super::attempt::Attempt;
use super::hold::Hold;
use super::schedule::TaskId;
use super::withdraw::{Ending, Why};
use super::{Effects, LeaseKeeper, Life, Standing, State, Task};
use crate::backend::{AcquireRequest, Certainty, Confirmation, OnContention, PlaceNumber, WatchGuard};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Terms;
use crate::name::LockName;
use crate::token::FencingToken;

/// The acquires of one client for one lock, and the claim that stands for them. Exists while somebody waits.
pub(super) struct Queue {
    pub(super) waiters: VecDeque<Waiter>,
    /// The next acquire, or the one that is under way.
    pub(super) request: AcquireRequest,
    pub(super) stage: Stage,
    pub(super) task: Option<TaskId>,
    pub(super) first_sent: Stamp,
    /// The newest confirmation of the place with the highest number that was heard of.
    pub(super) confirmation: Option<Confirmation>,
    pub(super) place: PlaceNumber,
    /// The token of a grant of that place, which was told without a confirmation.
    pub(super) pushed: Option<FencingToken>,
    pub(super) certainty: Certainty,
    /// Until then an acquire without an answer may have taken effect: of this claim, or of an earlier one of the queue.
    pub(super) unknown_until: Stamp,
    /// The store may have a place or a lease of the claim, going by what was answered.
    pub(super) at_store: bool,
    pub(super) failures: u32,
    /// What is in the way of an answer; none when the last call was answered.
    pub(super) trouble: Option<Error>,
    /// When the newest request was sent that the store has answered since somebody began to wait.
    pub(super) answered: Option<Stamp>,
    /// An event came while a call was under way: look once more when it has ended.
    pub(super) look_again: bool,
    /// The backend reports when the lock may be free.
    pub(super) watch: Option<WatchGuard>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// An acquire is under way since then.
    Calling(Stamp),
    /// The claim has a place, and maybe a renewal under way.
    Standing(Option<Stamp>),
    /// The next acquire waits for its due time.
    Looking,
}

/// One place in the local queue. Acquires with the same holder share one.
pub(super) struct Waiter {
    pub(super) terms: Terms,
    pub(super) takers: Vec<Taker>,
}

/// One acquire.
pub(super) struct Taker {
    id: u64,
    pub(super) on_contention: OnContention,
    /// The store has to answer a request that is sent then or later: else nothing is known of the lock when the wait ends.
    confirm_after: Stamp,
    pub(super) outcome: oneshot::Sender<Result<Hold>>,
}

impl Waiter {
    /// A place, as soon as one of the acquires wants to wait.
    pub(super) fn on_contention(&self) -> OnContention {
        let waits = self.takers.iter().any(|taker| taker.on_contention == OnContention::Queue);
        if waits { OnContention::Queue } else { OnContention::Fail }
    }
}

/// How an acquire begins.
pub(crate) enum Entry<'a> {
    /// The holder holds it already: its lease is shared.
    Shared(Hold),
    /// In the queue. The first in a queue makes the first attempt itself, on its own runtime.
    Queued(Ticket<'a>, Option<Attempt>),
    /// Others of this client wait, and this one does not want to.
    Refused,
}

/// A taker's place in the local queue; leaves it when dropped.
pub(crate) struct Ticket<'a> {
    keeper: &'a Arc<LeaseKeeper>,
    name: &'a LockName,
    taker: u64,
    outcome: oneshot::Receiver<Result<Hold>>,
    /// The outcome was taken, and whoever gets one is out of the queue.
    left: bool,
}

impl Ticket<'_> {
    /// The outcome, once. Nothing when the sender is gone.
    pub(crate) fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Hold>>> {
        let outcome = Pin::new(&mut self.outcome).poll(cx).map(|received| received.ok());
        self.left = matches!(outcome, Poll::Ready(Some(_)));
        outcome
    }

    /// Leaves the queue because the wait is over, with the reason why there is no lease.
    pub(crate) fn time_is_up(mut self) -> Result<Hold> {
        match self.leave() {
            Some(error) => Err(error),
            // Not in the queue any more: the outcome was on its way.
            None => self.outcome.try_recv().unwrap_or_else(|_| Err(no_answer())),
        }
    }

    fn leave(&mut self) -> Option<Error> {
        if std::mem::replace(&mut self.left, true) {
            return None;
        }
        self.keeper.with_state(|state, _| self.keeper.leave(state, self.name, self.taker))
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Queue {
    pub(super) fn new(request: AcquireRequest, now: Stamp) -> Self {
        Self {
            waiters: VecDeque::new(),
            request,
            stage: Stage::Calling(now),
            task: None,
            first_sent: now,
            confirmation: None,
            place: PlaceNumber::NONE,
            pushed: None,
            certainty: Certainty::Sure,
            unknown_until: Stamp::ZERO,
            at_store: false,
            failures: 0,
            trouble: None,
            answered: None,
            look_again: false,
            watch: None,
        }
    }

    /// Adds a taker: to the waiter with the same holder, or at the end.
    pub(super) fn join(&mut self, terms: Terms, taker: Taker) -> Result<()> {
        let same = |waiter: &&mut Waiter| terms.holder.is_some() && waiter.terms.holder == terms.holder;
        match self.waiters.iter_mut().find(same) {
            Some(waiter) => {
                waiter.terms.agree(&terms)?;
                waiter.takers.push(taker);
            }
            None => self.waiters.push_back(Waiter { terms, takers: vec![taker] }),
        }
        Ok(())
    }

    /// Takes note of an answer to a request that was sent at `sent`.
    pub(super) fn answer(&mut self, sent: Stamp) {
        self.answered = self.answered.max(Some(sent));
        self.failures = 0;
        self.trouble = None;
    }

    /// An acquire of the claim has no answer.
    pub(super) fn doubt(&mut self, now: Stamp) {
        self.certainty = Certainty::Unsure;
        self.unknown_until = now.plus(self.request.ttl);
    }

    /// What was known of a place with a lower number is worth nothing.
    pub(super) fn hear_of(&mut self, place: PlaceNumber) {
        if place > self.place {
            self.place = place;
            self.confirmation = None;
            self.pushed = None;
        }
    }

    /// Takes a confirmation, unless it is about a place that is gone or older than what is known.
    pub(super) fn confirm(&mut self, confirmation: Confirmation) {
        self.hear_of(confirmation.place);
        if confirmation.place == self.place && self.confirmation.is_none_or(|newest| newest.sent < confirmation.sent) {
            self.confirmation = Some(confirmation);
        }
    }

    /// When the request was sent from whose answer the state of the lock is known: of the place, where there is one.
    fn newest_answer(&self) -> Option<Stamp> {
        self.confirmation.map_or(self.answered, |newest| Some(newest.sent))
    }

    /// When the store has to be asked for those whose wait ends soon.
    pub(super) fn confirmation_due(&self) -> Option<Stamp> {
        let newest = self.newest_answer()?;
        let takers = self.waiters.iter().flat_map(|waiter| &waiter.takers);
        takers.map(|taker| taker.confirm_after).filter(|after| *after > newest).min()
    }

    /// A call that is under way has no answer either.
    pub(super) fn certainty_now(&self) -> Certainty {
        match self.stage {
            Stage::Calling(_) | Stage::Standing(Some(_)) => Certainty::Unsure,
            Stage::Standing(None) | Stage::Looking => self.certainty,
        }
    }

    /// The ttl that the claim was sent with: of its place, if it has one.
    pub(super) fn asked_ttl(&self, max_place_ttl: &Duration) -> Duration {
        if self.confirmation.is_some() { self.request.ttl.min(*max_place_ttl) } else { self.request.ttl }
    }
}

pub(super) fn no_answer() -> Error {
    Error::new(ErrorKind::Indeterminate, "the store has not answered within the wait")
}

pub(super) fn held_by_another() -> Error {
    Error::new(ErrorKind::Timeout, "another had it for the whole wait")
}

impl LeaseKeeper {
    /// Whether the front wants something else than the claim: who drew it only tried or wanted another lease, and has left.
    pub(super) fn is_outdated(&self, queue: &Queue) -> bool {
        let other = queue.waiters.front().is_some_and(|front| self.is_for_another_lease(queue, &front.terms));
        queue.request.on_contention == OnContention::Fail || other
    }

    /// Whether the claim cannot become a lease with these terms.
    pub(super) fn is_for_another_lease(&self, queue: &Queue, terms: &Terms) -> bool {
        let AcquireRequest { mode, ttl, kind, .. } = queue.request;
        mode != terms.mode || self.capabilities.has_sessions() && (ttl, kind) != (terms.ttl, terms.kind)
    }

    /// Begins an acquire.
    pub(crate) fn enter<'a>(
        self: &'a Arc<Self>,
        name: &'a LockName,
        terms: Terms,
        on_contention: OnContention,
        wait: Duration,
    ) -> Result<Entry<'a>> {
        self.with_state(|state, _| {
            if state.life != Life::Open {
                return Err(Error::new(ErrorKind::Unavailable, "the client is shut down"));
            }
            if let Some(hold) = self.shared_hold(state, name, &terms)? {
                return Ok(Entry::Shared(hold));
            }
            let id = state.next_waiter;
            let (sender, outcome) = oneshot::channel();
            let now = self.now();
            let confirm_after = now.plus(wait.saturating_sub(self.call_bound()));
            let taker = Taker { id, on_contention, confirm_after, outcome: sender };
            if let Some(queue) = state.queues.get_mut(name) {
                if on_contention == OnContention::Fail {
                    return Ok(Entry::Refused);
                }
                queue.join(terms, taker)?;
                if let (Some(id), Stage::Standing(None) | Stage::Looking) = (queue.task, queue.stage) {
                    state.schedule.at_the_latest(id, confirm_after);
                }
                // From now on somebody depends on a first attempt whose future may never be polled again.
                if let (None, Stage::Calling(since)) = (queue.task, queue.stage) {
                    let task = state.schedule.insert(Task::Queue(name.clone()));
                    queue.task = Some(task);
                    state.schedule.at(task, since.plus(self.call_bound()));
                }
                return Ok(Entry::Queued(self.ticket(state, name, id, outcome), None));
            }
            let request = self.draw_claim(name, &terms, on_contention);
            state.owners.insert(*request.claim.owner(), Standing::Waiting(name.clone()));
            let mut queue = Queue::new(request.clone(), now);
            queue.waiters.push_back(Waiter { terms, takers: vec![taker] });
            state.queues.insert(name.clone(), queue);
            let first = Attempt { request, certainty: Certainty::Sure };
            Ok(Entry::Queued(self.ticket(state, name, id, outcome), Some(first)))
        })
    }

    fn ticket<'a>(
        self: &'a Arc<Self>,
        state: &mut State,
        name: &'a LockName,
        taker: u64,
        outcome: oneshot::Receiver<Result<Hold>>,
    ) -> Ticket<'a> {
        state.next_waiter += 1;
        Ticket { keeper: self, name, taker, outcome, left: false }
    }

    /// Takes a taker out of the local queue. Says why it has no lease, if it still waited.
    pub(super) fn leave(&self, state: &mut State, name: &LockName, taker: u64) -> Option<Error> {
        let queue = state.queues.get_mut(name)?;
        let is_taker = |waiter: &Waiter| waiter.takers.iter().position(|it| it.id == taker);
        let (index, at) =
            queue.waiters.iter().enumerate().find_map(|(index, waiter)| Some((index, is_taker(waiter)?)))?;
        let confirm_after = queue.waiters[index].takers[at].confirm_after;
        let in_doubt = queue.certainty == Certainty::Unsure || queue.at_store || self.now() < queue.unknown_until;
        // A place may have become a lease since, and whoever held the lock may have released it.
        let is_known = queue.newest_answer().is_some_and(|newest| newest >= confirm_after);
        let why = match &queue.trouble {
            Some(trouble) if in_doubt => trouble.clone().with_kind(ErrorKind::Indeterminate),
            Some(trouble) => trouble.clone(),
            None if is_known => held_by_another(),
            None => no_answer(),
        };
        let waiter = &mut queue.waiters[index];
        waiter.takers.remove(at);
        if waiter.takers.is_empty() {
            queue.waiters.remove(index);
        }
        if queue.waiters.is_empty() {
            self.disband(state, name);
        } else if let (true, Some(id), Stage::Standing(None) | Stage::Looking) =
            (self.is_outdated(queue), queue.task, queue.stage)
        {
            state.schedule.at_the_latest(id, self.now());
        }
        Some(why)
    }

    /// Nobody waits any more: takes the claim back.
    pub(super) fn disband(&self, state: &mut State, name: &LockName) {
        let Some(queue) = state.queues.get(name) else { return };
        state.owners.remove(queue.request.claim.owner());
        self.take_back(state, name);
        if let Some(queue) = state.queues.remove(name) {
            state.drop_queue(queue);
        }
    }

    /// Takes the queue's claim back, where the store may have anything of it. What a first acquire under way leaves at the store
    /// is seen from its answer. It may have none, as on a runtime that is not driven any more: the claim is withdrawn then.
    pub(super) fn take_back(&self, state: &mut State, name: &LockName) {
        let Some(queue) = state.queues.get(name) else { return };
        let (claim, certainty, ttl) = (queue.request.claim.clone(), queue.certainty_now(), queue.request.ttl);
        if queue.at_store || queue.certainty == Certainty::Unsure {
            self.withdraw(state, &claim, certainty, ttl);
        } else if let Stage::Calling(since) = queue.stage {
            let ending = Ending { claim, certainty, ttl, run_out: None };
            self.end_when_overdue(state, ending, Why::Withdraw, since.plus(self.call_bound()));
        }
    }

    /// The same for everybody, with an error for each.
    pub(super) fn disband_all(&self, state: &mut State, effects: &mut Effects, error: &Error) {
        for name in state.queued_names() {
            self.fail_all(state, effects, &name, error);
        }
    }

    pub(super) fn fail_all(&self, state: &mut State, effects: &mut Effects, name: &LockName, error: &Error) {
        if let Some(queue) = state.queues.get_mut(name) {
            for taker in queue.waiters.drain(..).flat_map(|waiter| waiter.takers) {
                effects.deliveries.push((taker.outcome, Err(error.clone())));
            }
            self.disband(state, name);
        }
    }
}

impl State {
    /// The store has confirmed something.
    pub(super) fn confirmed(&mut self, sent: Stamp) {
        self.last_confirmed = self.last_confirmed.max(sent);
    }

    /// Nobody waits in this queue any more.
    pub(super) fn drop_queue(&mut self, queue: Queue) {
        if let Some(id) = queue.task {
            self.schedule.remove(id);
        }
        self.unwatched.extend(queue.watch);
    }

    /// Always in the same order, so that a simulation can be replayed.
    pub(super) fn queued_names(&self) -> Vec<LockName> {
        let mut names: Vec<_> = self.queues.keys().cloned().collect();
        names.sort_unstable();
        names
    }
}
