//! The parameters of the keeper's state machines.

use std::time::Duration;

use crate::backend::Capabilities;
use crate::terms::round_up;

/// What the backend promises and the client's margin, as far as they decide when the machines act.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How long a call may have no reply before its outcome counts as unknown.
    pub call_bound: Duration,
    pub min_ttl: Duration,
    pub ttl_granularity: Duration,
    pub max_place_ttl: Duration,
    pub margin_percent: u8,
    /// Leases share the ttl of a session.
    pub sessions: bool,
}

impl Rules {
    pub(in crate::keeper) fn new(capabilities: &Capabilities, margin_percent: u8) -> Self {
        Self {
            // A quarter more than the backend promises, so that its own error comes first.
            call_bound: capabilities.call_bound + capabilities.call_bound / 4,
            min_ttl: capabilities.min_ttl,
            ttl_granularity: capabilities.ttl_granularity,
            max_place_ttl: capabilities.max_place_ttl,
            margin_percent,
            sessions: capabilities.has_sessions(),
        }
    }

    /// The ttl to request for a lease that must last this long.
    pub(super) fn ttl(&self, left: Duration) -> Duration {
        round_up(left, self.ttl_granularity).max(self.min_ttl)
    }
}

/// The period of calls that are not tied to a ttl. After failures they pause for 100, 200 and then 400 ms.
pub(super) const PATIENCE: Duration = Duration::from_millis(800);

/// The pause before the next attempt, without jitter: an eighth of the period after the first failure in a row, a
/// quarter after the second, then half.
pub(super) fn backoff(period: Duration, failures: u32) -> Duration {
    (period / 16).saturating_mul(1 << failures.min(3)).clamp(Duration::from_millis(1), period)
}
