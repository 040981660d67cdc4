//! One random sequence on both stores, step by step.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_conformance::{Direct, join_all};
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Claim, Delivery, Event, OnContention, OwnerToken, PlaceNumber, ReleaseOutcome,
    RenewPolicy, RenewReply, RenewRequest, WITHDRAWN_TTL,
};
use leasehold_core::{ErrorKind, FencingToken, HolderInfo, LockInfo, LockName, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::pair::{CLIENTS, LATEST, Pair, UNIT};

/// In seconds. No ttl is close to a whole number of units.
const TTLS: [u64; 9] = [2, 6, 10, 12, 18, 22, 28, 36, 44];

/// How many claims of each lock contend.
pub(super) const SLOTS: usize = 5;

/// How long a push takes at most.
pub(super) const PUSHED: Duration = Duration::from_secs(1);

pub(super) type Compared = std::result::Result<(), String>;

/// A running sequence.
pub(super) struct Sequence<'a> {
    pair: &'a Pair,
    rng: StdRng,
    seed: u64,
    drawn: u64,
    locks: Vec<Lock>,
    /// Notifications of both stores that are not compared yet: owner, place, token.
    notified: [Vec<(OwnerToken, PlaceNumber, u64)>; 2],
    /// Released claims: whether they were notified of a handoff before that depends on the order within one step.
    given_back: HashSet<OwnerToken>,
    /// When claims were withdrawn, in units.
    withdrawn: HashMap<OwnerToken, u64>,
    /// How many units have passed.
    passed: u64,
    /// Claims without a place.
    impatient: HashSet<OwnerToken>,
    log: Vec<String>,
    /// How often each kind of reply was compared.
    pub(super) seen: BTreeMap<&'static str, u64>,
}

/// One lock, its claims, and the pairs of numbers of the two stores.
struct Lock {
    name: LockName,
    claims: Vec<Claim>,
    /// The newest place of a claim, in either store.
    places: HashMap<OwnerToken, [PlaceNumber; 2]>,
    place_pairs: Numbers,
    token_pairs: Numbers,
}

/// Numbers of one store and of the other, which rise together.
#[derive(Default)]
pub(super) struct Numbers(BTreeMap<u64, u64>);

impl Numbers {
    pub(super) fn pair(&mut self, memory: u64, server: u64) -> Compared {
        let known = *self.0.entry(memory).or_insert(server);
        let below = self.0.range(..memory).next_back().is_none_or(|(_, lower)| *lower < server);
        let above = self.0.range(memory + 1..).next().is_none_or(|(_, higher)| *higher > server);
        if known == server && below && above {
            return Ok(());
        }
        Err(format!("number {memory} is {server} at the server, and the others are {:?}", self.0))
    }
}

pub(super) fn agree<T: PartialEq + Debug>(what: &str, memory: T, server: T) -> Compared {
    if memory == server { Ok(()) } else { Err(format!("{what}: {memory:?} in memory, {server:?} at the server")) }
}

/// The server processes a request a little later, so its times may differ by that.
pub(super) fn near(what: &str, memory: Duration, server: Duration) -> Compared {
    if memory.abs_diff(server) <= LATEST {
        Ok(())
    } else {
        Err(format!("{what}: {memory:?} in memory, {server:?} at the server"))
    }
}

/// The locks of a sequence.
pub(super) fn names(seed: u64) -> [LockName; 2] {
    ["a", "b"].map(|which| LockName::new(format!("{which}{seed}")).expect("a name"))
}

/// The claim with this number in a sequence. Its owner encodes the client that it belongs to.
pub(super) fn claim(name: &LockName, seed: u64, number: u64) -> Claim {
    let holder = HolderInfo::of_this_process(&format!("claim {number}")).expect("a label");
    let mut owner = [0; 16];
    owner[..8].copy_from_slice(&seed.to_be_bytes());
    owner[8..].copy_from_slice(&number.to_be_bytes());
    Claim::new(name.clone(), OwnerToken::from_bytes(owner), Arc::new(holder))
}

