//! The figures of the backend that the keeper's state machines use.

use std::time::Duration;

use crate::backend::Capabilities;
use crate::terms::round_up;

/// The figures of a backend and a client that decide when something is to be done.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How long a call may go unanswered before it counts as unknown.
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

    /// The ttl of a renewal that is to last this long.
    pub(super) fn ttl(&self, left: Duration) -> Duration {
        round_up(left, self.ttl_granularity).max(self.min_ttl)
    }
}

/// The pause that grows with failed calls starts from a sixteenth of this.
pub(super) const PATIENCE: Duration = Duration::from_millis(800);

/// The pause before the next try, after so many failures in a row of something with this period. To be jittered.
pub(super) fn backoff(period: Duration, failures: u32) -> Duration {
    (period / 16).saturating_mul(1 << failures.min(3)).clamp(Duration::from_millis(1), period)
}
