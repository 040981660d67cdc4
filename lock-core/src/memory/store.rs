//! The store that the memory backends of one process share.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::record::{ClaimState, LeaseRecord, LockRecord};
use crate::admin::{Listed, ListedName};
use crate::backend::kit::Attachment;
use crate::backend::{
    AcquireRequest, Claim, Delivery, Event, LONGEST_PLACE_TTL, OnContention, PlaceNumber, ReleaseRequest, RenewPolicy,
    RenewRequest,
};
use crate::clock::{Clock, Stamp, SystemClock};
use crate::lock_info::{LeaseInfo, LockInfo};
use crate::name::LockName;
use crate::sync::lock;
use crate::token::FencingToken;

/// Names whose locks are free are removed when there are this many names, and then at each doubling.
const FIRST_SWEEP: usize = 1 << 16;

/// A store in this process. Clones share it; a [`MemoryBackend`](crate::memory::MemoryBackend) makes it available to
/// one client.
///
/// It is the reference for every other store: leases end by its clock, waiters stand in a queue whose head gets the
/// lock, and withdrawn claims leave tombstones for a minute. It ends with the process.
///
/// **Fencing.** Each name counts its grants. The counter outlives lease and record: when the store removes free names
/// (at 65,536 names, so that a program that locks ever new names does not grow for ever) or is made to forget, new
/// names begin above every forgotten token.
///
/// `remove`, `expire` and `forget_everything` tamper with the store, for tests. They notify no client: as after an
/// operator's work on a server, a holder learns of it with its next renewal.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    names: HashMap<LockName, Entry>,
    /// The highest token and place of a name that has no entry any more.
    floor: (u64, PlaceNumber),
    sweep_at: usize,
    counts: RequestCounts,
}

struct Entry {
    record: LockRecord<Party>,
    renewals: u64,
}

/// The handle to the client of one backend; empty until the backend is attached.
pub(super) type Line = Arc<Attachment>;

/// A claim, and the client that is notified of a handoff to it.
#[derive(Clone)]
struct Party {
    claim: Claim,
    line: Line,
}

impl PartialEq for Party {
    fn eq(&self, other: &Self) -> bool {
        self.claim.owner() == other.claim.owner()
    }
}

/// The number of requests that a store has processed since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestCounts {
    /// Acquire calls.
    pub acquires: u64,
    /// Renew calls, each of which may renew many.
    pub renew_calls: u64,
    /// Renewals of leases and places in these calls.
    pub renewals: u64,
    /// Release calls.
    pub releases: u64,
}

/// What a store contains now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourceCounts {
    /// Names with a record, including those that only keep counters.
    pub records: u64,
    /// Leases that have not expired.
    pub leases: u64,
    /// Places that have not expired.
    pub places: u64,
    /// Withdrawn claims that are still remembered.
    pub tombstones: u64,
}

