//! The rules of one lock at a store that keeps a queue, as a state machine without clock, task or network.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Stamp;
use crate::grant::{Certainty, Place};
use crate::renewal::Extend;
use crate::token::FencingToken;

/// How long a withdrawn claim is remembered: a late copy of its acquire that arrives within this time does nothing.
const TOMBSTONE_TTL: Duration = Duration::from_secs(60);

/// What the store keeps of one lock, and the rules by which it changes.
///
/// `P` is the party that claims: two are equal when they are the same claim. Time comes in as `now`, by the store's
/// clock, and never goes back.
///
/// # Rules
/// 1. Every operation first drops what has expired. If the lock is free then, the oldest live place becomes the
///    lease: anybody's look serves all.
/// 2. A place is a lease of its own: a number that only grows, and a deadline. A lease keeps the number of the place
///    that it came from; one that was granted at once has a number too.
/// 3. Acquire and renew move the deadline of what the party has to the later of the old one and now + ttl. Renew
///    creates nothing.
/// 4. A handoff keeps the place's number and deadline and raises the token. It is told to the party, because it
///    cannot know otherwise, but proves nothing about when the ttl began.
/// 5. A release of a claim that is unsure leaves a tombstone: no late acquire of that claim has an effect.
///
/// The fields are open: a model or a saboteur builds and breaks any state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockRecord<P> {
    /// The current lease; it may have expired unnoticed.
    pub lease: Option<HeldLease<P>>,
    /// The queue, oldest place first; some may have expired unnoticed.
    pub places: VecDeque<QueuedPlace<P>>,
    /// The token of the last grant. Outlives the lease.
    pub last_token: u64,
    /// The number of the last place. Outlives the lease.
    pub last_place: Place,
    /// Withdrawn claims, and until when each is remembered.
    pub tombstones: Vec<(P, Stamp)>,
}

/// A lease at the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeldLease<P> {
    /// Who holds.
    pub party: P,
    /// The place that it came from.
    pub place: Place,
    /// The token of the grant.
    pub token: FencingToken,
    /// When it ends unless it is renewed.
    pub until: Stamp,
    /// Whether it came by handoff: its party may not know the token yet.
    pub handed_off: bool,
}

/// A place in the queue of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueuedPlace<P> {
    /// Who waits.
    pub party: P,
    /// The number.
    pub place: Place,
    /// When it ends unless it is renewed.
    pub until: Stamp,
}

/// How a party stands after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It holds the lock.
    Holds {
        /// The token of its grant.
        token: FencingToken,
        /// The place that the lease came from.
        place: Place,
        /// Whether the lease came by handoff.
        handed_off: bool,
    },
    /// It has a place.
    Waits {
        /// The number of its place.
        place: Place,
        /// How long the holder's lease still lasts.
        look_in: Duration,
    },
    /// It has neither, because another holds and it wants no place, or because what it had is gone.
    Absent {
        /// How long the holder's lease still lasts; zero when the lock is free.
        look_in: Duration,
    },
    /// It was withdrawn: nothing that it asked for has an effect any more.
    Withdrawn,
}

impl<P> Default for LockRecord<P> {
    fn default() -> Self {
        Self::after(0, 0)
    }
}

impl<P> LockRecord<P> {
    /// The record of a free lock whose next token and place come after these.
    pub const fn after(last_token: u64, last_place: Place) -> Self {
        Self { lease: None, places: VecDeque::new(), last_token, last_place, tombstones: Vec::new() }
    }

    /// The lease, unless it has expired.
    pub fn live_lease(&self, now: Stamp) -> Option<&HeldLease<P>> {
        self.lease.as_ref().filter(|lease| now < lease.until)
    }

    /// The places that have not expired, oldest first.
    pub fn live_places(&self, now: Stamp) -> impl Iterator<Item = &QueuedPlace<P>> {
        self.places.iter().filter(move |place| now < place.until)
    }

    /// Withdrawn claims that are still remembered.
    pub fn live_tombstones(&self, now: Stamp) -> impl Iterator<Item = &P> {
        self.tombstones.iter().filter(move |(_, until)| now < *until).map(|(party, _)| party)
    }

    /// Whether only the counters are left.
    pub fn is_idle(&self, now: Stamp) -> bool {
        self.live_lease(now).is_none()
            && self.live_places(now).next().is_none()
            && self.live_tombstones(now).next().is_none()
    }

    fn look_in(&self, now: Stamp) -> Duration {
        self.lease.as_ref().map_or(Duration::ZERO, |lease| lease.until.since(now))
    }
}

