//! Counts the replies to the release of a lease.

use super::{Quorum, Request};
use crate::backend::ReleaseOutcome;
use crate::clock::Stamp;

/// A server's reply to the withdrawal of a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a backend makes every reply")]
pub enum WithdrawReply {
    /// The vote has ended: `1`.
    Ended,
    /// There was no such vote: `0`.
    None,
}

/// What a release has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a backend handles every decision")]
pub enum ReleaseDecision {
    /// Decide again after the next reply, and at this time.
    Wait {
        /// `None` if only a reply, or the bound of the call, changes the decision.
        until: Option<Stamp>,
    },
    /// The lease has ended. Requests that are still open continue in the background.
    Ended(ReleaseOutcome),
    /// Fewer than a majority have replied: the lease may last until its ttl is over.
    Unknown,
}

/// The replies to one release of one lease. The holder stops believing in the lease before it sends the first request.
#[derive(Clone, Debug)]
pub struct ReleaseTally {
    quorum: Quorum,
    sent: Stamp,
    replies: Vec<Request<WithdrawReply>>,
    /// When a majority had replied.
    replied_at: Option<Stamp>,
}

impl ReleaseTally {
    /// A release whose requests go to all servers, and whose first one was sent at `sent`.
    pub fn new(quorum: Quorum, sent: Stamp) -> Self {
        Self { quorum, sent, replies: vec![Request::Open; quorum.servers()], replied_at: None }
    }

    /// The server's reply, which arrived now. It may follow [`no_reply`](Self::no_reply).
    pub fn reply(&mut self, server: usize, reply: WithdrawReply, now: Stamp) {
        self.replies[server] = Request::Answered(reply);
        if self.count(|reply| matches!(reply, Request::Answered(_))) >= self.quorum.majority() {
            self.replied_at.get_or_insert(now);
        }
    }

    /// The server does not reply in time, or was not asked.
    pub fn no_reply(&mut self, server: usize) {
        self.replies[server].end(Request::NoReply);
    }

    /// The bound of the call is over: no reply from all that have not replied.
    pub fn end(&mut self) {
        (0..self.replies.len()).for_each(|server| self.no_reply(server));
    }

    /// What is known now. A majority that had no such vote shows that the lease had ended before.
    pub fn decide(&self, now: Stamp) -> ReleaseDecision {
        // Waiters need a majority of free servers, and all of them are better. A server that is slower than twice the
        // majority does not delay the caller.
        let until = self.replied_at.map(|at| at.plus(at.since(self.sent)));
        let is_open = self.count(|reply| *reply == Request::Open) > 0;
        if is_open && until.is_none_or(|until| now < until) {
            return ReleaseDecision::Wait { until };
        }
        if self.replied_at.is_none() {
            return ReleaseDecision::Unknown;
        }
        let had_none = self.count(|reply| *reply == Request::Answered(WithdrawReply::None));
        let was_held = had_none < self.quorum.overlap();
        ReleaseDecision::Ended(if was_held { ReleaseOutcome::Released } else { ReleaseOutcome::NotHeld })
    }

    fn count(&self, is_one: impl Fn(&Request<WithdrawReply>) -> bool) -> usize {
        self.replies.iter().filter(|reply| is_one(reply)).count()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(ms: u64) -> Stamp {
        Stamp::from_start(Duration::from_millis(ms))
    }

    const ENDED: WithdrawReply = WithdrawReply::Ended;
    const NONE: WithdrawReply = WithdrawReply::None;

    /// A release that was sent at 100 ms, with these replies, 10 ms apart.
    fn release(servers: usize, replies: &[WithdrawReply]) -> ReleaseTally {
        let mut tally = ReleaseTally::new(Quorum::new(servers).unwrap(), at(100));
        for (server, reply) in replies.iter().enumerate() {
            tally.reply(server, *reply, at(110 + 10 * server as u64));
        }
        tally
    }

    #[test]
    fn a_majority_ends_a_lease_and_the_others_have_as_long_again() {
        let mut tally = release(5, &[ENDED, ENDED]);
        assert_eq!(tally.decide(at(900)), ReleaseDecision::Wait { until: None });
        tally.reply(2, ENDED, at(130));
        assert_eq!(tally.decide(at(130)), ReleaseDecision::Wait { until: Some(at(160)) });
        tally.reply(3, ENDED, at(150));
        assert_eq!(tally.decide(at(159)), ReleaseDecision::Wait { until: Some(at(160)) });
        assert_eq!(tally.decide(at(160)), ReleaseDecision::Ended(ReleaseOutcome::Released));
        tally.no_reply(4);
        assert_eq!(tally.decide(at(151)), ReleaseDecision::Ended(ReleaseOutcome::Released));
    }

    #[test]
    fn less_than_a_majority_leaves_it_unknown() {
        let mut tally = release(3, &[ENDED]);
        tally.end();
        assert_eq!(tally.decide(at(200)), ReleaseDecision::Unknown);
        tally.reply(1, NONE, at(300));
        assert_eq!(tally.decide(at(300)), ReleaseDecision::Ended(ReleaseOutcome::Released));
    }

    #[test]
    fn a_majority_cannot_have_held_where_enough_servers_had_no_vote() {
        let outcome = |servers, replies: &[_]| release(servers, replies).decide(at(900));
        for (servers, replies, expected) in [
            (3, &[NONE, ENDED, ENDED][..], ReleaseOutcome::Released),
            (3, &[NONE, NONE, ENDED], ReleaseOutcome::NotHeld),
            (4, &[NONE, ENDED, ENDED, ENDED], ReleaseOutcome::Released),
            (4, &[NONE, NONE, ENDED, ENDED], ReleaseOutcome::NotHeld),
            (5, &[NONE, NONE, ENDED, ENDED, ENDED], ReleaseOutcome::Released),
            (5, &[NONE, NONE, NONE, ENDED, ENDED], ReleaseOutcome::NotHeld),
        ] {
            assert_eq!(outcome(servers, replies), ReleaseDecision::Ended(expected), "{replies:?}");
        }
    }
}
