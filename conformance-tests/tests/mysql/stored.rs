//! Reads the stored format of MySQL without the library.

use leasehold_core::LockName;
use leasehold_test_servers::{Sql, TextRow};

/// Reads the tables of locks, in the database of the test.
pub(super) struct Stored<'a>(pub(super) &'a dyn Sql);

impl Stored<'_> {
    pub(super) fn query(&self, statements: &str) -> Vec<TextRow> {
        self.0.query(statements).unwrap_or_else(|error| panic!("{statements} fails: {error}"))
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
