//! The promises of a row lease, and their limits.

use std::time::Duration;

use leasehold_core::backend::{Capabilities, OnRestart, Restart, StoreClock, Waiting};

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
    it.limits_of_exclusion = match settings.on_restart {
        OnRestart::Trust => &[STEP, FAILOVER_TRUSTED, CRASH_TRUSTED, SPLIT, DELETED],
        OnRestart::Quarantine => &[STEP, TTL_LOST, SPLIT, DELETED],
        _ => &[STEP, TTL_LOST, UNKNOWN, SPLIT, DELETED],
    };
    it
}

const STEP: &str = "the server's wall clock is stepped forward: leases at the store end early (a step back extends them by its length: exclusion \
     holds, but the lock of a dead holder stays blocked for the ttl and the step)";
const FAILOVER_TRUSTED: &str =
    "an asynchronous failover promotes a replica that has not seen the last writes (`restart=trust`)";
const CRASH_TRUSTED: &str =
    "the server loses acknowledged writes in a crash (`innodb_flush_log_at_trx_commit` other than 1, `restart=trust`)";
const TTL_LOST: &str = "a failover to a lagging replica, or a crash of a server whose `innodb_flush_log_at_trx_commit` is not 1, loses the \
     first use of a ttl: clients then wait only for the longest ttl that they know and their own";
const UNKNOWN: &str = "the server is replaced by one whose table does not name it, and a client that never saw the former one requests a \
     lock before any client that did";
const SPLIT: &str = "the former server still grants locks after a failover";
const DELETED: &str = "somebody changes or deletes the lock's row, or restores the table from a backup";
