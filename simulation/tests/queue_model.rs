//! The rules of waiting, exhausted. What is checked is the record that the memory store ships and that the scripts of
//! other stores are held against.
//!
//! Two claims are enough for most ways in which things go wrong, and all their states are visited. Three claims are
//! walked through at random. That the model sees anything at all is proved by breaking one rule at a time.

mod chance;
mod model;

use model::{Broken, Sabotage, World, exhaust, walk};

const TWO: World = World { claims: 2, ttl: 2, place_ttl: 2, end: 4, sends: 2, sabotage: None };

/// Longer than two claims can be followed, and with places that end before leases do.
const THREE: World = World { claims: 3, ttl: 3, place_ttl: 2, end: 9, sends: 4, sabotage: None };

#[test]
fn no_promise_breaks_in_any_state_of_two_claims() {
    let found = exhaust(&TWO);
    assert_eq!(found.broken, None, "{:#?}", found.trace);
    // A model that cannot move proves nothing.
    assert!(found.states > 1_000_000, "only {} states", found.states);
}

#[test]
fn no_promise_breaks_on_random_walks_of_three_claims() {
    for seed in 1..=4 {
        let found = walk(&THREE, 20_000, seed);
        assert_eq!(found.broken, None, "{:#?}", found.trace);
        assert!(found.states > 400_000, "only {} states", found.states);
    }
}

/// The shortest trace comes first, so the kind is always the same.
#[test]
fn every_broken_rule_is_caught_with_two_claims() {
    for (sabotage, expected) in [
        (Sabotage::NewcomersPassWaiters, Broken::Fifo),
        (Sabotage::RepeatedAcquireKeepsTheDeadline, Broken::Exclusion),
        (Sabotage::RenewHidesAGrant, Broken::Wake),
        (Sabotage::RenewCreatesAPlace, Broken::Created),
        (Sabotage::OnlyTheHeadsLookServes, Broken::Unserved),
        (Sabotage::HandoffGivesAFreshTtl, Broken::Wake),
        (Sabotage::PlacesNeverExpire, Broken::Wake),
        (Sabotage::HandoffKeepsTheToken, Broken::Token),
        (Sabotage::ConfirmationsOfAnotherPlaceCount, Broken::Exclusion),
        (Sabotage::ValidityFromThePush, Broken::Token),
        (Sabotage::ValidityFromTheNewestRequest, Broken::Exclusion),
        (Sabotage::ValidityFromTheReply, Broken::Exclusion),
        (Sabotage::NoTombstone, Broken::Orphan),
        (Sabotage::TombstoneOnlyIfNothingWasAnswered, Broken::Orphan),
    ] {
        let found = exhaust(&World { sabotage: Some(sabotage), ..TWO });
        assert_eq!(found.broken, Some(expected), "{sabotage:?} {:#?}", found.trace);
    }
}

/// The late release of one needs a second that holds and a third that is let in.
#[test]
fn a_release_that_ends_anybodys_lease_is_caught_with_three_claims() {
    let world = World { sabotage: Some(Sabotage::ReleaseEndsAnybodysLease), ..THREE };
    let found = walk(&world, 20_000, 1);
    assert_eq!(found.broken, Some(Broken::Exclusion), "{:#?}", found.trace);
}
