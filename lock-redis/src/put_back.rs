//! Puts leases back that a server has lost: after a restart without data, and after a failover to a replica that lacks
//! the grant.
//!
//! In a new run of the server no client is granted a lock until every lease of an earlier run has ended (the
//! quarantine, `restart.rs` of lock-core). In that time a renewal may write the record of a lease again, with its owner
//! and its token: no other claim has been granted the lock in between. This is a part of the renewal (`put_back.lua`).
//! It costs no round trip, and a renewal in the run in which the lease was confirmed carries nothing for it.
//!
//! # Rules
//! A lease is put back if all of this is true:
//! 1. **An earlier run has confirmed it**, by a reply to an acquire or a renewal. If the present run has, then its
//!    missing record was deleted, and the lease is lost. A claim that was never told of a grant, or that was released,
//!    has no such confirmation. Neither has a lease that was pushed to a waiter, until its first renewal.
//! 2. **It is still valid.** The validity counts from before the request of that confirmation, less a margin. So the
//!    quarantine has not ended for any client that knew the ttl. lock-core checks the validity again when the reply
//!    arrives: its holder has lost a lease that was put back too late, and the record ends with its ttl or with the
//!    guard, whichever comes first.
//! 3. **The server is in the run that this connection has read.** The script compares the process and the replication
//!    history. If the server was replaced meanwhile, nothing is done, and the client reads it again.
//! 4. **The server knows of no later grant**: the lock has no record, or one with a lower token. Some clients do not
//!    wait: with `restart=trust`, or because they know nothing of an earlier run or of the ttl. Their grants have
//!    higher tokens, since a token is at least the server's time. A break leaves a higher token too, also of a lease
//!    that the server has lost. With the same token, the record is old data: the lease has run out there, and was not
//!    released.
//! 5. **The server still knows every grant of this run.** It keeps a record for `retention` after a grant, and this run
//!    began after the confirmation. So a lease with a ttl that is longer than `retention` is not put back.
//! 6. **The claim has no tombstone**: a renewal that arrives after the release of its claim does nothing.
//!
//! In a cluster, a slot that is moved to another node changes the run as well. No client waits there, and nothing is
//! lost: rules 2 and 4 keep a lease from coming back after its end or after a later grant.
//!
//! So the highest token wins. A record with a lower token is older than the lease, even if it shows another holder: a
//! replica that lags may lack the release of the former holder and the grant to this one. If an operator has broken a
//! lease and the server loses that too, its holder may put it back, until the next holder puts back its own.
//!
//! Waiters lose their places with the data, as without a put-back, and come after the holder. A place in a queue that
//! the server still has is kept if the holder's own place is in there too. The numbers of new places are above all that
//! the earlier run can have given.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::kit::{default_margin, lock};
use leasehold_core::backend::{Claim, RenewRequest, Stamp};

use crate::run::Run;
use crate::shared::Shared;

/// What a client knows of the lease of a claim.
#[derive(Debug, Default)]
pub(crate) struct Lease(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    NotHeld,
    Held {
        token: u64,
        confirmed: Confirmed,
    },
    /// A reply to an earlier request may still arrive, and changes nothing.
    Released,
}

/// A reply of a server that it keeps the lease.
#[derive(Clone, Debug)]
pub(crate) struct Confirmed {
    /// The run of the server.
    pub(crate) run: Arc<Run>,
    /// Just before the request was sent.
    pub(crate) sent: Stamp,
    pub(crate) ttl: Duration,
}

impl Confirmed {
    /// The end of the validity, with the default margin.
    fn until(&self) -> Stamp {
        self.sent.plus(self.ttl.saturating_sub(default_margin(self.ttl)))
    }
}

impl Lease {
    pub(crate) fn of(claim: &Claim) -> &Self {
        claim.slot()
    }

    /// The server says that the claim holds this lease.
    pub(crate) fn granted(&self, token: u64, confirmed: Confirmed) {
        let mut state = lock(&self.0);
        match &*state {
            State::Released => {}
            // A reply that was overtaken says nothing new.
            State::Held { confirmed: newest, .. } if newest.sent > confirmed.sent => {}
            State::Held { .. } | State::NotHeld => *state = State::Held { token, confirmed },
        }
    }

    /// The server has renewed the lease.
    pub(crate) fn renewed(&self, confirmed: Confirmed) {
        let token = match *lock(&self.0) {
            State::Held { token, .. } => token,
            // Renewed without a grant that this client was told of.
            State::NotHeld | State::Released => return,
        };
        self.granted(token, confirmed);
    }

    /// Whether this client was told of this grant.
    pub(crate) fn has(&self, granted: u64) -> bool {
        matches!(*lock(&self.0), State::Held { token, .. } if token == granted)
    }

