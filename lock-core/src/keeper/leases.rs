//! Leases that are held: their begin, renewal and loss.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use super::disposal::{Ending, Why};
use super::report::Report;
use super::schedule::TaskId;
use super::wait_queue::Start;

use super::{LeaseKeeper, Standing, State, Task};
use crate::backend::{Answer, Certainty, Claim, Confirmation, LeaseKind, PlaceNumber, RenewRequest};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind};
use crate::lease::{Lease, period, validity_end};
use crate::sync::lock;
use crate::token::OwnerToken;

/// What the keeper knows of a lease besides the lease itself.
pub(super) struct LeaseTask {
    pub(super) lease: Arc<Lease>,
    /// A renewal was sent then and is not answered.
    flight: Option<Stamp>,
    failures: u32,
    /// The ttl of the last confirmation: it sets the pace of the next renewal and of what follows when that fails.
    confirmed: Duration,
    /// It began as a place some time ago, or was asked for with a shorter ttl, and is yet to be renewed to its own ttl.
    top_up: bool,
    /// Its holder has released it within its `min_hold`. The store cannot let a single lease of a session expire, so it is renewed until
    /// then, and released.
    pub(super) held_over: Option<Stamp>,
}

/// How long after the grant a lease that came out of a queue is renewed to its own ttl: a shorter hold never pays for it.
const TOP_UP_DELAY: Duration = Duration::from_millis(100);

/// When a lease with this confirmation is renewed next: never, once it is fixed and has its own ttl, or lasts until `max_hold`.
fn next_renewal(now: Stamp, lease: &Lease, top_up: bool, confirmation: &Confirmation) -> Option<Stamp> {
    let regular = confirmation.sent.plus(period(confirmation.ttl.min(lease.terms.ttl)));
    match lease.terms.kind {
        _ if !lease.can_be_prolonged(now) => None,
        _ if top_up => Some(regular.min(now.plus(TOP_UP_DELAY))),
        LeaseKind::Kept => Some(regular),
        LeaseKind::Fixed => None,
    }
}

impl LeaseKeeper {
    /// Begins a lease: from here on it is renewed.
    pub(super) fn start_lease(&self, state: &mut State, claim: Claim, start: Start) -> Arc<Lease> {
        let Start { grant, terms, asked, certainty, waited } = start;
        let (now, confirmation) = (self.now(), grant.confirmation);
        let lease = Arc::new(Lease::new(
            claim,
            &grant,
            (terms, asked.max(terms.ttl)),
            now,
            certainty,
            self.rules.margin_percent,
        ));
        let valid_until = validity_end(&confirmation, self.rules.margin_percent).min(lease.max_hold_ends());
        let used_up = waited && now.since(confirmation.sent) > TOP_UP_DELAY;
        let top_up = used_up || confirmation.ttl < terms.ttl;
        let confirmed = confirmation.ttl.min(terms.ttl);
        let task = LeaseTask { lease: lease.clone(), flight: None, failures: 0, confirmed, top_up, held_over: None };
        state.confirmed(confirmation.sent);
        let id = state.schedule.insert(Task::Lease(task));
        let due = next_renewal(now, &lease, top_up, &confirmation);
        state.schedule.at(id, due.map_or(valid_until, |due| due.min(valid_until)));
        state.owners.insert(*lease.claim.owner(), Standing::Holding(id));
        if let Some(holder) = terms.holder {
            state.reentrant.insert((lease.claim.name().clone(), holder), lease.clone());
        }
        self.counters.granted.add();
        self.counters.held.add();
        let granted = || Report::Granted { token: lease.token, validity: valid_until.since(now) };
        state.reports.debug(lease.claim.name(), granted);
        lease
    }

