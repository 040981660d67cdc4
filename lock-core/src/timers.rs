//! Calls need the timers of a tokio runtime: the caller's, or else the keeper's.

use std::future::{Future, poll_fn};
use std::panic::catch_unwind;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep};

use crate::error::{Error, ErrorKind, Result};

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

/// Runs a call where tokio's timers are: here, or else on the keeper's runtime. Dropping it drops the call in both cases.
pub(crate) async fn on_tokio<T, F>(home: &Handle, future: F) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    if is_on_tokio() { future.await } else { elsewhere(home, future).await }
}

/// Runs a call on the keeper's runtime, for a caller who polls with another executor than tokio's. Dropping it drops the
/// call.
///
/// # Errors
/// Those of the call. [`Indeterminate`](ErrorKind::Indeterminate) if that runtime has shut down, or does so meanwhile: a
/// [`CurrentRuntime`](crate::KeeperRuntime::CurrentRuntime) of the user, because that of a keeper thread outlives every
/// client.
pub(crate) async fn elsewhere<T, F>(home: &Handle, future: F) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
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
            Err(_) => Err(Error::new(ErrorKind::Indeterminate, "the keeper's runtime has shut down")),
        },
    }
}
