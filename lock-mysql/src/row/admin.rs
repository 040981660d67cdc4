//! Administration: inspect a lock, list locks, and break a lease.

use async_trait::async_trait;
use leasehold_core::admin::{Check, Listed, ListedName, Listing};
use leasehold_core::backend::Admin;
use leasehold_core::{FencingToken, HolderInfo, LeaseInfo, LockInfo, LockName, Result};
use sqlx::mysql::MySqlRow;

use crate::errors::Failure;
use crate::examine::examine;
use crate::row::backend::RowLease;
use crate::row::statements::{BREAK, COUNT, INSPECT, IS_READABLE, LIST, LIST_UNREADABLE};
use crate::sql::{duration, get};
use crate::strategy;

/// Decodes a row for display.
fn read_row(row: &MySqlRow) -> Result<LockInfo, Failure> {
    let is_held: i64 = get(row, 1)?;
    let token = FencingToken::new(get(row, 2)?);
    let holder: Vec<u8> = get(row, 4)?;
    let holder = HolderInfo::decode(&String::from_utf8_lossy(&holder)).map(|(_, holder)| holder);
    let lease = (is_held != 0).then(|| Ok::<_, Failure>(LeaseInfo::new(token, duration(get(row, 3)?), holder)));
    // A withdrawn claim may have left a row without a grant.
    let last_token = (token.get() > 0).then_some(token);
    Ok(LockInfo::new(last_token, lease.transpose()?.into_iter().collect(), None))
}

impl RowLease {
    async fn try_inspect(&self, name: &LockName) -> Result<Option<LockInfo>, Failure> {
        let (until, pool) = (self.until(), self.rows.connections.calls.pool()?);
        let mut connection = strategy::checkout(&pool, until).await?;
        let rows = connection.fetch(sqlx::query(INSPECT).bind(name.as_bytes()), until).await;
        connection.put_back();
        let rows = rows?;
        let Some(row) = rows.first() else { return Ok(None) };
        match get::<i64>(row, 0)? {
            0 => Err(Failure::other_format()),
            _ => read_row(row).map(Some),
        }
    }

    async fn try_list(&self, prefix: &str, limit: usize) -> Result<Listing, Failure> {
        let pool = self.rows.connections.calls.pool()?;
        let until = self.rows.connections.shared.until_listed();
        let limit = limit.min(Listing::MAX) as u64;
        let mut connection = strategy::checkout(&pool, self.until()).await?;
        let query = |text| sqlx::query(text).bind(prefix.as_bytes()).bind(prefix.as_bytes()).bind(limit);
        let rows = connection.fetch(query(LIST), until).await?;
        let unreadable = connection.fetch(query(LIST_UNREADABLE), until).await?;
        connection.put_back();
        let locks = rows.iter().map(|row| Ok(Listed::new(ListedName::from_bytes(get(row, 5)?), read_row(row)?)));
        let unreadable = unreadable.iter().map(|row| Ok(ListedName::from_bytes(get(row, 0)?)));
        Ok(Listing::new(locks.collect::<Result<_, Failure>>()?, unreadable.collect::<Result<_, Failure>>()?))
    }

    async fn try_break(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>, Failure> {
        let (until, pool) = (self.until(), self.rows.connections.calls.pool()?);
        let mut connection = strategy::checkout(&pool, until).await?;
        // `BREAK` changes no row of another format. Its result would look like that of a lease that has ended.
        let rows = connection.fetch(sqlx::query(IS_READABLE).bind(name.as_bytes()), until).await?;
        if let Some(row) = rows.first()
            && get::<i64>(row, 0)? == 0
        {
            return Err(Failure::other_format());
        }
        let done = connection.execute(sqlx::query(BREAK).bind(name.as_bytes()).bind(token.get()), until).await;
        connection.put_back();
        let done = done?;
        Ok((done.rows_affected() > 0).then(|| FencingToken::new(done.last_insert_id())))
    }
}

#[async_trait]
impl Admin for RowLease {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockInfo>> {
        self.try_inspect(name).await.map_err(Failure::without_effect)
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing> {
        self.try_list(prefix, limit).await.map_err(Failure::without_effect)
    }

    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>> {
        Ok(self.try_break(name, token).await?)
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        Ok(examine(&self.rows.connections.shared, COUNT).await)
    }
}
