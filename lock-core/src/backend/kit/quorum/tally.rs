//! Counts the replies to one attempt to acquire a lock.

use std::time::Duration;

use super::{Absence, Absent, Attempt, Decision, GiveUp, Quorum, RaiseReply, Request, VoteReply, Withdrawal};
use crate::clock::Stamp;

/// The longest pause after the first contended attempt. It doubles with each further attempt.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);

/// The longest pause after any attempt.
const LONGEST_BACKOFF: Duration = Duration::from_millis(250);

/// A fence that is further above those of a majority comes from a clock that is set wrong, an hour in µs.
const FAR: u64 = 3_600_000_000;

/// The replies to one attempt to acquire.
///
/// Every server counts as asked until [`not_sent`](Self::not_sent) says otherwise. Call [`decide`](Self::decide) after
/// the first requests, after each input, and at the time that [`Wait`](Decision::Wait) names. After `Granted` and
/// `GiveUp` it is not called again. The other inputs still change what [`to_withdraw`](Self::to_withdraw) and
/// [`split_pause`](Self::split_pause) return.
#[derive(Clone, Debug)]
pub struct Tally {
    quorum: Quorum,
    attempt: Attempt,
    servers: Vec<Server>,
    /// The token that the servers were asked to accept after their votes.
    raised: Option<u64>,
    /// When a majority had voted.
    voted_at: Option<Stamp>,
    /// When a majority had replied with a vote or for whom it votes.
    replied_at: Option<Stamp>,
}

#[derive(Clone, Copy, Debug)]
struct Server {
    vote: Request<VoteReply>,
    raise: Request<RaiseReply>,
    is_withdrawn: bool,
}

/// How many servers gave each reply to the newest request.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    open: usize,
    accepted: usize,
    /// For this attempt, with or without the guess.
    votes: usize,
    /// For another attempt.
    held: usize,
    /// All replies of servers that vote.
    replies: usize,
}

impl Server {
    fn has_voted(&self) -> bool {
        matches!(self.vote, Request::Answered(VoteReply::Accepted | VoteReply::Voted { .. }))
    }

    /// Whether it may get the vote of this attempt later; `None` if it certainly has no such vote and gets none.
    fn may_vote(&self) -> Option<bool> {
        match self.vote {
            Request::Open | Request::NoReply => Some(true),
            _ => self.has_voted().then_some(false),
        }
    }

    /// How long it votes for another attempt, as far as it is known.
    fn left(&self) -> Option<Duration> {
        match self.vote {
            Request::Answered(VoteReply::Held { left, .. }) => Some(left),
            _ => self.has_voted().then_some(Duration::ZERO),
        }
    }

    fn absence(&self, is_raised: bool) -> Option<Absence> {
        match (self.vote, self.raise) {
            (Request::Answered(VoteReply::Unsettled), _) => Some(Absence::Unsettled),
            (Request::NotSent, _) => Some(Absence::NotSent),
            (_, Request::NotSent) if is_raised => Some(Absence::NotSent),
            (_, Request::NoReply) if is_raised => Some(Absence::NoReply),
            (Request::NoReply, _) if !is_raised => Some(Absence::NoReply),
            _ => None,
        }
    }
}

impl Tally {
    /// An attempt whose requests go to all servers.
    pub fn new(quorum: Quorum, attempt: Attempt) -> Self {
        let server = Server { vote: Request::Open, raise: Request::Open, is_withdrawn: false };
        let servers = vec![server; quorum.servers()];
        Self { quorum, attempt, servers, raised: None, voted_at: None, replied_at: None }
    }

    /// The newest request was not sent to this server, or has certainly not arrived.
    pub fn not_sent(&mut self, server: usize) {
        let it = &mut self.servers[server];
        if self.raised.is_none() { it.vote.end(Request::NotSent) } else { it.raise.end(Request::NotSent) }
    }

    /// The newest request to this server has no reply. It may have arrived.
    pub fn no_reply(&mut self, server: usize) {
        let it = &mut self.servers[server];
        it.vote.end(Request::NoReply);
        if self.raised.is_some() {
            it.raise.end(Request::NoReply);
        }
    }

    /// The bound of the newest requests is over: the same as [`no_reply`](Self::no_reply) for all that are still open.
    pub fn end(&mut self) {
        (0..self.servers.len()).for_each(|server| self.no_reply(server));
    }

    /// The reply to the request for a vote, which arrived now. It may follow [`no_reply`](Self::no_reply).
    pub fn reply(&mut self, server: usize, reply: VoteReply, now: Stamp) {
        self.servers[server].vote = Request::Answered(reply);
        let count = self.count_votes();
        let majority = self.quorum.majority();
        if count.votes >= majority {
            self.voted_at.get_or_insert(now);
        }
        if count.replies >= majority {
            self.replied_at.get_or_insert(now);
        }
    }