impl<'a> Sequence<'a> {
    pub(super) fn new(pair: &'a Pair, seed: u64) -> Self {
        let mut sequence = Self {
            pair,
            rng: StdRng::seed_from_u64(seed),
            seed,
            drawn: 0,
            locks: Vec::new(),
            notified: [Vec::new(), Vec::new()],
            impatient: HashSet::new(),
            given_back: HashSet::new(),
            withdrawn: HashMap::new(),
            passed: 0,
            log: Vec::new(),
            seen: BTreeMap::new(),
        };
        for name in names(seed) {
            let claims = (0..SLOTS).map(|_| sequence.draw(&name)).collect();
            let (place_pairs, token_pairs) = Default::default();
            sequence.locks.push(Lock { name, claims, places: HashMap::new(), place_pairs, token_pairs });
        }
        sequence
    }

    fn draw(&mut self, name: &LockName) -> Claim {
        self.drawn += 1;
        let claim = claim(name, self.seed, self.drawn);
        if self.rng.random_bool(0.1) || !self.pair.has_queue() {
            self.impatient.insert(*claim.owner());
        }
        claim
    }

    /// Runs the sequence. The error names the difference and the steps before it.
    pub(super) async fn run(&mut self, steps: usize) -> Compared {
        // Begins with both clocks together.
        self.pair.pass(1);
        for _ in 0..steps {
            self.step().await.map_err(|difference| format!("{difference}, after\n{}", self.log.join("\n")))?;
        }
        Ok(())
    }

    async fn step(&mut self) -> Compared {
        if self.rng.random_bool(0.25) {
            let units = [1, 1, 1, 1, 1, 2, 9][self.rng.random_range(0..7)];
            self.log.push(format!("{units} units pass"));
            self.pair.pass(units);
            self.passed += units;
            self.replace_withdrawn();
        }
        match self.rng.random_range(0..20) {
            0..=8 => self.acquire().await?,
            9..=14 => self.renew().await?,
            _ => self.release().await?,
        }
        self.compare_state().await?;
        // With a larger difference the clocks are too far apart for the comparison.
        let ahead = self.pair.ahead();
        assert!(ahead < LATEST, "this machine is too slow to compare anything: the server is {ahead:?} late");
        Ok(())
    }

    /// Replaces claims before a store may forget that they were withdrawn. A row of MySQL remembers all of them until
    /// the last one ends.
    fn replace_withdrawn(&mut self) {
        let remembered = WITHDRAWN_TTL.as_secs() / UNIT.as_secs();
        for lock in 0..self.locks.len() {
            for slot in 0..SLOTS {
                let owner = *self.locks[lock].claims[slot].owner();
                if self.withdrawn.get(&owner).is_some_and(|at| at + remembered <= self.passed) {
                    let name = self.locks[lock].name.clone();
                    self.locks[lock].claims[slot] = self.draw(&name);
                }
            }
        }
    }

    fn request(&self, claim: &Claim, ttl: Duration) -> AcquireRequest {
        let is_impatient = self.impatient.contains(claim.owner());
        let on_contention = if is_impatient { OnContention::Fail } else { OnContention::Queue };
        AcquireRequest::new(claim.clone(), ttl).on_contention(on_contention)
    }

    fn ttl(&mut self) -> Duration {
        Duration::from_secs(TTLS[self.rng.random_range(0..TTLS.len())])
    }

    /// The client of a claim, in the memory store and at the server.
    fn clients(&self, claim: &Claim) -> [&'a Direct; 2] {
        let nth = usize::from(claim.owner().as_bytes()[15]) % CLIENTS;
        [&self.pair.memory[nth], &self.pair.clients[nth]]
    }

