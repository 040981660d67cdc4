//! Removes the rows of locks that have been free for longer than the retention.

use std::time::Duration;

use tokio::time::Instant;

use crate::errors::Failure;
use crate::maintenance::{Purge, removable};
use crate::pool::Pool;
use crate::row::backend::RowLease;
use crate::row::statements::{PURGE_ROWS, PURGEABLE_ROWS, purge, purgeable};
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
        let rows = pool.fetch_text(purgeable(after, retention), until).await?;
        let names = removable(&rows)?;
        let mut removed = 0;
        for names in names.chunks(PURGE_ROWS) {
            removed += pool.execute_text(purge(names, retention), until).await?;
        }
        match rows.last() {
            Some(last) if rows.len() >= PURGEABLE_ROWS => Ok(Some((get(last, 0)?, removed))),
            _ => Ok(None),
        }
    }
}
