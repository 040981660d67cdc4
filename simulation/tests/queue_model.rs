//! Explores waiting on a server with a queue and on one without: the keeper's own state machines with the record that
//! the memory store uses. The test `same_rules` compares the other stores with that record.
//!
//! With two clients that send one request each, every state is visited. With two clients that send three each on a
//! faulty network, as many states as time allows are visited, breadth first. Longer histories, of three clients with
//! several acquires each, are covered by random walks. Tests that break one rule at a time prove that the model detects
//! mistakes.

mod chance;
mod model;

use model::{Broken, Sabotage, World, exhaust, walk};

/// Every state of this world is visited.
const SHORT: World = World {
    clients: 2,
    acquires: 1,
    ttl: 2,
    place_ttl: 2,
    has_queue: true,
    end: 2,
    sends: 1,
    faults: false,
    sabotage: None,
};

const TWO: World = World { end: 4, sends: 3, faults: true, ..SHORT };

/// Each client has several acquires, and places end before leases do.
const LONG: World = World { clients: 2, acquires: 2, ttl: 3, place_ttl: 2, end: 10, sends: 10, ..TWO };

const THREE: World = World { clients: 3, end: 12, sends: 12, ..LONG };

/// The same without a queue at the server, as with a row lease. Each poll is a request.
const SHORT_ROW: World = World { has_queue: false, ..SHORT };

const TWO_ROW: World = World { has_queue: false, ..TWO };

const LONG_ROW: World = World { has_queue: false, ..LONG };

const THREE_ROW: World = World { has_queue: false, ..THREE };

/// How many states of [`TWO`] are visited.
fn states() -> usize {
    let asked = std::env::var("LEASEHOLD_STATES").ok();
    asked.map_or(200_000, |states| states.parse().expect("LEASEHOLD_STATES is a number"))
}

#[test]
fn no_promise_breaks_in_any_state_of_two_requests() {
    for world in [&SHORT, &SHORT_ROW] {
        let found = exhaust(world, usize::MAX);
        assert_eq!(found.broken, None, "{:#?}", found.trace);
        // A model that cannot move proves nothing.
        assert!(found.states > 150_000, "only {} states", found.states);
    }
}

#[test]
fn no_promise_breaks_early_on_a_faulty_network() {
    for world in [&TWO, &TWO_ROW] {
        let found = exhaust(world, states());
        assert_eq!(found.broken, None, "{:#?}", found.trace);
        assert!(found.states >= states(), "only {} states", found.states);
    }
}

#[test]
fn no_promise_breaks_on_random_walks() {
    for (world, seed) in [(&LONG, 1), (&LONG, 2), (&THREE, 3), (&THREE, 4), (&LONG_ROW, 5), (&THREE_ROW, 6)] {
        let found = walk(world, 5_000, seed);
        assert_eq!(found.broken, None, "{:#?}", found.trace);
        assert!(found.states > 150_000, "only {} steps", found.states);
    }
}

#[test]
fn every_broken_rule_is_caught() {
    for (sabotage, expected) in [
        (Sabotage::NewcomersPassWaiters, Broken::Fifo),
        (Sabotage::RepeatedAcquireKeepsTheDeadline, Broken::Exclusion),
        (Sabotage::RenewHidesAGrant, Broken::Wake),
        (Sabotage::RenewCreatesAPlace, Broken::Created),
        (Sabotage::OnlyTheHeadsLookServes, Broken::Unserved),
        (Sabotage::HandoffGivesAFreshTtl, Broken::Outlasts),
        (Sabotage::PlacesNeverExpire, Broken::Wake),
        (Sabotage::HandoffKeepsTheToken, Broken::Token),
        (Sabotage::ReleaseEndsAnybodysLease, Broken::Exclusion),
        (Sabotage::ConfirmationsOfAnotherPlaceCount, Broken::Token),
        (Sabotage::ValidityFromThePush, Broken::Exclusion),
        (Sabotage::ValidityFromTheNewestRequest, Broken::Exclusion),
        (Sabotage::ValidityFromTheReply, Broken::Exclusion),
        (Sabotage::NoTombstone, Broken::Orphan),
        (Sabotage::TombstoneOnlyIfNothingWasAnswered, Broken::Orphan),
        (Sabotage::AnswersOfEarlierClaimsCount, Broken::Wake),
        (Sabotage::QueuesAreNeverWoken, Broken::Wake),
    ] {
        let found = walk(&World { sabotage: Some(sabotage), ..LONG }, 60_000, 1);
        assert_eq!(found.broken, Some(expected), "{sabotage:?} {:#?}", found.trace);
    }
}

#[test]
fn every_broken_rule_of_a_row_is_caught() {
    for (sabotage, expected) in [
        (Sabotage::RepeatedAcquireKeepsTheDeadline, Broken::Exclusion),
        (Sabotage::GrantKeepsTheToken, Broken::Token),
        (Sabotage::ReleaseEndsAnybodysLease, Broken::Token),
        (Sabotage::RenewTakesAnExpiredLease, Broken::Created),
        (Sabotage::AcquireTakesAHeldLease, Broken::Exclusion),
        (Sabotage::ValidityFromTheReply, Broken::Exclusion),
        (Sabotage::NoTombstone, Broken::Orphan),
        (Sabotage::TombstoneOnlyIfNothingWasAnswered, Broken::Orphan),
        (Sabotage::AnswersOfEarlierClaimsCount, Broken::Exclusion),
    ] {
        let found = walk(&World { sabotage: Some(sabotage), ..LONG_ROW }, 60_000, 1);
        assert_eq!(found.broken, Some(expected), "{sabotage:?} {:#?}", found.trace);
    }
}
