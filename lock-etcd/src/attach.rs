//! Attaching the key of a claim to a session with a longer ttl.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::kit::{SessionKeeper, Unconfirmed};
use leasehold_core::backend::{Claim, CoreHandle};
use tokio::time::Instant;

use crate::connections::Connections;
use crate::errors::Failure;
use crate::inner::Inner;
use crate::pauses::Pauses;
use crate::sessions::Sessions;
use crate::slot::{ClaimKey, Slot};
use crate::transactions::{self, Attached, number_of};

/// Attaches the key of a claim to a session with a longer ttl. `None` if the key is gone.
pub(crate) async fn attach(
    inner: &Arc<Inner>,
    core: &CoreHandle,
    connections: &Arc<Connections>,
    claim: &Claim,
    key: &ClaimKey,
    ttl: Duration,
    until: Instant,
) -> Result<Option<ClaimKey>, Failure> {
    let slot = Slot::of(claim);
    let mut pauses = Pauses::default();
    loop {
        if Instant::now() >= until {
            return Err(Failure::TimedOut);
        }
        let keeper = inner.keeper(core);
        let session = match key.is_fixed {
            true => Sessions::own(&keeper, core, ttl, until).await?,
            false => inner.sessions.shared(&keeper, core, ttl, until).await?,
        };
        // The key must not be attached to a session that is about to end: a late copy of the request could do that,
        // too.
        let fresh = core.stamp().minus(ttl / SessionKeeper::AGE);
        match SessionKeeper::confirm(&session, fresh, number_of(key.revision), until).await {
            Ok(_) => {}
            Err(Unconfirmed::Gone) => {
                inner.sessions.forget(&session);
                pauses.wait(until).await;
                continue;
            }
            Err(Unconfirmed::Failed(error)) => return Err(Failure::Unknown(error)),
        }
        if !slot.begin(&session) {
            return Ok(None);
        }
        let entry = inner.entry(claim, &session, None);
        let sent = connections.send(until, |mut kv| {
            let txn = entry.attach(key.revision);
            async move { kv.txn(txn).await }
        });
        let reply = match slot.send(sent).await {
            Ok(reply) => reply,
            Err(Failure::NoLease) => {
                inner.sessions.forget(&session);
                pauses.wait(until).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        match transactions::attached(&reply, entry.lease.epoch)? {
            Attached::Done => {
                let attached = ClaimKey { session, ..key.clone() };
                slot.set_key(attached.clone());
                return Ok(Some(attached));
            }
            Attached::Gone => return Ok(None),
            // The epoch key has ended with its etcd lease.
            Attached::Epoch(epoch) if epoch < entry.lease.epoch => inner.sessions.forget(&session),
            Attached::Epoch(epoch) => session.note_epoch(epoch),
        }
    }
}