impl<P: Clone + PartialEq> LockRecord<P> {
    /// One try of `party` to get the lock for `ttl`, or, if `place_ttl` is given, a place in its queue for that time.
    /// Handoffs that this brings about are added to `handoffs`.
    pub fn acquire(
        &mut self,
        party: &P,
        ttl: Duration,
        place_ttl: Option<Duration>,
        now: Stamp,
        handoffs: &mut Vec<HeldLease<P>>,
    ) -> Standing {
        self.sweep(now, handoffs);
        if self.live_tombstones(now).any(|withdrawn| withdrawn == party) {
            return Standing::Withdrawn;
        }
        let found = self.extend(party, ttl, place_ttl.unwrap_or(ttl), Extend::AtLeast, now);
        if let Some(standing) = found {
            return standing;
        }
        if self.lease.is_none() {
            self.last_place += 1;
            let place = self.last_place;
            let lease = self.grant(QueuedPlace { party: party.clone(), place, until: now.plus(ttl) }, false);
            return lease.standing();
        }
        let look_in = self.look_in(now);
        let Some(place_ttl) = place_ttl else {
            return Standing::Absent { look_in };
        };
        self.last_place += 1;
        let place = self.last_place;
        self.places.push_back(QueuedPlace { party: party.clone(), place, until: now.plus(place_ttl) });
        Standing::Waits { place, look_in }
    }

    /// Renews what `party` has: its lease to `ttl`, or its place to `place_ttl`.
    pub fn renew(
        &mut self,
        party: &P,
        ttl: Duration,
        place_ttl: Duration,
        extend: Extend,
        now: Stamp,
        handoffs: &mut Vec<HeldLease<P>>,
    ) -> Standing {
        self.sweep(now, handoffs);
        let absent = Standing::Absent { look_in: self.look_in(now) };
        self.extend(party, ttl, place_ttl, extend, now).unwrap_or(absent)
    }

    /// Ends the lease or place of `party`. Says whether it had one.
    pub fn release(&mut self, party: &P, certainty: Certainty, now: Stamp, handoffs: &mut Vec<HeldLease<P>>) -> bool {
        self.sweep(now, handoffs);
        if certainty == Certainty::Unsure {
            self.tombstones.retain(|(withdrawn, _)| withdrawn != party);
            self.tombstones.push((party.clone(), now.plus(TOMBSTONE_TTL)));
        }
        if self.lease.as_ref().is_some_and(|lease| lease.party == *party) {
            self.lease = None;
            self.sweep(now, handoffs);
            return true;
        }
        let before = self.places.len();
        self.places.retain(|place| place.party != *party);
        self.places.len() < before
    }

    /// Ends the lease if its token is `token`, whoever has it, and raises the token once on its own. Gives the raised one.
    pub fn break_lease(
        &mut self,
        token: FencingToken,
        now: Stamp,
        handoffs: &mut Vec<HeldLease<P>>,
    ) -> Option<FencingToken> {
        self.sweep(now, handoffs);
        self.lease.take_if(|lease| lease.token == token)?;
        self.last_token += 1;
        let raised = FencingToken::new(self.last_token);
        self.sweep(now, handoffs);
        Some(raised)
    }

    /// Rule 1.
    fn sweep(&mut self, now: Stamp, handoffs: &mut Vec<HeldLease<P>>) {
        if self.live_lease(now).is_none() {
            self.lease = None;
        }
        self.places.retain(|place| now < place.until);
        self.tombstones.retain(|(_, until)| now < *until);
        if self.lease.is_none()
            && let Some(oldest) = self.places.pop_front()
        {
            let lease = self.grant(oldest, true).clone();
            handoffs.push(lease);
        }
    }

    fn grant(&mut self, QueuedPlace { party, place, until }: QueuedPlace<P>, handed_off: bool) -> &HeldLease<P> {
        self.last_token += 1;
        let token = FencingToken::new(self.last_token);
        self.lease.insert(HeldLease { party, place, token, until, handed_off })
    }

    fn extend(
        &mut self,
        party: &P,
        ttl: Duration,
        place_ttl: Duration,
        extend: Extend,
        now: Stamp,
    ) -> Option<Standing> {
        let until = |old: Stamp, ttl: Duration| match extend {
            Extend::AtLeast => old.max(now.plus(ttl)),
            Extend::Exactly => now.plus(ttl),
        };
        let look_in = self.look_in(now);
        if let Some(lease) = self.lease.as_mut().filter(|lease| lease.party == *party) {
            lease.until = until(lease.until, ttl);
            return Some(lease.standing());
        }
        let place = self.places.iter_mut().find(|place| place.party == *party)?;
        place.until = until(place.until, place_ttl);
        Some(Standing::Waits { place: place.place, look_in })
    }
}

impl<P> HeldLease<P> {
    const fn standing(&self) -> Standing {
        Standing::Holds { token: self.token, place: self.place, handed_off: self.handed_off }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);
    const PLACE_TTL: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Stamp {
        Stamp::from_start(Duration::from_secs(seconds))
    }

    /// One lock, parties by number, and the parties that a handoff was told to.
    #[derive(Default)]
    struct Lock {
        record: LockRecord<u8>,
        told: Vec<HeldLease<u8>>,
    }

    impl Lock {
        fn acquire(&mut self, party: u8, now: u64) -> Standing {
            self.record.acquire(&party, TTL, Some(PLACE_TTL), at(now), &mut self.told)
        }

