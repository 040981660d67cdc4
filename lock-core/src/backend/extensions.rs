//! What a backend can do beyond the contract: show, list and break locks, and examine the store.

use async_trait::async_trait;

use crate::admin::{Check, Listing};
use crate::backend::WatchNames;
use crate::error::Result;
use crate::lock_info::LockInfo;
use crate::name::LockName;
use crate::token::FencingToken;

/// What a backend can do beyond the contract, each if it can.
#[derive(Clone, Copy, Default)]
#[non_exhaustive]
pub struct Extensions<'a> {
    /// Shows who holds a lock.
    pub inspect: Option<&'a dyn Inspect>,
    /// Lists locks.
    pub list: Option<&'a dyn List>,
    /// Ends leases on an operator's word.
    pub break_lock: Option<&'a dyn Break>,
    /// Says whether the store is fit for locks.
    pub examine: Option<&'a dyn Examine>,
    /// Reports when a lock may be free.
    pub watch: Option<&'a dyn WatchNames>,
}

impl std::fmt::Debug for Extensions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Extensions")
            .field("inspect", &self.inspect.is_some())
            .field("list", &self.list.is_some())
            .field("break_lock", &self.break_lock.is_some())
            .field("examine", &self.examine.is_some())
            .field("watch", &self.watch.is_some())
            .finish()
    }
}

/// Shows who holds a lock.
#[async_trait]
pub trait Inspect: Send + Sync {
    /// The state of a lock as the store sees it, without changing anything. `None` when the store has no record of it.
    async fn inspect(&self, name: &LockName) -> Result<Option<LockInfo>>;
}

/// Lists locks.
#[async_trait]
pub trait List: Send + Sync {
    /// The locks whose names begin with `prefix`, those that are held first, else in no order that is promised; at most `limit`
    /// and [`Listing::MAX`]. Records that cannot be read are named, and not left out. Reads in steps that hold nobody up, so the
    /// states are of different moments, and ends within ten call bounds.
    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing>;
}

/// Ends leases on an operator's word.
#[async_trait]
pub trait Break: Send + Sync {
    /// Ends the current lease, whoever has it, if its token is `token`: whoever was looked at, and not the next holder by
    /// mistake. Raises the token and gives the raised one. Then the lock is free, or its oldest waiter's with a token that is
    /// higher still. `None`: that lease was over, nothing was changed.
    ///
    /// The old holder learns of it with its next renewal and may go on writing until then: hand the raised token to the
    /// protected resource to keep it out.
    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>>;
}

/// Says whether the store is fit for locks.
#[async_trait]
pub trait Examine: Send + Sync {
    /// What an operator wants to know of the store, and what is wrong with it, each with how to correct it. Only reads, and ends within
    /// three call bounds. What the user may not read is a check that says so, and no error.
    async fn examine(&self) -> Result<Vec<Check>>;
}
