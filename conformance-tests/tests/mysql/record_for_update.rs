//! Reads who holds a lock by `SELECT … FOR UPDATE` without the library.

use std::time::Duration;

use leasehold_conformance::Record;
use leasehold_core::{FencingToken, LockName};

use super::stored::{Stored, hex, number};

/// The connection that has the named lock of a row of `leasehold_fences`.
pub(super) const HOLDER: &str =
    "IS_USED_LOCK(CONCAT('leasehold:', LEFT(SHA2(CONCAT(CAST(DATABASE() AS BINARY), '/', f.name), 256), 40)))";

/// A statement that waits for a row.
pub(super) const WAITS: &str = "info LIKE 'SELECT CAST(GET_LOCK(%FROM leasehold_for_update WHERE name = %FOR UPDATE'";

impl Stored<'_> {
    pub(super) fn record(&self, name: &LockName) -> Record {
        // MySQL shows the time of a connection in whole seconds, and MariaDB also in milliseconds.
        let found = self.query(&format!(
            "SELECT CAST(f.fence AS CHAR), {HOLDER} IS NOT NULL, \
             CAST(f.ttl * 1000000 - (SELECT COALESCE(SUM(/*M! p.time_ms * 1000 + 0 * */ p.time * 1000000), 0) \
             FROM information_schema.processlist p WHERE p.id = {HOLDER}) AS SIGNED) \
             FROM leasehold_fences f WHERE f.format = '1u' AND f.name = {}",
            hex(name)
        ));
        let pattern = format!("%name = {}%", hex(name)).replace('\'', "''");
        let waiters = self.query(&format!(
            "SELECT COUNT(*) FROM information_schema.processlist \
             WHERE db = DATABASE() AND {WAITS} AND info LIKE '{pattern}'"
        ));
        let waiters: u64 = number(&waiters[0], 0);
        let Some(row) = found.first() else {
            return Record { waiters: (waiters > 0).then_some(waiters), ..Record::default() };
        };
        let waiters = Some(waiters);
        let is_held = number::<u64>(row, 1) == 1;
        let left = Duration::from_micros(u64::try_from(number::<i64>(row, 2)).unwrap_or_default());
        Record {
            holders: is_held.then_some(left).into_iter().collect(),
            last_token: Some(FencingToken::new(number(row, 0))),
            waiters,
        }
    }
}