    /// The reply to a raise.
    pub fn raise_reply(&mut self, server: usize, reply: RaiseReply) {
        self.servers[server].raise = Request::Answered(reply);
    }

    /// The server has replied to the withdrawal that [`to_withdraw`](Self::to_withdraw) asked for.
    pub fn withdrawn(&mut self, server: usize) {
        self.servers[server].is_withdrawn = true;
    }

    /// What to do now.
    pub fn decide(&mut self, now: Stamp) -> Decision {
        let withdrawn = Request::Answered(VoteReply::Withdrawn);
        if self.servers.iter().any(|server| server.vote == withdrawn) {
            return Decision::GiveUp(GiveUp::Withdrawn);
        }
        if let Some(token) = self.raised { self.decide_raise(token, now) } else { self.decide_vote(now) }
    }

    fn decide_vote(&mut self, now: Stamp) -> Decision {
        let (count, majority) = (self.count_votes(), self.quorum.majority());
        if count.accepted >= majority {
            return self.granted(self.attempt.guess, now);
        }
        if count.votes >= majority {
            // A raise costs a round trip. A server that is slower than twice the majority costs as much.
            let patience = self.voted_at.map(|at| at.plus(at.since(self.attempt.sent)));
            if count.accepted + count.open >= majority && patience.is_some_and(|until| now < until) {
                return Decision::Wait { until: patience };
            }
            return self.raise(now);
        }
        if count.votes + count.open >= majority { Decision::Wait { until: None } } else { self.give_up(count) }
    }

    fn decide_raise(&self, token: u64, now: Stamp) -> Decision {
        let (count, majority) = (self.count_raises(), self.quorum.majority());
        if count.accepted >= majority {
            return self.granted(token, now);
        }
        if count.accepted + count.open >= majority { Decision::Wait { until: None } } else { self.give_up(count) }
    }

    fn granted(&self, token: u64, now: Stamp) -> Decision {
        // A process that was paused after the replies would tell its caller of a lease that has ended.
        if now < self.attempt.valid_until() { Decision::Granted { token } } else { Decision::GiveUp(GiveUp::TooLate) }
    }

    fn raise(&mut self, now: Stamp) -> Decision {
        if now >= self.attempt.valid_until() {
            return Decision::GiveUp(GiveUp::TooLate);
        }
        // A guess that no server accepted does not count: it may be hours ahead of the servers' clocks.
        let fences = self.servers.iter().filter_map(|server| match server.vote {
            Request::Answered(VoteReply::Accepted) => Some(self.attempt.guess),
            Request::Answered(VoteReply::Voted { fence }) => Some(fence),
            _ => None,
        });
        let mut fences: Vec<_> = fences.collect();
        fences.sort_unstable();
        // Any token may be asked for, because each server compares it with its own fence. If all that vote can accept
        // it, one of them may fail. But the fence of a clock that is years ahead would put this lock ahead for ever.
        let enough = fences.get(self.quorum.majority() - 1).copied().unwrap_or(0);
        let highest = fences.into_iter().filter(|fence| fence.saturating_sub(enough) <= FAR).max();
        let token = highest.unwrap_or(0).saturating_add(1);
        self.raised = Some(token);
        for server in &mut self.servers {
            server.raise = match server.vote {
                // It refuses a raise by an attempt that it does not vote for, and one that is not above its fence.
                Request::Answered(VoteReply::Held { .. }) => Request::Answered(RaiseReply::Refused),
                Request::Answered(VoteReply::Voted { fence }) if fence >= token => {
                    Request::Answered(RaiseReply::Refused)
                }
                Request::Answered(VoteReply::Unsettled) | Request::NotSent => Request::NotSent,
                _ => Request::Open,
            };
        }
        Decision::Raise { token }
    }

    /// No majority is possible any more. Waits while it is open why.
    fn give_up(&self, count: Count) -> Decision {
        let (majority, overlap) = (self.quorum.majority(), self.quorum.overlap());
        if count.held >= overlap {
            let pause = self.pause_between(Duration::ZERO, self.backoff());
            let retry_after = self.majority_free_after().map_or(pause, |free| free.min(pause));
            return Decision::GiveUp(GiveUp::Contended { retry_after });
        }
        if count.replies >= majority {
            // Attempts that split the votes do so again if they are repeated within a round trip of each other. On a
            // slow network, the back-off alone would not spread them.
            let round_trip = self.replied_at.map_or(Duration::ZERO, |at| at.since(self.attempt.sent));
            let retry_after = self.pause_between(round_trip, self.backoff().max(2 * round_trip));
            return Decision::GiveUp(GiveUp::Contended { retry_after });
        }
        let may_be_held = self.raised.is_none() && count.held + count.open >= overlap;
        if count.replies + count.open >= majority || may_be_held {
            return Decision::Wait { until: None };
        }
        Decision::GiveUp(GiveUp::TooFew(self.absent()))
    }

