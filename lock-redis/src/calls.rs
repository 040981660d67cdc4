//! Script calls about several locks at once.

use std::time::Duration;

use lock_core::{Error, ErrorKind, Result, Stamp};
use tokio::time::Instant;

use crate::conn::{Conn, script_call};
use crate::errors::{Failure, refused};
use crate::replies::{self, Acquired};
use crate::shared::Shared;

/// What is asked about one lock: an acquire where it has terms, else a release.
pub(crate) struct Ask {
    /// The record's key.
    pub(crate) key: String,
    /// What the script's header says, one per lock.
    pub(crate) argument: Vec<u8>,
    pub(crate) terms: Option<Terms>,
}

/// What the acquires of one script call have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    /// Whether a place is wanted while another holds the lock.
    pub(crate) place: bool,
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

/// Sends several requests in one script call, and answers each. The acquires have the same terms.
pub(crate) async fn together(shared: &Shared, conn: &Conn, asks: &[Ask], until: Instant) -> Vec<Result<Answered>> {
    let all = |why: Error| asks.iter().map(|_| Err(why.clone())).collect();
    let terms = asks.iter().find_map(|ask| ask.terms);
    let quarantine = match conn.prepare(terms.map_or(Duration::ZERO, |terms| terms.ttl), until).await {
        Ok(quarantine) => quarantine,
        Err(why) => return all(why),
    };
    let acquires = || asks.iter().filter(|ask| ask.terms.is_some() && quarantine.is_none());
    let releases = || asks.iter().filter(|ask| ask.terms.is_none());
    let count = acquires().count() + releases().count();
    let mut answers = Vec::new();
    let mut sent = Stamp::ZERO;
    if count > 0 {
        let mut command = script_call(&shared.scripts.exchange, count);
        for ask in acquires().chain(releases()) {
            command.arg(&ask.key);
        }
        command.arg(shared.common(quarantine.is_none(), acquires().count(), terms));
        for ask in acquires().chain(releases()) {
            command.arg(&ask.argument);
        }
        sent = match shared.core() {
            Ok(core) => core.stamp(),
            Err(why) => return all(why),
        };
        match conn.run(&shared.scripts.exchange, &command, until).await {
            Ok(value) => answers = replies::per_lock(value, count).unwrap_or_default(),
            Err(failure) => return all(failure.into()),
        }
    }
    let (first, second) = answers.split_at(acquires().count().min(answers.len()));
    let (mut first, mut second) = (first.iter(), second.iter());
    asks.iter()
        .map(|ask| {
            let told = match (ask.terms, quarantine) {
                (Some(_), Some(wait)) => return Err(quarantined(shared, wait)),
                (Some(_), None) => first.next().and_then(replies::acquired).map(|told| told.map(Told::Acquired)),
                (None, _) => second.next().and_then(replies::released).map(|told| told.map(Told::Released)),
            };
            match told {
                Some(Ok(told)) => Ok(Answered { sent, told }),
                Some(Err(text)) => Err(refused(&text)),
                None => Err(Failure::Unreadable.into()),
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
