//! Batches acquires and releases. A request that finds the connection idle is sent at once, from the caller's own
//! future. Requests that find it busy wait here and share a script call, as in a group commit.
//!
//! A script call costs about the same for one lock and for several. So batching hides the cost of fencing and fairness
//! under load, and delays no call without load.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard};

use leasehold_core::backend::kit::lock;
use leasehold_core::{Error, ErrorKind, Result};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::connection::Connection;
use crate::errors::Failure;
use crate::manager::Inner;
use crate::protocol::Protocol;
use crate::reply::{Callers, PendingReply, ReplySender, reply};
use crate::shared::Shared;

/// The most requests in one call. Larger calls gain nothing, and the server serves nobody else meanwhile.
const MAX_BATCH: usize = 64;

/// The most batches in flight. The server works on one batch, while the next one and the replies to the last one are on
/// their way.
const MAX_IN_FLIGHT: usize = 4;

/// The smallest size of a third or later batch. Two small batches cost more than one of twice the size.
const MIN_BATCH: usize = MAX_BATCH / 2;

/// How many requests may be sent unbatched at a time. With fewer callers than this, waiting for each other gains
/// nothing.
const MAX_UNBATCHED: usize = 2;

pub(crate) struct Batcher<P: Protocol = Shared> {
    state: Mutex<State<P>>,
    /// Wakes a sender.
    wake: Notify,
    /// Wakes [`Batcher::fail_overdue`] when the queue is no longer empty.
    first_queued: Notify,
}

struct State<P: Protocol> {
    queue: VecDeque<QueuedRequest<P>>,
    /// Whether [`Batcher::fail_overdue`] is watching the deadlines of the queue.
    has_expiry_task: bool,
    /// The runtime was shut down: nothing is sent any more.
    closed: bool,
    /// Unbatched requests in flight.
    unbatched: usize,
    /// The size of the last batch.
    last_batch: usize,
    /// Batches in flight, and the requests in them.
    batches_in_flight: usize,
    requests_in_flight: usize,
    /// Senders that are about to check the queue. While there is one, none has to be woken.
    checking_senders: usize,
}

/// The result of [`Batcher::enqueue`].
enum Enqueued<'a, P: Protocol> {
    SendNow(Unbatched<'a, P>, P::Request),
    Queued(PendingReply<Result<P::Reply>>),
}

struct QueuedRequest<P: Protocol> {
    request: P::Request,
    until: Instant,
    reply_to: ReplySender<Result<P::Reply>>,
}

impl<P: Protocol> Inner<P> {
    /// Sends a request and waits for its reply until `until`.
    pub(crate) async fn send_request(&self, request: P::Request, until: Instant) -> Result<P::Reply> {
        match self.batcher.enqueue(request, until) {
            // Boxed, to keep the future of a waiting caller small.
            Enqueued::SendNow(unbatched, request) => Box::pin(self.send_unbatched(request, until, unbatched)).await,
            Enqueued::Queued(reply) => {
                self.request_connection();
                // The sender enforces the bound for all. A timer per caller would cost more than the rest of this.
                reply.await.unwrap_or_else(|| Err(Failure::aborted().into()))
            }
        }
    }

    /// Queues a request if there is a connection. Its reply does not depend on the caller being polled.
    pub(crate) fn queue(&self, request: P::Request, until: Instant) -> Option<PendingReply<Result<P::Reply>>> {
        self.is_connected().then(|| self.batcher.queue(request, until))
    }

    async fn send_unbatched(
        &self,
        request: P::Request,
        until: Instant,
        _unbatched: Unbatched<'_, P>,
    ) -> Result<P::Reply> {
        let connection = self.connection(until).await?;
        let mut replies = P::exchange(&connection, std::slice::from_ref(&request), until).await;
        replies.pop().unwrap_or_else(|| Err(Failure::UnexpectedReply.into()))
    }
}

impl<P: Protocol> State<P> {
    /// Whether a batch should be sent now. A second batch waits until it is as large as the one in flight, or until
    /// that one returns. Otherwise the first of many callers that got their replies together would be sent alone again.
    fn is_due(&self) -> bool {
        match self.batches_in_flight {
            _ if self.queue.is_empty() => false,
            0 => true,
            1 => self.queue.len() >= self.requests_in_flight,
            MAX_IN_FLIGHT.. => false,
            _ => self.queue.len() >= MIN_BATCH,
        }
    }

