//! Decides when a lock may be granted again after a restart without data. Uses neither clock nor network.
//!
//! A server that lost its data would grant a lock whose earlier holder still believes in its lease, for at most the ttl of that
//! lease. So new grants wait until the server has run for the longest ttl that earlier leases may have. The epoch key names the run
//! of the server that its clients use, and the ttls in use. After such a restart the key is gone too. So each client also remembers
//! the ttls that it used, and the contents of the key: from every read, and from the message that follows every write.

use std::fmt::Write;
use std::time::Duration;

use tokio::time::Instant;

use crate::settings::OnRestart;

/// After a write, a ttl counts as in use for twice its length and this.
const IN_USE_BEYOND: Duration = Duration::from_secs(60);

/// A ttl is written again when it counts as in use for less than its length and this. At most its length and 20 s pass between two
/// messages, so a client that misses one still knows the ttl when the next one arrives.
const REWRITE_BEFORE: Duration = Duration::from_secs(40);

/// How much two readings of the same end of use may differ, because of slow replies and different clock rates.
const TOLERANCE: Duration = Duration::from_secs(10);

/// The most ttls that are remembered. Beyond it, the shortest one counts as the next longer one.
const MOST_TTLS: usize = 16;

/// The name of the earlier run in the key, if nobody knew that run.
const UNKNOWN_RUN: &str = "-";

/// What one client knows about the runs of the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Epoch {
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

/// The result of `epoch.lua`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The current run of the server.
    pub(crate) run: String,
    /// The minimal uptime of the server.
    pub(crate) uptime: Duration,
    /// The clock of the server.
    pub(crate) now: Duration,
    /// The contents of the epoch key; empty if there is none.
    pub(crate) key: String,
}

/// The context of a reading.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckContext {
    pub(crate) on_restart: OnRestart,
    /// The ttl of the call that needs the reading; zero if the call requests no lease.
    pub(crate) ttl: Duration,
    /// Just before the reading was requested.
    pub(crate) requested: Instant,
    pub(crate) now: Instant,
}

/// The result of evaluating a reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Write this to the epoch key first, then read again.
    Write(String),
    /// Whether new grants are allowed.
    Grants(Grants),
}

/// Whether new grants are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grants {
    Allowed,
    /// The server was restarted. No new grants before this time has passed.
    After(Duration),
    /// The server was restarted, and this client knows of no earlier lease. The first call with a ttl decides.
    Undecided,
}

/// This version does not know the format of the epoch key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnknownFormat;

impl Epoch {
    /// Whether a call with this ttl needs a reading first, because other clients may not know that the ttl is in use.
    pub(crate) fn needs_reading(&self, ttl: Duration, now: Instant) -> bool {
        !ttl.is_zero() && !self.published.has(ttl, now + ttl + REWRITE_BEFORE)
    }

    /// Adds the ttls of a message, `<the server's clock in ms> <the epoch key>`. The message may be old, so it does not change
    /// `published`.
    pub(crate) fn receive(&mut self, message: &str, now: Instant) {
        let Some((time, key)) = message.split_once(' ') else { return };
        if let (Ok(time), Ok(key)) = (time.parse(), Key::parse(key)) {
            self.in_use.add_all(&key.ttls(Duration::from_millis(time), now));
        }
    }

    /// Adds the ttls of a reading, and decides.
    pub(crate) fn evaluate(&mut self, reading: &Reading, check: CheckContext) -> Result<Decision, UnknownFormat> {
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
        let uptime = self.uptime(reading, requested, now);
        let wait = if before.is_some() { longest.saturating_sub(uptime) } else { Duration::ZERO };

        let name = match &before {
            _ if wait.is_zero() => self.locks.then_some(run),
            // Other clients use this run already, and it may be another server at the same address. Only this client waits.
            _ if key.run == Some(run) => trusts.then_some(run),
            // During the quarantine the key names the earlier run, so that new clients wait too.
            before => before.as_deref(),
        };
        if let Some(name) = name.filter(|_| !longest.is_zero())
            && !(key.run == Some(name) && written.has_all(&self.in_use))
        {
            return Ok(Decision::Write(self.in_use.as_key(name, reading.now, now)));
        }
        if self.requested.is_none_or(|newest| newest <= requested) {
            self.requested = Some(requested);
            self.published = written;
        }
        if wait.is_zero() && before.is_some() && longest.is_zero() {
            return Ok(Decision::Grants(Grants::Undecided));
        }
        let waits = !wait.is_zero() && !trusts;
        self.run = if waits { before } else { Some(run.to_owned()) };
        Ok(Decision::Grants(if waits { Grants::After(wait) } else { Grants::Allowed }))
    }

    /// The minimal uptime of the server. The server reports whole seconds, and the last one may have just begun. The time between two
    /// readings of the same run is exact.
    fn uptime(&mut self, reading: &Reading, requested: Instant, now: Instant) -> Duration {
        let known = self.running.as_ref().filter(|(run, ..)| *run == reading.run);
        let known = known.map_or(Duration::ZERO, |(_, uptime, at)| *uptime + requested.saturating_duration_since(*at));
        if known == Duration::ZERO || reading.uptime > known {
            self.running = Some((reading.run.clone(), reading.uptime, now));
        }
        reading.uptime.max(known)
    }

    /// The earlier run, whose holders may still believe in their leases. `None` if nobody knew one.
    fn run_before<'a>(&'a self, run: &str, named: Option<&'a str>, on_restart: OnRestart) -> Option<&'a str> {
        let known = named.filter(|named| *named != run).or(self.run.as_deref());
        match known {
            Some(known) => (known != run).then_some(known),
            None => (named.is_none() && on_restart == OnRestart::Quarantine).then_some(UNKNOWN_RUN),
        }
    }
}

/// The epoch key: `1 <run id>`, then ` <ms>:<end of use in ms of the server's clock>` for each ttl in use.
struct Key<'a> {
    run: Option<&'a str>,
    list: Vec<(Duration, Duration)>,
}

impl<'a> Key<'a> {
    fn parse(text: &'a str) -> Result<Self, UnknownFormat> {
        if text.is_empty() {
            return Ok(Self { run: None, list: Vec::new() });
        }
        let mut words = text.split(' ');
        let (Some("1"), Some(run)) = (words.next(), words.next()) else { return Err(UnknownFormat) };
        let entry = |word: &str| {
            let (ttl, till) = word.split_once(':')?;
            Some((Duration::from_millis(ttl.parse().ok()?), Duration::from_millis(till.parse().ok()?)))
        };
        let list = words.map(|word| entry(word).ok_or(UnknownFormat)).collect::<Result<_, _>>()?;
        Ok(Self { run: Some(run), list })
    }

    /// The ttls in use, by the client's clock. If the server's clock was set back, a ttl still counts no longer than a write allows.
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

/// Ttls and the end of their use, shortest first. A ttl that is at least as long, and in use for as long, covers another one.
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

    fn as_key(&self, run: &str, server: Duration, now: Instant) -> String {
        let mut key = format!("1 {run}");
        for &(ttl, until) in &self.0 {
            let till = server + until.saturating_duration_since(now);
            let _ = write!(key, " {}:{}", ttl.as_nanos().div_ceil(1_000_000), till.as_millis());
        }
        key
    }
}

#[cfg(test)]
mod tests;
