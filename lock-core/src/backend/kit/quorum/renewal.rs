//! Counts the replies to one renewal of a lease.

use super::{Quorum, Request};

/// A server's reply to a renewal or a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a backend makes every reply")]
pub enum HoldReply {
    /// The vote is renewed: `r`.
    Renewed,
    /// The vote is back on a server that was restarted without its data, and does not vote for anybody else yet: `p`.
    PutBack,
    /// The server has no vote for anybody: `f`.
    Free,
    /// The server votes for another claim: `l`, to a renewal.
    Lost,
    /// The server votes for the lease again: `j`.
    Joined,
    /// The server votes for another claim, or does not vote yet: `l`, to a join.
    NotJoined,
}

impl HoldReply {
    /// The server certainly does not vote for the lease.
    pub(super) fn is_lost(self) -> bool {
        matches!(self, Self::Free | Self::Lost | Self::NotJoined)
    }
}

/// What a renewal has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a backend handles every outcome")]
pub enum RenewOutcome {
    /// A majority has renewed its votes. The confirmation counts from before the first request was sent.
    Renewed,
    /// So many servers do not vote for the lease that no majority does.
    Lost,
    /// Neither is certain. The lease stays valid for as long as it was before.
    Unknown,
}

/// The replies to one renewal of one lease.
///
/// The majority is one of *all* servers. With a majority of those that answer, two holders could each renew on one side
/// of a network that has split.
#[derive(Clone, Debug)]
pub struct RenewTally {
    quorum: Quorum,
    replies: Vec<Request<HoldReply>>,
}

impl RenewTally {
    /// A renewal whose requests go to all servers.
    pub fn new(quorum: Quorum) -> Self {
        Self { quorum, replies: vec![Request::Open; quorum.servers()] }
    }

    /// The server's reply. It may follow [`no_reply`](Self::no_reply).
    pub fn reply(&mut self, server: usize, reply: HoldReply) {
        self.replies[server] = Request::Answered(reply);
    }

    /// The server does not reply in time, or was not asked.
    pub fn no_reply(&mut self, server: usize) {
        self.replies[server].end(Request::NoReply);
    }

    /// The bound of the call is over: no reply from all that have not replied.
    pub fn end(&mut self) {
        (0..self.replies.len()).for_each(|server| self.no_reply(server));
    }

    /// The outcome, as soon as it is certain.
    pub fn outcome(&self) -> Option<RenewOutcome> {
        let (mut open, mut confirmed, mut lost) = (0, 0, 0);
        for reply in &self.replies {
            match reply {
                Request::Open => open += 1,
                Request::Answered(HoldReply::Renewed | HoldReply::PutBack) => confirmed += 1,
                Request::Answered(reply) if reply.is_lost() => lost += 1,
                // A vote that was missing until now was in no majority that this lease had.
                Request::Answered(_) | Request::NoReply | Request::NotSent => {}
            }
        }
        let (majority, overlap) = (self.quorum.majority(), self.quorum.overlap());
        if confirmed >= majority {
            return Some(RenewOutcome::Renewed);
        }
        if lost >= overlap {
            return Some(RenewOutcome::Lost);
        }
        (confirmed + open < majority && lost + open < overlap).then_some(RenewOutcome::Unknown)
    }

    /// The servers that certainly do not vote for the lease: the next renewal joins them.
    pub fn to_join(&self) -> impl Iterator<Item = usize> {
        let is_lost = |&server: &usize| matches!(self.replies[server], Request::Answered(reply) if reply.is_lost());
        (0..self.replies.len()).filter(is_lost)
    }
}
