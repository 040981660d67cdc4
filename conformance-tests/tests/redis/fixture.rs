//! The fixture of Redis: Leasehold on a real redis-server.

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold::redis::{RedisBackend, ScriptCalls, acl, operator_acl};
use leasehold_conformance::harness::TcpPath;
use leasehold_conformance::{
    Fixture, PathFault, Record, ResourceCounts, Room, Route, ServerFault, Tamper, Unsupported,
};
use leasehold_core::LockName;
use leasehold_core::backend::LockBackend;
use leasehold_test_servers::{Monitor, RedisServer, RedisSettings};

use super::stored::Stored;

/// The time for clients to connect before a fault. They usually need some milliseconds.
const CONNECT_BOUND: Duration = Duration::from_secs(2);

/// The channels of single clients; all share one more.
const CLIENT_CHANNELS: &str = "*c:????????????????";

/// The user who lists locks, where [`Setup::USER`] may not.
const OPERATOR: &str = "operator";

/// How a fixture's server and clients are set up.
pub(super) trait Setup: Send + Sync + 'static {
    /// The user that clients log in with. One with a password gets the least permissions.
    const USER: &'static str;
    /// The password, and "" for none.
    const PASSWORD: &'static str;
    /// The prefix of keys and channels.
    const PREFIX: &'static str;
    /// How clients find the server.
    type Access: Access;
}

/// What a URL says about where the server is.
pub(super) trait Access: Send + Sync + 'static {
    const SCHEME: &'static str;
    /// [`Fixture::back_within`].
    const BACK_WITHIN: Duration = Duration::from_secs(2);

    /// Of a server, and of the proxy on the path to it.
    fn new(server: SocketAddr, proxy: SocketAddr) -> Self;

    /// The settings of the server.
    fn settings(settings: RedisSettings) -> RedisSettings {
        settings
    }

    /// Makes a server ready that has just been started for the first time.
    fn begin(_server: &RedisServer) {}

    /// The hosts and the path of the URL by which clients reach this one of the two.
    fn location(&self, addr: SocketAddr) -> String;
}

/// For the suite: a user with the least permissions, so that every case proves that they are enough, and a prefix with
/// a character that is a wildcard in patterns of Redis.
pub(super) struct Guarded<A>(PhantomData<A>);

impl<A: Access> Setup for Guarded<A> {
    const USER: &'static str = "locker";
    const PASSWORD: &'static str = "pass-word";
    const PREFIX: &'static str = "team*a:locks:";
    type Access = A;
}

/// A redis-server and the path to it.
pub(super) struct RedisFixture<S: Setup> {
    server: Mutex<RedisServer>,
    path: TcpPath,
    access: S::Access,
    /// Started by the first call of `served`, because it slows the server down.
    monitor: Mutex<Option<Monitor>>,
    setup: PhantomData<fn() -> S>,
}

impl<S: Setup> RedisFixture<S> {
    /// Synchronous on purpose: nothing may be awaited while the server is locked, and every command has a time limit.
    pub(super) fn server(&self) -> MutexGuard<'_, RedisServer> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URL of clients by this route, with these settings on top.
    pub(super) fn url(&self, route: Route, more: &str) -> String {
        self.url_of(route, S::USER, more)
    }

    fn url_of(&self, route: Route, user: &str, more: &str) -> String {
        let user = match S::PASSWORD {
            "" => String::new(),
            password => format!("{user}:{password}@"),
        };
        let (scheme, location) = (S::Access::SCHEME, self.access.location(self.path.addr(route)));
        let prefix = S::PREFIX;
        format!("{scheme}://{user}{location}?prefix={prefix}&timeout=1s{more}")
    }

