//! Removes the rows of locks that have been free for longer than the retention.

use std::time::Duration;

use tokio::time::Instant;

use crate::errors::Failure;
use crate::maintenance::Purge;
use crate::pool::Pool;
use crate::row::backend::RowLease;
use crate::row::rows::bind_all;
use crate::row::statements::{PURGE, PURGE_ROWS, PURGEABLE, PURGEABLE_ROWS};
use crate::session::SetUp;
use crate::sql::{get, micros};

impl Purge for RowLease {
    const SET_UP: SetUp = SetUp { statements: &[], facts: "" };

    async fn step(
        pool: &Pool,
        after: &[u8],
        retention: Duration,
        until: Instant,
    ) -> Result<Option<(Vec<u8>, u64)>, Failure> {
        let retention = micros(retention);
        let query = sqlx::query(PURGEABLE).bind(retention).bind(retention).bind(after);
        let rows = pool.fetch(query, until).await?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        for row in &rows {
            if get::<i64>(row, 1)? != 0 {
                names.push(get(row, 0)?);
            }
        }
        let mut removed = 0;
        for names in names.chunks(PURGE_ROWS) {
            let purge = bind_all(sqlx::query(PURGE), names, PURGE_ROWS, |name| &**name);
            removed += pool.execute(purge.bind(retention).bind(retention), until).await?.rows_affected();
        }
        match rows.last() {
            Some(last) if rows.len() >= PURGEABLE_ROWS => Ok(Some((get(last, 0)?, removed))),
            _ => Ok(None),
        }
    }
}