    pub(super) fn lease_task<'s>(state: &'s mut State, lease: &Arc<Lease>) -> Option<(TaskId, &'s mut LeaseTask)> {
        let Some(&Standing::Holding(id)) = state.owners.get(lease.claim.owner()) else { return None };
        match state.schedule.get_mut(id) {
            Some(Task::Lease(task)) if Arc::ptr_eq(&task.lease, lease) => Some((id, task)),
            _ => None,
        }
    }

    /// Renewal stops for good. Whether a renewal is under way, which has no answer then.
    pub(super) fn forget(state: &mut State, lease: &Arc<Lease>) -> Certainty {
        let mut certainty = Certainty::Sure;
        if let Some((id, task)) = Self::lease_task(state, lease) {
            if task.flight.is_some() {
                certainty = Certainty::Unsure;
                lease.unsure();
            }
            state.schedule.remove(id);
            state.owners.remove(lease.claim.owner());
        }
        if let Some(holder) = lease.terms.holder {
            let key = (lease.claim.name().clone(), holder);
            if state.reentrant.get(&key).is_some_and(|kept| Arc::ptr_eq(kept, lease)) {
                state.reentrant.remove(&key);
            }
        }
        certainty
    }

    /// The clock says that a lease is lost. The store keeps it where other leases keep its session alive.
    fn let_go(&self, state: &mut State, lease: &Arc<Lease>) {
        if self.rules.sessions && lease.terms.kind == LeaseKind::Kept {
            self.end_with_session(state, lease, Why::Withdraw);
        } else {
            Self::forget(state, lease);
        }
    }

    /// Ends a lease at the store, unless that has begun.
    pub(super) fn end_with_session(&self, state: &mut State, lease: &Arc<Lease>, why: Why) {
        let is_known = Self::lease_task(state, lease).is_some();
        let certainty = lease.certainty().and(Self::forget(state, lease));
        if is_known {
            self.end(state, &lease.claim, Ending::now(certainty, lease.claim_ttl), why);
        }
    }

    /// The store says that a lease is gone.
    fn gone(self: &Arc<Self>, lease: &Arc<Lease>) {
        self.with_state(|state, _| {
            let lost = self.lose(&mut state.reports, lease);
            Self::forget(state, lease);
            if lost == Some(Certainty::Unsure) {
                // A late copy of its acquire may still take the lock.
                self.withdraw(state, &lease.claim, Certainty::Unsure, lease.claim_ttl);
            }
        });
    }

    /// A lease's task is due: a renewal to send, or something that is done here.
    pub(super) fn lease_due(&self, state: &mut State, id: TaskId, at: Stamp) -> Option<(Arc<Lease>, RenewRequest)> {
        let Some(Task::Lease(task)) = state.schedule.get_mut(id) else { return None };
        let (lease, held_over) = (task.lease.clone(), task.held_over);
        let valid_until = match (held_over, self.look(&mut state.reports, &lease)) {
            (Some(until), _) if until <= self.now() => {
                self.end_with_session(state, &lease, Why::Release);
                return None;
            }
            (Some(until), _) | (None, Ok(until)) => until,
            (None, Err(_)) => {
                self.let_go(state, &lease);
                return None;
            }
        };
        let now = self.now();
        let renewed = task.top_up || held_over.is_some() || lease.terms.kind == LeaseKind::Kept;
        let bound = self.call_bound().min(period(task.confirmed));
        let next = match task.flight {
            Some(sent) if now < sent.plus(bound) => sent.plus(bound),
            Some(_) => {
                task.flight = None;
                task.failures += 1;
                lease.unsure();
                self.counters.renewal_errors.add();
                let failures = task.failures;
                state.reports.warn(lease.claim.name(), Report::RenewalUnanswered { failures });
                now.plus(self.backoff(period(task.confirmed), failures))
            }
            None if renewed && lease.can_be_prolonged(now) => {
                task.flight = Some(now);
                let ttl = if self.rules.sessions { lease.terms.ttl } else { lease.ttl_to_ask(now, self.rules.min_ttl) };
                let renewal = RenewRequest::new(lease.claim.clone(), lease.place, ttl);
                self.counters.renewal_lag(now.since(at));
                state.schedule.at(id, now.plus(bound).min(valid_until));
                return Some((lease, renewal));
            }
            None => valid_until,
        };
        state.schedule.at(id, next.min(valid_until));
        None
    }

    /// Whether a lease's renewal may go along with others that are due now: a few percent early saves a call.
    pub(super) fn may_go_along(state: &mut State, id: TaskId, early: Duration) -> bool {
        match state.schedule.get_mut(id) {
            // A short hold must not pay for a top-up because others are renewed just then.
            Some(Task::Lease(task)) => task.flight.is_none() && !task.top_up && early <= period(task.confirmed) / 32,
            _ => false,
        }
    }

    /// Takes the answer to the renewal of a lease.
    pub(super) fn on_lease_answer(self: &Arc<Self>, lease: &Arc<Lease>, answer: Answer) {
        match answer {
            Answer::Renewed(confirmation) => self.confirmed(lease, confirmation),
            Answer::Granted(grant) if grant.token == lease.token => self.confirmed(lease, grant.confirmation),
            Answer::Unknown(error) => {
                self.counters.renewal_errors.add();
                if error.kind() != ErrorKind::Unavailable {
                    lease.unsure();
                }
                self.renewal_failed(lease, Some(&error));
            }
            Answer::Granted(_) | Answer::Waiting { .. } | Answer::Free | Answer::Lost => self.gone(lease),
        }
    }

    fn renewal_failed(self: &Arc<Self>, lease: &Arc<Lease>, error: Option<&Error>) {
        let now = self.now();
        self.with_state(|state, _| {
            let Some((id, task)) = Self::lease_task(state, lease) else { return };
            task.flight = None;
            task.failures += 1;
            let (failures, held_over) = (task.failures, task.held_over);
            let next = now.plus(self.backoff(period(task.confirmed), failures));
            if let Some(error) = error {
                state.reports.warn(lease.claim.name(), Report::RenewalFailed { error: error.clone(), failures });
            }
            match held_over.map_or_else(|| self.look(&mut state.reports, lease), Ok) {
                Ok(valid_until) => state.schedule.at(id, next.min(valid_until)),
                Err(_) => self.let_go(state, lease),
            }
        });
    }

    fn confirmed(self: &Arc<Self>, lease: &Arc<Lease>, confirmation: Confirmation) {
        if confirmation.place < lease.place {
            // About a place that is gone.
            return self.renewal_failed(lease, None);
        }
        if confirmation.place > lease.place {
            return self.gone(lease);
        }
        self.with_state(|state, _| {
            state.confirmed(confirmation.sent);
            let held_over = Self::lease_task(state, lease).and_then(|(_, task)| task.held_over);
            let prolonged = || self.prolong(&mut state.reports, lease, &confirmation);
            let Ok(valid_until) = held_over.map_or_else(prolonged, Ok) else {
                return self.let_go(state, lease);
            };
            let Some((id, task)) = Self::lease_task(state, lease) else { return };
            task.flight = None;
            task.failures = 0;
            task.top_up = false;
            task.confirmed = confirmation.ttl.min(lease.terms.ttl);
            self.counters.renewed.add();
            let due = next_renewal(self.now(), lease, false, &confirmation);
            state.schedule.at(id, due.map_or(valid_until, |due| due.min(valid_until)));
        });
    }

    /// The answer to a renewal of a place that has become a lease meanwhile. What it confirms counts for the lease.
    pub(super) fn on_overtaken_answer(self: &Arc<Self>, owner: &OwnerToken, asked: PlaceNumber, answer: Answer) {
        let Some(lease) = self.held_by(owner) else { return };
        let confirmation = match answer {
            Answer::Waiting { confirmation, .. } | Answer::Renewed(confirmation) => confirmation,
            Answer::Granted(grant) if grant.token == lease.token => grant.confirmation,
            Answer::Granted(grant) if grant.confirmation.place < lease.place => return,
            Answer::Lost | Answer::Free if asked < lease.place => return,
            Answer::Granted(_) | Answer::Lost | Answer::Free => return self.gone(&lease),
            Answer::Unknown(error) => {
                self.counters.renewal_errors.add();
                if error.kind() != ErrorKind::Unavailable {
                    lease.unsure();
                }
                return;
            }
        };
        self.counters.renewed.add();
        match confirmation.place.cmp(&lease.place) {
            Ordering::Less => {}
            Ordering::Greater => self.gone(&lease),
            Ordering::Equal => self.with_state(|state, _| {
                if self.prolong(&mut state.reports, &lease, &confirmation).is_err() {
                    self.let_go(state, &lease);
                }
            }),
        }
    }

    /// The store says that a claim which holds already became a lease at a place.
    pub(super) fn on_grant_while_held(
        self: &Arc<Self>,
        owner: OwnerToken,
        place: PlaceNumber,
        own: Option<Confirmation>,
    ) {
        let Some(lease) = self.held_by(&owner) else { return };
        match own {
            Some(confirmation) => self.confirmed(&lease, confirmation),
            // The own lease is gone, and a late copy of the claim made a new place.
            None if place > lease.place => self.gone(&lease),
            None => {}
        }
    }

    /// The store says that the lease or place of an owner is gone.
    pub(super) fn on_gone(self: &Arc<Self>, owner: OwnerToken) {
        if let Some(lease) = self.held_by(&owner) {
            return self.gone(&lease);
        }
        self.with_state(|state, effects| {
            if let Some(Standing::Waiting(name)) = state.owners.get(&owner) {
                let name = name.clone();
                self.feed(state, effects, &name, |queue, rules, now, out| queue.gone(rules, now, out));
            }
        });
    }

    fn held_by(&self, owner: &OwnerToken) -> Option<Arc<Lease>> {
        let mut state = lock(&self.state);
        let Some(&Standing::Holding(id)) = state.owners.get(owner) else { return None };
        match state.schedule.get_mut(id) {
            Some(Task::Lease(task)) => Some(task.lease.clone()),
            _ => None,
        }
    }
}
