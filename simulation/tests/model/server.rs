//! The server: the rules of the memory store, the ways to break them, and what must be true after each operation.

use std::time::Duration;

use leasehold_core::FencingToken;
use leasehold_core::backend::{Delivery, PlaceNumber, RenewPolicy, Stamp};
use leasehold_core::memory::{ClaimState, LeaseRecord, LockRecord};

use super::{Broken, Push, Reply, Request, Sabotage, Verb, World, at, ticks};

type Record = LockRecord<u8>;

/// Executes one request. The caller remembers and checks what a release has withdrawn.
pub(super) fn serve(
    world: &World,
    record: &mut Record,
    request: Request,
    now: u8,
) -> Result<(Option<Reply>, Vec<Push>), Broken> {
    let mut handoffs = Vec::new();
    let had = lasts_until(record, request.claim, now).is_some();
    let places: Vec<_> = record.places.iter().map(|place| (place.party, place.until)).collect();
    let reply = match world.sabotage {
        Some(sabotage) => broken(world, sabotage, record, request, now, &mut handoffs),
        None => by_the_rules(world, record, request, now, &mut handoffs),
    };
    // A tick is a second, so no tombstone expires within a run. Without the tombstone's time, states that behave alike
    // are equal.
    record.tombstones.iter_mut().for_each(|(_, until)| *until = never());
    record.tombstones.sort_unstable();
    check(record, request, now, had)?;
    check_handoff(record, request, &places)?;
    let push =
        |lease: &LeaseRecord<u8>| Push { claim: lease.party, token: lease.token.get(), place: lease.place.get() };
    Ok((reply, handoffs.iter().map(push).collect()))
}

fn by_the_rules(
    world: &World,
    record: &mut Record,
    request: Request,
    now: u8,
    handoffs: &mut Vec<LeaseRecord<u8>>,
) -> Option<Reply> {
    let (ttl, place_ttl, party, now) = (ticks(world.ttl), ticks(world.place_ttl), &request.claim, at(now));
    let standing = match request.verb {
        Verb::Acquire { .. } => record.acquire(party, ttl, world.has_queue.then_some(place_ttl), now, handoffs),
        Verb::Renew { .. } => record.renew(party, ttl, place_ttl, RenewPolicy::AtLeast, now, handoffs),
        Verb::Release { in_doubt } => {
            let delivery = if in_doubt { Delivery::InDoubt } else { Delivery::Confirmed };
            let had = record.release(party, delivery, now, handoffs);
            return Some(Reply::Ended { had });
        }
    };
    Some(match standing {
        ClaimState::Holds { token, place, .. } => Reply::Holds { token: token.get(), place: place.get() },
        ClaimState::Waits { place, .. } => Reply::Waits { place: place.get() },
        ClaimState::Absent { .. } if matches!(request.verb, Verb::Acquire { .. }) => Reply::Contended,
        ClaimState::Absent { .. } | ClaimState::Withdrawn => Reply::Lost,
    })
}

