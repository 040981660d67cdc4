//! Administration: inspect a lock, list locks, and break a lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, GetOptions, GetResponse, SortOrder, SortTarget, Txn, TxnOp};
use leasehold_core::admin::{Check, Listed, ListedName, Listing};
use leasehold_core::backend::Admin;
use leasehold_core::{FencingToken, LeaseInfo, LockInfo, LockName, Result};
use tokio::time::Instant;

use crate::backend::EtcdBackend;
use crate::connections::Connections;
use crate::errors::Failure;
use crate::keys::{QueueKey, range_end, read_value};
use crate::transactions::{Place, number_of, place};

/// A listing of many pages takes at most this many call bounds. Each of its requests has one.
const LIST_BOUNDS: u32 = 9;

/// The number of keys that one request reads. The server serves others between two requests.
const PAGE: i64 = 1_000;

/// Reads what is left of etcd leases. Many locks share one.
struct Leases {
    connections: Arc<Connections>,
    /// The end of the whole call.
    until: Instant,
    left: HashMap<i64, Duration>,
}

impl Leases {
    /// What is left at most, because the server counts in whole seconds. May be stale: a leader that was replaced and
    /// does not know it replies from memory. It is only shown.
    async fn left(&mut self, lease: i64) -> Result<Duration, Failure> {
        if let Some(left) = self.left.get(&lease) {
            return Ok(*left);
        }
        let until = self.connections.shared.until().min(self.until);
        let reply = self
            .connections
            .send_repeatable(until, move |client| async move { client.lease_client().time_to_live(lease, None).await });
        let reply = reply.await?;
        // A key outlives its lease by a moment.
        let seconds = u64::try_from(reply.ttl()).map_or(0, |left| left + 1);
        let granted = u64::try_from(reply.granted_ttl()).unwrap_or_default();
        let left = Duration::from_secs(if granted > 0 { seconds.min(granted) } else { seconds });
        self.left.insert(lease, left);
        Ok(left)
    }
}

/// A queue: its first key, and how many keys are behind it.
struct Queue {
    name: String,
    first: Place,
    waiters: u64,
    is_readable: bool,
}

impl EtcdBackend {
    /// Not stale: the read is linearizable.
    async fn get(
        &self,
        connections: &Arc<Connections>,
        key: &str,
        options: GetOptions,
        until: Instant,
    ) -> Result<GetResponse, Failure> {
        let key = key.to_owned();
        let reply = connections.send_repeatable(until, move |client| {
            let (key, options) = (key.clone(), options.clone());
            async move { client.kv_client().get(key, Some(options)).await }
        });
        reply.await
    }

    async fn try_inspect(&self, name: &LockName) -> Result<Option<LockInfo>, Failure> {
        let inner = &self.inner;
        let (connections, until) = (inner.caller().map_err(Failure::NotSent)?, inner.shared.until());
        let queue = inner.shared.keys.queue(name);
        let options = GetOptions::new()
            .with_range(range_end(&queue))
            .with_sort(SortTarget::Create, SortOrder::Ascend)
            .with_limit(1);
        let reply = self.get(&connections, &queue, options, until).await?;
        let Some(first) = reply.kvs().first().map(place) else { return Ok(None) };
        let waiters = u64::try_from(reply.count() - 1).unwrap_or_default();
        let mut leases = Leases { connections, until, left: HashMap::new() };
        state_of(&first, waiters, &mut leases).await.map(Some)
    }

