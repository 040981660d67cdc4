//! What the holder of a lease knows of its vote at each server.

use super::{HoldReply, Quorum, RunId};
use crate::clock::Stamp;

/// The votes of one lease, as its holder knows them. The backend keeps this with the claim.
///
/// A holder needs a majority of the votes, and should have all of them: with a bare majority, one server whose clock is
/// stepped or whose record is lost is enough for a second holder. So each renewal joins the servers that do not vote
/// for it.
#[derive(Clone, Debug)]
pub struct Votes {
    servers: Vec<Vote>,
}

#[derive(Clone, Debug, Default)]
struct Vote {
    /// The server does not vote for this lease, as its newest reply says.
    is_missing: bool,
    confirmed: Option<VoteConfirmation>,
    /// Requests without a reply.
    unanswered: u32,
}

/// A reply of a server that it votes for the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoteConfirmation {
    /// The run of the server.
    pub run: RunId,
    /// Just before the request was sent.
    pub sent: Stamp,
    /// `sent` plus the ttl less the margin: until then, the vote certainly lasts unless its server is restarted.
    pub until: Stamp,
}

/// What a server is asked when a lease is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a backend sends every request")]
pub enum HoldRequest {
    /// To renew the vote.
    Renew {
        /// Whether a server that was restarted without its data may take the vote back: it has confirmed the vote in an
        /// earlier run, and that confirmation has not ended.
        put_back: bool,
    },
    /// To vote for the lease from now on.
    Join,
}

impl Votes {
    /// No server has been asked yet.
    pub fn new(quorum: Quorum) -> Self {
        Self { servers: vec![Vote::default(); quorum.servers()] }
    }

    /// A request of the claim is sent to this server, other than a withdrawal.
    pub fn sent(&mut self, server: usize) {
        self.servers[server].unanswered += 1;
    }

    /// The server has replied to a request that was [`sent`](Self::sent).
    pub fn answered(&mut self, server: usize) {
        let unanswered = &mut self.servers[server].unanswered;
        *unanswered = unanswered.saturating_sub(1);
    }

    /// The server votes for this lease.
    pub fn confirmed(&mut self, server: usize, confirmation: VoteConfirmation) {
        let vote = &mut self.servers[server];
        vote.is_missing = false;
        // A reply that was overtaken says nothing new.
        if vote.confirmed.as_ref().is_none_or(|newest| newest.sent <= confirmation.sent) {
            vote.confirmed = Some(confirmation);
        }
    }

    /// The server does not vote for this lease.
    pub fn missing(&mut self, server: usize) {
        let vote = &mut self.servers[server];
        vote.is_missing = true;
        // Otherwise a holder could put back a vote that had ended before the restart.
        vote.confirmed = None;
    }

    /// Takes the reply to a [`request`](Self::request), and what it confirms if the server votes.
    pub fn reply(&mut self, server: usize, reply: HoldReply, confirmation: VoteConfirmation) {
        self.answered(server);
        if reply.is_lost() { self.missing(server) } else { self.confirmed(server, confirmation) }
    }

    /// What to ask a server whose connection is to this run, now. Only while the lease is valid.
    pub fn request(&self, server: usize, run: &RunId, now: Stamp) -> HoldRequest {
        let vote = &self.servers[server];
        if vote.is_missing {
            return HoldRequest::Join;
        }
        let may_be_put_back = |last: &VoteConfirmation| last.run != *run && now < last.until;
        HoldRequest::Renew { put_back: vote.confirmed.as_ref().is_some_and(may_be_put_back) }
    }

    /// Whether the withdrawal from this server must leave a tombstone, because a request may still be on its way.
    pub fn needs_tombstone(&self, server: usize) -> bool {
        self.servers[server].unanswered > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::kit::quorum::HoldReply;

    fn at(seconds: u64) -> Stamp {
        Stamp::from_start(std::time::Duration::from_secs(seconds))
    }

    fn confirmation(run: &str, sent: u64, until: u64) -> VoteConfirmation {
        VoteConfirmation { run: RunId::new(run), sent: at(sent), until: at(until) }
    }

    fn votes() -> Votes {
        Votes::new(Quorum::new(3).unwrap())
    }

    const RENEW: HoldRequest = HoldRequest::Renew { put_back: false };
    const PUT_BACK: HoldRequest = HoldRequest::Renew { put_back: true };

    #[test]
    fn a_vote_is_put_back_in_another_run_while_its_confirmation_lasts() {
        let mut votes = votes();
        let (one, two) = (RunId::new("one"), RunId::new("two"));
        assert_eq!(votes.request(0, &one, at(0)), RENEW);
        votes.confirmed(0, confirmation("one", 1, 10));
        assert_eq!([&one, &two].map(|run| votes.request(0, run, at(9))), [RENEW, PUT_BACK]);
        assert_eq!([&one, &two].map(|run| votes.request(0, run, at(10))), [RENEW, RENEW]);
        // Only on the server that confirmed it.
        assert_eq!(votes.request(1, &two, at(9)), RENEW);
        votes.sent(0);
        votes.reply(0, HoldReply::PutBack, confirmation("two", 9, 18));
        assert_eq!([&one, &two].map(|run| votes.request(0, run, at(17))), [PUT_BACK, RENEW]);
        // An overtaken reply changes nothing, and a later one may be for a shorter time.
        votes.confirmed(0, confirmation("one", 8, 30));
        assert_eq!(votes.request(0, &one, at(17)), PUT_BACK);
        votes.confirmed(0, confirmation("two", 9, 12));
        assert_eq!(votes.request(0, &one, at(12)), RENEW);
    }

    #[test]
    fn a_missing_vote_is_joined_and_never_put_back() {
        for reply in [HoldReply::Free, HoldReply::Lost, HoldReply::NotJoined] {
            let mut votes = votes();
            votes.confirmed(0, confirmation("one", 1, 10));
            votes.reply(0, reply, confirmation("one", 2, 11));
            assert_eq!(votes.request(0, &RunId::new("two"), at(3)), HoldRequest::Join);
            votes.reply(0, HoldReply::Joined, confirmation("two", 4, 13));
            assert_eq!(votes.request(0, &RunId::new("two"), at(5)), RENEW);
        }
        let mut votes = votes();
        votes.confirmed(0, confirmation("one", 1, 10));
        votes.missing(0);
        assert_eq!(votes.request(0, &RunId::new("two"), at(3)), HoldRequest::Join);
    }

    #[test]
    fn a_request_without_a_reply_needs_a_tombstone() {
        let mut votes = votes();
        assert!(!votes.needs_tombstone(1));
        votes.sent(1);
        votes.sent(1);
        votes.reply(1, HoldReply::Renewed, confirmation("one", 2, 11));
        assert!(votes.needs_tombstone(1) && !votes.needs_tombstone(0));
        votes.answered(1);
        assert!(!votes.needs_tombstone(1));
    }
}
