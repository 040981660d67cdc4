//! What a client knows of a claim on the servers of a quorum.

use std::sync::Mutex;

use leasehold_core::backend::kit::lock;
use leasehold_core::backend::kit::quorum::{HoldRequest, Quorum, RunId, Votes};
use leasehold_core::backend::{Claim, Stamp};

/// The name of an attempt at the servers: the owner token of its claim, with the number of the attempt.
pub(super) type Vote = [u8; 16];

/// The bookkeeping of one claim.
#[derive(Debug, Default)]
pub(super) struct Slot(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// How many attempts this claim has made.
    attempts: u32,
    /// The votes of the newest attempt; `None` before the first.
    votes: Option<Votes>,
    /// The token of the lease, once it was told.
    token: Option<u64>,
    /// The highest fence of the lock in any reply.
    fence: u64,
    /// The claim was withdrawn: a request that its caller still sends comes too late.
    is_withdrawn: bool,
}

/// The vote of a claim's attempt. Attempts are numbered from 1, so that a vote is never the owner token itself. It is no
/// secret, though: a client that may read a record can compute the token from it, and may end the lease anyway.
fn vote_of(claim: &Claim, attempt: u32) -> Vote {
    let mut vote = *claim.owner().as_bytes();
    for (byte, number) in vote[12..].iter_mut().zip(attempt.max(1).to_be_bytes()) {
        *byte ^= number;
    }
    vote
}

impl Slot {
    pub(super) fn of(claim: &Claim) -> &Self {
        claim.slot()
    }

    /// Begins another attempt, and returns its vote, how many came before, and the highest fence seen. `None` if the
    /// claim was withdrawn.
    pub(super) fn begin(&self, claim: &Claim, quorum: Quorum) -> Option<(Vote, u32, u64)> {
        let mut state = lock(&self.0);
        if state.is_withdrawn {
            return None;
        }
        state.attempts += 1;
        state.votes = Some(Votes::new(quorum));
        state.token = None;
        Some((vote_of(claim, state.attempts), state.attempts - 1, state.fence))
    }

    /// The vote of the newest attempt.
    pub(super) fn vote(&self, claim: &Claim) -> Vote {
        vote_of(claim, lock(&self.0).attempts)
    }

    /// The token of the lease, if the claim was told that it holds.
    pub(super) fn token(&self) -> Option<u64> {
        lock(&self.0).token
    }

    pub(super) fn told(&self, token: u64) {
        lock(&self.0).token = Some(token);
    }

    pub(super) fn see_fence(&self, fence: u64) {
        let mut state = lock(&self.0);
        state.fence = state.fence.max(fence);
    }

    /// The lease has ended.
    pub(super) fn forget_lease(&self) {
        lock(&self.0).token = None;
    }

    /// No later request of this claim is sent.
    pub(super) fn withdraw(&self) {
        lock(&self.0).is_withdrawn = true;
    }

    /// Whether the withdrawal of the newest vote from a server needs a tombstone: a request to it has no reply. A claim
    /// without bookkeeping may have requests on their way everywhere if it is `in_doubt`.
    pub(super) fn needs_tombstone(&self, server: usize, in_doubt: bool) -> bool {
        lock(&self.0).votes.as_ref().map_or(in_doubt, |votes| votes.needs_tombstone(server))
    }

    /// How the newest vote is renewed at a server.
    pub(super) fn hold_request(&self, server: usize, run: &RunId, now: Stamp) -> HoldRequest {
        let state = lock(&self.0);
        match &state.votes {
            // A renewal that was queued before the release must not vote again.
            Some(votes) if state.token.is_some() => votes.request(server, run, now),
            _ => HoldRequest::Renew { put_back: false },
        }
    }

    /// Changes the bookkeeping of a vote. A reply to an earlier attempt changes nothing.
    pub(super) fn change(&self, claim: &Claim, vote: &Vote, change: impl FnOnce(&mut Votes)) {
        let mut state = lock(&self.0);
        if vote_of(claim, state.attempts) == *vote
            && let Some(votes) = &mut state.votes
        {
            change(votes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_core::backend::OwnerToken;
    use leasehold_core::{HolderInfo, LockName};

    use super::*;

    fn claim() -> Claim {
        let holder = Arc::new(HolderInfo::of_this_process("").unwrap());
        Claim::new(LockName::new("job").unwrap(), OwnerToken::from_bytes([7; 16]), holder)
    }

    /// A renewal waits in a queue until its connection is free. What it asks is decided when it is sent: after the
    /// release, a join would give the lease back its vote.
    #[test]
    fn a_lease_that_was_released_joins_no_server() {
        let (claim, run) = (claim(), RunId::new("run"));
        let slot = Slot::of(&claim);
        let (vote, ..) = slot.begin(&claim, Quorum::new(3).unwrap()).unwrap();
        slot.told(7);
        slot.change(&claim, &vote, |votes| votes.missing(1));
        let requests = || [0, 1].map(|server| slot.hold_request(server, &run, Stamp::ZERO));
        let renew = HoldRequest::Renew { put_back: false };
        assert_eq!(requests(), [renew, HoldRequest::Join]);
        slot.forget_lease();
        assert_eq!(requests(), [renew, renew]);
    }

    #[test]
    fn each_attempt_has_a_vote_of_its_own() {
        let claim = claim();
        let (slot, quorum) = (Slot::of(&claim), Quorum::new(3).unwrap());
        // A withdrawal before the first attempt names the vote of that attempt.
        let early = slot.vote(&claim);
        let (first, ..) = slot.begin(&claim, quorum).unwrap();
        let (second, number, _) = slot.begin(&claim, quorum).unwrap();
        assert_eq!((early == first, first == second, number), (true, false, 1));
        assert!(first != *claim.owner().as_bytes() && slot.vote(&claim) == second);
        slot.change(&claim, &first, |votes| votes.sent(0));
        assert!(!slot.needs_tombstone(0, true), "the request of an earlier attempt");
        slot.change(&claim, &second, |votes| votes.sent(0));
        assert!(slot.needs_tombstone(0, false) && !slot.needs_tombstone(1, true));
        slot.withdraw();
        assert!(slot.begin(&claim, quorum).is_none());
    }

    #[test]
    fn a_renewal_that_is_sent_after_the_release_does_not_vote_again() {
        let holder = Arc::new(HolderInfo::of_this_process("").unwrap());
        let claim = Claim::new(LockName::new("job").unwrap(), OwnerToken::from_bytes([7; 16]), holder);
        let (slot, run) = (Slot::of(&claim), RunId::new("run"));
        let (vote, ..) = slot.begin(&claim, Quorum::new(3).unwrap()).unwrap();
        slot.told(5);
        slot.change(&claim, &vote, |votes| votes.missing(0));
        assert_eq!(slot.hold_request(0, &run, Stamp::ZERO), HoldRequest::Join);
        slot.forget_lease();
        assert_eq!(slot.hold_request(0, &run, Stamp::ZERO), HoldRequest::Renew { put_back: false });
    }
}
