//! Where a request goes next, and when to give up.
//!
//! A request is sent again only while each node that had it has said that it did nothing. Once a node is silent,
//! nothing is sent any more, because the silent node may act on it later. All of this happens within the bound of one
//! call, with time left for the last reply. Uses neither clock nor network.

use std::time::Duration;

use leasehold_core::{Error, ErrorKind};
use tokio::time::Instant;

use super::declared::{DISAGREE, DOWN, MOVING, MoreKeys, Refusal};
use super::redirection::Redirection;
use crate::errors::Failure;
use crate::sentinel::Address;

/// How many times a request is sent elsewhere until it pauses: to the node that takes the slot over, back to the owner
/// with the record alone, and once more to the node that has taken it over by then.
const AT_ONCE: u32 = 3;

/// The first pause. It doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);

const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The next node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The one that serves the slot as far as the client knows by then.
    Owner,
    Node(Address),
    /// A node that takes the slot over. It serves the request only if `ASKING` comes just before it.
    Taker(Address),
}

/// The next thing to do.
#[derive(Debug)]
pub(super) enum Next {
    Send {
        /// First wait for this long.
        pause: Duration,
        to: Target,
        keys: MoreKeys,
    },
    /// The outcome is in doubt only if this is [`Indeterminate`](ErrorKind::Indeterminate).
    GiveUp(Error),
}

/// Whether to ask the nodes again which of them serves which slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refresh {
    No,
    /// Without waiting for it.
    Beside,
    /// Before the request is sent again.
    First,
}

/// One request on its way.
#[derive(Debug)]
pub(super) struct Route {
    /// When nothing is sent again.
    last: Instant,
    keys: MoreKeys,
    /// Since the last pause.
    sent_elsewhere: u32,
    pauses: u32,
    has_refreshed: bool,
}

impl Route {
    /// A request, which goes to the owner of the slot first, and is sent again before `last` only: without time for its
    /// reply, its outcome would be in doubt.
    pub(super) const fn new(keys: MoreKeys, last: Instant) -> Self {
        Self { last, keys, sent_elsewhere: 0, pauses: 0, has_refreshed: false }
    }

    /// What follows when the last node did nothing.
    pub(super) fn next(&mut self, refusal: Refusal, now: Instant) -> (Next, Refresh) {
        match refusal {
            Refusal::Redirected(Redirection::Moved(_, to)) => {
                (self.elsewhere(Target::Node(to), now, DISAGREE), Refresh::Beside)
            }
            // Only this request goes there: others of the slot have to be sent to the owner until the slot has moved.
            Refusal::Redirected(Redirection::Ask(_, to)) => {
                (self.elsewhere(Target::Taker(to), now, MOVING), Refresh::No)
            }
            Refusal::Redirected(Redirection::TryAgain) => (self.with_fewer_keys(now), Refresh::No),
            // Another node may know that a replica was promoted. Otherwise it lasts longer than most calls.
            Refusal::Redirected(Redirection::Down) => self.looked_up(Error::new(ErrorKind::Unavailable, DOWN), now),
            Refusal::NeedsKeys(keys) if self.keys.contains(keys) => {
                (Next::GiveUp(Failure::UnexpectedReply.into()), Refresh::No)
            }
            Refusal::NeedsKeys(keys) => {
                self.keys = keys;
                (self.after_a_pause(Target::Owner, now, MOVING), Refresh::No)
            }
            // The node may have failed, and another one may have taken its place.
            Refusal::NotSent(error) => self.looked_up(error, now),
        }
    }

    /// Looks the owner up once more.
    fn looked_up(&mut self, error: Error, now: Instant) -> (Next, Refresh) {
        if std::mem::replace(&mut self.has_refreshed, true) || now >= self.last {
            return (Next::GiveUp(error), Refresh::Beside);
        }
        (Next::Send { pause: Duration::ZERO, to: Target::Owner, keys: self.keys }, Refresh::First)
    }

    /// Sends the request with the record alone, which one of the two nodes accepts.
    fn with_fewer_keys(&mut self, now: Instant) -> Next {
        if self.keys == MoreKeys::RECORD {
            return self.after_a_pause(Target::Owner, now, MOVING);
        }
        self.keys = MoreKeys::RECORD;
        self.elsewhere(Target::Owner, now, MOVING)
    }

    /// Sends the request to another node. Pauses only after several: otherwise one round between the two nodes of a
    /// slot that is moved would have several pauses.
    fn elsewhere(&mut self, to: Target, now: Instant, why: &'static str) -> Next {
        self.sent_elsewhere += 1;
        match self.sent_elsewhere > AT_ONCE {
            true => self.after_a_pause(to, now, why),
            false => self.send(Duration::ZERO, to, now, why),
        }
    }

    fn after_a_pause(&mut self, to: Target, now: Instant, why: &'static str) -> Next {
        let pause = (FIRST_PAUSE * (1 << self.pauses.min(8))).min(LONGEST_PAUSE);
        self.pauses += 1;
        self.sent_elsewhere = 0;
        self.send(pause, to, now, why)
    }

    fn send(&self, pause: Duration, to: Target, now: Instant, why: &'static str) -> Next {
        if now + pause >= self.last {
            return Next::GiveUp(Error::new(ErrorKind::Unavailable, why));
        }
        Next::Send { pause, to, keys: self.keys }
    }
}

#[cfg(test)]
mod tests;
