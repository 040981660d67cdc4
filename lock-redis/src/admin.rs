//! Administration: inspect a lock, list locks, and break a lease.

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::admin::{Check, Listed, ListedName, Listing};
use leasehold_core::backend::Admin;
use leasehold_core::{Error, ErrorKind, FencingToken, HolderInfo, LeaseInfo, LockInfo, LockName, Result};
use redis::Cmd;
use tokio::time::Instant;

use crate::backend::RedisBackend;
use crate::connection::{Connection, script_call};
use crate::errors::{Failure, refused};
use crate::replies::{self, Inspected, PerLock};

/// How many keys the server scans in one step of a list, and how many locks one call inspects. Each takes about a
/// millisecond, during which the server serves no other client.
const SCAN_COUNT: usize = 1_000;
const INSPECT_BATCH: usize = 200;

/// The time limit of a list, in call bounds.
const LIST_BOUNDS: u32 = 10;

impl RedisBackend {
    async fn inspect_keys(
        &self,
        connection: &Connection,
        keys: &[&str],
        until: Instant,
    ) -> Result<Vec<PerLock<Option<Inspected>>>, Failure> {
        let script = &self.shared.scripts.inspect;
        let mut call = script_call(script, keys.len());
        for key in keys {
            call.arg(*key);
        }
        call.arg(self.shared.common(false));
        replies::inspected(connection.run(script, &call, until).await?, keys.len()).ok_or(Failure::UnexpectedReply)
    }

    /// Decodes a key. `None` if it is not the record of a lock whose name may start with `prefix`.
    fn found(&self, key: String, prefix: &str) -> Option<Found> {
        let encoded = self.shared.keys.encoded_name(&key)?;
        let name = match encoded.starts_with('~') {
            true => Err(encoded.to_owned()),
            false => Ok(LockName::decode(encoded).filter(|name| name.as_str().starts_with(prefix))?),
        };
        Some(Found { key, name })
    }
}

/// A key of a record.
struct Found {
    key: String,
    /// The lock's name, or its digest if the key has only that.
    name: Result<LockName, String>,
}

impl Found {
    /// The name of an unreadable record, from its key. A digest says nothing about the prefix of a name, so it is
    /// always listed.
    fn name_in_key(&self) -> ListedName {
        match &self.name {
            Ok(name) => ListedName::Whole(name.clone()),
            Err(digest) => ListedName::Cut(digest.clone()),
        }
    }

    fn listed(&self, seen: Inspected, prefix: &str) -> Option<Listed> {
        let (begin, state) = decode(seen);
        let name = match &self.name {
            Ok(name) => ListedName::Whole(name.clone()),
            Err(_) => ListedName::Cut(begin.filter(|begin| begin.starts_with(prefix))?),
        };
        Some(Listed::new(name, state))
    }
}

/// Decodes as much of the lock's name as the record has, and the state of the lock.
fn decode(seen: Inspected) -> (Option<String>, LockInfo) {
    let token = (seen.token > 0).then(|| FencingToken::new(seen.token));
    let (name, holder) = HolderInfo::decode(&seen.holder).unzip();
    let lease = token.filter(|_| !seen.left.is_zero()).map(|token| LeaseInfo::new(token, seen.left, holder));
    (name, LockInfo::new(token, lease.into_iter().collect(), Some(seen.waiters)))
}

#[async_trait]
impl Admin for RedisBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockInfo>> {
        let (connection, until) = self.connection().await?;
        let inspected = self.inspect_keys(&connection, &[&self.shared.keys.record(name)], until).await?.pop();
        match inspected.ok_or(Failure::UnexpectedReply)? {
            Ok(seen) => Ok(seen.map(|seen| decode(seen).1)),
            Err(text) => Err(refused(&text)),
        }
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing> {
        let bound = self.shared.bound();
        let end = Instant::now() + bound * LIST_BOUNDS;
        let step_ends = || (Instant::now() + bound).min(end);
        let connection = self.manager()?.connection(step_ends()).await?;
        let (mut held, mut free, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
        let (mut known, mut cursor) = (HashSet::new(), 0);
        loop {
            let mut scan = Cmd::new();
            scan.arg("SCAN").arg(cursor).arg("MATCH").arg(self.shared.keys.records()).arg("COUNT").arg(SCAN_COUNT);
            let (next, keys) =
                replies::scanned(connection.send(&scan, step_ends()).await?).ok_or(Failure::UnexpectedReply)?;
            // SCAN may return a key twice.
            let found = keys.into_iter().filter_map(|key| self.found(key, prefix));
            let found: Vec<_> = found.filter(|found| known.insert(found.key.clone())).collect();
            for some in found.chunks(INSPECT_BATCH) {
                let keys: Vec<_> = some.iter().map(|found| &*found.key).collect();
                let inspected = self.inspect_keys(&connection, &keys, step_ends()).await?;
                for (found, inspected) in some.iter().zip(inspected) {
                    let Ok(seen) = inspected else {
                        unreadable.push(found.name_in_key());
                        continue;
                    };
                    let Some(lock) = seen.and_then(|seen| found.listed(seen, prefix)) else { continue };
                    let list = if lock.state.is_held() { &mut held } else { &mut free };
                    if list.len() < limit {
                        list.push(lock);
                    }
                }
            }
            cursor = next;
            if cursor == 0 || held.len() >= limit {
                break;
            }
            if Instant::now() >= end {
                let text = format!("the list took longer than {LIST_BOUNDS} call bounds (`timeout` in the URL)");
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
        }
        held.append(&mut free);
        held.truncate(limit);
        unreadable.truncate(limit);
        Ok(Listing::new(held, unreadable))
    }

    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>> {
        let shared = &self.shared;
        let (connection, until) = self.connection().await?;
        // During a quarantine, the script must not hand the lock to the queue.
        let quarantine = connection.prepare(Duration::ZERO, until).await?;
        let script = &shared.scripts.break_lock;
        let mut call = script_call(script, 1);
        call.arg(shared.keys.record(name)).arg(shared.common(quarantine.is_none())).arg(token.get());
        let raised = replies::broken(&connection.run(script, &call, until).await?).ok_or(Failure::UnexpectedReply)?;
        Ok(raised.map(FencingToken::new))
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        self.checks().await
    }
}
