//! A model of waiting: the state machines that ship in the keeper and the rules that ship in `LockRecord`, a few clients, and a network
//! that may do anything.
//!
//! Clients send requests. Those wait in the network and are worked on at any later time, in any order, twice, or never; the same goes
//! for answers and pushes. A call may fail while its request is still in flight. An acquire may be cancelled, a lease released and a
//! process killed at any point, and a timer of the keeper may fire late. Time is in ticks and runs at the same rate for all: drift is the
//! margin's concern, and the simulation's.

mod client;
mod explore;
mod fair;
mod server;

pub(crate) use explore::{exhaust, walk};

use std::time::Duration;

use client::Client;
use leasehold_core::backend::Stamp;
use leasehold_core::memory::LockRecord;

/// How many clients a state has room for; those beyond [`World::clients`] never begin.
const ROOM: usize = 3;

/// How many claims a client can draw. Its requests for more are lost.
const CLAIMS: u8 = 32;

/// What is explored.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) clients: usize,
    /// How many acquires begin in each client.
    pub(crate) acquires: u8,
    /// In ticks.
    pub(crate) ttl: u8,
    pub(crate) place_ttl: u8,
    /// Whether the server keeps a queue. Without one its clients poll, as those of a row lease do.
    pub(crate) has_queue: bool,
    /// The last tick.
    pub(crate) end: u8,
    /// How many requests of one client reach the network.
    pub(crate) sends: u8,
    /// Whether calls fail and requests are worked on twice.
    pub(crate) faults: bool,
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
    GrantKeepsTheToken,
    ReleaseEndsAnybodysLease,
    RenewTakesAnExpiredLease,
    AcquireTakesAHeldLease,
    // Between the server and the machines of a client: what they are told, and what becomes of what they want.
    ConfirmationsOfAnotherPlaceCount,
    ValidityFromThePush,
    ValidityFromTheNewestRequest,
    ValidityFromTheReply,
    NoTombstone,
    TombstoneOnlyIfNothingWasAnswered,
    AnswersOfEarlierClaimsCount,
    QueuesAreNeverWoken,
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
    /// The lock stayed free after a request although an acquire waits.
    Unserved,
    /// A lease lasts longer than the place that it came from.
    Outlasts,
    /// An acquire that continues to wait does not get the lock when all leases and places of the dead have run out.
    Wake,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Verb {
    /// `in_doubt`: an earlier acquire of the claim was never answered.
    Acquire {
        in_doubt: bool,
    },
    /// Renews the place with this number, or the lease that came from it.
    Renew {
        held: bool,
        place: u64,
    },
    Release {
        in_doubt: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    claim: u8,
    sent: u8,
    verb: Verb,
    /// Its call has failed: nobody hears the reply.
    is_abandoned: bool,
}

/// The client that draws a claim.
const fn client_of(claim: u8) -> usize {
    (claim / CLAIMS) as usize
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Reply {
    Holds {
        token: u64,
        place: u64,
    },
    Waits {
        place: u64,
    },
    /// Another claim holds the lock, and this one has no place.
    Contended,
    Lost,
    Ended {
        had: bool,
    },
    /// The call failed, and whether the store works on its request is not known.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Push {
    claim: u8,
    token: u64,
    place: u64,
}

/// Sets are sorted vectors, so that equal states are equal.
#[derive(Clone, Debug)]
struct State {
    now: u8,
    record: LockRecord<u8>,
    /// The claims whose release was applied.
    released: Vec<u8>,
    clients: [Client; ROOM],
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
    /// An acquire begins.
    Enter {
        client: usize,
    },
    /// The first acquire that waits in a client is cancelled.
    Cancel {
        client: usize,
    },
    /// A lease is given up.
    Release {
        claim: u8,
    },
    /// The process is killed.
    Die {
        client: usize,
    },
    /// A timer of the keeper fires.
    Fire {
        client: usize,
        timer: usize,
    },
    Serve(Request),
    ServeTwice(Request),
    /// The call of a request fails.
    Fail(Request),
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
