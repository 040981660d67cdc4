//! Calls that a dropped future does not cut off.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Polls a call in place. If the returned future is dropped between its first poll and its end, the call continues in
/// the background: on the tokio runtime where it is dropped, or on `home` outside of a runtime. A runtime that shuts
/// down still drops the call.
pub fn run_to_end<F>(home: &Handle, call: F) -> impl Future<Output = F::Output> + Send
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    RunToEnd::new(home, call, ())
}

/// A call that continues in the background when it is dropped between its first poll and its end: many clients of
/// stores misbehave when a future is dropped in the middle of a request. It spawns a task only when it is dropped.
///
/// It continues where its connection is, on the caller's runtime. A runtime that shuts down still drops it, and on a
/// runtime that nothing drives any more it never ends. So the keeper must not depend on its end.
pub(crate) struct RunToEnd<'a, F, A>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
    A: Abandoned,
{
    call: Option<Pin<Box<F>>>,
    begun: bool,
    home: &'a Handle,
    abandoned: Option<A>,
}

/// Learns what happens to a call that its caller has dropped in the middle.
pub(crate) trait Abandoned: Send + Unpin + 'static {
    /// The call is about to continue in the background.
    fn begins(&self);

    /// The call has ended there.
    fn ended(self);
}

/// For callers that get the outcome in another way.
impl Abandoned for () {
    fn begins(&self) {}

    fn ended(self) {}
}

impl<'a, F, A> RunToEnd<'a, F, A>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
    A: Abandoned,
{
    /// If it is dropped outside of a tokio runtime, it continues on `home`.
    pub(crate) fn new(home: &'a Handle, call: F, abandoned: A) -> Self {
        Self { call: Some(Box::pin(call)), begun: false, home, abandoned: Some(abandoned) }
    }
}

impl<F, A> Future for RunToEnd<'_, F, A>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
    A: Abandoned,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.begun = true;
        // Taken out, so that a call that panics is not polled again.
        let Some(mut call) = self.call.take() else { return Poll::Pending };
        let polled = call.as_mut().poll(cx);
        if polled.is_pending() {
            self.call = Some(call);
        }
        polled
    }
}

impl<F, A> Drop for RunToEnd<'_, F, A>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
    A: Abandoned,
{
    fn drop(&mut self) {
        let Some(call) = self.call.take().filter(|_| self.begun) else { return };
        let Some(abandoned) = self.abandoned.take() else { return };
        abandoned.begins();
        Handle::try_current().as_ref().unwrap_or(self.home).spawn(async move {
            call.await;
            abandoned.ended();
        });
    }
}
