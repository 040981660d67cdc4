//! Functions for operators: lists of locks, and checks of a store.

use crate::error::Error;
use crate::lock_info::LockInfo;
use crate::name::LockName;

/// The result of a [`LockClient::list`](crate::LockClient::list) call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// The locks, those that are held first.
    pub locks: Vec<Listed>,
    /// Records that this version cannot read, such as those of a newer format: at most as many as the limit. Each may
    /// be a held lock.
    pub unreadable: Vec<ListedName>,
}

impl Listing {
    /// The largest number of locks in one listing.
    pub const MAX: usize = 10_000;

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
    pub state: LockInfo,
}

impl Listed {
    /// A lock in a list.
    pub const fn new(name: ListedName, state: LockInfo) -> Self {
        Self { name, state }
    }
}

/// A lock's name in a list.
#[expect(clippy::exhaustive_enums, reason = "a name is whole or cut")]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListedName {
    /// The name.
    Whole(LockName),
    /// The beginning of a long name, of which the store keeps only a digest. In [`Listing::unreadable`], the digest.
    Cut(String),
}

impl ListedName {
    /// A stored name, or its beginning if it is not valid UTF-8.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes).map(LockName::new) {
            Ok(Ok(name)) => Self::Whole(name),
            Ok(Err(_)) => Self::Cut(String::new()),
            Err(error) => Self::Cut(String::from_utf8_lossy(error.as_bytes()).into_owned()),
        }
    }
}

impl std::fmt::Display for ListedName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(name) => f.write_str(name.as_str()),
            Self::Cut(begin) => write!(f, "{begin}…"),
        }
    }
}

/// One property of a store, checked for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// What was checked: `server version`. Checks of the same thing use the same words on every backend.
    pub about: &'static str,
    /// What was found.
    pub found: String,
    /// What that means for locks.
    pub status: CheckStatus,
}

impl Check {
    /// A check with its result.
    pub fn new(about: &'static str, found: impl Into<String>, status: CheckStatus) -> Self {
        Self { about, found: found.into(), status }
    }

    /// A check that ended with an error.
    pub fn failed(about: &'static str, error: &Error) -> Self {
        let source = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
        Self::new(about, format!("{error}{source}"), CheckStatus::error("see above"))
    }
}

/// What the result of a check means for locks.
#[expect(clippy::exhaustive_enums, reason = "a program that shows checks has to show each status")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckStatus {
    /// There is nothing to do.
    Ok,
    /// Locks work, but promise less than they could. The text is a hint on what to do.
    Warning(String),
    /// Locks do not work, or do not exclude other clients. The text is a hint on how to correct it.
    Error(String),
}

impl CheckStatus {
    /// A [`Warning`](Self::Warning) with this hint.
    pub fn warning(hint: impl Into<String>) -> Self {
        Self::Warning(hint.into())
    }

    /// An [`Error`](Self::Error) with this hint.
    pub fn error(hint: impl Into<String>) -> Self {
        Self::Error(hint.into())
    }
}