    /// One claim of each of some locks; `had` prefers those that had a lease or place. Their requests are sent at once
    /// to the server, which sometimes combines them into one call.
    fn some(&mut self, had: bool) -> Vec<(usize, Claim)> {
        let both = self.rng.random_bool(0.3);
        let first = self.rng.random_range(0..self.locks.len());
        let mut some = Vec::new();
        for (index, lock) in self.locks.iter().enumerate().filter(|(index, _)| both || *index == first) {
            let known: Vec<_> = lock.claims.iter().filter(|claim| lock.places.contains_key(claim.owner())).collect();
            let claim = match known.len() {
                0 => &lock.claims[self.rng.random_range(0..SLOTS)],
                _ if !had || self.rng.random_bool(0.2) => &lock.claims[self.rng.random_range(0..SLOTS)],
                count => known[self.rng.random_range(0..count)],
            };
            some.push((index, claim.clone()));
        }
        some
    }

    async fn acquire(&mut self) -> Compared {
        let (claims, ttl) = (self.some(false), self.ttl());
        let mut server = Vec::new();
        for (_, claim) in &claims {
            let (client, request) = (self.clients(claim)[1], self.request(claim, ttl));
            server.push(async move { client.request(&request).await });
        }
        for ((lock, claim), server) in claims.iter().zip(join_all(server.into_iter()).await) {
            let memory = self.clients(claim)[0].request(&self.request(claim, ttl)).await;
            self.log.push(format!("{} acquires for {ttl:?}: {memory:?}", who(claim)));
            let withdrawn = memory.is_err();
            self.note(match &memory {
                Ok(AcquireOutcome::Granted(_)) => "granted",
                Ok(AcquireOutcome::Queued { .. }) => "queued",
                Ok(_) => "held",
                Err(_) => "withdrawn",
            });
            self.compare_acquire((*lock, ttl), claim, memory, server)?;
            if withdrawn {
                // At the server a late acquire of a withdrawn claim is the only call that does not check the queue.
                self.probe(*lock).await?;
            }
        }
        Ok(())
    }

    fn compare_acquire(
        &mut self,
        (lock, ttl): (usize, Duration),
        claim: &Claim,
        memory: Result<AcquireOutcome>,
        server: Result<AcquireOutcome>,
    ) -> Compared {
        match (memory, server) {
            (Ok(AcquireOutcome::Granted(memory)), Ok(AcquireOutcome::Granted(server))) => {
                agree("the ttl", memory.confirmation.ttl, server.confirmation.ttl)?;
                self.token(lock, memory.token, server.token)?;
                self.place(lock, claim, memory.confirmation.place, server.confirmation.place)
            }
            (
                Ok(AcquireOutcome::Queued { confirmation: memory, retry_after }),
                Ok(AcquireOutcome::Queued { confirmation: server, retry_after: other }),
            ) => {
                agree("the ttl of a place", memory.ttl, server.ttl)?;
                near("the next poll", retry_after, other)?;
                self.place(lock, claim, memory.place, server.place)
            }
            (Ok(AcquireOutcome::Contended { retry_after }), Ok(AcquireOutcome::Contended { retry_after: other })) => {
                // A client of MySQL does not rely on its polls alone.
                let bound = if self.pair.has_queue() { Duration::MAX } else { ttl / 3 };
                near("the next poll", retry_after.min(bound), other)
            }
            (Err(memory), Err(server)) if memory.kind() == ErrorKind::Lost => {
                agree("an error", memory.kind(), server.kind())
            }
            (memory, server) => Err(format!("acquire: {memory:?} in memory, {server:?} at the server")),
        }
    }

