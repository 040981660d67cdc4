//! Script calls about several locks at once.

use std::time::Duration;

use leasehold_core::backend::{Claim, Stamp};
use leasehold_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use crate::connection::{Connection, script_call};
use crate::errors::{Failure, refused};
use crate::replies::{self, Acquired};
use crate::shared::{Shared, millis};

/// What is asked about one lock.
pub(crate) struct Ask {
    pub(crate) claim: Claim,
    pub(crate) want: Want,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Acquire(Terms),
    /// With how long to remember the owner, where it is withdrawn.
    Release(Option<Duration>),
}

/// What the acquires of one script call have in common, besides their holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    /// Whether a place is wanted while another holds the lock.
    pub(crate) place: bool,
}

impl Ask {
    fn terms(&self) -> Option<Terms> {
        match self.want {
            Want::Acquire(terms) => Some(terms),
            Want::Release(_) => None,
        }
    }

    pub(crate) fn is_acquire(&self) -> bool {
        self.terms().is_some()
    }

    /// Whether two acquires may go out in one script call. Then holder information is stored that is the same for both.
    pub(crate) fn goes_with(&self, other: &Self, shared: &Shared) -> bool {
        let named = |ask: &Self| !shared.keys.tells(ask.claim.name());
        self.want == other.want && self.claim.holder() == other.claim.holder() && !named(self) && !named(other)
    }
}

/// An answer, with the stamp from just before its request was sent.
pub(crate) struct Answered {
    pub(crate) sent: Stamp,
    pub(crate) told: Told,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    Acquired(Acquired),
    Released(bool),
}

/// Sends several requests in one script call, and answers each. The acquires [go together](Ask::goes_with).
pub(crate) async fn together(
    shared: &Shared,
    connection: &Connection,
    asks: &[Ask],
    until: Instant,
) -> Vec<Result<Answered>> {
    let all = |why: Error| asks.iter().map(|_| Err(why.clone())).collect();
    let first = asks.iter().find(|ask| ask.is_acquire());
    let terms = first.and_then(Ask::terms);
    let quarantine = match connection.prepare(terms.map_or(Duration::ZERO, |terms| terms.ttl), until).await {
        Ok(quarantine) => quarantine,
        Err(why) => return all(why),
    };
    let sent = |ask: &&Ask| quarantine.is_none() || !ask.is_acquire();
    let acquires = asks.iter().filter(sent).filter(|ask| ask.is_acquire());
    let releases = asks.iter().filter(|ask| !ask.is_acquire());
    let (number, count) = (acquires.clone().count(), asks.iter().filter(sent).count());
    let mut answers = Vec::new();
    let mut stamp = Stamp::ZERO;
    if count > 0 {
        let mut command = script_call(&shared.scripts.exchange, count);
        let (mut owners, mut withdrawn) = (Vec::<u8>::with_capacity(16 * count), Vec::new());
        for (index, ask) in (1_u16..).zip(acquires.chain(releases)) {
            shared.keys.add_record(&mut command, ask.claim.name());
            owners.extend(ask.claim.owner().as_bytes());
            if let Want::Release(Some(remember)) = ask.want {
                withdrawn.extend(index.to_be_bytes());
                withdrawn.extend(millis(remember).to_be_bytes());
            }
        }
        let common = match (first, terms) {
            (Some(first), Some(terms)) if number > 0 => shared.common_to_acquires(number, terms, &first.claim),
            _ => shared.common(quarantine.is_none()),
        };
        command.arg(common).arg(owners);
        if !withdrawn.is_empty() {
            command.arg(withdrawn);
        }
        stamp = match shared.core() {
            Ok(core) => core.stamp(),
            Err(why) => return all(why),
        };
        match connection.run(&shared.scripts.exchange, &command, until).await {
            Ok(value) => answers = replies::per_lock(value, count).unwrap_or_default(),
            Err(failure) => return all(failure.into()),
        }
    }
    let (first, second) = answers.split_at(number.min(answers.len()));
    let (mut first, mut second) = (first.iter(), second.iter());
    asks.iter()
        .map(|ask| {
            let told = match (ask.is_acquire(), quarantine) {
                (true, Some(wait)) => return Err(quarantined(shared, wait)),
                (true, None) => first.next().and_then(replies::acquired).map(|told| told.map(Told::Acquired)),
                (false, _) => second.next().and_then(replies::released).map(|told| told.map(Told::Released)),
            };
            match told {
                Some(Ok(told)) => Ok(Answered { sent: stamp, told }),
                Some(Err(text)) => Err(refused(&text)),
                None => Err(Failure::UnexpectedReply.into()),
            }
        })
        .collect()
}

fn quarantined(shared: &Shared, wait: Duration) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "the server at {} was restarted and may have forgotten leases: no new grants for another {} ms, until those \
             have ended (`restart=trust` in the URL does not wait)",
            shared.address,
            wait.as_millis()
        ),
    )
}
