//! What a backend can do beyond the contract: show, list and break locks.

use std::time::Duration;

use async_trait::async_trait;

use crate::claim::HolderInfo;
use crate::error::Result;
use crate::name::LockName;
use crate::token::FencingToken;

/// What a backend can do beyond the contract, each if it can.
#[derive(Clone, Copy, Default)]
#[non_exhaustive]
pub struct Extensions<'a> {
    /// Shows who holds a lock.
    pub inspect: Option<&'a dyn Inspect>,
}

impl std::fmt::Debug for Extensions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Extensions").field("inspect", &self.inspect.is_some()).finish()
    }
}

/// Shows who holds a lock.
#[async_trait]
pub trait Inspect: Send + Sync {
    /// The state of a lock as the store sees it, without changing anything. `None` when the store has no record of it.
    async fn inspect(&self, name: &LockName) -> Result<Option<Inspection>>;
}

/// The state of a lock as the store sees it, for people. It was true when the store looked and may have
/// changed since: never decide by it who may work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The token of the last grant; `None` when there never was one.
    pub last_token: Option<FencingToken>,
    /// The current lease.
    pub lease: Option<LeaseView>,
    /// How many live places wait.
    pub waiters: u64,
}

impl Inspection {
    /// A view of a lock.
    pub const fn new(last_token: Option<FencingToken>, lease: Option<LeaseView>, waiters: u64) -> Self {
        Self { last_token, lease, waiters }
    }
}

/// A lease as the store sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseView {
    /// The token of the lease.
    pub token: FencingToken,
    /// How long it lasts unless it is renewed.
    pub ttl_left: Duration,
    /// Who holds it, where the store kept that.
    pub holder: Option<HolderInfo>,
}

impl LeaseView {
    /// A view of a lease.
    pub const fn new(token: FencingToken, ttl_left: Duration, holder: Option<HolderInfo>) -> Self {
        Self { token, ttl_left, holder }
    }
}
