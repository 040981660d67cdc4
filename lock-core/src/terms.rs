//! The terms of a lease, and the arithmetic of its validity.

use std::time::Duration;

use crate::backend::{Confirmation, LeaseKind, Mode};
use crate::clock::Stamp;
use crate::defaults::{DEFAULT_MARGIN_PERCENT, LEAST_MARGIN, RENEWALS_PER_TTL};
use crate::error::{Error, Result};
use crate::holder_id::HolderId;

/// What the user requested, checked.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Which other claims may hold the lock at the same time.
    pub mode: Mode,
    /// No longer than `max_hold`, if the store has ttls that short.
    pub ttl: Duration,
    /// Whether the keeper renews it.
    pub kind: LeaseKind,
    /// The longest hold.
    pub max_hold: Option<Duration>,
    /// The shortest hold, as others see it.
    pub min_hold: Option<Duration>,
    /// Acquires with the same holder share a lease.
    pub holder: Option<HolderId>,
}

impl Terms {
    /// Acquires with the same holder share one lease, so they must request the same lease.
    pub(crate) fn require_same_lease(&self, other: &Self) -> Result<()> {
        // Each field by name: a new option does not compile until it is decided whether it is a property of the shared
        // lease.
        let of_lease =
            |&Self { mode, ttl, kind, max_hold, min_hold, holder: _ }: &Self| (mode, ttl, kind, max_hold, min_hold);
        if of_lease(self) == of_lease(other) {
            return Ok(());
        }
        Err(Error::invalid(
            "acquires with the same holder share one lease: their mode, ttl, kind of renewal, max_hold and \
             min_hold must agree",
        ))
    }
}

/// The least multiple of the granularity that is no shorter.
pub(crate) fn round_up(ttl: Duration, granularity: Duration) -> Duration {
    let granularity = granularity.as_nanos().max(1);
    let missing = (granularity - ttl.as_nanos() % granularity) % granularity;
    ttl.saturating_add(Duration::from_nanos(u64::try_from(missing).unwrap_or(u64::MAX)))
}

/// The time between the end of a holder's validity and the earliest end of its lease at the store.
pub(crate) fn margin(ttl: Duration, percent: u8) -> Duration {
    (ttl / 100 * u32::from(percent)).max(LEAST_MARGIN)
}

/// The same, with the default of the client: for a backend that needs it itself. lock-core counts with the margin that
/// the client has chosen.
pub fn default_margin(ttl: Duration) -> Duration {
    margin(ttl, DEFAULT_MARGIN_PERCENT)
}

/// The end of a validity that counts from this confirmation.
pub(crate) fn validity_end(confirmation: &Confirmation, margin_percent: u8) -> Stamp {
    confirmation.sent.plus(confirmation.ttl.saturating_sub(margin(confirmation.ttl, margin_percent)))
}

/// How long after the request of a confirmation the next renewal is due.
pub(crate) fn period(ttl: Duration) -> Duration {
    (ttl / RENEWALS_PER_TTL).max(Duration::from_millis(1))
}
