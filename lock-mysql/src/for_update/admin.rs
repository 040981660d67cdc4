//! Administration: inspect a lock, list locks, and break a lease.

use async_trait::async_trait;
use leasehold_core::admin::{Check, Listed, ListedName, Listing};
use leasehold_core::backend::Admin;
use leasehold_core::{Error, ErrorKind, FencingToken, HolderInfo, LeaseInfo, LockInfo, LockName, Result};
use sqlx::mysql::MySqlRow;
use tokio::time::Instant;

use super::backend::ForUpdate;
use super::connection::Endpoint;
use super::fences;
use super::statements::{self, KEEP_TOKEN, RAISE_TOKEN, Statements};
use crate::errors::Failure;
use crate::examine::examine;
use crate::sql::{duration, get};
use crate::strategy;

const PERMISSIONS: &str = "to end the lease of another user, this one needs the permissions PROCESS and \
     CONNECTION ADMIN (CONNECTION_ADMIN on MySQL)";

/// Decodes a row of [`statements::STATE`] for display; `None` for another format.
fn read_row(row: &MySqlRow) -> Result<Option<LockInfo>, Failure> {
    if get::<i64>(row, 0)? == 0 {
        return Ok(None);
    }
    let (is_held, token): (i64, _) = (get(row, 1)?, FencingToken::new(get(row, 2)?));
    let holder: Vec<u8> = get(row, 4)?;
    let holder = HolderInfo::decode(&String::from_utf8_lossy(&holder)).map(|(_, holder)| holder);
    let left = duration(get::<i64>(row, 3)?.saturating_mul(1_000));
    let lease = (is_held != 0).then(|| match is_shown(row) {
        Ok(true) => Ok(LeaseInfo::new(token, left, holder)),
        Ok(false) => Ok(LeaseInfo::of_unknown_age(token, left, holder)),
        Err(failure) => Err(failure),
    });
    let lease = lease.transpose()?;
    Ok(Some(LockInfo::new(Some(token), lease.into_iter().collect(), None)))
}

/// Whether the server shows this user the connection of the lease, and so its age.
fn is_shown(row: &MySqlRow) -> Result<bool, Failure> {
    Ok(get::<i64>(row, 6)? != 0)
}

impl ForUpdate {
    async fn fetch(&self, query: String, until: Instant) -> Result<Vec<MySqlRow>, Failure> {
        let pool = self.connections.calls.pool()?;
        let mut connection = strategy::checkout(&pool, self.until()).await?;
        let rows = connection.fetch_text(query, until).await;
        connection.put_back();
        rows
    }

    async fn try_inspect(&self, name: &LockName) -> Result<Option<LockInfo>, Failure> {
        let rows = self.fetch(Statements::new(name).inspect(), self.until()).await?;
        // The last row is the number of waiters.
        let [row, waiters] = &rows[..] else { return Ok(None) };
        let info = read_row(row)?.ok_or_else(Failure::other_format)?;
        // A user who does not see the holder's connection does not see those of waiters either.
        let is_shown = !info.is_held() || is_shown(row)?;
        let waiters = u64::try_from(get::<i64>(waiters, 0)?).unwrap_or_default();
        Ok(Some(LockInfo::new(info.last_token, info.holders, is_shown.then_some(waiters))))
    }

    async fn try_list(&self, prefix: &str, limit: usize) -> Result<Listing, Failure> {
        let until = self.connections.shared.until_listed();
        let rows = self.fetch(statements::list(prefix.as_bytes(), limit.min(Listing::MAX) as u64), until).await?;
        let (mut locks, mut unreadable) = (Vec::new(), Vec::new());
        for row in &rows {
            let name = ListedName::from_bytes(get(row, 5)?);
            match read_row(row)? {
                Some(info) => locks.push(Listed::new(name, info)),
                None => unreadable.push(name),
            }
        }
        Ok(Listing::new(locks, unreadable))
    }

    async fn try_break(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>, Failure> {
        let (until, of) = (self.until(), Statements::new(name));
        // Refuses a row of another format, which the statements below would leave out silently.
        self.try_inspect(name).await?;
        let pool = self.connections.calls.pool()?;
        // Unless it is returned, the connection is closed, and the server rolls its transaction back.
        let mut connection = pool.checkout(until).await?;
        // First the token, in a transaction that stays open: until it ends, no claim is granted the lock.
        let rows = connection.fetch_text(of.outdate(token.get()), until).await?;
        let row = rows.last().ok_or(Failure::UnexpectedReply)?;
        let (changed, raised, id): (i64, u64, u64) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
        let ended = match get::<Option<String>>(row, 3)? {
            _ if changed <= 0 => Err(Failure::NoSuchConnection),
            None => return Err(Failure::Refused(Error::new(ErrorKind::Auth, PERMISSIONS))),
            Some(host) => connection.execute_text(of.end_holder(id, &host), until).await.map(|_| Endpoint { id, host }),
        };
        let ended = match ended {
            Ok(endpoint) => endpoint,
            // The lease had ended already, so its token stays.
            Err(Failure::NoSuchConnection) => {
                connection.execute_text(KEEP_TOKEN.to_owned(), until).await?;
                connection.put_back();
                return Ok(None);
            }
            Err(Failure::Refused(error)) if error.kind() == ErrorKind::Auth => {
                return Err(Failure::Refused(Error::new(ErrorKind::Auth, PERMISSIONS).with_source(error)));
            }
            Err(failure) => return Err(failure),
        };
        // Only now, when the lease has certainly ended, does the raised token count.
        connection.execute_text(RAISE_TOKEN.to_owned(), until).await?;
        connection.put_back();
        fences::gone(&pool, &ended, until).await?;
        Ok(Some(FencingToken::new(raised)))
    }
}

#[async_trait]
impl Admin for ForUpdate {
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
        Ok(examine(&self.connections.shared, statements::COUNT).await)
    }
}
