//! Calls of the test, beside the library under test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

use super::session::{REPLY_BOUND, Refused, Session, word};
use super::wire::{Reply, Request};

const DELETE: i32 = 2;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const SET_ACL: i32 = 7;
const SYNC: i32 = 9;
const GET_CHILDREN: i32 = 12;
const CREATE: i32 = 15;
const CREATE_CONTAINER: i32 = 19;

/// The ttl of the test's own session, longer than a test. It sends no pings.
const TTL: Duration = Duration::from_secs(600);

/// How long it may take to end a session that was taken over.
const CLOSE_BOUND: Duration = Duration::from_millis(500);

/// All permissions.
const ALL: i32 = 31;

const READ_AND_CREATE: i32 = 1 | 4;

/// Calls of the test beside the library under test, as a user who may do everything. Each blocks for at most five
/// seconds for each request. An error with [`io::ErrorKind::Other`] is the server's.
pub struct ZooKeeperSide {
    addr: SocketAddr,
    /// The password of the user `super`.
    password: String,
    session: Mutex<Option<Session>>,
    own_sessions: OwnSessions,
}

/// The sessions of the test so far, which outlive their connections. All servers of an ensemble share them.
pub(super) type OwnSessions = Arc<Mutex<BTreeSet<i64>>>;

// Without the password.
impl fmt::Debug for ZooKeeperSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperSide").field("addr", &self.addr).finish_non_exhaustive()
    }
}

/// How long a node lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZooKeeperLife {
    /// Until it is deleted.
    Persistent,
    /// Until it is deleted. The server appends a number to its name.
    Sequential,
    /// Until it has had children and has none any more. The server deletes such nodes every minute.
    Container,
}

/// A node of the server.
#[derive(Clone, PartialEq, Eq)]
pub struct ZooKeeperNode {
    /// Its path.
    pub path: String,
    /// Its data.
    pub data: Vec<u8>,
    /// The transaction that created it.
    pub created: i64,
    /// The transaction that changed its data last.
    pub changed: i64,
    /// When it was created, by the server's clock: the time since 1970.
    pub created_at: Duration,
    /// When its data were changed last.
    pub changed_at: Duration,
    /// How often its data were changed.
    pub version: i32,
    /// How often its children were changed.
    pub children_version: i32,
    /// The session that it ends with; 0 if it has none.
    pub session: i64,
    /// The number of its children.
    pub children: u64,
}

// A name may contain an owner token.
impl fmt::Debug for ZooKeeperNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut node = f.debug_struct("ZooKeeperNode");
        node.field("created", &self.created).field("changed", &self.changed).field("session", &self.session);
        node.field("children", &self.children).finish_non_exhaustive()
    }
}

impl ZooKeeperSide {
    pub(super) fn new(addr: SocketAddr, password: String, own_sessions: OwnSessions) -> Self {
        Self { addr, password, session: Mutex::default(), own_sessions }
    }

    /// The server is started again, maybe at another address.
    pub(super) fn restarted(&mut self, addr: SocketAddr) {
        self.addr = addr;
        *lock(&self.session) = None;
    }

    /// Creates a node, which every client may use. Returns its path.
    ///
    /// # Errors
    /// The server's, and those of the connection. The next call then opens a new one.
    pub fn create(&self, path: &str, data: impl AsRef<[u8]>, life: ZooKeeperLife) -> io::Result<String> {
        let (operation, flags) = match life {
            ZooKeeperLife::Persistent => (CREATE, 0),
            ZooKeeperLife::Sequential => (CREATE, 2),
            ZooKeeperLife::Container => (CREATE_CONTAINER, 4),
        };
        let body = |request: Request| {
            let request = request.text(path).bytes(data.as_ref());
            request.int(1).int(ALL).text("world").text("anyone").int(flags)
        };
        self.call(operation, body)?.text()
    }

    /// Replaces the data of a node.
    ///
    /// # Errors
    /// The same.
    pub fn set(&self, path: &str, data: impl AsRef<[u8]>) -> io::Result<()> {
        self.call(SET_DATA, |request| request.text(path).bytes(data.as_ref()).int(-1)).map(drop)
    }