/// The same with one rule broken.
fn broken(
    world: &World,
    sabotage: Sabotage,
    record: &mut Record,
    request: Request,
    now: u8,
    handoffs: &mut Vec<LeaseRecord<u8>>,
) -> Option<Reply> {
    let Request { claim, verb, .. } = request;
    let before = lasts_until(record, claim, now);
    let is_free = record.live_lease(at(now)).is_none();
    let mut rules = |record: &mut Record| by_the_rules(world, record, request, now, handoffs);
    let reply = match (sabotage, verb) {
        (Sabotage::NewcomersPassWaiters, Verb::Acquire { .. }) if is_free && before.is_none() => {
            let waiting = std::mem::take(&mut record.places);
            let reply = rules(record);
            record.places = waiting;
            reply
        }
        (Sabotage::RepeatedAcquireKeepsTheDeadline, Verb::Acquire { .. }) => {
            let reply = rules(record);
            if let (Some(old), Some(until)) = (before, until_mut(record, claim)) {
                *until = old;
            }
            reply
        }
        (Sabotage::RenewHidesAGrant, Verb::Renew { held: false, .. }) => match rules(record) {
            Some(Reply::Holds { .. }) => Some(Reply::Lost),
            other => other,
        },
        (Sabotage::RenewCreatesAPlace, Verb::Renew { .. }) => {
            let acquire = Request { verb: Verb::Acquire { in_doubt: false }, ..request };
            by_the_rules(world, record, if before.is_none() { acquire } else { request }, now, handoffs)
        }
        (Sabotage::OnlyTheHeadsLookServes, Verb::Acquire { .. } | Verb::Renew { .. })
            if is_free && record.live_places(at(now)).next().is_some_and(|head| head.party != claim) =>
        {
            // Replies as if the lease still existed.
            let there = LeaseRecord {
                party: u8::MAX,
                place: PlaceNumber::NONE,
                token: FencingToken::new(0),
                until: never(),
                handed_off: false,
            };
            let holders = std::mem::replace(&mut record.holders, vec![there]);
            let reply = rules(record);
            record.holders = holders;
            reply
        }
        (Sabotage::GrantKeepsTheToken, Verb::Acquire { .. }) if is_free && record.last_token > 0 => {
            record.last_token -= 1;
            rules(record)
        }
        (Sabotage::RenewTakesAnExpiredLease, Verb::Renew { .. }) if is_free => {
            if let Some(lease) = record.holders.iter_mut().find(|lease| lease.party == claim) {
                lease.until = at(now + 1);
            }
            rules(record)
        }
        (Sabotage::AcquireTakesAHeldLease, Verb::Acquire { .. }) if before.is_none() => {
            record.holders.clear();
            rules(record)
        }
        (Sabotage::ReleaseEndsAnybodysLease, Verb::Release { .. }) => {
            record.holders.clear();
            rules(record)
        }
        _ => rules(record),
    };
    let place_ttl = ticks(world.place_ttl);
    if let (Some(lease), Some(last)) = (record.holders.first_mut(), handoffs.last_mut()) {
        match sabotage {
            Sabotage::HandoffGivesAFreshTtl => lease.until = lease.until.max(at(now).plus(place_ttl)),
            Sabotage::HandoffKeepsTheToken => {
                record.last_token -= 1;
                lease.token = FencingToken::new(record.last_token);
                last.token = lease.token;
            }
            _ => {}
        }
    }
    if sabotage == Sabotage::PlacesNeverExpire {
        record.places.iter_mut().for_each(|place| place.until = never());
    }
    reply
}

/// Checks what must be true after every operation on a lock.
fn check(record: &Record, request: Request, now: u8, had: bool) -> Result<(), Broken> {
    if let Some(lease) = record.holders.first()
        && record.places.iter().any(|place| place.place < lease.place)
    {
        return Err(Broken::Fifo);
    }
    if record.live_lease(at(now)).is_none() && record.live_places(at(now)).next().is_some() {
        return Err(Broken::Unserved);
    }
    let has = lasts_until(record, request.claim, now).is_some();
    if matches!(request.verb, Verb::Renew { .. }) && has && !had {
        return Err(Broken::Created);
    }
    Ok(())
}

/// A lease that comes from a place ends when the place would have ended: its client may be gone.
fn check_handoff(record: &Record, request: Request, places: &[(u8, Stamp)]) -> Result<(), Broken> {
    let outlasts = |lease: &LeaseRecord<u8>| {
        places.iter().any(|(party, until)| *party == lease.party && *party != request.claim && *until < lease.until)
    };
    if record.holders.iter().any(outlasts) { Err(Broken::Outlasts) } else { Ok(()) }
}

fn never() -> Stamp {
    Stamp::ZERO.plus(Duration::MAX)
}

/// When the lease or place of a claim ends, if it has one.
fn lasts_until(record: &Record, claim: u8, now: u8) -> Option<Stamp> {
    let lease = record.live_lease(at(now)).filter(|lease| lease.party == claim).map(|lease| lease.until);
    lease.or_else(|| record.live_places(at(now)).find(|place| place.party == claim).map(|place| place.until))
}

fn until_mut(record: &mut Record, claim: u8) -> Option<&mut Stamp> {
    let lease = record.holders.iter_mut().find(|lease| lease.party == claim).map(|lease| &mut lease.until);
    lease.or_else(|| record.places.iter_mut().find(|place| place.party == claim).map(|place| &mut place.until))
}
