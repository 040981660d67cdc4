//! The claims of one client that were refused and wait, and the thread that tells them when their lock is free.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold_core::LockName;
use leasehold_core::backend::{Claim, Event, OwnerToken};

use crate::bell::{Alarm, Bell, Listener};
use crate::errors::Failure;
use crate::file::File;
use crate::machine;
use crate::shared::Shared;
use crate::store::Turn;

/// So long after its next look a claim that has not been heard of is taken to have gone: lock-core says nothing when it gives up.
const GRACE: Duration = Duration::from_secs(2);

/// So long the thread stays when nobody waits any more.
const IDLE: Duration = Duration::from_secs(2);

/// The least pause between two looks of the thread, and how many times the processor time of a look it lasts: a bell that does not
/// stop costs a fifth of a core at most, and a machine that is busy with other things holds up nobody's turn.
const LEAST_PAUSE: Duration = Duration::from_micros(200);
const SHARE: u32 = 4;

/// So soon the thread looks again when it could not note that somebody waits.
const AGAIN: Duration = Duration::from_millis(2);

/// So many locks are looked at while the connection is in hand.
const LOOKS: usize = 32;

/// Who waits.
#[derive(Debug)]
pub(crate) struct Waiters {
    pub(crate) bell: Bell,
    state: Mutex<State>,
    /// How many, for those who ask on the way of every acquire.
    count: AtomicUsize,
    alarm: Alarm,
}

#[derive(Debug, Default)]
struct State {
    claims: HashMap<OwnerToken, Waiting>,
    is_watched: bool,
    is_closed: bool,
}

#[derive(Debug)]
struct Waiting {
    name: LockName,
    until: Instant,
    /// It was told to look, and has not been refused since.
    told: bool,
}

/// What the thread has to do.
enum Next {
    /// Nobody waits for so long, or the client is gone.
    End,
    /// Look at these, and again after this time.
    Look(Vec<LockName>, Duration),
}

impl Waiters {
    pub(crate) fn new(bell: Bell) -> Self {
        Self { bell, state: Mutex::default(), count: AtomicUsize::new(0), alarm: Alarm::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a claim was refused before.
    pub(crate) fn turn(&self, claim: &Claim) -> Turn {
        if self.count.load(Ordering::Acquire) > 0 && self.state().claims.contains_key(claim.owner()) {
            Turn::HasWaited
        } else {
            Turn::First
        }
    }

    /// A claim was refused, and looks again in this time. It is told when its lock is free before.
    pub(crate) fn refused(shared: &Arc<Shared>, claim: &Claim, look_in: Duration) {
        let waiters = &shared.waiters;
        let until = Instant::now() + look_in + GRACE;
        let mut state = waiters.state();
        let waiting = Waiting { name: claim.name().clone(), until, told: false };
        let known = state.claims.insert(*claim.owner(), waiting);
        waiters.count.store(state.claims.len(), Ordering::Release);
        let starts = !state.is_watched && !state.is_closed;
        state.is_watched |= starts;
        drop(state);
        if starts {
            start(shared);
        } else if known.is_none_or(|known| known.told) {
            // It may have become free since it was refused.
            waiters.alarm.raise();
        }
    }

    /// A claim does not wait any more.
    pub(crate) fn forget(&self, claim: &Claim) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut state = self.state();
            state.claims.remove(claim.owner());
            self.count.store(state.claims.len(), Ordering::Release);
        }
    }

    /// The client is gone.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.claims.clear();
        drop(state);
        self.alarm.raise();
    }

    fn next(&self, idle_since: &mut Option<Instant>) -> Next {
        let now = Instant::now();
        let mut state = self.state();
        state.claims.retain(|_, waiting| waiting.until > now);
        self.count.store(state.claims.len(), Ordering::Release);
        let rest = match state.claims.values().map(|waiting| waiting.until).min() {
            Some(first) => {
                *idle_since = None;
                first - now
            }
            None => IDLE.saturating_sub(now - *idle_since.get_or_insert(now)),
        };
        if state.is_closed || rest.is_zero() {
            state.is_watched = false;
            return Next::End;
        }
        let untold = state.claims.values().filter(|waiting| !waiting.told);
        Next::Look(untold.map(|waiting| waiting.name.clone()).collect(), rest)
    }

    /// Notes who is told of these.
    fn tell(&self, free: &[LockName]) {
        if !free.is_empty() {
            for waiting in self.state().claims.values_mut() {
                waiting.told |= free.contains(&waiting.name);
            }
        }
    }
}