    /// If the attempt failed although no other can have a majority, because several share the votes: how long to wait
    /// before another try in the same call. Random, up to two round trips.
    pub fn split_pause(&self) -> Option<Duration> {
        let holder = |server: &Server| match server.vote {
            Request::Answered(VoteReply::Held { holder, .. }) => Some(holder),
            _ => None,
        };
        // Those that do not say for whom they vote may vote for any of them.
        let unknown = self.servers.iter().filter(|it| !it.has_voted() && holder(it).is_none()).count();
        let of = |one| self.servers.iter().filter(|it| holder(it) == Some(one)).count();
        let most = self.servers.iter().filter_map(holder).map(of).max().unwrap_or(0);
        let round_trip = self.replied_at?.since(self.attempt.sent);
        (most + unknown < self.quorum.majority()).then(|| self.pause_between(Duration::ZERO, 2 * round_trip))
    }

    /// The longest pause after this attempt.
    fn backoff(&self) -> Duration {
        (FIRST_BACKOFF * 2_u32.pow(self.attempt.number.min(5))).min(LONGEST_BACKOFF)
    }

    /// A random pause, from `least` up to `longest`.
    fn pause_between(&self, least: Duration, longest: Duration) -> Duration {
        let spread = (longest.saturating_sub(least).as_nanos() * u128::from(self.attempt.random)) >> 32;
        least + Duration::from_nanos(u64::try_from(spread).unwrap_or(u64::MAX))
    }

    /// When the votes of a majority have ended, as far as the replies say; `None` if too few do.
    fn majority_free_after(&self) -> Option<Duration> {
        let mut left: Vec<_> = self.servers.iter().filter_map(|server| server.left()).collect();
        left.sort_unstable();
        left.get(self.quorum.majority() - 1).copied()
    }

    /// The servers that certainly do not reply with a vote or a refusal.
    fn absent(&self) -> Vec<Absent> {
        let servers = self.servers.iter().enumerate();
        servers.filter_map(|(server, it)| Some(Absent { server, why: it.absence(self.raised.is_some())? })).collect()
    }

    fn count_votes(&self) -> Count {
        let mut count = Count::default();
        for server in &self.servers {
            count.open += usize::from(server.vote == Request::Open);
            count.accepted += usize::from(server.vote == Request::Answered(VoteReply::Accepted));
            count.votes += usize::from(server.has_voted());
            count.held += usize::from(matches!(server.vote, Request::Answered(VoteReply::Held { .. })));
        }
        count.replies = count.votes + count.held;
        count
    }

    fn count_raises(&self) -> Count {
        let mut count = Count::default();
        for server in &self.servers {
            count.open += usize::from(server.raise == Request::Open);
            count.accepted += usize::from(server.raise == Request::Answered(RaiseReply::Accepted));
            count.replies += usize::from(matches!(server.raise, Request::Answered(_)));
        }
        count
    }

    /// The servers that a raise goes to: those whose votes this attempt has or may have.
    pub fn to_raise(&self) -> impl Iterator<Item = usize> {
        let open = |server: &Server| self.raised.is_some() && server.raise == Request::Open;
        (0..self.servers.len()).filter(move |&server| open(&self.servers[server]))
    }

    /// The servers that the withdrawal of the attempt goes to. After [`withdrawn`](Self::withdrawn) for those that have
    /// replied, this is the residue: servers that keep the vote until its ttl is over. If there are none, the attempt
    /// has certainly left nothing.
    pub fn to_withdraw(&self) -> impl Iterator<Item = Withdrawal> {
        let servers = self.servers.iter().enumerate().filter(|(_, it)| !it.is_withdrawn);
        servers.filter_map(|(server, it)| Some(Withdrawal { server, tombstone: it.may_vote()? }))
    }

    /// The highest fence of a reply, or zero. The next guess must be higher.
    pub fn highest_fence(&self) -> u64 {
        let fences = self.servers.iter().map(|server| match server.vote {
            Request::Answered(VoteReply::Voted { fence } | VoteReply::Held { fence, .. }) => fence,
            _ => 0,
        });
        fences.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
