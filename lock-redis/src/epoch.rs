//! After a restart without data: when may a lock be granted again? Decided here, without clock and network.
//!
//! A server that lost its data grants a lock although its holder from before still believes in its lease, for the ttl of that
//! lease at most. So new grants wait until the server has run for the longest ttl that leases from before may have. Which run of
//! the server its clients use, and which ttls are in use, stands in one key, the epoch key; but after such a restart the key is
//! gone. So each client also remembers what it used and what the key said: at each read, and in the message that follows each
//! write.

use std::fmt::Write;
use std::time::Duration;

use tokio::time::Instant;

use crate::settings::OnRestart;

/// How much longer than twice its length a ttl counts as in use after it was written.
const IN_USE_BEYOND: Duration = Duration::from_secs(60);

/// A ttl is written again when it counts as in use for less than its length and this. So there are at most its length and 20 s from
/// one message to the next, and a client that misses one still knows the ttl when the next one comes.
const REWRITE_BEFORE: Duration = Duration::from_secs(40);

/// By how much two readings of the end of one use may differ, through slow answers and the rates of two clocks.
const TOLERANCE: Duration = Duration::from_secs(10);

/// How many ttls are remembered: beyond that the shortest counts as the next longer one.
const MOST_TTLS: usize = 16;

/// Stands in the key for the run before this one where nobody knew it.
const UNKNOWN_RUN: &str = "-";

/// What one client knows of the server's runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Epoch {
    /// The run on which this client was last allowed to lock, or would have been.
    run: Option<String>,
    /// The ttls that leases may have, this client's and others'.
    in_use: Ttls,
    /// Whether this client has ever asked for a lease.
    locks: bool,
    /// What others can read, by the newest reading, and when that one was requested: each connection reads on its own.
    published: Ttls,
    requested: Option<Instant>,
    /// The run of the server that answered last, and for how long it had run, at least, at a moment.
    running: Option<(String, Duration, Instant)>,
}

/// What `epoch.lua` reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The run of the server that answers.
    pub(crate) run: String,
    /// For how long it has run, at least.
    pub(crate) uptime: Duration,
    /// Its clock.
    pub(crate) now: Duration,
    /// The epoch key; empty where there is none.
    pub(crate) key: String,
}

/// What a reading is used for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckContext {
    pub(crate) on_restart: OnRestart,
    /// The ttl of the call that needs the reading; zero for one that asks for no lease.
    pub(crate) ttl: Duration,
    /// Just before the reading was requested.
    pub(crate) requested: Instant,
    pub(crate) now: Instant,
}

/// What follows from a reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The epoch key has to say this first. Then it is read again.
    Write(String),
    /// Whether new grants are allowed.
    Grants(Grants),
}

/// Whether new grants are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grants {
    Allowed,
    /// Not before this time has passed: the server was restarted.
    After(Duration),
    /// The server was restarted, and this client knows of no lease from before: the first call with a ttl decides.
    Undecided,
}

/// The epoch key is written in a format that this version does not know.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnknownFormat;

impl Epoch {
    /// Whether a call with this ttl needs a reading first: others may not know that it is in use.
    pub(crate) fn needs_reading(&self, ttl: Duration, now: Instant) -> bool {
        !ttl.is_zero() && !self.published.has(ttl, now + ttl + REWRITE_BEFORE)
    }

    /// Takes note of the ttls in a message, `<the server's clock in ms> <the epoch key>`. Says nothing of what others can read now:
    /// the message may be old.
    pub(crate) fn receive(&mut self, message: &str, now: Instant) {
        let Some((time, key)) = message.split_once(' ') else { return };
        if let (Ok(time), Ok(key)) = (time.parse(), Key::parse(key)) {
            self.in_use.add_all(&key.ttls(Duration::from_millis(time), now));
        }
    }

    /// Takes note of a reading, and decides.
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
            // Others use this run already, and it may even be another server at the same address: who waits then waits alone.
            _ if key.run == Some(run) => trusts.then_some(run),
            // While grants have to wait the key names the run before, so that a newcomer waits as well.
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

    /// For how long the server has run, at least. It counts in whole seconds, and one of them may have just begun; what has passed
    /// here between two readings of one run is exact.
    fn uptime(&mut self, reading: &Reading, requested: Instant, now: Instant) -> Duration {
        let known = self.running.as_ref().filter(|(run, ..)| *run == reading.run);
        let known = known.map_or(Duration::ZERO, |(_, uptime, at)| *uptime + requested.saturating_duration_since(*at));
        if known == Duration::ZERO || reading.uptime > known {
            self.running = Some((reading.run.clone(), reading.uptime, now));
        }
        reading.uptime.max(known)
    }

    /// The run before this one, whose leases may still be believed in. None where there was none that anybody knew.
    fn run_before<'a>(&'a self, run: &str, named: Option<&'a str>, on_restart: OnRestart) -> Option<&'a str> {
        let known = named.filter(|named| *named != run).or(self.run.as_deref());
        match known {
            Some(known) => (known != run).then_some(known),
            None => (named.is_none() && on_restart == OnRestart::Quarantine).then_some(UNKNOWN_RUN),
        }
    }
}

/// The epoch key, `1 <run id>` and then for each ttl in use ` <ms>:<ms of the server's clock until when>`.
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

    /// The ttls in use, by our clock. A clock that was set back does not make one last for longer than it can have been written.
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

/// Ttls, and until when leases may have them, the shortest first. One that is as long and lasts as long stands for another.
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

    /// Drops those of which no lease is left.
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
