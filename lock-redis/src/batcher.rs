//! Acquires and releases on their way out. One that finds the connection idle goes at once, from its own future; those
//! that find it busy wait here together and go out in one script call, as a group commit does.
//!
//! The price of a script call is much the same for one lock and for several, so what fencing and fairness cost is gone
//! under load, and no call is delayed when there is none.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Mutex;

use leasehold_core::{Error, ErrorKind, Result};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::connection::Connection;
use crate::errors::Failure;
use crate::exchange::{Reply, Request, exchange};
use crate::manager::Inner;
use crate::reply::{Callers, PendingReply, ReplySender, reply};
use crate::shared::{Shared, lock};

/// How many requests go out together: beyond that nothing is gained, and the server stands still for others meanwhile.
const MAX_BATCH: usize = 64;

/// How many calls may be under way that send_batch what has waited: the server works on one, and with many callers the next
/// one and the answers to the last are on their way meanwhile.
const MAX_IN_FLIGHT: usize = 4;

/// How many requests a third call and any further one send_batch at least. Two small ones cost more than one that is twice as large.
const MIN_BATCH: usize = MAX_BATCH / 2;

/// How many requests may go out alone at a time. Below this number of callers waiting for each other gains nothing.
const MAX_UNBATCHED: usize = 2;

#[derive(Default)]
pub(crate) struct Batcher {
    state: Mutex<State>,
    /// A sender should look.
    wake: Notify,
    /// Something waits again, and its bound has to be kept.
    first_queued: Notify,
}

#[derive(Default)]
struct State {
    /// In the order of their bounds.
    queue: VecDeque<QueuedRequest>,
    /// Whether [`Batcher::fail_overdue`] looks after the queue.
    has_expiry_task: bool,
    /// Nobody sends any more.
    closed: bool,
    /// How many requests are under way alone.
    unbatched: usize,
    /// How many went out together the last time.
    last_batch: usize,
    /// How many calls are under way that send_batch what has waited, and how many requests are in them.
    batches_in_flight: usize,
    requests_in_flight: usize,
    /// How many senders are about to look at the queue: nobody has to be woken for it.
    checking_senders: usize,
}

/// How a request goes out.
enum Enqueued<'a> {
    SendNow(Unbatched<'a>, Request),
    Queued(PendingReply<Result<Reply>>),
}

struct QueuedRequest {
    request: Request,
    until: Instant,
    reply_to: ReplySender<Result<Reply>>,
}

impl Inner {
    /// Asks the server, and ends by `until`.
    pub(crate) async fn send_request(&self, request: Request, until: Instant) -> Result<Reply> {
        match self.batcher.enqueue(request, until) {
            // On the heap, so that the future of a caller who waits is small.
            Enqueued::SendNow(unbatched, request) => Box::pin(self.send_unbatched(request, until, unbatched)).await,
            Enqueued::Queued(reply) => {
                self.request_connection();
                // Whoever sends keeps to the bound, for all at once: a timer for each would cost more than the rest of this.
                reply.await.unwrap_or_else(|| Err(Failure::aborted().into()))
            }
        }
    }

    async fn send_unbatched(&self, request: Request, until: Instant, _unbatched: Unbatched<'_>) -> Result<Reply> {
        let connection = self.connection(until).await?;
        let mut replies = exchange(&self.shared, &connection, std::slice::from_ref(&request), until).await;
        replies.pop().unwrap_or_else(|| Err(Failure::UnexpectedReply.into()))
    }
}

impl State {
    /// Whether a call should leave. The second one waits until it is as large as the one that is under way, or until
    /// that one is back: else the first of many callers that were answered together would leave alone again.
    fn is_due(&self) -> bool {
        match self.batches_in_flight {
            _ if self.queue.is_empty() => false,
            0 => true,
            1 => self.queue.len() >= self.requests_in_flight,
            MAX_IN_FLIGHT.. => false,
            _ => self.queue.len() >= MIN_BATCH,
        }
    }

    /// Whether a sender has to be woken, who then looks.
    fn needs_sender(&mut self) -> bool {
        let needed = self.checking_senders == 0 && self.is_due();
        self.checking_senders += usize::from(needed);
        needed
    }
}

impl Batcher {
    /// Takes a request, unless it should leave alone.
    fn enqueue(&self, request: Request, until: Instant) -> Enqueued<'_> {
        let mut state = lock(&self.state);
        // Where many went out together, many will again: one that leaves before them costs as much as all of them.
        let few = state.last_batch <= MAX_UNBATCHED && state.unbatched < MAX_UNBATCHED;
        if few && state.batches_in_flight == 0 && state.queue.is_empty() {
            state.unbatched += 1;
            return Enqueued::SendNow(Unbatched(self), request);
        }
        let (reply_to, pending) = reply();
        if state.closed {
            reply_to.send(Err(shut_down()), &mut Callers::default());
            return Enqueued::Queued(pending);
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
        Enqueued::Queued(pending)
    }

