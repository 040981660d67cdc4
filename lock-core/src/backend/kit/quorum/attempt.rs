//! One attempt to acquire a lock: its parameters, the servers' replies, and the decisions of the
//! [`Tally`](super::Tally).

use std::fmt;
use std::time::Duration;

use crate::clock::Stamp;

/// One attempt of a claim to acquire a lock. Every attempt has a vote of its own: a vote that was withdrawn stays
/// withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The token that the servers were asked to accept, from [`Guess`](super::Guess).
    pub guess: u64,
    /// Just before the first server was asked.
    pub sent: Stamp,
    /// How long a vote lasts.
    pub ttl: Duration,
    /// The part of the ttl that a holder leaves unused, for clocks that run at different rates.
    pub margin: Duration,
    /// How many earlier attempts of the claim gave up.
    pub number: u32,
    /// Any random number. It spreads the next attempts of clients that gave up together.
    pub random: u32,
}

impl Attempt {
    /// The end of the validity of a lease that this attempt gets.
    pub(super) fn valid_until(&self) -> Stamp {
        self.sent.plus(self.ttl.saturating_sub(self.margin))
    }
}

/// A server's reply to a request for its vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a backend makes every reply")]
pub enum VoteReply {
    /// It votes for this attempt, and has accepted the guess as the token: `g`.
    Accepted,
    /// It votes for this attempt, but its fence is not below the guess: `v`.
    Voted {
        /// The highest token that it has accepted.
        fence: u64,
    },
    /// It votes for another attempt: `h`.
    Held {
        /// The highest token that it has accepted.
        fence: u64,
        /// How long that vote still lasts.
        left: Duration,
        /// A number that the servers that vote for the same attempt have in common.
        holder: u32,
    },
    /// It was restarted and does not vote yet: `u`.
    Unsettled,
    /// The vote of this attempt was withdrawn before: `w`.
    Withdrawn,
}

/// A server's reply to a raised token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a backend makes every reply")]
pub enum RaiseReply {
    /// It has accepted the token: `g`.
    Accepted,
    /// It does not vote for this attempt any more, or its fence is above the token: `l`.
    Refused,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a backend handles every decision")]
pub enum Decision {
    /// Decide again after the next reply, and at this time.
    Wait {
        /// `None` if only a reply, or the bound of the call, changes the decision.
        until: Option<Stamp>,
    },
    /// The claim holds the lock. The confirmation counts from [`Attempt::sent`]: a raise does not extend the lease.
    Granted {
        /// The token of the lease.
        token: u64,
    },
    /// Ask the servers of [`Tally::to_raise`](super::Tally::to_raise) to accept this token. Returned once; from then
    /// on, the tally counts the replies to this request.
    Raise {
        /// Above the fences of a majority.
        token: u64,
    },
    /// The attempt has failed. Withdraw its vote now, from the servers of
    /// [`Tally::to_withdraw`](super::Tally::to_withdraw).
    GiveUp(GiveUp),
}

/// Why an attempt has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a backend handles every reason")]
pub enum GiveUp {
    /// Other claims have the votes: one holds the lock, or several share them.
    Contended {
        /// How long to wait before the next attempt.
        retry_after: Duration,
    },
    /// Fewer than a majority of the servers can reply: those that certainly do not, and why.
    TooFew(Vec<Absent>),
    /// A majority has accepted the token, but the lease would end before its holder could use it.
    TooLate,
    /// This attempt was withdrawn before, by the same client.
    Withdrawn,
}

/// A server that could not vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent {
    /// Its number.
    pub server: usize,
    /// Why.
    pub why: Absence,
}

/// Why a server could not vote. Shown in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a backend may describe each of them further")]
pub enum Absence {
    /// Nothing was sent to it: there is no connection.
    NotSent,
    /// It did not reply in time, or the connection broke before the reply.
    NoReply,
    /// It was restarted and does not vote yet.
    Unsettled,
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSent => "not connected",
            Self::NoReply => "no reply",
            Self::Unsettled => "does not vote yet after a restart",
        })
    }
}

/// A server that has the vote of a failed attempt, or may have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    /// Its number.
    pub server: usize,
    /// Whether the server must also refuse the vote later: the request for it has no reply and may still be on its way.
    pub tombstone: bool,
}
