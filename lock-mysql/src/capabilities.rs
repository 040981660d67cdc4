//! The promises of both strategies, and their limits.

use std::time::Duration;

use leasehold_core::backend::{Capabilities, OnRestart, Restart, StoreClock, TtlScope, Waiting};

use crate::errors::BACKEND;
use crate::for_update::SECOND;
use crate::row::statements::RENEW_ROWS;
use crate::settings::{Settings, Strategy};

pub(crate) fn of(settings: &Settings) -> Capabilities {
    match settings.strategy {
        Strategy::Row => of_rows(settings),
        Strategy::ForUpdate => of_for_update(settings),
    }
}

fn of_rows(settings: &Settings) -> Capabilities {
    let mut it = Capabilities::new(BACKEND);
    it.clock = StoreClock::ServerWall;
    it.ttl_granularity = Duration::from_millis(1);
    it.waiting = Waiting::Poll;
    it.takeover_slack = settings.timeout;
    it.fencing = "the last token + 1, at least the server's time in µs; kept in the lock's row";
    it.restart = Restart::KeepsAll;
    it.call_bound = settings.timeout;
    it.renew_batch = RENEW_ROWS;
    it.limits_of_exclusion = match settings.on_restart {
        OnRestart::Trust => &[STEP, FAILOVER_TRUSTED, CRASH_TRUSTED, SPLIT, DELETED],
        OnRestart::Quarantine => &[STEP, TTL_LOST, SPLIT, DELETED],
        _ => &[STEP, TTL_LOST, UNKNOWN, SPLIT, DELETED],
    };
    it
}

fn of_for_update(settings: &Settings) -> Capabilities {
    let mut it = Capabilities::new(BACKEND);
    it.clock = StoreClock::ServerMonotonic;
    it.ttl_granularity = SECOND;
    it.min_ttl = SECOND;
    it.ttl_scope = TtlScope::Connection;
    it.waiting = Waiting::ServerQueue;
    it.takeover_slack = settings.timeout;
    it.fencing = "the last token + 1, at least the server's time in µs; kept in a row of its own";
    it.restart = Restart::KeepsPersisted;
    it.call_bound = settings.timeout;
    it.renew_batch = 1_000;
    it.limits_of_exclusion = &[CUT, KILLED, FAILOVER, CRASH];
    it
}

const CUT: &str = "the connection of a lease breaks, or somebody ends it: the server grants the lock to the next claim at once, and the \
     holder learns of it when it uses the connection again, within `keepalive` (3 s)";
const FAILOVER: &str =
    "an asynchronous failover promotes a replica: the former holders do not know that their leases have ended";
const CRASH: &str = "the server loses acknowledged writes in a crash (`innodb_flush_log_at_trx_commit` other than 1)";
const KILLED: &str = "the server is restarted under a lease, and the row of its token is removed or lost";
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