    async fn try_list(&self, prefix: &str, limit: usize) -> Result<Listing, Failure> {
        let inner = &self.inner;
        let connections = inner.caller().map_err(Failure::NotSent)?;
        let until = Instant::now() + inner.shared.settings.timeout * LIST_BOUNDS;
        let limit = limit.min(Listing::MAX);
        let Some(begin) = inner.shared.keys.names_with(prefix) else { return Ok(Listing::default()) };
        let (mut from, end) = (begin.clone().into_bytes(), range_end(&begin));
        let mut queues: Vec<Queue> = Vec::new();
        loop {
            let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE);
            let from_text = String::from_utf8_lossy(&from).into_owned();
            // A server that does not reply at all ends the call after one bound.
            let reply = self.get(&connections, &from_text, options, inner.shared.until().min(until)).await?;
            for kv in reply.kvs() {
                if let Some(QueueKey { name, is_claim }) = inner.shared.keys.parse(kv.key()) {
                    add(&mut queues, name, is_claim, place(kv));
                }
            }
            match reply.kvs().last() {
                // The last queue may go on in the next page.
                Some(last) if reply.more() && queues.len() <= limit => {
                    from = last.key().to_vec();
                    from.push(0);
                }
                _ => break,
            }
        }
        let mut leases = Leases { connections, until, left: HashMap::new() };
        let (mut locks, mut unreadable) = (Vec::new(), Vec::new());
        for queue in queues.into_iter().take(limit) {
            let name =
                LockName::decode(&queue.name).map_or_else(|| ListedName::Cut(queue.name.clone()), ListedName::Whole);
            if queue.is_readable {
                let state = state_of(&queue.first, queue.waiters, &mut leases).await?;
                locks.push(Listed::new(name, state));
            } else {
                unreadable.push(name);
            }
        }
        Ok(Listing::new(locks, unreadable))
    }

    async fn try_break(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>, Failure> {
        let inner = &self.inner;
        let (connections, until) = (inner.caller().map_err(Failure::NotSent)?, inner.shared.until());
        let queue = inner.shared.keys.queue(name);
        let options = GetOptions::new()
            .with_range(range_end(&queue))
            .with_sort(SortTarget::Create, SortOrder::Ascend)
            .with_limit(2);
        let reply = self.get(&connections, &queue, options, until).await?;
        let mut places = reply.kvs().iter().map(place);
        let Some(first) = places.next() else { return Ok(None) };
        if read_value(&first.value).is_none() {
            return Err(Failure::other_format());
        }
        if number_of(first.revision).get() != token.get() {
            return Ok(None);
        }
        let raised = token.get() + 1;
        let mut deletes = vec![TxnOp::delete(first.key.clone(), None)];
        // The place behind it must get a token above the raised one. Its client requests another place.
        if let Some(next) = places.next().filter(|next| number_of(next.revision).get() == raised) {
            deletes.push(TxnOp::delete(next.key, None));
        }
        // The read above may be out of date by now, so the transaction compares.
        let is_current = Compare::create_revision(first.key, CompareOp::Equal, first.revision);
        let txn = Txn::new().when([is_current]).and_then(deletes);
        let reply = connections.send(until, |mut kv| {
            let txn = txn.clone();
            async move { kv.txn(txn).await }
        });
        Ok(reply.await?.succeeded().then(|| FencingToken::new(raised)))
    }
}

/// Adds a key to the queue of its name. Keys come in their own order, so those of a queue come together.
fn add(queues: &mut Vec<Queue>, name: &str, is_claim: bool, place: Place) {
    let is_readable = is_claim && read_value(&place.value).is_some();
    match queues.last_mut().filter(|queue| queue.name == name) {
        Some(queue) => {
            queue.waiters += 1;
            queue.is_readable &= is_readable;
            if place.revision < queue.first.revision {
                queue.first = place;
            }
        }
        None => queues.push(Queue { name: name.to_owned(), first: place, waiters: 0, is_readable }),
    }
}

async fn state_of(first: &Place, waiters: u64, leases: &mut Leases) -> Result<LockInfo, Failure> {
    let holder = read_value(&first.value).ok_or_else(Failure::other_format)?;
    let left = leases.left(first.lease).await?;
    let token = FencingToken::new(number_of(first.revision).get());
    Ok(LockInfo::new(Some(token), vec![LeaseInfo::new(token, left, holder)], Some(waiters)))
}

#[async_trait]
impl Admin for EtcdBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockInfo>> {
        self.try_inspect(name).await.map_err(Failure::without_effect)
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing> {
        self.try_list(prefix, limit).await.map_err(Failure::without_effect)
    }

    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>> {
        Ok(self.try_break(name, token).await?)
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        Ok(self.checks().await)
    }
}
