//! A model of waiting: the rules that ship in `LockRecord`, a few claims, and a network that may do anything.
//!
//! Claims send requests. Those wait in the network and are worked on at any later time, in any order, or never; the
//! same goes for answers and pushes. A claim may end or its process die at any point. Time is in ticks and runs at the same
//! rate for all: drift is the margin's concern, and the simulation's.

mod claim;
mod explore;
mod server;

pub(crate) use explore::{exhaust, walk};

use std::time::Duration;

use claim::ModelClaim;
use leasehold_core::backend::Stamp;
use leasehold_core::memory::LockRecord;

/// How many claims a state has room for; those beyond [`World::claims`] never begin.
const ROOM: usize = 3;

/// What is explored.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) claims: usize,
    /// In ticks.
    pub(crate) ttl: u8,
    pub(crate) place_ttl: u8,
    /// The last tick.
    pub(crate) end: u8,
    /// How many acquires and renewals one claim sends.
    pub(crate) sends: u8,
    /// Which rule is broken.
    pub(crate) sabotage: Option<Sabotage>,
}

/// Ways to break one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    // At the server.
    NewcomersPassWaiters,
    RepeatedAcquireKeepsTheDeadline,
    RenewHidesAGrant,
    RenewCreatesAPlace,
    OnlyTheHeadsLookServes,
    HandoffGivesAFreshTtl,
    PlacesNeverExpire,
    HandoffKeepsTheToken,
    ReleaseEndsAnybodysLease,
    // At the client.
    ConfirmationsOfAnotherPlaceCount,
    ValidityFromThePush,
    ValidityFromTheNewestRequest,
    ValidityFromTheReply,
    NoTombstone,
    TombstoneOnlyIfNothingWasAnswered,
}

/// Which promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Two claims hold at once.
    Exclusion,
    /// A token is not higher than all that were seen before it.
    Token,
    /// A claim is back after its release was applied.
    Orphan,
    /// A lease passed an older place.
    Fifo,
    /// A renewal made something of nothing.
    Created,
    /// The lock stayed free after a look although somebody waits.
    Unserved,
    /// Somebody who goes on looking does not get the lock when all leases and places of the dead have run out.
    Wake,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Verb {
    Acquire,
    /// Renews; says whether its claim holds.
    Renew {
        held: bool,
    },
    Release {
        unsure: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    claim: u8,
    sent: u8,
    verb: Verb,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Reply {
    Holds { token: u64, place: u64 },
    Waits { place: u64 },
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Push {
    claim: u8,
    token: u64,
    place: u64,
}

/// Sets are sorted vectors, so that equal states are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    record: LockRecord<u8>,
    /// The claims whose release was applied.
    released: [bool; ROOM],
    claims: [ModelClaim; ROOM],
    requests: Vec<Request>,
    replies: Vec<(Request, Reply)>,
    pushes: Vec<Push>,
    /// The highest token that a holder has seen.
    highest: u64,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Tick,
    Send(Request),
    End { claim: u8 },
    Die { claim: u8 },
    Serve(Request),
    Hear(Request, Reply),
    HearPush(Push),
}

fn at(tick: u8) -> Stamp {
    Stamp::from_start(ticks(tick))
}

const fn ticks(count: u8) -> Duration {
    Duration::from_secs(count as u64)
}

fn add<T: Ord>(set: &mut Vec<T>, item: T) {
    if let Err(index) = set.binary_search(&item) {
        set.insert(index, item);
    }
}

fn remove<T: PartialEq>(set: &mut Vec<T>, item: &T) {
    set.retain(|other| other != item);
}
