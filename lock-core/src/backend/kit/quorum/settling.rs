//! Decides when a server that was restarted may vote again.
//!
//! A server that lost its data would vote for a second holder at once, and accept a token that was used before. So a
//! server is *unsettled* from its start until a client settles it: after every lease that it may have forgotten has
//! ended, with a floor that no new token is below. The server keeps a [`ServerState`] that names the run in which it
//! was settled.

use std::fmt;
use std::time::Duration;

use super::{Quorum, RunId};
use crate::backend::kit::OnRestart;
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind};

/// Beyond the longest ttl: the server's clock may be read just before a step of its granularity, and slewed.
const SLACK: Duration = Duration::from_secs(1);

/// What a client has read of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The run of the server.
    pub run: RunId,
    /// The server's clock.
    pub time: Duration,
    /// The state that it keeps; `None` if it has none, or lost it.
    pub state: Option<ServerState>,
    /// Since when a client knows that a run is unsettled.
    pub since: Option<Since>,
    /// Just before the reading was requested.
    pub sent: Stamp,
    /// When it arrived.
    pub received: Stamp,
}

/// The state that a settled server keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerState {
    /// The run in which it was settled.
    pub run: RunId,
    /// How many servers there are.
    pub servers: usize,
    /// Which one it is, from zero.
    pub number: usize,
    /// The longest ttl of a lease, in whole milliseconds. All clients must agree.
    pub longest_ttl: Duration,
    /// No lock gets a token up to this one.
    pub floor: u64,
    /// At least every fence of this server.
    pub high: u64,
}

/// The key in which a client notes that a run is unsettled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since {
    /// The run that it is about.
    pub run: RunId,
    /// The server's clock when it was written.
    pub time: Duration,
}

/// How long a first start may be resumed.
const FIRST_START: Duration = Duration::from_secs(10);

/// What to do with a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a backend handles every step")]
pub enum SettlingStep {
    /// It votes.
    Settled,
    /// It has not replied.
    Unreachable,
    /// Write the key of [`Since`] with its run and its clock, unless the key names that run already, at a time that the
    /// clock has reached. Then read it again.
    WriteSince,
    /// Leases that it may have forgotten have not ended, for this long. Another client may settle it earlier, so read
    /// it again at least every second.
    Wait(Duration),
    /// Read all servers again, now.
    ReadAll,
    /// Read all servers again later. Fewer servers reply than its floor must come from, or not all before a first
    /// start.
    WaitForServers,
    /// Settle it: write its state with this floor, if it is still the run of its reading and has no state that names
    /// that run. Then read it again.
    Settle {
        /// The floor, and the first value of `high`.
        floor: u64,
    },
}

/// The servers do not fit together, or not to this client. No lock is safe until an operator corrects it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(String);

/// What one client knows about the runs of all servers.
#[derive(Clone, Debug)]
pub struct Settling {
    quorum: Quorum,
    addresses: Vec<String>,
    longest_ttl: Duration,
    on_restart: OnRestart,
    servers: Vec<Server>,
    /// Whether this client has ever seen a state. Then a server without one has lost its data.
    has_seen_state: bool,
}

#[derive(Clone, Debug, Default)]
struct Server {
    /// `None` if it did not reply to the last request.
    reading: Option<Reading>,
    /// The run of its newest reading, when the first reading of that run arrived, and when the first one arrived that
    /// showed the end of the wait, if the newest one still does.
    run: Option<(RunId, Stamp, Option<Stamp>)>,
    /// The run in which it had no state when none of the servers had one, and when that was read.
    new: Option<(RunId, Stamp)>,
}

impl Reading {
    /// Whether the server votes.
    fn is_settled(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.run == self.run)
    }
}

impl Server {
    /// Whether a first start of this client has not reached it yet: a request to settle it had no reply, and others are
    /// settled. Without this, it would look restarted, and wait for the longest ttl. It has not voted in this run.
    fn is_still_new(&self, reading: &Reading) -> bool {
        let is_same = |(run, at): &(RunId, Stamp)| *run == reading.run && reading.sent.since(*at) < FIRST_START;
        reading.state.is_none() && self.new.as_ref().is_some_and(is_same)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::new(ErrorKind::InvalidInput, refused.0)
    }
}

