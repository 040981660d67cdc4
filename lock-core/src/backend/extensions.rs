//! Optional functions of a backend: inspect, list and break locks, examine the store, and watch names.

use async_trait::async_trait;

use crate::admin::{Check, Listing};
use crate::backend::WatchNames;
use crate::error::Result;
use crate::lock_info::LockInfo;
use crate::name::LockName;
use crate::token::FencingToken;

/// The optional functions of a backend. `None` means that the backend does not have the function.
#[derive(Clone, Copy, Default)]
#[non_exhaustive]
pub struct Extensions<'a> {
    /// Shows who holds a lock.
    pub inspect: Option<&'a dyn Inspect>,
    /// Lists locks.
    pub list: Option<&'a dyn List>,
    /// Ends leases for an operator.
    pub break_lock: Option<&'a dyn Break>,
    /// Checks whether the store is fit for locks.
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
    /// The locks whose names begin with `prefix`, those that are held first, otherwise in any order; at most `limit` and
    /// [`Listing::MAX`]. Records that cannot be read are named, and not left out. The backend reads in steps that block no other
    /// client, so the states are of different moments. It ends within ten call bounds.
    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing>;
}

/// Ends leases for an operator.
#[async_trait]
pub trait Break: Send + Sync {
    /// Ends the current lease if its token is `token`, so that an operator ends the lease that was inspected, and not the next one by
    /// mistake. Raises the token and returns the raised one. Then the lock is free, or its oldest waiter holds it with a token that is
    /// higher still. `None`: that lease had ended, and nothing was changed.
    ///
    /// The old holder learns of it with its next renewal and may continue to write until then. To prevent that, send the raised token
    /// to the protected resource.
    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>>;
}

/// Checks whether the store is fit for locks.
#[async_trait]
pub trait Examine: Send + Sync {
    /// Checks the version, settings and state of the store. It only reads, and ends within three call bounds. What the user may not read
    /// is a check that says so, and not an error.
    async fn examine(&self) -> Result<Vec<Check>>;
}
