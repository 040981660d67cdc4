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
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const REPLIES: [Option<HoldReply>; 7] = [
        None,
        Some(HoldReply::Renewed),
        Some(HoldReply::PutBack),
        Some(HoldReply::Free),
        Some(HoldReply::Lost),
        Some(HoldReply::Joined),
        Some(HoldReply::NotJoined),
    ];

    fn replied(quorum: Quorum, replies: &[Option<HoldReply>]) -> RenewTally {
        let mut tally = RenewTally::new(quorum);
        for (server, reply) in replies.iter().enumerate() {
            if let Some(reply) = reply { tally.reply(server, *reply) } else { tally.no_reply(server) }
        }
        tally
    }

    fn expected(quorum: Quorum, replies: &[Option<HoldReply>]) -> RenewOutcome {
        let count = |wanted: &[HoldReply]| replies.iter().flatten().filter(|reply| wanted.contains(reply)).count();
        if count(&[HoldReply::Renewed, HoldReply::PutBack]) >= quorum.majority() {
            RenewOutcome::Renewed
        } else if count(&[HoldReply::Free, HoldReply::Lost, HoldReply::NotJoined]) >= quorum.overlap() {
            RenewOutcome::Lost
        } else {
            RenewOutcome::Unknown
        }
    }

    /// Checks a renewal with these replies and all that may follow. Returns what may come of it.
    fn explore(quorum: Quorum, replies: &mut Vec<Option<HoldReply>>) -> HashSet<String> {
        let mut outcomes = HashSet::new();
        if replies.len() == quorum.servers() {
            outcomes.insert(format!("{:?}", expected(quorum, replies)));
        } else {
            for reply in REPLIES {
                replies.push(reply);
                outcomes.extend(explore(quorum, replies));
                replies.pop();
            }
        }
        let mut tally = replied(quorum, replies);
        let decided = tally.outcome().map(|outcome| format!("{outcome:?}"));
        let certain = (outcomes.len() == 1).then(|| outcomes.iter().next().unwrap().clone());
        assert_eq!(decided, certain, "{replies:?}");
        tally.end();
        assert!(tally.outcome().is_some(), "{replies:?}");
        outcomes
    }

    #[test]
    fn it_decides_as_soon_as_the_outcome_is_certain() {
        for servers in [3, 4, 5] {
            assert_eq!(explore(Quorum::new(servers).unwrap(), &mut Vec::new()).len(), 3);
        }
    }

    #[test]
    fn a_late_reply_counts_and_the_end_does_not_change_a_reply() {
        let mut tally = RenewTally::new(Quorum::new(3).unwrap());
        tally.reply(0, HoldReply::Renewed);
        tally.no_reply(1);
        tally.end();
        assert_eq!(tally.outcome(), Some(RenewOutcome::Unknown));
        tally.reply(1, HoldReply::Renewed);
        assert_eq!(tally.outcome(), Some(RenewOutcome::Renewed));
    }
}
