//! The end of a claim.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::kit::run_to_end;
use leasehold_core::backend::{Claim, Delivery, ReleaseRequest};
use tokio::time::Instant;

use crate::errors::Failure;
use crate::inner::Inner;
use crate::link::Link;
use crate::queue::{delete, hand_over};
use crate::session::Session;
use crate::slot::{Slot, Stage};

/// The pause before a deletion is repeated on another link.
const PAUSE: Duration = Duration::from_millis(20);

/// How a node is deleted.
#[derive(Clone, Copy)]
enum Deletion {
    /// The client behind it reads the queue.
    Plain,
    /// The node is that of a lease, and the client behind it holds from then on.
    HandOver,
}

/// Deletes the nodes of a claim. Returns whether there was one.
pub(crate) async fn release(inner: &Inner, request: &ReleaseRequest, until: Instant) -> Result<bool, Failure> {
    let was_held = delete_nodes(inner, request, until).await?;
    // A slow server may have replied to an earlier release after that gave up: the lease was not lost, although nothing
    // is left.
    Ok(Slot::of(&request.claim).take_deletion() || was_held)
}

async fn delete_nodes(inner: &Inner, request: &ReleaseRequest, until: Instant) -> Result<bool, Failure> {
    let (claim, slot) = (&request.claim, Slot::of(&request.claim));
    if request.delivery == Delivery::InDoubt {
        let mut was_held = false;
        for session in slot.withdraw(claim) {
            was_held |= withdraw(inner, claim, &session, until).await?;
            slot.settle(&session);
        }
        // An acquire that was in flight may have found it.
        slot.forget_node(claim);
        return Ok(was_held);
    }
    let Some(node) = slot.node() else { return Ok(false) };
    // First, so that its own end is not reported as a loss.
    slot.forget_node(claim);
    // Behind a claim that has waited, others mostly wait as well. Without them, a deletion costs less than the
    // transaction.
    let deletion = if node.stage == Stage::HoldsAfterWait { Deletion::HandOver } else { Deletion::Plain };
    let deleted = delete_own(claim, &node.session, &node.path(), deletion, until).await;
    if deleted.is_err() {
        slot.set_node(claim, node);
    }
    deleted
}

/// Makes sure that no request of the claim in this session takes effect any more, and deletes its nodes.
async fn withdraw(inner: &Inner, claim: &Claim, session: &Arc<Session>, until: Instant) -> Result<bool, Failure> {
    let (lock, prefix) = (inner.shared.nodes.lock(claim.name()), Slot::of(claim).prefix());
    let Some((names, ..)) = session.settled(&lock, &prefix, until).await? else { return Ok(false) };
    let mut was_held = false;
    for name in names {
        was_held |= delete_own(claim, session, &format!("{lock}/{name}"), Deletion::Plain, until).await?;
    }
    Ok(was_held)
}

/// Deletes a node of a claim. Returns whether it was there. No other claim can have a node of this name, so a deletion
/// whose link has broken is repeated on the next one. If that finds no node, the first deletion may have deleted it, or
/// an operator before that: the outcome is unknown.
async fn delete_own(
    claim: &Claim,
    session: &Session,
    path: &str,
    deletion: Deletion,
    until: Instant,
) -> Result<bool, Failure> {
    let mut may_have_deleted = false;
    loop {
        let deleted = match session.link(until).await {
            Ok(link) => {
                let sent = noted(claim.clone(), link.clone(), path.to_owned(), deletion, until + session.ttl());
                link.wait(run_to_end(session.core.keeper_runtime(), sent), until).await.flatten()
            }
            Err(failure) => Err(failure),
        };
        match deleted {
            Ok(false) if may_have_deleted => return Err(Failure::TimedOut),
            Ok(was_there) => return Ok(was_there),
            // The nodes end with it, now or soon.
            Err(Failure::NoSession) => {
                let is_known = session.gone(until).await && !may_have_deleted;
                return if is_known { Ok(false) } else { Err(Failure::TimedOut) };
            }
            Err(Failure::Disconnected(_)) if Instant::now() + PAUSE < until => {
                may_have_deleted = true;
                tokio::time::sleep(PAUSE).await;
            }
            Err(failure) if may_have_deleted => return Err(failure.in_doubt()),
            Err(failure) => return Err(failure),
        }
    }
}

/// Deletes a node, and notes it in the slot. It goes on when its release has given up, for as long as the session can
/// end it: its reply says that the lease was not lost, and the next release finds no node. On a path of 1.7 s, 636 of
/// 1,000 leases were lost without it, as it seemed.
async fn noted(
    claim: Claim,
    link: Arc<Link>,
    path: String,
    deletion: Deletion,
    until: Instant,
) -> Result<bool, Failure> {
    let deleted = match deletion {
        Deletion::Plain => delete(&link, &path, until).await,
        Deletion::HandOver => hand_over(&link, &path, until).await,
    };
    if let Ok(true) = deleted {
        Slot::of(&claim).note_deletion();
    }
    deleted
}
