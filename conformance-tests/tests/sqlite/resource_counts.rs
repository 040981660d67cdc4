//! The resources in a file.

use leasehold::sqlite::rusqlite::params;
use leasehold_conformance::ResourceCounts;
use leasehold_conformance::harness::machine_now;

use super::stored::Stored;

impl Stored {
    /// Counts all rows of the file.
    pub(crate) fn resource_counts(&self) -> ResourceCounts {
        if !self.has_tables() {
            return ResourceCounts::default();
        }
        let sql = "SELECT count(*) FILTER (WHERE owner <> x'' AND until > ?1), count(*) FROM leasehold_locks";
        let now = i64::try_from(machine_now().as_micros()).expect("the machine is younger than that");
        let (leases, rows): (i64, i64) = self
            .connection()
            .query_row(sql, params![now], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap_or_else(|error| panic!("the rows cannot be counted: {error}"));
        let (leases, fences) = (leases.unsigned_abs(), (rows - leases).unsigned_abs());
        ResourceCounts { leases, fences, ..ResourceCounts::default() }
    }
}
