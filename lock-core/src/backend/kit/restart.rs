//! For the backend of a server that may lose data: decides when it may grant locks again after that. Uses neither clock
//! nor network.
//!
//! A server that lost its data would grant a lock whose earlier holder still believes in its lease, for at most the ttl
//! of that lease. So new grants wait until the server has run for as long as the longest ttl of an earlier lease. The
//! epoch key, a record at the server, names the run of the server that its clients use, and the ttls in use. The key
//! may be gone after such a restart too. So each client also remembers the ttls that it used, and the contents of the
//! key: from every read, and from the message that follows every write, if the server has messages.
//!
//! The backend reads the run and the key on each connection before it requests a grant, and again before it requests a
//! lease with a ttl that [`Epoch::needs_reading`]. It writes the key when [`Epoch::evaluate`] says so, unless another
//! client has written it since, and reads again.

use std::fmt::Write;
use std::time::Duration;

use tokio::time::Instant;

use super::StoreUrl;
use crate::error::{Error, ErrorKind, Result};

/// After a write, a ttl counts as in use for twice its length plus this.
const IN_USE_BEYOND: Duration = Duration::from_secs(60);

/// A ttl is written again when it counts as in use for less than its length plus this. So at most its length plus 20 s
/// pass between two messages, so a client that misses one still knows the ttl when the next one arrives.
const REWRITE_BEFORE: Duration = Duration::from_secs(40);

/// How much two readings of the same end of use may differ, because of slow replies and different clock rates.
const TOLERANCE: Duration = Duration::from_secs(10);

/// The largest number of ttls that are remembered. Beyond that, the shortest one counts as the next longer one.
const MOST_TTLS: usize = 16;

/// The name of the earlier run in the key, if no client knew it.
const UNKNOWN_RUN: &str = "-";

/// What to do after the server was restarted or replaced. A server without its data would grant a held lock at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnRestart {
    /// No new grants until every earlier lease has ended, if the restart is known: to this client, or from what another
    /// client wrote down. A server that no client knew is used at once. The default.
    #[default]
    QuarantineKnown,
    /// The same, and also for a server that no client knew. URL: `restart=quarantine`.
    Quarantine,
    /// Never wait. For a server that keeps what it acknowledged, or resources that check the fencing tokens. URL:
    /// `restart=trust`.
    Trust,
}

impl OnRestart {
    /// Takes the setting from a URL: `restart=`.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) for an unknown word.
    pub fn take(url: &mut StoreUrl) -> Result<Self> {
        let choices = [("quarantine", Self::Quarantine), ("trust", Self::Trust)];
        Ok(url.take_choice("restart", &choices)?.unwrap_or_default())
    }
}

/// What one client knows about the runs of the server.
#[derive(Clone, Debug, Default)]
pub struct Epoch {
    /// The run on which this client was last allowed to lock, or would have been.
    run: Option<String>,
    /// The ttls that leases of any client may have.
    in_use: Ttls,
    /// Whether this client has ever requested a lease.
    locks: bool,
    /// What the newest reading found in the key, and when that reading was requested. Each connection reads on its own.
    published: Ttls,
    requested: Option<Instant>,
    /// The run of the server that replied last, and its minimal uptime at an instant.
    running: Option<(String, Duration, Instant)>,
}

/// What a backend has read of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "every backend makes it")]
pub struct Reading {
    /// The current run of the server, without spaces. A server that keeps what it acknowledged has one run for ever.
    pub run: String,
    /// The minimal uptime of the server, or a shorter time in which certainly no earlier run has granted a lock. `None`
    /// if neither is known, as for a promoted replica: the time then counts from when a client first saw this run.
    pub uptime: Option<Duration>,
    /// The clock of the server.
    pub now: Duration,
    /// The contents of the epoch key; empty if there is none.
    pub key: String,
}

