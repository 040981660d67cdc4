//! Administration: inspect a lock, list locks, examine the file, and break a lease.

use std::path::Path;
use std::time::Instant;

use async_trait::async_trait;
use leasehold_core::admin::{Check, CheckStatus, Listed, ListedName, Listing};
use leasehold_core::backend::Admin;
use leasehold_core::{Error, ErrorKind, FencingToken, HolderInfo, LeaseInfo, LockInfo, LockName, Result};
use rusqlite::{Connection, Row, params};

use crate::backend::SqliteBackend;
use crate::boot_clock::Reading;
use crate::errors::Failure;
use crate::file::File;
use crate::file_system;
use crate::notifier;
use crate::read_only;
use crate::store::{Store, check_format, duration, has_tables, one, token};

const INSPECT: &str = "\
SELECT format, owner <> x'', fence, until, boot, ttl, holder, name FROM leasehold_locks WHERE name = ?1";

/// Held locks first. 0xFF never occurs in UTF-8.
const LIST: &str = "\
SELECT format, owner <> x'', fence, until, boot, ttl, holder, name FROM leasehold_locks \
WHERE name >= ?1 AND name < CAST(?1 || x'FF' AS BLOB) AND format = '1x' \
ORDER BY NOT (owner <> x'' AND (boot <> ?2 OR until > ?3)), name LIMIT ?4";

const UNREADABLE: &str = "\
SELECT name FROM leasehold_locks \
WHERE name >= ?1 AND name < CAST(?1 || x'FF' AS BLOB) AND format <> '1x' ORDER BY name LIMIT ?2";

/// Decodes a row for display.
fn read_row(row: &Row<'_>, now: &Reading) -> rusqlite::Result<(String, Vec<u8>, LockInfo)> {
    let (is_owned, fence, until): (bool, i64, i64) = (row.get(1)?, row.get(2)?, row.get(3)?);
    let (boot, ttl, holder): (i64, i64, String) = (row.get(4)?, row.get(5)?, row.get(6)?);
    // A lease of another boot gets a whole ttl as soon as a claim tries to acquire the lock.
    let left = duration(if boot == now.boot { until.saturating_sub(now.boottime) } else { ttl });
    let lease = (is_owned && !left.is_zero())
        .then(|| LeaseInfo::new(token(fence), left, HolderInfo::decode(&holder).map(|(_, holder)| holder)));
    Ok((row.get(0)?, row.get(7)?, LockInfo::new(Some(token(fence)), lease.into_iter().collect(), None)))
}

fn inspect(connection: &Connection, name: &LockName, now: &Reading) -> Result<Option<LockInfo>, Failure> {
    let found = one(connection, INSPECT, params![name.as_bytes()], |row| read_row(row, now))?;
    let Some((format, _, seen)) = found else { return Ok(None) };
    check_format(&format)?;
    Ok(Some(seen))
}

fn list(connection: &Connection, prefix: &str, limit: usize, now: &Reading) -> Result<Listing, Failure> {
    let mut statement = connection.prepare(LIST)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![prefix.as_bytes(), now.boot, now.boottime, limit])?;
    let mut listed = Vec::new();
    while let Some(row) = rows.next()? {
        let (_, name, seen) = read_row(row, now)?;
        // Only Leasehold writes this table, and its names are UTF-8.
        if let Some(name) = String::from_utf8(name).ok().and_then(|name| LockName::new(name).ok()) {
            listed.push(Listed::new(ListedName::Whole(name), seen));
        }
    }
    let mut statement = connection.prepare(UNREADABLE)?;
    let names = statement.query_map(params![prefix.as_bytes(), limit], |row| row.get(0))?;
    let unreadable = names.map(|name| Ok(ListedName::from_bytes(name?))).collect::<Result<_, Failure>>()?;
    Ok(Listing::new(listed, unreadable))
}

/// Reads on a separate connection, if the file has tables: reading a long table must not delay calls. Users without
/// write permission may read too.
fn read<T>(file: &File, work: impl Fn(&Connection, &Reading) -> Result<T, Failure>) -> Result<Option<T>> {
    let read = match reader(file) {
        Ok(Some(store)) => work(store.connection(), &file.now()).map(Some),
        Ok(None) => Ok(None),
        Err(failure) => Err(failure),
    };
    match read.map_err(Failure::without_effect) {
        Err(error) if error.kind() == ErrorKind::Auth => {
            let until = Instant::now() + file.settings.timeout;
            read_only::read(&file.path, until, |connection| {
                has_tables(connection)?.then(|| work(connection, &file.now())).transpose()
            })
        }
        read => read,
    }
}

