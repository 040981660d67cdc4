//! Measures how late this machine is while a case runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The pause between two measurements.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(1);

/// The most processes and threads that must be woken one after the other before a case observes an event: the server or
/// the thread that receives notifications, the keeper, a worker of the runtime, and the case.
const WAKE_UPS: u32 = 4;

/// How often the host may pause a processor while a case runs. Each pause delays the case once, independently of the
/// number of wake-ups.
const STALLS: u32 = 2;

/// The most processors that are measured.
const PROCESSORS: usize = 8;

/// Timers of the runtime count in milliseconds and round up.
const TICK: Duration = Duration::from_millis(2);

/// Measures how late a thread is woken while a case runs.
///
/// A bound in real time (5 ms, 50 ms) is a promise about the library, not about a busy machine. A case starts a lag
/// monitor beside its work and asserts the bound plus the allowance of the lag monitor:
///
/// ```
/// use std::time::{Duration, Instant};
/// use leasehold_conformance::harness::LagMonitor;
///
/// let lag_monitor = LagMonitor::start();
/// let begin = Instant::now();
/// std::thread::sleep(Duration::from_millis(10));
/// let late = begin.elapsed() - Duration::from_millis(10);
/// assert!(late <= Duration::from_millis(5) + lag_monitor.allowance());
/// ```
#[derive(Debug)]
pub struct LagMonitor {
    sampler: Arc<LagSampler>,
    thread: Option<JoinHandle<()>>,
    pinned: &'static [Arc<LagSampler>],
}

/// The measurements of one thread that sleeps 1 ms at a time.
#[derive(Debug)]
struct LagSampler {
    start: Instant,
    stop: AtomicBool,
    /// When the current sleep should end, in nanoseconds after `start`.
    due: AtomicU64,
    /// The relevant lags with their times. A larger entry replaces older, smaller ones.
    worst: Mutex<Vec<(Instant, Duration)>>,
}

impl LagMonitor {
    /// Starts a thread that sleeps 1 ms at a time until the lag monitor is dropped. The first lag monitor of a process
    /// also starts one thread on each of at most eight processors. They run until the process ends.
    ///
    /// # Panics
    /// If the system starts no thread.
    pub fn start() -> Self {
        let (sampler, thread) = LagSampler::start(|| {});
        Self { sampler, thread: Some(thread), pinned: pinned() }
    }

    /// The allowance for an upper bound in real time: how much the machine may have delayed an event that takes several
    /// wake-ups.
    pub fn allowance(&self) -> Duration {
        self.allowance_since(self.sampler.start)
    }

    /// The same for an event that began at `moment`.
    pub fn allowance_since(&self, moment: Instant) -> Duration {
        let stalled = self.pinned.iter().map(|sampler| sampler.lag_since(moment)).max().unwrap_or_default();
        TICK + (self.lag_since(moment) * WAKE_UPS).max(stalled * STALLS)
    }

    /// The worst lag so far, including the current one.
    pub fn lag(&self) -> Duration {
        self.lag_since(self.sampler.start)
    }

    /// The worst lag since `moment`, including the current one.
    pub fn lag_since(&self, moment: Instant) -> Duration {
        self.sampler.lag_since(moment)
    }
}