impl Settling {
    /// Has read no server yet. The addresses, for errors, are in the order of the URL, one for each server.
    pub fn new(quorum: Quorum, addresses: Vec<String>, longest_ttl: Duration, on_restart: OnRestart) -> Self {
        let servers = vec![Server::default(); quorum.servers()];
        Self { quorum, addresses, longest_ttl, on_restart, servers, has_seen_state: false }
    }

    /// A reading has arrived.
    pub fn read(&mut self, server: usize, reading: Reading) {
        self.has_seen_state |= reading.state.is_some();
        let is_over = self.left(&reading).is_some_and(|left| left.is_zero());
        let it = &mut self.servers[server];
        let known = it.run.take().filter(|(run, ..)| *run == reading.run);
        let (first, over) = known.map_or((reading.received, None), |(_, first, over)| (first, over));
        // Without the key that says so, the wait begins again: the data were deleted in the same run.
        let over = over.or(Some(reading.received)).filter(|_| is_over);
        it.run = Some((reading.run.clone(), first, over));
        if reading.is_settled() {
            it.new = None;
        }
        it.reading = Some(reading);
        // Once: a server that is restarted later meets readings of the others that are old by then.
        let is_marked = self.servers.iter().any(|it| it.new.is_some());
        if !is_marked && self.is_first_start() && self.readings().count() == self.quorum.servers() {
            for it in &mut self.servers {
                it.new = it.reading.as_ref().map(|reading| (reading.run.clone(), reading.received));
            }
        }
    }

    /// The run of the newest reading of a server, which [`step`](Self::step) is about.
    pub fn run(&self, server: usize) -> Option<&RunId> {
        self.servers[server].reading.as_ref().map(|reading| &reading.run)
    }

    /// The server did not reply, or there is no connection.
    pub fn unreachable(&mut self, server: usize) {
        self.servers[server].reading = None;
    }

    /// What to do with this server.
    ///
    /// # Errors
    /// The servers do not fit together: see the text.
    pub fn step(&self, server: usize) -> Result<SettlingStep, Refused> {
        self.check()?;
        let it = &self.servers[server];
        let (Some(reading), Some((_, first, over))) = (&it.reading, &it.run) else {
            return Ok(SettlingStep::Unreachable);
        };
        if reading.is_settled() {
            return Ok(SettlingStep::Settled);
        }
        if self.is_first_start() {
            let all_reply = self.readings().count() == self.quorum.servers();
            return Ok(if all_reply {
                SettlingStep::Settle { floor: self.clock() }
            } else {
                SettlingStep::WaitForServers
            });
        }
        if it.is_still_new(reading) {
            return Ok(SettlingStep::Settle { floor: self.clock().max(highest(self.readings())) });
        }
        let is_lost = self.is_majority_lost();
        let from = if is_lost && self.on_restart == OnRestart::Trust { Some(first) } else { over.as_ref() };
        let Some(&from) = from else {
            return Ok(self.left(reading).map_or(SettlingStep::WriteSince, SettlingStep::Wait));
        };
        // A floor that was read before the end of the wait is too low: a majority with this server in its earlier run
        // may have accepted a token since.
        let is_fresh = |reading: &&Reading| reading.sent >= from;
        let settled = || self.readings().filter(|reading| reading.is_settled());
        if settled().filter(is_fresh).count() >= self.quorum.overlap() {
            return Ok(SettlingStep::Settle { floor: highest(settled().filter(is_fresh)) });
        }
        Ok(if settled().count() < self.quorum.overlap() && !is_lost {
            SettlingStep::WaitForServers
        } else if self.readings().all(|reading| is_fresh(&reading)) {
            SettlingStep::Settle { floor: self.clock().max(highest(self.readings())) }
        } else {
            SettlingStep::ReadAll
        })
    }

