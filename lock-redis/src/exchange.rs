//! Script calls for several locks at once.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Result;
use leasehold_core::backend::kit::restart::quarantined;
use leasehold_core::backend::{Claim, Stamp};
use tokio::time::Instant;

use crate::cluster::{Declared, Refusal};
use crate::connection::{Connection, script_call};
use crate::errors::Failure;
use crate::replies::{self, Acquired};
use crate::run::Run;
use crate::sentinel::half_until;
use crate::shared::{Shared, millis};

/// A request for one lock.
pub(crate) struct Request {
    pub(crate) claim: Claim,
    pub(crate) operation: Operation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Acquire(AcquireOptions),
    /// With the ttl of the tombstone if the claim is withdrawn.
    Release(Option<Duration>),
}

/// The options that the acquires of one script call share, besides their holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AcquireOptions {
    pub(crate) ttl: Duration,
    /// Whether to join the queue while another claim holds the lock.
    pub(crate) queue: bool,
}

impl Request {
    fn options(&self) -> Option<AcquireOptions> {
        match self.operation {
            Operation::Acquire(options) => Some(options),
            Operation::Release(_) => None,
        }
    }

    pub(crate) fn is_acquire(&self) -> bool {
        self.options().is_some()
    }

    /// Whether two acquires can share a script call. The call stores the same holder information for both. If a key has
    /// only the digest of a name, the name is in there too, and the other lock would get it.
    pub(crate) fn can_share_call(&self, other: &Self, shared: &Shared) -> bool {
        let key_lacks_name = |request: &Self| !shared.keys.contains_name(request.claim.name());
        self.operation == other.operation
            && self.claim.holder() == other.claim.holder()
            && !key_lacks_name(self)
            && !key_lacks_name(other)
    }
}

/// A reply, and the stamp from just before the request was sent.
pub(crate) struct Reply {
    pub(crate) sent: Stamp,
    /// The run of the server.
    pub(crate) run: Option<Arc<Run>>,
    pub(crate) body: ReplyBody,
}

#[derive(Clone, Debug)]
pub(crate) enum ReplyBody {
    Acquired(Acquired),
    Released(bool),
    /// Only from a node of a cluster.
    Refused(Refusal),
}

impl Reply {
    const fn is_grant(&self) -> bool {
        matches!(self.body, ReplyBody::Acquired(Acquired::Granted { .. }))
    }
}

fn refused(refusal: Refusal) -> Reply {
    Reply { sent: Stamp::ZERO, run: None, body: ReplyBody::Refused(refusal) }
}

/// Sends several requests in one script call, and returns a reply for each. The acquires
/// [can share a call](Request::can_share_call).
pub(crate) async fn exchange(
    connection: &Connection,
    requests: &[Request],
    declared: Declared,
    until: Instant,
) -> Vec<Result<Reply>> {
    let shared = connection.protocol();
    let all = |why: Result<Refusal>| requests.iter().map(|_| why.clone().map(refused)).collect();
    let first = requests.iter().find(|request| request.is_acquire());
    let options = first.and_then(Request::options);
    let ttl = options.map_or(Duration::ZERO, |options| options.ttl);
    let quarantine = match connection.prepare(ttl, declared, until).await {
        Ok(quarantine) => quarantine,
        Err(error) => return all(connection.unsent(error)),
    };
    let run = connection.run_read();
    let mut barred = quarantine.map(|wait| quarantined(connection.address(), wait));
    if let (None, Some(_), Some(primary)) = (&barred, options, connection.primary()) {
        // Leaves time for the releases of this call.
        primary.ask(ttl, half_until(until)).await;
        barred = primary.check(ttl, primary.now()).err();
    }
    // Releases are sent nevertheless: ending a lease makes no second holder.
    let is_sent = |request: &&Request| barred.is_none() || !request.is_acquire();
    let acquires = requests.iter().filter(is_sent).filter(|request| request.is_acquire());
    let releases = requests.iter().filter(|request| !request.is_acquire());
    let (number, count) = (acquires.clone().count(), requests.iter().filter(is_sent).count());
    let mut replies_by_lock = Vec::new();
    let mut stamp = Stamp::ZERO;
    if count > 0 {
        let mut command = script_call(&shared.scripts.exchange, declared.count(count));
        let (mut owners, mut withdrawn) = (Vec::<u8>::with_capacity(16 * count), Vec::new());
        // The scripts expect the acquires first.
        for (index, request) in (1_u16..).zip(acquires.chain(releases)) {
            shared.keys.add_lock(&mut command, &request.claim, declared);
            owners.extend(request.claim.owner().as_bytes());
            if let Operation::Release(Some(tombstone_ttl)) = request.operation {
                withdrawn.extend(index.to_be_bytes());
                withdrawn.extend(millis(tombstone_ttl).to_be_bytes());
            }
        }
        let common = match (first, options) {
            (Some(first), Some(options)) if number > 0 => {
                shared.common_to_acquires(declared, number, options, &first.claim)
            }
            _ => shared.common(declared, quarantine.is_none()),
        };
        command.arg(common).arg(owners);
        if !withdrawn.is_empty() {
            command.arg(withdrawn);
        }
        stamp = match shared.core() {
            Ok(core) => core.stamp(),
            Err(error) => return all(Err(error)),
        };
        let value = connection.run_declared(&shared.scripts.exchange, &command, declared, until).await;
        match connection.refusals(value) {
            Ok(Ok(value)) => replies_by_lock = replies::per_lock(value, count).unwrap_or_default(),
            Ok(Err(refusal)) => return all(Ok(refusal)),
            Err(error) => return all(Err(error)),
        }
    }
    // The replies are in the order of the call, acquires first. They are returned in the order of `requests`.
    let (first, second) = replies_by_lock.split_at(number.min(replies_by_lock.len()));
    let (mut first, mut second) = (first.iter(), second.iter());
    let mut replies: Vec<_> = requests
        .iter()
        .map(|request| {
            let reply = match (request.is_acquire(), &barred) {
                (true, Some(error)) => return Err(error.clone()),
                (true, None) => first.next(),
                (false, _) => second.next(),
            };
            let body = reply.and_then(|reply| match request.is_acquire() {
                true => replies::acquired(reply).map(|body| body.map(ReplyBody::Acquired)),
                false => replies::released(reply).map(|body| body.map(ReplyBody::Released)),
            });
            match body {
                Some(Ok(body)) => Ok(Reply { sent: stamp, run: run.clone(), body }),
                Some(Err(text)) => match connection.redirection(&text) {
                    Some(refusal) => Ok(refused(refusal)),
                    None => Err(connection.refused(&text)),
                },
                None => Err(Failure::UnexpectedReply.into()),
            }
        })
        .collect();
    if replies.iter().flatten().any(Reply::is_grant)
        && let Err(error) = connection.confirm_grant(run, until).await
    {
        let is_grant = |reply: &&mut Result<Reply>| reply.as_ref().is_ok_and(Reply::is_grant);
        replies.iter_mut().filter(is_grant).for_each(|reply| *reply = Err(error.clone()));
    }
    replies
}
