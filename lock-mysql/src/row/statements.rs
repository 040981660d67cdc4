//! The SQL of the row lease. Each operation is one statement, so the row's own lock makes it atomic at every isolation
//! level.
//!
//! - Time is `UTC_TIMESTAMP(6)`, the start of the statement. A statement that waits for the lock of the row ends a
//!   lease early and never extends one. `SYSDATE` would depend on the wait, and `NOW` on the time zone of the session.
//! - Results are returned by `LAST_INSERT_ID(expression)`, whose value is part of the reply. The number of affected
//!   rows does not tell an insert from an update that changed nothing, because the client counts found rows. Only
//!   MariaDB has `RETURNING`.
//! - An assignment sees the new values of the columns before it. So `fence` is first, and the columns that decide are
//!   last.
//! - MySQL 8 and 9 and MariaDB accept these statements: they contain no `VALUES(column)`, row alias or `RETURNING`.

use crate::sql::{literal, literals};

/// Prepared when a connection for calls is opened, so that their first use takes one round trip.
pub(crate) const PREPARED: &[&str] = &[ACQUIRE, ACQUIRE_FREE, RELEASE, WITHDRAW];

/// The result of [`ACQUIRE`] and [`WITHDRAW`] for a row of another format.
pub(crate) const OTHER_FORMAT: u64 = u64::MAX;

/// The result of [`ACQUIRE`] for a claim that was withdrawn.
pub(crate) const WAS_WITHDRAWN: u64 = u64::MAX - 1;

/// The result of [`ACQUIRE`] has this bit if another claim holds the lock. The other bits are the rest of its lease in
/// µs.
pub(crate) const BUSY: u64 = 1 << 63;

/// The result of [`WITHDRAW`] for a claim that held the lock.
pub(crate) const WAS_HELD: u64 = 1;

macro_rules! now {
    () => {
        "UTC_TIMESTAMP(6)"
    };
}

/// The server's time in µs since the Unix epoch.
macro_rules! now_micros {
    () => {
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    };
}

/// The rest of the lease in µs.
macro_rules! rest {
    () => {
        "TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at)"
    };
}

/// The owner of a free lock.
macro_rules! nobody {
    () => {
        "X'00000000000000000000000000000000'"
    };
}

/// `expires_at` of a released lock. The current time would block the lock if the clock is set back later.
macro_rules! released {
    () => {
        "'1970-01-02'"
    };
}

/// A higher token, at least the server's time.
macro_rules! next_fence {
    () => {
        concat!("GREATEST(fence + 1, ", now_micros!(), ")")
    };
}

/// Whether the claim may have the row: the lock is free, or the claim holds it. Binds the owner twice.
macro_rules! may_have {
    () => {
        concat!("format = '1x' AND LOCATE(?, withdrawn) = 0 AND (owner = ? OR expires_at <= ", now!(), ")")
    };
}

/// The named lock of a lock in this database. Names of named locks have at most 64 characters, whose case does not
/// matter, and are those of the whole server.
macro_rules! named_lock {
    ($name:literal) => {
        concat!("CONCAT('leasehold.', LEFT(SHA2(CONCAT(DATABASE(), '/', ", $name, "), 256), 40))")
    };
}

/// Takes the row of a free lock. Affects no row if there is none, the lock is held, the claim was withdrawn, or a claim
/// has the named lock. A smaller statement than [`ACQUIRE`], and no insert that the server tries first.
///
/// Binds owner, holder, ttl, name, owner, name.
pub(crate) const ACQUIRE_FREE: &str = concat!(
    "UPDATE leasehold_locks SET fence = LAST_INSERT_ID(",
    next_fence!(),
    "), owner = ?, holder = ?, expires_at = ",
    now!(),
    " + INTERVAL ? MICROSECOND WHERE name = ? AND expires_at <= ",
    now!(),
    " AND format = '1x' AND LOCATE(?, withdrawn) = 0 AND IS_USED_LOCK(",
    named_lock!("?"),
    ") IS NULL",
);

/// Whether a claim has the named lock. Binds name.
pub(crate) const IS_WANTED: &str = concat!("SELECT IS_USED_LOCK(", named_lock!("?"), ") IS NOT NULL");

