//! What a backend can do beyond the contract: show, list and break locks, and examine the store.

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
    /// Lists locks.
    pub list: Option<&'a dyn List>,
    /// Ends leases on an operator's word.
    pub break_lock: Option<&'a dyn Break>,
    /// Says whether the store is fit for locks.
    pub examine: Option<&'a dyn Examine>,
}

impl std::fmt::Debug for Extensions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Extensions")
            .field("inspect", &self.inspect.is_some())
            .field("list", &self.list.is_some())
            .field("break_lock", &self.break_lock.is_some())
            .field("examine", &self.examine.is_some())
            .finish()
    }
}

/// Shows who holds a lock.
#[async_trait]
pub trait Inspect: Send + Sync {
    /// The state of a lock as the store sees it, without changing anything. `None` when the store has no record of it.
    async fn inspect(&self, name: &LockName) -> Result<Option<Inspection>>;
}

/// The most locks that one [`List`] call gives.
pub const MAX_LISTED: usize = 10_000;

/// Lists locks.
#[async_trait]
pub trait List: Send + Sync {
    /// The locks whose names begin with `prefix`, those that are held first, else in no order that is promised; at most `limit`
    /// and [`MAX_LISTED`]. Records that cannot be read are named, and not left out. Reads in steps that hold nobody up, so the
    /// states are of different moments, and ends within ten call bounds.
    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing>;
}

/// The result of a [`List`] call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// The locks, those that are held first.
    pub locks: Vec<Listed>,
    /// Records that this version cannot read, such as those of a newer format, as many as the limit at most. Each may be a lock
    /// that is held.
    pub unreadable: Vec<ListedName>,
}

impl Listing {
    /// A listing of these locks and unreadable records.
    pub const fn new(locks: Vec<Listed>, unreadable: Vec<ListedName>) -> Self {
        Self { locks, unreadable }
    }
}

/// A lock in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// Its name.
    pub name: ListedName,
    /// Its state.
    pub state: Inspection,
}

impl Listed {
    /// A lock in a list.
    pub const fn new(name: ListedName, state: Inspection) -> Self {
        Self { name, state }
    }
}

/// A lock's name in a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListedName {
    /// The name.
    Whole(LockName),
    /// The store keeps only a digest of so long a name: as much as it has for people, and in [`Listing::unreadable`] the
    /// digest.
    Cut(String),
}

impl std::fmt::Display for ListedName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(name) => f.write_str(name.as_str()),
            Self::Cut(begin) => write!(f, "{begin}…"),
        }
    }
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
    /// What an operator wants to know of the store, and what is wrong with it, each with how to mend it. Only reads, and ends within
    /// three call bounds. What the user may not ask is a finding that says so, and no error.
    async fn examine(&self) -> Result<Vec<Finding>>;
}

/// One thing that an operator wants to know of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at: `server version`. The same words at every look.
    pub about: &'static str,
    /// What was found.
    pub found: String,
    /// What that means for locks.
    pub verdict: Verdict,
}

impl Finding {
    /// A finding.
    pub fn new(about: &'static str, found: impl Into<String>, verdict: Verdict) -> Self {
        Self { about, found: found.into(), verdict }
    }
}

/// What a finding means for locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is to be done.
    Fine,
    /// Locks work, and promise less than they could: what to do about it.
    Doubtful(String),
    /// Locks do not work, or exclusion ends: how to mend it.
    Wrong(String),
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
