//! The fixture of MySQL: Leasehold on a real mariadbd, with one of its strategies.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold::mysql::MySqlBackend;
use leasehold_conformance::harness::TcpPath;
use leasehold_conformance::{
    Data, Fixture, PathFault, Record, ResourceCounts, Room, Route, ServerFault, Tamper, Unsupported,
};
use leasehold_core::LockName;
use leasehold_core::backend::LockBackend;
use leasehold_test_servers::{MySqlServer, MySqlSettings, SqlConnection};

use super::set_up::{PASSWORD, USER, set_up};
use super::stored::Stored;

/// The time for clients to connect before a fault. They usually need some milliseconds.
const CONNECT_BOUND: Duration = Duration::from_secs(2);

/// A client has a connection of its own runtime and one of its keeper's, which polls. A holder has one more.
const LEAST_PER_CLIENT: u64 = 2;

/// For so long the number of connections does not change.
const STABLE: Duration = Duration::from_millis(30);

/// The least number of connections that the server can be limited to.
const LEAST_CONNECTIONS: usize = 10;

/// A client sends this before it uses a connection that was idle.
const PING: &[u8] = &[1, 0, 0, 0, 14];

/// A client sends this, after the length of the packet, before its first acquire on a connection: it reads the run of the server.
const READING: &[u8] = b"\0\x03SELECT LEFT(SHA2(";

/// The most connections that hold requests.
const MAX_HOLDING: usize = 20;

