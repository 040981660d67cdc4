//! Renewals. Leases of one session share a write. A place is looked up in its queue, because its watch may have been
//! silent.

use std::sync::Arc;

use leasehold_core::backend::kit::{SessionKeeper, SessionRenewals, Unconfirmed};
use leasehold_core::backend::{
    Confirmation, CoreHandle, Grant, PlaceNumber, RenewReplies, RenewReply, RenewRequest, Stamp,
};
use tokio::time::Instant;

use crate::acquire::of_place;
use crate::errors::Failure;
use crate::inner::Inner;
use crate::queue::{Position, position};
use crate::slot::{Node, Slot, Stage};
use crate::turn;

/// One renew call.
#[derive(Clone)]
struct Call {
    inner: Arc<Inner>,
    core: CoreHandle,
    begin: Stamp,
    until: Instant,
}

/// A lease or place that is to be renewed.
struct Item {
    index: usize,
    request: RenewRequest,
    node: Node,
}

/// Renews leases and places.
pub(crate) async fn renew(
    inner: &Arc<Inner>,
    core: &CoreHandle,
    requests: &[RenewRequest],
    replies: &RenewReplies,
    until: Instant,
) {
    let call = Call { inner: inner.clone(), core: core.clone(), begin: core.stamp(), until };
    let mut ready = SessionRenewals::default();
    for (index, request) in requests.iter().enumerate() {
        let Some(node) = Slot::of(&request.claim).node() else {
            replies.put(index, RenewReply::Lost);
            continue;
        };
        let since = call.since(&node);
        SessionKeeper::refresh(&node.session, since, until);
        let item = Item { index, request: request.clone(), node };
        // Each place has to look at its queue. The leases of a session share one confirmation.
        if item.node.stage == Stage::Waits {
            let call = call.clone();
            ready.begin_alone(async move { (item.index, call.place(&item).await) });
        } else if item.node.confirmation().sent >= since {
            replies.put(index, reply_of(&item.node));
        } else {
            ready.add(item.node.session.clone(), item);
        }
    }
    ready.begin(move |item: Item| {
        let call = call.clone();
        async move { (item.index, call.lease(&item).await) }
    });
    while ready.put_next(replies).await {}
}

impl Call {
    /// How old a confirmation may be.
    fn since(&self, node: &Node) -> Stamp {
        match node.is_fixed() {
            // It is renewed once, to its whole ttl.
            true => self.begin,
            false => self.begin.minus(node.session.ttl() / SessionKeeper::AGE),
        }
    }

    async fn confirm(&self, node: &Node) -> Result<Confirmation, Unconfirmed> {
        SessionKeeper::confirm(&node.session, self.since(node), PlaceNumber::NONE, self.until).await
    }

    async fn lease(&self, item: &Item) -> RenewReply {
        match self.confirm(&item.node).await {
            Ok(_) => {
                let node = &item.node;
                match Slot::of(&item.request.claim).hold(node, node.stage, node.confirmation()) {
                    Some(_) => reply_of(node),
                    None => RenewReply::Lost,
                }
            }
            Err(Unconfirmed::Gone) => self.lost(item),
            Err(Unconfirmed::Failed(error)) => RenewReply::Unknown(error.without_effect()),
        }
    }

    async fn place(&self, item: &Item) -> RenewReply {
        let link = match item.node.session.link(self.until).await {
            Ok(link) => link,
            Err(failure) => return RenewReply::Unknown(failure.without_effect()),
        };
        let position = position(&link, &item.node, self.until).await;
        drop(link);
        let claim = &item.request.claim;
        match position {
            Ok(Position::Gone) => return self.lost(item),
            Ok(Position::First) => {
                let stage = Stage::HoldsAfterWait;
                let Some(is_new) = Slot::of(claim).hold(&item.node, stage, item.node.confirmation()) else {
                    return RenewReply::Lost;
                };
                // The read has found the grant before the task that watches the queue did.
                if is_new {
                    turn::begin_hold(&self.inner, &self.core, claim, &item.node);
                }
                let node = Node { stage, ..item.node.clone() };
                return self.lease(&Item { index: item.index, request: item.request.clone(), node }).await;
            }
            Ok(Position::Behind(_)) => {}
            Err(Failure::NoSession) => return self.lost(item),
            Err(failure) => return RenewReply::Unknown(failure.without_effect()),
        }
        match self.confirm(&item.node).await {
            Ok(_) => {
                let confirmation = of_place(item.node.confirmation(), self.begin);
                RenewReply::Waiting { confirmation, retry_after: confirmation.ttl }
            }
            Err(Unconfirmed::Gone) => self.lost(item),
            Err(Unconfirmed::Failed(error)) => RenewReply::Unknown(error.without_effect()),
        }
    }

    fn lost(&self, item: &Item) -> RenewReply {
        if item.node.session.has_ended() {
            self.inner.sessions.forget(&item.node.session);
        }
        Slot::of(&item.request.claim).forget_node(&item.request.claim);
        RenewReply::Lost
    }
}

fn reply_of(node: &Node) -> RenewReply {
    match node.stage {
        Stage::HoldsAfterWait => RenewReply::Granted(Grant::new(node.token(), node.confirmation())),
        Stage::Holds | Stage::Waits => RenewReply::Renewed(node.confirmation()),
    }
}
