//! Pauses between attempts that fail in a row. Without them a server that refuses each stream, session or connection at
//! once would receive requests as fast as it can refuse them.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(250);

/// A failure that comes this long after the last pause begins a new row.
const CALM: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Pauses {
    last: Option<(Instant, Duration)>,
}

impl Pauses {
    /// An attempt has failed now, or what it opened has ended. Returns when to try again.
    pub(crate) fn next(&mut self, now: Instant) -> Instant {
        let pause = match self.last {
            Some((at, pause)) if now < at + pause + CALM => (pause * 2).min(LONGEST),
            _ => SHORTEST,
        };
        self.last = Some((now, pause));
        // Many clients may have lost the same server. They must not come back at the same time.
        now + pause.mul_f64(rand::random_range(0.5..1.0))
    }

    /// Waits until the next attempt, or until the call ends.
    pub(crate) async fn wait(&mut self, until: Instant) {
        sleep_until(self.next(Instant::now()).min(until)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_grow_while_attempts_fail_in_a_row() {
        let (mut pauses, mut now) = (Pauses::default(), Instant::now());
        for expected in [20, 40, 80, 160, 250, 250].map(Duration::from_millis) {
            let pause = pauses.next(now) - now;
            assert!(pause <= expected && pause * 2 >= expected, "{pause:?}, not {expected:?}");
            now += pause;
        }
        now += LONGEST + CALM;
        assert!(pauses.next(now) - now <= SHORTEST);
    }
}
