//! Explores locks on a majority of servers: the state machines of `leasehold_core::backend::kit::quorum`, with a model
//! of the servers.
//!
//! Every state of small worlds with three servers is visited. A world with five servers and everything at once is
//! covered by random walks. Tests that break one rule at a time prove that the model detects mistakes.

mod chance;
mod quorum;

use std::time::Instant;

use quorum::{Broken, Findings, Sabotage, Step, World, exhaust, follow, walk};

/// Without fast clocks, a vote of one tick is enough for what does not depend on time, and one of two for a renewal
/// between two ticks.
const TWO: World = World {
    servers: 3,
    clients: 2,
    attempts: 1,
    ttl: 1,
    guesses: &[1],
    renewals: 0,
    joins: false,
    late: 0,
    restarts: 0,
    clock_steps: 0,
    low_raises: false,
    breaks: false,
    fast_clocks: false,
    sabotage: None,
};

const FAST: World = World { fast_clocks: true, ttl: 2, ..TWO };

const RESTART: World = World { restarts: 1, ..TWO };

/// A guess may be below the fence, so that the token is raised.
const BOTH: &[u8] = &[1, 2];

/// Every token is raised.
const NONE: &[u8] = &[0];

/// Every state of these worlds is visited.
const WORLDS: &[(&str, World)] = &[
    ("two clients, fast clocks", World { guesses: BOTH, ..FAST }),
    ("every token is raised, fast clocks", World { guesses: NONE, ..FAST }),
    ("tokens are raised too low", World { guesses: NONE, low_raises: true, ..TWO }),
    ("two attempts", World { attempts: 2, ..TWO }),
    ("late requests", World { late: 2, guesses: BOTH, ..TWO }),
    ("late requests, fast clocks", World { late: 1, ..FAST }),
    ("renewals", World { renewals: 2, joins: true, ttl: 2, ..TWO }),
    ("renewals, fast clocks", World { renewals: 1, fast_clocks: true, ttl: 3, ..TWO }),
    ("renewals, late requests", World { renewals: 1, joins: true, late: 1, ttl: 2, ..TWO }),
    ("a restart", World { guesses: BOTH, ..RESTART }),
    ("a restart, fast clocks", World { restarts: 1, ..FAST }),
    ("a restart, renewals", World { renewals: 1, ttl: 2, ..RESTART }),
    ("every token is raised, a restart", World { guesses: NONE, ..RESTART }),
    ("two restarts", World { restarts: 2, ..TWO }),
    ("breaks", World { renewals: 1, joins: true, breaks: true, ..TWO }),
    ("clock steps", World { clock_steps: 2, guesses: BOTH, ..TWO }),
    ("clock steps, a restart", World { clock_steps: 1, ..RESTART }),
];

/// As many states of these worlds are visited as [`states`] says. They have millions each.
const LARGE: &[(&str, World)] = &[
    ("three clients", World { clients: 3, ..TWO }),
    ("three clients, fast clocks", World { clients: 3, ..FAST }),
    ("a restart, three clients", World { clients: 3, ..RESTART }),
    ("a restart, renewals, late requests", World { renewals: 1, late: 1, joins: true, ttl: 2, ..RESTART }),
    ("restarts, renewals", World { renewals: 1, restarts: 2, ttl: 2, ..TWO }),
    ("two restarts, late requests", World { restarts: 2, late: 1, ..TWO }),
    ("clock steps, three clients", World { clients: 3, clock_steps: 1, ..TWO }),
    ("breaks, late requests", World { renewals: 2, joins: true, late: 1, breaks: true, ttl: 2, ..TWO }),
];

/// Everything at once. More than can be visited.
const FIVE: World = World {
    servers: 5,
    clients: 3,
    attempts: 4,
    ttl: 3,
    guesses: &[1, 3, 6],
    renewals: 4,
    joins: true,
    late: 3,
    restarts: 4,
    clock_steps: 0,
    low_raises: false,
    breaks: false,
    fast_clocks: true,
    sabotage: None,
};

/// How many states of each world in [`LARGE`] are visited.
fn states() -> usize {
    let asked = std::env::var("LEASEHOLD_STATES").ok();
    asked.map_or(100_000, |states| states.parse().expect("LEASEHOLD_STATES is a number"))
}

fn report(name: &str, run: impl FnOnce() -> Findings) -> Findings {
    let began = Instant::now();
    let found = run();
    let (states, told, seconds) = (found.states, found.told, began.elapsed().as_secs_f64());
    println!("{name:55} {states:>9} states, {told:>6} told, {seconds:6.2} s  {:?}", found.broken);
    found
}

fn holds(name: &str, world: &World, most: usize) {
    let found = report(name, || exhaust(world, most));
    assert_eq!(found.broken, None, "{name}: {:#?}", found.trace);
    // A model that cannot move proves nothing.
    assert!(found.told > 100 || found.states >= most, "{name}: only {} grants", found.told);
}

#[test]
fn no_promise_breaks_in_any_state() {
    WORLDS.iter().for_each(|(name, world)| holds(name, world, usize::MAX));
}

#[test]
fn no_promise_breaks_early_in_larger_worlds() {
    LARGE.iter().for_each(|(name, world)| holds(name, world, states()));
}

