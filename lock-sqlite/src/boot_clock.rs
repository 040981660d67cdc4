//! The clock since boot, and the identity of the boot.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_core::backend::kit::time_since_boot;
use leasehold_core::{Error, ErrorKind, Result};

/// One reading of the clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// µs since boot, including suspend. Decides when a lease expires.
    pub(crate) boottime: i64,
    /// Identifies the boot that `boottime` counts from.
    pub(crate) boot: i64,
    /// µs since the Unix epoch. Makes tokens rise after the file was lost. It decides no expiry.
    pub(crate) wall: i64,
}

/// Reads the clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BootClock {
    boot: i64,
}

impl BootClock {
    /// The clock of the machine that this process runs on.
    ///
    /// # Errors
    /// `Unsupported` if the system has no clock since boot, or no boot id.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn of_this_machine() -> Result<Self> {
        static BOOT: std::sync::OnceLock<i64> = std::sync::OnceLock::new();
        if let Some(&boot) = BOOT.get() {
            return Ok(Self { boot });
        }
        let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_err(|error| unsupported().with_source(error))?;
        // In another time namespace the clock since boot has another offset, so its readings count as another boot.
        let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        let boot = boot_of(&read, &namespace.to_string_lossy()).ok_or_else(unsupported)?;
        Ok(Self { boot: *BOOT.get_or_init(|| boot) })
    }

    /// The clock of the machine that this process runs on.
    ///
    /// # Errors
    /// `Unsupported`: this system has no boot id.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(crate) fn of_this_machine() -> Result<Self> {
        Err(unsupported())
    }

    pub(crate) fn now(self) -> Reading {
        // `of_this_machine` fails on a system without this clock.
        let boottime = micros(time_since_boot().unwrap_or_default());
        Reading { boottime, boot: self.boot, wall: wall() }
    }
}

/// The processor time that this thread has used. Zero on systems that do not report it.
pub(crate) fn thread_time() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    Duration::ZERO
}

fn wall() -> i64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    micros(wall)
}

/// Microseconds as the file stores them. Limits huge durations so that sums cannot overflow.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX).min(i64::MAX / 4)
}

/// Derives a number from a boot id (128 random bits as a UUID) and a time namespace (`time:[4026531834]`).
#[cfg_attr(
    not(any(target_os = "linux", target_os = "android")),
    expect(dead_code, reason = "only Linux has a boot id")
)]
fn boot_of(id: &str, namespace: &str) -> Option<i64> {
    let digits: String = id.trim().chars().filter(|c| *c != '-').collect();
    let id = u128::from_str_radix(&digits, 16).ok()?;
    let digits: String = namespace.chars().filter(char::is_ascii_digit).collect();
    let namespace: u64 = digits.parse().unwrap_or(0);
    // The odd factor spreads the few bits in which namespaces differ.
    let folded = (id >> 64) as u64 ^ id as u64 ^ namespace.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    Some(i64::from_ne_bytes(folded.to_ne_bytes()))
}

fn unsupported() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "the SQLite backend needs a clock since boot and the id of the boot: Linux with /proc mounted",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boots_and_time_namespaces_are_distinct() {
        let id = "fbcc63bf-3185-4898-88ac-b0c8fc6149a8\n";
        let boot = boot_of(id, "time:[4026531834]").unwrap();
        assert_eq!(boot_of(id, "time:[4026531834]"), Some(boot));
        assert_ne!(boot_of(id, "time:[4026531835]"), Some(boot));
        assert_ne!(boot_of(id, ""), Some(boot));
        assert_ne!(boot_of("fbcc63bf-3185-4898-88ac-b0c8fc6149a9", "time:[4026531834]"), Some(boot));
        assert_eq!(boot_of("", ""), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn time_advances() {
        let clock = BootClock::of_this_machine().unwrap();
        let before = clock.now();
        std::thread::sleep(Duration::from_millis(2));
        let after = clock.now();
        assert!(after.boottime - before.boottime >= 2_000 && after.boot == before.boot);
        assert!(before.wall > 1_600_000_000_000_000, "{}", before.wall);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn sleep_uses_no_processor() {
        let before = thread_time();
        std::thread::sleep(Duration::from_millis(50));
        assert!(thread_time() - before < Duration::from_millis(25));
        while thread_time() == before {}
    }

    #[test]
    fn long_durations_do_not_overflow() {
        assert_eq!(micros(Duration::from_millis(3)), 3_000);
        assert!(micros(Duration::MAX).checked_mul(2).is_some());
    }
}