/// A strategy of the backend: its settings, and what it stores.
pub(super) trait Strategy: Send + Sync + 'static {
    /// The end of a URL.
    const SETTINGS: &'static str;
    const TTL: Duration;
    /// The table in which each grant writes.
    const TABLE: &'static str;
    const MAX_CONNECTIONS: u32;
    /// The least time between two starts of a server.
    const LEAST_RUN: Duration;

    fn record(stored: &Stored<'_>, name: &LockName) -> Record;

    fn resource_counts(stored: &Stored<'_>) -> ResourceCounts;

    /// The number of requests that clients have sent.
    fn served(stored: &Stored<'_>) -> u64;

    /// Ends the lease of a lock and removes its record.
    fn remove(stored: &Stored<'_>, name: &LockName);
}

/// A mariadbd and the path to it.
pub(super) struct StrategyFixture<S> {
    strategy: PhantomData<S>,
    started: Mutex<Instant>,
    server: Mutex<MySqlServer>,
    path: TcpPath,
    /// Connections that use up the server's limit.
    fillers: Mutex<Vec<SqlConnection>>,
}

impl<S: Strategy> StrategyFixture<S> {
    pub(super) const SETTINGS: &str = S::SETTINGS;
    pub(super) const TABLE: &str = S::TABLE;

    /// Synchronous on purpose: nothing may be awaited while the server is locked, and every statement has a time limit.
    pub(super) fn server(&self) -> MutexGuard<'_, MySqlServer> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URL of clients by this route, with these settings on top.
    pub(super) fn url(&self, route: Route, more: &str) -> String {
        format!("mysql://locker:{PASSWORD}@{}/locks?timeout=1s&tls=off{}{more}", self.path.addr(route), S::SETTINGS)
    }

    pub(super) fn execute(&self, statements: &str) {
        Stored(&self.server()).query(statements);
    }

    /// Refuses the user of new connections, and ends those that are open.
    fn refuse_user(&self) {
        self.execute(&format!("ALTER USER {USER} ACCOUNT LOCK"));
        let server = self.server();
        let stored = Stored(&server);
        for row in stored.query("SELECT CAST(id AS CHAR) FROM information_schema.processlist WHERE user = 'locker'") {
            let id = row[0].as_deref().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
            // The connection may have ended by itself.
            let _ = server.query(&format!("KILL {id}"));
        }
    }

    /// Uses up all connections but those that are reserved for administrators.
    fn fill_connections(&self) {
        self.execute(&format!("SET GLOBAL max_connections = {LEAST_CONNECTIONS}"));
        let server = self.server();
        let mut fillers = self.fillers.lock().unwrap_or_else(PoisonError::into_inner);
        while fillers.len() < LEAST_CONNECTIONS
            && let Ok(filler) = server.side()
        {
            fillers.push(filler);
        }
    }

    fn mend(&self) {
        self.fillers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.execute(&format!(
            "SET GLOBAL max_connections = {}, read_only = 0; ALTER USER {USER} ACCOUNT UNLOCK; DROP TRIGGER IF EXISTS locks.is_full",
            S::MAX_CONNECTIONS
        ));
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).expect("no step of a clock is that long")
}

#[async_trait]
impl<S: Strategy> Fixture for StrategyFixture<S> {
    async fn new() -> Self {
        let server = MySqlSettings::new()
            .steppable_clock()
            .option(format!("max-connections={}", S::MAX_CONNECTIONS))
            .start()
            .unwrap_or_else(|error| panic!("{error}"));
        set_up(&server);
        let is_probe = |bytes: &[u8]| bytes == PING || bytes.get(3..).is_some_and(|rest| rest.starts_with(READING));
        let path = TcpPath::start_with_probe(server.addr(), is_probe)
            .unwrap_or_else(|error| panic!("no fault proxy: {error}"));
        Self {
            strategy: PhantomData,
            started: Mutex::new(Instant::now()),
            server: Mutex::new(server),
            path,
            fillers: Mutex::default(),
        }
    }

    /// Connects if possible, so that a following fault meets a request and not a first connection.
    async fn backend(&self, route: Route) -> Arc<dyn LockBackend> {
        let url = self.url(route, "");
        let connected = match self.path.is_broken(route) {
            true => None,
            false => MySqlBackend::connect(&url).await.ok(),
        };
        let backend = match connected {
            Some(backend) => backend,
            None => MySqlBackend::connect_lazy(&url).unwrap_or_else(|error| panic!("no backend: {error:?}")),
        };
        Arc::new(self.path.wrap(Arc::new(backend), route))
    }

    async fn backend_with_retention(&self, retention: Duration) -> Result<Arc<dyn LockBackend>, Unsupported> {
        let url = self.url(Route::Clear, &format!("&retention={}ms", retention.as_millis()));
        let backend = MySqlBackend::connect(&url).await.unwrap_or_else(|error| panic!("no backend: {error:?}"));
        Ok(Arc::new(self.path.wrap(Arc::new(backend), Route::Clear)))
    }

    fn secrets(&self) -> Vec<String> {
        vec![PASSWORD.to_owned()]
    }

    fn ttl(&self) -> Duration {
        S::TTL
    }

    async fn connected(&self) {
        let until = Instant::now() + CONNECT_BOUND;
        let mut since = None;
        while Instant::now() < until && !self.path.is_broken(Route::Faulty) {
            let connections = S::resource_counts(&Stored(&self.server())).connections;
            let (seen, begin) = *since.get_or_insert((connections, Instant::now()));
            if seen != connections {
                since = None;
            } else if connections >= self.path.clients() * LEAST_PER_CLIENT && begin.elapsed() > STABLE {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn path(&self, fault: PathFault) {
        // The fault then meets a request and not the first connection.
        self.connected().await;
        self.path.apply(fault);
    }

    async fn heal(&self) {
        self.path.heal();
    }

    async fn deliver(&self) {
        // The server has a thread for each connection, which may still have to read its socket. A connection that is being opened may hold
        // bytes again.
        for _ in 0..MAX_HOLDING {
            self.path.proxy().deliver_oldest();
            let mut before = None;
            loop {
                let executed = S::served(&Stored(&self.server()));
                if before.replace(executed) == Some(executed) {
                    break;
                }
                tokio::time::sleep(STABLE).await;
            }
            if self.path.proxy().stats().held == 0 {
                return;
            }
        }
        self.path.deliver();
    }

    async fn server(&self, fault: ServerFault) -> Result<(), Unsupported> {
        let mut server = self.server();
        let done = match fault {
            ServerFault::Stop => server.stop(),
            ServerFault::Kill => server.kill(),
            ServerFault::Start(data) => {
                let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
                std::thread::sleep(S::LEAST_RUN.saturating_sub(started.elapsed()));
                *started = Instant::now();
                server.start_again(data).map(|()| {
                    if data == Data::Lost {
                        set_up(&server);
                    }
                })
            }
            ServerFault::Pause => server.pause(),
            ServerFault::Resume => server.resume(),
            ServerFault::ClockForward(by) => server.step_clock(micros(by)),
            ServerFault::ClockBack(by) => server.step_clock(-micros(by)),
            other => {
                drop(server);
                match other {
                    ServerFault::RefuseUser => self.refuse_user(),
                    ServerFault::ReadOnly => self.execute("SET GLOBAL read_only = 1"),
                    ServerFault::Fill(Room::Data) => self.execute(&format!(
                        "CREATE TRIGGER locks.is_full BEFORE INSERT ON locks.{} FOR EACH ROW \
                         SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table is full'",
                        S::TABLE
                    )),
                    ServerFault::Fill(Room::Connections) => self.fill_connections(),
                    ServerFault::FlushScripts => {
                        self.execute(&format!("ALTER TABLE locks.{} COMMENT = 'changed'", S::TABLE));
                    }
                    _ => self.mend(),
                }
                return Ok(());
            }
        };
        done.unwrap_or_else(|error| panic!("the server cannot be {fault:?}: {error}"));
        Ok(())
    }

    async fn tamper(&self, name: &LockName, tamper: Tamper) -> Result<(), Unsupported> {
        let server = self.server();
        let stored = Stored(&server);
        let format = match tamper {
            Tamper::Remove => {
                S::remove(&stored, name);
                return Ok(());
            }
            Tamper::Corrupt => "??",
            Tamper::OtherVersion => "2x",
        };
        stored.change(&format!("UPDATE locks.{} SET format = '{format}'", S::TABLE), name);
        Ok(())
    }

    async fn record(&self, name: &LockName) -> Record {
        S::record(&Stored(&self.server()), name)
    }

    async fn resource_counts(&self) -> ResourceCounts {
        S::resource_counts(&Stored(&self.server()))
    }

    async fn served(&self) -> u64 {
        S::served(&Stored(&self.server()))
    }
}
