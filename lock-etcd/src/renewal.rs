//! Renewals. Most are answered from the newest keep-alive of the session and from what the watch has delivered, without
//! a request.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{GetOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse};
use leasehold_core::FencingToken;
use leasehold_core::backend::kit::{SessionKeeper, SessionRenewals, Unconfirmed};
use leasehold_core::backend::{Claim, Confirmation, CoreHandle, Grant, RenewReplies, RenewReply, RenewRequest, Stamp};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::attach::attach;
use crate::connections::Connections;
use crate::errors::Failure;
use crate::inner::Inner;
use crate::keys::range_end;
use crate::mirror::Position;
use crate::session::Session;
use crate::slot::{ClaimKey, Slot};
use crate::transactions::{self, number_of};

/// Reading one claim takes so many operations of a transaction.
const READ_OPERATIONS: usize = 2;

/// A claim that is to be renewed.
struct Item {
    index: usize,
    request: RenewRequest,
    key: ClaimKey,
    position: Position,
}

/// Renews leases and places.
pub(crate) async fn renew(
    inner: &Arc<Inner>,
    core: &CoreHandle,
    connections: &Arc<Connections>,
    requests: &[RenewRequest],
    replies: &RenewReplies,
    until: Instant,
) {
    let begin = core.stamp();
    let mut items = Vec::with_capacity(requests.len());
    let mut unknown = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        let Some(key) = Slot::of(&request.claim).key() else {
            replies.put(index, RenewReply::Lost);
            continue;
        };
        // May be stale: the watch of a member that lags behind. A lease whose keep-alive is confirmed still has its
        // key, unless an operator has deleted the key, which the watch will report.
        let position = inner.watcher.position(request.claim.name(), request.claim.owner());
        SessionKeeper::refresh(&key.session, begin.minus(age_of(&key, position)), until);
        let item = Item { index, request: request.clone(), key, position };
        if position == Position::Unknown { unknown.push(item) } else { items.push(item) }
    }
    let call = Call { inner: inner.clone(), core: core.clone(), connections: connections.clone(), begin, until };
    let mut ready = SessionRenewals::default();
    call.reply(items, replies, &mut ready);
    let mut reads = JoinSet::new();
    let most_operations = &inner.shared.most_operations;
    loop {
        while !unknown.is_empty() {
            let count = unknown.len().min((most_operations.get() / READ_OPERATIONS).max(1));
            reads.spawn(read(inner.clone(), connections.clone(), unknown.drain(..count).collect(), until));
        }
        tokio::select! {
            Some(read) = reads.join_next() => match read {
                Ok((items, None)) => call.reply(items, replies, &mut ready),
                Ok((items, Some(Failure::TooManyOperations(_)))) if items.len() > 1 => {
                    most_operations.refused(READ_OPERATIONS * items.len());
                    unknown.extend(items);
                }
                Ok((items, Some(failure))) => {
                    let error = failure.without_effect();
                    for item in items {
                        replies.put(item.index, RenewReply::Unknown(error.clone()));
                    }
                }
                // The runtime shuts down.
                Err(_) => {}
            },
            true = ready.put_next(replies) => {}
            else => return,
        }
    }
}

/// One renew call.
#[derive(Clone)]
struct Call {
    inner: Arc<Inner>,
    core: CoreHandle,
    connections: Arc<Connections>,
    begin: Stamp,
    until: Instant,
}

/// How old a confirmation of a lease may be.
fn age_of(key: &ClaimKey, position: Position) -> Duration {
    match position {
        // A fixed lease is renewed once, to its whole ttl.
        Position::First if !key.is_fixed => key.session.keeper.newest(number_of(key.revision)).ttl / SessionKeeper::AGE,
        // A waiter wants to know the state of now: the watch may have been silent.
        _ => Duration::ZERO,
    }
}

impl Call {
    /// Replies to requests whose positions are known. What has to wait goes to `ready`.
    fn reply(&self, items: Vec<Item>, replies: &RenewReplies, ready: &mut SessionRenewals<Session, Item>) {
        for item in items {
            if item.position == Position::Gone {
                replies.put(item.index, lost(&self.inner, &item.request.claim));
                continue;
            }
            // The claim holds, and its key is still in a session with a shorter ttl.
            if item.position == Position::First && item.key.session.ttl < item.request.ttl {
                ready.begin_alone(self.clone().prolong(item));
                continue;
            }
            let since = self.begin.minus(age_of(&item.key, item.position));
            if let Some(confirmation) = item.key.session.keeper.confirmed_since(since, number_of(item.key.revision)) {
                replies.put(item.index, reply_of(&item.key, item.position, confirmation));
                continue;
            }
            ready.add(item.key.session.clone(), item);
        }
        let call = self.clone();
        ready.begin(move |item| {
            let call = call.clone();
            async move { (item.index, call.confirmed(&item.request.claim, &item.key, item.position).await) }
        });
    }

