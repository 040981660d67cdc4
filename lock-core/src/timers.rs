//! The timers of the runtime that a call is made on.

use std::future::{Future, poll_fn};
use std::panic::catch_unwind;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use crate::error::{Error, Result};

/// A timer of the current runtime. Each call has its own: if the keeper bounded the calls, each would wake its thread.
///
/// # Errors
/// [`InvalidInput`](crate::ErrorKind::InvalidInput) where there is no tokio runtime, or one without timers. tokio has no query for that and panics: its message
/// has been printed, and a program that is built with `panic = "abort"` has ended.
pub(crate) fn timer(duration: Duration) -> Result<Sleep> {
    catch_unwind(|| sleep(duration)).map_err(|_| {
        Error::invalid("this needs a tokio runtime with timers: build it with `enable_time` or `enable_all`")
    })
}

/// Whether calls can be made on the current tokio runtime. For a backend that connects before it has a client, whose own calls are
/// checked.
///
/// # Errors
/// [`InvalidInput`](crate::ErrorKind::InvalidInput) when there is no tokio runtime, or one without timers.
pub fn require_timers() -> Result<()> {
    timer(Duration::ZERO).map(drop)
}

/// The output of a future that is ready before a timer.
pub(crate) async fn before<F: Future>(timer: Sleep, future: F) -> Option<F::Output> {
    let (mut timer, mut future) = (pin!(timer), pin!(future));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
    })
    .await
}