impl MemoryStore {
    /// An empty store whose leases end by `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let state = State {
            names: HashMap::new(),
            floor: (0, PlaceNumber::NONE),
            sweep_at: FIRST_SWEEP,
            counts: RequestCounts::default(),
        };
        Self { shared: Arc::new(Shared { clock, state: Mutex::new(state) }) }
    }

    /// The number of requests that it has processed.
    pub fn counts(&self) -> RequestCounts {
        lock(&self.shared.state).counts
    }

    /// The number of requests to renew a lease or place of this lock.
    pub fn renewals_of(&self, name: &LockName) -> u64 {
        lock(&self.shared.state).names.get(name).map_or(0, |entry| entry.renewals)
    }

    /// What it contains now. Reads every name.
    pub fn resource_counts(&self) -> ResourceCounts {
        let state = lock(&self.shared.state);
        let now = self.shared.clock.now();
        let mut resource_counts = ResourceCounts { records: state.names.len() as u64, ..ResourceCounts::default() };
        for Entry { record, .. } in state.names.values() {
            resource_counts.leases += u64::from(record.live_lease(now).is_some());
            resource_counts.places += record.live_places(now).count() as u64;
            resource_counts.tombstones += record.live_tombstones(now).count() as u64;
        }
        resource_counts
    }

    /// The state of a lock, without changing it. `None` when there is no record of it.
    pub fn inspect(&self, name: &LockName) -> Option<LockInfo> {
        let state = lock(&self.shared.state);
        let now = self.shared.clock.now();
        state.names.get(name).map(|entry| entry.inspect(now))
    }

    /// The locks whose names begin with `prefix`, those that are held first; at most `limit`. Reads every name.
    pub fn list(&self, prefix: &str, limit: usize) -> Vec<Listed> {
        let state = lock(&self.shared.state);
        let now = self.shared.clock.now();
        let mut found: Vec<_> = state.names.iter().filter(|(name, _)| name.as_str().starts_with(prefix)).collect();
        found.sort_by_key(|(name, entry)| (entry.record.live_lease(now).is_none(), *name));
        let listed = found.into_iter().take(limit);
        listed.map(|(name, entry)| Listed::new(ListedName::Whole(name.clone()), entry.inspect(now))).collect()
    }

    /// Tampers: removes the lease, the queue and the tombstones of a lock, as an operator would. The counters stay.
    pub fn remove(&self, name: &LockName) {
        if let Some(entry) = lock(&self.shared.state).names.get_mut(name) {
            entry.record = LockRecord::after(entry.record.last_token, entry.record.last_place);
        }
    }

    /// Tampers: ends the lease of a lock as if its ttl had passed. The queue stays, and the next request serves it.
    pub fn expire(&self, name: &LockName) {
        if let Some(entry) = lock(&self.shared.state).names.get_mut(name) {
            entry.record.holders.clear();
        }
    }

    /// Tampers: forgets every lease, queue and tombstone, as a server that restarts without its data. New tokens are
    /// still higher than any before, as with a server that draws them from its clock.
    pub fn forget_everything(&self) {
        let mut state = lock(&self.shared.state);
        for (_, entry) in std::mem::take(&mut state.names) {
            raise(&mut state.floor, &entry.record);
        }
    }

    pub(super) fn acquire(&self, request: &AcquireRequest, line: &Line) -> ClaimState {
        let AcquireRequest { claim, ttl, .. } = request;
        self.work(|state, now, handoffs| {
            state.counts.acquires += 1;
            let party = Party { claim: claim.clone(), line: line.clone() };
            let place_ttl = match request.on_contention {
                OnContention::Queue => Some(LONGEST_PLACE_TTL.min(*ttl)),
                OnContention::Fail => None,
            };
            state.record(claim.name(), now).acquire(&party, *ttl, place_ttl, now, handoffs)
        })
    }

    pub(super) fn renew(&self, requests: &[RenewRequest], line: &Line) -> Vec<ClaimState> {
        let mut shortened = Vec::new();
        let standings = self.work(|state, now, handoffs| {
            state.counts.renew_calls += 1;
            state.counts.renewals += requests.len() as u64;
            let mut standings = Vec::with_capacity(requests.len());
            for request in requests {
                let standing = match state.names.get_mut(request.claim.name()) {
                    None => ClaimState::Absent { retry_after: Duration::ZERO },
                    Some(entry) => {
                        entry.renewals += 1;
                        let party = Party { claim: request.claim.clone(), line: line.clone() };
                        let RenewRequest { ttl, policy, .. } = *request;
                        let place_ttl = ttl.min(LONGEST_PLACE_TTL);
                        let standing = entry.record.renew(&party, ttl, place_ttl, policy, now, handoffs);
                        if policy == RenewPolicy::Exactly && matches!(standing, ClaimState::Holds { .. }) {
                            shortened.extend(entry.record.live_places(now).next().map(|place| place.party.clone()));
                        }
                        standing
                    }
                };
                standings.push(standing);
            }
            standings
        });
        for Party { claim, line } in shortened {
            if let Some(core) = line.get() {
                core.event(Event::EndsSooner { owner: *claim.owner() });
            }
        }
        standings
    }

    pub(super) fn release(&self, request: &ReleaseRequest, line: &Line) -> bool {
        let ReleaseRequest { claim, delivery } = request;
        self.work(|state, now, handoffs| {
            state.counts.releases += 1;
            let party = Party { claim: claim.clone(), line: line.clone() };
            // A claim in doubt needs its tombstone even if there is no record.
            if *delivery == Delivery::Confirmed && !state.names.contains_key(claim.name()) {
                return false;
            }
            state.record(claim.name(), now).release(&party, *delivery, now, handoffs)
        })
    }

    pub(super) fn break_lock(&self, name: &LockName, token: FencingToken) -> Option<FencingToken> {
        self.work(|state, now, handoffs| state.names.get_mut(name)?.record.break_lease(token, now, handoffs))
    }

    /// One critical section, then its notifications. The clock is read inside, so that time never goes back for a
    /// record.
    fn work<T>(&self, work: impl FnOnce(&mut State, Stamp, &mut Vec<LeaseRecord<Party>>) -> T) -> T {
        let mut handoffs = Vec::new();
        let done = {
            let mut state = lock(&self.shared.state);
            let now = self.shared.clock.now();
            work(&mut state, now, &mut handoffs)
        };
        for LeaseRecord { party, place, token, .. } in handoffs {
            if let Some(core) = party.line.get() {
                core.event(Event::Granted { owner: *party.claim.owner(), place, token, confirmation: None });
            }
        }
        done
    }
}

impl Entry {
    fn inspect(&self, now: Stamp) -> LockInfo {
        let record = &self.record;
        let holders = record
            .live_lease(now)
            .map(|lease| LeaseInfo::new(lease.token, lease.until.since(now), Some(lease.party.claim.holder().clone())));
        let last_token = (record.last_token > 0).then(|| FencingToken::new(record.last_token));
        LockInfo::new(last_token, holders.into_iter().collect(), Some(record.live_places(now).count() as u64))
    }
}

impl State {
    fn record(&mut self, name: &LockName, now: Stamp) -> &mut LockRecord<Party> {
        if self.names.len() >= self.sweep_at {
            self.sweep_out(now);
        }
        let (token, place) = self.floor;
        let fresh = || Entry { record: LockRecord::after(token, place), renewals: 0 };
        &mut self.names.entry(name.clone()).or_insert_with(fresh).record
    }

    fn sweep_out(&mut self, now: Stamp) {
        let floor = &mut self.floor;
        self.names.retain(|_, entry| {
            let idle = entry.record.is_idle(now);
            if idle {
                raise(floor, &entry.record);
            }
            !idle
        });
        self.sweep_at = (self.names.len() * 2).max(FIRST_SWEEP);
    }
}

fn raise(floor: &mut (u64, PlaceNumber), record: &LockRecord<Party>) {
    *floor = (floor.0.max(record.last_token), floor.1.max(record.last_place));
}

impl Default for MemoryStore {
    /// A store on the machine's clock.
    fn default() -> Self {
        Self::new(Arc::new(SystemClock::new()))
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
