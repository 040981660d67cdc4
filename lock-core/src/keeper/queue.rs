//! The local queues of a client, one [`WaitQueue`] for each lock that an acquire waits for: passes inputs to them, and
//! carries out their outputs.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use super::attempt::Attempt;
use super::guard::LockGuard;
use super::machines::outputs::{Outputs, Wake};
use super::machines::rules::Rules;
use super::machines::wait_queue::{AcquireId, Joining, QueueNote, QueueOutput, WaitQueue, no_reply};
use super::report::Report;
use super::run::Target;
use super::schedule::TaskId;
use super::{Effects, KeeperHandle, LeaseKeeper, OwnerState, State, Task};
use crate::backend::{Claim, Confirmation, Delivery, OnContention, PlaceNumber, RenewReply, RenewRequest, WatchGuard};
use crate::clock::Stamp;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::terms::Terms;
use crate::token::{FencingToken, OwnerToken};

/// The channel of an acquire's outcome.
pub(super) type OutcomeSender = oneshot::Sender<Result<LockGuard>>;

/// A local queue: its state machine, and what the keeper keeps for it.
pub(super) struct Queue {
    machine: WaitQueue<OutcomeSender>,
    /// Keeps the keeper running while acquires wait here. Each guard gets it with the lease.
    keeper: Arc<KeeperHandle>,
    /// The present claim of the queue.
    pub(super) claim: Claim,
    /// `None` until the queue needs a wake-up: an uncontended acquire needs none.
    task: Option<TaskId>,
    /// The backend reports when the lock may be free.
    pub(super) watch: Option<WatchGuard>,
}

/// How an acquire begins.
pub(crate) enum Entry<'a> {
    /// The holder holds the lock already. This is another guard of its lease.
    Shared(LockGuard),
    /// The acquire is in the queue. The first acquire in a queue makes the first attempt itself, on its own runtime.
    Queued(Ticket<'a>, Option<Attempt>),
    /// Other acquires of this client wait, and this one does not wait.
    Refused,
}

/// An acquire in a local queue. Dropping the ticket leaves the queue.
pub(crate) struct Ticket<'a> {
    keeper: &'a Arc<LeaseKeeper>,
    name: &'a LockName,
    acquire: AcquireId,
    outcome: oneshot::Receiver<Result<LockGuard>>,
    /// The acquire is not in the queue any more: it has left, or its outcome was taken.
    left: bool,
}

impl Ticket<'_> {
    /// The outcome, once. `None` if the sender is gone.
    pub(crate) fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<LockGuard>>> {
        let outcome = Pin::new(&mut self.outcome).poll(cx).map(|received| received.ok());
        self.left = matches!(outcome, Poll::Ready(Some(_)));
        outcome
    }

    /// Leaves the queue because the wait is over, with the reason why there is no lease.
    pub(crate) fn time_is_up(mut self) -> Result<LockGuard> {
        match self.leave() {
            Some(error) => Err(error),
            // Not in the queue any more: the outcome was already on its way.
            None => self.outcome.try_recv().unwrap_or_else(|_| Err(no_reply())),
        }
    }

    fn leave(&mut self) -> Option<Error> {
        if std::mem::replace(&mut self.left, true) {
            return None;
        }
        let (keeper, name, acquire) = (self.keeper, self.name, self.acquire);
        keeper.with_state(|state, effects| {
            keeper.feed(state, effects, name, |queue, rules, now, out| queue.leave(rules, acquire, now, out)).flatten()
        })
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl KeeperHandle {
    /// Begins an acquire.
    pub(crate) fn enter<'a>(
        self: &'a Arc<Self>,
        name: &'a LockName,
        terms: Terms,
        on_contention: OnContention,
        wait: Duration,
    ) -> Result<Entry<'a>> {
        self.with_state(|state, effects| {
            if state.is_shut {
                return Err(Error::shut_down());
            }
            if let Some(guard) = self.reenter(state, name, &terms)? {
                return Ok(Entry::Shared(guard));
            }
            let is_first = !state.queues.contains_key(name);
            if !is_first && on_contention == OnContention::Fail {
                return Ok(Entry::Refused);
            }
            let (to, outcome) = oneshot::channel();
            let (now, acquire) = (self.now(), state.next_waiter);
            let confirm_after = now.plus(wait.saturating_sub(self.rules.call_bound));
            let joining = Joining { acquire, terms, on_contention, confirm_after, to };
            let first = if is_first {
                let machine = WaitQueue::new(joining, now);
                let claim = self.draw_claim(state, name);
                let request = machine.request(claim.clone());
                let keeper = self.clone();
                state.queues.insert(name.clone(), Queue { machine, keeper, claim, task: None, watch: None });
                Some(Attempt { request, delivery: Delivery::Confirmed })
            } else {
                let join =
                    |queue: &mut WaitQueue<_>, rules: &Rules, _, out: &mut Outputs<_>| queue.join(rules, joining, out);
                self.feed(state, effects, name, join).transpose()?;
                None
            };
            state.next_waiter += 1;
            Ok(Entry::Queued(Ticket { keeper: self, name, acquire, outcome, left: false }, first))
        })
    }
}

