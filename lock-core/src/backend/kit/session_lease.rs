//! What a client knows about a session that its leases share, as a pure state machine: replies and their stamps go in,
//! confirmations come out. It knows neither network nor clock.

use std::time::Duration;

use crate::clock::Stamp;
use crate::error::Error;

/// A session of a store with [`TtlScope::Session`](crate::backend::TtlScope::Session), as its client knows it.
#[derive(Clone, Debug)]
pub(super) struct SessionLease {
    /// The ttl that the server granted, or named in its newest reply.
    ttl: Duration,
    /// When the newest request was sent that has a reply.
    sent: Stamp,
    is_gone: bool,
    /// Why the keep-alives since then have no reply, and when the last of them was wanted.
    failure: Option<(Stamp, Error)>,
}

/// Whether a session is confirmed.
#[derive(Clone, Debug)]
pub(super) enum Known {
    /// The session lasts for the ttl, counted from the stamp.
    Confirmed(Duration, Stamp),
    /// The session has ended.
    Gone,
    /// The server has not confirmed it recently.
    Unknown,
    /// The server did not reply to a request.
    Failed(Error),
}

impl SessionLease {
    /// A session that was opened by a request sent at `sent`.
    pub(super) fn granted(ttl: Duration, sent: Stamp) -> Self {
        Self { ttl, sent, is_gone: false, failure: None }
    }

    /// The reply to a keep-alive that was sent at `sent`. An older reply proves nothing new.
    pub(super) fn kept_alive(&mut self, ttl: Duration, sent: Stamp) {
        if sent >= self.sent {
            (self.ttl, self.sent) = (ttl, sent);
            self.failure = None;
        }
    }

    /// The server has ended the session, for good.
    pub(super) fn end(&mut self) {
        self.is_gone = true;
    }

    /// The keep-alive that was wanted at this time had no reply.
    pub(super) fn failed(&mut self, wanted: Stamp, error: Error) {
        self.failure = Some((wanted, error));
    }

    /// Whether the server has confirmed the session since then.
    pub(super) fn known_since(&self, since: Stamp) -> Known {
        if self.is_gone {
            return Known::Gone;
        }
        if self.sent >= since {
            return Known::Confirmed(self.ttl, self.sent);
        }
        match &self.failure {
            Some((wanted, error)) if *wanted >= since => Known::Failed(error.clone()),
            _ => Known::Unknown,
        }
    }

    /// Whether its ttl has passed since the newest confirmation. The server may have ended it by then.
    pub(super) fn is_overdue(&self, now: Stamp) -> bool {
        self.is_gone || now.since(self.sent) >= self.ttl
    }

    /// What the newest reply confirmed.
    pub(super) fn newest(&self) -> (Duration, Stamp) {
        (self.ttl, self.sent)
    }
}

#[cfg(test)]
mod tests {
    use crate::error::ErrorKind;

    use super::*;

    const TTL: Duration = Duration::from_secs(3);

    fn at(ms: u64) -> Stamp {
        Stamp::from_start(Duration::from_millis(ms))
    }

    #[test]
    fn a_confirmation_counts_from_its_request() {
        let mut lease = SessionLease::granted(TTL, at(1_000));
        assert!(matches!(lease.known_since(at(1_000)), Known::Confirmed(TTL, sent) if sent == at(1_000)));
        assert!(matches!(lease.known_since(at(1_001)), Known::Unknown));
        lease.kept_alive(TTL, at(2_000));
        // A reply that was overtaken.
        lease.kept_alive(TTL * 2, at(1_500));
        assert_eq!(lease.newest(), (TTL, at(2_000)));
        assert!(!lease.is_overdue(at(4_999)) && lease.is_overdue(at(5_000)));
    }

    #[test]
    fn a_lease_that_is_gone_stays_gone() {
        let mut lease = SessionLease::granted(TTL, at(1_000));
        lease.end();
        lease.kept_alive(TTL, at(3_000));
        assert!(matches!(lease.known_since(at(0)), Known::Gone) && lease.is_overdue(at(1_000)));
    }

    #[test]
    fn a_failure_counts_until_the_next_reply() {
        let mut lease = SessionLease::granted(TTL, at(1_000));
        lease.failed(at(2_000), Error::new(ErrorKind::Indeterminate, "planted"));
        assert!(matches!(lease.known_since(at(2_000)), Known::Failed(_)));
        // It says nothing about a later request, and an earlier confirmation stays valid.
        assert!(matches!(lease.known_since(at(2_001)), Known::Unknown));
        assert!(matches!(lease.known_since(at(900)), Known::Confirmed(..)));
        lease.kept_alive(TTL, at(2_500));
        assert!(matches!(lease.known_since(at(2_000)), Known::Confirmed(..)));
    }
}
