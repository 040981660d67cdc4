//! The SQL of `SELECT … FOR UPDATE`, as text: one packet carries several statements.
//!
//! The connection that has locked a row also has a named lock, from just after it has locked the row until just before
//! it unlocks it. The named lock shows which connection holds: `IS_USED_LOCK` needs no permission, and is right after a
//! crash or a restart too.
//!
//! MySQL 8 and 9 and MariaDB accept these statements. `/*M! … */` is for MariaDB only, and `/*!80000 … */` for MySQL
//! only.

use std::time::Duration;

use leasehold_core::LockName;

use crate::session::SetUp;
use crate::sql::{literal, literals};
use crate::strategy;

/// The format of a row of `leasehold_fences`.
macro_rules! this_format {
    () => {
        "'1u'"
    };
}

/// The result of [`raise`] for a row of another format.
pub(super) const OTHER_FORMAT: u64 = u64::MAX;

/// Prepared when a connection for calls is opened, so that a missing table or permission shows then.
pub(crate) const PREPARED: &[&str] =
    &["SELECT fence FROM leasehold_fences WHERE name = ?", "SELECT name FROM leasehold_for_update WHERE name = ?"];

/// Removes the limits of the server for transactions that are idle and for statements that take long, but for
/// `wait_timeout`. With strict SQL mode the server refuses a value beyond its own maximum.
macro_rules! remove_limits {
    () => {
        "SET SESSION wait_timeout = 3600, net_read_timeout = 30, net_write_timeout = 60 \
/*M!100300 , idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0, \
max_statement_time = 0 */ /*!80000 , max_execution_time = 0 */; "
    };
}

/// Shows the limits that have to be 0, because a proxy may have kept the settings from the server.
macro_rules! show_limits {
    () => {
        "SHOW SESSION VARIABLES WHERE Variable_name IN \
('idle_transaction_timeout', 'idle_readonly_transaction_timeout', 'idle_write_transaction_timeout', \
'max_statement_time', 'max_execution_time')"
    };
}

/// Shows on any connection whether the limits can be removed.
pub(super) const TRY_LIMITS: &str = concat!(remove_limits!(), show_limits!());

/// For a connection that locks rows: no limits, and what [`Connection`](super::connection::Connection) needs to know.
pub(super) const LEASES: SetUp = SetUp {
    statements: &[],
    facts: concat!(
        remove_limits!(),
        "\
SELECT 'host', host FROM information_schema.processlist WHERE id = CONNECTION_ID(); \
SELECT 'before', CAST(UNIX_TIMESTAMP() AS CHAR); \
SHOW GLOBAL STATUS LIKE 'Uptime'; \
SELECT 'after', CAST(UNIX_TIMESTAMP() AS CHAR); \
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'group_replication_group_name'); ",
        show_limits!()
    ),
};

/// The limits that are shown last. None may be set.
pub(super) const LIMITS: [&str; 5] = [
    "idle_transaction_timeout",
    "idle_readonly_transaction_timeout",
    "idle_write_transaction_timeout",
    "max_statement_time",
    "max_execution_time",
];

/// How long one statement waits for a row, in seconds. While it waits, `FLUSH TABLES WITH READ LOCK` waits for it, and
/// all writers of the server wait for that. The price: each slice begins at the end of the server's queue, so waiters
/// have no order.
const SLICE: u64 = 1;

/// How long a connection of the pool may be idle, in seconds.
const IDLE: u64 = 3600;

/// The server's time in µs since the Unix epoch. No new token is lower.
const NOW_MICROS: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The named lock of a lock in this database. Names of named locks have at most 64 characters and are those of the
/// whole server.
fn named_lock(name: &str) -> String {
    format!("CONCAT('leasehold:', LEFT(SHA2(CONCAT(CAST(DATABASE() AS BINARY), '/', {name}), 256), 40))")
}

/// Who is to be granted a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grantee<'a> {
    /// The connection that has locked the row.
    pub(super) id: u64,
    /// When the server was started, in seconds since the Unix epoch, and for how many seconds it has run.
    pub(super) started: u64,
    pub(super) uptime: u64,
    /// The ttl of the lease in seconds.
    pub(super) ttl: u64,
    /// For people.
    pub(super) holder: &'a [u8],
}

/// What happens if another connection has locked the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfTaken {
    Skip,
    /// For [`SLICE`].
    Wait,
}

/// The statements about one lock.
#[derive(Clone, Debug)]
pub(super) struct Statements {
    name: String,
    named_lock: String,
}

impl Statements {
    pub(super) fn new(name: &LockName) -> Self {
        let name = literal(name.as_bytes());
        Self { named_lock: named_lock(&name), name }
    }