    async fn renew(&mut self) -> Compared {
        let mut requests: Vec<(usize, Claim)> = Vec::new();
        for _ in 0..self.rng.random_range(1..4) {
            requests.extend(self.some(true));
        }
        // One call renews claims of one client, each once.
        let mut named = HashSet::new();
        requests.retain(|(_, claim)| named.insert(*claim.owner()));
        let nth = self.clients(&requests[0].1)[0];
        requests.retain(|(_, claim)| std::ptr::eq(self.clients(claim)[0], nth));
        let [memory, server] = self.clients(&requests[0].1);
        let mut leases = [Vec::new(), Vec::new()];
        for (lock, claim) in &requests {
            let (ttl, exactly) = (self.ttl(), self.rng.random_bool(0.2));
            let known = self.locks[*lock].places.get(claim.owner()).copied().unwrap_or_default();
            for (store, leases) in leases.iter_mut().enumerate() {
                let mut lease = RenewRequest::new(claim.clone(), known[store], ttl);
                if exactly {
                    lease.policy = RenewPolicy::Exactly;
                }
                leases.push(lease);
            }
        }
        let replies = memory.renew_all(&leases[0]).await.into_iter().zip(server.renew_all(&leases[1]).await);
        for (((lock, claim), lease), (memory, server)) in requests.iter().zip(&leases[0]).zip(replies) {
            self.log.push(format!("{} renews to {:?}: {memory:?}", who(claim), lease.ttl));
            self.note(match &memory {
                RenewReply::Renewed(_) => "renewed",
                RenewReply::Granted(_) => "found granted",
                RenewReply::Waiting { .. } => "waiting",
                _ => "lost",
            });
            self.compare_renewal(*lock, claim, memory, server)?;
        }
        Ok(())
    }

    fn compare_renewal(&mut self, lock: usize, claim: &Claim, memory: RenewReply, server: RenewReply) -> Compared {
        match (memory, server) {
            (RenewReply::Renewed(memory), RenewReply::Renewed(server)) => {
                // MySQL replies with what is left, if not every claim of a call holds its lock.
                near("the ttl", memory.ttl, server.ttl)?;
                self.place(lock, claim, memory.place, server.place)
            }
            (RenewReply::Granted(memory), RenewReply::Granted(server)) => {
                agree("the ttl", memory.confirmation.ttl, server.confirmation.ttl)?;
                self.token(lock, memory.token, server.token)?;
                self.place(lock, claim, memory.confirmation.place, server.confirmation.place)
            }
            (
                RenewReply::Waiting { confirmation: memory, retry_after },
                RenewReply::Waiting { confirmation: server, retry_after: other },
            ) => {
                agree("the ttl of a place", memory.ttl, server.ttl)?;
                near("the next poll", retry_after, other)?;
                self.place(lock, claim, memory.place, server.place)
            }
            (RenewReply::Lost, RenewReply::Lost) => {
                self.locks[lock].places.remove(claim.owner());
                Ok(())
            }
            (memory, server) => Err(format!("renew: {memory:?} in memory, {server:?} at the server")),
        }
    }

    async fn release(&mut self) -> Compared {
        let claims = self.some(true);
        let delivery = if self.rng.random_bool(0.3) { Delivery::InDoubt } else { Delivery::Confirmed };
        let mut server = Vec::new();
        for (_, claim) in &claims {
            self.given_back.insert(*claim.owner());
            if delivery == Delivery::InDoubt {
                self.withdrawn.insert(*claim.owner(), self.passed);
            }
            let (client, claim) = (self.clients(claim)[1], claim.clone());
            server.push(async move { client.release(&claim, delivery).await });
        }
        for ((lock, claim), server) in claims.iter().zip(join_all(server.into_iter()).await) {
            let memory = self.clients(claim)[0].release(claim, delivery).await;
            self.log.push(format!("{} releases, {delivery:?}: {memory:?}", who(claim)));
            self.note(if matches!(memory, Ok(ReleaseOutcome::Released)) { "released" } else { "not held" });
            let error_kind = |reply: Result<ReleaseOutcome>| reply.map_err(|error| error.kind());
            agree("release", error_kind(memory), error_kind(server))?;
            self.locks[*lock].places.remove(claim.owner());
            // Most claims are used once. A late request of a claim meets its tombstone, or has its usual effect.
            if self.rng.random_bool(0.6) {
                let name = self.locks[*lock].name.clone();
                let fresh = self.draw(&name);
                let slot = self.locks[*lock].claims.iter_mut().find(|slot| slot.owner() == claim.owner());
                if let Some(slot) = slot {
                    *slot = fresh;
                }
            }
        }
        Ok(())
    }