    /// Whether to wake a sender, which then checks the queue.
    fn needs_sender(&mut self) -> bool {
        let needed = self.checking_senders == 0 && self.is_due();
        self.checking_senders += usize::from(needed);
        needed
    }
}

impl<P: Protocol> Default for Batcher<P> {
    fn default() -> Self {
        let state = State {
            queue: VecDeque::new(),
            has_expiry_task: false,
            closed: false,
            unbatched: 0,
            last_batch: 0,
            batches_in_flight: 0,
            requests_in_flight: 0,
            checking_senders: 0,
        };
        Self { state: Mutex::new(state), wake: Notify::new(), first_queued: Notify::new() }
    }
}

impl<P: Protocol> Batcher<P> {
    /// Queues a request, unless it should be sent at once.
    fn enqueue(&self, request: P::Request, until: Instant) -> Enqueued<'_, P> {
        let mut state = lock(&self.state);
        // After a large batch, expect another one. A request that is sent before it costs as much as the whole batch.
        let few = state.last_batch <= MAX_UNBATCHED && state.unbatched < MAX_UNBATCHED;
        if few && state.batches_in_flight == 0 && state.queue.is_empty() {
            state.unbatched += 1;
            return Enqueued::SendNow(Unbatched(self), request);
        }
        Enqueued::Queued(self.push(state, request, until))
    }

    /// Queues a request, whose reply does not depend on the caller being polled.
    fn queue(&self, request: P::Request, until: Instant) -> PendingReply<Result<P::Reply>> {
        self.push(lock(&self.state), request, until)
    }

    fn push(
        &self,
        mut state: MutexGuard<'_, State<P>>,
        request: P::Request,
        until: Instant,
    ) -> PendingReply<Result<P::Reply>> {
        let (reply_to, pending) = reply();
        if state.closed {
            reply_to.send(Err(shut_down()), &mut Callers::default());
            return pending;
        }
        state.queue.push_back(QueuedRequest { request, until, reply_to });
        let (needs_sender, is_first) = (state.needs_sender(), !std::mem::replace(&mut state.has_expiry_task, true));
        drop(state);
        if needs_sender {
            self.wake.notify_one();
        }
        if is_first {
            self.first_queued.notify_one();
        }
        pending
    }

    /// Takes the next batch from the queue: the oldest requests that can share a call. These are releases, and acquires
    /// with the options of the oldest acquire. The others keep their order. Drops requests whose caller is gone: an
    /// unsent request has no effect.
    fn next(&self, protocol: &P) -> Option<(Vec<QueuedRequest<P>>, InFlight<'_, P>)> {
        let mut state = lock(&self.state);
        // A sender may also have been woken on an earlier connection.
        state.checking_senders = state.checking_senders.saturating_sub(1);
        if !state.is_due() {
            return None;
        }
        let mut batch: Vec<QueuedRequest<P>> = Vec::with_capacity(state.queue.len().min(MAX_BATCH));
        let mut others = Vec::new();
        let mut first: Option<usize> = None;
        // `others` has a bound as well. Otherwise each batch would scan a long queue of acquires with other options.
        while batch.len() < MAX_BATCH && others.len() < MAX_BATCH {
            let Some(queued) = state.queue.pop_front() else { break };
            if queued.reply_to.is_abandoned() {
                continue;
            }
            if P::has_options(&queued.request) {
                if first.is_some_and(|first| !protocol.can_share_call(&batch[first].request, &queued.request)) {
                    others.push(queued);
                    continue;
                }
                first.get_or_insert(batch.len());
            }
            batch.push(queued);
        }
        for queued in others.into_iter().rev() {
            state.queue.push_front(queued);
        }
        state.batches_in_flight += 1;
        state.requests_in_flight += batch.len();
        state.last_batch = batch.len();
        let in_flight = InFlight { batcher: self, requests: batch.len() };
        if state.needs_sender() {
            self.wake.notify_one();
        }
        Some((batch, in_flight))
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.state).queue.is_empty()
    }

    /// Fails all queued requests. They were not sent.
    pub(crate) fn fail_all(&self, error: &Error) {
        let batch = std::mem::take(&mut lock(&self.state).queue);
        let mut callers = Callers::default();
        for queued in batch {
            queued.reply_to.send(Err(error.clone()), &mut callers);
        }
    }

    /// Fails all queued requests, and all later ones.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.fail_all(&shut_down());
    }

    /// Fails queued requests whose deadline has passed. Never returns.
    pub(crate) async fn fail_overdue(&self) {
        loop {
            let now = Instant::now();
            let (late, next) = {
                let mut state = lock(&self.state);
                // Requests of different kinds have different bounds, so the queue is in no order of deadlines.
                let queued = std::mem::take(&mut state.queue).into_iter();
                let (late, queue): (Vec<_>, Vec<_>) = queued.partition(|queued| queued.until <= now);
                state.queue = queue.into();
                let next = state.queue.iter().map(|queued| queued.until).min();
                state.has_expiry_task = next.is_some();
                (late, next)
            };
            let mut callers = Callers::default();
            for queued in late {
                let text = "the request could not be sent within `timeout` of the URL";
                queued.reply_to.send(Err(Error::new(ErrorKind::Unavailable, text)), &mut callers);
            }
            drop(callers);
            match next {
                Some(next) => sleep_until(next).await,
                None => self.first_queued.notified().await,
            }
        }
    }

    /// Sends batches over this connection. Progress never depends on a caller being polled. Never returns.
    pub(crate) async fn flush(&self, connection: &Connection<P>) {
        // Each sender begins by checking the queue.
        lock(&self.state).checking_senders = MAX_IN_FLIGHT;
        let sender = || self.send(connection);
        const { assert!(MAX_IN_FLIGHT == 4, "one sender for each") };
        tokio::join!(sender(), sender(), sender(), sender());
    }

    async fn send(&self, connection: &Connection<P>) {
        loop {
            // A caller that has just got its reply may enqueue again when it runs next, and then joins this batch.
            tokio::task::yield_now().await;
            if connection.is_idle() && !self.is_empty() {
                // The test has half of this. The requests that wait then have the other half for a new connection.
                connection.test(Instant::now() + connection.protocol().endpoint().request_timeout).await;
                if connection.is_closed() {
                    // The requests stay in the queue, for the next connection.
                    return std::future::pending().await;
                }
            }
            let Some((batch, _in_flight)) = self.next(connection.protocol()) else {
                self.wake.notified().await;
                continue;
            };
            send_batch(connection, batch).await;
        }
    }
}

