//! What a SQLite file promises, and the limits.

use std::time::Duration;

use leasehold_core::backend::{Capabilities, LossNotice, Restart, Scope, StoreClock, TtlScope, Waiting};

use crate::errors::BACKEND;
use crate::notifier;
use crate::settings::Settings;

/// The most leases in one renew call. It is one transaction, during which no other process can write.
pub(crate) const RENEW_BATCH: usize = 200;

/// A waiter retries after this at the latest. It bounds the delay if the waiter misses the notification of a release.
pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_secs(1);

pub(crate) fn of(settings: &Settings) -> Capabilities {
    let mut it = Capabilities::new(BACKEND);
    it.scope = Scope::Machine;
    it.clock = StoreClock::MachineBoot;
    it.ttl_granularity = Duration::from_micros(1);
    it.min_ttl = Duration::from_millis(100);
    it.max_ttl = Duration::from_secs(24 * 3600);
    it.ttl_scope = TtlScope::Lease;
    it.waiting = if notifier::is_supported() { Waiting::Notification } else { Waiting::Poll };
    it.fifo = false;
    it.loss_notice = LossNotice::NextRenewal;
    // A waiter retries when the holder's lease ends.
    it.takeover_slack = Duration::from_millis(100);
    it.fencing = "the last token + 1, at least the machine's wall clock in µs; kept with the lock's record";
    it.restart = Restart::KeepsAll;
    it.call_bound = settings.timeout;
    it.renew_batch = RENEW_BATCH;
    it.limits_of_exclusion = &[
        "somebody deletes, replaces or truncates the file, its `-wal` or its `-shm`, or puts an older copy in its \
         place, while locks are held",
        "two machines reach the file, in a way that looks like a local disk",
        "processes reach the file through two paths, and the second one (a bind mount in another mount namespace) is \
         not visible",
        "somebody changes the table `leasehold_locks` by hand",
    ];
    it
}
