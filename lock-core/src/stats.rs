//! Counters of a client, for a metrics exporter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a client has done so far. Counters only grow. Gauges have the present value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Calls of acquire and try_acquire.
    pub acquires: u64,
    /// Leases that the store granted to this client.
    pub granted: u64,
    /// Times that a claim got a place in the server's queue.
    pub queued: u64,
    /// Acquires that ended with [`Timeout`](crate::ErrorKind::Timeout), including those of try_acquire that found the
    /// lock held.
    pub timeouts: u64,
    /// Acquires that ended with another error.
    pub acquire_errors: u64,
    /// Renewals of leases and places that were sent, one for each in a batch.
    pub renewals_sent: u64,
    /// Renewals that the store confirmed.
    pub renewed: u64,
    /// Renewals that failed or whose outcome is unknown.
    pub renewal_errors: u64,
    /// Leases that were lost, or whose release found that they may have been.
    pub lost: u64,
    /// Leases that were released.
    pub released: u64,
    /// Claims that were withdrawn: cancelled, timed out, or with an unknown outcome.
    pub withdrawn: u64,
    /// Gauge: leases held now.
    pub held: u64,
    /// Gauge: acquires that wait now.
    pub waiting: u64,
    /// The longest time by which a renewal was sent after it was due.
    pub max_renewal_lag: Duration,
}

macro_rules! counters {
    ($($name:ident),*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
            max_renewal_lag: AtomicU64,
        }

        impl Counters {
            /// `waiting` is the number of waiting acquires, which is not a counter.
            pub(crate) fn read(&self, waiting: u64) -> Stats {
                Stats {
                    $($name: self.$name.0.load(Ordering::Relaxed),)*
                    waiting,
                    max_renewal_lag: Duration::from_nanos(self.max_renewal_lag.load(Ordering::Relaxed)),
                }
            }
        }
    };
}

counters!(
    acquires,
    granted,
    queued,
    timeouts,
    acquire_errors,
    renewals_sent,
    renewed,
    renewal_errors,
    lost,
    released,
    withdrawn,
    held
);

impl Counters {
    pub(crate) fn renewal_lag(&self, lag: Duration) {
        self.max_renewal_lag.fetch_max(u64::try_from(lag.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