    /// Permits a node to one user, who may create and list its children, and to the test.
    ///
    /// # Errors
    /// The same.
    pub fn permit(&self, path: &str, user: &str, password: &str) -> io::Result<()> {
        let digest = STANDARD.encode(Sha1::digest(format!("{user}:{password}")));
        let body = |request: Request| {
            let request = request.text(path).int(1).int(READ_AND_CREATE);
            request.text("digest").text(&format!("{user}:{digest}")).int(-1)
        };
        self.call(SET_ACL, body).map(drop)
    }

    /// Deletes a node without children, as an operator does. Returns whether it existed.
    ///
    /// # Errors
    /// The same, also if it has children.
    pub fn delete(&self, path: &str) -> io::Result<bool> {
        unless_absent(self.call(DELETE, |request| request.text(path).int(-1))).map(|reply| reply.is_some())
    }

    /// Deletes a node and all nodes below it.
    ///
    /// # Errors
    /// The same.
    pub fn delete_all(&self, path: &str) -> io::Result<()> {
        // The longest first: the children of a node before the node.
        for node in self.tree(path)?.iter().rev() {
            self.delete(&node.path)?;
        }
        Ok(())
    }

    /// Waits until this server has everything that any server of its ensemble has replied to.
    ///
    /// # Errors
    /// The same.
    pub fn sync(&self) -> io::Result<()> {
        self.call(SYNC, |request| request.text("/")).map(drop)
    }

    /// Reads a node.
    ///
    /// # Errors
    /// The same.
    pub fn get(&self, path: &str) -> io::Result<Option<ZooKeeperNode>> {
        let Some(mut reply) = unless_absent(self.call(GET_DATA, |request| request.text(path).bool(false)))? else {
            return Ok(None);
        };
        let data = reply.bytes()?;
        let (created, changed) = (reply.long()?, reply.long()?);
        let mut time = || io::Result::Ok(Duration::from_millis(u64::try_from(reply.long()?).unwrap_or(0)));
        let (created_at, changed_at) = (time()?, time()?);
        let (version, children_version, _acl_version) = (reply.int()?, reply.int()?, reply.int()?);
        let (session, _length, children) = (reply.long()?, reply.int()?, reply.int()?);
        let children = u64::try_from(children).unwrap_or(0);
        let path = path.to_owned();
        Ok(Some(ZooKeeperNode {
            path,
            data,
            created,
            changed,
            created_at,
            changed_at,
            version,
            children_version,
            session,
            children,
        }))
    }

    /// The names of the children of a node, in order; none if there is no such node.
    ///
    /// # Errors
    /// The same.
    pub fn children(&self, path: &str) -> io::Result<Vec<String>> {
        let reply = unless_absent(self.call(GET_CHILDREN, |request| request.text(path).bool(false)))?;
        let mut names = reply.map(|mut reply| reply.texts()).transpose()?.unwrap_or_default();
        names.sort();
        Ok(names)
    }

    /// Reads a node and all nodes below it, parents first. A node that is deleted meanwhile is left out.
    ///
    /// # Errors
    /// The same.
    pub fn tree(&self, path: &str) -> io::Result<Vec<ZooKeeperNode>> {
        let mut found: Vec<_> = self.get(path)?.into_iter().collect();
        let mut next = 0;
        while let Some(ZooKeeperNode { path, children, .. }) = found.get(next) {
            next += 1;
            if *children == 0 {
                continue;
            }
            let parent = path.trim_end_matches('/').to_owned();
            for name in self.children(&path.clone())? {
                found.extend(self.get(&format!("{parent}/{name}"))?);
            }
        }
        Ok(found)
    }

