//! The rules of one lock at a store that keeps a queue, as a state machine without clock, task or network.

use std::collections::VecDeque;
use std::time::Duration;

use crate::backend::{Delivery, PlaceNumber, RenewPolicy, WITHDRAWN_TTL};
use crate::clock::Stamp;
use crate::token::FencingToken;

/// What the store keeps of one lock, and the rules by which it changes.
///
/// `P` is the party that claims. Two parties are equal if they are the same claim. Time comes in as `now`, by the
/// store's clock, and never goes back.
///
/// # Rules
/// 1. Every operation first drops what has expired. If the lock is then free, the oldest live place becomes the lease.
///    So any client's request serves all clients.
/// 2. A place has a number, higher than that of every earlier place, and a deadline. A lease keeps the number of the
///    place that it came from. A lease that was granted at once has a number too.
/// 3. Acquire and renew move the deadline of what the party has to the later of the old one and now + ttl. Renew
///    creates nothing.
/// 4. A handoff keeps the place's number and deadline and raises the token. The store notifies the party, which cannot
///    know otherwise. The notification does not prove when the ttl began.
/// 5. A release of a claim in doubt leaves a tombstone: no late acquire of that claim has an effect.
///
/// The fields are public, so that a model or a saboteur can build and break any state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockRecord<P> {
    /// The current leases; at most one while every claim is exclusive. It may have expired unnoticed.
    pub holders: Vec<LeaseRecord<P>>,
    /// The queue, oldest place first; some may have expired unnoticed.
    pub places: VecDeque<QueuedPlace<P>>,
    /// The token of the last grant. Outlives the lease.
    pub last_token: u64,
    /// The number of the last place. Outlives the lease.
    pub last_place: PlaceNumber,
    /// Withdrawn claims, and until when each is remembered.
    pub tombstones: Vec<(P, Stamp)>,
}

/// A lease at the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRecord<P> {
    /// The holder.
    pub party: P,
    /// The place that it came from.
    pub place: PlaceNumber,
    /// The token of the grant.
    pub token: FencingToken,
    /// When it ends unless it is renewed.
    pub until: Stamp,
    /// Whether it came by a handoff. Its party may not know the token yet.
    pub handed_off: bool,
}

/// A place in the queue of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueuedPlace<P> {
    /// The waiter.
    pub party: P,
    /// The number of the place.
    pub place: PlaceNumber,
    /// When it ends unless it is renewed.
    pub until: Stamp,
}

/// The state of a party after an operation.
#[expect(clippy::exhaustive_enums, reason = "a model has to know each")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimState {
    /// It holds the lock.
    Holds {
        /// The token of its grant.
        token: FencingToken,
        /// The place that the lease came from.
        place: PlaceNumber,
        /// Whether the lease came by handoff.
        handed_off: bool,
    },
    /// It has a place.
    Waits {
        /// The number of its place.
        place: PlaceNumber,
        /// How long the holder's lease still lasts.
        retry_after: Duration,
    },
    /// It has neither: another party holds the lock and it wants no place, or what it had is gone.
    Absent {
        /// How long the holder's lease still lasts; zero if the lock is free.
        retry_after: Duration,
    },
    /// It was withdrawn: none of its requests has an effect any more.
    Withdrawn,
}

impl<P> Default for LockRecord<P> {
    fn default() -> Self {
        Self::after(0, PlaceNumber::NONE)
    }
}

impl<P> LockRecord<P> {
    /// The record of a free lock whose next token and place come after these.
    pub const fn after(last_token: u64, last_place: PlaceNumber) -> Self {
        Self { holders: Vec::new(), places: VecDeque::new(), last_token, last_place, tombstones: Vec::new() }
    }

    /// The lease, unless it has expired.
    pub fn live_lease(&self, now: Stamp) -> Option<&LeaseRecord<P>> {
        self.holders.iter().find(|lease| now < lease.until)
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

    fn retry_after(&self, now: Stamp) -> Duration {
        self.holders.first().map_or(Duration::ZERO, |lease| lease.until.since(now))
    }
}

impl<P: Clone + PartialEq> LockRecord<P> {
    /// One attempt of `party` to get the lock for `ttl` or, if `place_ttl` is given, a place in its queue for that
    /// time. Adds the handoffs that follow to `handoffs`.
    pub fn acquire(
        &mut self,
        party: &P,
        ttl: Duration,
        place_ttl: Option<Duration>,
        now: Stamp,
        handoffs: &mut Vec<LeaseRecord<P>>,
    ) -> ClaimState {
        self.sweep(now, handoffs);
        if self.live_tombstones(now).any(|withdrawn| withdrawn == party) {
            return ClaimState::Withdrawn;
        }
        let found = self.extend(party, ttl, place_ttl.unwrap_or(ttl), RenewPolicy::AtLeast, now);
        if let Some(standing) = found {
            return standing;
        }
        if self.holders.is_empty() {
            self.last_place = self.last_place.next();
            let place = self.last_place;
            let lease = self.grant(QueuedPlace { party: party.clone(), place, until: now.plus(ttl) }, false);
            return lease.standing();
        }
        let retry_after = self.retry_after(now);
        let Some(place_ttl) = place_ttl else {
            return ClaimState::Absent { retry_after };
        };
        self.last_place = self.last_place.next();
        let place = self.last_place;
        self.places.push_back(QueuedPlace { party: party.clone(), place, until: now.plus(place_ttl) });
        ClaimState::Waits { place, retry_after }
    }

