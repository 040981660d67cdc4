//! The fixture of MySQL: Leasehold on a real mariadbd, with one of its strategies.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold::mysql::{MySqlBackend, SCHEMA, grants};
use leasehold_conformance::harness::TcpPath;
use leasehold_conformance::{
    Data, Fixture, PathFault, Record, ResourceCounts, Room, Route, ServerFault, Tamper, Unsupported,
};
use leasehold_core::LockName;
use leasehold_core::backend::LockBackend;
use leasehold_test_servers::{Contents, MySqlDatabase, MySqlServer, MySqlSettings, SqlConnection};

use super::stored::Stored;

/// The user of clients has the least permissions, so that every case proves that they are enough.
const CONTENTS: Contents = Contents { tables: SCHEMA, grants };

/// A server that the variable `LEASEHOLD_MYSQL_URL` names must not be stopped, and its global settings must not be
/// changed.
pub(super) const NOT_OURS: Unsupported = Unsupported::withheld("the server of LEASEHOLD_MYSQL_URL is not ours");

/// The time for clients to connect before a fault. They usually need some milliseconds.
const CONNECT_BOUND: Duration = Duration::from_secs(2);

/// A client has a connection of its own runtime and one of its keeper's, which polls. A holder has one more.
const LEAST_PER_CLIENT: u64 = 2;

/// The number of connections counts as stable when it has not changed for this long.
const STABLE: Duration = Duration::from_millis(30);

/// The least number of connections that a server of our own can be limited to.
const LEAST_CONNECTIONS: usize = 10;

/// A client sends this before it uses a connection that was idle.
const PING: &[u8] = &[1, 0, 0, 0, 14];

