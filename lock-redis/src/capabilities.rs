//! What a Redis promises, and where the promise ends.

use std::time::Duration;

use leasehold_core::backend::{
    Capabilities, LONGEST_PLACE_TTL, LossNotice, Restart, Scope, StoreClock, TtlScope, Waiting,
};

use crate::errors::BACKEND;
use crate::settings::{OnRestart, Settings};

/// How many leases one renew call takes: with more nothing is gained, and the server stands still for others.
pub(crate) const RENEW_BATCH: usize = 100;

pub(crate) fn of(settings: &Settings) -> Capabilities {
    let mut it = Capabilities::new(BACKEND);
    it.scope = Scope::Network;
    it.clock = StoreClock::ServerWall;
    it.ttl_granularity = Duration::from_millis(1);
    it.min_ttl = Duration::from_millis(100);
    it.max_ttl = Duration::from_secs(24 * 3600);
    it.ttl_scope = TtlScope::Lease;
    it.waiting = Waiting::ServerQueue;
    it.fifo = true;
    // The scripts hold the same number.
    it.max_place_ttl = LONGEST_PLACE_TTL;
    it.loss_notice = LossNotice::NextRenewal;
    // A waiter looks when the holder's lease ends, and a look takes a call.
    it.takeover_slack = settings.timeout;
    it.fencing = "the last token + 1, at least the server's time in µs; kept with the lock's record";
    it.restart = Restart::KeepsPersisted;
    it.call_bound = settings.timeout;
    it.renew_batch = RENEW_BATCH;
    it.exclusion_ends = match settings.on_restart {
        OnRestart::Trust => &[STEP, FAILOVER, FLUSH, EVICTION, RESTART_TRUSTED],
        OnRestart::QuarantineKnown => &[STEP, FAILOVER, FLUSH, EVICTION, RESTART_UNHEARD, RESTART_UNKNOWN],
        OnRestart::Quarantine => &[STEP, FAILOVER, FLUSH, EVICTION, RESTART_UNHEARD],
    };
    it
}

const STEP: &str = "the server's wall clock is stepped forward: leases at the store end early (stepped back, they last for as much longer: exclusion \
     holds, and the lock of a holder that died stays blocked for the ttl and the step)";
const FAILOVER: &str = "an asynchronous failover promotes a replica that has not seen the last writes";
const FLUSH: &str = "somebody deletes the lock's keys (FLUSHALL, DEL)";
const EVICTION: &str = "the server is told to evict keys (`maxmemory-policy`) after the check at connect";
const RESTART_TRUSTED: &str = "the server restarts without its last writes (`restart=trust`)";
const RESTART_UNHEARD: &str = "the server restarts without its data, and the message about a longer ttl that had come into use did not \
     reach a client, which then waits for the longest ttl that it knows and its own";
const RESTART_UNKNOWN: &str = "the server restarts without its data, and a client that never saw it before asks before any that had; \
     from then on others that never saw it are served as well";
