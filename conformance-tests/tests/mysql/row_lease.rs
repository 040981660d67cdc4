//! What the row lease stores.

use std::time::Duration;

use leasehold_conformance::{Record, ResourceCounts};
use leasehold_core::LockName;

use super::fixture::{Strategy, StrategyFixture};
use super::stored::{Stored, number};

pub(super) struct RowLease;

pub(super) type MySqlFixture = StrategyFixture<RowLease>;

impl Strategy for RowLease {
    const SETTINGS: &'static str = "";
    const TTL: Duration = Duration::from_millis(600);
    const TABLE: &'static str = "leasehold_locks";
    const TABLES: &'static [&'static str] = &["leasehold_locks"];
    const MAX_CONNECTIONS: u32 = 300;
    const LEAST_RUN: Duration = Duration::ZERO;
    const RENEWALS_WRITE: bool = true;

    fn record(stored: &Stored<'_>, name: &LockName) -> Record {
        stored.record(name)
    }

    fn resource_counts(stored: &Stored<'_>) -> ResourceCounts {
        let found = stored.query(
            "SELECT COUNT(CASE WHEN expires_at > UTC_TIMESTAMP(6) THEN 1 END), \
             COUNT(CASE WHEN expires_at <= UTC_TIMESTAMP(6) AND fence > 0 THEN 1 END), \
             CAST(COALESCE(SUM(CASE WHEN withdrawn_until > UTC_TIMESTAMP(6) THEN LENGTH(withdrawn) DIV 16 END), 0) \
             AS SIGNED) \
             FROM leasehold_locks",
        );
        let row = &found[0];
        ResourceCounts {
            leases: number(row, 0),
            fences: number(row, 1),
            tombstones: number(row, 2),
            connections: stored.connections(),
            other: stored.transactions(),
            ..ResourceCounts::default()
        }
    }

    /// The fixture prepares no statement. A renewal is an update of two tables, as text.
    fn served(stored: &Stored<'_>) -> u64 {
        stored.status("Com_stmt_execute") + stored.status("Com_update_multi")
    }

    fn remove(stored: &Stored<'_>, name: &LockName) {
        stored.change("DELETE FROM leasehold_locks", name);
    }
}
