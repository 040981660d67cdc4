//! The rules, one at a time.

use super::*;

const TTL: Duration = Duration::from_secs(30);
const PLACE_TTL: Duration = Duration::from_secs(10);

fn at(seconds: u64) -> Stamp {
    Stamp::from_start(Duration::from_secs(seconds))
}

/// One lock, parties by number, and the parties that a handoff was pushed to.
#[derive(Default)]
struct Lock {
    record: LockRecord<u8>,
    pushed: Vec<LeaseRecord<u8>>,
}

impl Lock {
    fn acquire(&mut self, party: u8, now: u64) -> ClaimState {
        self.record.acquire(&party, TTL, Some(PLACE_TTL), at(now), &mut self.pushed)
    }

    fn renew(&mut self, party: u8, now: u64) -> ClaimState {
        self.record.renew(&party, TTL, PLACE_TTL, RenewPolicy::AtLeast, at(now), &mut self.pushed)
    }

    fn release(&mut self, party: u8, delivery: Delivery, now: u64) -> bool {
        self.record.release(&party, delivery, at(now), &mut self.pushed)
    }

    fn pushed(&mut self) -> Vec<(u8, u64, u64)> {
        self.pushed.drain(..).map(|lease| (lease.party, lease.place.get(), lease.token.get())).collect()
    }
}

fn holds(token: u64, place: u64, handed_off: bool) -> ClaimState {
    ClaimState::Holds { token: FencingToken::new(token), place: PlaceNumber::new(place), handed_off }
}

fn waits(place: u64, retry_after: u64) -> ClaimState {
    ClaimState::Waits { place: PlaceNumber::new(place), retry_after: Duration::from_secs(retry_after) }
}

fn absent(retry_after: u64) -> ClaimState {
    ClaimState::Absent { retry_after: Duration::from_secs(retry_after) }
}

#[test]
fn a_release_hands_the_lock_to_the_oldest_live_place_with_its_own_deadline() {
    let mut lock = Lock::default();
    assert_eq!(lock.acquire(1, 0), holds(1, 1, false));
    assert_eq!(lock.acquire(2, 1), waits(2, 29));
    assert_eq!(lock.acquire(3, 2), waits(3, 28));
    assert_eq!(lock.renew(3, 10), waits(3, 20));
    // Place 2 ended at 11.
    assert!(lock.release(1, Delivery::Confirmed, 12));
    assert_eq!(lock.pushed(), [(3, 3, 2)]);
    assert_eq!(lock.record.holders.first().map(|lease| lease.until), Some(at(20)));
    assert_eq!(lock.renew(3, 13), holds(2, 3, true));
    assert_eq!(lock.record.holders.first().map(|lease| lease.until), Some(at(43)));
    assert_eq!(lock.renew(2, 13), absent(30));
}

#[test]
fn anybodys_look_serves_the_head_of_the_queue() {
    let mut lock = Lock::default();
    lock.acquire(1, 0);
    lock.acquire(2, 21);
    lock.acquire(3, 22);
    assert_eq!(lock.renew(3, 30), waits(3, 1));
    assert_eq!(lock.pushed(), [(2, 2, 2)]);
}

#[test]
fn a_repeated_acquire_answers_the_same_grant_and_never_comes_before_its_turn() {
    let mut lock = Lock::default();
    assert_eq!(lock.acquire(1, 0), holds(1, 1, false));
    assert_eq!(lock.acquire(1, 20), holds(1, 1, false));
    assert_eq!(lock.acquire(2, 41), waits(2, 9));
    assert_eq!(lock.acquire(3, 42), waits(3, 8));
    assert_eq!(lock.acquire(2, 43), waits(2, 7));
    // The lease ends at 50: a newcomer must not pass those who wait.
    assert_eq!(lock.acquire(4, 50), waits(4, 3));
    assert_eq!(lock.pushed(), [(2, 2, 2)]);
}

#[test]
fn a_claim_that_wants_no_place_leaves_nothing() {
    let mut lock = Lock::default();
    lock.acquire(1, 0);
    let leave = |lock: &mut Lock, now| lock.record.acquire(&2, TTL, None, at(now), &mut lock.pushed);
    assert_eq!(leave(&mut lock, 10), absent(20));
    assert_eq!(lock.record.places.len(), 0);
    assert_eq!(leave(&mut lock, 30), holds(2, 2, false));
}

