//! Waiting for the turn of a claim, and watching its node while it holds.
//!
//! A waiter watches the node before its own. So a release wakes one client. If the node belonged to a holder that
//! released the lock, the waiter holds from then on (see [`hand_over`](crate::queue::hand_over)). If it is gone for
//! another reason, others may still be before the waiter, so it reads the queue again. A holder watches its own node,
//! unless the hold is a short one.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{Claim, CoreHandle, Event};
use tokio::time::Instant;
use zookeeper_client::EventType;

use crate::delayed::Next;
use crate::errors::Failure;
use crate::inner::Inner;
use crate::queue::{Position, delete, position};
use crate::slot::{Node, Slot, Stage};

/// The pause after an error of the server.
const PAUSE: Duration = Duration::from_millis(100);

/// How a watch has ended.
enum Watched {
    /// The node was deleted, or was not there.
    Gone,
    /// The data of the node were changed.
    Changed,
    /// The link has ended, or a request failed.
    Failed,
    /// The session has ended, which reports the loss.
    Ended,
}

/// Starts to wait for the turn of a claim, behind the node `before`.
pub(crate) fn wait(inner: &Arc<Inner>, core: &CoreHandle, claim: &Claim, node: &Node, before: String) {
    let task =
        core.keeper_runtime().spawn(wait_for_turn(inner.clone(), core.clone(), claim.clone(), node.clone(), before));
    Slot::of(claim).set_task(task.abort_handle());
}

async fn wait_for_turn(inner: Arc<Inner>, core: CoreHandle, claim: Claim, node: Node, before: String) {
    let mut before = Some(before);
    loop {
        if let Some(name) = before.take() {
            match watch(&inner, &node, &format!("{}/{name}", node.lock)).await {
                Watched::Gone => {}
                // Only a holder's release does this, so no other node is before the own one.
                Watched::Changed => {
                    granted(&inner, &core, &claim, &node);
                    return;
                }
                Watched::Failed => tokio::time::sleep(core.jitter(PAUSE / 10)).await,
                Watched::Ended => return,
            }
        }
        let position = match node.session.link(Instant::now() + node.session.ttl()).await {
            Ok(link) => position(&link, &node, inner.shared.until()).await,
            Err(failure) => Err(failure),
        };
        match position {
            Ok(Position::Behind(name)) => before = Some(name),
            Ok(Position::First) => {
                granted(&inner, &core, &claim, &node);
                return;
            }
            Ok(Position::Gone) => return gone(&core, &claim, &node),
            Err(Failure::NoSession) => return,
            Err(_) => tokio::time::sleep(core.jitter(PAUSE)).await,
        }
    }
}

/// The node is the first of its queue.
fn granted(inner: &Arc<Inner>, core: &CoreHandle, claim: &Claim, node: &Node) {
    let slot = Slot::of(claim);
    // This task ends by itself.
    slot.forget_task();
    // The server has sent this to the session, which lives. Its newest confirmation is one of the lease.
    let confirmation = node.confirmation();
    if slot.hold(node, Stage::HoldsAfterWait, confirmation) == Some(true) {
        let (owner, place, token) = (*claim.owner(), node.place(), node.token());
        core.event(Event::Granted { owner, place, token, confirmation: Some(confirmation) });
        begin_hold(inner, core, claim, node);
    }
}

/// Watches the node of a claim that holds the lock from now on, and ends a lease that is not renewed.
pub(crate) fn begin_hold(inner: &Arc<Inner>, core: &CoreHandle, claim: &Claim, node: &Node) {
    watch_own(inner, core, claim, node);
    if node.is_fixed() {
        let task = core.keeper_runtime().spawn(end_in_time(inner.clone(), core.clone(), claim.clone(), node.clone()));
        Slot::of(claim).set_task(task.abort_handle());
    }
}

/// Deletes the node of a lease that is not renewed when its ttl is over. Others may keep its session alive. If that
/// fails, it is tried again until the session has ended.
async fn end_in_time(inner: Arc<Inner>, core: CoreHandle, claim: Claim, node: Node) {
    let slot = Slot::of(&claim);
    loop {
        let Some(ends) = slot.node().filter(|known| known.is(&node)).and_then(|known| known.ends) else { return };
        let left = ends.since(core.stamp());
        if left.is_zero() {
            break;
        }
        tokio::time::sleep(left).await;
    }
    slot.forget_task();
    slot.forget_node(&claim);
    loop {
        let link = match node.session.link(Instant::now() + node.session.ttl()).await {
            Ok(link) => link,
            Err(Failure::NoSession) => return,
            Err(_) => continue,
        };
        if delete(&link, &node.path(), inner.shared.until()).await.is_ok() {
            return;
        }
        drop(link);
        tokio::time::sleep(core.jitter(PAUSE)).await;
    }
}

/// The node is not there any more.
fn gone(core: &CoreHandle, claim: &Claim, node: &Node) {
    let slot = Slot::of(claim);
    slot.forget_task();
    if slot.has(node) {
        slot.forget_node(claim);
        core.event(Event::Gone { owner: *claim.owner() });
    }
}

/// Watches the node of a lease, if it is held for longer than a moment.
fn watch_own(inner: &Arc<Inner>, core: &CoreHandle, claim: &Claim, node: &Node) {
    if inner.delayed.add(claim, node) {
        core.keeper_runtime().spawn(watch_delayed(inner.clone(), core.clone()));
    }
}

async fn watch_delayed(inner: Arc<Inner>, core: CoreHandle) {
    loop {
        match inner.delayed.next() {
            Some(Next::Due(claim, node)) => {
                core.keeper_runtime().spawn(watch_until_gone(inner.clone(), core.clone(), claim, node));
            }
            Some(Next::At(at)) => tokio::time::sleep_until(at).await,
            None => return,
        }
    }
}

async fn watch_until_gone(inner: Arc<Inner>, core: CoreHandle, claim: Claim, node: Node) {
    let path = node.path();
    while Slot::of(&claim).has(&node) {
        match watch(&inner, &node, &path).await {
            Watched::Ended => return,
            Watched::Failed => tokio::time::sleep(core.jitter(PAUSE / 10)).await,
            Watched::Gone => return gone(&core, &claim, &node),
            // Its own release, or somebody who writes by hand.
            Watched::Changed => {}
        }
    }
}

/// Watches a node until something happens to it.
async fn watch(inner: &Inner, node: &Node, path: &str) -> Watched {
    // As long as the session lives: its task connects again.
    let link = match node.session.link(Instant::now() + node.session.ttl()).await {
        Ok(link) => link,
        Err(Failure::NoSession) => return Watched::Ended,
        Err(_) => return Watched::Failed,
    };
    let closed = link.closed();
    // An old state is followed by its change, which the watch reports. An own node that is not shown is gone, and so is
    // one before it.
    let watched = link.call(|client| client.get_and_watch_data(path), inner.shared.until()).await;
    // The watch does not keep the link.
    drop(link);
    match watched {
        Ok((_, _, watcher)) => {
            tokio::select! {
                biased;
                () = closed => Watched::Failed,
                event = watcher.changed() => match event.event_type {
                    EventType::NodeDataChanged => Watched::Changed,
                    EventType::NodeDeleted => Watched::Gone,
                    // The session has ended, or its link.
                    _ => Watched::Failed,
                },
            }
        }
        Err(Failure::NoNode) => Watched::Gone,
        Err(Failure::NoSession) => Watched::Ended,
        Err(_) => Watched::Failed,
    }
}
