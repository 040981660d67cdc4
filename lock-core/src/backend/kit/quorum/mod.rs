//! Decisions of a client that holds locks on a majority of independent servers: pure state machines. Replies and times
//! go in, decisions come out. They know no network, clock, lock or source of randomness.
//!
//! Each server keeps its own record of a lock: a *vote* for one attempt of one claim, which lasts for a ttl, and a
//! *fence*, the highest token that the server has accepted. A claim holds the lock while a majority votes for it and
//! has accepted its token. Majorities share a server, so there is one holder, and each token is higher than all before
//! it.
//!
//! - [`Guess`] proposes a token: a guess that a majority accepts saves a round trip.
//! - [`Tally`] counts the replies to one attempt to acquire, and decides when it has succeeded or failed.
//! - [`Votes`] is what the holder knows of its vote at each server, and decides what each server is asked to renew.
//! - [`RenewTally`] and [`ReleaseTally`] count the replies to one renewal and to one release.
//! - [`Settling`] decides when a server that was restarted, and may have lost its data, may vote again.
//!
//! The protocol is Redlock's (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>), with two
//! additions: a token that a majority has accepted before the grant is told, as a ballot in Paxos, and Redlock's
//! "delayed restarts" decided by the clients, with a floor for the tokens of the server that lost its own. The model
//! `quorum_model` in the package `simulation` explores these machines with the rules of the servers.

mod attempt;
mod guess;
mod release;
mod renewal;
mod settling;
mod tally;
mod votes;

use std::fmt;
use std::sync::Arc;

pub use self::attempt::{Absence, Absent, Attempt, Decision, GiveUp, RaiseReply, VoteReply, Withdrawal};
pub use self::guess::Guess;
pub use self::release::{ReleaseDecision, ReleaseTally, WithdrawReply};
pub use self::renewal::{HoldReply, RenewOutcome, RenewTally};
pub use self::settling::{Reading, Refused, ServerState, Settling, SettlingStep, Since};
pub use self::tally::Tally;
pub use self::votes::{HoldRequest, VoteConfirmation, Votes};

/// How many servers there are, and how many decide. The servers are numbered from zero, in the order of the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    servers: usize,
}

impl Quorum {
    /// The quorum of this many servers; `None` for fewer than three, which are no more available than one.
    pub const fn new(servers: usize) -> Option<Self> {
        if servers < 3 { None } else { Some(Self { servers }) }
    }

    /// How many servers there are: N.
    pub const fn servers(self) -> usize {
        self.servers
    }

    /// How many votes a holder needs: Q = ⌊N/2⌋ + 1, so that any two majorities share a server.
    pub const fn majority(self) -> usize {
        self.servers / 2 + 1
    }

    /// How many servers share one with every majority: R = N − Q + 1. Without so many, no majority is possible.
    pub const fn overlap(self) -> usize {
        self.servers - self.majority() + 1
    }
}

/// The run of a server, from a start of its process to the end: its `run_id`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RunId(Arc<str>);

impl RunId {
    /// The run with this name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({})", self.0)
    }
}

/// A request to one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request<T> {
    /// A reply may still arrive in time.
    Open,
    NotSent,
    NoReply,
    Answered(T),
}

impl<T> Request<T> {
    /// Ends the wait for a reply.
    fn end(&mut self, end: Self) {
        if matches!(self, Self::Open) {
            *self = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_two_majorities_share_a_server() {
        assert_eq!([0, 1, 2].map(Quorum::new), [None; 3]);
        let of = |servers| Quorum::new(servers).map(|it| (it.servers(), it.majority(), it.overlap()));
        assert_eq!(of(3), Some((3, 2, 2)));
        assert_eq!(of(4), Some((4, 3, 2)));
        assert_eq!(of(5), Some((5, 3, 3)));
        assert_eq!(of(6), Some((6, 4, 3)));
        for servers in 3..50 {
            let quorum = Quorum::new(servers).unwrap();
            assert!(2 * quorum.majority() > servers && quorum.majority() + quorum.overlap() > servers);
        }
    }

    #[test]
    fn a_run_is_shown_by_its_name() {
        let run = RunId::new("f00");
        assert_eq!((run.as_str(), format!("{run:?}")), ("f00", "RunId(f00)".to_owned()));
    }
}
