//! A store for one test, and the faults that a test can cause.

use std::cell::RefCell;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::mysql::{SCHEMA, grants};
use leasehold_conformance::Data;
use leasehold_conformance::harness::{FaultProxy, folder};
#[cfg(feature = "etcd")]
use leasehold_test_servers::{EtcdAccess, EtcdKeys, EtcdServer, EtcdSettings};
use leasehold_test_servers::{MySqlServer, MySqlSettings, RedisServer, RedisSettings, Sql as _, SqlConnection};
#[cfg(feature = "zk")]
use leasehold_test_servers::{ZooKeeperLife, ZooKeeperServer, ZooKeeperSettings};
use rustix::fs::OFlags;

use crate::process::until;

pub(crate) struct Store {
    url: String,
    folder: tempfile::TempDir,
    kind: Kind,
}

enum Kind {
    #[cfg(feature = "etcd")]
    Etcd(Box<RefCell<EtcdServer>>),
    MySql(Box<RefCell<MySqlServer>>, Strategy),
    Redis(Box<RefCell<RedisServer>>),
    Sqlite(RefCell<Option<rusqlite::Connection>>),
    #[cfg(feature = "zk")]
    Zk(Box<RefCell<ZooKeeperServer>>),
}

/// A strategy of MySQL.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strategy {
    Row,
    ForUpdate,
}

impl Strategy {
    /// The end of a URL.
    fn settings(self) -> &'static str {
        match self {
            Self::Row => "",
            Self::ForUpdate => "&strategy=for-update",
        }
    }

    /// The table whose rows have the format.
    fn table(self) -> &'static str {
        match self {
            Self::Row => "locks.leasehold_locks",
            Self::ForUpdate => "locks.leasehold_fences",
        }
    }
}

impl Store {
    /// One of the stores, for tests that do not depend on it.
    pub(crate) fn any() -> Self {
        Self::sqlite()
    }

    /// An etcd server whose user has only the permissions of clients.
    #[cfg(feature = "etcd")]
    pub(crate) fn etcd() -> Self {
        let server = EtcdSettings::new().start().unwrap();
        server.side().enable_users().unwrap();
        let keys = EtcdKeys::with_prefix("leasehold/");
        server.side().set_user("locker", "hunter2", &[(EtcdAccess::ReadWrite, keys)]).unwrap();
        let url = format!("etcd://locker:hunter2@{}", server.addr());
        Self { url, folder: own_folder(), kind: Kind::Etcd(Box::new(RefCell::new(server))) }
    }

    pub(crate) fn mysql() -> Self {
        Self::of_mysql(Strategy::Row)
    }

    pub(crate) fn mysql_for_update() -> Self {
        Self::of_mysql(Strategy::ForUpdate)
    }

    /// Databases without tables, one for each strategy, and a user without permissions.
    pub(crate) fn empty_mysql() -> [Self; 2] {
        [Strategy::Row, Strategy::ForUpdate].map(|strategy| Self::of_mysql_with(strategy, "", "DO 0"))
    }

    /// A database whose user has only the permissions of clients and operators.
    fn of_mysql(strategy: Strategy) -> Self {
        Self::of_mysql_with(strategy, SCHEMA, &grants("locks", "'locker'@'%'"))
    }

    fn of_mysql_with(strategy: Strategy, tables: &str, grants: &str) -> Self {
        let server = MySqlSettings::new().option("max-connections=2000").start().unwrap();
        server.create("locks", tables, "'locker'@'%'", "hunter2", grants).unwrap();
        let url = format!("mysql://locker:hunter2@{}/locks?tls=off{}", server.addr(), strategy.settings());
        Self { url, folder: own_folder(), kind: Kind::MySql(Box::new(RefCell::new(server)), strategy) }
    }

    pub(crate) fn redis() -> Self {
        let server = RedisSettings::new().start().unwrap();
        Self { url: server.url(), folder: own_folder(), kind: Kind::Redis(Box::new(RefCell::new(server))) }
    }

    pub(crate) fn sqlite() -> Self {
        let folder = own_folder();
        let url = format!("sqlite://{}", folder.path().join("locks.db").display());
        Self { url, folder, kind: Kind::Sqlite(RefCell::default()) }
    }

    /// A ZooKeeper server whose user has only the permissions of clients.
    #[cfg(feature = "zk")]
    pub(crate) fn zk() -> Self {
        Self::zk_with(ZooKeeperSettings::new())
    }

