//! What a backend can do for an operator.

use async_trait::async_trait;

use crate::admin::{Check, Listing};
use crate::error::{Error, ErrorKind, Result};
use crate::lock_info::LockInfo;
use crate::name::LockName;
use crate::token::FencingToken;

/// The functions of a backend for operators. For one that it lacks, a backend calls [`NoAdmin`], which fails with
/// [`Unsupported`](ErrorKind::Unsupported).
#[async_trait]
pub trait Admin: Send + Sync {
    /// The state of a lock as the store sees it. `None` if the store has no record of the lock. Only reads.
    async fn inspect(&self, name: &LockName) -> Result<Option<LockInfo>>;

    /// The locks whose names begin with `prefix`, those that are held first, otherwise in any order; at most `limit`,
    /// which lock-core bounds by [`Listing::MAX`]. Also names the records that the backend cannot read. The backend reads
    /// in steps that block no other client, so the states are of different moments. Ends within ten call bounds.
    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing>;

    /// Ends the current lease if its token is `token`, so that an operator ends the lease that was inspected, and not the
    /// next one by mistake. Raises the token and returns the raised one. Then the lock is free, or its oldest waiter holds
    /// it with a token that is higher still. `None`: that lease had ended, or the store had lost it and will not take it
    /// back. No other lease was changed.
    ///
    /// The old holder learns of it by its next renewal at the latest, and may continue to write until then. To prevent that, send the
    /// raised token to the protected resource.
    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>>;

    /// Checks the version, settings and state of the store. Only reads, and ends within three call bounds. If the user may
    /// not read something, a check says so, and the call does not fail.
    async fn examine(&self) -> Result<Vec<Check>>;
}

/// The functions of a backend that has none for operators: each fails with [`Unsupported`](ErrorKind::Unsupported).
#[derive(Clone, Copy, Debug)]
pub struct NoAdmin;

#[async_trait]
impl Admin for NoAdmin {
    async fn inspect(&self, _: &LockName) -> Result<Option<LockInfo>> {
        Err(Error::new(ErrorKind::Unsupported, "this backend cannot show who holds a lock"))
    }

    async fn list(&self, _: &str, _: usize) -> Result<Listing> {
        Err(Error::new(ErrorKind::Unsupported, "this backend cannot list locks"))
    }

    async fn break_lock(&self, _: &LockName, _: FencingToken) -> Result<Option<FencingToken>> {
        Err(Error::new(ErrorKind::Unsupported, "this backend cannot break locks"))
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        Err(Error::new(ErrorKind::Unsupported, "this backend cannot examine its store"))
    }
}