fn start(shared: &Arc<Shared>) {
    let mine = shared.clone();
    let started = std::thread::Builder::new().name("leasehold-waiters".into()).spawn(move || watch(&mine));
    if let Err(error) = started {
        shared.waiters.state().is_watched = false;
        tracing::debug!(%error, "the thread that hears of releases cannot be started: waiters look by themselves");
    }
}

fn watch(shared: &Shared) {
    let waiters = &shared.waiters;
    let Some(core) = shared.core.get() else { return };
    let mut listener = Listener::new(&waiters.bell, &waiters.alarm);
    let mut idle_since = None;
    while let Next::Look(names, rest) = waiters.next(&mut idle_since) {
        let before = machine::thread_time();
        let Looked { free, unsure, first_end } = look_at(&shared.file, names);
        waiters.tell(&free);
        for name in free {
            core.event(Event::Look(name));
        }
        let spent = machine::thread_time().saturating_sub(before);
        std::thread::sleep((spent * SHARE).max(LEAST_PAUSE).min(rest));
        // A lease that was shortened ends before its waiter's own check.
        let rest = rest.min(first_end);
        listener.wait(if unsure { rest.min(AGAIN) } else { rest });
    }
}

/// What a look found.
struct Looked {
    /// The locks that nobody has.
    free: Vec<LockName>,
    /// Of some it could not be noted that somebody waits: another process was writing.
    unsure: bool,
    /// When the first of the others ends, unless it is renewed.
    first_end: Duration,
}

fn look_at(file: &File, mut names: Vec<LockName>) -> Looked {
    names.sort();
    names.dedup();
    let mut looked = Looked { free: Vec::new(), unsure: false, first_end: Duration::MAX };
    for some in names.chunks(LOOKS) {
        let writer = file.writer();
        // A file that is not open, or not there, is opened by the next call: the waiters' own looks.
        let Some(store) = writer.opened() else { break };
        let now = file.now();
        for name in some {
            match store.held_for(name, &now) {
                // The claim's own look tells what is wrong with the record.
                Ok(None) | Err(Failure::Found(_)) => looked.free.push(name.clone()),
                Ok(Some(left)) => looked.first_end = looked.first_end.min(left),
                Err(Failure::Busy) => looked.unsure = true,
                Err(Failure::Sql(_)) => {}
            }
        }
    }
    looked
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use leasehold_core::HolderInfo;
    use leasehold_core::backend::Mode;

    use super::*;
    use crate::machine::Machine;
    use crate::settings::Settings;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(30);

    fn claim(name: &str, owner: u8) -> Claim {
        let holder = HolderInfo::of_this_process("").unwrap();
        Claim::new(LockName::new(name).unwrap(), OwnerToken::from_bytes([owner; 16]), Mode::Exclusive, Arc::new(holder))
    }

    /// What is released between the refusal of a claim and its entry here rings for those who were there before.
    #[test]
    fn a_claim_that_is_new_or_was_notified_wakes_the_thread() {
        let folder = tempfile::tempdir().unwrap();
        let locks = folder.path().join("locks.db");
        std::fs::write(&locks, "").unwrap();
        let shared = Arc::new(Shared::new(File::new(locks, Settings::default(), Machine::this().unwrap())));
        let waiters = &shared.waiters;
        // In place of the thread.
        waiters.state().is_watched = true;
        let mut listener = Listener::new(&waiters.bell, &waiters.alarm);
        let mut wakes_within = |timeout: Duration, claim: &Claim| {
            Waiters::refused(&shared, claim, LONG);
            let begin = Instant::now();
            listener.wait(timeout);
            begin.elapsed() < timeout
        };
        let (ann, bob) = (claim("ann", 1), claim("bob", 2));
        assert!(wakes_within(LONG, &ann), "a new claim");
        assert!(!wakes_within(SHORT, &ann), "a claim that the thread knows");
        assert!(wakes_within(LONG, &bob), "another new claim");
        waiters.tell(std::slice::from_ref(ann.name()));
        assert!(wakes_within(LONG, &ann), "a claim that was notified, and refused again");
        assert!(!wakes_within(SHORT, &bob), "a claim that nobody notified");
    }
}
