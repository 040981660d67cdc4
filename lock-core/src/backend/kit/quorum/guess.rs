//! Guesses a token that a majority of the servers accepts.

use std::time::Duration;

use super::Quorum;
use crate::clock::Stamp;

/// What a client knows of the servers' clocks. Tokens are µs of these clocks, so that the tokens of all clients and all
/// locks rise at the same rate, and a lock whose record was dropped long ago continues above its old tokens.
///
/// A guess is only a guess: servers refuse one that is not above their fence, which costs a round trip, whatever
/// the clocks do.
#[derive(Clone, Debug)]
pub struct Guess {
    quorum: Quorum,
    /// The newest reading of each server's clock in µs, and when it arrived.
    clocks: Vec<Option<(u64, Stamp)>>,
}

impl Guess {
    /// Knows no clock of these servers.
    pub fn new(quorum: Quorum) -> Self {
        Self { quorum, clocks: vec![None; quorum.servers()] }
    }

    /// The server's clock in µs, from a reply that arrived at `received`.
    pub fn observe(&mut self, server: usize, time: u64, received: Stamp) {
        let clock = &mut self.clocks[server];
        // The newest one, not the highest one: a clock that was set back would otherwise be overestimated for ever.
        if clock.is_none_or(|(_, newest)| newest <= received) {
            *clock = Some((time, received));
        }
    }

    /// The time by the servers' clocks, in µs: the latest, without as many as a minority has; zero if none is known. It
    /// is never ahead of that server: it counts from the arrival of the reply.
    ///
    /// A clock may be years ahead, and tokens never fall. Their order does not depend on the guess: a server accepts
    /// only a token above its fence, and majorities share a server.
    pub fn clock(&self, now: Stamp) -> u64 {
        let clocks = self.clocks.iter().flatten();
        let clocks = clocks.map(|&(time, received)| time.saturating_add(micros(now.since(received))));
        let mut clocks: Vec<_> = clocks.collect();
        clocks.sort_unstable();
        // If fewer are known, those of the minority may be among them. A guess that is too low costs a round trip.
        clocks.get(clocks.len().saturating_sub(self.quorum.overlap())).copied().unwrap_or(0)
    }

    /// A token that is likely above the fence of a majority: the servers' time, and at least one above `seen`, the
    /// highest fence of this lock that the client knows. Not ahead of the clocks: after the records of a lock were
    /// deleted, only the clocks keep its tokens rising.
    pub fn token(&self, now: Stamp, seen: u64) -> u64 {
        self.clock(now).max(seen.saturating_add(1))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Stamp {
        Stamp::from_start(Duration::from_millis(ms))
    }

    fn guess() -> Guess {
        Guess::new(Quorum::new(3).unwrap())
    }

    #[test]
    fn a_guess_follows_the_clocks_of_a_majority() {
        let mut guess = guess();
        assert_eq!(guess.token(at(5), 0), 1);
        guess.observe(0, 7_000_000, at(10));
        assert_eq!(guess.clock(at(10)), 7_000_000);
        assert_eq!(guess.token(at(20), 0), 7_010_000);
        guess.observe(2, 7_050_000, at(20));
        assert_eq!(guess.clock(at(30)), 7_020_000);
        guess.observe(1, 7_020_000, at(20));
        assert_eq!(guess.clock(at(30)), 7_030_000);
        // The newest reading of a server counts, also if its clock was set back.
        guess.observe(1, 7_060_000, at(40));
        guess.observe(1, 9_000_000, at(39));
        guess.observe(0, 6_000_000, at(40));
        assert_eq!(guess.clock(at(40)), 7_060_000);
        guess.observe(1, 7_059_000, at(40));
        assert_eq!(guess.clock(at(40)), 7_059_000);
    }

    #[test]
    fn a_clock_that_is_years_off_does_not_change_the_guess() {
        const YEARS: u64 = 200_000_000_000_000;
        let mut few = guess();
        few.observe(0, YEARS, at(10));
        few.observe(2, 2 * YEARS, at(10));
        assert_eq!(few.clock(at(10)), YEARS);
        let mut guess = guess();
        guess.observe(0, YEARS, at(10));
        guess.observe(1, YEARS + 50, at(10));
        for far in [2 * YEARS, 7] {
            guess.observe(2, far, at(10));
            assert!((YEARS..=YEARS + 50).contains(&guess.clock(at(10))), "{far}: {}", guess.clock(at(10)));
        }
    }

    #[test]
    fn a_guess_is_above_every_fence_that_was_seen() {
        let mut guess = guess();
        guess.observe(0, 7_000_000, at(10));
        assert_eq!(guess.token(at(10), 6_999_999), 7_000_000);
        assert_eq!(guess.token(at(10), 7_000_000), 7_000_001);
        assert_eq!(guess.token(at(10), u64::MAX), u64::MAX);
    }
}
