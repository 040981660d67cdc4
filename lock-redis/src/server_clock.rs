//! Notices when the server's wall clock is stepped: every lease of every client moves with it.

use std::sync::Mutex;
use std::time::Duration;

use leasehold_core::backend::Stamp;

use crate::shared::lock;

/// A change of the difference between the clocks below this is drift or a slow answer.
const STEP: Duration = Duration::from_millis(500);

/// Compares the server's clock with ours, answer by answer.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    last: Mutex<Option<Offset>>,
}

/// Server's clock minus ours, in µs: between `low` and `high`, as last at `at`.
#[derive(Clone, Copy, Debug)]
struct Offset {
    low: i128,
    high: i128,
    at: Stamp,
}

impl ServerClock {
    /// Takes the time that an answer carried, in µs, with the stamps around the request. Warns once for each step.
    pub(crate) fn observe(&self, server: i64, sent: Stamp, received: Stamp) {
        if let Some(step) = self.step(server, sent, received) {
            tracing::warn!(
                backend = crate::errors::BACKEND,
                step_ms = step / 1000,
                "the server's wall clock was stepped: leases at the store end that much earlier (+) or later (-) than \
                 their holders believe; until they have run out only fencing tokens decide"
            );
        }
    }

    /// By how many µs the server's clock was stepped since the last answer, if it was.
    fn step(&self, server: i64, sent: Stamp, received: Stamp) -> Option<i128> {
        let micros = |stamp: Stamp| i128::try_from(stamp.since_start().as_micros()).unwrap_or(i128::MAX);
        let now =
            Offset { low: i128::from(server) - micros(received), high: i128::from(server) - micros(sent), at: sent };
        let mut last = lock(&self.last);
        let Some(before) = *last else {
            *last = Some(now);
            return None;
        };
        // Clocks that are slewed may part by a tenth of the time between two looks.
        let slack = i128::try_from((STEP + now.at.since(before.at) / 10).as_micros()).unwrap_or(i128::MAX);
        let step = if now.low > before.high + slack {
            Some(now.low - before.high)
        } else if now.high < before.low - slack {
            Some(now.high - before.low)
        } else {
            None
        };
        // An answer of a request from before the step must not undo what was learned.
        if sent >= before.at {
            *last = Some(now);
            return step;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Stamp {
        Stamp::from_start(Duration::from_millis(ms))
    }

    #[test]
    fn a_step_is_told_once_and_drift_and_slow_answers_are_not() {
        let clock = ServerClock::default();
        let day = 86_400_000_000;
        assert_eq!(clock.step(day, at(0), at(1)), None);
        assert_eq!(clock.step(day + 1_000_000, at(1000), at(1001)), None);
        // An answer that took 5 s says little, and nothing wrong.
        assert_eq!(clock.step(day + 2_000_000, at(2000), at(7000)), None);
        // Drift of 8 % over 10 s.
        assert_eq!(clock.step(day + 12_800_000, at(12_000), at(12_001)), None);
        // A step of a minute, forward and back, each told once.
        let step = clock.step(day + 72_900_000, at(12_100), at(12_101)).unwrap();
        assert!((59_000_000..=61_000_000).contains(&step), "{step}");
        assert_eq!(clock.step(day + 73_000_000, at(12_200), at(12_201)), None);
        // The late answer of a request from before the step.
        assert_eq!(clock.step(day + 12_850_000, at(12_050), at(12_300)), None);
        assert_eq!(clock.step(day + 73_200_000, at(12_400), at(12_401)), None);
        assert!(clock.step(day + 13_300_000, at(12_500), at(12_501)).unwrap() < -59_000_000);
    }
}