    /// Waits until this many clients have established all their connections, at most for `bound`. Returns whether they
    /// have. A client receives notifications of grants on its own channel, over a connection that it establishes beside
    /// its first calls. Each connection begins with a script.
    pub(super) async fn connected_are(&self, clients: impl Fn() -> u64, bound: Duration) -> bool {
        let is_so = || {
            let server = self.server();
            let channels = server
                .command(&["PUBSUB", "CHANNELS", CLIENT_CHANNELS])
                .map_or(u64::MAX, |reply| reply.items().len() as u64);
            let lines = server.clients().unwrap_or_default();
            channels >= clients() && lines.iter().all(|line| line.contains(" cmd=eval"))
        };
        let until = Instant::now() + bound;
        while Instant::now() < until {
            let passed = self.path.proxy().stats();
            let was_so = is_so();
            tokio::time::sleep(Duration::from_millis(5)).await;
            // The last reply may still be in flight, and the client loads a script next if the server does not have it.
            if was_so && is_so() && self.path.proxy().stats() == passed {
                return true;
            }
        }
        false
    }

    /// Runs commands at the server, one after the other.
    fn execute(&self, commands: &[&[&str]]) {
        let server = self.server();
        for command in commands {
            server.command(command).unwrap_or_else(|error| panic!("{} fails: {error}", command[0]));
        }
    }

    /// Closes the user's connections and disables the user.
    fn refuse_user(&self) {
        self.execute(&[&["ACL", "SETUSER", S::USER, "off", "resetpass", "-@all"]]);
    }

    fn mend(&self) {
        let rules = user_rules::<S>();
        let mut user = vec!["ACL", "SETUSER", S::USER, "reset"];
        user.extend(rules.split(' '));
        self.execute(&[
            &user,
            &["CONFIG", "SET", "maxmemory", "0"],
            &["CONFIG", "SET", "maxclients", "10000"],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
        ]);
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).expect("no step of a clock is that long")
}

/// Whether a command is about locks: a script with the record of a lock, not one about the server itself.
fn is_about_a_lock(command: &str) -> bool {
    command.starts_with("\"EVAL") && command.contains('{') && !command.contains("epoch{")
}

/// The rules of the user, in the syntax of the configuration and of `ACL SETUSER`.
fn user_rules<S: Setup>() -> String {
    match S::PASSWORD {
        "" => "on nopass ~* &* +@all".to_owned(),
        password => format!("on >{password} {}", acl(S::PREFIX, ScriptCalls::Eval).expect("a prefix")),
    }
}

#[async_trait]
impl<S: Setup> Fixture for RedisFixture<S> {
    async fn new() -> Self {
        let settings =
            RedisSettings::new().persistent().steppable_clock().line(format!("user {} {}", S::USER, user_rules::<S>()));
        let settings = match S::PASSWORD {
            "" => settings,
            password => settings.line(format!(
                "user {OPERATOR} on >{password} {}",
                operator_acl(S::PREFIX, ScriptCalls::Eval).expect("a prefix")
            )),
        };
        let server = S::Access::settings(settings).start().unwrap_or_else(|error| panic!("{error}"));
        S::Access::begin(&server);
        let path = TcpPath::start(server.addr()).unwrap_or_else(|error| panic!("no fault proxy: {error}"));
        let access = S::Access::new(path.addr(Route::Clear), path.addr(Route::Faulty));
        Self { server: Mutex::new(server), path, access, monitor: Mutex::default(), setup: PhantomData }
    }

    /// Connects if possible, so that a following fault meets a request and not a first connection.
    async fn backend(&self, route: Route) -> Arc<dyn LockBackend> {
        let url = self.url(route, "");
        let connected = match self.path.is_broken(route) {
            true => None,
            false => RedisBackend::connect(&url).await.ok(),
        };
        let backend = match connected {
            Some(backend) => backend,
            None => RedisBackend::connect_lazy(&url).unwrap_or_else(|error| panic!("no backend: {error:?}")),
        };
        Arc::new(self.path.wrap(Arc::new(backend), route))
    }

