//! A value for each tokio runtime.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::runtime::{Handle, Id};
use tokio::task::AbortHandle;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// One value for each runtime that calls the backend. A connection for single calls, with the task that drives it,
/// belongs to the caller's runtime, so that a call crosses no thread; it ends with that runtime. A connection that a
/// lease or a notification depends on belongs to the [keeper's runtime](crate::backend::CoreHandle::keeper_runtime)
/// instead, which is the caller of renewals.
pub struct PerRuntime<T>(Mutex<HashMap<Id, T>>);

impl<T> PerRuntime<T> {
    /// Has no value yet.
    pub fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    /// The runtime of the caller.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) outside a tokio runtime.
    pub fn caller() -> Result<Handle> {
        Handle::try_current().map_err(|_| {
            Error::new(ErrorKind::Unsupported, "called outside a tokio runtime, which the connection needs")
        })
    }

    /// Reads the value of a runtime. If there is no live value, creates one, and drops the values of all runtimes that
    /// are not alive. The closures must not block.
    pub fn read<R>(
        &self,
        runtime: &Handle,
        is_alive: impl Fn(&T) -> bool,
        make: impl FnOnce() -> T,
        read: impl FnOnce(&T) -> R,
    ) -> R {
        let mut values = lock(&self.0);
        if let Some(value) = values.get(&runtime.id()).filter(|value| is_alive(value)) {
            return read(value);
        }
        values.retain(|_, value| is_alive(value));
        let value = make();
        let done = read(&value);
        values.insert(runtime.id(), value);
        done
    }

    /// Removes and returns the value of a runtime.
    pub fn remove(&self, runtime: &Handle) -> Option<T> {
        lock(&self.0).remove(&runtime.id())
    }
}

impl<T> Default for PerRuntime<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for PerRuntime<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerRuntime").field("runtimes", &lock(&self.0).len()).finish()
    }
}

/// A task of one runtime, such as the one that serves a value of [`PerRuntime`]. Dropping this ends it, and so does the
/// end of the runtime, which drops its tasks.
#[derive(Debug)]
pub struct RuntimeTask {
    task: AbortHandle,
    has_ended: Arc<AtomicBool>,
}

impl RuntimeTask {
    /// Begins the task. `at_end` is called when it ends, for whichever reason.
    pub fn begin(
        runtime: &Handle,
        task: impl Future<Output = ()> + Send + 'static,
        at_end: impl FnOnce() + Send + 'static,
    ) -> Self {
        let has_ended = Arc::new(AtomicBool::new(false));
        // Created outside the task, because a runtime that was shut down drops the task without running it.
        let end = End { has_ended: has_ended.clone(), at_end: Some(at_end) };
        let task = runtime.spawn(async move {
            let _end = end;
            task.await;
        });
        Self { task: task.abort_handle(), has_ended }
    }

    /// Whether the task has ended, for example because its runtime was shut down.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

impl Drop for RuntimeTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct End<F: FnOnce()> {
    has_ended: Arc<AtomicBool>,
    at_end: Option<F>,
}

impl<F: FnOnce()> Drop for End<F> {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Release);
        if let Some(at_end) = self.at_end.take() {
            at_end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_ends_with_its_runtime_even_if_that_never_ran_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let handle = runtime.handle().clone();
        let ends = Arc::new(Mutex::new(0));
        let begin = || {
            let ends = ends.clone();
            RuntimeTask::begin(&handle, std::future::pending(), move || *lock(&ends) += 1)
        };
        let (running, dropped) = (begin(), begin());
        drop(dropped);
        runtime.block_on(tokio::task::yield_now());
        assert_eq!((running.has_ended(), *lock(&ends)), (false, 1));
        drop(runtime);
        assert_eq!((running.has_ended(), *lock(&ends)), (true, 2));
        assert_eq!((begin().has_ended(), *lock(&ends)), (true, 3));
    }

    #[test]
    fn each_runtime_has_a_value_until_that_is_not_alive() {
        let values: PerRuntime<(u32, Arc<AtomicBool>)> = PerRuntime::default();
        let runtimes = [0, 1].map(|_| tokio::runtime::Builder::new_current_thread().build().unwrap());
        let alive = Arc::new(AtomicBool::new(true));
        let read = |runtime: usize, fresh: u32| {
            let make = || (fresh, alive.clone());
            values.read(runtimes[runtime].handle(), |(_, alive)| alive.load(Ordering::Relaxed), make, |(made, _)| *made)
        };
        assert_eq!([read(0, 1), read(1, 2), read(0, 3), read(1, 4)], [1, 2, 1, 2]);
        assert_eq!(format!("{values:?}"), "PerRuntime { runtimes: 2 }");
        assert_eq!(values.remove(runtimes[0].handle()).map(|(made, _)| made), Some(1));
        assert_eq!([read(0, 5), read(1, 6)], [5, 2]);
        alive.store(false, Ordering::Relaxed);
        assert_eq!(read(0, 7), 7);
        assert_eq!(format!("{values:?}"), "PerRuntime { runtimes: 1 }");
        assert_eq!(PerRuntime::<u8>::caller().unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