/// A client sends this, after the length of the packet, before its first acquire on a connection: it reads the run of
/// the server.
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
    /// All of its tables.
    const TABLES: &'static [&'static str];
    const MAX_CONNECTIONS: u32;
    /// The least time between two starts of a server.
    const LEAST_RUN: Duration;
    /// Whether the renewal and the release of a lease change a row.
    const RENEWALS_WRITE: bool;

    fn record(stored: &Stored<'_>, name: &LockName) -> Record;

    fn resource_counts(stored: &Stored<'_>) -> ResourceCounts;

    /// The number of requests that clients have sent.
    fn served(stored: &Stored<'_>) -> u64;

    /// Ends the lease of a lock and removes its record.
    fn remove(stored: &Stored<'_>, name: &LockName);
}

/// A database and the path to it.
pub(super) struct StrategyFixture<S> {
    strategy: PhantomData<S>,
    started: Mutex<Instant>,
    server: Mutex<MySqlDatabase>,
    path: TcpPath,
    /// Connections that use up the server's limit.
    fillers: Mutex<Vec<SqlConnection>>,
}

impl<S: Strategy> StrategyFixture<S> {
    pub(super) const TABLE: &str = S::TABLE;
    pub(super) const TABLES: &[&str] = S::TABLES;
    pub(super) const SETTINGS: &'static str = S::SETTINGS;
    pub(super) const RENEWALS_WRITE: bool = S::RENEWALS_WRITE;

    /// A fixture whose server, if it is our own, has further settings.
    pub(super) fn with_settings(settings: MySqlSettings) -> Self {
        let settings = settings.option(format!("max-connections={}", S::MAX_CONNECTIONS));
        let server = MySqlDatabase::create(settings, CONTENTS).unwrap_or_else(|error| panic!("{error}"));
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

    /// Synchronous on purpose: nothing may be awaited while the server is locked, and every statement has a time limit.
    pub(super) fn server(&self) -> MutexGuard<'_, MySqlDatabase> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the server, which must be our own.
    pub(super) fn own(&self, work: impl FnOnce(&MySqlServer)) {
        work(self.server().own().expect("a server of our own"));
    }

    /// The URL of clients by this route, with these settings on top.
    pub(super) fn url(&self, route: Route, more: &str) -> String {
        let (server, addr) = (self.server(), self.path.addr(route));
        let (user, password, database) = (server.user(), server.password(), server.name());
        format!("mysql://{user}:{password}@{addr}/{database}?timeout=1s&tls=off{}{more}", S::SETTINGS)
    }

    /// The URL of another user, straight to the server.
    pub(super) fn url_of(&self, user: &str, password: &str) -> String {
        let server = self.server();
        format!("mysql://{user}:{password}@{}/{}?tls=off{}", server.addr(), server.name(), S::SETTINGS)
    }

    /// Runs statements as an administrator, in the database of the fixture.
    pub(super) fn execute(&self, statements: &str) {
        Stored(&*self.server()).query(statements);
    }

    /// The database, and the account of clients.
    pub(super) fn names(&self) -> (String, String) {
        let server = self.server();
        (server.name().to_owned(), server.account())
    }

    /// Refuses the user of new connections, and ends those that are open.
    fn refuse_user(&self) {
        let server = self.server();
        let stored = Stored(&*server);
        stored.query(&format!("ALTER USER {} ACCOUNT LOCK", server.account()));
        for id in stored.clients() {
            // The connection may have ended by itself.
            let _ = server.query(&format!("KILL {id}"));
        }
    }

    /// Uses up all connections but those that are reserved for administrators: of the server, or of the user if others
    /// use the server.
    fn fill_connections(&self) {
        let server = self.server();
        let (limit, is_shared) = (LEAST_CONNECTIONS, server.is_shared());
        let stored = Stored(&*server);
        match is_shared {
            true => stored.query(&format!("ALTER USER {} WITH MAX_USER_CONNECTIONS 1", server.account())),
            false => stored.query(&format!("SET GLOBAL max_connections = {limit}")),
        };
        let fill = || if is_shared { server.client() } else { server.side() };
        let mut fillers = self.fillers.lock().unwrap_or_else(PoisonError::into_inner);
        while fillers.len() < limit
            && let Ok(filler) = fill()
        {
            fillers.push(filler);
        }
    }

    fn mend(&self) {
        self.fillers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let server = self.server();
        let stored = Stored(&*server);
        if !server.is_shared() {
            stored.query(&format!("SET GLOBAL max_connections = {}, read_only = 0", S::MAX_CONNECTIONS));
        }
        let account = server.account();
        stored.query(&format!(
            "ALTER USER {account} WITH MAX_USER_CONNECTIONS 0 ACCOUNT UNLOCK; DROP TRIGGER IF EXISTS is_full"
        ));
        server.client().unwrap_or_else(|error| panic!("the user is still refused: {error}"));
    }

    /// Injects a fault of the server's process or clock. Returns `None` for another fault.
    fn process(&self, fault: &ServerFault) -> Option<Result<(), Unsupported>> {
        use ServerFault::{ClockBack, ClockForward, Kill, Pause, Resume, Start, Stop};
        let mut server = self.server();
        if !matches!(fault, Stop | Kill | Start(_) | Pause | Resume | ClockForward(_) | ClockBack(_)) {
            return None;
        }
        let Some(own) = server.own() else { return Some(Err(NOT_OURS)) };
        let done = match fault {
            Stop => own.stop(),
            Kill => own.kill(),
            Start(data) => {
                let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
                std::thread::sleep(S::LEAST_RUN.saturating_sub(started.elapsed()));
                *started = Instant::now();
                let begun = own.start_again(*data);
                begun.and_then(|()| if *data == Data::Lost { server.create_again() } else { Ok(()) })
            }
            Pause => own.pause(),
            Resume => own.resume(),
            ClockForward(by) => own.step_clock(micros(*by)),
            ClockBack(by) => own.step_clock(-micros(*by)),
            _ => return None,
        };
        Some(done.map_err(|error| panic!("the server cannot be {fault:?}: {error}")))
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).expect("no step of a clock is that long")
}

#[async_trait]
impl<S: Strategy> Fixture for StrategyFixture<S> {
    async fn new() -> Self {
        Self::with_settings(MySqlSettings::new().steppable_clock())
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
        vec![self.server().password().to_owned()]
    }

    fn ttl(&self) -> Duration {
        S::TTL
    }

    async fn connected(&self) {
        let until = Instant::now() + CONNECT_BOUND;
        let mut since = None;
        while Instant::now() < until && !self.path.is_broken(Route::Faulty) {
            let connections = S::resource_counts(&Stored(&*self.server())).connections;
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
        // The server has a thread for each connection, which may still have to read its socket. A connection that is
        // being opened may hold bytes again.
        for round in 0..=MAX_HOLDING {
            match round {
                MAX_HOLDING => self.path.deliver(),
                _ => self.path.proxy().deliver_oldest(),
            }
            let mut before = None;
            loop {
                let executed = S::served(&Stored(&*self.server()));
                if before.replace(executed) == Some(executed) {
                    break;
                }
                tokio::time::sleep(STABLE).await;
            }
            if self.path.proxy().stats().held == 0 {
                return;
            }
        }
    }

    async fn server(&self, fault: ServerFault) -> Result<(), Unsupported> {
        if let Some(done) = self.process(&fault) {
            return done;
        }
        match fault {
            ServerFault::RefuseUser => self.refuse_user(),
            ServerFault::ReadOnly if self.server().is_shared() => return Err(NOT_OURS),
            ServerFault::ReadOnly => self.execute("SET GLOBAL read_only = 1"),
            ServerFault::Fill(Room::Data) => self.execute(&format!(
                "CREATE TRIGGER is_full BEFORE INSERT ON {} FOR EACH ROW \
                 SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table is full'",
                S::TABLE
            )),
            ServerFault::Fill(Room::Connections) => self.fill_connections(),
            ServerFault::FlushScripts => self.execute(&format!("ALTER TABLE {} COMMENT = 'changed'", S::TABLE)),
            _ => self.mend(),
        }
        Ok(())
    }

    async fn tamper(&self, name: &LockName, tamper: Tamper) -> Result<(), Unsupported> {
        let server = self.server();
        let stored = Stored(&*server);
        let format = match tamper {
            Tamper::Remove => {
                S::remove(&stored, name);
                return Ok(());
            }
            Tamper::Corrupt => "??",
            Tamper::OtherVersion => "2x",
        };
        stored.change(&format!("UPDATE {} SET format = '{format}'", S::TABLE), name);
        Ok(())
    }

    async fn record(&self, name: &LockName) -> Record {
        S::record(&Stored(&*self.server()), name)
    }

    async fn resource_counts(&self) -> ResourceCounts {
        S::resource_counts(&Stored(&*self.server()))
    }

    async fn served(&self) -> u64 {
        S::served(&Stored(&*self.server()))
    }
}
