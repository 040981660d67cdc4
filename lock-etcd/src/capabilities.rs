//! What an etcd cluster promises, and the limits.

use std::time::Duration;

use leasehold_core::backend::{
    Capabilities, LONGEST_PLACE_TTL, LossNotice, Restart, Scope, StoreClock, TtlScope, Waiting,
};

use crate::errors::BACKEND;
use crate::settings::Settings;

/// etcd counts in whole seconds.
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// How long after its ttl the server revokes a lease at the latest. It looks for ended leases twice a second.
const REVOKED_BY: Duration = Duration::from_millis(600);

/// The most leases in one renew call. Most renewals send nothing.
pub(crate) const RENEW_BATCH: usize = 1_000;

pub(crate) fn of(settings: &Settings) -> Capabilities {
    let mut it = Capabilities::new(BACKEND);
    it.scope = Scope::Network;
    it.clock = StoreClock::ServerMonotonic;
    it.ttl_granularity = SECOND;
    it.min_ttl = SECOND;
    it.max_ttl = Duration::from_secs(24 * 3600);
    it.ttl_scope = TtlScope::Session;
    it.waiting = Waiting::ServerQueue;
    it.fifo = true;
    it.max_place_ttl = LONGEST_PLACE_TTL;
    it.loss_notice = LossNotice::Pushed;
    it.takeover_slack = REVOKED_BY + settings.timeout;
    it.fencing = "the create revision of the claim's key";
    it.restart = Restart::KeepsAll;
    it.call_bound = settings.timeout;
    it.renew_batch = RENEW_BATCH;
    it.limits_of_exclusion = &[DELETED, RESTORED, STALLED];
    it
}

const DELETED: &str =
    "somebody deletes the claim's key or revokes its etcd lease: the holder learns of it at once while it is connected";
const RESTORED: &str =
    "the cluster is restored from a snapshot, or replaced by an empty one: tokens start again from an earlier revision";
const STALLED: &str = "a server with a known defect of leases: a leader that stalled and was replaced revokes leases \
     early (before 3.4.31 and 3.5.13)";
