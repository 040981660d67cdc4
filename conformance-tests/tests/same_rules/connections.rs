//! One random sequence on the memory store and on `SELECT … FOR UPDATE`, step by step.
//!
//! The rules of grants, places, releases, withdraws and tokens are the same. What differs by design:
//! - A lease ends with its connection. A step that ends the connection of a lease releases its claim in the memory
//!   store.
//! - The lease of a claim that waited begins with its grant, and has the whole ttl. In the record it has the deadline
//!   of the place.
//! - A ttl is whole seconds. Both stores get the ttl as the backend rounds it.
//! - No time of a wall clock ends a lease. So no time passes in the memory store, and a sequence is short against each
//!   ttl.
//! - Places have numbers of their client. A claim keeps its number.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use leasehold_conformance::Direct;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Claim, Delivery, Event, OnContention, OwnerToken, PlaceNumber, ReleaseOutcome,
    RenewReply, RenewRequest,
};
use leasehold_core::{ErrorKind, FencingToken, HolderInfo, LockInfo, LockName, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::difference::Difference;
use super::pair::{CLIENTS, Pair};
use super::sequence::{Compared, Numbers, PUSHED, SLOTS, agree, claim, inspect, names, near, who};

/// In milliseconds. They differ by more than a sequence takes.
const TTLS: [u64; 4] = [120_000, 150_300, 180_000, 240_700];

/// A running sequence.
pub(super) struct Sequence<'a> {
    pair: &'a Pair,
    rng: StdRng,
    seed: u64,
    drawn: u64,
    locks: Vec<Lock>,
    log: Vec<String>,
    /// How often each kind of reply was compared.
    pub(super) seen: BTreeMap<&'static str, u64>,
}

/// One lock, its claims, and what is expected of them.
struct Lock {
    name: LockName,
    claims: Vec<Claim>,
    /// What a claim that holds or waits has.
    had: HashMap<OwnerToken, Had>,
    /// Claims whose leases were ended by others.
    ended: HashSet<OwnerToken>,
    tokens: Numbers,
}

#[derive(Clone, Copy, Debug)]
struct Had {
    /// Its place in either store.
    places: [PlaceNumber; 2],
    ttl: Duration,
    /// When its lease ends at the server at the earliest; `None` for a place.
    ends: Option<Instant>,
    /// Whether the lease came by handoff.
    waited: bool,
}

impl<'a> Sequence<'a> {
    pub(super) fn new(pair: &'a Pair, seed: u64) -> Self {
        let (rng, locks, log, seen) = (StdRng::seed_from_u64(seed), Vec::new(), Vec::new(), BTreeMap::new());
        let mut sequence = Self { pair, rng, seed, drawn: 0, locks, log, seen };
        for name in names(seed) {
            let claims = (0..SLOTS).map(|_| sequence.draw(&name)).collect();
            let (had, ended, tokens) = Default::default();
            sequence.locks.push(Lock { name, claims, had, ended, tokens });
        }
        sequence
    }

    fn draw(&mut self, name: &LockName) -> Claim {
        self.drawn += 1;
        claim(name, self.seed, self.drawn)
    }

    /// Runs the sequence, and releases everything. The error names the difference and the steps before it.
    pub(super) async fn run(&mut self, steps: usize) -> Compared {
        let mut compared = Ok(());
        for _ in 0..steps {
            compared = self.step().await;
            if compared.is_err() {
                break;
            }
        }
        // Each lease and each place has a connection.
        for claim in self.locks.iter().flat_map(|lock| &lock.claims) {
            let _ = self.clients(claim)[1].release(claim, Delivery::InDoubt).await;
        }
        compared.map_err(|difference| format!("{difference}, after\n{}", self.log.join("\n")))
    }

    async fn step(&mut self) -> Compared {
        let lock = self.rng.random_range(0..self.locks.len());
        match self.rng.random_range(0..20) {
            0..=8 => self.acquire(lock).await?,
            9..=12 => self.renew(lock).await?,
            13..=17 => self.release(lock).await?,
            18 => self.end_connection(lock).await?,
            _ => self.break_lease(lock).await?,
        }
        self.compare_notifications().await?;
        for lock in 0..self.locks.len() {
            self.compare_state(lock).await?;
        }
        Ok(())
    }

    /// The client of a claim, in the memory store and at the server.
    fn clients(&self, claim: &Claim) -> [&'a Direct; 2] {
        let nth = usize::from(claim.owner().as_bytes()[15]) % CLIENTS;
        [&self.pair.memory[nth], &self.pair.clients[nth]]
    }

