//! The history checker finds injected violations. Each history is the smallest one with its violation.

use std::time::Duration;

use leasehold_conformance::history::{Hold, Violation, check, check_writes};
use leasehold_core::{FencingToken, LockName};

fn hold(lock: &str, token: u64, from: u64, until: u64) -> Hold {
    Hold {
        lock: LockName::new(lock).expect("a name"),
        token: FencingToken::new(token),
        from: Duration::from_millis(from),
        until: Duration::from_millis(until),
    }
}

/// Three holders of one lock, one of another at the same time, in random order.
fn sound() -> Vec<Hold> {
    vec![hold("a", 9, 30, 40), hold("b", 2, 0, 100), hold("a", 3, 0, 10), hold("a", 4, 10, 20)]
}

#[test]
fn a_valid_history_passes() {
    assert_eq!(check(&sound()), Ok(()));
    assert_eq!(check(&[]), Ok(()));
}

#[test]
fn a_grant_with_an_old_token_is_found() {
    let mut holds = sound();
    holds.push(hold("a", 4, 50, 60));
    assert!(matches!(check(&holds), Err(Violation::TokenTwice(..))));
}

#[test]
fn a_token_that_falls_is_found() {
    let mut holds = sound();
    holds.push(hold("a", 2, 50, 60));
    assert!(matches!(check(&holds), Err(Violation::OutOfOrder(..))));
}

#[test]
fn two_consecutive_holds_that_overlap_are_found() {
    let mut holds = sound();
    holds.push(hold("a", 10, 39, 50));
    assert!(matches!(check(&holds), Err(Violation::Overlap(..))));
}

#[test]
fn a_long_hold_over_two_later_ones_is_found() {
    let holds = [hold("a", 1, 0, 100), hold("a", 2, 100, 101), hold("a", 3, 50, 60)];
    assert!(matches!(check(&holds), Err(Violation::OutOfOrder(..))));
    let holds = [hold("a", 1, 0, 100), hold("a", 2, 50, 60), hold("a", 3, 100, 101)];
    assert!(matches!(check(&holds), Err(Violation::Overlap(..))));
}

#[test]
fn a_grant_inside_the_time_of_another_is_found_though_its_end_is_unknown() {
    // The second hold counts only as a grant, within the time of the first one.
    let holds = [hold("a", 1, 0, 100), hold("a", 2, 20, 20)];
    assert!(matches!(check(&holds), Err(Violation::Overlap(..))));
}

#[test]
fn a_hold_that_ends_before_it_begins_is_found() {
    let mut holds = sound();
    holds.push(hold("a", 10, 60, 50));
    assert!(matches!(check(&holds), Err(Violation::Backwards(..))));
}

#[test]
fn a_late_write_is_found() {
    let writes = |tokens: &[u64]| check_writes(&tokens.iter().copied().map(FencingToken::new).collect::<Vec<_>>());
    assert_eq!(writes(&[3, 3, 4, 9]), Ok(()));
    let late = Violation::LateWrite { after: FencingToken::new(4), token: FencingToken::new(3) };
    assert_eq!(writes(&[3, 4, 3, 9]), Err(late));
}

#[test]
fn one_lock_says_nothing_about_another() {
    assert_eq!(check(&[hold("a", 5, 0, 100), hold("b", 5, 0, 100), hold("c", 1, 50, 60)]), Ok(()));
}
