//! A store for one test, and the faults that a test can cause.

use std::cell::RefCell;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use leasehold::mysql::{SCHEMA, grants};
use leasehold_conformance::Data;
use leasehold_conformance::harness::folder;
#[cfg(feature = "etcd")]
use leasehold_test_servers::{EtcdAccess, EtcdKeys, EtcdServer, EtcdSettings};
use leasehold_test_servers::{MySqlServer, MySqlSettings, RedisServer, RedisSettings};
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
    MySql(Box<RefCell<MySqlServer>>),
    Redis(Box<RefCell<RedisServer>>),
    Sqlite(RefCell<Option<rusqlite::Connection>>),
}

impl Store {
    /// One of the stores, for tests that do not depend on it.
    pub(crate) fn any() -> Self {
        Self::sqlite()
    }

    /// An etcd whose user has only the permissions of clients.
    #[cfg(feature = "etcd")]
    pub(crate) fn etcd() -> Self {
        let server = EtcdSettings::new().start().unwrap();
        server.side().enable_users().unwrap();
        let keys = EtcdKeys::with_prefix("leasehold/");
        server.side().set_user("locker", "hunter2", &[(EtcdAccess::ReadWrite, keys)]).unwrap();
        let url = format!("etcd://locker:hunter2@{}", server.addr());
        Self { url, folder: own_folder(), kind: Kind::Etcd(Box::new(RefCell::new(server))) }
    }

    /// A database whose user has only the permissions of clients and operators.
    pub(crate) fn mysql() -> Self {
        let server = MySqlSettings::new().option("max-connections=1000").start().unwrap();
        let user = "'locker'@'%'";
        server.create("locks", SCHEMA, user, "hunter2", &grants("locks", user)).unwrap();
        let url = format!("mysql://locker:hunter2@{}/locks?tls=off", server.addr());
        Self { url, folder: own_folder(), kind: Kind::MySql(Box::new(RefCell::new(server))) }
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

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Whether the store knows its waiters.
    pub(crate) fn has_queue(&self) -> bool {
        match self.kind {
            #[cfg(feature = "etcd")]
            Kind::Etcd(_) => true,
            Kind::Redis(_) => true,
            Kind::MySql(_) | Kind::Sqlite(_) => false,
        }
    }

    /// Whether the record of a lock outlives its lease.
    pub(crate) fn keeps_free_records(&self) -> bool {
        match self.kind {
            // Tokens are revisions of the store.
            #[cfg(feature = "etcd")]
            Kind::Etcd(_) => false,
            _ => true,
        }
    }

    /// Whether a holder learns at once that its lease was ended.
    pub(crate) fn pushes_losses(&self) -> bool {
        match self.kind {
            #[cfg(feature = "etcd")]
            Kind::Etcd(_) => true,
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

    /// Removes the record of every lock, as an operator could.
    pub(crate) fn remove_records(&self) {
        match &self.kind {
            #[cfg(feature = "etcd")]
            Kind::Etcd(server) => {
                server.borrow().side().delete_all("leasehold/").unwrap();
            }
            Kind::MySql(server) => {
                server.borrow().query("DELETE FROM locks.leasehold_locks").unwrap();
            }
            Kind::Redis(server) => {
                server.borrow().command(&["FLUSHALL"]).unwrap();
            }
            Kind::Sqlite(_) => {
                let connection = rusqlite::Connection::open(self.file("locks.db")).unwrap();
                connection.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
                connection.execute("DELETE FROM leasehold_locks", []).unwrap();
            }
        }
    }

    /// Stops the server, which loses its data.
    pub(crate) fn stop_server(&self) {
        match &self.kind {
            Kind::Redis(server) => server.borrow_mut().kill().unwrap(),
            _ => panic!("only a Redis is stopped"),
        }
    }

    /// Starts the server again.
    pub(crate) fn start_server(&self) {
        match &self.kind {
            Kind::Redis(server) => server.borrow_mut().start_again(Data::Lost).unwrap(),
            _ => panic!("only a Redis is started"),
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
            Kind::MySql(server) => {
                let rows = server.borrow().query(&format!(
                    "UPDATE locks.leasehold_locks SET format = '2x' WHERE name = '{name}'; SELECT CAST(ROW_COUNT() AS CHAR)"
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
                connection.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
                let sql = "UPDATE leasehold_locks SET format = '2x' WHERE name = CAST(?1 AS BLOB)";
                assert_eq!(connection.execute(sql, [name]).unwrap(), 1);
            }
        }
    }

    /// The URL of a user with exactly these rules.
    pub(crate) fn user(&self, rules: &str) -> String {
        let Kind::Redis(server) = &self.kind else { panic!("only a Redis has users") };
        let rules: Vec<&str> =
            ["ACL", "SETUSER", "ann", "reset", "on", ">secret"].into_iter().chain(rules.split(' ')).collect();
        server.borrow().command(&rules).unwrap();
        self.url.replace("redis://", "redis://ann:secret@")
    }

    /// Makes the store stop answering, or at least stop answering writes.
    pub(crate) fn stop_replying(&self) {
        match &self.kind {
            #[cfg(feature = "etcd")]
            Kind::Etcd(server) => server.borrow_mut().pause().unwrap(),
            Kind::MySql(server) => server.borrow_mut().pause().unwrap(),
            Kind::Redis(server) => server.borrow_mut().pause().unwrap(),
            Kind::Sqlite(held) => {
                let connection = rusqlite::Connection::open(self.file("locks.db")).unwrap();
                connection.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
                connection.execute_batch("BEGIN EXCLUSIVE").unwrap();
                *held.borrow_mut() = Some(connection);
            }
        }
    }

    /// Makes the store answer again.
    pub(crate) fn reply_again(&self) {
        match &self.kind {
            #[cfg(feature = "etcd")]
            Kind::Etcd(server) => server.borrow_mut().resume().unwrap(),
            Kind::MySql(server) => server.borrow_mut().resume().unwrap(),
            Kind::Redis(server) => server.borrow_mut().resume().unwrap(),
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
