//! Deadlines that two processes of one machine share.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::time::Duration;

use leasehold::backend::kit::time_since_boot;

/// A time of the clock since boot, in nanoseconds. The clock runs while the machine is suspended and is never stepped.
/// NTP may slew it, which the margin of a lease covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline(u64);

impl Deadline {
    /// The deadline that is `left` from now.
    pub(crate) fn after(left: Duration) -> Self {
        Self(nanos(now().saturating_add(left)))
    }

    /// The time until then, or zero if it has passed.
    pub(crate) fn left(self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(nanos(now())))
    }
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Deadline {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

fn now() -> Duration {
    // Every supported Unix has this clock.
    time_since_boot().unwrap_or_default()
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
