//! A client's clock that a case sets forward.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::backend::{Clock, Stamp, SystemClock};

/// The machine's clock, set forward as by a suspend. The client's timers do not fire earlier, so it detects the step
/// only when it reads the clock.
#[derive(Default)]
pub(crate) struct JumpingClock {
    real: SystemClock,
    ahead: AtomicU64,
}

impl JumpingClock {
    /// Sets it forward by a further `by`.
    pub(crate) fn jump(&self, by: Duration) {
        self.ahead.fetch_add(u64::try_from(by.as_nanos()).expect("no case jumps so far"), Ordering::SeqCst);
    }
}

impl Clock for JumpingClock {
    fn now(&self) -> Stamp {
        self.real.now().plus(Duration::from_nanos(self.ahead.load(Ordering::SeqCst)))
    }

    fn sleep_time(&self, until: Stamp) -> Duration {
        until.since(self.now()).min(Duration::from_millis(10))
    }
}
