//! The memory store and a server, with clocks that are stepped together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::mysql::{MySqlBackend, SCHEMA, grants};
use leasehold::redis::RedisBackend;
use leasehold_conformance::Direct;
use leasehold_conformance::hooks::Hooked;
use leasehold_core::backend::{Clock, LockBackend, Stamp, TtlScope};
use leasehold_core::memory::{MemoryBackend, MemoryStore};
use leasehold_core::{LockName, Result};
use leasehold_test_servers::{MySqlServer, MySqlSettings, RedisServer, RedisSettings};

use super::difference::Difference;

/// Time passes in whole units. No ttl, longest ttl of a place or tombstone comes closer than two seconds to a whole
/// number of units. So the same records are expired in both stores, although the server processes a request a moment
/// later.
pub(super) const UNIT: Duration = Duration::from_secs(8);

/// How much later than the memory store the server may process a request, so that both can still be compared.
pub(super) const LATEST: Duration = Duration::from_millis(1500);

/// How many clients each store has.
pub(super) const CLIENTS: usize = 2;

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `SELECT … FOR UPDATE`.
    ForUpdate,
    MySql,
    Redis,
}

enum Server {
    /// With the settings of its clients.
    MySql(Box<MySqlServer>, &'static str),
    Redis(Box<RedisServer>),
}

impl Server {
    fn start(kind: Kind) -> std::io::Result<Self> {
        Ok(match kind {
            Kind::ForUpdate | Kind::MySql => {
                let server = MySqlSettings::new().steppable_clock().start()?;
                let user = "'locker'@'%'";
                server.create("locks", SCHEMA, user, "secret", &grants("locks", user))?;
                Self::MySql(Box::new(server), if kind == Kind::ForUpdate { "&strategy=for-update" } else { "" })
            }
            Kind::Redis => Self::Redis(Box::new(RedisSettings::new().steppable_clock().start()?)),
        })
    }

    async fn connect(&self) -> Result<Arc<dyn LockBackend>> {
        Ok(match self {
            Self::MySql(server, settings) => {
                let url = format!("mysql://locker:secret@{}/locks?tls=off&timeout=5s{settings}", server.addr());
                Arc::new(MySqlBackend::connect(&url).await?)
            }
            Self::Redis(server) => Arc::new(RedisBackend::connect(&format!("{}?timeout=5s", server.url())).await?),
        })
    }

    fn now(&self) -> u64 {
        let now = match self {
            Self::MySql(server, _) => server.wall_clock(),
            Self::Redis(server) => server.wall_clock(),
        };
        u64::try_from(now.expect("the server replies")).expect("it is later than 1970")
    }

    fn step_clock(&self, micros: i64) {
        let stepped = match self {
            Self::MySql(server, _) => server.step_clock(micros),
            Self::Redis(server) => server.step_clock(micros),
        };
        stepped.expect("a clock that can be stepped");
    }
}

/// Both stores.
pub(super) struct Pair {
    pub(super) memory: Vec<Direct>,
    pub(super) clients: Vec<Direct>,
    pub(super) difference: Option<Difference>,
    clock: Arc<Stepped>,
    server: Server,
    /// What the server's clock shows at the beginning of the memory store's, in µs.
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
    pub(super) async fn new(kind: Kind, difference: Option<Difference>) -> Self {
        let server = Server::start(kind).unwrap_or_else(|error| panic!("{error}"));
        let clock = Arc::new(Stepped::default());
        let store = MemoryStore::new(clock.clone());
        let (mut memory, mut clients) = (Vec::new(), Vec::new());
        for nth in 0..CLIENTS {
            let plain: Arc<dyn LockBackend> = Arc::new(MemoryBackend::new(&store));
            let hooked = difference.map(|difference| Hooked::new(plain.clone(), nth, Arc::new(difference)));
            memory.push(Direct::attach(hooked.map_or(plain, |hooked| Arc::new(hooked))));
            let backend = server.connect().await.unwrap_or_else(|error| panic!("no backend: {error:?}"));
            clients.push(Direct::attach(backend));
        }
        let pair = Self { memory, clients, difference, clock, server, start: Mutex::new(0) };
        if pair.has_queue() {
            pair.subscribed().await;
        }
        *pair.start.lock().expect("no panic while it is locked") = pair.server.now();
        pair
    }

    /// Whether a lease is kept by a connection.
    pub(super) fn has_connections(&self) -> bool {
        self.clients[0].capabilities().ttl_scope == TtlScope::Connection
    }

    /// Whether the server keeps a queue. Without one no claim has a place.
    pub(super) fn has_queue(&self) -> bool {
        matches!(self.server, Server::Redis(_))
    }

    /// Ends the connection that keeps the lease of a lock. Returns when the server has rolled back, and whether there
    /// was one.
    pub(super) async fn end_connection_of(&self, name: &LockName) -> bool {
        let Server::MySql(server, _) = &self.server else { return false };
        let query = |text: &str| server.query(text).unwrap_or_else(|error| panic!("{text} fails: {error}"));
        let name: String = name.as_str().bytes().map(|byte| format!("{byte:02x}")).collect();
        let lock =
            format!("CONCAT('leasehold:', LEFT(SHA2(CONCAT(CAST(DATABASE() AS BINARY), '/', X'{name}'), 256), 40))");
        let found = query(&format!("SELECT CAST(IS_USED_LOCK({lock}) AS CHAR)"));
        let Some(id) = found.first().and_then(|row| row[0].clone()) else { return false };
        let id = String::from_utf8_lossy(&id);
        query(&format!("KILL {id}"));
        while !query(&format!("SELECT 1 FROM information_schema.processlist WHERE id = {id}")).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        true
    }

    /// Waits until every client has subscribed to its channel.
    async fn subscribed(&self) {
        for client in &self.clients {
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
        let step = target.checked_sub(self.server.now()).expect("a unit is much longer than a step");
        self.server.step_clock(i64::try_from(step).expect("minutes"));
    }

    /// How far the server's clock is ahead of the memory store's.
    pub(super) fn ahead(&self) -> Duration {
        let memory = u64::try_from(self.clock.now().since_start().as_micros()).expect("hours");
        let start = *self.start.lock().expect("no panic while it is locked");
        Duration::from_micros(self.server.now() - start - memory)
    }
}
