//! What a quorum promises, and its limits.

use std::time::Duration;

use leasehold_core::backend::kit::OnRestart;
use leasehold_core::backend::{Capabilities, LossNotice, Restart, Scope, StoreClock, TtlScope, Waiting};

use super::settings::QuorumSettings;
use crate::capabilities::RENEW_BATCH;

/// The longest pause between two attempts of a waiter.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

pub(super) fn of(settings: &QuorumSettings) -> Capabilities {
    let mut it = Capabilities::new("redis+quorum");
    it.scope = Scope::Network;
    it.clock = StoreClock::ServerWall;
    it.ttl_granularity = Duration::from_millis(1);
    it.min_ttl = Duration::from_millis(100);
    it.max_ttl = settings.longest_ttl;
    it.ttl_scope = TtlScope::Lease;
    it.waiting = Waiting::Poll;
    it.fifo = false;
    it.loss_notice = LossNotice::NextRenewal;
    it.takeover_slack = LONGEST_PAUSE + settings.common.timeout;
    it.fencing = "a token that a majority of the servers has accepted, above all that a majority accepted before; at \
         least the servers' time in µs";
    it.restart = Restart::KeepsPersisted;
    it.call_bound = settings.common.timeout;
    it.renew_batch = RENEW_BATCH;
    it.limits_of_exclusion = match settings.common.on_restart {
        OnRestart::Trust => &[STEP, FLUSH, EVICTION, LISTS, BREAK, LOST_TRUSTED],
        OnRestart::Quarantine => &[STEP, FLUSH, EVICTION, LISTS, BREAK],
        _ => &[STEP, FLUSH, EVICTION, LISTS, BREAK, LOST_UNKNOWN],
    };
    it
}

const STEP: &str = "the wall clocks of a majority of the servers are set forward; of fewer, if other servers did not \
     vote for the lease";
const FLUSH: &str = "somebody deletes the lock's keys on a majority of the servers (FLUSHALL, DEL); on fewer, if other \
     servers did not vote for the lease";
const EVICTION: &str = "as many servers are configured to evict keys (`maxmemory-policy`) after the check at connect";
const LISTS: &str = "clients name different servers in their URLs";
const BREAK: &str = "a lease is broken that its holder renews, and before its ttl is over, one server that has ended it \
     loses its data while another was not reached";
const LOST_TRUSTED: &str = "a majority of the servers loses its data at once (`restart=trust`)";
const LOST_UNKNOWN: &str = "all servers lose their data at once, and a client that never saw them before requests a lock \
     before any client that did";
