//! The requests of a quorum to one of its servers, as `scripts/exchange.lua` reads them.

use std::time::Duration;

use leasehold_core::LockName;
use leasehold_core::backend::kit::quorum::{HoldRequest, RunId};
use leasehold_core::backend::{Claim, Stamp};

use super::slot::{Slot, Vote};
use crate::shared::millis;

/// A request for one lock.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) subject: Subject,
    pub(super) operation: Operation,
}

/// Whom a request is about.
#[derive(Clone)]
pub(super) enum Subject {
    /// The vote of a claim of this client.
    Claim(Claim, Vote),
    /// A vote without its claim: that of another client, or one whose withdrawal was not confirmed.
    Vote(LockName, Vote),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// To vote for this ttl, and to accept the token.
    Vote { ttl: Duration, guess: u64 },
    /// To accept a higher token.
    Raise { token: u64 },
    /// To renew the vote to this ttl, by the way that the server needs.
    Hold { ttl: Duration, token: u64, exactly: bool },
    /// To withdraw the vote. With the ttl of the tombstone, if an earlier request has no reply.
    Withdraw { tombstone: Option<Duration> },
    /// To end the vote of another client, to accept this token, and not to take the vote back for this ttl.
    Break { token: u64, ttl: Duration },
}

impl Request {
    pub(super) const fn of(claim: Claim, vote: Vote, operation: Operation) -> Self {
        Self { subject: Subject::Claim(claim, vote), operation }
    }

    pub(super) fn name(&self) -> &LockName {
        match &self.subject {
            Subject::Claim(claim, _) => claim.name(),
            Subject::Vote(name, _) => name,
        }
    }

    pub(super) const fn vote(&self) -> &Vote {
        match &self.subject {
            Subject::Claim(_, vote) | Subject::Vote(_, vote) => vote,
        }
    }

    pub(super) const fn claim(&self) -> Option<&Claim> {
        match &self.subject {
            Subject::Claim(claim, _) => Some(claim),
            Subject::Vote(..) => None,
        }
    }

    /// What a renewal asks this server for, now.
    pub(super) fn hold(&self, server: usize, run: &RunId, now: Stamp) -> HoldRequest {
        match self.claim() {
            Some(claim) => Slot::of(claim).hold_request(server, run, now),
            None => HoldRequest::Renew { put_back: false },
        }
    }

    /// Packs the request as the script reads it. `holder` is the index of the holder information among the arguments.
    pub(super) fn pack(&self, hold: HoldRequest, holder: u8, packed: &mut Vec<u8>) {
        let (code, ttl, token) = match self.operation {
            Operation::Vote { ttl, guess } => (b'v', ttl, guess),
            Operation::Raise { token } => (b'a', Duration::ZERO, token),
            Operation::Hold { ttl, token, exactly } => {
                let code = match hold {
                    HoldRequest::Join => b'j',
                    HoldRequest::Renew { put_back: true } => b'p',
                    HoldRequest::Renew { .. } => b'r',
                };
                (if exactly { code.to_ascii_uppercase() } else { code }, ttl, token)
            }
            Operation::Withdraw { tombstone: Some(ttl) } => (b't', ttl, 0),
            Operation::Withdraw { tombstone: None } => (b'w', Duration::ZERO, 0),
            Operation::Break { token, ttl } => (b'b', ttl, token),
        };
        packed.push(code);
        packed.push(holder);
        packed.extend(millis(ttl).to_be_bytes());
        packed.extend(token.to_be_bytes());
        packed.extend(self.vote());
    }

    /// Whether the server may write the holder information of the claim.
    pub(super) const fn has_holder(&self, hold: HoldRequest) -> bool {
        match self.operation {
            Operation::Vote { .. } => true,
            Operation::Hold { .. } => !matches!(hold, HoldRequest::Renew { put_back: false }),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_a_code() {
        let ttl = Duration::from_millis(258);
        let packed = |operation, hold| {
            let subject = Subject::Vote(LockName::new("job").unwrap(), [7; 16]);
            let mut packed = Vec::new();
            Request { subject, operation }.pack(hold, 3, &mut packed);
            packed
        };
        let renew = HoldRequest::Renew { put_back: false };
        let hold = |exactly| Operation::Hold { ttl, token: 5, exactly };
        let mut whole = vec![b'v', 3, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 5];
        whole.extend([7; 16]);
        assert_eq!(packed(Operation::Vote { ttl, guess: 5 }, renew), whole);
        for (operation, hold, code) in [
            (Operation::Raise { token: 5 }, renew, b'a'),
            (hold(false), renew, b'r'),
            (hold(true), renew, b'R'),
            (hold(false), HoldRequest::Renew { put_back: true }, b'p'),
            (hold(true), HoldRequest::Renew { put_back: true }, b'P'),
            (hold(false), HoldRequest::Join, b'j'),
            (hold(true), HoldRequest::Join, b'J'),
            (Operation::Withdraw { tombstone: None }, renew, b'w'),
            (Operation::Withdraw { tombstone: Some(ttl) }, renew, b't'),
            (Operation::Break { token: 5, ttl }, renew, b'b'),
        ] {
            assert_eq!(packed(operation, hold)[0], code, "{operation:?} {hold:?}");
        }
    }
}