    /// The same, with a limit for the ttl of sessions.
    #[cfg(feature = "zk")]
    pub(crate) fn zk_with_longest_session(longest: Duration) -> Self {
        let settings = ZooKeeperSettings::new().line(format!("maxSessionTimeout={}", longest.as_millis()));
        let mut store = Self::zk_with(settings);
        // The limit is known only after a reply, which a busy machine gives late.
        store.url += "&timeout=10s";
        store
    }

    #[cfg(feature = "zk")]
    fn zk_with(settings: ZooKeeperSettings) -> Self {
        let server = settings.start().unwrap();
        server.side().create("/leasehold", "", ZooKeeperLife::Persistent).unwrap();
        server.side().permit("/leasehold", "locker", "hunter2").unwrap();
        let url = format!("zk://locker:hunter2@{}?tick=100ms", server.addr());
        Self { url, folder: own_folder(), kind: Kind::Zk(Box::new(RefCell::new(server))) }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The URL of the store behind a proxy, which can break the path; `None` for a file.
    pub(crate) fn proxy(&self) -> Option<(String, FaultProxy)> {
        let addr = match &self.kind {
            #[cfg(feature = "etcd")]
            Kind::Etcd(server) => server.borrow().addr(),
            Kind::MySql(server, _) => server.borrow().addr(),
            Kind::Redis(server) => server.borrow().addr(),
            Kind::Sqlite(_) => return None,
            #[cfg(feature = "zk")]
            Kind::Zk(server) => server.borrow().addr(),
        };
        let proxy = FaultProxy::start(addr).unwrap();
        Some((self.url.replace(&addr.to_string(), &proxy.addr().to_string()), proxy))
    }

    /// Whether the store knows its waiters.
    pub(crate) fn has_queue(&self) -> bool {
        match self.kind {
            #[cfg(feature = "etcd")]
            Kind::Etcd(_) => true,
            #[cfg(feature = "zk")]
            Kind::Zk(_) => true,
            Kind::Redis(_) | Kind::MySql(_, Strategy::ForUpdate) => true,
            Kind::MySql(_, Strategy::Row) | Kind::Sqlite(_) => false,
        }
    }

    /// Whether a lease that was released within its shortest hold ends with its process.
    pub(crate) fn ends_holds_with_processes(&self) -> bool {
        self.has_sessions() || self.ends_leases_with_processes()
    }

    /// Whether a lease ends with its process, and not by its ttl.
    pub(crate) fn ends_leases_with_processes(&self) -> bool {
        matches!(self.kind, Kind::MySql(_, Strategy::ForUpdate))
    }

    /// Whether the store keeps nothing of a lock that is free.
    pub(crate) fn forgets_free_locks(&self) -> bool {
        self.has_sessions()
    }

    /// Whether the store reports at once that an operator has ended a lease.
    pub(crate) fn pushes_losses(&self) -> bool {
        self.has_sessions()
    }

    fn has_sessions(&self) -> bool {
        match self.kind {
            #[cfg(feature = "etcd")]
            Kind::Etcd(_) => true,
            #[cfg(feature = "zk")]
            Kind::Zk(_) => true,
            _ => false,
        }
    }

    /// Whether locks can be inspected after [`stop_replying`](Self::stop_replying).
    pub(crate) fn stays_readable(&self) -> bool {
        matches!(self.kind, Kind::Sqlite(_))
    }

    /// A folder for the test's files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A path in that folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A named pipe at which a command waits (`read line < gate`) until it is opened.
    pub(crate) fn gate(&self) -> Gate {
        let path = self.file("gate");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        Gate(path)
    }

    /// Removes the record of every lock, or ends the connections of its leases, as an operator could.
    pub(crate) fn remove_records(&self) {
        match &self.kind {
            #[cfg(feature = "etcd")]
            Kind::Etcd(server) => {
                server.borrow().side().delete_all("leasehold/").unwrap();
            }
            Kind::MySql(server, Strategy::Row) => {
                server.borrow().query("DELETE FROM locks.leasehold_locks").unwrap();
            }
            Kind::MySql(server, Strategy::ForUpdate) => {
                let server = server.borrow();
                let name = "CONCAT('leasehold:', LEFT(SHA2(CONCAT('locks/', name), 256), 40))";
                let of_leases = format!("SELECT CAST(IS_USED_LOCK({name}) AS CHAR) FROM locks.leasehold_fences");
                for row in server.query(&of_leases).unwrap() {
                    if let Some(id) = &row[0] {
                        server.query(&format!("KILL {}", String::from_utf8_lossy(id))).unwrap();
                    }
                }
            }
            Kind::Redis(server) => {
                server.borrow().command(&["FLUSHALL"]).unwrap();
            }
            Kind::Sqlite(_) => {
                let connection = rusqlite::Connection::open(self.file("locks.db")).unwrap();
                connection.busy_timeout(Duration::from_secs(10)).unwrap();
                connection.execute("DELETE FROM leasehold_locks", []).unwrap();
            }
            #[cfg(feature = "zk")]
            Kind::Zk(server) => {
                let server = server.borrow();
                for node in server.side().tree("/leasehold").unwrap() {
                    // The nodes of claims, and not those of sessions.
                    if node.path.split('/').count() == 4 {
                        server.side().delete(&node.path).unwrap();
                    }
                }
            }
        }
    }

    /// Runs statements as the administrator of a MySQL server.
    pub(crate) fn administer(&self, statements: &str) {
        let Kind::MySql(server, _) = &self.kind else { panic!("only a MySQL server runs these statements") };
        server.borrow().query(statements).unwrap();
    }

    /// Lowers the limit of connections of a Redis or MySQL server.
    pub(crate) fn limit_connections(&self, limit: u32) {
        match &self.kind {
            Kind::Redis(server) => {
                server.borrow().command(&["CONFIG", "SET", "maxclients", &limit.to_string()]).unwrap();
            }
            Kind::MySql(..) => self.administer(&format!("SET GLOBAL max_connections = {limit}")),
            _ => panic!("only Redis and MySQL servers have such a limit"),
        }
    }

    /// Lowers the limit of connections, and uses up what is left. The returned connections do that.
    pub(crate) fn fill_connections(&self) -> Vec<SqlConnection> {
        // The least limits that the servers accept. The test itself has one connection.
        match &self.kind {
            Kind::MySql(server, _) => {
                self.limit_connections(10);
                std::iter::from_fn(|| server.borrow().side().ok()).take(10).collect()
            }
            _ => {
                self.limit_connections(1);
                Vec::new()
            }
        }
    }

    /// How many connections were refused because of the limit.
    pub(crate) fn refused_connections(&self) -> u64 {
        match &self.kind {
            Kind::Redis(server) => server.borrow().info("stats", "rejected_connections").unwrap().parse().unwrap(),
            Kind::MySql(server, _) => server.borrow().status("Connection_errors_max_connections").unwrap(),
            _ => panic!("only Redis and MySQL servers have such a limit"),
        }
    }

    /// Stops the server, which loses its data.
    pub(crate) fn stop_server(&self) {
        match &self.kind {
            Kind::Redis(server) => server.borrow_mut().kill().unwrap(),
            _ => panic!("only a Redis server is stopped"),
        }
    }

    /// Starts the server again.
    pub(crate) fn start_server(&self) {
        match &self.kind {
            Kind::Redis(server) => server.borrow_mut().start_again(Data::Lost).unwrap(),
            _ => panic!("only a Redis server is started"),
        }
    }

    /// Closes the SQLite file as its last user, after which SQLite deletes the files beside it.
    pub(crate) fn close_file(&self) {
        let connection = rusqlite::Connection::open(self.file("locks.db")).unwrap();
        connection.query_row("SELECT count(*) FROM leasehold_locks", [], |_| Ok(())).unwrap();
        connection.close().unwrap();
        assert!(!self.file("locks.db-wal").exists() && !self.file("locks.db-shm").exists());
    }

    /// Replaces the record of a lock by one of a newer format.
    pub(crate) fn set_newer_format(&self, name: &str) {
        match &self.kind {
            #[cfg(feature = "etcd")]
            Kind::Etcd(server) => {
                let queue = format!("leasehold/{}/", name.replace('/', "%2F"));
                let first =
                    server.borrow().side().keys(&queue).unwrap().into_iter().min_by_key(|key| key.create_revision);
                let (key, lease) = match first {
                    Some(first) => (first.key, first.lease),
                    None => (format!("{queue}{}", "0".repeat(32)).into_bytes(), 0),
                };
                server.borrow().side().put(key, "2\thost", lease).unwrap();
            }
            Kind::MySql(server, strategy) => {
                let table = strategy.table();
                let rows = server.borrow().query(&format!(
                    "UPDATE {table} SET format = '2x' WHERE name = '{name}'; SELECT CAST(ROW_COUNT() AS CHAR)"
                ));
                assert_eq!(rows.unwrap()[0][0].as_deref(), Some(&b"1"[..]));
            }
            Kind::Redis(server) => {
                let key = format!("leasehold:{{{}}}", name.replace('/', "%2F"));
                assert!(
                    !server.borrow().command(&["GET", &key]).unwrap().text().is_empty(),
                    "there is no record {key}"
                );
                server.borrow().command(&["SETRANGE", &key, "0", "\x02"]).unwrap();
            }
            Kind::Sqlite(_) => {
                let connection = rusqlite::Connection::open(self.file("locks.db")).unwrap();
                connection.busy_timeout(Duration::from_secs(10)).unwrap();
                let sql = "UPDATE leasehold_locks SET format = '2x' WHERE name = CAST(?1 AS BLOB)";
                assert_eq!(connection.execute(sql, [name]).unwrap(), 1);
            }
            #[cfg(feature = "zk")]
            Kind::Zk(server) => {
                let (server, lock) = (server.borrow(), format!("/leasehold/{}", name.replace('/', "%2F")));
                if server.side().get(&lock).unwrap().is_none() {
                    server.side().create(&lock, "1", ZooKeeperLife::Container).unwrap();
                }
                let node = format!("{lock}/2-{}-0000000001", "0".repeat(32));
                server.side().create(&node, "2\thost", ZooKeeperLife::Persistent).unwrap();
            }
        }
    }

    /// The URL of a user with exactly these rules.
    pub(crate) fn user(&self, rules: &str) -> String {
        let Kind::Redis(server) = &self.kind else { panic!("only a Redis server has users") };
        let rules: Vec<&str> =
            ["ACL", "SETUSER", "ann", "reset", "on", ">secret"].into_iter().chain(rules.split(' ')).collect();
        server.borrow().command(&rules).unwrap();
        self.url.replace("redis://", "redis://ann:secret@")
    }

    /// Makes the store stop replying, or at least stop replying to writes.
    pub(crate) fn stop_replying(&self) {
        match &self.kind {
            #[cfg(feature = "etcd")]
            Kind::Etcd(server) => server.borrow_mut().pause().unwrap(),
            Kind::MySql(server, _) => server.borrow_mut().pause().unwrap(),
            Kind::Redis(server) => server.borrow_mut().pause().unwrap(),
            #[cfg(feature = "zk")]
            Kind::Zk(server) => server.borrow_mut().pause().unwrap(),
            Kind::Sqlite(held) => {
                let connection = rusqlite::Connection::open(self.file("locks.db")).unwrap();
                connection.busy_timeout(Duration::from_secs(10)).unwrap();
                connection.execute_batch("BEGIN EXCLUSIVE").unwrap();
                *held.borrow_mut() = Some(connection);
            }
        }
    }

    /// Makes the store reply again.
    pub(crate) fn reply_again(&self) {
        match &self.kind {
            #[cfg(feature = "etcd")]
            Kind::Etcd(server) => server.borrow_mut().resume().unwrap(),
            Kind::MySql(server, _) => server.borrow_mut().resume().unwrap(),
            Kind::Redis(server) => server.borrow_mut().resume().unwrap(),
            #[cfg(feature = "zk")]
            Kind::Zk(server) => server.borrow_mut().resume().unwrap(),
            Kind::Sqlite(held) => *held.borrow_mut() = None,
        }
    }
}

fn own_folder() -> tempfile::TempDir {
    folder("leasehold-cli-").unwrap_or_else(|error| panic!("no folder for a test: {error}"))
}

/// See [`Store::gate`].
pub(crate) struct Gate(PathBuf);

impl Gate {
    /// Waits until a command waits at the pipe, and lets it continue.
    #[track_caller]
    pub(crate) fn open(&self) {
        let mut gate = None;
        // A blocking open would never return if the command has exited.
        until("a command stands at the gate", || {
            let mut options = std::fs::OpenOptions::new();
            let opened = options.write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&self.0);
            gate = opened.ok();
            gate.is_some()
        });
        gate.unwrap().write_all(b"go\n").unwrap();
    }
}
