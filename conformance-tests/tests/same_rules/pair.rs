//! The memory store and a Redis server, with clocks that are stepped together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::redis::RedisBackend;
use leasehold_conformance::Direct;
use leasehold_conformance::hooks::Hooked;
use leasehold_core::backend::{Clock, LockBackend, Stamp};
use leasehold_core::memory::{MemoryBackend, MemoryStore};
use leasehold_test_servers::{RedisServer, RedisSettings};

use super::difference::Difference;

/// Time passes in whole units. No ttl, no longest ttl of a place and no tombstone lasts whole units, or differs from them by less
/// than two seconds. So the same records are expired in both stores, although Redis processes a request a moment later.
pub(super) const UNIT: Duration = Duration::from_secs(8);

/// How much later than the memory store Redis may process a request, so that both can still be compared.
pub(super) const LATEST: Duration = Duration::from_millis(1500);

/// How many clients each store has.
pub(super) const CLIENTS: usize = 2;

/// Both stores.
pub(super) struct Pair {
    pub(super) memory: Vec<Direct>,
    pub(super) redis: Vec<Direct>,
    clock: Arc<Stepped>,
    server: RedisServer,
    /// What Redis's clock shows at the beginning of the memory store's, in µs.
    start: Mutex<u64>,
}

/// The memory store's clock.
#[derive(Default)]
struct Stepped(AtomicU64);

impl Clock for Stepped {
    fn now(&self) -> Stamp {
        Stamp::from_start(UNIT * u32::try_from(self.0.load(Ordering::SeqCst)).expect("a few thousand units"))
    }

    fn sleep_time(&self, until: Stamp) -> Duration {
        until.since(self.now())
    }
}

impl Pair {
    /// Two stores without any lock.
    pub(super) async fn new(difference: Option<Difference>) -> Self {
        let server = RedisSettings::new().steppable_clock().start().unwrap_or_else(|error| panic!("{error}"));
        let clock = Arc::new(Stepped::default());
        let store = MemoryStore::new(clock.clone());
        let (mut memory, mut redis) = (Vec::new(), Vec::new());
        for nth in 0..CLIENTS {
            let plain: Arc<dyn LockBackend> = Arc::new(MemoryBackend::new(&store));
            let hooked = difference.map(|difference| Hooked::new(plain.clone(), nth, Arc::new(difference)));
            memory.push(Direct::attach(hooked.map_or(plain, |hooked| Arc::new(hooked))));
            let backend = RedisBackend::connect(&format!("{}?timeout=5s", server.url())).await;
            redis.push(Direct::attach(Arc::new(backend.unwrap_or_else(|error| panic!("no backend: {error:?}")))));
        }
        let pair = Self { memory, redis, clock, server, start: Mutex::new(0) };
        pair.subscribed().await;
        *pair.start.lock().expect("no panic while it is locked") = pair.redis_now();
        pair
    }

    /// Waits until every client has subscribed to its channel.
    async fn subscribed(&self) {
        for client in &self.redis {
            while client.take_events().is_empty() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }

    /// Advances both clocks by this many units.
    pub(super) fn pass(&self, units: u64) {
        let passed = self.clock.0.fetch_add(units, Ordering::SeqCst) + units;
        let start = self.start.lock().expect("no panic while it is locked");
        let target = *start + passed * u64::try_from(UNIT.as_micros()).expect("seconds");
        let step = target.checked_sub(self.redis_now()).expect("a unit is much longer than a step");
        self.server.step_clock(i64::try_from(step).expect("minutes")).expect("a clock that can be stepped");
    }

    /// How far Redis's clock is ahead of the memory store's.
    pub(super) fn ahead(&self) -> Duration {
        let memory = u64::try_from(self.clock.now().since_start().as_micros()).expect("hours");
        let start = *self.start.lock().expect("no panic while it is locked");
        Duration::from_micros(self.redis_now() - start - memory)
    }

    fn redis_now(&self) -> u64 {
        let time = self.server.command(&["TIME"]).expect("TIME").items();
        let parts: Vec<u64> = time.iter().map(|part| part.text().parse().expect("a number")).collect();
        parts[0] * 1_000_000 + parts[1]
    }
}
