//! Held leases: passes inputs to each [`HeldLease`], and carries out its outputs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::lease::Lease;
use super::machines::held_lease::{HeldLease, LeaseNote, LeaseOutput};
use super::machines::outputs::Outputs;
use super::machines::rules::Rules;
use super::machines::wait_queue::Start;
use super::report::Report;
use super::run::Target;
use super::schedule::TaskId;
use super::{Effects, LeaseKeeper, OwnerState, State, Task};
use crate::backend::{Claim, Confirmation, PlaceNumber, RenewReply, RenewRequest};
use crate::clock::Stamp;
use crate::sync::lock;
use crate::token::OwnerToken;

impl LeaseKeeper {
    /// Begins a lease, which the keeper renews from here on.
    pub(super) fn start_lease(&self, state: &mut State, claim: Claim, start: &Start) -> Arc<Lease> {
        let now = self.now();
        let (machine, wake, valid_until) = HeldLease::new(&self.rules, start, now);
        let (token, confirmation) = (start.grant.token, start.grant.confirmation);
        state.note_confirmation(confirmation.sent);
        let lease = Arc::new(Lease { claim, token, machine: Mutex::new(machine), ended: Notify::new() });
        let id = state.schedule.insert(Task::Lease(lease.clone()));
        self.wake_at(state, id, wake);
        state.owners.insert(*lease.claim.owner(), OwnerState::Holding(id));
        if let Some(holder) = start.terms.holder {
            state.reentrant.insert((lease.claim.name().clone(), holder), lease.clone());
        }
        self.counters.granted.add();
        self.counters.held.add();
        let granted = || Report::Granted { token, validity: valid_until.since(now) };
        state.reports.push_debug(lease.claim.name(), granted);
        lease
    }

    /// Passes an input to a lease, and carries out its outputs.
    pub(super) fn feed_lease<T>(
        self: &Arc<Self>,
        state: &mut State,
        effects: &mut Effects,
        lease: &Arc<Lease>,
        input: impl FnOnce(&mut HeldLease, &Rules, Stamp, &mut Outputs<LeaseOutput>) -> T,
    ) -> T {
        let mut outputs = std::mem::take(&mut state.lease_outputs);
        let done = {
            let mut machine = lock(&lease.machine);
            input(&mut machine, &self.rules, self.now(), &mut outputs)
        };
        for output in outputs.drain() {
            self.carry_out_for(state, effects, lease, output);
        }
        state.lease_outputs = outputs;
        done
    }

    fn carry_out_for(&self, state: &mut State, effects: &mut Effects, lease: &Arc<Lease>, output: LeaseOutput) {
        let claim = &lease.claim;
        match output {
            LeaseOutput::Renew { place, ttl } => {
                effects.renewals.push((Target::Lease(lease.clone()), RenewRequest::new(claim.clone(), place, ttl)));
            }
            LeaseOutput::Wake(wake) => {
                if let Some(id) = state.lease_task(claim) {
                    self.wake_at(state, id, wake);
                }
            }
            LeaseOutput::WakeBy(at) => {
                if let Some(id) = state.lease_task(claim) {
                    state.schedule.set_due_by(id, at);
                }
            }
            LeaseOutput::Released => {
                self.counters.held.sub();
                lease.ended.notify_waiters();
            }
            LeaseOutput::Lost(loss) => self.note_loss(&mut state.reports, lease, loss),
            LeaseOutput::Unschedule => {
                if let Some(id) = state.lease_task(claim) {
                    state.schedule.remove(id);
                    state.owners.remove(claim.owner());
                }
                state.forget_reentrant(lease);
            }
            LeaseOutput::End(ending) => self.end(state, claim, ending),
            LeaseOutput::Note(note) => self.note_of(state, claim, note),
        }
    }

    fn note_of(&self, state: &mut State, claim: &Claim, note: LeaseNote) {
        match note {
            LeaseNote::Confirmed(sent) => state.note_confirmation(sent),
            LeaseNote::Renewed => self.counters.renewed.add(),
            LeaseNote::RenewalError => self.counters.renewal_errors.add(),
            LeaseNote::RenewalFailed { error, failures } => {
                state.reports.push(claim.name(), Report::RenewalFailed { error, failures });
            }
            LeaseNote::RenewalUnanswered { failures } => {
                self.counters.renewal_errors.add();
                state.reports.push(claim.name(), Report::RenewalUnanswered { failures });
            }
        }
    }