/// Opens another connection, if the file has tables.
fn reader(file: &File) -> Result<Option<Store>, Failure> {
    let may_write = file_system::check(&file.path);
    let there = file.path.try_exists();
    let store = match may_write {
        Ok(()) if matches!(there, Ok(false)) => return Ok(None),
        // The first acquire creates the state folder. Elsewhere, even a user who may not write to the folder sees
        // whether the file exists.
        Err(error) if matches!(there, Ok(false)) && (file.in_state_folder || error.kind() == ErrorKind::Auth) => {
            return Ok(None);
        }
        other => other.map_err(Failure::Rejected).and_then(|()| Store::open(&file.path))?,
    };
    store.keep_wal_on_close();
    Ok(if store.has_tables()? { Some(store) } else { None })
}

fn examine(file: &File) -> Vec<Check> {
    let mut checks = vec![
        Check::new("file", file.path.display().to_string(), CheckStatus::Ok),
        Check::new("SQLite", rusqlite::version(), CheckStatus::Ok),
        Check::new("clock", format!("{} s since boot", file.now().boottime / 1_000_000), CheckStatus::Ok),
        notification(),
        wal(&file.path),
    ];
    match contents(file) {
        Ok(found) => checks.extend(found),
        Err(failure) => checks.push(Check::failed("locks", &failure.without_effect())),
    }
    checks
}

fn notification() -> Check {
    if notifier::is_supported() {
        return Check::new("releases", "waiters are notified at once", CheckStatus::Ok);
    }
    let status = CheckStatus::warning("raise `fs.inotify.max_user_instances`: every process that waits needs one");
    Check::new("releases", "cannot be notified; waiters poll every 25 ms", status)
}

/// A WAL of this many bytes has never restarted.
const LARGE_WAL: u64 = 128 << 20;

fn wal(path: &Path) -> Check {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    let length = std::fs::metadata(wal).map_or(0, |found| found.len());
    let status = if length < LARGE_WAL {
        CheckStatus::Ok
    } else {
        CheckStatus::warning("a program may keep a transaction open on this file: end it")
    };
    Check::new("write-ahead log", format!("{} KiB", length >> 10), status)
}

fn contents(file: &File) -> Result<Vec<Check>, Failure> {
    let Some(store) = reader(file)? else {
        return Ok(vec![Check::new("locks", "none yet", CheckStatus::Ok)]);
    };
    store.prepare()?;
    let now = file.now();
    let count =
        "SELECT count(*), count(*) FILTER (WHERE owner <> x'' AND (boot <> ?1 OR until > ?2)) FROM leasehold_locks";
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
    let (records, held) = store.one(count, params![now.boot, now.boottime], read)?.unwrap_or_default();
    let begin = Instant::now();
    let writes = match store.in_transaction(|| ()) {
        Ok(()) => Check::new("writing", format!("begins after {} µs", begin.elapsed().as_micros()), CheckStatus::Ok),
        Err(Failure::Busy) => Check::new("writing", "another process is writing", CheckStatus::Ok),
        Err(failure) => return Err(failure),
    };
    Ok(vec![writes, Check::new("locks", format!("{held} held, {records} records"), CheckStatus::Ok)])
}

impl SqliteBackend {
    /// Runs a long read on a blocking thread.
    async fn run_blocking<T: Send + 'static>(&self, read: impl FnOnce(&File) -> T + Send + 'static) -> Result<T> {
        let file = self.shared.file.clone();
        let reading = self.shared.core()?.keeper_runtime().spawn_blocking(move || read(&file));
        reading.await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the client's runtime ended before the file was read").with_source(error)
        })
    }
}

#[async_trait]
impl Admin for SqliteBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockInfo>> {
        let owned = name.clone();
        match self.run(move |store, now| inspect(store.connection(), &owned, now)).await {
            // A user who may not write cannot open the file for writing, but may see who holds the lock.
            Err(error) if error.kind() == ErrorKind::Auth => {
                let owned = name.clone();
                let seen =
                    self.run_blocking(move |file| read(file, |connection, now| inspect(connection, &owned, now)));
                seen.await.flatten().map(Option::flatten)
            }
            seen => seen,
        }
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing> {
        let prefix = prefix.to_owned();
        let listed = self.run_blocking(move |file| read(file, |connection, now| list(connection, &prefix, limit, now)));
        listed.await?.map(Option::unwrap_or_default)
    }

    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>> {
        let name = name.clone();
        let raised = self.run(move |store, now| store.break_lease(&name, token, now)).await?;
        if raised.is_some() {
            self.shared.watcher.notifier.notify();
        }
        Ok(raised)
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        self.run_blocking(examine).await
    }
}
