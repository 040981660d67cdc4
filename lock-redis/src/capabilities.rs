//! What a Redis server promises, and the limits.

use std::time::Duration;

use leasehold_core::backend::kit::OnRestart;
use leasehold_core::backend::kit::limits::{FAILOVER_TRUSTED, STEP};
use leasehold_core::backend::{
    Capabilities, LONGEST_PLACE_TTL, LossNotice, Restart, Scope, StoreClock, TtlScope, Waiting,
};

use crate::errors::BACKEND;
use crate::replicas::MinReplicas;
use crate::settings::Settings;

/// The most leases in one renew call. More gain nothing, and the server serves no other client meanwhile.
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
    // The scripts contain the same number.
    it.max_place_ttl = LONGEST_PLACE_TTL;
    it.loss_notice = LossNotice::NextRenewal;
    // A waiter retries when the holder's lease ends, and a retry takes a call.
    it.takeover_slack = settings.timeout;
    it.fencing = "the last token + 1, at least the server's time in µs; kept with the lock's record";
    it.restart = Restart::KeepsPersisted;
    it.call_bound = settings.timeout;
    it.renew_batch = RENEW_BATCH;
    it.limits_of_exclusion = match (settings.on_restart, settings.min_replicas) {
        (OnRestart::Trust, Some(MinReplicas::All)) => &[STEP, FAILOVER_ALL, FLUSH, EVICTION, RESTART_TRUSTED],
        (OnRestart::Trust, _) => &[STEP, FAILOVER_TRUSTED, FLUSH, EVICTION, RESTART_TRUSTED],
        (OnRestart::Quarantine, Some(MinReplicas::All)) => &[STEP, FAILOVER_ALL, FLUSH, EVICTION, RESTART_MISSED],
        (OnRestart::Quarantine, _) => &[STEP, FAILOVER, FLUSH, EVICTION, RESTART_MISSED],
        (_, Some(MinReplicas::All)) => &[STEP, FAILOVER_ALL, FLUSH, EVICTION, RESTART_MISSED, RESTART_UNKNOWN],
        _ => &[STEP, FAILOVER, FLUSH, EVICTION, RESTART_MISSED, RESTART_UNKNOWN],
    };
    it
}

/// Those of a primary that Sentinels name: clients do not believe a former one for longer than they wait.
pub(crate) fn behind_sentinels(settings: &Settings) -> Capabilities {
    let mut it = of(settings);
    it.backend = "redis+sentinel";
    it.limits_of_exclusion = match settings.on_restart {
        OnRestart::Trust => &[STEP, FAILOVER_TRUSTED, FLUSH, EVICTION, RESTART_TRUSTED, SENTINELS],
        OnRestart::Quarantine => &[STEP, FLUSH, EVICTION, RESTART_MISSED, SENTINELS],
        _ => &[STEP, FLUSH, EVICTION, RESTART_MISSED, RESTART_UNKNOWN, SENTINELS],
    };
    it
}

/// Those of a cluster: each node is a server with replicas.
pub(crate) fn of_cluster(settings: &Settings) -> Capabilities {
    let mut it = of(settings);
    it.backend = "redis+cluster";
    it.limits_of_exclusion = match settings.on_restart {
        OnRestart::Trust => &[STEP, FAILOVER_TRUSTED, FLUSH, EVICTION, RESTART_TRUSTED, SLOTS],
        OnRestart::Quarantine => &[STEP, FAILOVER, FLUSH, EVICTION, RESTART_MISSED, SLOTS],
        _ => &[STEP, FAILOVER, FLUSH, EVICTION, RESTART_MISSED, RESTART_UNKNOWN, SLOTS],
    };
    it
}

const SLOTS: &str = "an operator takes a slot from a node that still has keys of it, or abandons a migration after \
     clients have locked at its target (`CLUSTER SETSLOT … STABLE`); or a slot is moved to a node whose clock is ahead, \
     or away from a node that has just lost data and lets its holders put their leases back";
const FAILOVER: &str = "an asynchronous failover promotes a replica while the former primary still confirms requests, \
     or a server is demoted and promoted by hand while a client sends nothing";
const FAILOVER_ALL: &str = "a failover promotes a replica that was not connected to the primary while the client was";
const SENTINELS: &str = "clients do not all name all Sentinels in their URLs, or a majority of the Sentinels names a \
     former primary again that no failover has promoted (`SENTINEL REMOVE` and `MONITOR`)";
const FLUSH: &str = "somebody deletes the lock's keys (FLUSHALL, DEL)";
const EVICTION: &str = "the server is configured to evict keys (`maxmemory-policy`) after the check at connect";
const RESTART_TRUSTED: &str = "the server restarts without its last writes, and a client requests a lock before its \
     holder has put its lease back (`restart=trust`)";
const RESTART_MISSED: &str = "the server restarts without its data or a lagging replica is promoted, and a client \
     missed the message about a longer ttl that had come into use: it waits only for the longest ttl that it knows and \
     its own, and is granted a lock whose holder has not put its lease back by then";
const RESTART_UNKNOWN: &str = "the server restarts without its data, and a client that never saw it requests a lock \
     before any client that did and before its holder has put its lease back; from then on, other clients that never \
     saw it are served too";
