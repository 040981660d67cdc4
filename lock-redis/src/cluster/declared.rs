//! Which keys a call declares, and why a node did nothing.

use leasehold_core::{Error, ErrorKind};

use super::redirection::Redirection;

/// The keys that a request declares beside the record. A script uses no other ones: one that is missing may be at the
/// other node of a slot that is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MoreKeys {
    pub(crate) queue: bool,
    /// The tombstone of the request's own claim.
    pub(crate) tombstone: bool,
}

impl MoreKeys {
    pub(crate) const RECORD: Self = Self { queue: false, tombstone: false };
    pub(crate) const ALL: Self = Self { queue: true, tombstone: true };
    /// For a request without a claim.
    pub(crate) const QUEUE: Self = Self { queue: true, tombstone: false };

    pub(super) const fn contains(self, other: Self) -> bool {
        (self.queue || !other.queue) && (self.tombstone || !other.tombstone)
    }

    /// As the scripts write it.
    const fn number(self) -> u8 {
        self.queue as u8 + 2 * self.tombstone as u8
    }

    /// What a script has replied.
    pub(crate) const fn of(number: u64) -> Option<Self> {
        match number {
            0..4 => Some(Self { queue: number & 1 == 1, tombstone: number & 2 == 2 }),
            _ => None,
        }
    }
}

/// How a call says which keys its script may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    /// On a single server: the records. The script may use every key of their locks.
    Records,
    /// On a node of a cluster: the record of one lock, and these of its keys.
    OneLock {
        keys: MoreKeys,
        /// `ASKING` comes just before the call.
        is_asking: bool,
    },
}

impl Declared {
    /// How many keys a call for so many locks declares.
    pub(crate) const fn count(self, locks: usize) -> usize {
        match self {
            Self::Records => locks,
            Self::OneLock { keys, .. } => locks + keys.queue as usize + keys.tombstone as usize,
        }
    }

    pub(crate) const fn is_asking(self) -> bool {
        matches!(self, Self::OneLock { is_asking: true, .. })
    }

    /// As `prelude.lua` reads it.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Records => b'a',
            Self::OneLock { keys, .. } => b'0' + keys.number(),
        }
    }
}

/// Why a node of a cluster did nothing.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// The request was not sent to it.
    NotSent(Error),
    Redirected(Redirection),
    /// The script needs these keys beside the record, and did not use them without being told that it may.
    NeedsKeys(MoreKeys),
}

impl Refusal {
    /// For a request that cannot be sent elsewhere.
    pub(crate) fn error(self) -> Error {
        let why = match self {
            Self::NotSent(error) => return error,
            Self::Redirected(Redirection::Down) => DOWN,
            Self::Redirected(Redirection::Moved(..)) => DISAGREE,
            Self::Redirected(Redirection::Ask(..) | Redirection::TryAgain) | Self::NeedsKeys(_) => MOVING,
        };
        Error::new(ErrorKind::Unavailable, why)
    }
}

pub(super) const MOVING: &str =
    "the cluster is moving the lock's slot to another node, and some of the lock's keys are not there yet";
pub(crate) const DISAGREE: &str = "the nodes of the cluster do not agree which of them serves the lock";
pub(super) const DOWN: &str = "the cluster is down, or no node serves the lock: `redis-cli --cluster check` says why";
