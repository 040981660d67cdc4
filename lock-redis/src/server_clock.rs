//! Detects steps of the server's wall clock. A step moves the end of every lease of every client.
//!
//! A step is only reported. After a step back, the lease of a dead holder lasts longer by the step, and no client
//! shortens it: a record does not say how long its lease may last, and a guess could end a valid lease of a longer ttl.

use std::sync::Mutex;
use std::time::Duration;

use leasehold_core::backend::Stamp;
use leasehold_core::backend::kit::lock;

/// A smaller change of the offset is drift or a slow reply.
const STEP: Duration = Duration::from_millis(500);

/// Compares the server's clock with the client's at each reply.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    last: Mutex<Option<Offset>>,
    /// The address of the server.
    server: Mutex<String>,
}

/// The server's clock minus the client's, in µs: between `low` and `high`, measured at `at`.
#[derive(Clone, Copy, Debug)]
struct Offset {
    low: i128,
    high: i128,
    at: Stamp,
}

impl ServerClock {
    /// The client is connected to this server. Another one has another clock, which is no step.
    pub(crate) fn connected(&self, address: &str) {
        let mut server = lock(&self.server);
        if *server != address {
            address.clone_into(&mut server);
            *lock(&self.last) = None;
        }
    }

    /// Takes the time of a reply in µs, and the stamps around the request. Logs a warning once per step.
    pub(crate) fn observe(&self, server: i64, sent: Stamp, received: Stamp) {
        if let Some(step) = self.step(server, sent, received) {
            tracing::warn!(
                backend = crate::errors::BACKEND,
                step_ms = step / 1000,
                "the server's wall clock was stepped: leases at the store end that much earlier (+) or later (-) than \
                 their holders believe; until these leases have ended, only fencing tokens decide"
            );
        }
    }

    /// The size of the step since the last reply in µs, if there was one.
    fn step(&self, server: i64, sent: Stamp, received: Stamp) -> Option<i128> {
        let micros = |stamp: Stamp| i128::try_from(stamp.since_start().as_micros()).unwrap_or(i128::MAX);
        let now =
            Offset { low: i128::from(server) - micros(received), high: i128::from(server) - micros(sent), at: sent };
        let mut last = lock(&self.last);
        let Some(before) = *last else {
            *last = Some(now);
            return None;
        };
        // The offset of slewed clocks may change by a tenth of the time between two replies.
        let slack = i128::try_from((STEP + now.at.since(before.at) / 10).as_micros()).unwrap_or(i128::MAX);
        let step = if now.low > before.high + slack {
            Some(now.low - before.high)
        } else if now.high < before.low - slack {
            Some(now.high - before.low)
        } else {
            None
        };
        // The reply to a request from before the step must not replace a newer offset.
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
    fn a_step_is_reported_once_and_drift_and_slow_replies_are_not() {
        let clock = ServerClock::default();
        let day = 86_400_000_000;
        assert_eq!(clock.step(day, at(0), at(1)), None);
        assert_eq!(clock.step(day + 1_000_000, at(1000), at(1001)), None);
        // A reply that took 5 s is imprecise, but not wrong.
        assert_eq!(clock.step(day + 2_000_000, at(2000), at(7000)), None);
        // Drift of 8 % over 10 s.
        assert_eq!(clock.step(day + 12_800_000, at(12_000), at(12_001)), None);
        // A step of a minute, forward and back, each reported once.
        let step = clock.step(day + 72_900_000, at(12_100), at(12_101)).unwrap();
        assert!((59_000_000..=61_000_000).contains(&step), "{step}");
        assert_eq!(clock.step(day + 73_000_000, at(12_200), at(12_201)), None);
        // The late reply to a request from before the step.
        assert_eq!(clock.step(day + 12_850_000, at(12_050), at(12_300)), None);
        assert_eq!(clock.step(day + 73_200_000, at(12_400), at(12_401)), None);
        assert!(clock.step(day + 13_300_000, at(12_500), at(12_501)).unwrap() < -59_000_000);
    }

    #[test]
    fn the_clock_of_another_server_is_no_step() {
        let clock = ServerClock::default();
        clock.connected("one:1");
        assert_eq!(clock.step(0, at(0), at(1)), None);
        clock.connected("two:1");
        assert_eq!(clock.step(9_000_000, at(2), at(3)), None);
        clock.connected("two:1");
        assert!(clock.step(0, at(4), at(5)).is_some());
    }
}
