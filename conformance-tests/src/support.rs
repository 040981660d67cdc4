//! Helpers of the cases: names, bounds in real time, and waits for a condition.

use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold_core::{FencingToken, LockName};
use tokio::runtime::{Builder, Runtime};

use crate::fixture::Fixture;
use crate::harness::LagMonitor;
use crate::timing_control::in_time;

/// The pause between two checks of a condition.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// "At once": the bound of an event that needs a message and no timer. It is far below a third of any ttl, after which
/// a renewal would detect the event.
pub(crate) const AT_ONCE: Duration = Duration::from_millis(100);

/// How long a backend may take to detect that its server is back, in addition to the bound of a call: the pauses
/// between two attempts.
pub(crate) const BACK: Duration = Duration::from_secs(2);

/// The latest report of a loss after the validity has ended.
pub(crate) const LOST_BY: Duration = Duration::from_millis(5);

/// The latest end of a wait after its time is over.
pub(crate) const ENDS_BY: Duration = Duration::from_millis(10);

/// A lock name.
pub(crate) fn name(name: &str) -> LockName {
    LockName::new(name).unwrap_or_else(|error| panic!("{name:?} is no lock name: {error}"))
}

/// Measures time, and the lag of the machine beside it.
#[derive(Clone, Copy)]
pub struct Stopwatch {
    lag_monitor: &'static LagMonitor,
    begin: Instant,
}

impl Stopwatch {
    /// Starts it.
    pub fn start() -> Self {
        // All cases of a process share one lag monitor, because they share the machine.
        static LAG_MONITOR: OnceLock<LagMonitor> = OnceLock::new();
        Self { lag_monitor: LAG_MONITOR.get_or_init(LagMonitor::start), begin: Instant::now() }
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// How much the machine may have delayed events since the start.
    pub fn lag(&self) -> Duration {
        self.lag_monitor.allowance_since(self.begin)
    }

    /// Asserts an upper bound: at most `bound` plus the lag of the machine has passed.
    ///
    /// # Panics
    /// If more has passed.
    #[track_caller]
    pub fn within(&self, bound: Duration, what: &str) {
        let took = self.elapsed();
        let lag = self.lag();
        assert!(took <= bound + lag, "{what}: it took {took:?}, the bound is {bound:?} and the machine's lag {lag:?}");
    }

    /// Asserts a strict lower bound.
    ///
    /// # Panics
    /// If less has passed.
    #[track_caller]
    pub fn not_before(&self, bound: Duration, what: &str) {
        let took = self.elapsed();
        assert!(took >= bound, "{what}: it took only {took:?} of {bound:?}");
    }
}

/// Polls a condition until it is true, at most for `bound`, as [`in_time`] measures it.
#[track_caller]
pub(crate) fn eventually(
    bound: Duration,
    what: &str,
    mut is_so: impl AsyncFnMut() -> bool,
) -> impl Future<Output = ()> {
    in_time(bound, what, async move {
        while !is_so().await {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    })
}

/// Reads a value until it meets a condition, at most for `bound`, and returns it. A failure reports the last value.
pub(crate) async fn becomes<T: Debug>(
    bound: Duration,
    what: &str,
    mut read: impl AsyncFnMut() -> T,
    is_so: impl Fn(&T) -> bool,
) -> T {
    let stopwatch = Stopwatch::start();
    loop {
        let seen = read().await;
        if is_so(&seen) {
            return seen;
        }
        stopwatch.within(bound, &format!("{what}, last value: {seen:?}"));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Asserts that the server's own record has a lease with this token and at least `least` left. Returns what is left.
pub(crate) async fn still_held(
    fixture: &dyn Fixture,
    name: &LockName,
    token: FencingToken,
    least: Duration,
) -> Duration {
    let record = fixture.record(name).await;
    let left = record.lease().unwrap_or_else(|| panic!("lock {name:?} was taken from its holder: {record:?}"));
    assert_eq!(record.last_token, Some(token), "lock {name:?} has another holder");
    assert!(left >= least, "the lease of lock {name:?} was shortened to {left:?}");
    left
}

/// A runtime for one case. Unlike tokio's it may be dropped on any thread, so that a failed case reports its own panic.
pub(crate) struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    pub(crate) fn new(workers: usize) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(workers).enable_all().build();
        Self(Some(runtime.expect("the system starts the threads of a runtime")))
    }

    /// Shuts it down, and waits for its threads for at most five seconds. Blocks.
    pub(crate) fn shutdown(mut self) {
        self.0.take().expect("it is only taken when it ends").shutdown_timeout(Duration::from_secs(5));
    }
}

impl Deref for OwnRuntime {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.0.as_ref().expect("it is only taken when it ends")
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Waits for a task and passes its panic on.
pub(crate) async fn join<T>(task: tokio::task::JoinHandle<T>) -> T {
    match task.await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(error) => panic!("a task of the case was cancelled: {error}"),
    }
}

/// Polls all futures, and returns their outputs in order.
pub async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    poll_fn(|cx| {
        for (future, output) in &mut futures {
            if output.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(cx)
            {
                *output = Some(ready);
            }
        }
        if futures.iter().all(|(_, output)| output.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}
