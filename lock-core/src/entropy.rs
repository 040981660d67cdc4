//! Randomness: owner tokens and jitter.

use std::sync::Mutex;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

use crate::sync::lock;
use crate::token::OwnerToken;

/// The thread's generator, which the system seeds, or a generator with a given seed, so that a simulation can be
/// replayed.
#[derive(Debug)]
pub(crate) enum Entropy {
    Thread,
    Seeded(Box<Mutex<StdRng>>),
}

impl Entropy {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self::Seeded(Box::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    pub(crate) fn owner_token(&self) -> OwnerToken {
        let mut bytes = [0; 16];
        match self {
            Self::Thread => rand::rng().fill_bytes(&mut bytes),
            Self::Seeded(rng) => lock(rng).fill_bytes(&mut bytes),
        }
        OwnerToken::from_bytes(bytes)
    }

    /// Between 3/4 and 5/4 of a duration.
    pub(crate) fn jitter(&self, around: Duration) -> Duration {
        let factor = match self {
            Self::Thread => rand::rng().random_range(0.75..1.25),
            Self::Seeded(rng) => lock(rng).random_range(0.75..1.25),
        };
        around.mul_f64(factor)
    }
}