#[test]
fn no_promise_breaks_on_random_walks() {
    for (name, world, seed) in [
        ("five servers", FIVE, 1),
        ("five servers, clock steps", World { clock_steps: 3, ..FIVE }, 2),
        ("four servers", World { servers: 4, ..FIVE }, 3),
        ("five servers, breaks", World { breaks: true, restarts: 0, ..FIVE }, 4),
    ] {
        let found = report(name, || walk(&world, 1_000, seed));
        assert_eq!(found.broken, None, "{name}: {:#?}", found.trace);
        assert!(found.told > 3_000, "{name}: only {} grants", found.told);
    }
}

/// The vote of client 1 on the last server is forgotten when client 0, whose lease there had ended, puts it back. The
/// whole search is too long.
const PUT_BACK: &[Step] = &[
    Step::Begin { client: 0, guess: 1 },
    Step::Answer { client: 0, server: 0 },
    Step::Answer { client: 0, server: 0 },
    Step::Answer { client: 0, server: 0 },
    Step::Tell { client: 0, token: 0 },
    Step::Tick,
    Step::Renew { client: 0 },
    Step::Answer { client: 0, server: 0 },
    Step::Answer { client: 0, server: 0 },
    Step::Renewed { client: 0 },
    Step::Tick,
    Step::Begin { client: 1, guess: 2 },
    Step::Answer { client: 1, server: 0 },
    Step::Restart { server: 0 },
    Step::Renew { client: 0 },
    Step::Answer { client: 0, server: 0 },
    Step::Answer { client: 0, server: 0 },
    Step::Renewed { client: 0 },
    Step::Tick,
    Step::Answer { client: 1, server: 0 },
    Step::Tell { client: 1, token: 0 },
];

#[test]
fn a_lease_is_put_back_only_while_its_confirmation_lasts() {
    let world = World { renewals: 2, restarts: 1, ttl: 2, guesses: BOTH, ..TWO };
    let found = report("a lease is put back", || follow(&world, PUT_BACK));
    assert_eq!(found.broken, None, "{:#?}", found.trace);
    let world = World { sabotage: Some(Sabotage::PutBackAfterTheConfirmation), ..world };
    let found = report("a lease is put back after its confirmation", || follow(&world, PUT_BACK));
    assert_eq!(found.broken, Some(Broken::Exclusion), "{:#?}", found.trace);
}

#[test]
fn every_broken_rule_is_caught() {
    let renewal = World { renewals: 1, ttl: 2, ..TWO };
    for (sabotage, expected, world) in [
        (Sabotage::OneReplyCountsForAMajority, Broken::Token, TWO),
        (Sabotage::RenewalNeedsAMajorityOfTheReplies, Broken::Exclusion, World { ttl: 3, renewals: 1, ..FAST }),
        (Sabotage::EachServerCountsTokens, Broken::Token, World { clients: 3, ..TWO }),
        (Sabotage::TokenRaisedOnOneServer, Broken::Token, World { guesses: NONE, ..TWO }),
        (Sabotage::TokenThatEqualsTheFence, Broken::Token, TWO),
        (Sabotage::ValidityFromTheReply, Broken::Exclusion, World { ttl: 2, ..TWO }),
        (Sabotage::NoMargin, Broken::Exclusion, FAST),
        (Sabotage::ToldWithoutValidity, Broken::Token, TWO),
        (Sabotage::VotesOfEarlierAttemptsCount, Broken::Token, World { attempts: 2, ttl: 2, guesses: BOTH, ..TWO }),
        (Sabotage::ReleaseEndsAnybodysLease, Broken::Exclusion, World { clients: 3, ..TWO }),
        (Sabotage::NoTombstone, Broken::Orphan, World { late: 1, ..TWO }),
        (Sabotage::RestartedServerVotesAtOnce, Broken::Token, RESTART),
        (Sabotage::RestartedServerVotesAfterItHasAFloor, Broken::Token, RESTART),
        (Sabotage::RestartedServerHasNoFloor, Broken::Token, RESTART),
        (Sabotage::FloorReadBeforeTheEndOfTheWait, Broken::Token, RESTART),
        (Sabotage::FloorReadFromOneServer, Broken::Token, RESTART),
        (Sabotage::RenewTakesAnExpiredLease, Broken::Token, renewal),
        (Sabotage::HolderBelievesUntilItsReleaseIsExecuted, Broken::Exclusion, TWO),
        (Sabotage::OnlyAnsweredVotesAreWithdrawn, Broken::Orphan, TWO),
        (Sabotage::NoReplyToARenewalCountsAsLost, Broken::Loss, renewal),
        (Sabotage::BreakLeavesNoTombstone, Broken::Revived, World { breaks: true, joins: true, ..renewal }),
    ] {
        let found =
            report(&format!("{sabotage:?}"), || exhaust(&World { sabotage: Some(sabotage), ..world }, usize::MAX));
        assert_eq!(found.broken, Some(expected), "{sabotage:?} {:#?}", found.trace);
    }
}

/// Rules of the scripts that no promise here needs, as long as a grant is told only while it is valid.
#[test]
fn some_rules_are_not_needed() {
    for (sabotage, world) in [
        (Sabotage::RaiseByAnybody, World { ttl: 2, guesses: NONE, ..TWO }),
        (Sabotage::RequestsToAnEarlierRunCount, World { late: 1, ..RESTART }),
        (Sabotage::RenewTakesAnExpiredLeaseBelowItsToken, World { renewals: 1, ttl: 2, ..TWO }),
    ] {
        holds(&format!("{sabotage:?}"), &World { sabotage: Some(sabotage), ..world }, usize::MAX);
    }
}
