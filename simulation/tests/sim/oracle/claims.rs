//! What the oracle knows of claims: from what the line carries.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{AcquireOutcome, Claim, Delivery, OwnerToken, RenewPolicy, RenewRequest};
use leasehold_core::{FencingToken, LockName};

use super::super::process::Process;
use super::super::wire::CALL_BOUND;
use super::{Oracle, Rule, id};

/// What the oracle knows of a claim from the line.
#[derive(Default)]
pub(super) struct ClaimBook {
    /// Who claims.
    pub(super) process: Option<Arc<Process>>,
    /// And what.
    pub(super) name: Option<LockName>,
    /// What its acquires ask for: the ttl of the lock, or a shorter `max_hold`.
    pub(super) ttl: Duration,
    /// Acquire calls, and how often the store has worked on one.
    pub(super) sent: u32,
    pub(super) served: u32,
    /// Acquire calls without a clear reply.
    pub(super) open: u32,
    /// Renewals without a clear reply.
    pub(super) open_renewals: u32,
    /// It was given back, and how that went.
    pub(super) releases: Option<Releases>,
    /// The store has worked on a release in doubt.
    pub(super) withdrawn: bool,
    /// At this step a user had it in hands.
    pub(super) granted: Option<u64>,
    /// The holder has ended it.
    pub(super) ended: Option<Duration>,
    pub(super) confirmations: u64,
    /// The holder's client was told that it is gone.
    pub(super) gone: Option<Duration>,
    /// When somebody was last seen to want it: by a guard, an acquire or a renewal.
    pub(super) wanted: Duration,
    /// Its lease was shortened, to run out.
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

    /// The client has a clear reply to one acquire.
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

    /// The store has worked on an acquire.
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
        // An unanswered acquire is withdrawn at once when everybody leaves, and its own late reply takes it back a second
        // time. A release without doubt takes no tombstone away, and `check_releases` sees that the other continues.
        self.check(open == 0 || withdraws, Rule::Delivery, || {
            format!("claim {:016x} is released as sure with {open} acquires unanswered", id(owner))
        });
    }

    pub(crate) fn release_answered(&self, owner: &OwnerToken) {
        if let Some(releases) = &mut self.state().claims.entry(*owner).or_default().releases {
            releases.answered = true;
        }
    }

    /// Every release was repeated until it was answered, or until the ttl had passed and the store has ended by itself what it had
    /// granted. Called when this must have come to its end.
    pub(crate) fn check_releases(&self) {
        let mut claims = std::mem::take(&mut self.state().claims);
        let mut given_back: Vec<_> =
            claims.iter().filter_map(|(owner, claim)| Some((owner, claim.ttl, claim.releases.as_ref()?))).collect();
        // A map has no order, and a seed replays exactly.
        given_back.sort_unstable_by_key(|(owner, _, releases)| (releases.first, id(owner)));
        for (owner, ttl, Releases { first, last, answered, process, .. }) in given_back {
            // By a fast clock the ttl passes earlier, and the last call may have been unanswered for its whole bound and a pause after it.
            let long = *last + CALL_BOUND * 2 >= *first + ttl * 9 / 10;
            self.check(*answered || long || process.was_paused_since(*first), Rule::Delivery, || {
                format!("claim {:016x} is given back unanswered from {first:?} to {last:?} only", id(owner))
            });
        }
        // Else a late copy of the request takes the lock, or prolongs the lease, when nobody wants it any more.
        let mut doubtful: Vec<_> = claims.iter().filter(|(_, claim)| claim.open + claim.open_renewals > 0).collect();
        doubtful.sort_unstable_by_key(|(owner, _)| id(owner));
        for (owner, claim) in doubtful {
            let in_doubt = claim.releases.as_ref().is_some_and(|releases| releases.in_doubt);
            // A pause may outlast the time in which the lease was to run out.
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

    /// The client has a clear reply to one renewal.
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
        // What was on its way in that same instant is not held against anybody.
        if let Some(ended) = ended.filter(|ended| *ended < now && lease.policy == RenewPolicy::AtLeast) {
            let owner = id(lease.claim.owner());
            self.broken(Rule::Silence, format!("claim {owner:016x} is renewed after it ended at {ended:?}"));
        }
    }

    pub(crate) fn confirmed(&self, owner: &OwnerToken) {
        self.state().claims.entry(*owner).or_default().confirmations += 1;
    }

    /// The client has the reply that a claim is gone, to a renewal that it sent at that step.
    pub(crate) fn reported_gone(&self, owner: &OwnerToken, sent: u64) {
        let now = self.now();
        let mut state = self.state();
        let claim = state.claims.entry(*owner).or_default();
        // The renewal of a place may be worked on after the grant was pushed and the lease had ended again. Its reply is about
        // a place, and the client drops it; the lease's own renewal tells, or its validity ends before.
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
