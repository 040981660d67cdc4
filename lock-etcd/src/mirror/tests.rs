//! The decisions about one queue, one at a time.

use super::*;

fn owner(number: u8) -> OwnerToken {
    OwnerToken::from_bytes([number; 16])
}

fn key(number: u8) -> Vec<u8> {
    vec![b'q', b'/', number]
}

fn waiting(number: u8, revision: i64) -> (OwnerToken, Member<u8>) {
    (owner(number), Member { key: key(number), revision, holds: false, of: number })
}

fn holding(number: u8, revision: i64) -> (OwnerToken, Member<u8>) {
    let (owner, claim) = waiting(number, revision);
    (owner, Member { holds: true, ..claim })
}

fn put(number: u8, revision: i64) -> Change {
    Change::Put { key: key(number), create_revision: revision, mod_revision: revision }
}

fn deleted(number: u8, mod_revision: i64) -> Change {
    Change::Deleted { key: key(number), mod_revision }
}

fn granted(number: u8, revision: i64) -> Decision<u8> {
    Decision::Granted { of: number, revision }
}

fn gone(number: u8) -> Decision<u8> {
    Decision::Gone { of: number, owner: owner(number) }
}

/// A mirror whose watch 7 is open, with these places at this revision.
fn live(revision: i64, places: &[(u8, i64)]) -> Mirror<u8> {
    let mut mirror = Mirror::new();
    mirror.opening(7);
    assert!(mirror.created(7));
    let read = places.iter().map(|&(number, revision)| (key(number), revision));
    assert_eq!(mirror.read(7, revision, read), []);
    mirror
}

fn add(mirror: &mut Mirror<u8>, (owner, claim): (OwnerToken, Member<u8>)) -> Vec<Decision<u8>> {
    mirror.add(owner, claim)
}

#[test]
fn the_next_in_line_gets_the_lock_once() {
    let mut mirror = live(12, &[(1, 10), (2, 12)]);
    assert_eq!(add(&mut mirror, waiting(2, 12)), []);
    assert_eq!(mirror.position(&owner(2)), Position::Behind);
    assert_eq!(mirror.changed(7, vec![put(3, 13)]), []);
    assert_eq!(mirror.changed(7, vec![deleted(1, 14)]), [granted(2, 12)]);
    assert_eq!(mirror.position(&owner(2)), Position::First);
    assert_eq!(mirror.changed(7, vec![deleted(3, 15)]), []);
}

#[test]
fn a_claim_is_first_only_when_its_own_key_was_delivered() {
    // The mirror has not heard of claim 1, which is before claim 2, nor of claim 2.
    let mut mirror = live(9, &[]);
    assert_eq!(add(&mut mirror, waiting(2, 12)), []);
    assert_eq!(mirror.position(&owner(2)), Position::Unknown);
    assert_eq!(mirror.changed(7, vec![put(1, 10)]), []);
    assert_eq!(mirror.changed(7, vec![put(2, 12)]), []);
    assert_eq!(mirror.position(&owner(2)), Position::Behind);
    assert_eq!(mirror.changed(7, vec![deleted(1, 13)]), [granted(2, 12)]);
}

/// The next claim of a client has the key of the one before it.
#[test]
fn an_earlier_claim_with_the_same_key_is_another_one() {
    let mut mirror = live(12, &[(1, 10), (2, 12)]);
    let (_, claim) = waiting(1, 15);
    // The mirror still has the key of the earlier claim, which was the first one.
    assert_eq!(mirror.add(owner(9), claim), []);
    assert_eq!(mirror.position(&owner(9)), Position::Unknown);
    assert_eq!(mirror.changed(7, vec![deleted(1, 14)]), []);
    assert_eq!(mirror.position(&owner(9)), Position::Unknown);
    assert_eq!(mirror.changed(7, vec![put(1, 15)]), []);
    assert_eq!(mirror.position(&owner(9)), Position::Behind);
    assert_eq!(mirror.changed(7, vec![deleted(2, 16)]), [granted(1, 15)]);
}

#[test]
fn a_claim_may_be_added_after_its_key_was_delivered() {
    let mut mirror = live(9, &[(1, 8)]);
    assert_eq!(mirror.changed(7, vec![put(2, 12), deleted(1, 13)]), []);
    assert_eq!(add(&mut mirror, waiting(2, 12)), [granted(2, 12)]);
}

