//! The end of a claim.

use std::sync::Arc;

use leasehold_core::backend::{Claim, Delivery, ReleaseRequest};
use tokio::time::Instant;

use crate::backend::Inner;
use crate::errors::Failure;
use crate::queue::delete;
use crate::session::Session;
use crate::slot::Slot;

/// Deletes the nodes of a claim. Returns whether there was one.
pub(crate) async fn release(inner: &Inner, request: &ReleaseRequest, until: Instant) -> Result<bool, Failure> {
    let (claim, slot) = (&request.claim, Slot::of(&request.claim));
    let mut was_held = false;
    if request.delivery == Delivery::InDoubt {
        for session in slot.withdraw(claim) {
            was_held |= withdraw(inner, claim, &session, until).await?;
            slot.settled(&session);
        }
        // An acquire that was in flight may have found it.
        slot.has_no_node(claim);
        return Ok(was_held);
    }
    let Some(node) = slot.node() else { return Ok(false) };
    let deleted = match node.session.link(until).await {
        // Its end is no loss.
        Ok(link) => {
            slot.has_no_node(claim);
            let deleted = delete(&link, &node.path(), until).await;
            if !matches!(deleted, Ok(_) | Err(Failure::NoSession)) {
                slot.has_node(claim, node.clone());
            }
            deleted
        }
        Err(failure) => Err(failure),
    };
    was_held = match deleted {
        Err(Failure::NoSession) => {
            // The nodes end with it, now or soon.
            if !node.session.gone(until).await {
                return Err(Failure::TimedOut);
            }
            false
        }
        deleted => deleted?,
    };
    slot.has_no_node(claim);
    Ok(was_held)
}

/// Makes sure that no request of the claim in this session takes effect any more, and deletes its nodes.
async fn withdraw(inner: &Inner, claim: &Claim, session: &Arc<Session>, until: Instant) -> Result<bool, Failure> {
    let (lock, prefix) = (inner.shared.nodes.lock(claim.name()), Slot::of(claim).prefix());
    let Some((names, ..)) = session.settled(&lock, &prefix, until).await? else { return Ok(false) };
    if names.is_empty() {
        return Ok(false);
    }
    let link = session.link(until).await?;
    let mut was_held = false;
    for name in names {
        was_held |= delete(&link, &format!("{lock}/{name}"), until).await?;
    }
    Ok(was_held)
}