impl Drop for LagMonitor {
    fn drop(&mut self) {
        self.sampler.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl LagSampler {
    fn start(first: impl FnOnce() + Send + 'static) -> (Arc<Self>, JoinHandle<()>) {
        let sampler = Arc::new(Self {
            start: Instant::now(),
            stop: AtomicBool::new(false),
            due: AtomicU64::new(u64::MAX),
            worst: Mutex::default(),
        });
        let thread = std::thread::Builder::new().name("lag monitor".into()).spawn({
            let sampler = sampler.clone();
            move || {
                first();
                sampler.run();
            }
        });
        (sampler, thread.expect("the system starts a thread for the lag monitor"))
    }

    fn run(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let due = self.start.elapsed() + SAMPLE_INTERVAL;
            self.due.store(u64::try_from(due.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
            std::thread::sleep(SAMPLE_INTERVAL);
            let now = Instant::now();
            let lag = (now - self.start).saturating_sub(due);
            let mut worst = self.worst.lock().unwrap_or_else(PoisonError::into_inner);
            // An older entry that is not larger can never be the worst lag of any period.
            while worst.last().is_some_and(|(_, last)| *last <= lag) {
                worst.pop();
            }
            worst.push((now, lag));
        }
    }

    fn lag_since(&self, moment: Instant) -> Duration {
        let due = self.due.load(Ordering::Acquire);
        let elapsed = self.start.elapsed();
        let now = elapsed.saturating_sub(Duration::from_nanos(due));
        let worst = self.worst.lock().unwrap_or_else(PoisonError::into_inner);
        worst.iter().filter(|(seen, _)| *seen >= moment).map(|(_, lag)| *lag).fold(now, Duration::max)
    }
}

/// One thread on each processor, for all lag monitors of the process. The host of a virtual machine may pause one
/// processor while the others run. Threads on the paused processor stall, and a thread on another one does not measure
/// that.
fn pinned() -> &'static [Arc<LagSampler>] {
    static PINNED: OnceLock<Vec<Arc<LagSampler>>> = OnceLock::new();
    PINNED.get_or_init(pin)
}

#[cfg(target_os = "linux")]
fn pin() -> Vec<Arc<LagSampler>> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    let processors = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)).take(PROCESSORS);
    let stays_on = |processor| {
        LagSampler::start(move || {
            let mut only = CpuSet::new();
            only.set(processor);
            // A processor that was removed meanwhile is not measured.
            let _ = sched_setaffinity(None, &only);
        })
    };
    processors.map(|processor| stays_on(processor).0).collect()
}

#[cfg(not(target_os = "linux"))]
fn pin() -> Vec<Arc<LagSampler>> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_the_worst_of_each_stretch_of_time() {
        let lag_monitor = LagMonitor::start();
        let start = Instant::now();
        // Injected, so that the test needs no busy machine.
        let lag = Duration::from_secs(5);
        lag_monitor.sampler.worst.lock().unwrap().push((Instant::now(), lag));
        assert_eq!(lag_monitor.lag(), lag);
        assert_eq!(lag_monitor.lag_since(start), lag);
        assert!(lag_monitor.allowance() > lag * WAKE_UPS);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(lag_monitor.lag_since(start), lag);
        assert!(lag_monitor.lag_since(Instant::now()) < lag);
    }

    #[test]
    fn a_processor_that_was_taken_away_is_allowed_for() {
        assert_eq!(pinned().is_empty(), !cfg!(target_os = "linux"));
        let mut lag_monitor = LagMonitor::start();
        let (stalled, _) = LagSampler::start(|| {});
        lag_monitor.pinned = vec![stalled.clone()].leak();
        let (moment, lag) = (Instant::now(), Duration::from_secs(3));
        stalled.worst.lock().unwrap().push((moment, lag));
        assert!(lag_monitor.allowance_since(moment) >= lag * STALLS);
        assert!(lag_monitor.lag_since(moment) < lag, "the other processors measured no lag");
    }

    #[test]
    fn reports_a_lag_that_has_not_ended() {
        let mut lag_monitor = LagMonitor::start();
        lag_monitor.sampler.stop.store(true, Ordering::Relaxed);
        lag_monitor.thread.take().unwrap().join().unwrap();
        // A sleep that should have ended now and never does, as if the machine did not wake the thread.
        let now = u64::try_from(lag_monitor.sampler.start.elapsed().as_nanos()).unwrap();
        lag_monitor.sampler.due.store(now, Ordering::Release);
        std::thread::sleep(Duration::from_millis(60));
        assert!(lag_monitor.lag() >= Duration::from_millis(60), "{:?}", lag_monitor.lag());
    }
}