    async fn backend_with_retention(&self, retention: Duration) -> Result<Arc<dyn LockBackend>, Unsupported> {
        let url = self.url(Route::Clear, &format!("&retention={}ms", retention.as_millis()));
        let backend = RedisBackend::connect(&url).await.unwrap_or_else(|error| panic!("no backend: {error:?}"));
        Ok(Arc::new(self.path.wrap(Arc::new(backend), Route::Clear)))
    }

    async fn operator(&self) -> Arc<dyn LockBackend> {
        let user = if S::PASSWORD.is_empty() { S::USER } else { OPERATOR };
        let backend = RedisBackend::connect(&self.url_of(Route::Clear, user, "")).await;
        Arc::new(backend.unwrap_or_else(|error| panic!("no backend for the operator: {error:?}")))
    }

    fn secrets(&self) -> Vec<String> {
        [S::PASSWORD].iter().filter(|password| !password.is_empty()).map(ToString::to_string).collect()
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }

    fn back_within(&self) -> Duration {
        S::Access::BACK_WITHIN
    }

    async fn connected(&self) {
        if !self.path.is_broken(Route::Faulty) {
            self.connected_are(|| self.path.clients(), CONNECT_BOUND).await;
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
        self.path.deliver();
        // Delivered bytes are in the server's sockets. It reads all sockets between two reads of one socket.
        self.execute(&[&["PING"], &["PING"]]);
    }

    async fn server(&self, fault: ServerFault) -> Result<(), Unsupported> {
        let mut server = self.server();
        let done = match fault {
            ServerFault::Stop | ServerFault::Kill => {
                *self.monitor.lock().unwrap_or_else(PoisonError::into_inner) = None;
                if fault == ServerFault::Stop { server.stop() } else { server.kill() }
            }
            ServerFault::Start(data) => server.start_again(data),
            ServerFault::Pause => server.pause(),
            ServerFault::Resume => server.resume(),
            ServerFault::ClockForward(by) => server.step_clock(micros(by)),
            ServerFault::ClockBack(by) => server.step_clock(-micros(by)),
            other => {
                drop(server);
                match other {
                    ServerFault::RefuseUser => self.refuse_user(),
                    // Not by making it a replica: its promotion would begin a quarantine, which `promoted.rs` tests.
                    ServerFault::ReadOnly => self.execute(&[&["CONFIG", "SET", "min-replicas-to-write", "1"]]),
                    ServerFault::Fill(Room::Data) => self.execute(&[&["CONFIG", "SET", "maxmemory", "1"]]),
                    ServerFault::Fill(Room::Connections) => self.execute(&[&["CONFIG", "SET", "maxclients", "1"]]),
                    ServerFault::FlushScripts => self.execute(&[&["SCRIPT", "FLUSH", "SYNC"]]),
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
        let stored = Stored::new(&server, S::PREFIX);
        let (key, queue) = (stored.key(name), stored.queue_key(name));
        drop(server);
        match tamper {
            Tamper::Remove => self.execute(&[&["DEL", &key, &queue]]),
            Tamper::Corrupt => self.execute(&[&["DEL", &key], &["RPUSH", &key, "another program's list"]]),
            Tamper::OtherVersion => self.execute(&[&["SETRANGE", &key, "0", "\x02"]]),
        }
        Ok(())
    }

    async fn record(&self, name: &LockName) -> Record {
        Stored::new(&self.server(), S::PREFIX).record(name)
    }

    async fn resource_counts(&self) -> ResourceCounts {
        let server = self.server();
        let connections = server.clients().unwrap_or_else(|error| panic!("CLIENT LIST fails: {error}")).len() as u64;
        ResourceCounts { connections, ..Stored::new(&server, S::PREFIX).resource_counts() }
    }

    async fn served(&self) -> u64 {
        let server = self.server();
        let mut monitor = self.monitor.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = match &mut *monitor {
            Some(monitor) => monitor.count(&server),
            None => server.monitor(is_about_a_lock).and_then(|started| monitor.insert(started).count(&server)),
        };
        counted.unwrap_or_else(|error| panic!("the server's commands cannot be counted: {error}"))
    }
}
