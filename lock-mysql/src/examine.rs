//! Checks whether the server is fit for locks.

use std::collections::HashMap;
use std::sync::Arc;

use leasehold_core::admin::{Check, CheckStatus};
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use tokio::time::Instant;

use crate::errors::Failure;
use crate::pool::{Checkout, Pool};
use crate::session::SetUp;
use crate::settings::Strategy;
use crate::shared::Shared;
use crate::sql::get;
use crate::strategy;

/// The state of the server, as names and values. MySQL and MariaDB have some variables of their own, and `SHOW` leaves
/// out what does not exist.
const STATE: &str = "\
SHOW GLOBAL STATUS LIKE 'Uptime'; \
SHOW GLOBAL VARIABLES WHERE Variable_name IN \
('innodb_flush_log_at_trx_commit', 'read_only', 'version', 'version_comment', 'wsrep_on', \
'group_replication_group_name', \
'log_bin', 'binlog_format')";

/// `count` returns the numbers of locks that are held, and of records.
pub(crate) async fn examine(shared: &Arc<Shared>, count: &'static str) -> Vec<Check> {
    let mut checks = vec![Check::new("server", shared.address.clone(), CheckStatus::Ok)];
    // A new connection shows the current state of the server.
    let pool = Pool::single(shared, SetUp::default());
    match pool.checkout(shared.until()).await {
        Ok(mut connection) => {
            match connection.fetch_text(STATE.to_owned(), shared.until()).await {
                Ok(rows) => checks.extend(of_server(&rows, shared.settings.strategy)),
                Err(failure) => checks.push(Check::failed("server version", &failure.without_effect())),
            }
            checks.push(of_strategy(shared, &mut connection).await);
            checks.push(of_table(count, &mut connection, shared.until()).await);
        }
        Err(failure) => checks.push(Check::failed("connection", &failure.without_effect())),
    }
    checks
}

fn of_server(rows: &[MySqlRow], strategy: Strategy) -> Vec<Check> {
    let pair = |row: &MySqlRow| Some((row.try_get_unchecked(0).ok()?, row.try_get_unchecked(1).ok()?));
    let state: HashMap<String, String> = rows.iter().filter_map(pair).collect();
    let get = |name| state.get(name).map_or("", String::as_str);
    let version = format!("{} {}", get("version"), get("version_comment"));
    vec![
        Check::new("server version", version, CheckStatus::Ok),
        Check::new("uptime", format!("{} s", get("Uptime")), CheckStatus::Ok),
        is_durable(get("innodb_flush_log_at_trx_commit")),
        is_writable(get("read_only")),
        has_row_log(get("log_bin"), get("binlog_format")),
        has_one_writer(get("wsrep_on"), get("group_replication_group_name"), strategy),
    ]
}

fn is_durable(setting: &str) -> Check {
    let (found, status) = match setting {
        "1" => ("every acknowledged write survives a crash", CheckStatus::Ok),
        _ => (
            "a crash of the server can lose the last second",
            CheckStatus::warning(
                "set `innodb_flush_log_at_trx_commit = 1`: otherwise each restart delays new grants by the longest \
                 ttl in use",
            ),
        ),
    };
    Check::new("durability", found, status)
}

fn is_writable(setting: &str) -> Check {
    match setting {
        "" | "OFF" | "0" => Check::new("role", "accepts writes", CheckStatus::Ok),
        _ => {
            let hint = CheckStatus::error("use the address of the primary");
            Check::new("role", "read-only, as a replica is", hint)
        }
    }
}

fn has_row_log(log_bin: &str, format: &str) -> Check {
    match (log_bin, format) {
        ("ON" | "1", "STATEMENT") => {
            let hint = "set `binlog_format` to ROW or MIXED: InnoDB refuses the writes of Leasehold";
            Check::new("binary log", format, CheckStatus::error(hint))
        }
        ("ON" | "1", _) => Check::new("binary log", format, CheckStatus::Ok),
        _ => Check::new("binary log", "none", CheckStatus::Ok),
    }
}

fn has_one_writer(wsrep_on: &str, group: &str, strategy: Strategy) -> Check {
    let name = match (wsrep_on, group) {
        ("ON" | "1", _) => "Galera",
        (_, "") => return Check::new("cluster", "none that this connection shows", CheckStatus::Ok),
        _ => "group replication",
    };
    let status = match strategy {
        Strategy::Row => {
            CheckStatus::warning("send all lock requests to one node: writes to several nodes conflict at commit")
        }
        Strategy::ForUpdate => CheckStatus::error("use `strategy=row`: the nodes do not share the locks of rows"),
    };
    Check::new("cluster", name, status)
}

async fn of_strategy(shared: &Shared, connection: &mut Checkout<'_>) -> Check {
    let own = match shared.settings.strategy {
        Strategy::Row => "row",
        Strategy::ForUpdate => "for-update",
    };
    match strategy::check(connection, shared.until()).await {
        Ok(()) => Check::new("strategy", own, CheckStatus::Ok),
        Err(failure) => Check::failed("strategy", &failure.without_effect()),
    }
}

async fn of_table(count: &'static str, connection: &mut Checkout<'_>, until: Instant) -> Check {
    let counted = connection.fetch(sqlx::query(count), until).await.and_then(|rows| {
        let row = rows.first().ok_or(Failure::UnexpectedReply)?;
        Ok((get::<i64>(row, 0)?, get::<i64>(row, 1)?))
    });
    match counted {
        Ok((held, records)) => Check::new("locks", format!("{held} held, {records} records"), CheckStatus::Ok),
        Err(failure) => Check::failed("locks", &failure.without_effect()),
    }
}
