//! What the oracle knows about claims from the messages between clients and the store.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{AcquireOutcome, Claim, Delivery, OwnerToken, RenewPolicy, RenewRequest};
use leasehold_core::{FencingToken, LockName};

use super::super::process::Process;
use super::super::wire::CALL_BOUND;
use super::{Oracle, Rule, id};

/// What the oracle knows about a claim from these messages.
#[derive(Default)]
pub(super) struct ClaimBook {
    /// The process of the claim.
    pub(super) process: Option<Arc<Process>>,
    /// The name of the lock.
    pub(super) name: Option<LockName>,
    /// What its acquires ask for: the ttl of the lock, or a shorter `max_hold`.
    pub(super) ttl: Duration,
    /// The number of acquire calls, and how often the store has executed one.
    pub(super) sent: u32,
    pub(super) served: u32,
    /// Acquire calls without a clear reply.
    pub(super) open: u32,
    /// Renewals without a clear reply.
    pub(super) open_renewals: u32,
    /// Its releases, if there were any.
    pub(super) releases: Option<Releases>,
    /// The store has executed a release in doubt.
    pub(super) withdrawn: bool,
    /// The step at which a user got its guard.
    pub(super) granted: Option<u64>,
    /// The holder has ended it.
    pub(super) ended: Option<Duration>,
    pub(super) confirmations: u64,
    /// The client has received the reply that the lease is gone.
    pub(super) gone: Option<Duration>,
    /// When it was last in use: by a guard, an acquire or a renewal.
    pub(super) wanted: Duration,
    /// Its lease was shortened, so that it expires.
    pub(super) runs_out: bool,
}

/// The releases of a claim: the first and the last call.
pub(super) struct Releases {
    pub(super) first: Duration,
    pub(super) last: Duration,
    pub(super) in_doubt: bool,
    pub(super) answered: bool,
    pub(super) process: Arc<Process>,
}

impl Oracle {
    pub(crate) fn acquire_begins(&self, claim: &Claim, ttl: Duration, process: &Arc<Process>) {
        let now = self.now();
        let mut state = self.state();
        let name = claim.name();
        let claim = state.claims.entry(*claim.owner()).or_default();
        claim.name.get_or_insert_with(|| name.clone());
        claim.wanted = now;
        claim.sent += 1;
        claim.open += 1;
        claim.ttl = ttl;
        claim.process.get_or_insert_with(|| process.clone());
    }

    /// The client has received a clear reply to one acquire.
    pub(crate) fn acquire_answered(&self, owner: &OwnerToken) {
        let now = self.now();
        if let Some(claim) = self.state().claims.get_mut(owner) {
            claim.open -= 1;
            claim.wanted = now;
        }
    }

    /// The store has granted a lock.
    pub(crate) fn granted_by_store(&self, owner: &OwnerToken, token: FencingToken) {
        let mut state = self.state();
        if let Some(name) = state.claims.get(owner).and_then(|claim| claim.name.clone()) {
            state.owners.insert((name, token.get()), *owner);
        }
    }

    /// The store has executed an acquire.
    pub(crate) fn acquire_served(&self, owner: &OwnerToken, answer: &leasehold_core::Result<AcquireOutcome>) {
        if let Ok(AcquireOutcome::Granted(grant)) = answer {
            self.granted_by_store(owner, grant.token);
        }
        if let Some(claim) = self.state().claims.get_mut(owner) {
            claim.served += 1;
        }
        let withdrawn = self.state().claims.get(owner).is_some_and(|claim| claim.withdrawn);
        if withdrawn && let Ok(AcquireOutcome::Granted(_) | AcquireOutcome::Queued { .. }) = answer {
            self.broken(Rule::NothingLeft, "a late acquire of a withdrawn claim took effect");
        }
    }

    pub(crate) fn release_begins(&self, owner: &OwnerToken, delivery: Delivery, process: &Arc<Process>) {
        let now = self.now();
        let (open, withdraws) = {
            let mut state = self.state();
            let claim = state.claims.entry(*owner).or_default();
            let fresh =
                || Releases { first: now, last: now, in_doubt: false, answered: false, process: process.clone() };
            let releases = claim.releases.get_or_insert_with(fresh);
            releases.last = now;
            releases.in_doubt |= delivery == Delivery::InDoubt;
            (claim.open, releases.in_doubt)
        };
        // An acquire without a reply is withdrawn at once when its last waiter leaves, and its late reply makes the
        // client release it again. A release without doubt removes no tombstone, and `check_releases` checks that the
        // first withdrawal continues.
        self.check(open == 0 || withdraws, Rule::Delivery, || {
            format!("claim {:016x} is released as sure with {open} acquires unanswered", id(owner))
        });
    }

