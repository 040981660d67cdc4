//! The end of a claim.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold_core::backend::{Claim, Delivery, ReleaseRequest};
use tokio::time::Instant;

use crate::connections::Connections;
use crate::errors::Failure;
use crate::inner::Inner;
use crate::session::Session;
use crate::slot::Slot;
use crate::transactions;

/// Deletes the key of a claim. Returns whether there was one.
pub(crate) async fn release(inner: &Arc<Inner>, request: &ReleaseRequest) -> Result<bool, Failure> {
    let (claim, until) = (&request.claim, inner.shared.until());
    let core = inner.shared.core.core().map_err(Failure::NotSent)?;
    let connections = inner.caller().map_err(Failure::NotSent)?;
    let slot = Slot::of(claim);
    // First, so that its own end is not reported as a loss.
    inner.watcher.remove(claim);
    // Before anything is sent: an acquire that is still running must create no key after the withdrawal.
    if request.delivery == Delivery::InDoubt {
        slot.withdraw();
    }
    let sessions = slot.sessions();
    let key = inner.key(claim);
    let mut was_held = false;
    let mut ended = sessions.is_empty();
    if request.delivery == Delivery::InDoubt {
        for session in &sessions {
            match slot.send(withdraw(inner, &connections, claim, &key, session, until)).await {
                Ok(deleted) => was_held |= deleted,
                // The session has ended, and with it everything that was attached to it.
                Err(Failure::NoLease) => continue,
                Err(failure) => return Err(failure),
            }
            ended = true;
        }
    }
    if !ended {
        was_held = slot.send(delete(inner, &connections, claim, key, until)).await?;
    }
    if let Some(of_claim) = slot.key().filter(|of_claim| of_claim.is_fixed) {
        inner.revoke(core, &of_claim.session);
    }
    slot.forget_key();
    // A slow server may have replied to an earlier release after that gave up: the lease was not lost, although nothing
    // is left.
    Ok(slot.take_deletion() || was_held)
}

/// Deletes the key of a claim. Returns whether there was one.
async fn delete(
    inner: &Inner,
    connections: &Arc<Connections>,
    claim: &Claim,
    key: String,
    until: Instant,
) -> Result<bool, Failure> {
    let of_claim = Slot::of(claim).key().filter(|_| inner.shared.members.are_several());
    let Some(of_claim) = of_claim else {
        let deleted = connections.send(until, |mut kv| {
            let (key, claim) = (key.clone(), claim.clone());
            async move {
                let reply = kv.delete(key, None).await?;
                if reply.deleted() > 0 {
                    Slot::of(&claim).note_deletion();
                }
                Ok(reply)
            }
        });
        return Ok(deleted.await?.deleted() > 0);
    };
    // A member that is silent delays this only until the next one is asked as well. Its late request deletes nothing
    // else: the next claim may have the same key, but with another create revision.
    let sent = Arc::new(AtomicUsize::new(0));
    let (count, claim) = (sent.clone(), claim.clone());
    let deleted = connections.send_repeatable(until, move |client| {
        count.fetch_add(1, Ordering::Relaxed);
        let (count, claim, txn) = (count.clone(), claim.clone(), transactions::delete(&key, of_claim.revision));
        async move {
            let reply = client.kv_client().txn(txn).await?;
            if reply.succeeded() {
                Slot::of(&claim).note_deletion();
            }
            if !reply.succeeded() && count.load(Ordering::Relaxed) > 1 {
                // Another request may have deleted it. Its reply says so, or the outcome is unknown when the time is
                // over.
                std::future::pending::<()>().await;
            }
            Ok(reply)
        }
    });
    let reply = match deleted.await {
        // One member got the request, and no other one could be connected to.
        Err(Failure::NotSent(_)) if sent.load(Ordering::Relaxed) > 0 => return Err(Failure::TimedOut),
        reply => reply?,
    };
    match reply.succeeded() {
        true => Ok(true),
        false if sent.load(Ordering::Relaxed) == 1 => Ok(false),
        // One of the others may have deleted it, and nobody knows whether it was still there.
        false => Err(Failure::TimedOut),
    }
}

/// Makes sure that no request of this session that was sent before takes effect any more.
async fn withdraw(
    inner: &Inner,
    connections: &Arc<Connections>,
    claim: &Claim,
    key: &str,
    session: &Session,
    until: Instant,
) -> Result<bool, Failure> {
    let epoch_key = inner.shared.keys.epoch(session.id);
    let reply = connections.send(until, |mut kv| {
        let (txn, claim) = (transactions::withdraw(key, &epoch_key, session.id), claim.clone());
        async move {
            let reply = kv.txn(txn).await?;
            if let Ok((_, true)) = transactions::withdrawn(&reply) {
                Slot::of(&claim).note_deletion();
            }
            Ok(reply)
        }
    });
    let (epoch, deleted) = transactions::withdrawn(&reply.await?)?;
    session.note_epoch(epoch);
    Ok(deleted)
}
