//! The state of a lock as the store sees it.

use std::time::Duration;

use crate::holder_info::HolderInfo;
use crate::token::FencingToken;

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