        fn renew(&mut self, party: u8, now: u64) -> Standing {
            self.record.renew(&party, TTL, PLACE_TTL, Extend::AtLeast, at(now), &mut self.told)
        }

        fn release(&mut self, party: u8, certainty: Certainty, now: u64) -> bool {
            self.record.release(&party, certainty, at(now), &mut self.told)
        }

        fn told(&mut self) -> Vec<(u8, Place, u64)> {
            self.told.drain(..).map(|lease| (lease.party, lease.place, lease.token.get())).collect()
        }
    }

    fn holds(token: u64, place: Place, handed_off: bool) -> Standing {
        Standing::Holds { token: FencingToken::new(token), place, handed_off }
    }

    fn waits(place: Place, look_in: u64) -> Standing {
        Standing::Waits { place, look_in: Duration::from_secs(look_in) }
    }

    fn absent(look_in: u64) -> Standing {
        Standing::Absent { look_in: Duration::from_secs(look_in) }
    }

    #[test]
    fn a_release_hands_the_lock_to_the_oldest_live_place_with_its_own_deadline() {
        let mut lock = Lock::default();
        assert_eq!(lock.acquire(1, 0), holds(1, 1, false));
        assert_eq!(lock.acquire(2, 1), waits(2, 29));
        assert_eq!(lock.acquire(3, 2), waits(3, 28));
        assert_eq!(lock.renew(3, 10), waits(3, 20));
        // Place 2 ended at 11.
        assert!(lock.release(1, Certainty::Sure, 12));
        assert_eq!(lock.told(), [(3, 3, 2)]);
        assert_eq!(lock.record.lease.as_ref().map(|lease| lease.until), Some(at(20)));
        assert_eq!(lock.renew(3, 13), holds(2, 3, true));
        assert_eq!(lock.record.lease.as_ref().map(|lease| lease.until), Some(at(43)));
        assert_eq!(lock.renew(2, 13), absent(30));
    }

    #[test]
    fn anybodys_look_serves_the_head_of_the_queue() {
        let mut lock = Lock::default();
        lock.acquire(1, 0);
        lock.acquire(2, 21);
        lock.acquire(3, 22);
        assert_eq!(lock.renew(3, 30), waits(3, 1));
        assert_eq!(lock.told(), [(2, 2, 2)]);
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
        assert_eq!(lock.told(), [(2, 2, 2)]);
    }

    #[test]
    fn a_claim_that_wants_no_place_leaves_nothing() {
        let mut lock = Lock::default();
        lock.acquire(1, 0);
        let leave = |lock: &mut Lock, now| lock.record.acquire(&2, TTL, None, at(now), &mut lock.told);
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
        assert!(!lock.release(1, Certainty::Sure, 30));
        assert!(lock.record.is_idle(at(30)));
        assert_eq!(lock.acquire(1, 31), holds(2, 2, false));
    }

    #[test]
    fn a_renewal_shortens_only_when_it_is_asked_to() {
        let mut lock = Lock::default();
        lock.acquire(1, 0);
        let second = Duration::from_secs(1);
        lock.record.renew(&1, second, second, Extend::AtLeast, at(10), &mut lock.told);
        assert_eq!(lock.record.lease.as_ref().map(|lease| lease.until), Some(at(30)));
        lock.record.renew(&1, second, second, Extend::Exactly, at(10), &mut lock.told);
        assert_eq!(lock.record.lease.as_ref().map(|lease| lease.until), Some(at(11)));
    }

    #[test]
    fn a_withdrawn_claim_stays_away() {
        let mut lock = Lock::default();
        assert!(!lock.release(1, Certainty::Unsure, 0));
        assert_eq!(lock.acquire(1, 1), Standing::Withdrawn);
        assert_eq!(lock.record.lease, None);
        assert!(!lock.record.is_idle(at(59)));
        assert!(lock.record.is_idle(at(60)));
        // A sure release needs none.
        lock.acquire(2, 60);
        assert!(lock.release(2, Certainty::Sure, 61));
        assert!(lock.record.is_idle(at(61)));
    }

    #[test]
    fn a_broken_lease_ends_below_a_token_of_its_own_and_only_the_one_that_was_meant() {
        let mut lock = Lock::default();
        lock.acquire(1, 0);
        lock.acquire(2, 1);
        let breaks = |lock: &mut Lock, token, now| {
            lock.record.break_lease(FencingToken::new(token), at(now), &mut lock.told).map(FencingToken::get)
        };
        assert_eq!(breaks(&mut lock, 2, 2), None);
        assert_eq!(breaks(&mut lock, 1, 2), Some(2));
        assert_eq!(lock.told(), [(2, 2, 3)]);
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
        assert!(lock.release(2, Certainty::Sure, 1));
        assert!(!lock.release(2, Certainty::Sure, 1));
        assert!(lock.release(1, Certainty::Sure, 2));
        assert_eq!(lock.told(), [(3, 3, 2)]);
    }
}
