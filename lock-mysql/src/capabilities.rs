//! The promises of a row lease, and their limits.

use std::time::Duration;

use leasehold_core::backend::{Capabilities, Restart, StoreClock, Waiting};

use crate::errors::BACKEND;
use crate::settings::Settings;
use crate::statements::SIZES;

/// The most leases in one renew call.
pub(crate) const RENEW_BATCH: usize = SIZES[SIZES.len() - 1];

pub(crate) fn of(settings: &Settings) -> Capabilities {
    let mut it = Capabilities::new(BACKEND);
    it.clock = StoreClock::ServerWall;
    it.ttl_granularity = Duration::from_millis(1);
    it.waiting = Waiting::Poll;
    it.takeover_slack = settings.timeout;
    it.fencing = "the last token + 1, at least the server's time in µs; kept in the lock's row";
    it.restart = Restart::KeepsAll;
    it.call_bound = settings.timeout;
    it.renew_batch = RENEW_BATCH;
    it.limits_of_exclusion = &[STEP, FAILOVER, CRASH, DELETED];
    it
}

const STEP: &str = "the server's wall clock is stepped forward: leases at the store end early (a step back extends them by its length: exclusion \
     holds, but the lock of a dead holder stays blocked for the ttl and the step)";
const FAILOVER: &str = "an asynchronous failover promotes a replica that has not seen the last writes";
const CRASH: &str = "the server loses acknowledged writes in a crash (`innodb_flush_log_at_trx_commit` other than 1)";
const DELETED: &str = "somebody changes or deletes the lock's row";
