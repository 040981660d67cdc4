//! The replies of a store: confirmations, grants, and the outcomes of acquire and release.

use std::fmt;
use std::time::Duration;

use crate::clock::Stamp;
use crate::token::FencingToken;

/// The number of a place in a server's queue. It grows with every place of a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaceNumber(u64);

impl PlaceNumber {
    /// The number of a backend without places.
    pub const NONE: Self = Self(0);

    /// A number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number of the place after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for PlaceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A reply of the store that confirms a lease or a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmation {
    /// How long the lease or place lasts at least, counted from when the store processed the request.
    pub ttl: Duration,
    /// Taken just before the request was sent: at that moment the store had not yet started the ttl.
    pub sent: Stamp,
    /// The number of the place. A lease keeps the number of the place that it came from.
    pub place: PlaceNumber,
}

impl Confirmation {
    /// The same confirmation, counted from a later request whose reply proves that the lease or place still exists: what
    /// is left of the ttl, because that request does not start it anew.
    #[must_use]
    pub fn counted_from(self, sent: Stamp) -> Self {
        let sent = sent.max(self.sent);
        Self { ttl: self.ttl.saturating_sub(sent.since(self.sent)), sent, ..self }
    }
}

/// A lease that the store granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The token of this grant, higher than every earlier token of the lock.
    pub token: FencingToken,
    /// The confirmation that the validity counts from.
    pub confirmation: Confirmation,
}

impl Grant {
    /// A grant with this token.
    pub const fn new(token: FencingToken, confirmation: Confirmation) -> Self {
        Self { token, confirmation }
    }
}

/// The outcome of one attempt to acquire. An unknown outcome is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireOutcome {
    /// The claim holds the lock.
    Granted(Grant),
    /// The claim has a place in the server's queue.
    Queued {
        /// The confirmation of the place.
        confirmation: Confirmation,
        /// How long the holder's lease still lasts, or the ttl of the place if the store does not say. The keeper
        /// renews the place then, or earlier on an event.
        retry_after: Duration,
    },
    /// Another claim holds the lock, and this claim has no place, because the server keeps no queue or the claim
    /// requested no place. The keeper sends the next acquire after `retry_after`, or earlier on an event.
    Contended {
        /// How long the keeper waits before the next acquire. For a claim that waits, at most a third of the ttl and of
        /// [`max_place_ttl`](crate::backend::Capabilities::max_place_ttl), even if the store notifies the client,
        /// because notifications get lost.
        retry_after: Duration,
    },
}

/// The outcome of a release. An unknown outcome is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// The lease or place was this claim's and has ended.
    Released,
    /// This claim had neither lease nor place; nothing was changed.
    NotHeld,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_request_leaves_the_end_of_a_confirmation() {
        let at = |seconds| Stamp::ZERO.plus(Duration::from_secs(seconds));
        let confirmation =
            |ttl, sent| Confirmation { ttl: Duration::from_secs(ttl), sent: at(sent), place: PlaceNumber::NONE };
        let first = confirmation(10, 2);
        assert_eq!(first.counted_from(at(5)), confirmation(7, 5));
        assert_eq!((first.counted_from(at(1)), first.counted_from(at(2))), (first, first));
        assert_eq!(first.counted_from(at(20)), confirmation(0, 20));
    }

    #[test]
    fn a_place_shows_its_number() {
        assert_eq!(PlaceNumber::new(6).next().to_string(), "7");
    }
}
