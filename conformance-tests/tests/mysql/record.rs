//! Reads the row of a lease without the library.

use std::time::Duration;

use leasehold_conformance::Record;
use leasehold_core::{FencingToken, LockName};

use super::stored::{Stored, hex, number};

impl Stored<'_> {
    pub(super) fn record(&self, name: &LockName) -> Record {
        let found = self.query(&format!(
            "SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at), fence FROM leasehold_locks \
             WHERE format = '1x' AND name = {}",
            hex(name)
        ));
        let Some(row) = found.first() else { return Record::default() };
        let left = Duration::from_micros(u64::try_from(number::<i64>(row, 0)).unwrap_or_default());
        let fence: u64 = number(row, 1);
        Record {
            holders: (!left.is_zero()).then_some(left).into_iter().collect(),
            last_token: (fence > 0).then(|| FencingToken::new(fence)),
            waiters: None,
        }
    }
}