    /// A claim; `had` prefers one that holds or waits.
    fn some(&mut self, lock: usize, had: bool) -> Claim {
        let all = &self.locks[lock];
        let known: Vec<_> = all.claims.iter().filter(|claim| all.had.contains_key(claim.owner())).collect();
        match known.len() {
            count if had && count > 0 && self.rng.random_bool(0.8) => known[self.rng.random_range(0..count)].clone(),
            _ => all.claims[self.rng.random_range(0..SLOTS)].clone(),
        }
    }

    fn replace(&mut self, lock: usize, claim: &Claim) {
        let name = self.locks[lock].name.clone();
        let fresh = self.draw(&name);
        if let Some(slot) = self.locks[lock].claims.iter_mut().find(|slot| slot.owner() == claim.owner()) {
            *slot = fresh;
        }
    }

    /// Whether a claim waits. Some have one attempt.
    fn waits(claim: &Claim) -> bool {
        !claim.owner().as_bytes()[15].is_multiple_of(7)
    }

    fn ttl(&mut self) -> Duration {
        let ttl = Duration::from_millis(TTLS[self.rng.random_range(0..TTLS.len())]);
        self.pair.clients[0].capabilities().round_up(ttl)
    }

    async fn acquire(&mut self, lock: usize) -> Compared {
        let (claim, ttl) = (self.some(lock, false), self.ttl());
        if self.locks[lock].ended.contains(claim.owner()) {
            // lock-core never uses a claim again whose lease has ended, and it withdraws it.
            let _ = self.clients(&claim)[1].release(&claim, Delivery::InDoubt).await;
            self.replace(lock, &claim);
            return Ok(());
        }
        let on_contention = if Self::waits(&claim) { OnContention::Queue } else { OnContention::Fail };
        let request = AcquireRequest::new(claim.clone(), ttl).on_contention(on_contention);
        let [memory, server] = self.clients(&claim);
        let (memory, sent) = (memory.request(&request).await, Instant::now());
        let server = server.request(&request).await;
        self.log.push(format!("{} acquires for {ttl:?}: {memory:?}", who(&claim)));
        match (memory, server) {
            (Ok(AcquireOutcome::Granted(memory)), Ok(AcquireOutcome::Granted(server))) => {
                self.note("granted");
                agree("the ttl", memory.confirmation.ttl, server.confirmation.ttl)?;
                self.locks[lock].tokens.pair(memory.token.get(), server.token.get())?;
                let places = [memory.confirmation.place, server.confirmation.place];
                self.note_lease(lock, &claim, (places, ttl, sent), false);
                Ok(())
            }
            (
                Ok(AcquireOutcome::Queued { confirmation: memory, .. }),
                Ok(AcquireOutcome::Queued { confirmation: server, .. }),
            ) => {
                self.note("queued");
                agree("the ttl of a place", memory.ttl, server.ttl)?;
                self.note_place(lock, &claim, [memory.place, server.place], ttl)
            }
            (Ok(AcquireOutcome::Contended { .. }), Ok(AcquireOutcome::Contended { .. })) => {
                self.note("held");
                Ok(())
            }
            (Err(memory), Err(server)) if memory.kind() == ErrorKind::Lost => {
                self.note("withdrawn");
                let error = agree("an error", memory.kind(), server.kind());
                self.replace(lock, &claim);
                error
            }
            (memory, server) => Err(format!("acquire: {memory:?} in memory, {server:?} at the server")),
        }
    }

    /// Notes a lease, or its renewal: it ends no sooner than before.
    fn note_lease(&mut self, lock: usize, claim: &Claim, lease: ([PlaceNumber; 2], Duration, Instant), waited: bool) {
        let (places, ttl, sent) = lease;
        let had = self.locks[lock].had.get(claim.owner()).copied();
        let before = had.filter(|had| had.ends.is_some());
        let ends = Some((sent + ttl).max(before.and_then(|had| had.ends).unwrap_or(sent)));
        let ttl = before.map_or(ttl, |had| ttl.max(had.ttl));
        let waited = waited || before.is_some_and(|had| had.waited);
        self.locks[lock].had.insert(*claim.owner(), Had { places, ttl, ends, waited });
    }

    fn note_place(&mut self, lock: usize, claim: &Claim, places: [PlaceNumber; 2], ttl: Duration) -> Compared {
        let before = self.locks[lock].had.get(claim.owner()).copied();
        let asked = before.map_or(ttl, |had| had.ttl);
        self.locks[lock].had.insert(*claim.owner(), Had { places, ttl: asked, ends: None, waited: false });
        match before {
            Some(had) => {
                agree("whether a claim keeps its place", [true; 2], [0, 1].map(|it| had.places[it] == places[it]))
            }
            None => Ok(()),
        }
    }