#[test]
fn a_key_that_is_gone_is_reported_once() {
    let mut mirror = live(10, &[(1, 10)]);
    assert_eq!(add(&mut mirror, holding(1, 10)), []);
    assert_eq!(mirror.changed(7, vec![deleted(1, 11)]), [gone(1)]);
    assert!(mirror.is_empty());
    assert_eq!(mirror.changed(7, vec![put(3, 12)]), []);
    // It was deleted before it was added.
    assert_eq!(add(&mut mirror, waiting(2, 11)), [gone(2)]);
}

#[test]
fn changes_before_the_read_are_applied_by_their_revisions() {
    let mut mirror = Mirror::new();
    mirror.opening(7);
    assert!(mirror.created(7) && !mirror.created(7));
    assert_eq!(add(&mut mirror, waiting(2, 12)), []);
    assert_eq!(mirror.position(&owner(2)), Position::Unknown);
    // The read includes the first two. The third one is newer.
    assert_eq!(mirror.changed(7, vec![put(1, 10), deleted(1, 11), deleted(3, 14)]), []);
    assert_eq!(mirror.read(7, 13, [(key(2), 12), (key(3), 9)]), [granted(2, 12)]);
}

/// The watch of a member that lags behind delivers what happened long before the read.
#[test]
fn late_changes_of_an_earlier_claim_with_the_same_key_change_nothing() {
    let mut mirror = Mirror::new();
    mirror.opening(7);
    assert!(mirror.created(7));
    add(&mut mirror, holding(2, 12));
    assert_eq!(mirror.changed(7, vec![put(2, 6), deleted(2, 7)]), []);
    assert_eq!(mirror.read(7, 13, [(key(2), 12)]), []);
    assert_eq!(mirror.changed(7, vec![put(1, 8), put(2, 9), deleted(2, 10)]), []);
    assert_eq!(mirror.position(&owner(2)), Position::First);
}

#[test]
fn after_a_break_the_next_read_decides() {
    let mut mirror = live(12, &[(1, 10), (2, 12)]);
    add(&mut mirror, holding(1, 10));
    add(&mut mirror, waiting(2, 12));
    mirror.closed();
    assert_eq!((mirror.position(&owner(1)), mirror.watch()), (Position::Unknown, None));
    mirror.opening(8);
    assert!(!mirror.created(7), "of the former watch");
    assert_eq!(mirror.changed(7, vec![deleted(1, 13)]), [], "of the former watch");
    assert!(mirror.created(8));
    let mut decisions = mirror.read(8, 20, [(key(2), 12)]);
    decisions.sort_by_key(|decision| matches!(decision, Decision::Granted { .. }));
    assert_eq!(decisions, [gone(1), granted(2, 12)]);
}

#[test]
fn a_late_read_of_a_former_watch_changes_nothing() {
    let mut mirror = live(12, &[(2, 12)]);
    add(&mut mirror, holding(2, 12));
    assert_eq!(mirror.read(7, 30, []), []);
    assert_eq!(mirror.position(&owner(2)), Position::First);
    mirror.closed();
    mirror.opening(8);
    mirror.created(8);
    assert_eq!(mirror.read(7, 30, []), [], "it began before the present watch");
    assert_eq!(mirror.position(&owner(2)), Position::Unknown);
}

#[test]
fn a_key_that_is_attached_to_another_session_keeps_its_place() {
    let mut mirror = live(12, &[(1, 10), (2, 12)]);
    add(&mut mirror, holding(1, 10));
    let renewed = Change::Put { key: key(1), create_revision: 10, mod_revision: 13 };
    assert_eq!(mirror.changed(7, vec![renewed]), []);
    assert_eq!(mirror.position(&owner(1)), Position::First);
    // Another key of the same claim is another place.
    let another = Change::Put { key: key(1), create_revision: 15, mod_revision: 15 };
    assert_eq!(mirror.changed(7, vec![another]), [gone(1)]);
}

#[test]
fn one_transaction_may_change_several_keys() {
    let mut mirror = live(12, &[(1, 10), (2, 11), (3, 12)]);
    add(&mut mirror, waiting(3, 12));
    assert_eq!(mirror.changed(7, vec![deleted(1, 13), deleted(2, 13)]), [granted(3, 12)]);
}

#[test]
fn a_claim_that_has_ended_gets_no_decision() {
    let mut mirror = live(12, &[(1, 10), (2, 12)]);
    add(&mut mirror, waiting(2, 12));
    mirror.remove(&owner(2));
    assert!(mirror.is_empty());
    assert_eq!(mirror.changed(7, vec![deleted(1, 13)]), []);
}
