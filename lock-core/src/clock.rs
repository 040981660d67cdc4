//! The clock of a holder, and the stamps that are read from it.

use std::fmt;
use std::time::Duration;

/// An opaque reading of the core's [`Clock`], taken just before the request that a ttl counts from is sent.
///
/// Stamps of different clocks must not be mixed. Arithmetic saturates: no duration makes it panic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// The first instant of a clock.
    pub const ZERO: Self = Self(0);

    /// The stamp this long after [`Stamp::ZERO`].
    pub fn from_start(elapsed: Duration) -> Self {
        Self(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// How long after [`Stamp::ZERO`] this is.
    pub const fn since_start(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// The time from `earlier` to this stamp; zero when it is not earlier.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This stamp plus a duration, at most the last instant of the clock.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(Self::from_start(duration).0))
    }

    /// This stamp minus a duration, at least [`Stamp::ZERO`].
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(Self::from_start(duration).0))
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stamp({:?})", self.since_start())
    }
}

/// A clock that never goes back and counts the time that the machine sleeps.
///
/// One clock serves a whole client: its stamps, its deadlines, and the memory backend if it is used. Tests inject their
/// own.
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Stamp;

    /// How long the keeper sleeps on the runtime's timer before it reads this clock again, if the next task is due at
    /// `until`. The runtime's timer stops while the machine is suspended and may run at another rate, so a clock may
    /// return less than the whole time.
    fn sleep_time(&self, until: Stamp) -> Duration;
}

/// The machine's clock.
///
/// On Linux the larger of the time elapsed on `CLOCK_BOOTTIME` and on `CLOCK_MONOTONIC_RAW`: the first counts
/// suspend but is slewed by NTP, the second is not slewed but stops in suspend. On macOS
/// `CLOCK_MONOTONIC_RAW`, which counts sleep. Elsewhere [`std::time::Instant`] (on Windows the performance
/// counter, which counts sleep).
#[derive(Debug)]
pub struct SystemClock {
    start: Reading,
}

/// The longest sleep while something is due: after a suspend, in which the runtime's timer stood still, a loss is
/// reported at most this late. The cost of two wake-ups a second cannot be measured.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

impl SystemClock {
    /// A clock that starts now.
    pub fn new() -> Self {
        Self { start: Reading::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Stamp {
        Stamp::from_start(Reading::now().since(&self.start))
    }

    fn sleep_time(&self, until: Stamp) -> Duration {
        until.since(self.now()).min(LONGEST_SLEEP)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[derive(Debug)]
struct Reading {
    boottime: Duration,
    raw: Duration,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Reading {
    fn now() -> Self {
        use rustix::time::ClockId;
        Self { boottime: read(ClockId::Boottime), raw: read(ClockId::MonotonicRaw) }
    }

    fn since(&self, start: &Self) -> Duration {
        self.boottime.saturating_sub(start.boottime).max(self.raw.saturating_sub(start.raw))
    }
}

#[cfg(target_vendor = "apple")]
#[derive(Debug)]
struct Reading(Duration);

#[cfg(target_vendor = "apple")]
// The tests run on Linux, so none of them notices a mutant here.
#[cfg_attr(false, mutants::skip)]
impl Reading {
    fn now() -> Self {
        Self(read(rustix::time::ClockId::MonotonicRaw))
    }

    fn since(&self, start: &Self) -> Duration {
        self.0.saturating_sub(start.0)
    }
}

/// The machine's clock since boot: the same for all its processes, and never stepped. It continues while the machine is
/// suspended on Linux and Android (`CLOCK_BOOTTIME`) and on Apple's systems. `None` where the system has no such clock,
/// as on Windows.
///
/// It may be slewed by NTP. The margin of a lease covers that.
pub fn time_since_boot() -> Option<Duration> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let now = Some(read(rustix::time::ClockId::Boottime));
    #[cfg(target_vendor = "apple")]
    let now = Some(read(rustix::time::ClockId::MonotonicRaw));
    #[cfg(all(unix, not(any(target_os = "linux", target_os = "android", target_vendor = "apple"))))]
    let now = Some(read(rustix::time::ClockId::Monotonic));
    #[cfg(not(unix))]
    let now = None;
    now
}

#[cfg(unix)]
fn read(id: rustix::time::ClockId) -> Duration {
    let time = rustix::time::clock_gettime(id);
    // Both clocks count up from boot, so neither part is negative.
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
#[derive(Debug)]
struct Reading(std::time::Instant);

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
// The tests run on Linux, so none of them notices a mutant here.
#[cfg_attr(false, mutants::skip)]
impl Reading {
    fn now() -> Self {
        Self(std::time::Instant::now())
    }

    fn since(&self, start: &Self) -> Duration {
        self.0.saturating_duration_since(start.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let last = Stamp::ZERO.plus(Duration::MAX);
        assert_eq!(last.plus(Duration::from_secs(1)), last);
        assert_eq!(Stamp::ZERO.minus(Duration::from_secs(1)), Stamp::ZERO);
        assert_eq!(Stamp::ZERO.since(last), Duration::ZERO);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn time_since_boot_goes_on() {
        let before = time_since_boot().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let passed = time_since_boot().unwrap() - before;
        assert!(passed >= Duration::from_millis(5) && (before.as_secs_f64() - uptime).abs() < 10.0);
    }

    #[test]
    fn the_system_clock_moves_on() {
        let clock = SystemClock::new();
        let before = clock.now();
        std::thread::sleep(Duration::from_millis(5));
        assert!(clock.now().since(before) >= Duration::from_millis(5));
        assert_eq!(clock.sleep_time(clock.now().plus(Duration::from_secs(3600))), LONGEST_SLEEP);
        assert_eq!(clock.sleep_time(before), Duration::ZERO);
    }
}
