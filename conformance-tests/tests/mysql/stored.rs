//! Reads the stored format of MySQL without the library.

use std::time::Duration;

use leasehold_conformance::Record;
use leasehold_core::{FencingToken, LockName};
use leasehold_test_servers::{MySqlServer, TextRow};

/// Reads the table of locks in the database `locks`.
pub(super) struct Stored<'a>(pub(super) &'a MySqlServer);

impl Stored<'_> {
    pub(super) fn query(&self, statements: &str) -> Vec<TextRow> {
        self.0.query(statements).unwrap_or_else(|error| panic!("{statements} fails: {error}"))
    }

    pub(super) fn record(&self, name: &LockName) -> Record {
        let found = self.query(&format!(
            "SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at), fence FROM locks.leasehold_locks \
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

pub(super) fn number<N: std::str::FromStr>(row: &TextRow, index: usize) -> N {
    let text = row[index].as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    text.parse().unwrap_or_else(|_| panic!("`{text}` is no number"))
}

/// A name as a literal.
pub(super) fn hex(name: &LockName) -> String {
    let digits: String = name.as_str().bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("X'{digits}'")
}