/// The context of a reading.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "every backend makes it")]
pub struct CheckContext {
    /// The setting.
    pub on_restart: OnRestart,
    /// The ttl of the call that needs the reading; zero if the call requests no lease.
    pub ttl: Duration,
    /// Just before the reading was requested.
    pub requested: Instant,
    /// When it has arrived.
    pub now: Instant,
}

/// The result of evaluating a reading.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a backend handles every decision")]
pub enum Decision {
    /// Write this to the epoch key first, then read again.
    Write(String),
    /// Whether new grants are allowed.
    Grants(Grants),
}

/// Whether new grants are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a backend handles every case")]
pub enum Grants {
    /// New grants are allowed.
    Allowed,
    /// The server was restarted. No new grants until this time has passed.
    After(Duration),
    /// The server was restarted, and this client has requested no lease yet, or knows of no earlier one. The first call
    /// with a ttl decides.
    Undecided,
}

/// This version does not know the format of the epoch key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "it has no contents")]
pub struct UnknownFormat;

/// Whether a connection may request new grants, since its last reading.
#[derive(Clone, Copy, Debug)]
pub struct Quarantine(Grants, Instant);

impl Quarantine {
    /// There is no quarantine.
    pub fn none(now: Instant) -> Self {
        Self(Grants::Allowed, now)
    }

    /// Follows from a reading that has just arrived. Logs a quarantine.
    pub fn new(grants: Grants, now: Instant, backend: &str, address: &str) -> Self {
        if let Grants::After(wait) = grants {
            tracing::warn!(
                backend,
                address,
                wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
                "the server was restarted or replaced and may have lost leases: no new grants until \
                 those leases have ended"
            );
        }
        Self(grants, now)
    }

    /// Whether a call with this ttl needs another reading first.
    pub fn needs_reading(&self, ttl: Duration, now: Instant) -> bool {
        match self.0 {
            Grants::Allowed => false,
            Grants::After(wait) => now >= self.1 + wait,
            Grants::Undecided => !ttl.is_zero(),
        }
    }

    /// The time without new grants; `None` if they are allowed.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        match self.0 {
            Grants::Allowed | Grants::Undecided => None,
            Grants::After(wait) => Some((self.1 + wait).saturating_duration_since(now)),
        }
    }
}

/// The error of an acquire during a quarantine that lasts for another `left`.
pub fn quarantined(address: &str, left: Duration) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "the server at {address} was restarted or replaced and may have lost leases: no new grants for another {} \
             ms, until those leases have ended (`restart=trust` in the URL does not wait)",
            left.as_millis()
        ),
    )
}

impl Epoch {
    /// The run on which this client was last allowed to lock.
    pub fn run(&self) -> Option<&str> {
        self.run.as_deref()
    }

    /// Whether a call with this ttl needs a reading first, because other clients may not know that the ttl is in use.
    pub fn needs_reading(&self, ttl: Duration, now: Instant) -> bool {
        !ttl.is_zero() && !self.published.has(ttl, now + ttl + REWRITE_BEFORE)
    }

    /// Adds the ttls that another one knows: the locks of one server may come to the other, as the nodes of a cluster.
    pub fn learn(&mut self, other: &Self, now: Instant) {
        self.in_use.end(now);
        other.in_use.0.iter().filter(|it| it.1 > now).for_each(|&(ttl, until)| self.in_use.add(ttl, until));
    }

    /// Adds the ttls of a message, `<the server's clock in ms> <the epoch key>`. The message may be old, so it does not
    /// change `published`.
    pub fn receive(&mut self, message: &str, now: Instant) {
        let Some((time, key)) = message.split_once(' ') else { return };
        if let (Ok(time), Ok(key)) = (time.parse(), Key::parse(key)) {
            self.in_use.end(now);
            self.in_use.add_all(&key.ttls(Duration::from_millis(time), now));
        }
    }

