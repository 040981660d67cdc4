//! Saboteurs with false capabilities.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::admin::{Check, CheckStatus, Listing};
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Capabilities, LossNotice, StoreClock, TtlScope, Waiting,
};
use leasehold_core::{Error, FencingToken, LockInfo, LockName, Result};

use super::{plain, stateful};
use crate::hooks::{Hooks, Inner};

/// Returns other capabilities at each read.
#[derive(Default)]
pub struct ChangesItsCapabilities {
    reads: AtomicU64,
}

stateful! {
    ChangesItsCapabilities;
}

impl Hooks for ChangesItsCapabilities {
    fn capabilities(&self, real: Capabilities) -> Capabilities {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        let mut claimed = real;
        claimed.takeover_slack += Duration::from_millis(reads);
        claimed
    }
}

/// Until the first acquire, claims to renew more leases in one call than it accepts later.
#[derive(Default)]
pub struct TakesFewerLater {
    acquired: AtomicBool,
}

stateful! {
    TakesFewerLater;
}

#[async_trait]
impl Hooks for TakesFewerLater {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        self.acquired.store(true, Ordering::Relaxed);
        inner.backend.acquire(request).await
    }

    fn capabilities(&self, real: Capabilities) -> Capabilities {
        let mut claimed = real;
        claimed.renew_batch = if self.acquired.load(Ordering::Relaxed) { 10 } else { 20 };
        claimed
    }
}

plain! {
    /// Refuses ttls below 50 ms, and does not claim that.
    RefusesShortTtls;
    /// Grants no lease for longer than 23 hours, and does not claim that.
    ShortensLongTtls;
    /// Has a queue, and claims that waiters poll.
    ClaimsToBePolled;
    /// Claims to push losses.
    ClaimsToPush;
    /// Claims that leases share the ttl of a session.
    ClaimsSessions;
    /// Claims that a lease ends with its connection.
    ClaimsConnections;
    /// Claims that its leases end by a wall clock.
    ClaimsAWallClock;
    /// Shows every lock as free.
    ShowsNothing;
    /// Shows a lease as if it had just been renewed, and calls that exact.
    ShowsAFreshLease;
    /// Interprets a prefix as an SQL pattern, and does not list unreadable records.
    ListsByPattern;
    /// Breaks the current lease, whichever token is given.
    BreaksByName;
    /// Finds an error in a working store.
    FailsEveryExamination;
}

macro_rules! claiming {
    ($($name:ident: $field:ident = $value:expr;)*) => {
        $(impl Hooks for $name {
            fn capabilities(&self, real: Capabilities) -> Capabilities {
                let mut claimed = real;
                claimed.$field = $value;
                claimed
            }
        })*
    };
}

claiming! {
    ClaimsToBePolled: waiting = Waiting::Poll;
    ClaimsToPush: loss_notice = LossNotice::Pushed;
    ClaimsSessions: ttl_scope = TtlScope::Session;
    ClaimsConnections: ttl_scope = TtlScope::Connection;
    ClaimsAWallClock: clock = StoreClock::ServerWall;
}

#[async_trait]
impl Hooks for RefusesShortTtls {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        if request.ttl < Duration::from_millis(50) {
            return Err(Error::invalid("injected: too short"));
        }
        inner.backend.acquire(request).await
    }
}

#[async_trait]
impl Hooks for ShortensLongTtls {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let mut shorter = request.clone();
        shorter.ttl = request.ttl.min(Duration::from_secs(23 * 3600));
        inner.backend.acquire(&shorter).await
    }
}

#[async_trait]
impl Hooks for ShowsNothing {
    async fn inspect(&self, _: &Inner, _: &LockName) -> Result<Option<LockInfo>> {
        Ok(None)
    }

    async fn list(&self, _: &Inner, _: &str, _: usize) -> Result<Listing> {
        Ok(Listing::default())
    }
}

#[async_trait]
impl Hooks for ShowsAFreshLease {
    async fn inspect(&self, inner: &Inner, name: &LockName) -> Result<Option<LockInfo>> {
        let mut seen = inner.admin().inspect(name).await?;
        for lease in seen.iter_mut().flat_map(|seen| &mut seen.holders) {
            lease.ttl_left += Duration::from_secs(1);
        }
        Ok(seen)
    }
}

#[async_trait]
impl Hooks for ListsByPattern {
    /// Lists like `LIKE prefix%`: it ignores case, `_` matches any character and `%` any number of them.
    async fn list(&self, inner: &Inner, prefix: &str, limit: usize) -> Result<Listing> {
        let mut all = inner.admin().list("", usize::MAX).await?.locks;
        all.retain(|lock| is_like(&prefix.to_lowercase(), &lock.name.to_string().to_lowercase()));
        all.truncate(limit);
        Ok(Listing::new(all, Vec::new()))
    }
}

#[async_trait]
impl Hooks for BreaksByName {
    async fn break_lock(&self, inner: &Inner, name: &LockName, _: FencingToken) -> Result<Option<FencingToken>> {
        match inner.admin().inspect(name).await?.as_ref().and_then(LockInfo::holder) {
            Some(lease) => inner.admin().break_lock(name, lease.token).await,
            None => Ok(None),
        }
    }
}

#[async_trait]
impl Hooks for FailsEveryExamination {
    async fn examine(&self, _: &Inner) -> Result<Vec<Check>> {
        Ok(vec![Check::new("store", "is there", CheckStatus::Error("injected: use another store".to_owned()))])
    }
}

fn is_like(pattern: &str, text: &str) -> bool {
    let mut rest = text.chars();
    let Some(first) = pattern.chars().next() else { return true };
    let pattern = &pattern[first.len_utf8()..];
    match first {
        '%' => text.char_indices().any(|(at, _)| is_like(pattern, &text[at..])) || is_like(pattern, ""),
        '_' => rest.next().is_some() && is_like(pattern, rest.as_str()),
        first => rest.next() == Some(first) && is_like(pattern, rest.as_str()),
    }
}
