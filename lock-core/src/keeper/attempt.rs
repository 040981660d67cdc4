//! One acquire at the store, from before it is sent until its reply is taken.

use std::sync::Arc;

use super::LeaseKeeper;
use super::machines::disposal::{Ending, Why};
use super::machines::wait_queue::no_reply;
use crate::backend::{AcquireOutcome, AcquireRequest, Claim, Delivery};
use crate::error::{ErrorKind, Result};

/// An acquire to send.
pub(crate) struct Attempt {
    pub(super) request: AcquireRequest,
    /// In doubt if an earlier acquire of the claim has no reply.
    pub(super) delivery: Delivery,
}

/// Settles an attempt that ends without a reply, because it was dropped with its runtime or because the backend
/// panicked.
struct Unsettled {
    attempt: Attempt,
    open: bool,
    sent: bool,
    keeper: Arc<LeaseKeeper>,
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if self.open && self.sent {
            self.keeper.settle(&self.attempt, Err(no_reply()));
        } else if self.open {
            self.keeper.not_sent(&self.attempt.request.claim);
        }
    }
}

impl LeaseKeeper {
    /// One attempt at the store. If the future is dropped before its first poll, nothing was sent; if it is dropped
    /// later, the outcome is unknown. It may also never end, on a runtime that nothing drives any more. Whatever
    /// depends on it therefore has a timeout in the keeper's schedule.
    pub(crate) fn attempt(self: Arc<Self>, attempt: Attempt) -> impl Future<Output = ()> + Send + 'static {
        let mut unsettled = Unsettled { attempt, open: true, sent: false, keeper: self };
        async move {
            unsettled.sent = true;
            let Unsettled { attempt, keeper, .. } = &unsettled;
            let answer = keeper.backend.acquire(&attempt.request).await;
            unsettled.open = false;
            unsettled.keeper.settle(&unsettled.attempt, answer);
        }
    }

    /// Takes the reply of an attempt.
    fn settle(self: &Arc<Self>, attempt: &Attempt, answer: Result<AcquireOutcome>) {
        let Attempt { request: AcquireRequest { claim, ttl, .. }, delivery } = attempt;
        self.with_state(|state, effects| {
            if Self::queue_of(state, claim).is_some() {
                self.feed(state, effects, claim.name(), |queue, rules, now, out| {
                    queue.handle_acquire_reply(rules, answer, now, out)
                });
                return;
            }
            // The queue has given up this claim since: every acquire has left, or the attempt was overdue.
            self.call_ended(state, claim.owner());
            let delivery = match answer {
                Ok(AcquireOutcome::Granted(_) | AcquireOutcome::Queued { .. }) => *delivery,
                Err(error) if error.kind() == ErrorKind::Indeterminate => Delivery::InDoubt,
                Ok(AcquireOutcome::Contended { .. }) | Err(_) => return,
            };
            self.end(state, claim, Ending::now(Why::Withdraw, delivery, *ttl));
        });
    }

    /// An attempt was dropped before anything was sent: the next one may begin at once.
    fn not_sent(self: &Arc<Self>, claim: &Claim) {
        self.with_state(|state, effects| {
            if Self::queue_of(state, claim).is_some() {
                self.feed(state, effects, claim.name(), |queue, _, now, out| queue.handle_not_sent(now, out));
            } else {
                self.call_ended(state, claim.owner());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use crate::LockClient;
    use crate::backend::{LeaseKind, Mode, OnContention};
    use crate::defaults::{DEFAULT_TTL, DEFAULT_WAIT};
    use crate::keeper::{Entry, LeaseKeeper};
    use crate::memory::{MemoryBackend, MemoryStore};
    use crate::name::LockName;
    use crate::terms::Terms;

    const TERMS: Terms = Terms {
        mode: Mode::Exclusive,
        ttl: DEFAULT_TTL,
        kind: LeaseKind::Kept,
        max_hold: None,
        min_hold: None,
        holder: None,
    };

    /// An acquire that waits does not depend on the future that should have sent its first attempt.
    #[tokio::test]
    async fn an_attempt_that_was_never_polled_is_made_by_the_keeper() {
        let client = LockClient::new(MemoryBackend::new(&MemoryStore::default()));
        let (keeper, name): (&Arc<LeaseKeeper>, _) = (&client.keeper, LockName::new("job").unwrap());
        let entry = client.keeper.enter(&name, TERMS, OnContention::Queue, DEFAULT_WAIT).unwrap();
        let Entry::Queued(mut ticket, Some(attempt)) = entry else { panic!("nobody else is there") };
        drop(keeper.clone().attempt(attempt));
        let outcome = tokio::time::timeout(DEFAULT_WAIT / 4, poll_fn(|cx| ticket.poll_outcome(cx)));
        let guard = outcome.await.expect("the keeper makes the attempt").unwrap().unwrap();
        guard.release().await.unwrap();
    }

    /// Its first attempt has no deadline in the schedule: the caller waits for it.
    #[tokio::test]
    async fn an_uncontended_pair_schedules_nothing_but_its_lease() {
        let client = LockClient::new(MemoryBackend::new(&MemoryStore::default()));
        for pairs in 1..=3 {
            client.lock("job").acquire().await.unwrap().release().await.unwrap();
            let state = crate::sync::lock(&client.keeper.state);
            assert_eq!((state.schedule.inserted, state.schedule.next()), (pairs, None));
        }
    }

    /// Nothing was sent, so there is nothing to withdraw.
    #[tokio::test]
    async fn an_attempt_that_was_never_polled_leaves_nothing() {
        let client = LockClient::new(MemoryBackend::new(&MemoryStore::default()));
        let (keeper, name): (&Arc<LeaseKeeper>, _) = (&client.keeper, LockName::new("job").unwrap());
        let entry = client.keeper.enter(&name, TERMS, OnContention::Queue, DEFAULT_WAIT).unwrap();
        let Entry::Queued(ticket, Some(attempt)) = entry else { panic!("nobody else is there") };
        let attempt = keeper.clone().attempt(attempt);
        drop(ticket);
        drop(attempt);
        client.shutdown().await.unwrap();
        assert_eq!(client.stats().withdrawn, 0);
    }
}