    /// A lease's task is due.
    pub(super) fn lease_due(self: &Arc<Self>, state: &mut State, effects: &mut Effects, id: TaskId, at: Stamp) {
        let Some(Task::Lease(lease)) = state.schedule.get_mut(id) else { return };
        let (lease, before) = (lease.clone(), effects.renewals.len());
        let sent = self.feed_lease(state, effects, &lease, |lease, rules, now, out| {
            lease.handle_timeout(rules, now, out);
            now
        });
        if effects.renewals.len() > before {
            self.counters.renewal_lag(sent.since(at));
        }
    }

    /// Whether a lease may be renewed now, a few percent early, in a batch that goes out anyway. That saves a call.
    pub(super) fn may_go_along(state: &mut State, id: TaskId, early: Duration) -> bool {
        match state.schedule.get_mut(id) {
            Some(Task::Lease(lease)) => lock(&lease.machine).may_go_along(early),
            _ => false,
        }
    }

    /// Takes the reply to the renewal of a lease.
    pub(super) fn on_lease_answer(self: &Arc<Self>, lease: &Arc<Lease>, answer: RenewReply) {
        self.with_state(|state, effects| {
            self.feed_lease(state, effects, lease, |lease, rules, now, out| {
                lease.handle_renewal_reply(rules, answer, now, out)
            });
        });
    }

    /// The reply to a renewal of a place that has become a lease since.
    pub(super) fn on_overtaken_answer(
        self: &Arc<Self>,
        state: &mut State,
        effects: &mut Effects,
        owner: &OwnerToken,
        (asked, answer): (PlaceNumber, RenewReply),
    ) {
        let Some(lease) = state.held_by(owner) else { return };
        self.feed_lease(state, effects, &lease, |lease, rules, now, out| {
            lease.handle_place_reply(rules, asked, answer, now, out);
        });
    }

    /// The store reports a grant of a claim that holds a lease already.
    pub(super) fn on_grant_while_held(
        self: &Arc<Self>,
        state: &mut State,
        effects: &mut Effects,
        owner: &OwnerToken,
        (place, own): (PlaceNumber, Option<Confirmation>),
    ) {
        let Some(lease) = state.held_by(owner) else { return };
        self.feed_lease(state, effects, &lease, |lease, rules, now, out| {
            lease.handle_pushed_grant(rules, place, own, now, out);
        });
    }

    /// The store reports that the lease or place of an owner is gone.
    pub(super) fn on_gone(self: &Arc<Self>, owner: &OwnerToken) {
        self.with_state(|state, effects| {
            if let Some(lease) = state.held_by(owner) {
                self.feed_lease(state, effects, &lease, |lease, _, now, out| lease.handle_gone(now, out));
            } else if let Some(OwnerState::Waiting(name)) = state.owners.get(owner) {
                let name = name.clone();
                self.feed(state, effects, &name, |queue, rules, now, out| queue.handle_gone(rules, now, out));
            }
        });
    }

    /// Ends every lease, because the client is shut down.
    pub(super) fn close_leases(self: &Arc<Self>, state: &mut State, effects: &mut Effects) {
        let leases: Vec<_> = state
            .schedule
            .iter()
            .filter_map(|task| match task {
                Task::Lease(lease) => Some(lease.clone()),
                Task::Queue(_) | Task::Dispose(..) => None,
            })
            .collect();
        for lease in leases {
            self.feed_lease(state, effects, &lease, |lease, rules, now, out| lease.close(rules, now, out));
        }
    }
}

impl State {
    fn lease_task(&self, claim: &Claim) -> Option<TaskId> {
        match self.owners.get(claim.owner()) {
            Some(&OwnerState::Holding(id)) => Some(id),
            _ => None,
        }
    }

    fn forget_reentrant(&mut self, lease: &Arc<Lease>) {
        let Some(holder) = lock(&lease.machine).terms().holder else { return };
        let key = (lease.claim.name().clone(), holder);
        if self.reentrant.get(&key).is_some_and(|kept| Arc::ptr_eq(kept, lease)) {
            self.reentrant.remove(&key);
        }
    }

    pub(super) fn held_by(&mut self, owner: &OwnerToken) -> Option<Arc<Lease>> {
        let Some(&OwnerState::Holding(id)) = self.owners.get(owner) else { return None };
        match self.schedule.get_mut(id) {
            Some(Task::Lease(lease)) => Some(lease.clone()),
            _ => None,
        }
    }
}
