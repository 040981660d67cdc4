//! Removes the rows of locks that have been free for longer than the retention.

use std::time::Duration;

use tokio::time::Instant;

use super::backend::ForUpdate;
use super::connection::Connection;
use super::statements::{self, LEASES, PURGE_ROWS};
use crate::errors::Failure;
use crate::maintenance::{Purge, removable};
use crate::pool::Pool;
use crate::session::SetUp;
use crate::sql::get;

impl Purge for ForUpdate {
    const SET_UP: SetUp = LEASES;

    async fn step(
        pool: &Pool,
        after: &[u8],
        retention: Duration,
        until: Instant,
    ) -> Result<Option<(Vec<u8>, u64)>, Failure> {
        let mut connection = Connection::take(pool, until).await?;
        // The ttl of a lease that a restart has ended is needed until the server has run for that ttl.
        let uptime = connection.uptime().as_secs();
        let rows = connection.fetch(statements::purgeable(after, retention, uptime), until).await?;
        let last = match rows.last() {
            Some(last) if rows.len() >= PURGE_ROWS => Some(get::<Vec<u8>>(last, 0)?),
            _ => None,
        };
        let names = removable(&rows)?;
        let mut removed = 0;
        if !names.is_empty() {
            // A claim that holds or is being granted the lock has locked its row, which is skipped.
            let free = connection.fetch(statements::lock_free(&names), until).await?;
            removed = free.len() as u64;
            let free = free.iter().map(|row| get(row, 0)).collect::<Result<Vec<Vec<u8>>, _>>()?;
            connection.execute(statements::remove(&free, retention, uptime), until).await?;
        }
        connection.put_back();
        Ok(last.map(|last| (last, removed)))
    }
}
