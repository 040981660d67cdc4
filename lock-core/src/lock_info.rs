//! The state of a lock as the store sees it.

use std::time::Duration;

use crate::holder_info::HolderInfo;
use crate::token::FencingToken;

/// The state of a lock as the store saw it when it replied. It may have changed since: show it to people, but do not
/// use it to decide who may work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The token of the last grant, or `None` if there was none.
    pub last_token: Option<FencingToken>,
    /// The current leases. An exclusive lock has one at most.
    pub holders: Vec<LeaseInfo>,
    /// The number of claims that wait, or `None` if the store does not know it.
    pub waiters: Option<u64>,
}

impl LockInfo {
    /// The state of a lock.
    pub const fn new(last_token: Option<FencingToken>, holders: Vec<LeaseInfo>, waiters: Option<u64>) -> Self {
        Self { last_token, holders, waiters }
    }

    /// Whether the lock is held.
    pub const fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }

    /// The lease that was granted first. An exclusive lock has no other.
    pub fn holder(&self) -> Option<&LeaseInfo> {
        self.holders.first()
    }
}

/// A lease as the store sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseInfo {
    /// The token of the lease.
    pub token: FencingToken,
    /// How long it lasts unless it is renewed, or an upper bound of that: see [`ttl_left_exact`](Self::ttl_left_exact).
    pub ttl_left: Duration,
    /// Whether the store knows when the lease ends. If not, `ttl_left` is the whole ttl: the lease may end at any time
    /// before that, and a dead holder looks like a live one.
    pub ttl_left_exact: bool,
    /// Who holds it, if the store has kept that.
    pub holder: Option<HolderInfo>,
}

impl LeaseInfo {
    /// The state of a lease that ends after `ttl_left`.
    pub const fn new(token: FencingToken, ttl_left: Duration, holder: Option<HolderInfo>) -> Self {
        Self { token, ttl_left, ttl_left_exact: true, holder }
    }

    /// The state of a lease with this ttl. The store does not know when it was renewed.
    pub const fn of_unknown_age(token: FencingToken, ttl: Duration, holder: Option<HolderInfo>) -> Self {
        Self { token, ttl_left: ttl, ttl_left_exact: false, holder }
    }
}