    async fn renew(&mut self, lock: usize) -> Compared {
        let (claim, ttl) = (self.some(lock, true), self.ttl());
        let known = self.locks[lock].had.get(claim.owner()).map_or([PlaceNumber::NONE; 2], |had| had.places);
        let [memory, server] = self.clients(&claim);
        let memory = memory.renew(RenewRequest::new(claim.clone(), known[0], ttl)).await;
        let sent = Instant::now();
        let server = server.renew(RenewRequest::new(claim.clone(), known[1], ttl)).await;
        self.log.push(format!("{} renews to {ttl:?}: {memory:?}", who(&claim)));
        match (memory, server) {
            (RenewReply::Renewed(memory), RenewReply::Renewed(server)) => {
                self.note("renewed");
                agree("the ttl", memory.ttl, server.ttl)?;
                self.note_lease(lock, &claim, ([memory.place, server.place], ttl, sent), false);
                Ok(())
            }
            (RenewReply::Granted(memory), RenewReply::Granted(server)) => {
                self.note("found granted");
                self.locks[lock].tokens.pair(memory.token.get(), server.token.get())?;
                let places = [memory.confirmation.place, server.confirmation.place];
                self.note_lease(lock, &claim, (places, ttl, sent), true);
                Ok(())
            }
            (RenewReply::Waiting { confirmation: memory, .. }, RenewReply::Waiting { confirmation: server, .. }) => {
                self.note("waiting");
                agree("the ttl of a place", memory.ttl, server.ttl)?;
                self.note_place(lock, &claim, [memory.place, server.place], ttl)
            }
            (RenewReply::Lost, RenewReply::Lost) => {
                self.note("lost");
                Ok(())
            }
            (memory, server) => Err(format!("renew: {memory:?} in memory, {server:?} at the server")),
        }
    }

    async fn release(&mut self, lock: usize) -> Compared {
        let claim = self.some(lock, true);
        let delivery = if self.rng.random_bool(0.3) { Delivery::InDoubt } else { Delivery::Confirmed };
        let [memory, server] = self.clients(&claim);
        let (memory, server) = (memory.release(&claim, delivery).await, server.release(&claim, delivery).await);
        self.log.push(format!("{} releases, {delivery:?}: {memory:?}", who(&claim)));
        self.note(if matches!(memory, Ok(ReleaseOutcome::Released)) { "released" } else { "not held" });
        self.locks[lock].had.remove(claim.owner());
        let was_ended = self.locks[lock].ended.remove(claim.owner());
        if was_ended {
            self.replace(lock, &claim);
        }
        let kind = |reply: Result<ReleaseOutcome>| reply.map_err(|error| error.kind());
        match (kind(memory), kind(server)) {
            // The request was sent on the connection that others had ended.
            (Ok(ReleaseOutcome::NotHeld), Err(ErrorKind::Indeterminate)) if was_ended => Ok(()),
            (memory, server) => agree("release", memory, server),
        }
    }

    /// Ends the connection of the lease, as an operator or a broken network does.
    async fn end_connection(&mut self, lock: usize) -> Compared {
        let name = self.locks[lock].name.clone();
        let Some(claim) = self.holder(lock).await else { return Ok(()) };
        self.log.push(format!("the connection of {} ends", who(&claim)));
        self.note("disconnected");
        if !self.pair.end_connection_of(&name).await {
            return Err("a lease has no connection at the server".to_owned());
        }
        if self.pair.difference != Some(Difference::LeasesOutliveConnections) {
            let _ = self.clients(&claim)[0].release(&claim, Delivery::Confirmed).await;
        }
        self.note_end(lock, &claim);
        Ok(())
    }

    async fn break_lease(&mut self, lock: usize) -> Compared {
        let name = self.locks[lock].name.clone();
        let Some(claim) = self.holder(lock).await else { return Ok(()) };
        let mut raised = Vec::new();
        for client in [&self.pair.memory[0], &self.pair.clients[0]] {
            let token = inspect(client, &name).await.and_then(|info| info.holder().map(|lease| lease.token));
            let token = token.ok_or("a lock is held in one store only")?;
            let broken = client.backend().admin().expect("both support it").break_lock(&name, token);
            raised.push(broken.await.map_err(|error| format!("break: {error:?}"))?);
        }
        self.log.push(format!("the lease of {} is broken", who(&claim)));
        self.note("broken");
        let [Some(memory), Some(server)] = raised[..] else { return Err(format!("break: {raised:?}")) };
        self.locks[lock].tokens.pair(memory.get(), server.get())?;
        self.note_end(lock, &claim);
        Ok(())
    }

