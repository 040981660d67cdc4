//! Bounds in time.

use std::time::{Duration, Instant};

use leasehold_conformance::harness::LagMonitor;

/// Runs `call`, which may take this long on an idle machine.
pub(crate) fn within<T>(bound: Duration, call: impl FnOnce() -> T) -> T {
    let lag_monitor = LagMonitor::start();
    let start = Instant::now();
    let result = call();
    let (took, allowed) = (start.elapsed(), bound + lag_monitor.allowance());
    assert!(took <= allowed, "it took {took:?}, and {allowed:?} are allowed");
    result
}

/// Waits until `condition` is true, which may take this long on an idle machine.
pub(crate) fn wait_until(bound: Duration, condition: impl Fn() -> bool) {
    let lag_monitor = LagMonitor::start();
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() <= bound + lag_monitor.allowance(), "it is not so within {bound:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
