//! Requests to several servers, whose replies arrive in any order.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use leasehold_core::Result;
use tokio::time::{Instant, timeout_at};

use crate::reply::PendingReply;

/// Requests without a reply, each with a number.
pub(super) struct Pending<T>(Vec<(usize, PendingReply<Result<T>>)>);

impl<T> Pending<T> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn push(&mut self, number: usize, reply: PendingReply<Result<T>>) {
        self.0.push((number, reply));
    }

    /// Adds a request that was sent, if it was.
    pub(super) fn extend(&mut self, number: usize, reply: Option<PendingReply<Result<T>>>) {
        self.0.extend(reply.map(|reply| (number, reply)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next reply. `None` if there are no more requests, or none replied before `until`.
    pub(super) async fn next(&mut self, until: Instant) -> Option<(usize, Option<Result<T>>)> {
        if self.0.is_empty() {
            return None;
        }
        let next = poll_fn(|cx| {
            for at in 0..self.0.len() {
                if let Poll::Ready(reply) = Pin::new(&mut self.0[at].1).poll(cx) {
                    return Poll::Ready((self.0.swap_remove(at).0, reply));
                }
            }
            Poll::Pending
        });
        timeout_at(until, next).await.ok()
    }
}
