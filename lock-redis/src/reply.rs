//! The channel on which a waiting caller gets its reply.
//!
//! The replies of a batch arrive at once. If each caller is woken on its own, tokio notifies other workers in the
//! middle of it, and these contend for the same locks, which costs several context switches per call. So the wakers of
//! the callers are collected and woken together, at the point where the runtime polls for I/O.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use leasehold_core::backend::kit::lock;

/// Creates the two ends of a reply.
pub(crate) fn reply<T>() -> (ReplySender<T>, PendingReply<T>) {
    let state = Arc::new(Mutex::new(State::Awaited(None)));
    (ReplySender(state.clone()), PendingReply(state))
}

enum State<T> {
    Awaited(Option<Waker>),
    Sent(T),
    /// The sender was dropped without a reply, or the reply was taken.
    Closed,
}

/// The sender's end. Dropping it completes the caller without a reply.
pub(crate) struct ReplySender<T>(Arc<Mutex<State<T>>>);

/// The caller's end.
pub(crate) struct PendingReply<T>(Arc<Mutex<State<T>>>);

impl<T> ReplySender<T> {
    /// Whether the caller was dropped.
    pub(crate) fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Stores the reply. The waker of the caller is added to `callers`.
    pub(crate) fn send(self, reply: T, callers: &mut Callers) {
        callers.0.extend(self.settle(State::Sent(reply)));
    }

    fn settle(&self, settled: State<T>) -> Option<Waker> {
        let mut state = lock(&self.0);
        if !matches!(*state, State::Awaited(_)) {
            return None;
        }
        match std::mem::replace(&mut *state, settled) {
            State::Awaited(waker) => waker,
            _ => None,
        }
    }
}

impl<T> Drop for ReplySender<T> {
    fn drop(&mut self) {
        if let Some(waker) = self.settle(State::Closed) {
            waker.wake();
        }
    }
}

impl<T> Future for PendingReply<T> {
    /// `None` if the sender was dropped.
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = lock(&self.0);
        match &mut *state {
            State::Awaited(Some(waker)) => waker.clone_from(cx.waker()),
            State::Awaited(none) => *none = Some(cx.waker().clone()),
            _ => {
                return Poll::Ready(match std::mem::replace(&mut *state, State::Closed) {
                    State::Sent(reply) => Some(reply),
                    _ => None,
                });
            }
        }
        Poll::Pending
    }
}

/// The wakers of callers whose replies have arrived. Dropping it wakes them.
#[derive(Default)]
pub(crate) struct Callers(Vec<Waker>);

impl Callers {
    /// Wakes all callers together, after the worker of the calling runtime has next polled for I/O.
    pub(crate) fn wake_together(self) {
        if !self.0.is_empty() {
            let all = Waker::from(Arc::new(All(Mutex::new(self))));
            // tokio wakes a yielding task at that point. This passes the callers' wakers in place of its own. Outside a
            // runtime, they are woken at once.
            let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&all));
        }
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

/// Several callers as one waker.
struct All(Mutex<Callers>);

impl Wake for All {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let callers = std::mem::take(&mut *lock(&self.0));
        drop(callers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reply_reaches_its_caller() {
        let (sender, pending) = reply();
        let caller = tokio::spawn(pending);
        tokio::task::yield_now().await;
        let mut callers = Callers::default();
        sender.send(7, &mut callers);
        assert_eq!(callers.0.len(), 1, "the caller waits");
        callers.wake_together();
        assert_eq!(caller.await.unwrap(), Some(7));
    }

    #[tokio::test]
    async fn a_reply_that_is_there_needs_no_waking() {
        let (sender, pending) = reply();
        let mut callers = Callers::default();
        sender.send(7, &mut callers);
        assert!(callers.0.is_empty());
        assert_eq!(pending.await, Some(7));
    }

    #[tokio::test]
    async fn a_sender_that_goes_lets_its_caller_go_on() {
        let (sender, pending) = reply::<u8>();
        let caller = tokio::spawn(pending);
        tokio::task::yield_now().await;
        drop(sender);
        assert_eq!(caller.await.unwrap(), None);
    }

    #[test]
    fn callers_are_woken_outside_of_a_runtime_and_when_a_runtime_drops_them() {
        struct Count(std::sync::atomic::AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let count = Arc::new(Count(0.into()));
        let woken = || count.0.load(std::sync::atomic::Ordering::SeqCst);
        Callers(vec![count.clone().into(), count.clone().into()]).wake_together();
        assert_eq!(woken(), 2);
        let all = Waker::from(Arc::new(All(Mutex::new(Callers(vec![count.clone().into()])))));
        drop(all);
        assert_eq!(woken(), 3);
    }

    #[test]
    fn a_caller_that_goes_is_seen() {
        let (sender, pending) = reply::<u8>();
        assert!(!sender.is_abandoned());
        drop(pending);
        assert!(sender.is_abandoned());
    }
}