/// Takes the row if the lock is free. A claim that holds the lock keeps its token, and its lease is not shortened.
///
/// Binds name, owner, ttl, holder; owner, owner; owner, owner, holder; owner, owner, owner; owner, owner, ttl.
pub(crate) const ACQUIRE: &str = concat!(
    "INSERT INTO leasehold_locks (name, format, owner, fence, expires_at, withdrawn, withdrawn_until, holder) ",
    "VALUES (?, '1x', ?, LAST_INSERT_ID(",
    now_micros!(),
    "), ",
    now!(),
    " + INTERVAL ? MICROSECOND, '', '1970-01-02', ?) ON DUPLICATE KEY UPDATE fence = CASE ",
    "WHEN format <> '1x' THEN fence + 0 * LAST_INSERT_ID(18446744073709551615) ",
    "WHEN LOCATE(?, withdrawn) > 0 THEN fence + 0 * LAST_INSERT_ID(18446744073709551614) ",
    "WHEN expires_at <= ",
    now!(),
    " THEN LAST_INSERT_ID(",
    next_fence!(),
    ") WHEN owner = ? THEN LAST_INSERT_ID(fence) ",
    "ELSE fence + 0 * LAST_INSERT_ID(9223372036854775808 + ",
    rest!(),
    ") END, holder = IF(",
    may_have!(),
    ", ?, holder), owner = IF(",
    may_have!(),
    ", ?, owner), expires_at = IF(format = '1x' AND LOCATE(?, withdrawn) = 0 AND owner = ?, ",
    "GREATEST(expires_at, ",
    now!(),
    " + INTERVAL ? MICROSECOND), expires_at)",
);

/// Ends the lease of a claim that holds the lock. Changes only what ends the lease: a row whose size stays the same is
/// changed in place.
macro_rules! release {
    ($name:literal, $owner:literal) => {
        concat!(
            "UPDATE leasehold_locks SET expires_at = ",
            released!(),
            " WHERE name = ",
            $name,
            " AND owner = ",
            $owner,
            " AND expires_at > ",
            now!(),
            " AND format = '1x'",
        )
    };
}

/// Ends the lease of the claim. Affects a row if the claim held the lock. Binds name, owner.
pub(crate) const RELEASE: &str = release!("?", "?");

/// Ends the lease of the claim and notes that the claim was withdrawn, so that a late acquire has no effect. The row's
/// own lock puts the late acquire before or after this statement.
///
/// Binds name, owner, ttl of the note; owner; owner, owner; ttl of the note; owner, owner.
pub(crate) const WITHDRAW: &str = concat!(
    "INSERT INTO leasehold_locks (name, format, owner, fence, expires_at, withdrawn, withdrawn_until, holder) \
     VALUES (?, '1x', ",
    nobody!(),
    ", 0, ",
    released!(),
    ", ?, ",
    now!(),
    " + INTERVAL ? MICROSECOND, '') ON DUPLICATE KEY UPDATE fence = CASE ",
    "WHEN format <> '1x' THEN fence + 0 * LAST_INSERT_ID(18446744073709551615) ",
    "WHEN owner = ? AND expires_at > ",
    now!(),
    " THEN fence + 0 * LAST_INSERT_ID(1) ELSE fence END, ",
    "withdrawn = IF(format <> '1x' OR LOCATE(?, withdrawn) > 0, withdrawn, RIGHT(CONCAT(IF(withdrawn_until > ",
    now!(),
    ", withdrawn, ''), ?), 4080)), withdrawn_until = IF(format <> '1x', withdrawn_until, ",
    now!(),
    " + INTERVAL ? MICROSECOND), expires_at = IF(format = '1x' AND owner = ?, ",
    released!(),
    ", expires_at), holder = IF(format = '1x' AND owner = ?, '', holder), owner = IF(format = '1x' AND owner = ?, ",
    nobody!(),
    ", owner)",
);

/// The state of one lock: readable, held, token, rest of the lease in µs, holder. Binds name.
pub(crate) const INSPECT: &str = concat!(
    "SELECT format = '1x', expires_at > ",
    now!(),
    ", fence, ",
    rest!(),
    ", holder, name FROM leasehold_locks WHERE name = ?",
);

