//! The recorded history of holds, and the check that finds an overlap in it.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use leasehold_core::backend::{Clock, SystemClock};
use leasehold_core::{FencingToken, LockName};

use crate::faulty::lock;

/// One hold of a lock, as its holder saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The lock.
    pub lock: LockName,
    /// The token of the grant.
    pub token: FencingToken,
    /// When the holder saw its grant, on any clock that all holders share.
    pub from: Duration,
    /// The earliest of: it called release, it was notified of the loss, its validity ended.
    pub until: Duration,
}

/// A violation in a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two grants of one lock have the same token.
    TokenTwice(Hold, Hold),
    /// A hold began before one with a lower token: tokens do not rise in the order of grants.
    OutOfOrder(Hold, Hold),
    /// Two holders at once.
    Overlap(Hold, Hold),
    /// A hold ends before it begins.
    Backwards(Hold),
    /// A write was accepted after one of a later holder.
    LateWrite {
        /// The token of the later holder, whose write came first.
        after: FencingToken,
        /// The token of the late write.
        token: FencingToken,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokenTwice(a, b) => write!(f, "two grants with one token: {a:?} and {b:?}"),
            Self::OutOfOrder(a, b) => write!(f, "tokens do not rise in the order of grants: {a:?} and {b:?}"),
            Self::Overlap(a, b) => write!(f, "two holders at once: {a:?} and {b:?}"),
            Self::Backwards(hold) => write!(f, "a hold ends before it begins: {hold:?}"),
            Self::LateWrite { after, token } => {
                write!(f, "a write with token {token} was accepted after one with {after}")
            }
        }
    }
}

impl std::error::Error for Violation {}

/// Checks a history against invariants 1 and 2: one pass over each lock in the order of its tokens.
///
/// # Errors
/// The first violation.
pub fn check(holds: &[Hold]) -> Result<(), Violation> {
    let mut holds: Vec<&Hold> = holds.iter().collect();
    holds.sort_by(|a, b| (&a.lock, a.token).cmp(&(&b.lock, b.token)));
    for hold in &holds {
        if hold.until < hold.from {
            return Err(Violation::Backwards((*hold).clone()));
        }
    }
    // A hold that begins after its neighbour's end ends after it too, so no earlier hold can overlap it.
    for pair in holds.windows(2).filter(|pair| pair[0].lock == pair[1].lock) {
        let (before, hold) = (pair[0].clone(), pair[1].clone());
        if before.token == hold.token {
            return Err(Violation::TokenTwice(before, hold));
        }
        if hold.from < before.from {
            return Err(Violation::OutOfOrder(before, hold));
        }
        if hold.from < before.until {
            return Err(Violation::Overlap(before, hold));
        }
    }
    Ok(())
}

/// Checks the accepted writes of a resource under one lock, in their order: none may follow a write of a later holder.
///
/// # Errors
/// The first late write.
pub fn check_writes(tokens: &[FencingToken]) -> Result<(), Violation> {
    match tokens.windows(2).find(|pair| pair[1] < pair[0]) {
        Some(pair) => Err(Violation::LateWrite { after: pair[0], token: pair[1] }),
        None => Ok(()),
    }
}

/// Records holds from all tasks of a process.
#[derive(Debug, Default)]
pub struct History {
    clock: SystemClock,
    holds: Mutex<Vec<Hold>>,
}

impl History {
    /// An empty history.
    pub fn new() -> Self {
        Self::default()
    }

    /// The time on the clock of this history.
    pub fn now(&self) -> Duration {
        self.clock.now().since_start()
    }

    /// Records a hold that began at `from` and ends now. Call it before the release. `is_held` checks the guard; a
    /// lease whose loss was not yet reported counts only as a grant.
    pub fn ends(&self, lock: &LockName, token: FencingToken, from: Duration, is_held: impl FnOnce() -> bool) {
        // Reads the time before the check: a lock that is held afterwards was held at that time, even if the process
        // pauses in between.
        let now = self.now();
        let until = if is_held() { now } else { from };
        self.push(Hold { lock: lock.clone(), token, from, until });
    }

    /// Adds a hold.
    pub fn push(&self, hold: Hold) {
        lock(&self.holds).push(hold);
    }

    /// Holds that were recorded so far.
    pub fn holds(&self) -> Vec<Hold> {
        lock(&self.holds).clone()
    }

    /// Checks all recorded holds against the invariants.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self) -> Result<(), Violation> {
        check(&self.holds())
    }
}
