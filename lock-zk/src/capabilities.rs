//! What ZooKeeper promises, and the limits.

use std::time::Duration;

use leasehold_core::backend::{Capabilities, LossNotice, Restart, Scope, StoreClock, TtlScope, Waiting};

use crate::errors::BACKEND;
use crate::settings::Settings;

/// The most leases in one renew call. They share a write, or send nothing.
pub(crate) const RENEW_BATCH: usize = 1_000;

const LONGEST_TTL: Duration = Duration::from_secs(24 * 3600);

/// A place lasts as long as the session of its client. A confirmation promises no more than this.
pub(crate) const LONGEST_PLACE: Duration = Duration::from_secs(8 * 3600);

pub(crate) fn of(settings: &Settings) -> Capabilities {
    let mut it = Capabilities::new(BACKEND);
    it.scope = Scope::Network;
    it.clock = StoreClock::ServerMonotonic;
    it.min_ttl = Duration::from_secs(1);
    it.max_ttl = LONGEST_TTL;
    it.ttl_scope = TtlScope::Session;
    it.waiting = Waiting::ServerQueue;
    it.fifo = true;
    it.max_place_ttl = LONGEST_PLACE;
    it.loss_notice = LossNotice::Pushed;
    // A session lasts two ticks longer than its leases, and ends with a tick.
    it.takeover_slack = settings.tick * 3 + settings.timeout;
    it.fencing = "the transaction that created the claim's node";
    it.restart = Restart::KeepsAll;
    it.call_bound = settings.timeout;
    it.renew_batch = RENEW_BATCH;
    it.limits_of_exclusion = &[DELETED, WRITTEN, RESTORED, TICK];
    it
}

const DELETED: &str =
    "somebody deletes the claim's node or ends its session: the holder learns of it at once while it is connected";
const WRITTEN: &str =
    "somebody writes the node of a claim by hand: the next claim in its queue takes that for a release, and holds";
const TICK: &str =
    "`tick` in the URL is shorter than the `tickTime` of the servers: they may end a session before its leases";
const RESTORED: &str =
    "the servers are restored from a backup, or replaced by empty ones: tokens start again from an earlier transaction";