/// The states of all locks whose names begin with a prefix, as [`INSPECT`], those that are held first. Binds prefix,
/// prefix, limit.
pub(crate) const LIST: &str = concat!(
    "SELECT format = '1x', expires_at > ",
    now!(),
    ", fence, ",
    rest!(),
    ", holder, name FROM leasehold_locks WHERE name >= ? AND name < CONCAT(?, X'FF') AND format = '1x' ",
    "ORDER BY expires_at > ",
    now!(),
    " DESC, name LIMIT ?",
);

/// The names of locks whose rows have another format. Binds prefix, prefix, limit.
pub(crate) const LIST_UNREADABLE: &str = "SELECT name FROM leasehold_locks \
WHERE name >= ? AND name < CONCAT(?, X'FF') AND name <> '' AND format <> '1x' ORDER BY name LIMIT ?";

/// Whether this version knows the format of a row. Binds name.
pub(crate) const IS_READABLE: &str = "SELECT format = '1x' FROM leasehold_locks WHERE name = ?";

/// The numbers of locks that are held, and of rows.
pub(crate) const COUNT: &str = concat!(
    "SELECT COUNT(CASE WHEN expires_at > ",
    now!(),
    " THEN 1 END), COUNT(*) FROM leasehold_locks WHERE name <> ''"
);

/// Whether a lease is current. Locks the row until the end of the transaction: others can read it and cannot
/// change it. Binds name, owner, token.
pub(crate) const FENCE: &str = concat!(
    "SELECT 1 FROM leasehold_locks WHERE name = ? AND owner = ? AND fence = ? AND expires_at > ",
    now!(),
    " AND format = '1x' LOCK IN SHARE MODE",
);

/// Ends the lease with a token and raises the token. Affects a row if it was the current lease. Binds name, token.
pub(crate) const BREAK: &str = concat!(
    "UPDATE leasehold_locks SET fence = LAST_INSERT_ID(",
    next_fence!(),
    "), owner = ",
    nobody!(),
    ", holder = '', expires_at = ",
    released!(),
    " WHERE name = ? AND fence = ? AND expires_at > ",
    now!(),
    " AND format = '1x'",
);

/// How long a [`get_lock`] waits at most. A claim that waits longer is the last in the server's order again.
pub(crate) const GET_LOCK_SECONDS: u64 = 2;

/// Waits for the named lock of a lock. Returns 1, or 0 when the time is over. Then as [`is_held`]. With this
/// `wait_timeout`, the server takes the named lock from a client that is silent for 10 s, as one that was paused.
pub(crate) fn get_lock(name: &[u8]) -> String {
    format!(
        concat!(
            "SET SESSION wait_timeout = 10; SELECT CAST(GET_LOCK(",
            named_lock!("{name}"),
            ", {seconds}) AS SIGNED); {is_held}"
        ),
        name = literal(name),
        seconds = GET_LOCK_SECONDS,
        is_held = is_held(name)
    )
}

/// Whether a lock is held. There is no row if it was never held, or not for the retention.
pub(crate) fn is_held(name: &[u8]) -> String {
    format!(concat!("SELECT expires_at > ", now!(), " FROM leasehold_locks WHERE name = {}"), literal(name))
}

/// Releases the named lock of a lock.
pub(crate) fn release_lock(name: &[u8]) -> String {
    format!(
        concat!("DO RELEASE_LOCK(", named_lock!("{name}"), "); SET SESSION wait_timeout = 3600"),
        name = literal(name)
    )
}

/// [`RELEASE`] and [`release_lock`] in one packet.
pub(crate) fn release_both(name: &[u8], owner: &[u8]) -> String {
    let release = format!(release!("{name}", "{owner}"), name = literal(name), owner = literal(owner));
    format!("{release}; {}", release_lock(name))
}

/// Whether a row may be purged: the next token, which is at least the server's time, is higher than that of the row
/// even if the clock is set back by up to the retention, in µs.
fn may_be_purged(retention: u64) -> String {
    format!(
        concat!(
            "expires_at < ",
            now!(),
            " - INTERVAL {retention} MICROSECOND AND fence < ",
            now_micros!(),
            " - {retention} AND withdrawn_until < ",
            now!(),
            " AND format = '1x'"
        ),
        retention = retention
    )
}

