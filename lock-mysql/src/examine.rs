//! Checks whether the server is fit for locks.

use std::time::Instant;

use async_trait::async_trait;
use leasehold_core::admin::{Check, CheckStatus};
use leasehold_core::backend::Examine;
use leasehold_core::{Error, Result};

use crate::backend::MySqlBackend;
use crate::errors::Failure;
use crate::pool::Checkout;
use crate::rows::get;
use crate::session::ServerState;
use crate::statements::COUNT;

/// A request that takes longer leaves short leases little time for a renewal, in milliseconds.
const SLOW_MILLIS: u128 = 100;

#[async_trait]
impl Examine for MySqlBackend {
    async fn examine(&self) -> Result<Vec<Check>> {
        let mut checks = vec![Check::new("server", self.shared.address.clone(), CheckStatus::Ok)];
        // A new connection shows the current state of the server.
        let pool = self.single();
        match pool.checkout(self.until()).await {
            Ok(mut connection) => {
                checks.extend(connection.server().map(of_server).into_iter().flatten());
                checks.extend(self.of_table(&mut connection).await);
                connection.put_back();
            }
            Err(failure) => checks.push(failed("connection", failure)),
        }
        Ok(checks)
    }
}

fn of_server(server: &ServerState) -> Vec<Check> {
    let version = format!("{} {}", server.get("version"), server.get("version_comment"));
    vec![
        Check::new("server version", version, CheckStatus::Ok),
        Check::new("uptime", format!("{} s", server.get("Uptime")), CheckStatus::Ok),
        is_durable(server.get("innodb_flush_log_at_trx_commit")),
        is_writable(server.get("read_only")),
        has_one_writer(server.get("wsrep_on")),
    ]
}

fn is_durable(setting: &str) -> Check {
    let (found, status) = match setting {
        "1" => ("every acknowledged write survives a crash", CheckStatus::Ok),
        _ => (
            "a crash of the server can lose the last second",
            CheckStatus::Warning(
                "set `innodb_flush_log_at_trx_commit = 1`: grants of the lost second would be given again".to_owned(),
            ),
        ),
    };
    Check::new("durability", found, status)
}

fn is_writable(setting: &str) -> Check {
    match setting {
        "" | "OFF" | "0" => Check::new("role", "accepts writes", CheckStatus::Ok),
        _ => {
            let hint = CheckStatus::Error("use the address of the primary".to_owned());
            Check::new("role", "read-only, as a replica is", hint)
        }
    }
}

fn has_one_writer(wsrep_on: &str) -> Check {
    match wsrep_on {
        "ON" | "1" => {
            let hint = CheckStatus::Warning(
                "send all lock requests to one node: writes to several nodes conflict at commit".to_owned(),
            );
            Check::new("cluster", "Galera", hint)
        }
        _ => Check::new("cluster", "none that this connection shows", CheckStatus::Ok),
    }
}

fn failed(about: &'static str, failure: Failure) -> Check {
    let error: Error = failure.without_effect();
    let source = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
    Check::new(about, format!("{error}{source}"), CheckStatus::Error("see above".to_owned()))
}

impl MySqlBackend {
    async fn of_table(&self, connection: &mut Checkout<'_>) -> Vec<Check> {
        let begin = Instant::now();
        if let Err(failure) = connection.execute(sqlx::query("DO 0"), self.until()).await {
            return vec![failed("round trip", failure)];
        }
        let micros = begin.elapsed().as_micros();
        let status = match micros < SLOW_MILLIS * 1_000 {
            true => CheckStatus::Ok,
            false => CheckStatus::Warning("use ttls that are much longer than a round trip".to_owned()),
        };
        let round_trip = Check::new("round trip", format!("{micros} µs"), status);
        let counted = connection.fetch(sqlx::query(COUNT), self.until()).await;
        let counted = counted.and_then(|rows| {
            let row = rows.first().ok_or(Failure::UnexpectedReply)?;
            Ok((get::<i64>(row, 0)?, get::<i64>(row, 1)?))
        });
        let locks = match counted {
            Ok((held, records)) => Check::new("locks", format!("{held} held, {records} records"), CheckStatus::Ok),
            Err(failure) => failed("locks", failure),
        };
        vec![round_trip, locks]
    }
}