    /// Renews what `party` has: its lease to `ttl`, or its place to `place_ttl`.
    pub fn renew(
        &mut self,
        party: &P,
        ttl: Duration,
        place_ttl: Duration,
        policy: RenewPolicy,
        now: Stamp,
        handoffs: &mut Vec<LeaseRecord<P>>,
    ) -> ClaimState {
        self.sweep(now, handoffs);
        let absent = ClaimState::Absent { retry_after: self.retry_after(now) };
        self.extend(party, ttl, place_ttl, policy, now).unwrap_or(absent)
    }

    /// Ends the lease or place of `party`. Returns whether it had one.
    pub fn release(&mut self, party: &P, delivery: Delivery, now: Stamp, handoffs: &mut Vec<LeaseRecord<P>>) -> bool {
        self.sweep(now, handoffs);
        if delivery == Delivery::InDoubt {
            self.tombstones.retain(|(withdrawn, _)| withdrawn != party);
            self.tombstones.push((party.clone(), now.plus(WITHDRAWN_TTL)));
        }
        let before = self.holders.len();
        self.holders.retain(|lease| lease.party != *party);
        if self.holders.len() < before {
            self.sweep(now, handoffs);
            return true;
        }
        let before = self.places.len();
        self.places.retain(|place| place.party != *party);
        self.places.len() < before
    }

    /// Ends the lease if its token is `token`, whoever holds it, and raises the token once more. Returns the raised
    /// token.
    pub fn break_lease(
        &mut self,
        token: FencingToken,
        now: Stamp,
        handoffs: &mut Vec<LeaseRecord<P>>,
    ) -> Option<FencingToken> {
        self.sweep(now, handoffs);
        let broken = self.holders.iter().position(|lease| lease.token == token)?;
        self.holders.remove(broken);
        self.last_token += 1;
        let raised = FencingToken::new(self.last_token);
        self.sweep(now, handoffs);
        Some(raised)
    }

    /// Applies rule 1.
    fn sweep(&mut self, now: Stamp, handoffs: &mut Vec<LeaseRecord<P>>) {
        self.holders.retain(|lease| now < lease.until);
        self.places.retain(|place| now < place.until);
        self.tombstones.retain(|(_, until)| now < *until);
        if self.holders.is_empty()
            && let Some(oldest) = self.places.pop_front()
        {
            let lease = self.grant(oldest, true).clone();
            handoffs.push(lease);
        }
    }

    fn grant(&mut self, QueuedPlace { party, place, until }: QueuedPlace<P>, handed_off: bool) -> &LeaseRecord<P> {
        self.last_token += 1;
        let token = FencingToken::new(self.last_token);
        // A second holder is rare, and a `Vec` that grows by itself takes room for four.
        self.holders.reserve_exact(1);
        self.holders.push(LeaseRecord { party, place, token, until, handed_off });
        &self.holders[self.holders.len() - 1]
    }

    fn extend(
        &mut self,
        party: &P,
        ttl: Duration,
        place_ttl: Duration,
        policy: RenewPolicy,
        now: Stamp,
    ) -> Option<ClaimState> {
        let until = |old: Stamp, ttl: Duration| match policy {
            RenewPolicy::AtLeast => old.max(now.plus(ttl)),
            RenewPolicy::Exactly => now.plus(ttl),
        };
        let retry_after = self.retry_after(now);
        if let Some(lease) = self.holders.iter_mut().find(|lease| lease.party == *party) {
            lease.until = until(lease.until, ttl);
            return Some(lease.standing());
        }
        let place = self.places.iter_mut().find(|place| place.party == *party)?;
        place.until = until(place.until, place_ttl);
        Some(ClaimState::Waits { place: place.place, retry_after })
    }
}

impl<P> LeaseRecord<P> {
    const fn standing(&self) -> ClaimState {
        ClaimState::Holds { token: self.token, place: self.place, handed_off: self.handed_off }
    }
}

#[cfg(test)]
mod tests;
