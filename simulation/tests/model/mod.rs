//! A model of waiting: the keeper's own state machines, the rules of `LockRecord`, a few clients, and a network that
//! may do anything.
//!
//! Clients send requests. A request stays in the network and is executed at any later time, in any order, twice, or
//! never. Replies and pushes arrive in the same way. A call may fail while its request is still in flight. At any
//! point, an acquire may be cancelled, a lease released and a process killed, and a timer of the keeper may fire late.
//! Time is in ticks and runs at the same rate for all: the simulation tests clock drift.

mod client;
mod explore;
mod fair;
mod server;

pub(crate) use explore::{exhaust, walk};

use std::time::Duration;

use client::Client;
use leasehold_core::backend::Stamp;
use leasehold_core::memory::LockRecord;

/// How many clients a state has room for. Those beyond [`World::clients`] never start.
const ROOM: usize = 3;

/// How many claims a client can create. Its requests for more are lost.
const CLAIMS: u8 = 32;

/// The world that is explored.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) clients: usize,
    /// How many acquires begin in each client.
    pub(crate) acquires: u8,
    /// In ticks.
    pub(crate) ttl: u8,
    pub(crate) place_ttl: u8,
    /// Whether the server keeps a queue. Without one, clients poll, as with a row lease.
    pub(crate) has_queue: bool,
    /// The last tick.
    pub(crate) end: u8,
    /// How many requests of one client reach the network.
    pub(crate) sends: u8,
    /// Whether calls fail and requests are executed twice.
    pub(crate) faults: bool,
    /// The rule that is broken.
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
    // Between the server and the machines of a client: their inputs, and what is done with their outputs.
    ConfirmationsOfAnotherPlaceCount,
    ValidityFromThePush,
    ValidityFromTheNewestRequest,
    ValidityFromTheReply,
    NoTombstone,
    TombstoneOnlyIfNothingWasAnswered,
    AnswersOfEarlierClaimsCount,
    QueuesAreNeverWoken,
}

/// The promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Two claims hold at once.
    Exclusion,
    /// A token is not higher than every token that was seen before it.
    Token,
    /// A claim has a lease or a place again after its release was executed.
    Orphan,
    /// A claim was granted the lock before an older place.
    Fifo,
    /// A renewal created a lease or a place.
    Created,
    /// The lock stayed free after a request although an acquire is waiting.
    Unserved,
    /// A lease lasts longer than the place that it came from.
    Outlasts,
    /// An acquire that continues to wait does not get the lock after all leases and places of killed processes have
    /// expired.
    Wake,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Verb {
    /// `in_doubt`: an earlier acquire of the claim never had a reply.
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
    /// Its call has failed, so nothing receives the reply.
    is_abandoned: bool,
}

/// The client that creates a claim.
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
    /// The call failed, and it is unknown whether the store executes its request.
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
    /// The claims whose release was executed.
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
    /// The first waiting acquire of a client is cancelled.
    Cancel {
        client: usize,
    },
    /// A lease is released by its holder.
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