impl LeaseKeeper {
    /// A new claim for a queue.
    fn draw_claim(&self, state: &mut State, name: &LockName) -> Claim {
        let claim = Claim::new(name.clone(), self.entropy.owner_token(), self.holder_info.clone());
        state.owners.insert(*claim.owner(), OwnerState::Waiting(name.clone()));
        claim
    }

    /// The queue whose present claim this is.
    pub(super) fn queue_of<'s>(state: &'s mut State, claim: &Claim) -> Option<&'s mut Queue> {
        state.queues.get_mut(claim.name()).filter(|queue| queue.claim.owner() == claim.owner())
    }

    /// Passes an input to a queue, and carries out its outputs.
    pub(super) fn feed<T>(
        self: &Arc<Self>,
        state: &mut State,
        effects: &mut Effects,
        name: &LockName,
        input: impl FnOnce(&mut WaitQueue<OutcomeSender>, &Rules, Stamp, &mut Outputs<QueueOutput<OutcomeSender>>) -> T,
    ) -> Option<T> {
        let queue = state.queues.get_mut(name)?;
        let mut outputs = std::mem::take(&mut state.outputs);
        let done = input(&mut queue.machine, &self.rules, self.now(), &mut outputs);
        for output in outputs.drain() {
            self.carry_out(state, effects, name, output);
        }
        state.outputs = outputs;
        Some(done)
    }

    fn carry_out(
        self: &Arc<Self>,
        state: &mut State,
        effects: &mut Effects,
        name: &LockName,
        output: QueueOutput<OutcomeSender>,
    ) {
        let Some(queue) = state.queues.get_mut(name) else { return };
        let claim = &queue.claim;
        match output {
            QueueOutput::NewClaim => {
                state.unwatched.extend(queue.watch.take());
                let old = *claim.owner();
                state.forget_waiting(&old);
                let claim = self.draw_claim(state, name);
                if let Some(queue) = state.queues.get_mut(name) {
                    queue.claim = claim;
                }
            }
            QueueOutput::Acquire { delivery } => {
                effects.attempts.push(Attempt { request: queue.machine.request(claim.clone()), delivery });
            }
            QueueOutput::Renew { place, ttl } => {
                let renewal = RenewRequest::new(claim.clone(), place, ttl);
                effects.renewals.push((Target::Place(claim.clone(), place), renewal));
            }
            QueueOutput::End(ending) => {
                let claim = claim.clone();
                self.end(state, &claim, ending);
            }
            QueueOutput::EndWhenOverdue(ending, overdue) => {
                let claim = claim.clone();
                self.end_when_overdue(state, &claim, ending, overdue);
            }
            QueueOutput::Granted { start, to } => {
                let (claim, keeper) = (claim.clone(), queue.keeper.clone());
                let lease = self.start_lease(state, claim, &start);
                let guard = || LockGuard::new(keeper.clone(), lease.clone());
                effects.deliveries.extend(to.into_iter().map(|to| (to, Ok(guard()))));
            }
            QueueOutput::Failed { to, error } => effects.deliveries.push((to, Err(error))),
            QueueOutput::Wake(wake) => self.wake_queue(state, name, wake),
            QueueOutput::WakeBy(at) => {
                if let Some(task) = queue.task {
                    state.schedule.set_due_by(task, at);
                }
            }
            QueueOutput::Watch => effects.watches.push(claim.clone()),
            QueueOutput::Note(note) => self.note(state, name, note),
            QueueOutput::Finished => {
                let owner = *claim.owner();
                state.forget_waiting(&owner);
                if let Some(queue) = state.queues.remove(name) {
                    if let Some(task) = queue.task {
                        state.schedule.remove(task);
                    }
                    state.unwatched.extend(queue.watch);
                }
            }
        }
    }

    fn wake_queue(&self, state: &mut State, name: &LockName, wake: Wake) {
        let Some(queue) = state.queues.get_mut(name) else { return };
        let task = *queue.task.get_or_insert_with(|| state.schedule.insert(Task::Queue(name.clone())));
        self.wake_at(state, task, wake);
    }

    fn note(&self, state: &mut State, name: &LockName, note: QueueNote) {
        match note {
            QueueNote::Queued(place) => {
                self.counters.queued.add();
                state.reports.push_debug(name, || Report::Queued { place });
            }
            QueueNote::AttemptFailed(error) => state.reports.push_debug(name, || Report::AttemptFailed { error }),
            QueueNote::Renewed => self.counters.renewed.add(),
            QueueNote::RenewalFailed => self.counters.renewal_errors.add(),
            QueueNote::Confirmed(sent) => state.note_confirmation(sent),
        }
    }

    /// Takes the reply to the renewal of a place.
    pub(super) fn on_place_answer(self: &Arc<Self>, claim: &Claim, place: PlaceNumber, answer: RenewReply) {
        self.with_state(|state, effects| {
            if Self::queue_of(state, claim).is_some() {
                self.feed(state, effects, claim.name(), |queue, rules, now, out| {
                    queue.handle_renewal_reply(rules, place, answer, now, out);
                });
            } else {
                self.on_overtaken_answer(state, effects, claim.owner(), (place, answer));
            }
        });
    }

    /// The store reports that a place became a lease.
    pub(super) fn on_pushed_grant(
        self: &Arc<Self>,
        owner: &OwnerToken,
        place: PlaceNumber,
        token: FencingToken,
        own: Option<Confirmation>,
    ) {
        self.with_state(|state, effects| match state.owners.get(owner) {
            Some(OwnerState::Waiting(name)) => {
                let name = name.clone();
                self.feed(state, effects, &name, |queue, rules, now, out| {
                    queue.handle_pushed_grant(rules, (place, token), own, now, out);
                });
            }
            Some(OwnerState::Holding(_)) => self.on_grant_while_held(state, effects, owner, (place, own)),
            Some(&OwnerState::Ending(id)) => self.expedite(state, id),
            None => {}
        });
    }

    /// The state of this lock may have changed, or of every lock.
    pub(super) fn on_change(self: &Arc<Self>, name: Option<&LockName>) {
        self.with_state(|state, effects| {
            let names = name.map_or_else(|| state.queued_names(), |name| vec![name.clone()]);
            for name in names {
                self.feed(state, effects, &name, |queue, _, now, out| queue.handle_change(now, out));
            }
        });
    }

    /// The state of the lock of this claim may have changed.
    pub(super) fn on_change_of(self: &Arc<Self>, owner: &OwnerToken) {
        self.with_state(|state, effects| {
            if let Some(OwnerState::Waiting(name)) = state.owners.get(owner) {
                let name = name.clone();
                self.feed(state, effects, &name, |queue, _, now, out| queue.handle_change(now, out));
            }
        });
    }

    /// Ends every queue. Every acquire that waits fails with this error.
    pub(super) fn close_queues(self: &Arc<Self>, state: &mut State, effects: &mut Effects, error: &Error) {
        for name in state.queued_names() {
            self.feed(state, effects, &name, |queue, rules, _, out| queue.close(rules, error, out));
        }
    }
}

impl Queue {
    /// How many acquires wait.
    pub(super) fn waiting(&self) -> usize {
        self.machine.waiting()
    }
}

impl State {
    /// The store has confirmed something.
    pub(super) fn note_confirmation(&mut self, sent: Stamp) {
        self.last_confirmed = self.last_confirmed.max(sent);
    }

    /// Forgets a claim that has left its queue, unless it is a lease or being ended by now.
    fn forget_waiting(&mut self, owner: &OwnerToken) {
        if let Some(OwnerState::Waiting(_)) = self.owners.get(owner) {
            self.owners.remove(owner);
        }
    }

    /// Always in the same order, so that a simulation can be replayed.
    fn queued_names(&self) -> Vec<LockName> {
        let mut names: Vec<_> = self.queues.keys().cloned().collect();
        names.sort_unstable();
        names
    }
}
