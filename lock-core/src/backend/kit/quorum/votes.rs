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
