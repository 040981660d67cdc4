//! What `SELECT … FOR UPDATE` stores.

use std::time::{Duration, Instant};

use leasehold_conformance::{Record, ResourceCounts};
use leasehold_core::LockName;

use super::fixture::{Strategy, StrategyFixture};
use super::record_for_update::{HOLDER, WAITS};
use super::resource_counts::CLIENTS;
use super::stored::{Stored, hex, number};

pub(super) struct ForUpdate;

pub(super) type MySqlFixture = StrategyFixture<ForUpdate>;

/// How long a connection may take to end.
const ENDS_BY: Duration = Duration::from_secs(5);

impl Strategy for ForUpdate {
    const SETTINGS: &'static str = "&strategy=for-update&locks=1100";
    const TTL: Duration = Duration::from_secs(1);
    const TABLE: &'static str = "leasehold_fences";
    const TABLES: &'static [&'static str] = &["leasehold_fences", "leasehold_for_update"];
    /// A thousand leases are a thousand connections.
    const MAX_CONNECTIONS: u32 = 3000;
    /// The backend tells two runs of a server apart by the seconds in which they began.
    const LEAST_RUN: Duration = Duration::from_millis(1_100);
    const RENEWALS_WRITE: bool = false;

    fn record(stored: &Stored<'_>, name: &LockName) -> Record {
        stored.record(name)
    }

    fn resource_counts(stored: &Stored<'_>) -> ResourceCounts {
        let found =
            stored.query(&format!("SELECT COUNT({HOLDER}), COUNT(*) - COUNT({HOLDER}) FROM leasehold_fences f"));
        let places = stored.query(&format!("SELECT COUNT(*) FROM {CLIENTS} AND {WAITS}"));
        let transactions = stored.transactions();
        let (leases, places): (u64, u64) = (number(&found[0], 0), number(&places[0], 0));
        ResourceCounts {
            leases,
            places,
            fences: number(&found[0], 1),
            connections: stored.connections(),
            other: transactions.saturating_sub(leases + places),
            ..ResourceCounts::default()
        }
    }

    /// Each acquire begins a transaction, and each renewal and release runs a `DO`.
    fn served(stored: &Stored<'_>) -> u64 {
        stored.status("Com_begin") + stored.status("Com_do")
    }

    fn remove(stored: &Stored<'_>, name: &LockName) {
        let holder = format!("SELECT CAST({HOLDER} AS CHAR) FROM leasehold_fences f WHERE f.name = {}", hex(name));
        let holder = stored.query(&holder).first().and_then(|row| row[0].clone());
        let Some(id) = holder.map(|id| String::from_utf8_lossy(&id).into_owned()) else { return };
        stored.query(&format!("KILL {id}"));
        let begin = Instant::now();
        let is_there = format!("SELECT 1 FROM information_schema.processlist WHERE id = {id}");
        while begin.elapsed() < ENDS_BY && !stored.query(&is_there).is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
