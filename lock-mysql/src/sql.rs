//! Values in statements, and in the rows that they return.

use std::time::Duration;

use sqlx::mysql::MySqlRow;
use sqlx::{MySql, Row};

use crate::errors::Failure;

/// Bytes as a literal.
pub(crate) fn literal(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 * bytes.len() + 3);
    text.push_str("X'");
    for byte in bytes {
        let _ = write!(text, "{byte:02X}");
    }
    text.push('\'');
    text
}

pub(crate) fn literals<'a>(values: impl Iterator<Item = &'a [u8]>) -> String {
    values.map(literal).collect::<Vec<_>>().join(", ")
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// A duration in microseconds; zero for one that has passed.
pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

/// Reads a column.
pub(crate) fn get<'r, T>(row: &'r MySqlRow, index: usize) -> Result<T, Failure>
where
    T: sqlx::Decode<'r, MySql> + sqlx::Type<MySql>,
{
    row.try_get(index).map_err(|_| Failure::UnexpectedReply)
}
