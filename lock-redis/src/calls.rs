//! Script calls about several locks at once.

use std::time::Duration;

use lock_core::{Error, ErrorKind, Result, Stamp};
use redis::Value;
use tokio::time::Instant;

use crate::conn::{Conn, script_call};
use crate::errors::{Failure, refused};
use crate::replies::{self, Acquired, PerLock};
use crate::scripts::Script;
use crate::shared::{Shared, millis};

/// What is asked about one lock.
pub(crate) struct Ask {
    /// The record's key.
    pub(crate) key: String,
    pub(crate) owner: [u8; 16],
    pub(crate) what: What,
}

pub(crate) enum What {
    Acquire {
        terms: Terms,
        holder: String,
    },
    /// With a time to remember, the owner is withdrawn.
    Release {
        remember: Duration,
    },
}

/// What the acquires of one script call have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    /// Whether a place is wanted while another holds the lock.
    pub(crate) place: bool,
}

impl Ask {
    pub(crate) fn terms(&self) -> Option<Terms> {
        match self.what {
            What::Acquire { terms, .. } => Some(terms),
            What::Release { .. } => None,
        }
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

/// Sends several requests, the acquires in one script call and the releases in another, and answers each. The acquires
/// have the same terms.
pub(crate) async fn together(shared: &Shared, conn: &Conn, asks: &[Ask], until: Instant) -> Vec<Result<Answered>> {
    let terms = asks.iter().find_map(Ask::terms);
    let quarantine = match conn.prepare(terms.map_or(Duration::ZERO, |terms| terms.ttl), until).await {
        Ok(quarantine) => quarantine,
        Err(why) => return asks.iter().map(|_| Err(why.clone())).collect(),
    };
    let acquires = async {
        let acquires = asks.iter().filter(|ask| ask.terms().is_some());
        match (terms, quarantine) {
            (None, _) => Vec::new(),
            (Some(_), Some(wait)) => acquires.map(|_| Err(quarantined(shared, wait))).collect(),
            (Some(terms), None) => {
                let common = shared.common(terms.ttl, true, terms.place);
                let call = Call::new(shared, conn, &shared.scripts.acquire, &common, acquires);
                call.answers(until, replies::acquired, Told::Acquired).await
            }
        }
    };
    let releases = async {
        let releases = asks.iter().filter(|ask| ask.terms().is_none());
        if releases.clone().next().is_none() {
            return Vec::new();
        }
        let common = shared.common(Duration::ZERO, quarantine.is_none(), false);
        let call = Call::new(shared, conn, &shared.scripts.release, &common, releases);
        call.answers(until, replies::released, Told::Released).await
    };
    let (acquires, releases) = tokio::join!(acquires, releases);
    let (mut acquires, mut releases) = (acquires.into_iter(), releases.into_iter());
    asks.iter()
        .map(|ask| if ask.terms().is_some() { acquires.next() } else { releases.next() })
        .map(|answer| answer.unwrap_or_else(|| Err(Failure::Unreadable.into())))
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

/// One script call about several locks.
struct Call<'a> {
    shared: &'a Shared,
    conn: &'a Conn,
    script: &'a Script,
    command: redis::Cmd,
    count: usize,
}

impl<'a> Call<'a> {
    fn new<'b>(
        shared: &'a Shared,
        conn: &'a Conn,
        script: &'a Script,
        common: &[u8],
        asks: impl Iterator<Item = &'b Ask> + Clone,
    ) -> Self {
        let count = asks.clone().count();
        let mut command = script_call(script, count);
        for ask in asks.clone() {
            command.arg(&ask.key);
        }
        command.arg(common);
        for ask in asks {
            match &ask.what {
                What::Acquire { holder, .. } => command.arg([&ask.owner, holder.as_bytes()].concat()),
                What::Release { remember } if remember.is_zero() => command.arg(&ask.owner),
                What::Release { remember } => command.arg([&ask.owner[..], &millis(*remember).to_be_bytes()].concat()),
            };
        }
        Self { shared, conn, script, command, count }
    }

    async fn answers<T>(
        self,
        until: Instant,
        read: impl FnOnce(Value, usize) -> Option<Vec<PerLock<T>>>,
        tell: impl Fn(T) -> Told,
    ) -> Vec<Result<Answered>> {
        let all = |why: Error| (0..self.count).map(|_| Err(why.clone())).collect();
        let sent = match self.shared.core() {
            Ok(core) => core.stamp(),
            Err(why) => return all(why),
        };
        let value = match self.conn.run(self.script, &self.command, until).await {
            Ok(value) => value,
            Err(failure) => return all(failure.into()),
        };
        let Some(answers) = read(value, self.count) else { return all(Failure::Unreadable.into()) };
        answers
            .into_iter()
            .map(|answer| match answer {
                Ok(answer) => Ok(Answered { sent, told: tell(answer) }),
                Err(text) => Err(refused(&text)),
            })
            .collect()
    }
}
