//! What the keeper's state machines know of the backend, and when they want to be woken.

use std::time::Duration;

use crate::backend::Capabilities;
use crate::clock::Stamp;

/// The figures of a backend and a client that decide when something is to be done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// How long a call may go unanswered before it counts as unknown.
    pub(super) call_bound: Duration,
    pub(super) min_ttl: Duration,
    pub(super) max_place_ttl: Duration,
    pub(super) margin_percent: u8,
    /// Leases share the ttl of a session.
    pub(super) sessions: bool,
}

impl Rules {
    pub(super) fn new(capabilities: &Capabilities, margin_percent: u8) -> Self {
        Self {
            // A quarter more than the backend promises, so that its own error comes first.
            call_bound: capabilities.call_bound + capabilities.call_bound / 4,
            min_ttl: capabilities.min_ttl,
            max_place_ttl: capabilities.max_place_ttl,
            margin_percent,
            sessions: capabilities.has_sessions(),
        }
    }
}

/// The pause that grows with failed calls starts from a sixteenth of this.
pub(super) const PATIENCE: Duration = Duration::from_millis(800);

/// The pause before the next try, after so many failures in a row of something with this period. To be jittered.
pub(super) fn backoff(period: Duration, failures: u32) -> Duration {
    (period / 16).saturating_mul(1 << failures.min(3)).clamp(Duration::from_millis(1), period)
}

/// When a machine wants to be woken. The keeper adds the randomness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wake {
    from: Stamp,
    pause: Duration,
    by: Option<Stamp>,
}

impl Wake {
    /// At this very time.
    pub(super) fn at(stamp: Stamp) -> Self {
        Self { from: stamp, pause: Duration::ZERO, by: None }
    }

    /// After about this pause: clients that are told the same do not all come back at once.
    pub(super) fn after(from: Stamp, pause: Duration) -> Self {
        Self { from, pause, by: None }
    }

    /// The same, and at this time at the latest.
    pub(super) fn by(self, at: Option<Stamp>) -> Self {
        Self { by: self.by.into_iter().chain(at).min(), ..self }
    }

    pub(super) fn resolve(self, jitter: impl FnOnce(Duration) -> Duration) -> Stamp {
        let at = if self.pause.is_zero() { self.from } else { self.from.plus(jitter(self.pause)) };
        self.by.map_or(at, |by| by.min(at))
    }
}