/// The number of rows that one [`purgeable`] reads.
pub(super) const PURGEABLE_ROWS: usize = 500;

/// The next names after a name, and whether their rows may be removed.
pub(super) fn purgeable(after: &[u8], retention: u64) -> String {
    format!(
        "SELECT name, {} FROM leasehold_locks WHERE name > {} ORDER BY name LIMIT {PURGEABLE_ROWS}",
        may_be_purged(retention),
        literal(after)
    )
}

/// The most names in a [`purge`].
pub(super) const PURGE_ROWS: usize = 100;

/// Removes those rows that may be removed.
pub(super) fn purge(names: &[Vec<u8>], retention: u64) -> String {
    let names = literals(names.iter().map(Vec::as_slice));
    format!("DELETE FROM leasehold_locks WHERE name IN ({names}) AND {}", may_be_purged(retention))
}

/// The most names in a [`held`].
pub(super) const POLL_ROWS: usize = 100;

/// The names of those locks that are held.
pub(super) fn held<'a>(names: impl Iterator<Item = &'a [u8]>) -> String {
    format!(concat!("SELECT name FROM leasehold_locks WHERE name IN ({}) AND expires_at > ", now!()), literals(names))
}

/// The most leases in one [`renew_rows`]. MariaDB makes a join of an `IN` with 1,000 values.
pub(crate) const RENEW_ROWS: usize = 500;

/// Renews leases to a ttl, without those whose rows another transaction has locked. Then the owners of the leases that
/// are held, and whether each was renewed. `exactly` may shorten a lease.
///
/// As text, because the protocol of prepared statements takes a round trip for each. `LIMIT` keeps MySQL from merging
/// the inner query into the update, which it refuses then.
pub(crate) fn renew_rows<'a>(
    names: impl Iterator<Item = &'a [u8]>,
    owners: impl Iterator<Item = &'a [u8]>,
    ttl: u64,
    exactly: bool,
) -> String {
    let held = format!(
        concat!("name IN ({}) AND owner IN ({}) AND expires_at > ", now!(), " AND format = '1x'"),
        literals(names),
        literals(owners)
    );
    let end = format!(concat!(now!(), " + INTERVAL {} MICROSECOND"), ttl);
    let (end, is_whole) = match exactly {
        true => (end, format!(concat!(" AND ", rest!(), " <= {}"), ttl)),
        false => (format!("GREATEST(lease.expires_at, {end})"), String::new()),
    };
    format!(
        concat!(
            "SET @sent = ",
            now_micros!(),
            "; UPDATE (SELECT name FROM leasehold_locks WHERE {held} LIMIT {rows} FOR UPDATE SKIP LOCKED) AS mine ",
            "STRAIGHT_JOIN leasehold_locks AS lease ON lease.name = mine.name SET lease.expires_at = {end}; ",
            "SELECT owner, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', expires_at) >= @sent + {ttl}{is_whole} ",
            "FROM leasehold_locks WHERE {held}"
        ),
        held = held,
        rows = RENEW_ROWS,
        end = end,
        ttl = ttl,
        is_whole = is_whole
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// What only some versions of MySQL or MariaDB have.
    const NOT_PORTABLE: [&str; 7] =
        ["RETURNING", "VALUES(", " AS new", "FOR SHARE", "MD5(", "NOWAIT", "MAX_EXECUTION_TIME"];

    fn check(folder: &Path, checked: &mut usize) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                check(&path, checked);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap().lines();
            for line in code.filter(|line| !line.trim_start().starts_with("//") && !line.starts_with("--")) {
                let found = NOT_PORTABLE.iter().find(|word| line.contains(**word));
                assert!(found.is_none(), "{} has {found:?}: {line}", path.display());
                *checked += 1;
            }
        }
    }

    #[test]
    fn the_sql_is_that_of_every_supported_server() {
        let mut checked = 0;
        check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut checked);
        assert!(checked > 2_000, "{checked} lines");
    }
}