    /// Ends a session, as if its client had been silent for its ttl: the server deletes its ephemeral nodes. The server
    /// notifies the client when it sends something next.
    ///
    /// # Errors
    /// The same, also if the session has ended.
    pub fn expire(&self, session: i64) -> io::Result<()> {
        let until = Instant::now() + REPLY_BOUND;
        let has_ended = |taken_over: &io::Result<Session>| {
            taken_over.as_ref().err().and_then(Refused::of) == Some(Refused::EXPIRED)
        };
        let mut taken_over = Session::take_over(self.addr, session);
        if has_ended(&taken_over) {
            return taken_over.map(drop);
        }
        loop {
            // The session's client reconnects meanwhile, which may end this connection. The server then sends no reply
            // on it.
            let closed = taken_over.and_then(|session| session.close(CLOSE_BOUND));
            taken_over = Session::take_over(self.addr, session);
            if has_ended(&taken_over) {
                return Ok(());
            }
            if Instant::now() > until {
                return closed.and(taken_over.map(drop)).and(Err(io::ErrorKind::TimedOut.into()));
            }
        }
    }

    /// The sessions of clients. The leader of an ensemble has those of other servers a moment later. A follower knows
    /// only those of its own clients. A session whose ttl begins anew at this moment may be missing.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn sessions(&self) -> io::Result<BTreeSet<i64>> {
        let dump = self.word("dump")?;
        let number = |line: &str| i64::from_str_radix(line.trim().strip_prefix("0x")?, 16).ok();
        // The lists of ephemeral nodes and of connections follow.
        let lines = dump.lines().take_while(|line| !line.starts_with("ephemeral nodes"));
        let own = lock(&self.own_sessions);
        Ok(lines.filter_map(number).filter(|session| !own.contains(session)).collect())
    }

    /// The sessions of clients that have a connection to this server.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn connected_sessions(&self) -> io::Result<Vec<i64>> {
        Ok(self.session_timeouts()?.into_keys().collect())
    }

    /// How long each of these sessions lasts without its client, as the server has granted it.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn session_timeouts(&self) -> io::Result<BTreeMap<i64, Duration>> {
        let page = self.word("cons")?;
        // ` /127.0.0.1:42598[1](queued=0,recved=1,sent=1,sid=0x100004a8d780000,…,to=10000,…)`
        let field = |line: &str, name: &str| {
            let (_, rest) = line.split_once(name)?;
            Some(rest.split_once(',')?.0.to_owned())
        };
        let session = |line: &str| {
            let number = i64::from_str_radix(&field(line, "sid=0x")?, 16).ok()?;
            Some((number, Duration::from_millis(field(line, ",to=")?.parse().ok()?)))
        };
        let own = lock(&self.own_sessions);
        let sessions = page.lines().filter_map(session);
        Ok(sessions.filter(|(number, _)| *number != 0 && !own.contains(number)).collect())
    }

    /// The numbers of `mntr` without their prefix `zk_`: `watch_count`, `packets_received`, `cnt_updatelatency`.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn statistics(&self) -> io::Result<BTreeMap<String, f64>> {
        let page = self.word("mntr")?;
        let number = |line: &str| {
            let (name, value) = line.split_once('\t')?;
            Some((name.strip_prefix("zk_")?.to_owned(), value.parse().ok()?))
        };
        Ok(page.lines().filter_map(number).collect())
    }

    /// Sends a four-letter word and returns the reply.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn word(&self, text: &str) -> io::Result<String> {
        word(self.addr, text, REPLY_BOUND)
    }

    fn call(&self, operation: i32, body: impl Fn(Request) -> Request) -> io::Result<Reply> {
        let mut session = lock(&self.session);
        let mut open = match session.take() {
            Some(open) => open,
            None => self.open()?,
        };
        let result = open.call(operation, body);
        // After an error of the connection a reply may still be in flight. A later call must not take it for its own.
        if !matches!(&result, Err(error) if error.kind() != io::ErrorKind::Other) {
            *session = Some(open);
        }
        result
    }

    fn open(&self) -> io::Result<Session> {
        let mut session = Session::open(self.addr, TTL)?;
        lock(&self.own_sessions).insert(session.id());
        session.authenticate("digest", &format!("super:{}", self.password))?;
        Ok(session)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `None` if there is no such node.
fn unless_absent<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if Refused::of(&error) == Some(Refused::NO_NODE) => Ok(None),
        Err(error) => Err(error),
    }
}