    /// Inserts the row if there is none, begins a transaction, and locks the row. Returns a row if it is locked:
    /// whether the connection also has the named lock. A client that is silent then keeps the row for `idle` seconds.
    /// [`IfTaken::Wait`] returns a row before that: the connection that holds, if there is one.
    ///
    /// To lock a row that does not exist would lock the gap, and then inserts deadlock.
    pub(super) fn lock(&self, if_taken: IfTaken, idle: u64) -> String {
        let (name, select) = (&self.name, self.select());
        let lock = match if_taken {
            IfTaken::Skip => format!("{select} SKIP LOCKED"),
            IfTaken::Wait => format!("SELECT CAST(IS_USED_LOCK({}) AS SIGNED); {select}", self.named_lock),
        };
        format!(
            "SET SESSION wait_timeout = {idle}, innodb_lock_wait_timeout = {SLICE}; \
             INSERT IGNORE INTO leasehold_for_update (name) SELECT {name} FROM DUAL \
             WHERE NOT EXISTS (SELECT 1 FROM leasehold_for_update WHERE name = {name}); BEGIN; {lock}"
        )
    }

    fn select(&self) -> String {
        let Self { name, named_lock } = self;
        format!(
            "SELECT CAST(GET_LOCK({named_lock}, 1) AS SIGNED) FROM leasehold_for_update WHERE name = {name} FOR UPDATE"
        )
    }

    /// Restarts the time after which the server ends the connection.
    pub(super) fn renew() -> String {
        "DO 0".to_owned()
    }

    /// The server ends the connection, and with it the lease, when it hears nothing for `ttl` seconds.
    pub(super) fn keep(ttl: u64) -> String {
        format!("SET SESSION wait_timeout = {ttl}")
    }

    /// [`Self::renew`], with another time.
    pub(super) fn renew_to(ttl: u64) -> String {
        format!("{}; {}", Self::renew(), Self::keep(ttl))
    }

    /// Unlocks the row. The connection can lock another one then.
    pub(super) fn unlock(&self) -> String {
        format!("{}; {}", self.release_named(), Self::leave())
    }

    /// Unlocks the row, for a connection whose statements may be ended by `KILL QUERY`.
    pub(super) fn unlock_one_by_one(&self) -> [String; 2] {
        [self.release_named(), "COMMIT".to_owned()]
    }

    fn release_named(&self) -> String {
        format!("DO RELEASE_LOCK({})", self.named_lock)
    }

    /// Ends a transaction that has locked nothing.
    pub(super) fn leave() -> String {
        format!("COMMIT; SET SESSION wait_timeout = {IDLE}")
    }

    /// Raises the token, if the connection holds, no earlier holder may still believe in a lease that a restart of the
    /// server has ended, and the clients of the database use this strategy. Returns the token, whether the connection
    /// still held afterwards (the row was then locked all the time, and no other claim raised the token), for how many
    /// seconds an earlier holder may believe, and the format of the row that names the strategy (see `strategy`).
    pub(super) fn raise(&self, by: &Grantee<'_>) -> String {
        let (Self { name, named_lock }, &Grantee { id, started, uptime, ttl, holder }) = (self, by);
        let holder = literal(holder);
        format!(
            concat!(
                "SET @leasehold_wait = (SELECT GREATEST(CAST(ttl AS SIGNED) - {uptime}, 0) FROM leasehold_fences ",
                "WHERE name = {name} AND started <> {started}), ",
                "@leasehold_strategy = (SELECT format FROM leasehold_locks WHERE name = ''); ",
                "INSERT INTO leasehold_fences (name, format, fence, ttl, started, holder) SELECT {name}, ",
                this_format!(),
                ", LAST_INSERT_ID({now}), {ttl}, {started}, {holder} FROM DUAL ",
                "WHERE IS_USED_LOCK({named_lock}) = {id} AND COALESCE(@leasehold_wait, 0) = 0 \
                 AND @leasehold_strategy = '",
                strategy::for_update!(),
                "' ",
                "ON DUPLICATE KEY UPDATE fence = CASE WHEN leasehold_fences.format <> ",
                this_format!(),
                " THEN fence + 0 * LAST_INSERT_ID({other}) ELSE LAST_INSERT_ID(GREATEST(fence + 1, {now})) END, ",
                "ttl = IF(leasehold_fences.format = ",
                this_format!(),
                ", {ttl}, ttl), started = IF(leasehold_fences.format = ",
                this_format!(),
                ", {started}, started), holder = IF(leasehold_fences.format = ",
                this_format!(),
                ", {holder}, holder); ",
                "SELECT CAST(LAST_INSERT_ID() AS UNSIGNED), COALESCE(IS_USED_LOCK({named_lock}) = {id}, 0), ",
                "CAST(COALESCE(@leasehold_wait, 0) AS SIGNED), @leasehold_strategy"
            ),
            name = name,
            now = NOW_MICROS,
            uptime = uptime,
            ttl = ttl,
            started = started,
            holder = holder,
            named_lock = named_lock,
            id = id,
            other = OTHER_FORMAT,
        )
    }

