//! The oracle: sees everything that happens, by the true clock, and reports what broke a rule.

mod claims;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use leasehold_core::backend::{Clock, OwnerToken, Stamp};
use leasehold_core::memory::MemoryStore;
use leasehold_core::{LockGuard, LockName};
use tokio::time::Instant;

use self::claims::ClaimBook;
use super::process::Process;

/// The rules, with the numbers of the invariants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    /// 1: no two hold at once.
    Exclusion,
    /// 2: tokens are unique and rise.
    Fencing,
    /// 3 and 4: a holder is the one that the store has recorded.
    StoreAgrees,
    /// 5: the first check after a pause has the right result.
    AfterPause,
    /// 6: a loss is reported in time.
    ToldInTime,
    /// 6: a loss is reported only if the lease is lost.
    ToldRightly,
    /// 8: no renewal is sent after the end.
    Silence,
    /// 9: a claim with an open acquire is released as in doubt.
    Delivery,
    /// 9, 12: a withdrawn claim never holds the lock again, and nothing is left behind.
    NothingLeft,
    /// 8, 9: a lease that nothing uses is released, and does not just expire.
    Abandoned,
    /// 10, 13: a waiter gets the lock in time.
    Served,
    /// 11: every call ends within its bound.
    Bounded,
}

#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) rule: Rule,
    pub(crate) at: Duration,
    text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} broken at {:?}: {}", self.rule, self.at, self.text)
    }
}

pub(crate) struct Oracle {
    start: Instant,
    store: MemoryStore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    trace: u64,
    steps: u64,
    /// The newest lines, if they are kept.
    lines: Option<Vec<String>>,
    /// The first violation of each rule.
    violations: Vec<Violation>,
    claims: HashMap<OwnerToken, ClaimBook>,
    /// The claim that was granted with each token.
    owners: HashMap<(LockName, u64), OwnerToken>,
    holds: Vec<Hold>,
    tokens: HashSet<(LockName, u64)>,
    highest: HashMap<LockName, u64>,
    /// When its holder last released the lock.
    released: HashMap<LockName, Duration>,
    slowest_handoff: Duration,
    /// Until then, leases that the store has lost may still be valid for their holders.
    outside_until: Duration,
}

/// A claim that nothing uses is released within this time. A waiter renews its place every 3.3 s.
const RELEASED_BY: Duration = Duration::from_secs(8);

/// A lease for which a user has a guard.
struct Hold {
    guard: Weak<LockGuard>,
    process: Arc<Process>,
    /// At the moment when its process was paused: the validity, and the time on its own and on the true clock.
    paused: Option<(Stamp, Stamp, Duration)>,
}

