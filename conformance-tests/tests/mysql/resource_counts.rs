//! Counts what a server holds and what it has done, and changes rows without the library.

use leasehold_conformance::ResourceCounts;
use leasehold_core::LockName;

use super::stored::{Stored, hex, number};

impl Stored<'_> {
    /// Changes the row of a lock: `change` precedes the condition.
    pub(super) fn change(&self, change: &str, name: &LockName) {
        self.query(&format!("{change} WHERE name = {}", hex(name)));
    }

    pub(super) fn resource_counts(&self) -> ResourceCounts {
        let found = self.query(
            "SELECT COUNT(CASE WHEN expires_at > UTC_TIMESTAMP(6) THEN 1 END), \
             COUNT(CASE WHEN expires_at <= UTC_TIMESTAMP(6) AND fence > 0 THEN 1 END), \
             CAST(COALESCE(SUM(CASE WHEN withdrawn_until > UTC_TIMESTAMP(6) THEN LENGTH(withdrawn) DIV 16 END), 0) AS SIGNED) \
             FROM locks.leasehold_locks",
        );
        let connections =
            self.query("SELECT COUNT(*) FROM information_schema.processlist WHERE user NOT IN ('root', 'system user')");
        let row = &found[0];
        ResourceCounts {
            leases: number(row, 0),
            fences: number(row, 1),
            tombstones: number(row, 2),
            connections: number(&connections[0], 0),
            ..ResourceCounts::default()
        }
    }

    /// How many prepared statements clients have executed. The fixture prepares none.
    pub(super) fn executed(&self) -> u64 {
        number(&self.query("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'")[0], 1)
    }
}