    /// Adds the ttls of a reading, and decides.
    ///
    /// # Errors
    /// [`UnknownFormat`]: a newer version has written the key.
    pub fn evaluate(&mut self, reading: &Reading, check: CheckContext) -> Result<Decision, UnknownFormat> {
        let CheckContext { on_restart, ttl, requested, now } = check;
        let key = Key::parse(&reading.key)?;
        let written = key.ttls(reading.now, now);
        self.in_use.end(now);
        self.in_use.add_all(&written);
        if !ttl.is_zero() {
            self.locks = true;
            if !written.has(ttl, now + ttl + REWRITE_BEFORE) {
                self.in_use.add(ttl, now + 2 * ttl + IN_USE_BEYOND);
            }
        }
        let trusts = on_restart == OnRestart::Trust;
        let run = &*reading.run;
        let before = self.run_before(run, key.run, on_restart).map(str::to_owned);
        let longest = self.in_use.longest();
        let first_seen = key.first_seen(run, reading.now);
        // The key was written after the end of the run that it names. It says nothing about another run that this
        // client knew.
        let knows_more = self.run.as_deref().is_some_and(|known| known != run && Some(known) != key.run);
        let seen_for = first_seen.filter(|_| !knows_more).map_or(Duration::ZERO, |since| reading.now - since);
        let uptime = self.uptime(run, reading.uptime.unwrap_or_default().max(seen_for), requested, now);
        let wait = if before.is_some() { longest.saturating_sub(uptime) } else { Duration::ZERO };

        let name = match &before {
            _ if wait.is_zero() => self.locks.then_some(run),
            // Other clients use this run already, and it may be another server at the same address. Only this client
            // waits.
            _ if key.run == Some(run) => trusts.then_some(run),
            // During the quarantine the key names the earlier run, so that new clients wait too.
            before => before.as_deref(),
        };
        // The key then also says when the run was first seen, so that clients that live for less than the quarantine
        // share it.
        let is_unseen = reading.uptime.is_none() && name.is_some_and(|name| name != run);
        let seen = is_unseen.then(|| (run, first_seen.unwrap_or(reading.now)));
        if let Some(name) = name.filter(|_| !longest.is_zero())
            && !(key.run == Some(name) && key.seen == seen && written.has_all(&self.in_use))
        {
            return Ok(Decision::Write(self.in_use.as_key(name, seen, reading.now, now)));
        }
        if self.requested.is_none_or(|newest| newest <= requested) {
            self.requested = Some(requested);
            self.published = written;
        }
        // A client that has never requested a lease does not write the key. The first call with a ttl then writes that
        // the run is in use.
        if wait.is_zero() && before.is_some() && (longest.is_zero() || !self.locks) {
            return Ok(Decision::Grants(Grants::Undecided));
        }
        let waits = !wait.is_zero() && !trusts;
        self.run = if waits { before } else { Some(run.to_owned()) };
        Ok(Decision::Grants(if waits { Grants::After(wait) } else { Grants::Allowed }))
    }

    /// The minimal uptime of the server. The server reports whole seconds, and the last one may have just begun. The
    /// time between two readings of the same run is exact.
    fn uptime(&mut self, run: &str, uptime: Duration, requested: Instant, now: Instant) -> Duration {
        let known = self.running.as_ref().filter(|(running, ..)| running == run);
        let known = known.map_or(Duration::ZERO, |(_, uptime, at)| *uptime + requested.saturating_duration_since(*at));
        if known == Duration::ZERO || uptime > known {
            self.running = Some((run.to_owned(), uptime, now));
        }
        uptime.max(known)
    }

    /// The earlier run, whose holders may still believe in their leases. `None` if no client knew one.
    fn run_before<'a>(&'a self, run: &str, named: Option<&'a str>, on_restart: OnRestart) -> Option<&'a str> {
        let known = named.filter(|named| *named != run).or(self.run.as_deref());
        match known {
            Some(known) => (known != run).then_some(known),
            None => (named.is_none() && on_restart == OnRestart::Quarantine).then_some(UNKNOWN_RUN),
        }
    }
}

