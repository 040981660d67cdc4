//! The outputs of the keeper's state machines.

use std::time::Duration;

use crate::clock::Stamp;

/// The outputs of one input, in order.
#[derive(Clone, Debug)]
pub struct Outputs<O>(Vec<O>);

impl<O> Default for Outputs<O> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<O> Outputs<O> {
    pub(super) fn push(&mut self, output: O) {
        self.0.push(output);
    }

    pub fn drain(&mut self) -> impl Iterator<Item = O> {
        self.0.drain(..)
    }
}

/// When to wake a machine. The keeper adds the jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    from: Stamp,
    pause: Duration,
    by: Option<Stamp>,
}

impl Wake {
    /// At exactly this time.
    pub fn at(stamp: Stamp) -> Self {
        Self { from: stamp, pause: Duration::ZERO, by: None }
    }

    /// After about this pause. Its jitter keeps clients that received the same notification from all coming back at
    /// once.
    pub fn after(from: Stamp, pause: Duration) -> Self {
        Self { from, pause, by: None }
    }

    /// The same, and at this time at the latest.
    pub fn by(self, at: Option<Stamp>) -> Self {
        Self { by: self.by.into_iter().chain(at).min(), ..self }
    }

    pub fn resolve(self, jitter: impl FnOnce(Duration) -> Duration) -> Stamp {
        let at = if self.pause.is_zero() { self.from } else { self.from.plus(jitter(self.pause)) };
        self.by.map_or(at, |by| by.min(at))
    }
}