    /// Records a longer ttl of the lease with this token.
    pub(super) fn lengthen(&self, token: u64, ttl: u64) -> String {
        format!(
            concat!(
                "UPDATE leasehold_fences SET ttl = GREATEST(ttl, {}) WHERE name = {} AND fence = {} AND format = ",
                this_format!()
            ),
            ttl, self.name, token
        )
    }

    /// Ends the connection that holds. A connection that has released the lock, and may keep another lease, stays: the
    /// server then replies that there is no such connection.
    pub(super) fn end_holder(&self, id: u64, host: &str) -> String {
        kill_if(Kill::Connection, id, host, &format!(" AND IS_USED_LOCK({}) = {id}", self.named_lock))
    }

    /// Whether the connection `id` holds.
    pub(super) fn holds(&self, id: u64) -> String {
        format!("SELECT COALESCE(IS_USED_LOCK({}) = {id}, 0)", self.named_lock)
    }

    /// Whether the connection `id` waits for the row, which another connection holds.
    pub(super) fn waits(&self, id: u64) -> String {
        format!(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE id = {id} \
             AND info LIKE 'SELECT CAST(GET\\_LOCK(%FOR UPDATE' AND IS_USED_LOCK({}) <> {id}",
            self.named_lock
        )
    }

    /// The state of the lock, as [`STATE`], and then the number of claims that wait for it, of those that the server
    /// shows to this user.
    pub(super) fn inspect(&self) -> String {
        let name = &self.name;
        let wait = self.select().replace('%', "\\%").replace('_', "\\_").replace('\'', "''");
        format!(
            "{STATE} WHERE f.name = {name}; \
             SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '{wait}'"
        )
    }

    /// Begins a transaction, and raises the token in it if it is `token` and the lock is held. Returns the number of
    /// changed rows, the raised token, the connection that holds, and its address if the server shows it to this user.
    /// No claim is granted the lock until the transaction ends.
    pub(super) fn outdate(&self, token: u64) -> String {
        let Self { name, named_lock } = self;
        format!(
            concat!(
                "BEGIN; UPDATE leasehold_fences SET fence = LAST_INSERT_ID(GREATEST(fence + 1, {now})) ",
                "WHERE name = {name} AND fence = {token} AND IS_USED_LOCK({named_lock}) > 0 AND format = ",
                this_format!(),
                "; SELECT CAST(ROW_COUNT() AS SIGNED), CAST(LAST_INSERT_ID() AS UNSIGNED), ",
                "CAST(COALESCE(IS_USED_LOCK({named_lock}), 0) AS UNSIGNED), ",
                "(SELECT host FROM information_schema.processlist WHERE id = IS_USED_LOCK({named_lock}))"
            ),
            now = NOW_MICROS,
            name = name,
            token = token,
            named_lock = named_lock,
        )
    }
}

/// The columns of a lock's state: the format is known, held, token, rest of the lease in ms, holder, name, and whether
/// the server shows the connection of the lease. Without the permission `PROCESS` it shows those of the own user only.
/// MySQL tells the time of a connection in seconds.
pub(super) const STATE: &str = concat!(
    "SELECT f.format = ",
    this_format!(),
    ", IS_USED_LOCK(CONCAT('leasehold:', LEFT(SHA2(CONCAT(CAST(DATABASE() AS BINARY), '/', f.name), 256), 40))) \
     IS NOT NULL, f.fence, ",
    "CAST(f.ttl * 1000 - COALESCE(/*M! p.time_ms + 0 * */ p.time * 1000, 0) AS SIGNED), f.holder, f.name, \
     p.id IS NOT NULL ",
    "FROM leasehold_fences f LEFT JOIN information_schema.processlist p ",
    "ON p.id = IS_USED_LOCK(CONCAT('leasehold:', LEFT(SHA2(CONCAT(CAST(DATABASE() AS BINARY), '/', f.name), 256), 40)))"
);

/// The states of the locks whose names begin with a prefix, those that are held first.
pub(super) fn list(prefix: &[u8], limit: u64) -> String {
    let prefix = literal(prefix);
    format!(
        "{STATE} WHERE f.name >= {prefix} AND f.name < CONCAT({prefix}, X'FF') ORDER BY 2 DESC, f.name LIMIT {limit}"
    )
}

/// The numbers of locks that are held, and of rows.
pub(super) const COUNT: &str = "SELECT COUNT(CASE WHEN \
IS_USED_LOCK(CONCAT('leasehold:', LEFT(SHA2(CONCAT(CAST(DATABASE() AS BINARY), '/', name), 256), 40))) \
IS NOT NULL THEN 1 END), COUNT(*) FROM leasehold_fences";