    /// The batch that should leave now, and the in_flight that they are on: the oldest that can go together, which are
    /// releases, and acquires on the terms of the oldest one. The others keep their order. Letters whose sender has gone
    /// away are dropped: what was not sent has no effect.
    fn next(&self, shared: &Shared) -> Option<(Vec<QueuedRequest>, InFlight<'_>)> {
        let mut state = lock(&self.state);
        // A sender may also have been woken over the connection before.
        state.checking_senders = state.checking_senders.saturating_sub(1);
        if !state.is_due() {
            return None;
        }
        let mut batch: Vec<QueuedRequest> = Vec::with_capacity(state.queue.len().min(MAX_BATCH));
        let mut others = Vec::new();
        let mut first: Option<usize> = None;
        while batch.len() < MAX_BATCH && others.len() < MAX_BATCH {
            let Some(queued) = state.queue.pop_front() else { break };
            if queued.reply_to.is_abandoned() {
                continue;
            }
            if queued.request.is_acquire() {
                if first.is_some_and(|first| !batch[first].request.can_share_call(&queued.request, shared)) {
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

    /// Answers everything that waits with an error: it was not sent.
    pub(crate) fn fail_all(&self, error: &Error) {
        let batch = std::mem::take(&mut lock(&self.state).queue);
        let mut callers = Callers::default();
        for queued in batch {
            queued.reply_to.send(Err(error.clone()), &mut callers);
        }
    }

    /// Refuses everything, also what comes later.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.fail_all(&shut_down());
    }

    /// Answers what could not be sent within its bound. Never ends.
    pub(crate) async fn fail_overdue(&self) {
        loop {
            let now = Instant::now();
            let (late, next) = {
                let mut state = lock(&self.state);
                let late = state.queue.partition_point(|queued| queued.until <= now);
                let late: Vec<_> = state.queue.drain(..late).collect();
                let next = state.queue.front().map(|queued| queued.until);
                state.has_expiry_task = next.is_some();
                (late, next)
            };
            let mut callers = Callers::default();
            for queued in late {
                let text = "the request could not be sent within the bound (`timeout` in the URL)";
                queued.reply_to.send(Err(Error::new(ErrorKind::Unavailable, text)), &mut callers);
            }
            drop(callers);
            match next {
                Some(next) => sleep_until(next).await,
                None => self.first_queued.notified().await,
            }
        }
    }

    /// Sends what waits, call after call, over this connection. It never depends on a caller that is not polled. Never ends.
    pub(crate) async fn flush(&self, shared: &Shared, connection: &Connection) {
        // Each begins with a look.
        lock(&self.state).checking_senders = MAX_IN_FLIGHT;
        let sender = || self.send(shared, connection);
        const { assert!(MAX_IN_FLIGHT == 4, "one sender for each") };
        tokio::join!(sender(), sender(), sender(), sender());
    }

    async fn send(&self, shared: &Shared, connection: &Connection) {
        loop {
            // Whoever was just answered may ask again in his next turn, and goes along.
            tokio::task::yield_now().await;
            let Some((batch, _in_flight)) = self.next(shared) else {
                self.wake.notified().await;
                continue;
            };
            send_batch(shared, connection, batch).await;
        }
    }
}

fn shut_down() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection's runtime was shut down")
}

/// Sends batch together, and answers each within its own bound.
async fn send_batch(shared: &Shared, connection: &Connection, batch: Vec<QueuedRequest>) {
    let (requests, mut pending): (Vec<_>, VecDeque<_>) =
        batch.into_iter().map(|queued| (queued.request, (queued.until, queued.reply_to))).unzip();
    let mut call = pin!(exchange(shared, connection, &requests, Instant::now() + shared.bound()));
    let mut replies = loop {
        // Also when nobody is left: the call finds out about a silent connection.
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
    // They are woken now, and the next call leaves after their turn.
    tokio::task::yield_now().await;
}

/// A request that is under way alone.
struct Unbatched<'a>(&'a Batcher);

impl Drop for Unbatched<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).unbatched -= 1;
    }
}

/// A call that is under way with what has waited. Whoever sent it looks for the next one when it is back.
struct InFlight<'a> {
    batcher: &'a Batcher,
    requests: usize,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.batcher.state);
        state.batches_in_flight -= 1;
        state.requests_in_flight -= self.requests;
        state.checking_senders += 1;
    }
}

#[cfg(test)]
mod tests;