impl Oracle {
    pub(crate) fn new(start: Instant, store: MemoryStore, keeps_lines: bool) -> Self {
        let state = State { lines: keeps_lines.then(Vec::new), ..State::default() };
        Self { start, store, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is locked")
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Adds a line to the trace. Two runs are compared by their traces.
    pub(crate) fn note(&self, what: &'static str, who: u64, value: u64) {
        let now = self.now();
        let mut state = self.state();
        state.steps += 1;
        let mut trace = state.trace;
        for part in [now.as_nanos() as u64, what.len() as u64, u64::from(what.as_bytes()[0]), who, value] {
            trace = (trace ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        }
        state.trace = trace;
        if let Some(lines) = &mut state.lines {
            lines.push(format!("{now:>14?} {what} {who:016x} {value}"));
        }
    }

    pub(crate) fn broken(&self, rule: Rule, text: impl Into<String>) {
        let at = self.now();
        let mut state = self.state();
        if state.violations.iter().all(|violation| violation.rule != rule) {
            state.violations.push(Violation { rule, at, text: text.into() });
        }
    }

    pub(crate) fn check(&self, holds: bool, rule: Rule, text: impl FnOnce() -> String) {
        if !holds {
            self.broken(rule, text());
        }
    }

    /// The first violation of all.
    pub(crate) fn violation(&self) -> Option<Violation> {
        self.state().violations.first().cloned()
    }

    pub(crate) fn violated(&self) -> Vec<Rule> {
        self.state().violations.iter().map(|violation| violation.rule).collect()
    }

    /// The trace's hash, its length, and its lines if they were kept.
    pub(crate) fn trace(&self) -> (u64, u64, Vec<String>) {
        let mut state = self.state();
        (state.trace, state.steps, state.lines.take().unwrap_or_default())
    }

    // Events of users.

    /// A user has a guard. `shared`: it is a second guard of the same lease.
    pub(crate) fn granted(&self, guard: &Arc<LockGuard>, process: &Arc<Process>, shared: bool) {
        let (now, token, name) = (self.now(), guard.fencing_token().get(), guard.name().clone());
        self.note("granted", id(guard.lease_ref().claim.owner()), token);
        let held = guard.is_held();
        let (fresh, highest, since) = {
            let mut state = self.state();
            let owner = *guard.lease_ref().claim.owner();
            let step = state.steps;
            state.claims.entry(owner).or_default().granted.get_or_insert(step);
            let fresh = state.tokens.insert((name.clone(), token)) || shared;
            // A claim whose lease the store then lost may receive its grant after the next claim has received its own.
            let outside = now < state.outside_until;
            let seen = state.highest.entry(name.clone()).or_default();
            let highest = if outside { 0 } else { *seen };
            if held && !shared {
                *seen = token.max(*seen);
            }
            let since = state.released.remove(&name).map(|released| now - released);
            let hold = Hold { guard: Arc::downgrade(guard), process: process.clone(), paused: None };
            state.holds.retain(|hold| hold.guard.strong_count() > 0);
            state.holds.push(hold);
            (fresh, highest, since)
        };
        self.check(fresh, Rule::Fencing, || format!("token {token} of {name} was granted twice"));
        self.check(!held || shared || token > highest, Rule::Fencing, || {
            format!("token {token} of {name} was granted after {highest}")
        });
        if let Some(since) = since {
            let mut state = self.state();
            state.slowest_handoff = state.slowest_handoff.max(since);
        }
        self.look(&name);
    }

    /// A user is about to release or drop a guard.
    pub(crate) fn ending(&self, guard: &LockGuard, releases: bool) {
        let (now, owner) = (self.now(), *guard.lease_ref().claim.owner());
        let mut state = self.state();
        let claim = state.claims.entry(owner).or_default();
        claim.ended.get_or_insert(now);
        claim.wanted = now;
        if releases {
            state.released.insert(guard.name().clone(), now);
        }
    }

    /// The longest time from a release to the next grant since the last call of this function.
    pub(crate) fn slowest_handoff(&self) -> Duration {
        let mut state = self.state();
        state.released.clear();
        std::mem::take(&mut state.slowest_handoff)
    }

    /// The number of events so far.
    pub(crate) fn steps(&self) -> u64 {
        self.state().steps
    }

    /// The store is about to lose its data. Its promises hold again after the ttl. By then, the validity of every
    /// earlier lease has ended: the margin covers clocks that run slow.
    pub(crate) fn store_forgets(&self, ttl: Duration) {
        self.note("forget", 0, 0);
        let now = self.now();
        let mut state = self.state();
        state.outside_until = now + ttl;
        state.claims.values_mut().for_each(|claim| claim.withdrawn = false);
    }

    /// Compares what each holder knows about a lock with what the others know and with the store.
    pub(crate) fn look(&self, name: &LockName) {
        let guards: Vec<_> = {
            let state = self.state();
            if self.now() < state.outside_until {
                return;
            }
            let all = state.holds.iter().filter_map(|hold| Some((hold.guard.upgrade()?, hold.process.clone())));
            all.filter(|(guard, _)| guard.name() == name).collect()
        };
        let mut holders: Vec<u64> = Vec::new();
        for (guard, process) in guards {
            // A paused process checks nothing, but its validity ends all the same.
            let valid_until = process.now().plus(guard.validity());
            if valid_until > process.own_time() {
                holders.push(guard.fencing_token().get());
            }
        }
        holders.sort_unstable();
        holders.dedup();
        self.check(holders.len() <= 1, Rule::Exclusion, || format!("tokens {holders:?} hold {name} at once"));
        let kept =
            self.store.inspect(name).and_then(|seen| seen.holders.into_iter().next()).map(|lease| lease.token.get());
        if let Some(&token) = holders.first() {
            self.check(kept == Some(token), Rule::StoreAgrees, || {
                format!("token {token} is valid for {name}, and the store has {kept:?}")
            });
        }
        if let Some(token) = kept {
            self.check_holder(name, token);
        }
    }

    /// Whether something still uses the lease that the store has, or is releasing it.
    fn check_holder(&self, name: &LockName, token: u64) {
        let now = self.now();
        let (owner, quiet) = {
            let mut state = self.state();
            let State { owners, claims, holds, .. } = &mut *state;
            let Some(owner) = owners.get(&(name.clone(), token)) else { return };
            let Some(claim) = claims.get_mut(owner) else { return };
            let mut guards = holds.iter().filter_map(|hold| hold.guard.upgrade());
            let is_held = guards.any(|guard| guard.lease_ref().claim.owner() == owner);
            let was_paused = claim.process.as_ref().is_none_or(|process| process.was_paused_since(claim.wanted));
            if is_held || was_paused {
                claim.wanted = now;
            }
            // A second copy of a request that has had its reply can take the lock without its client's knowledge.
            if claim.releases.is_some() || claim.runs_out || claim.served > claim.sent {
                return;
            }
            (id(owner), now - claim.wanted)
        };
        self.check(quiet <= RELEASED_BY, Rule::Abandoned, || {
            format!(
                "token {token} of {name}, claim {owner:016x}: nobody wants it for {quiet:?}, and nobody releases it"
            )
        });
    }

    /// This process is about to be paused.
    pub(crate) fn pauses(&self, process: &Arc<Process>) {
        let (own, now) = (process.own_time(), self.now());
        self.each_of(process, |guard, paused| *paused = Some((own.plus(guard.validity()), own, now)));
    }

    /// The process continues at this instant, and no task has run yet. Checks what the guards report.
    pub(crate) fn resumes(&self, process: &Arc<Process>) {
        self.each_of(process, |guard, paused| {
            if let Some((until, own, then)) = paused.take() {
                let (held, now) = (guard.is_held(), process.shows_after(own, self.now() - then));
                self.check(held == (now < until), Rule::AfterPause, || {
                    format!("is_held() says {held} at {now:?}, valid until {until:?}")
                });
            }
        });
    }

    fn each_of(&self, process: &Arc<Process>, mut work: impl FnMut(&LockGuard, &mut Option<(Stamp, Stamp, Duration)>)) {
        let mut holds = std::mem::take(&mut self.state().holds);
        for hold in holds.iter_mut().filter(|hold| Arc::ptr_eq(&hold.process, process)) {
            if let Some(guard) = hold.guard.upgrade() {
                work(&guard, &mut hold.paused);
            }
        }
        self.state().holds.extend(holds);
    }
}

/// The name of a claim in the trace. The owner tokens of a simulation are not secret.
pub(crate) fn id(owner: &OwnerToken) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *owner.as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}