/// Whether the lease with this token is current. Locks the row of the token until the end of the transaction: others
/// can read it, and nobody can raise it. Binds name, token, name, the connection.
pub(crate) const FENCE: &str = concat!(
    "SELECT 1 FROM leasehold_fences WHERE name = ? AND fence = ? AND format = ",
    this_format!(),
    " AND IS_USED_LOCK(CONCAT('leasehold:', LEFT(SHA2(CONCAT(CAST(DATABASE() AS BINARY), '/', ?), 256), 40))) = ? \
     LOCK IN SHARE MODE"
);

/// The addresses of connections. A number is used again after a restart of the server; a number with an address is not.
pub(super) fn addresses(ids: impl Iterator<Item = u64>) -> String {
    let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
    format!("SELECT CAST(id AS UNSIGNED), host FROM information_schema.processlist WHERE id IN ({})", ids.join(", "))
}

/// What `KILL` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kill {
    Connection,
    /// The statement that the connection runs. The transaction stays open.
    Query,
}

/// Ends the transaction of [`Statements::outdate`], with and without an effect.
pub(super) const RAISE_TOKEN: &str = "COMMIT";
pub(super) const KEEP_TOKEN: &str = "ROLLBACK";

/// Ends the connection with a number, or its statement, if it has this address. Otherwise the server replies that there
/// is no such connection.
pub(super) fn kill(what: Kill, id: u64, host: &str) -> String {
    kill_if(what, id, host, "")
}

fn kill_if(what: Kill, id: u64, host: &str, condition: &str) -> String {
    let what = match what {
        Kill::Connection => "CONNECTION",
        Kill::Query => "QUERY",
    };
    format!(
        "SET @leasehold_kill = (SELECT id FROM information_schema.processlist \
         WHERE id = {id} AND CAST(host AS BINARY) = {}{condition}); KILL {what} @leasehold_kill",
        literal(host.as_bytes())
    )
}

/// The number of rows that one [`purgeable`] reads.
pub(super) const PURGE_ROWS: usize = 100;

/// Whether a lock's rows may be removed: the next token, which is at least the server's time, is higher than that of
/// the row even if the clock is set back by up to the retention. And the server has run for the ttl of the last lease.
fn may_be_removed(retention: Duration, uptime: u64) -> String {
    let retention = retention.as_micros();
    format!(
        concat!("f.format = ", this_format!(), " AND f.fence + {} < {} AND f.ttl < {}"),
        retention, NOW_MICROS, uptime
    )
}

/// The next names after a name, and whether their rows may be removed.
pub(super) fn purgeable(after: &[u8], retention: Duration, uptime: u64) -> String {
    format!(
        "SELECT u.name, COALESCE({}, 1) FROM leasehold_for_update u LEFT JOIN leasehold_fences f ON f.name = u.name \
         WHERE u.name > {} ORDER BY u.name LIMIT {PURGE_ROWS}",
        may_be_removed(retention, uptime),
        literal(after)
    )
}

/// Begins a transaction and locks the rows of those locks that are free.
pub(super) fn lock_free(names: &[Vec<u8>]) -> String {
    format!(
        "BEGIN; SELECT name FROM leasehold_for_update WHERE name IN ({}) FOR UPDATE SKIP LOCKED",
        literals(names.iter().map(Vec::as_slice))
    )
}

/// Removes the rows of locks that this transaction has locked, and ends the transaction.
pub(super) fn remove(names: &[Vec<u8>], retention: Duration, uptime: u64) -> String {
    if names.is_empty() {
        return "ROLLBACK".to_owned();
    }
    let (names, condition) = (literals(names.iter().map(Vec::as_slice)), may_be_removed(retention, uptime));
    format!(
        "DELETE f FROM leasehold_fences f WHERE f.name IN ({names}) AND {condition}; \
         DELETE u FROM leasehold_for_update u LEFT JOIN leasehold_fences f ON f.name = u.name \
         WHERE u.name IN ({names}) AND f.name IS NULL; COMMIT"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_holders_are_literals() {
        let all = Statements::new(&LockName::new("a'b\\").unwrap());
        let grantee = Grantee { id: 7, started: 1, uptime: 2, ttl: 3, holder: b"it's" };
        for text in [
            all.lock(IfTaken::Skip, 3),
            all.lock(IfTaken::Wait, 3),
            all.unlock(),
            all.raise(&grantee),
            all.inspect(),
            all.outdate(9),
        ] {
            assert!(text.contains("X'6127625C'") || text.contains("X''6127625C''"), "{text}");
            assert!(!text.contains("a'b"), "{text}");
        }
        assert!(all.raise(&grantee).contains("X'69742773'"));
        assert_eq!(literal(b""), "X''");
    }
}