    /// Why this server does not vote, for the text of an error.
    pub fn describe(&self, server: usize, now: Stamp) -> String {
        match self.step(server) {
            Err(refused) => refused.to_string(),
            Ok(SettlingStep::Settled) => "votes".to_owned(),
            Ok(SettlingStep::Unreachable) => "not connected".to_owned(),
            Ok(SettlingStep::WaitForServers) if self.is_first_start() => {
                "not in use yet: all servers must reply before the first lock".to_owned()
            }
            Ok(SettlingStep::WaitForServers) => {
                format!("was restarted and waits until {} others reply", self.quorum.overlap())
            }
            Ok(SettlingStep::ReadAll | SettlingStep::Settle { .. }) => "is about to vote after a restart".to_owned(),
            Ok(SettlingStep::WriteSince | SettlingStep::Wait(_)) => {
                let reading = self.servers[server].reading.as_ref();
                let left = reading.map_or(Duration::ZERO, |reading| {
                    let left = self.left(reading).unwrap_or(self.whole_wait());
                    left.saturating_sub(now.since(reading.received))
                });
                format!("waits {} s after a restart", left.as_secs_f64().ceil())
            }
        }
    }

    /// No client has ever used these servers, as far as they and this client know.
    fn is_first_start(&self) -> bool {
        // A client that knows of a loss has written `since` before it waits.
        let is_new = !self.has_seen_state && self.readings().all(|reading| reading.since.is_none());
        is_new && self.on_restart != OnRestart::Quarantine
    }

    /// Too few servers are settled, or may be, for a floor: the clocks of the others have to do.
    fn is_majority_lost(&self) -> bool {
        let lost = self.readings().filter(|reading| !reading.is_settled()).count();
        self.quorum.servers() - lost < self.quorum.overlap()
    }

    /// How long leases that the server may have forgotten can still last. `None` if it is not known since when, or if
    /// the clock was set back since: it would wait for as long.
    fn left(&self, reading: &Reading) -> Option<Duration> {
        let since = reading.since.as_ref().filter(|since| since.run == reading.run)?;
        let passed = reading.time.checked_sub(since.time)?;
        Some(self.whole_wait().saturating_sub(passed))
    }

    fn whole_wait(&self) -> Duration {
        self.longest_ttl.saturating_add(SLACK)
    }

    fn readings(&self) -> impl Iterator<Item = &Reading> {
        self.servers.iter().filter_map(|server| server.reading.as_ref())
    }

    /// The time by the servers' clocks, in µs as tokens are: the latest of a majority. A clock that is years ahead would
    /// put the tokens of every lock ahead, for ever. Those that were lost are not above this: guesses follow the clocks
    /// of a majority too. With fewer readings, the latest: a clock that is behind must not let a token be given twice.
    fn clock(&self) -> u64 {
        let clocks = self.readings().map(|reading| u64::try_from(reading.time.as_micros()).unwrap_or(u64::MAX));
        let mut clocks: Vec<_> = clocks.collect();
        clocks.sort_unstable();
        clocks.get(self.quorum.majority() - 1).or(clocks.last()).copied().unwrap_or(0)
    }

    fn check(&self) -> Result<(), Refused> {
        let read = self.servers.iter().zip(&self.addresses).enumerate();
        let read = read.filter_map(|(number, (server, address))| Some((number, address, server.reading.as_ref()?)));
        for (number, address, reading) in read.clone() {
            if let Some((_, other, _)) = read.clone().find(|it| it.0 < number && it.2.run == reading.run) {
                return Err(Refused(format!(
                    "{other} and {address} are the same server: a quorum needs independent ones"
                )));
            }
            let Some(state) = &reading.state else { continue };
            let servers = self.quorum.servers();
            if state.servers != servers {
                return Err(Refused(format!(
                    "the server at {address} is one of {}, and the URL names {servers}: every client must name the \
                     same servers",
                    state.servers
                )));
            }
            if state.number != number {
                return Err(Refused(format!(
                    "the server at {address} is number {} of {servers}, and number {} in the URL: every client must \
                     name the servers in the same order",
                    state.number + 1,
                    number + 1
                )));
            }
            if state.longest_ttl != self.longest_ttl {
                return Err(Refused(format!(
                    "`longest_ttl` is {} ms, and {} ms at the server at {address}: it must be the same for all clients",
                    self.longest_ttl.as_millis(),
                    state.longest_ttl.as_millis()
                )));
            }
        }
        Ok(())
    }
}

/// The largest `high` of these servers.
fn highest<'a>(readings: impl Iterator<Item = &'a Reading>) -> u64 {
    readings.filter_map(|reading| Some(reading.state.as_ref()?.high)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