    pub(crate) fn release_answered(&self, owner: &OwnerToken) {
        if let Some(releases) = &mut self.state().claims.entry(*owner).or_default().releases {
            releases.answered = true;
        }
    }

    /// Checks that every release was repeated until it had a reply, or until the ttl had passed and the lease had
    /// expired in the store. Called when all repetitions must have ended.
    pub(crate) fn check_releases(&self) {
        let mut claims = std::mem::take(&mut self.state().claims);
        let mut given_back: Vec<_> =
            claims.iter().filter_map(|(owner, claim)| Some((owner, claim.ttl, claim.releases.as_ref()?))).collect();
        // Sorted, because a map has no order, and a seed must reproduce its run exactly.
        given_back.sort_unstable_by_key(|(owner, _, releases)| (releases.first, id(owner)));
        for (owner, ttl, Releases { first, last, answered, process, .. }) in given_back {
            // The ttl passes earlier on a fast clock, and the last call may have taken its whole bound without a reply,
            // with a pause after it.
            let long = *last + CALL_BOUND * 2 >= *first + ttl * 9 / 10;
            self.check(*answered || long || process.was_paused_since(*first), Rule::Delivery, || {
                format!("claim {:016x} is given back unanswered from {first:?} to {last:?} only", id(owner))
            });
        }
        // Otherwise a late copy of the request takes the lock, or extends the lease, when nothing uses it any more.
        let mut doubtful: Vec<_> = claims.iter().filter(|(_, claim)| claim.open + claim.open_renewals > 0).collect();
        doubtful.sort_unstable_by_key(|(owner, _)| id(owner));
        for (owner, claim) in doubtful {
            let in_doubt = claim.releases.as_ref().is_some_and(|releases| releases.in_doubt);
            // A pause may last longer than the rest of the shortened lease.
            let paused = claim.ended.zip(claim.process.as_ref()).is_some_and(|(at, it)| it.was_paused_since(at));
            self.check(in_doubt || paused, Rule::Delivery, || {
                let (acquires, renewals) = (claim.open, claim.open_renewals);
                format!("claim {:016x} ends with {acquires} acquires and {renewals} renewals unanswered", id(owner))
            });
        }
        claims.retain(|_, claim| claim.releases.is_none());
        self.state().claims = claims;
    }

    pub(crate) fn release_served(&self, owner: &OwnerToken, delivery: Delivery) {
        if delivery == Delivery::InDoubt {
            self.state().claims.entry(*owner).or_default().withdrawn = true;
        }
    }

    /// The client has received a clear reply to one renewal.
    pub(crate) fn renewal_answered(&self, owner: &OwnerToken) {
        if let Some(claim) = self.state().claims.get_mut(owner) {
            claim.open_renewals -= 1;
        }
    }

    pub(crate) fn renewal_begins(&self, lease: &RenewRequest) {
        let now = self.now();
        {
            let mut state = self.state();
            let claim = state.claims.entry(*lease.claim.owner()).or_default();
            claim.open_renewals += 1;
            claim.wanted = now;
            claim.runs_out |= lease.policy == RenewPolicy::Exactly;
        }
        let ended = self.state().claims.get(lease.claim.owner()).and_then(|claim| claim.ended);
        // A renewal that was sent at the same instant is no violation.
        if let Some(ended) = ended.filter(|ended| *ended < now && lease.policy == RenewPolicy::AtLeast) {
            let owner = id(lease.claim.owner());
            self.broken(Rule::Silence, format!("claim {owner:016x} is renewed after it ended at {ended:?}"));
        }
    }

    pub(crate) fn confirmed(&self, owner: &OwnerToken) {
        self.state().claims.entry(*owner).or_default().confirmations += 1;
    }

    /// The client has received the reply that a claim is gone, to a renewal that it sent at that step.
    pub(crate) fn reported_gone(&self, owner: &OwnerToken, sent: u64) {
        let now = self.now();
        let mut state = self.state();
        let claim = state.claims.entry(*owner).or_default();
        // The store may execute the renewal of a place after it has pushed the grant and the lease has ended again.
        // That reply is about a place, so the client ignores it. The client learns the loss from the lease's own
        // renewal, or the validity ends before.
        if claim.granted.is_some_and(|granted| granted < sent) {
            claim.gone.get_or_insert(now);
        }
    }

    pub(crate) fn confirmations(&self, owner: &OwnerToken) -> u64 {
        self.state().claims.get(owner).map_or(0, |claim| claim.confirmations)
    }

    pub(crate) fn gone_since(&self, owner: &OwnerToken) -> Option<Duration> {
        self.state().claims.get(owner).and_then(|claim| claim.gone)
    }
}
