//! A client's clock that a case sets forward.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::backend::{Clock, Stamp, SystemClock};

/// The machine's clock, set forward as by a suspend. The timers of the client go on as they were, so that it notices only by
/// looking.
#[derive(Default)]
pub(crate) struct JumpingClock {
    real: SystemClock,
    ahead: AtomicU64,
}

impl JumpingClock {
    /// Sets it forward by this much more.
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
