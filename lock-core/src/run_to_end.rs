//! Calls that a dropped future does not cut off.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// A call that goes on in the background when it is dropped between its first poll and its end: many clients of
/// stores misbehave when a future is dropped in the middle of a request. Costs no task while nobody drops it.
///
/// A runtime that shuts down drops it all the same.
pub(crate) struct RunToEnd<'a, F>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    call: Option<Pin<Box<F>>>,
    begun: bool,
    home: &'a Handle,
}

impl<'a, F> RunToEnd<'a, F>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    /// Dropped outside of a tokio runtime, it goes on on `home`.
    pub(crate) fn new(home: &'a Handle, call: F) -> Self {
        Self { call: Some(Box::pin(call)), begun: false, home }
    }
}

impl<F> Future for RunToEnd<'_, F>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.begun = true;
        // Taken out, so that a call that panics is not gone on with.
        let Some(mut call) = self.call.take() else { return Poll::Pending };
        let polled = call.as_mut().poll(cx);
        if polled.is_pending() {
            self.call = Some(call);
        }
        polled
    }
}

impl<F> Drop for RunToEnd<'_, F>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn drop(&mut self) {
        if let Some(call) = self.call.take().filter(|_| self.begun) {
            Handle::try_current().as_ref().unwrap_or(self.home).spawn(call);
        }
    }
}
