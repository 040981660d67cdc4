//! A store of a test's own, and what may happen to it.

use std::cell::RefCell;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use leasehold_conformance::harness::folder;
#[cfg(feature = "redis")]
use leasehold_conformance::{
    Data,
    harness::{RedisServer, RedisSettings},
};
use rustix::fs::OFlags;

use crate::process::until;

pub(crate) struct Store {
    url: String,
    folder: tempfile::TempDir,
    kind: Kind,
}

enum Kind {
    #[cfg(feature = "redis")]
    Redis(RefCell<RedisServer>),
    #[cfg(feature = "sqlite")]
    Sqlite(RefCell<Option<rusqlite::Connection>>),
}

impl Store {
    /// One of them, for what does not depend on the store.
    pub(crate) fn any() -> Self {
        #[cfg(feature = "sqlite")]
        return Self::sqlite();
        #[cfg(not(feature = "sqlite"))]
        Self::redis()
    }

    #[cfg(feature = "redis")]
    pub(crate) fn redis() -> Self {
        let server = RedisSettings::new().start().unwrap();
        Self { url: server.url(), folder: own_folder(), kind: Kind::Redis(RefCell::new(server)) }
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn sqlite() -> Self {
        let folder = own_folder();
        let url = format!("sqlite://{}", folder.path().join("locks.db").display());
        Self { url, folder, kind: Kind::Sqlite(RefCell::default()) }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Whether who waits can be seen at the store.
    pub(crate) fn has_queue(&self) -> bool {
        match self.kind {
            #[cfg(feature = "redis")]
            Kind::Redis(_) => true,
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(_) => false,
        }
    }

    /// A folder for the test's files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A file of the test.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A named pipe at which a command waits (`read line < gate`) until it is opened.
    pub(crate) fn gate(&self) -> Gate {
        let path = self.file("gate");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        Gate(path)
    }

    /// An operator removes the record of every lock.
    pub(crate) fn remove_records(&self) {
        match &self.kind {
            #[cfg(feature = "redis")]
            Kind::Redis(server) => {
                server.borrow().command(&["FLUSHALL"]).unwrap();
            }
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(_) => {
                let connection = rusqlite::Connection::open(self.file("locks.db")).unwrap();
                connection.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
                connection.execute("DELETE FROM leasehold_locks", []).unwrap();
            }
        }
    }

    /// The server ends, and forgets everything.
    #[cfg(feature = "redis")]
    pub(crate) fn stop_server(&self) {
        match &self.kind {
            Kind::Redis(server) => server.borrow_mut().kill().unwrap(),
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(_) => panic!("a file has no server"),
        }
    }

    /// The server is there again.
    #[cfg(feature = "redis")]
    pub(crate) fn start_server(&self) {
        match &self.kind {
            Kind::Redis(server) => server.borrow_mut().start_again(Data::Lost).unwrap(),
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(_) => panic!("a file has no server"),
        }
    }

    /// The last program that has the file of a SQLite store open closes it, and SQLite deletes the files beside it.
    pub(crate) fn close_file(&self) {
        let connection = rusqlite::Connection::open(self.file("locks.db")).unwrap();
        connection.query_row("SELECT count(*) FROM leasehold_locks", [], |_| Ok(())).unwrap();
        connection.close().unwrap();
        assert!(!self.file("locks.db-wal").exists() && !self.file("locks.db-shm").exists());
    }

    /// The record of a lock becomes one of a later format.
    pub(crate) fn set_newer_format(&self, name: &str) {
        match &self.kind {
            #[cfg(feature = "redis")]
            Kind::Redis(server) => {
                let key = format!("leasehold:{{{}}}", name.replace('/', "%2F"));
                assert!(
                    !server.borrow().command(&["GET", &key]).unwrap().text().is_empty(),
                    "there is no record {key}"
                );
                server.borrow().command(&["SETRANGE", &key, "0", "\x02"]).unwrap();
            }
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(_) => {
                let connection = rusqlite::Connection::open(self.file("locks.db")).unwrap();
                connection.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
                let sql = "UPDATE leasehold_locks SET format = '2x' WHERE name = CAST(?1 AS BLOB)";
                assert_eq!(connection.execute(sql, [name]).unwrap(), 1);
            }
        }
    }

    /// The URL of a user with these rules and no others.
    #[cfg(feature = "redis")]
    pub(crate) fn user(&self, rules: &str) -> String {
        let Kind::Redis(server) = &self.kind else { panic!("only a Redis has users") };
        let rules: Vec<&str> =
            ["ACL", "SETUSER", "ann", "reset", "on", ">secret"].into_iter().chain(rules.split(' ')).collect();
        server.borrow().command(&rules).unwrap();
        self.url.replace("redis://", "redis://ann:secret@")
    }

    /// From now on nothing is answered, or at least nothing that is written.
    pub(crate) fn stop_replying(&self) {
        match &self.kind {
            #[cfg(feature = "redis")]
            Kind::Redis(server) => server.borrow_mut().pause().unwrap(),
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(held) => {
                let connection = rusqlite::Connection::open(self.file("locks.db")).unwrap();
                connection.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
                connection.execute_batch("BEGIN EXCLUSIVE").unwrap();
                *held.borrow_mut() = Some(connection);
            }
        }
    }

    /// RenewReplies again.
    pub(crate) fn reply_again(&self) {
        match &self.kind {
            #[cfg(feature = "redis")]
            Kind::Redis(server) => server.borrow_mut().resume().unwrap(),
            #[cfg(feature = "sqlite")]
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
    /// Lets one command go on. Waits until it stands there.
    #[track_caller]
    pub(crate) fn open(&self) {
        let mut gate = None;
        // An open that waits would wait for ever for a command that has ended.
        until("a command stands at the gate", || {
            let mut options = std::fs::OpenOptions::new();
            let opened = options.write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&self.0);
            gate = opened.ok();
            gate.is_some()
        });
        gate.unwrap().write_all(b"go\n").unwrap();
    }
}
