//! Random numbers that can be reproduced: the same seed gives the same numbers on every machine and in every version.
#![allow(dead_code, reason = "not every test target that shares it draws in every way")]

use std::time::Duration;

/// A splitmix64 generator.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub(crate) const fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// True with a probability of this many in a thousand.
    pub(crate) const fn permille(&mut self, often: u32) -> bool {
        self.next() % 1000 < often as u64
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Whole milliseconds, uniformly distributed.
    pub(crate) const fn between(&mut self, low_ms: u64, high_ms: u64) -> Duration {
        Duration::from_millis(low_ms + self.next() % (high_ms - low_ms + 1))
    }

    /// Whole milliseconds, log-uniform: as often between 1 and 2 as between 1,000 and 2,000.
    pub(crate) const fn spread(&mut self, low_ms: u64, high_ms: u64) -> Duration {
        let doublings = (high_ms / low_ms).ilog2() as u64;
        let from = low_ms << (self.next() % (doublings + 1));
        let to = if from * 2 < high_ms { from * 2 } else { high_ms };
        self.between(from, to)
    }
}
