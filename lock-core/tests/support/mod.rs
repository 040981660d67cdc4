//! Shared by several test targets of this crate.

use std::time::{Duration, Instant};

/// Waits until `is_so` returns true. Blocks the thread.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "not after 20 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
