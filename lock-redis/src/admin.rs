//! Administration: inspect a lock, list locks, and break a lease.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use leasehold_core::admin::{Check, Listed, ListedName, Listing};
use leasehold_core::backend::Admin;
use leasehold_core::{Error, ErrorKind, FencingToken, HolderInfo, LeaseInfo, LockInfo, LockName, Result};
use redis::Cmd;
use tokio::time::Instant;

use crate::backend::RedisBackend;
use crate::cluster::{Declared, MoreKeys, Refusal};
use crate::connection::{Connection, script_call};
use crate::errors::{Failure, refused};
use crate::keys::Keys;
use crate::replies::{self, Inspected, PerLock};
use crate::servers::Servers;

/// How many keys the server scans in one step of a list, and how many locks one call inspects. Each takes about a
/// millisecond, during which the server serves no other client.
const SCAN_COUNT: usize = 1_000;
const INSPECT_BATCH: usize = 200;

/// The time limit of a list, in call bounds.
const LIST_BOUNDS: u32 = 10;

type Inspections = Vec<PerLock<Option<Inspected>>>;

async fn inspect(
    connection: &Connection,
    records: &[&str],
    declared: Declared,
    until: Instant,
) -> Result<Result<Inspections, Refusal>> {
    let shared = connection.protocol();
    let script = &shared.scripts.inspect;
    let mut call = script_call(script, declared.count(records.len()));
    for record in records {
        call.arg(*record);
        Keys::add_more(&mut call, record, None, declared);
    }
    call.arg(shared.common(declared, false));
    let value = match connection.refusals(connection.run_declared(script, &call, declared, until).await)? {
        Ok(value) => value,
        Err(refusal) => return Ok(Err(refusal)),
    };
    Ok(Ok(replies::inspected(value, records.len()).ok_or(Failure::UnexpectedReply)?))
}

impl Servers {
    async fn inspect(&self, record: &str, until: Instant) -> Result<PerLock<Option<Inspected>>> {
        let send = |connection: Arc<Connection>, declared: Declared| async move {
            inspect(&connection, &[record], declared, until).await
        };
        let mut inspected = self.call(record, MoreKeys::QUEUE, until, send).await?;
        Ok(inspected.pop().ok_or(Failure::UnexpectedReply)?)
    }

    /// Inspects locks that were found by this connection.
    async fn inspect_found(&self, connection: &Connection, records: &[&str], until: Instant) -> Result<Inspections> {
        match self {
            Self::One(_) => inspect(connection, records, Declared::Records, until).await?.map_err(Refusal::error),
            // They share no slot. One whose keys are at two nodes just now cannot be read.
            Self::Cluster(_) => {
                let each = records.iter().map(async |record| match self.inspect(record, until).await {
                    Err(error) if error.kind() == ErrorKind::Unavailable => Ok(Err(error.to_string())),
                    inspected => inspected,
                });
                try_join_all(each).await
            }
        }
    }
}

impl RedisBackend {
    /// Decodes a key. `None` if it is not the record of a lock whose name may start with `prefix`.
    fn found(&self, key: String, prefix: &str) -> Option<Found> {
        let encoded = self.servers.keys().encoded_name(&key)?;
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
        match self.servers.inspect(&self.servers.keys().record(name), self.servers.until()).await? {
            Ok(seen) => Ok(seen.map(|seen| decode(seen).1)),
            Err(text) => Err(refused(&text)),
        }
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing> {
        let bound = self.servers.settings().timeout;
        let end = Instant::now() + bound * LIST_BOUNDS;
        let step_ends = || (Instant::now() + bound).min(end);
        let (mut held, mut free, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
        // SCAN may return a key twice, and a lock whose slot is moved may be found on both nodes.
        let mut known = HashSet::new();
        let pattern = self.servers.keys().records();
        for connection in self.servers.connections(step_ends()).await? {
            let mut cursor = 0;
            loop {
                let mut scan = Cmd::new();
                scan.arg("SCAN").arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_COUNT);
                let (next, keys) =
                    replies::scanned(connection.send(&scan, step_ends()).await?).ok_or(Failure::UnexpectedReply)?;
                let found = keys.into_iter().filter_map(|key| self.found(key, prefix));
                let found: Vec<_> = found.filter(|found| known.insert(found.key.clone())).collect();
                for some in found.chunks(INSPECT_BATCH) {
                    let records: Vec<_> = some.iter().map(|found| &*found.key).collect();
                    let inspected = self.servers.inspect_found(&connection, &records, step_ends()).await?;
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
        }
        held.append(&mut free);
        held.truncate(limit);
        unreadable.truncate(limit);
        Ok(Listing::new(held, unreadable))
    }

    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>> {
        let (record, until) = (&*self.servers.keys().record(name), self.servers.until());
        let send = |connection: Arc<Connection>, declared: Declared| async move {
            let shared = connection.protocol();
            // During a quarantine, the script must not hand the lock to the queue.
            let quarantine = match connection.prepare(Duration::ZERO, declared, until).await {
                Ok(quarantine) => quarantine,
                Err(error) => return Ok(Err(connection.unsent(error)?)),
            };
            let script = &shared.scripts.break_lock;
            let mut call = script_call(script, declared.count(1));
            call.arg(record);
            Keys::add_more(&mut call, record, None, declared);
            call.arg(shared.common(declared, quarantine.is_none())).arg(token.get());
            let value = match connection.refusals(connection.run_declared(script, &call, declared, until).await)? {
                Ok(value) => value,
                Err(refusal) => return Ok::<_, Error>(Err(refusal)),
            };
            Ok(Ok(replies::broken(&value).ok_or(Failure::UnexpectedReply)?))
        };
        Ok(self.servers.call(record, MoreKeys::QUEUE, until, send).await?.map(FencingToken::new))
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        self.servers.checks().await
    }
}