#[test]
fn renew_creates_nothing_and_revives_nothing() {
    let mut lock = Lock::default();
    assert_eq!(lock.renew(1, 0), absent(0));
    lock.acquire(1, 0);
    assert_eq!(lock.renew(1, 30), absent(0));
    assert!(!lock.release(1, Delivery::Confirmed, 30));
    assert!(lock.record.is_idle(at(30)));
    assert_eq!(lock.acquire(1, 31), holds(2, 2, false));
}

#[test]
fn a_renewal_shortens_only_when_it_is_asked_to() {
    let mut lock = Lock::default();
    lock.acquire(1, 0);
    let second = Duration::from_secs(1);
    lock.record.renew(&1, second, second, RenewPolicy::AtLeast, at(10), &mut lock.pushed);
    assert_eq!(lock.record.holders.first().map(|lease| lease.until), Some(at(30)));
    lock.record.renew(&1, second, second, RenewPolicy::Exactly, at(10), &mut lock.pushed);
    assert_eq!(lock.record.holders.first().map(|lease| lease.until), Some(at(11)));
}

#[test]
fn a_withdrawn_claim_stays_away() {
    let mut lock = Lock::default();
    assert!(!lock.release(1, Delivery::InDoubt, 0));
    assert_eq!(lock.acquire(1, 1), ClaimState::Withdrawn);
    assert_eq!(lock.record.holders, []);
    assert!(!lock.record.is_idle(at(59)));
    assert!(lock.record.is_idle(at(60)));
    // A release without doubt needs no tombstone.
    lock.acquire(2, 60);
    assert!(lock.release(2, Delivery::Confirmed, 61));
    assert!(lock.record.is_idle(at(61)));
}

#[test]
fn a_broken_lease_ends_below_a_token_of_its_own_and_only_the_one_that_was_meant() {
    let mut lock = Lock::default();
    lock.acquire(1, 0);
    lock.acquire(2, 1);
    let breaks = |lock: &mut Lock, token, now| {
        lock.record.break_lease(FencingToken::new(token), at(now), &mut lock.pushed).map(FencingToken::get)
    };
    assert_eq!(breaks(&mut lock, 2, 2), None);
    assert_eq!(breaks(&mut lock, 1, 2), Some(2));
    assert_eq!(lock.pushed(), [(2, 2, 3)]);
    assert_eq!(lock.renew(1, 3), absent(8));
    assert_eq!(breaks(&mut lock, 1, 3), None);
    assert_eq!(breaks(&mut lock, 3, 11), None, "that lease had expired");
    assert_eq!(lock.acquire(3, 11), holds(4, 3, false));
}

#[test]
fn a_waiter_that_leaves_changes_nothing_for_the_others() {
    let mut lock = Lock::default();
    lock.acquire(1, 0);
    lock.acquire(2, 0);
    lock.acquire(3, 0);
    assert!(lock.release(2, Delivery::Confirmed, 1));
    assert!(!lock.release(2, Delivery::Confirmed, 1));
    assert!(lock.release(1, Delivery::Confirmed, 2));
    assert_eq!(lock.pushed(), [(3, 3, 2)]);
}

/// At its deadline a lease, a place and a tombstone are over.
#[test]
fn a_deadline_is_the_first_moment_that_is_too_late() {
    let mut lock = Lock::default();
    assert_eq!(lock.acquire(1, 0), holds(1, 1, false));
    assert_eq!(lock.acquire(2, 20), waits(2, 10));
    assert_eq!((lock.record.live_places(at(29)).count(), lock.record.live_places(at(30)).count()), (1, 0));
    assert!(lock.record.live_lease(at(29)).is_some() && lock.record.live_lease(at(30)).is_none());
    assert_eq!(lock.acquire(3, 30), holds(2, 3, false));
    assert_eq!(lock.pushed(), []);

    let mut lock = Lock::default();
    lock.release(1, Delivery::InDoubt, 0);
    assert_eq!(lock.acquire(1, 59), ClaimState::Withdrawn);
    assert_eq!(lock.acquire(1, 60), holds(1, 1, false));
}

/// A claim that is withdrawn again is remembered once, and the others still.
#[test]
fn a_withdrawal_forgets_no_other() {
    let mut lock = Lock::default();
    for party in [1, 2, 1] {
        lock.release(party, Delivery::InDoubt, 0);
    }
    assert_eq!(lock.record.live_tombstones(at(1)).copied().collect::<Vec<_>>(), [2, 1]);
}
