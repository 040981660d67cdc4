//! How late this machine is, measured beside a case.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the canary sleeps between two looks.
const NAP: Duration = Duration::from_millis(1);

/// How many processes and threads have to be woken one after the other, at most, before a case sees something: a server, or
/// the thread that hears of releases; the keeper; a worker of the runtime; the case.
const HOPS: u32 = 4;

/// Timers of the runtime count in milliseconds and round up.
const TICK: Duration = Duration::from_millis(2);

/// Measures how late a thread is woken while a case runs.
///
/// A bound in real time (5 ms, 50 ms) is a promise about the library, not about a busy machine. A case starts a
/// canary beside its work and asserts the bound plus what the canary saw:
///
/// ```
/// use std::time::{Duration, Instant};
/// use conformance_tests::harness::Canary;
///
/// let canary = Canary::start();
/// let begin = Instant::now();
/// std::thread::sleep(Duration::from_millis(10));
/// let late = begin.elapsed() - Duration::from_millis(10);
/// assert!(late <= Duration::from_millis(5) + canary.allowance());
/// ```
#[derive(Debug)]
pub struct Canary {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    start: Instant,
    stop: AtomicBool,
    /// When the current nap should end, in nanoseconds after `start`.
    due: AtomicU64,
    /// Each lag worth remembering, with when it was seen. Newer and larger entries drive out older, smaller ones.
    worst: Mutex<Vec<(Instant, Duration)>>,
}

impl Canary {
    /// Starts a thread that sleeps 1 ms at a time until the canary is dropped.
    ///
    /// # Panics
    /// When the system gives no thread.
    pub fn start() -> Self {
        let shared = Arc::new(Shared {
            start: Instant::now(),
            stop: AtomicBool::new(false),
            due: AtomicU64::new(u64::MAX),
            worst: Mutex::default(),
        });
        let thread = std::thread::Builder::new().name("canary".into()).spawn({
            let shared = shared.clone();
            move || shared.run()
        });
        Self { shared, thread: Some(thread.expect("the system gives a thread for the canary")) }
    }

    /// What an upper bound in real time has to allow for: how late the machine may have made what took several wake-ups.
    pub fn allowance(&self) -> Duration {
        self.allowance_since(self.shared.start)
    }

    /// The same for what began at `moment`.
    pub fn allowance_since(&self, moment: Instant) -> Duration {
        TICK + self.lag_since(moment) * HOPS
    }

    /// The worst lag so far, the one that is going on now included.
    pub fn lag(&self) -> Duration {
        self.lag_since(self.shared.start)
    }

    /// The worst lag that was seen since `moment`, the one that is going on now included.
    pub fn lag_since(&self, moment: Instant) -> Duration {
        let due = self.shared.due.load(Ordering::Acquire);
        let elapsed = self.shared.start.elapsed();
        let now = elapsed.saturating_sub(Duration::from_nanos(due));
        let worst = self.shared.worst.lock().unwrap_or_else(PoisonError::into_inner);
        worst.iter().filter(|(seen, _)| *seen >= moment).map(|(_, lag)| *lag).fold(now, Duration::max)
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let due = self.start.elapsed() + NAP;
            self.due.store(u64::try_from(due.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
            std::thread::sleep(NAP);
            let now = Instant::now();
            let lag = (now - self.start).saturating_sub(due);
            let mut worst = self.worst.lock().unwrap_or_else(PoisonError::into_inner);
            // What is older and no larger can never be the answer again, whatever moment is asked for.
            while worst.last().is_some_and(|(_, last)| *last <= lag) {
                worst.pop();
            }
            worst.push((now, lag));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_the_worst_of_each_stretch_of_time() {
        let canary = Canary::start();
        let start = Instant::now();
        // Planted, so that the test needs no busy machine.
        let planted = Duration::from_secs(5);
        canary.shared.worst.lock().unwrap().push((Instant::now(), planted));
        assert_eq!(canary.lag(), planted);
        assert_eq!(canary.lag_since(start), planted);
        assert!(canary.allowance() > planted * HOPS);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(canary.lag_since(start), planted);
        assert!(canary.lag_since(Instant::now()) < planted);
    }

    #[test]
    fn sees_a_lag_that_has_not_ended() {
        let mut canary = Canary::start();
        canary.shared.stop.store(true, Ordering::Relaxed);
        canary.thread.take().unwrap().join().unwrap();
        // A nap that should have ended now and never does: as if the machine did not wake it.
        let now = u64::try_from(canary.shared.start.elapsed().as_nanos()).unwrap();
        canary.shared.due.store(now, Ordering::Release);
        std::thread::sleep(Duration::from_millis(60));
        assert!(canary.lag() >= Duration::from_millis(60), "{:?}", canary.lag());
    }
}
