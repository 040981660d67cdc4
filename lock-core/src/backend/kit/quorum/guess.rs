//! Guesses a token that a majority of the servers accepts.

use std::time::Duration;

use crate::clock::Stamp;

/// What a client knows of the servers' clocks. Tokens are µs of these clocks, so that the tokens of all clients and all
/// locks rise at the same rate, and a lock whose record was dropped long ago continues above its old tokens.
///
/// A guess is only a guess: servers refuse one that is not above their fence, which costs a round trip, whatever
/// the clocks do.
#[derive(Clone, Debug)]
pub struct Guess {
    /// The newest reading of each server's clock in µs, and when it arrived.
    clocks: Vec<Option<(u64, Stamp)>>,
}

impl Guess {
    /// Knows no clock of this many servers.
    pub fn new(servers: usize) -> Self {
        Self { clocks: vec![None; servers] }
    }

    /// The server's clock in µs, from a reply that arrived at `received`.
    pub fn observe(&mut self, server: usize, time: u64, received: Stamp) {
        let clock = &mut self.clocks[server];
        // The newest one, not the highest one: a clock that was set back would otherwise be overestimated for ever.
        if clock.is_none_or(|(_, newest)| newest <= received) {
            *clock = Some((time, received));
        }
    }

    /// The fastest of the servers' clocks, in µs; zero if none is known. It is never ahead of that server: it counts
    /// from the arrival of the reply.
    pub fn clock(&self, now: Stamp) -> u64 {
        let clocks = self.clocks.iter().flatten();
        clocks.map(|&(time, received)| time.saturating_add(micros(now.since(received)))).max().unwrap_or(0)
    }

    /// A token that is likely above the fence of a majority: the fastest clock plus `bound`, the bound of a call, and
    /// at least one above `seen`, the highest fence of this lock that the client knows.
    pub fn token(&self, now: Stamp, bound: Duration, seen: u64) -> u64 {
        self.clock(now).saturating_add(micros(bound)).max(seen.saturating_add(1))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
