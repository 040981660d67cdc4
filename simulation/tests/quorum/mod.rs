//! A model of locks on a majority of servers: the state machines of the clients, the rules of the servers' scripts, and
//! a network that may do anything.
//!
//! What happens, in any order:
//! - A request reaches a server, and its reply arrives or is lost. A request may also arrive late, after its sender has
//!   given up. An acquire may be cancelled, a renewal given up and a lease released at any point.
//! - Time passes in ticks. A vote of `ttl` ticks starts when the server executes the request. Validity counts from
//!   before the request was sent. Clocks may be fast: the last tick of a vote may then end early, and validity is
//!   shorter by a margin of a tick.
//! - A server is restarted without its data, never two that are unsettled at once: that is where the promises end.
//! - A server's clock is stepped: its vote ends at once. Only the order of tokens is promised then.
//! - An operator breaks a lease: each server ends its vote, or does not hear of it. The holder believes in its lease
//!   until a renewal fails, so that exclusion is promised only for leases that no server was asked to break.
//!
//! The machines keep no state between two steps: each is made anew from the replies that the state of the world
//! records, and decides at once. So equal worlds are equal states. A pause that a machine waits for may end at any
//! moment.

mod client;
mod explore;
mod machines;
mod server;
mod settle;
mod state;
mod steps;

pub(crate) use explore::{Findings, exhaust, follow, walk};

/// How many servers and clients a state has room for.
const MOST_SERVERS: usize = 5;
const MOST_CLIENTS: usize = 3;

/// The world that is explored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World {
    pub(crate) servers: usize,
    pub(crate) clients: usize,
    /// How many attempts each client makes. Each is a claim of its own to the servers.
    pub(crate) attempts: u8,
    /// In ticks.
    pub(crate) ttl: u8,
    /// The tokens that an attempt may guess. A guess of zero is never accepted.
    pub(crate) guesses: &'static [u8],
    /// How many renewals each client begins.
    pub(crate) renewals: u8,
    /// Whether a holder joins the servers that do not vote for it.
    pub(crate) joins: bool,
    /// How many late requests may be on their way at once.
    pub(crate) late: usize,
    /// How often a server is restarted without its data.
    pub(crate) restarts: u8,
    /// How often the clock of a server is stepped.
    pub(crate) clock_steps: u8,
    /// Whether a token may be raised above any lower token too, and not only above the fences of all that vote.
    pub(crate) low_raises: bool,
    /// Whether leases are broken. Not with restarts: a server that loses its data forgets a break.
    pub(crate) breaks: bool,
    /// Whether clocks may be fast.
    pub(crate) fast_clocks: bool,
    /// The rule that is broken.
    pub(crate) sabotage: Option<Sabotage>,
}

impl World {
    /// The client of a claim. Each attempt is a claim, and they are numbered from one.
    fn client_of(&self, claim: u8) -> usize {
        usize::from((claim - 1) / self.attempts)
    }
}

/// Ways to break one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    // At a server.
    /// A counter of each server is the token. The client takes the highest one of a majority, as with `INCR` on each.
    EachServerCountsTokens,
    TokenThatEqualsTheFence,
    ReleaseEndsAnybodysLease,
    NoTombstone,
    RenewTakesAnExpiredLease,
    RestartedServerVotesAtOnce,
    RestartedServerVotesAfterItHasAFloor,
    RestartedServerHasNoFloor,
    /// A vote that was broken may be joined again.
    BreakLeavesNoTombstone,
    // Between the servers and the machines of a client: their inputs, and what is done with their outputs.
    OneReplyCountsForAMajority,
    TokenRaisedOnOneServer,
    RenewalNeedsAMajorityOfTheReplies,
    ValidityFromTheReply,
    NoMargin,
    ToldWithoutValidity,
    VotesOfEarlierAttemptsCount,
    FloorReadBeforeTheEndOfTheWait,
    FloorReadFromOneServer,
    PutBackAfterTheConfirmation,
    HolderBelievesUntilItsReleaseIsExecuted,
    /// An attempt is not withdrawn from servers that have not replied.
    OnlyAnsweredVotesAreWithdrawn,
    NoReplyToARenewalCountsAsLost,
    // Rules that no promise here needs.
    RaiseByAnybody,
    RequestsToAnEarlierRunCount,
    RenewTakesAnExpiredLeaseBelowItsToken,
}

/// The promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Two claims hold at once.
    Exclusion,
    /// A token is not higher than every token that was told before it. If clocks are stepped: not higher than those
    /// told before its acquire began, or told twice.
    Token,
    /// A claim has a vote again, or still, although its withdrawal from that server is certain.
    Orphan,
    /// A renewal says that the lease is lost although a majority votes for it.
    Loss,
    /// A renewal that began after a majority had confirmed a break says that the lease is renewed.
    Revived,
}

/// One thing that happens. Servers are counted in the order of the state before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Tick,
    Begin {
        client: usize,
        guess: u8,
    },
    /// A request is executed and its reply arrives.
    Answer {
        client: usize,
        server: usize,
    },
    /// A request is executed and its reply is lost.
    LoseReply {
        client: usize,
        server: usize,
    },
    /// A request will be executed later.
    Delay {
        client: usize,
        server: usize,
    },
    Raise {
        client: usize,
        token: u8,
    },
    Tell {
        client: usize,
        token: u8,
    },
    /// The attempt is withdrawn.
    GiveUp {
        client: usize,
    },
    Renew {
        client: usize,
    },
    Renewed {
        client: usize,
    },
    /// The servers say that the lease is lost.
    Lose {
        client: usize,
    },
    GiveRenewalUp {
        client: usize,
    },
    Join {
        client: usize,
        server: usize,
    },
    JoinLate {
        client: usize,
        server: usize,
    },
    Release {
        client: usize,
    },
    /// The break of a client's lease is executed by one server.
    Break {
        client: usize,
        server: usize,
    },
    /// The release is executed everywhere.
    Stop {
        client: usize,
    },
    Arrive {
        server: usize,
    },
    Restart {
        server: usize,
    },
    /// A client reads the highest fence of a settled server.
    ReadFence {
        server: usize,
    },
    Settle {
        server: usize,
    },
    /// A fast clock ends a vote, or the wait of a server that was restarted.
    EndEarly {
        server: usize,
    },
    SetClock {
        server: usize,
    },
}