    /// Renews a new claim, which has no lease or place.
    async fn probe(&mut self, lock: usize) -> Compared {
        let name = self.locks[lock].name.clone();
        let claim = self.draw(&name);
        let lease = RenewRequest::new(claim.clone(), PlaceNumber::NONE, Duration::from_secs(TTLS[0]));
        let [memory, server] = self.clients(&claim);
        self.compare_renewal(lock, &claim, memory.renew(lease.clone()).await, server.renew(lease).await)
    }

    /// Compares the inspection of each lock, and the notifications of the clients.
    async fn compare_state(&mut self) -> Compared {
        for lock in 0..self.locks.len() {
            let name = self.locks[lock].name.clone();
            let memory = inspect(&self.pair.memory[0], &name).await;
            let server = inspect(&self.pair.clients[0], &name).await;
            let (Some(memory), Some(server)) = (memory, server) else { continue };
            if self.pair.has_queue() {
                agree("how many wait", memory.waiters, server.waiters)?;
            }
            match (memory.holder().cloned(), server.holder().cloned()) {
                (None, None) => {}
                (Some(memory), Some(server)) => {
                    near("what is left of a lease", memory.ttl_left, server.ttl_left)?;
                    let holder = |info: Option<HolderInfo>| info.map(|info| info.label);
                    agree("the holder", holder(memory.holder), holder(server.holder))?;
                    self.token(lock, memory.token, server.token)?;
                }
                (memory, server) => return Err(format!("a lease: {memory:?} in memory, {server:?} at the server")),
            }
        }
        self.compare_notifications().await
    }

    async fn compare_notifications(&mut self) -> Compared {
        let until = Instant::now() + PUSHED;
        loop {
            for (store, clients) in [&self.pair.memory, &self.pair.clients].into_iter().enumerate() {
                for event in clients.iter().flat_map(Direct::take_events) {
                    if let Event::Granted { owner, place, token, .. } = event {
                        self.notified[store].push((owner, place, token.get()));
                    }
                }
                self.notified[store].retain(|(owner, ..)| !self.given_back.contains(owner));
                self.notified[store].sort_unstable_by_key(|(owner, place, _)| (*owner.as_bytes(), *place));
            }
            if self.notified[0].len() == self.notified[1].len() || Instant::now() > until {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let [memory, server] = std::mem::take(&mut self.notified);
        agree("how many were notified", memory.len(), server.len())?;
        for ((owner, place, token), (other, its_place, its_token)) in memory.into_iter().zip(server) {
            agree("who was notified", owner.as_bytes(), other.as_bytes())?;
            self.note("notified");
            let lock = self.locks.iter().position(|lock| lock.claims.iter().any(|claim| *claim.owner() == owner));
            let Some(lock) = lock else { continue };
            self.locks[lock].place_pairs.pair(place.get(), its_place.get())?;
            self.token(lock, FencingToken::new(token), FencingToken::new(its_token))?;
        }
        Ok(())
    }

    fn note(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn token(&mut self, lock: usize, memory: FencingToken, server: FencingToken) -> Compared {
        self.locks[lock].token_pairs.pair(memory.get(), server.get()).map_err(|error| format!("token: {error}"))
    }

    fn place(&mut self, lock: usize, claim: &Claim, memory: PlaceNumber, server: PlaceNumber) -> Compared {
        let lock = &mut self.locks[lock];
        lock.places.insert(*claim.owner(), [memory, server]);
        if !self.pair.has_queue() {
            return agree("the place", server, PlaceNumber::NONE);
        }
        lock.place_pairs.pair(memory.get(), server.get()).map_err(|error| format!("place: {error}"))
    }
}

pub(super) async fn inspect(client: &Direct, name: &LockName) -> Option<LockInfo> {
    let admin = client.backend().admin().expect("both support inspection");
    admin.inspect(name).await.unwrap_or_else(|error| panic!("inspect fails: {error:?}"))
}

pub(super) fn who(claim: &Claim) -> String {
    format!("{} of {}", claim.holder().label, claim.name())
}