    /// Attaches the key of a lease to a session with the ttl that is wanted.
    async fn prolong(self, item: Item) -> (usize, RenewReply) {
        let Item { index, request, key, .. } = item;
        let claim = &request.claim;
        let attached = attach(&self.inner, &self.core, &self.connections, claim, &key, request.ttl, self.until);
        let reply = match attached.await {
            Ok(Some(key)) => self.confirmed(claim, &key, Position::First).await,
            Ok(None) => lost(&self.inner, claim),
            Err(failure) => RenewReply::Unknown(failure.into()),
        };
        (index, reply)
    }

    /// The reply to one request, as soon as its session is confirmed.
    async fn confirmed(&self, claim: &Claim, key: &ClaimKey, position: Position) -> RenewReply {
        let since = self.begin.minus(age_of(key, position));
        match SessionKeeper::confirm(&key.session, since, number_of(key.revision), self.until).await {
            Ok(confirmation) => reply_of(key, position, confirmation),
            Err(Unconfirmed::Gone) => {
                self.inner.sessions.forget(&key.session);
                lost(&self.inner, claim)
            }
            Err(Unconfirmed::Failed(error)) => RenewReply::Unknown(error.without_effect()),
        }
    }
}

fn reply_of(key: &ClaimKey, position: Position, confirmation: Confirmation) -> RenewReply {
    match position {
        Position::First if key.has_waited => {
            RenewReply::Granted(Grant::new(FencingToken::new(confirmation.place.get()), confirmation))
        }
        Position::First => RenewReply::Renewed(confirmation),
        _ => RenewReply::Waiting { confirmation, retry_after: confirmation.ttl },
    }
}

fn lost(inner: &Inner, claim: &Claim) -> RenewReply {
    inner.watcher.remove(claim);
    Slot::of(claim).forget_key();
    RenewReply::Lost
}

/// Reads the positions of claims that the watch has not delivered.
async fn read(
    inner: Arc<Inner>,
    connections: Arc<Connections>,
    mut items: Vec<Item>,
    until: Instant,
) -> (Vec<Item>, Option<Failure>) {
    let mut gets = Vec::with_capacity(2 * items.len());
    for item in &items {
        let queue = inner.shared.keys.queue(item.request.claim.name());
        let first = GetOptions::new()
            .with_range(range_end(&queue))
            .with_sort(SortTarget::Create, SortOrder::Ascend)
            .with_limit(1)
            .with_keys_only();
        gets.push(TxnOp::get(&*item.key.key, Some(GetOptions::new().with_keys_only())));
        gets.push(TxnOp::get(queue, Some(first)));
    }
    let txn = Txn::new().and_then(gets);
    // Not stale: a read is linearizable unless it asks not to be. A member that lags behind replies when it has caught
    // up, and one without a leader refuses. So a key that is missing here is gone.
    let reply = connections.send_repeatable(until, move |client| {
        let txn = txn.clone();
        async move { client.kv_client().txn(txn).await }
    });
    let reply = match reply.await {
        Ok(reply) => reply,
        Err(failure) => return (items, Some(failure)),
    };
    let ops = reply.op_responses();
    for (item, ops) in items.iter_mut().zip(ops.chunks(2)) {
        let place = |op: Option<&TxnOpResponse>| match op {
            Some(TxnOpResponse::Get(get)) => get.kvs().first().map(transactions::place),
            _ => None,
        };
        let (own, first) = (place(ops.first()), place(ops.get(1)));
        let Some(own) = own.filter(|own| own.revision == item.key.revision) else {
            item.position = Position::Gone;
            continue;
        };
        item.position = match first {
            Some(first) if first.revision == own.revision => Position::First,
            _ => Position::Behind,
        };
        // A request to attach it to another session had no reply.
        let slot = Slot::of(&item.request.claim);
        if let Some(session) = slot.session_with(own.lease).filter(|session| !Arc::ptr_eq(session, &item.key.session)) {
            item.key.session = session;
            slot.set_key(item.key.clone());
        }
    }
    (items, None)
}
