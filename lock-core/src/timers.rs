//! Calls need the timers of a tokio runtime: the caller's, or else the keeper's.

use std::future::{Future, poll_fn};
use std::panic::catch_unwind;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep};

use crate::error::{Error, Result};

/// A timer of the current runtime. Each call has its own: if the keeper bounded the calls, each would wake its thread.
///
/// # Errors
/// [`InvalidInput`](crate::ErrorKind::InvalidInput) without a tokio runtime, or on one without timers. tokio has no
/// query for timers, and panics: its message is then printed, and a program built with `panic = "abort"` ends.
pub(crate) fn timer(duration: Duration) -> Result<Sleep> {
    catch_unwind(|| sleep(duration)).map_err(|_| {
        Error::invalid("this needs a tokio runtime with timers: build it with `enable_time` or `enable_all`")
    })
}

/// Whether calls can be made on the current tokio runtime. For a backend that connects before it has a client, whose
/// own calls are checked.
///
/// # Errors
/// [`InvalidInput`](crate::ErrorKind::InvalidInput) without a tokio runtime, or on one without timers.
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

/// Whether this runs on a tokio runtime. A task knows its id without touching what all threads of the runtime share.
pub(crate) fn is_on_tokio() -> bool {
    tokio::task::try_id().is_some() || Handle::try_current().is_ok()
}

/// Runs a future where tokio's timers are: here, or else on the keeper's runtime. Dropping it drops the future in both
/// cases.
pub(crate) async fn on_tokio<F>(home: &Handle, future: F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    if is_on_tokio() { future.await } else { elsewhere(home, future).await }
}

/// Runs a future on the keeper's runtime, for a caller who polls with another executor than tokio's. Dropping it drops
/// the future.
pub(crate) async fn elsewhere<F>(home: &Handle, future: F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    struct AbortOnDrop<T>(JoinHandle<T>);

    impl<T> Drop for AbortOnDrop<T> {
        fn drop(&mut self) {
            self.0.abort();
        }
    }

    let mut task = AbortOnDrop(home.spawn(future));
    match (&mut task.0).await {
        Ok(output) => output,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only this function could have aborted it, and the runtime of a keeper thread outlives every client.
            Err(_) => std::future::pending().await,
        },
    }
}