fn shut_down() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection's runtime was shut down")
}

/// Sends a batch, and replies to each request within its own bound.
async fn send_batch<P: Protocol>(connection: &Connection<P>, batch: Vec<QueuedRequest<P>>) {
    let (requests, mut pending): (Vec<_>, VecDeque<_>) =
        batch.into_iter().map(|queued| (queued.request, (queued.until, queued.reply_to))).unzip();
    let until = Instant::now() + connection.protocol().endpoint().timeout;
    let mut call = pin!(P::exchange(connection, &requests, until));
    let mut replies = loop {
        // Even if no caller is left, the call detects a silent connection.
        let Some(&(first, _)) = pending.front() else { break call.await };
        tokio::select! {
            biased;
            replies = &mut call => break replies,
            () = sleep_until(first) => {
                if let Some((_, reply_to)) = pending.pop_front() {
                    reply_to.send(Err(Failure::TimedOut.into()), &mut Callers::default());
                }
            }
        }
    };
    let replies = replies.drain(requests.len() - pending.len()..);
    let mut callers = Callers::default();
    for ((_, reply_to), reply) in pending.into_iter().zip(replies) {
        reply_to.send(reply, &mut callers);
    }
    callers.wake_together();
    // Lets the woken callers run before the next batch is sent.
    tokio::task::yield_now().await;
}

/// An unbatched request in flight.
struct Unbatched<'a, P: Protocol>(&'a Batcher<P>);

impl<P: Protocol> Drop for Unbatched<'_, P> {
    fn drop(&mut self) {
        lock(&self.0.state).unbatched -= 1;
    }
}

/// A batch in flight. When it returns, its sender checks the queue again.
struct InFlight<'a, P: Protocol> {
    batcher: &'a Batcher<P>,
    requests: usize,
}

impl<P: Protocol> Drop for InFlight<'_, P> {
    fn drop(&mut self) {
        let mut state = lock(&self.batcher.state);
        state.batches_in_flight -= 1;
        state.requests_in_flight -= self.requests;
        state.checking_senders += 1;
    }
}

#[cfg(test)]
mod tests;
