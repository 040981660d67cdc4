//! The states of the world, small and quick to compare.

use std::hash::{Hash, Hasher};

use super::{MOST_CLIENTS, MOST_SERVERS};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Verb {
    #[default]
    Vote,
    Raise,
    Renew,
    Join,
}

/// A request that arrives after its sender has given up on the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Message {
    /// Zero if there is no such message.
    pub(super) claim: u8,
    pub(super) verb: Verb,
    pub(super) token: u8,
    pub(super) run: u8,
}

/// What the client has heard from a server in this phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Heard {
    /// The request has not been executed.
    #[default]
    Open,
    NoReply,
    /// The server does not vote for the claim.
    No,
    /// It votes, but its fence is not below the guess.
    Voted,
    /// It has done all that was requested.
    Yes,
}

/// What a client knows of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot {
    /// While it acquires: the reply to its vote.
    pub(super) vote: Heard,
    /// The reply to the raise or the renewal.
    pub(super) reply: Heard,
    /// A request may still arrive. Left out if none will, because then it changes nothing.
    pub(super) is_in_doubt: bool,
    /// In which run the server has confirmed the vote, and for how many more ticks. Left out if no renewal may put it
    /// back.
    pub(super) in_run: Option<u8>,
    pub(super) confirmed: u8,
    /// The server has executed a break of the lease.
    pub(super) is_broken: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    #[default]
    Idle,
    Voting,
    Raising,
    Held,
    Renewing,
    Releasing,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Client {
    pub(super) phase: Phase,
    /// How many attempts it has begun.
    pub(super) attempt: u8,
    /// How many ticks its lease is valid, counted from before its request was sent.
    pub(super) validity: u8,
    /// Its guess; then the token of its raise, and of its lease.
    pub(super) token: u8,
    /// The highest fence of a server that votes for it.
    pub(super) highest: u8,
    /// The highest token that was told before its attempt began, if clocks are stepped.
    pub(super) before: u8,
    pub(super) renewals_left: u8,
    /// The validity that the renewal under way would give.
    pub(super) pending: u8,
    /// A majority had confirmed a break before that renewal began.
    pub(super) was_broken: bool,
}

impl Client {
    pub(super) fn believes(&self) -> bool {
        matches!(self.phase, Phase::Held | Phase::Renewing | Phase::Releasing) && self.validity > 0
    }
}

/// The servers are sorted by their numbers, so that states that differ only in the order of servers are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// The numbers of the states of its servers, see `Model::servers`.
    pub(super) servers: [u32; MOST_SERVERS],
    pub(super) clients: [Client; MOST_CLIENTS],
    /// The highest token that was told.
    pub(super) told: u8,
    /// Each token that was told, as a bit, if clocks are stepped.
    pub(super) tokens: u64,
    pub(super) restarts_left: u8,
    pub(super) clock_steps_left: u8,
}

// Half of the time goes into hashes: each of these is a number or a few.
impl Hash for Message {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u32(u32::from_le_bytes([self.claim, self.verb as u8, self.token, self.run]));
    }
}

impl Hash for Slot {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let flags = u8::from(self.is_in_doubt) << 6 | u8::from(self.is_broken) << 7;
        let heard = self.vote as u8 | (self.reply as u8) << 3 | flags;
        let run = self.in_run.map_or(0, |run| run + 1);
        hasher.write_u32(u32::from_le_bytes([heard, run, self.confirmed, 0]));
    }
}

impl Hash for Client {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let &Self { phase, attempt, validity, token, highest, before, renewals_left, pending, was_broken } = self;
        let all = [
            phase as u8 | u8::from(was_broken) << 7,
            attempt,
            validity,
            token,
            highest,
            before,
            renewals_left,
            pending,
        ];
        hasher.write_u64(u64::from_le_bytes(all));
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let [a, b, c, d, e] = self.servers.map(u64::from);
        hasher.write_u64(a << 32 | b);
        hasher.write_u64(c << 32 | d);
        let rest = u32::from_le_bytes([self.told, self.restarts_left, self.clock_steps_left, 0]);
        hasher.write_u64(e << 32 | u64::from(rest));
        hasher.write_u64(self.tokens);
        self.clients.iter().for_each(|client| client.hash(hasher));
    }
}