    /// The server says that the claim has no lease.
    pub(crate) fn lost(&self) {
        let mut state = lock(&self.0);
        if let State::Held { .. } = *state {
            *state = State::NotHeld;
        }
    }

    /// The claim is about to be released.
    pub(crate) fn released(&self) {
        *lock(&self.0) = State::Released;
    }

    /// The token, if the lease may be put back in this run: rules 1, 2 and 5.
    fn to_put_back(&self, run: &Run, now: Stamp, retention: Duration) -> Option<u64> {
        match &*lock(&self.0) {
            State::Held { token, confirmed }
                if confirmed.run.name != run.name && now < confirmed.until() && confirmed.ttl <= retention =>
            {
                Some(*token)
            }
            _ => None,
        }
    }
}

/// The argument of `renew.lua` for the leases that may be put back in this run; empty if there are none.
pub(crate) fn argument(requests: &[RenewRequest], run: &Run, now: Stamp, shared: &Shared) -> Vec<u8> {
    let mut packed = Vec::new();
    for (number, RenewRequest { claim, .. }) in (1_u16..).zip(requests) {
        let Some(token) = Lease::of(claim).to_put_back(run, now, shared.settings.retention) else { continue };
        if packed.is_empty() {
            for text in [&run.process, &run.former_history] {
                packed.push(u8::try_from(text.len()).unwrap_or(0));
                packed.extend(text.bytes());
            }
        }
        let holder = shared.encoded_holder(claim);
        packed.extend(number.to_be_bytes());
        packed.extend(token.to_be_bytes());
        packed.extend(u16::try_from(holder.len()).unwrap_or(0).to_be_bytes());
        packed.extend(holder.bytes());
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETENTION: Duration = Duration::from_secs(600);

    fn at(seconds: u64) -> Stamp {
        Stamp::from_start(Duration::from_secs(seconds))
    }

    fn run(name: &str) -> Arc<Run> {
        Arc::new(Run { name: name.to_owned(), process: name.to_owned(), former_history: String::new() })
    }

    fn confirmed(name: &str, sent: u64, ttl: u64) -> Confirmed {
        Confirmed { run: run(name), sent: at(sent), ttl: Duration::from_secs(ttl) }
    }

    /// The token to put back in the run `two`.
    fn token(lease: &Lease, now: u64) -> Option<u64> {
        lease.to_put_back(&run("two"), at(now), RETENTION)
    }

    #[test]
    fn a_lease_is_put_back_in_another_run_while_it_is_valid() {
        let lease = Lease::default();
        lease.granted(7, confirmed("one", 10, 100));
        assert_eq!([10, 99, 100].map(|now| token(&lease, now)), [Some(7), Some(7), None]);
        assert_eq!(lease.to_put_back(&run("one"), at(11), RETENTION), None);
        lease.renewed(confirmed("one", 50, 100));
        assert_eq!([139, 140].map(|now| token(&lease, now)), [Some(7), None]);
        // It was put back, and the server is restarted again.
        lease.renewed(confirmed("two", 60, 100));
        assert_eq!((token(&lease, 61), lease.to_put_back(&run("three"), at(61), RETENTION)), (None, Some(7)));
    }

    #[test]
    fn a_claim_without_a_grant_is_not_put_back() {
        let lease = Lease::default();
        lease.renewed(confirmed("one", 10, 100));
        assert_eq!(token(&lease, 11), None);
        lease.granted(7, confirmed("one", 10, 100));
        lease.lost();
        lease.renewed(confirmed("one", 10, 100));
        assert_eq!(token(&lease, 11), None);
    }

    #[test]
    fn a_released_claim_is_not_put_back_whatever_reply_follows() {
        let lease = Lease::default();
        lease.granted(7, confirmed("one", 10, 100));
        lease.released();
        assert_eq!(token(&lease, 11), None);
        lease.granted(7, confirmed("one", 11, 100));
        lease.lost();
        lease.granted(7, confirmed("one", 12, 100));
        assert_eq!(token(&lease, 13), None);
    }

    #[test]
    fn a_reply_that_was_overtaken_changes_nothing_and_a_later_one_may_shorten() {
        let lease = Lease::default();
        lease.granted(7, confirmed("one", 20, 10));
        lease.renewed(confirmed("one", 19, 100));
        assert_eq!([28, 29].map(|now| token(&lease, now)), [Some(7), None]);
        lease.renewed(confirmed("one", 22, 1));
        assert_eq!(token(&lease, 23), None);
    }

    #[test]
    fn a_ttl_longer_than_the_retention_is_not_put_back() {
        let lease = Lease::default();
        lease.granted(7, confirmed("one", 10, 600));
        assert_eq!(token(&lease, 11), Some(7));
        lease.renewed(confirmed("one", 12, 601));
        assert_eq!(token(&lease, 13), None);
    }
}