    fn note_end(&mut self, lock: usize, claim: &Claim) {
        self.locks[lock].had.remove(claim.owner());
        self.locks[lock].ended.insert(*claim.owner());
    }

    /// The claim that holds in the memory store.
    async fn holder(&self, lock: usize) -> Option<Claim> {
        let info = inspect(&self.pair.memory[0], &self.locks[lock].name).await?;
        let label = info.holder()?.holder.clone()?.label;
        self.locks[lock].claims.iter().find(|claim| claim.holder().label == label).cloned()
    }

    /// Compares who was granted a lock after it had waited, and in which order.
    async fn compare_notifications(&mut self) -> Compared {
        let (until, mut notified) = (Instant::now() + PUSHED, [Vec::new(), Vec::new()]);
        loop {
            for (store, clients) in [&self.pair.memory, &self.pair.clients].into_iter().enumerate() {
                for event in clients.iter().flat_map(Direct::take_events) {
                    // An earlier sequence has released its claims, one by one.
                    if let Event::Granted { owner, place, token, .. } = event
                        && owner.as_bytes()[..8] == self.seed.to_be_bytes()
                    {
                        notified[store].push((owner, place, token));
                    }
                }
            }
            if notified[0].len() == notified[1].len() || Instant::now() > until {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let [memory, server] = notified;
        agree("how many were notified", memory.len(), server.len())?;
        for ((owner, place, token), (other, its_place, its_token)) in memory.into_iter().zip(server) {
            agree("who was notified", owner.as_bytes(), other.as_bytes())?;
            self.note("notified");
            self.note_notification(owner, [place, its_place], [token, its_token])?;
        }
        Ok(())
    }

    fn note_notification(
        &mut self,
        owner: OwnerToken,
        places: [PlaceNumber; 2],
        tokens: [FencingToken; 2],
    ) -> Compared {
        let with_claim = |lock: &Lock| lock.claims.iter().any(|claim| *claim.owner() == owner);
        let lock = self.locks.iter_mut().find(|lock| with_claim(lock)).ok_or("an unknown claim was notified")?;
        let had = lock.had.get(&owner).copied().ok_or("a claim without a place was notified")?;
        lock.had.insert(owner, Had { places, ends: Some(Instant::now() + had.ttl), waited: true, ..had });
        lock.tokens.pair(tokens[0].get(), tokens[1].get())?;
        agree("whether a claim keeps its place", [true; 2], [0, 1].map(|store| had.places[store] == places[store]))
    }

    /// Compares the inspection of a lock.
    async fn compare_state(&mut self, lock: usize) -> Compared {
        let name = self.locks[lock].name.clone();
        let memory = inspect(&self.pair.memory[0], &name).await;
        let server = inspect(&self.pair.clients[0], &name).await;
        let (memory, server): (LockInfo, LockInfo) = match (memory, server) {
            (Some(memory), Some(server)) => (memory, server),
            // The record also keeps what was withdrawn.
            (_, None) if self.locks[lock].had.is_empty() => return Ok(()),
            (memory, server) => return Err(format!("a record: {memory:?} in memory, {server:?} at the server")),
        };
        agree("how many wait", memory.waiters, server.waiters)?;
        let (Some(memory), Some(server)) = (memory.holder(), server.holder()) else {
            return agree("whether it is held", memory.is_held(), server.is_held());
        };
        let label = |info: &Option<HolderInfo>| info.as_ref().map(|info| info.label.clone());
        agree("the holder", label(&memory.holder), label(&server.holder))?;
        self.locks[lock].tokens.pair(memory.token.get(), server.token.get())?;
        let holder =
            self.locks[lock].claims.iter().find(|claim| Some(&claim.holder().label) == label(&server.holder).as_ref());
        let had = holder.and_then(|claim| self.locks[lock].had.get(claim.owner())).ok_or("an unknown claim holds")?;
        let ends = had.ends.ok_or("a claim that waits holds")?;
        near("what is left of a lease", ends.saturating_duration_since(Instant::now()), server.ttl_left)?;
        // No time passes there, and after a handoff the deadline is that of the place.
        if had.waited { Ok(()) } else { agree("what is left of a lease", memory.ttl_left, had.ttl) }
    }

    fn note(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }
}