/// The epoch key: `1 <run id>`, then ` <ms>:<end of use in ms of the server's clock>` for each ttl in use. During a
/// quarantine that no uptime ends, ` <run id>@<ms of the server's clock>` before the ttls: the run that follows, and
/// when a client first saw it.
struct Key<'a> {
    run: Option<&'a str>,
    seen: Option<(&'a str, Duration)>,
    list: Vec<(Duration, Duration)>,
}

impl<'a> Key<'a> {
    fn parse(text: &'a str) -> Result<Self, UnknownFormat> {
        if text.is_empty() {
            return Ok(Self { run: None, seen: None, list: Vec::new() });
        }
        let mut words = text.split(' ').peekable();
        let (Some("1"), Some(run)) = (words.next(), words.next()) else { return Err(UnknownFormat) };
        let seen = words.peek().and_then(|word| {
            let (run, since) = word.rsplit_once('@')?;
            Some((run, Duration::from_millis(since.parse().ok()?)))
        });
        if seen.is_some() {
            words.next();
        }
        let entry = |word: &str| {
            let (ttl, till) = word.split_once(':')?;
            Some((Duration::from_millis(ttl.parse().ok()?), Duration::from_millis(till.parse().ok()?)))
        };
        let list = words.map(|word| entry(word).ok_or(UnknownFormat)).collect::<Result<_, _>>()?;
        Ok(Self { run: Some(run), seen, list })
    }

    /// When a client first saw this run. Also `None` if the server's clock was set back since: the quarantine then
    /// begins anew.
    fn first_seen(&self, run: &str, server: Duration) -> Option<Duration> {
        self.seen.filter(|(seen, since)| *seen == run && *since <= server).map(|(_, since)| since)
    }

    /// The ttls in use, by the client's clock. If the server's clock was set back, a ttl still counts no longer than a
    /// fresh write would make it.
    fn ttls(&self, server: Duration, now: Instant) -> Ttls {
        let mut ttls = Ttls::default();
        for &(ttl, till) in &self.list {
            let left = till.saturating_sub(server).min(2 * ttl + IN_USE_BEYOND);
            if !left.is_zero() {
                ttls.add(ttl, now + left);
            }
        }
        ttls
    }
}

/// Ttls and the end of their use, shortest first. A ttl that is at least as long, and in use for at least as long,
/// covers another one.
#[derive(Clone, Debug, Default)]
struct Ttls(Vec<(Duration, Instant)>);

impl Ttls {
    fn longest(&self) -> Duration {
        self.0.last().map_or(Duration::ZERO, |&(ttl, _)| ttl)
    }

    fn has(&self, ttl: Duration, until: Instant) -> bool {
        self.0.iter().any(|it| it.0 >= ttl && it.1 >= until)
    }

    fn has_all(&self, others: &Self) -> bool {
        others.0.iter().all(|&(ttl, until)| self.has(ttl, until - TOLERANCE))
    }

    fn add(&mut self, ttl: Duration, until: Instant) {
        if self.has(ttl, until) {
            return;
        }
        self.0.retain(|it| it.0 > ttl || it.1 > until);
        self.0.push((ttl, until));
        self.0.sort_unstable();
        while self.0.len() > MOST_TTLS {
            let (_, until) = self.0.remove(0);
            self.0[0].1 = self.0[0].1.max(until);
        }
    }

    fn add_all(&mut self, others: &Self) {
        for &(ttl, until) in &others.0 {
            self.add(ttl, until);
        }
    }

    /// Drops ttls that are no longer in use.
    fn end(&mut self, now: Instant) {
        self.0.retain(|it| it.1 > now);
    }

    fn as_key(&self, run: &str, seen: Option<(&str, Duration)>, server: Duration, now: Instant) -> String {
        let mut key = format!("1 {run}");
        if let Some((run, since)) = seen {
            let _ = write!(key, " {run}@{}", since.as_millis());
        }
        for &(ttl, until) in &self.0 {
            let till = server + until.saturating_duration_since(now);
            let _ = write!(key, " {}:{}", ttl.as_nanos().div_ceil(1_000_000), till.as_millis());
        }
        key
    }
}

#[cfg(test)]
mod tests;
