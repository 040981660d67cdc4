//! One connection, set up for locks.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_core::Result;
use leasehold_core::backend::kit::restart::Quarantine;
use leasehold_core::backend::kit::{Attempt, connect_to_any};
use sqlx::mysql::{MySqlConnection, MySqlDatabaseError, MySqlRow, MySqlSslMode};
use sqlx::{AssertSqlSafe, Connection, Executor, Row, SqlStr};
use tokio::time::{Instant, timeout_at};

use crate::errors::Failure;
use crate::shared::Shared;

/// Independent of the server's settings: strict mode (or a long name would be cut), no locks beyond the row (or
/// transactions deadlock), a lock wait of one second at most, a time zone without steps, and every statement its own
/// transaction.
const SET_UP: &str = "\
SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', autocommit = 1, \
innodb_lock_wait_timeout = 1, wait_timeout = 3600; \
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; \
SELECT CAST(CONNECTION_ID() AS UNSIGNED);";

/// A connection. Dropping it closes it.
pub(crate) struct Session {
    pub(crate) connection: MySqlConnection,
    /// The number of this connection at the server, for `KILL`.
    pub(crate) id: u64,
    /// The rows of [`SetUp::facts`].
    pub(crate) facts: Vec<MySqlRow>,
    pub(crate) opened: Instant,
    /// Follows from the last reading of the server's run on this connection.
    pub(crate) quarantine: Option<Quarantine>,
    last_used: Instant,
}

/// What a connection does when it is opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SetUp {
    /// Prepared, so that their first use takes one round trip. Other statements are prepared when they are first used.
    pub(crate) statements: &'static [&'static str],
    /// Further settings and queries, as text.
    pub(crate) facts: &'static str,
}

/// Whether the user lacks the permission for a statement.
fn is_denied(error: &sqlx::Error) -> bool {
    let reply = error.as_database_error().and_then(|reply| reply.try_downcast_ref::<MySqlDatabaseError>());
    reply.is_some_and(|reply| reply.number() == 1142)
}

impl Session {
    /// Connects, and sets the connection up.
    pub(crate) async fn open(shared: &Shared, set_up: SetUp) -> Result<Self> {
        let failed = |error| Failure::to_connect(error, shared);
        let attempt = shared.connecting.attempt(&shared.address);
        let mut connection = log_in(shared, &attempt).await?;
        let opened = Instant::now();
        let text = format!("{SET_UP}{}", set_up.facts);
        let set = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut connection);
        let mut rows = attempt.step("the settings of the session", set).await?.map_err(failed)?.into_iter();
        let id = rows.next().ok_or(sqlx::Error::RowNotFound).and_then(|row| row.try_get(0)).map_err(failed)?;
        for statement in set_up.statements {
            let prepared = (&mut connection).prepare(SqlStr::from_static(statement));
            match attempt.step("the preparation of a statement", prepared).await? {
                // A user who may only read can inspect locks. An acquire has the error then.
                Err(error) if !is_denied(&error) => return Err(failed(error)),
                Ok(_) | Err(_) => {}
            }
        }
        attempt.succeeded();
        Ok(Self { connection, id, facts: rows.collect(), opened, quarantine: None, last_used: Instant::now() })
    }

    /// Whether the server still replies on this connection. `None`: not within the bound.
    pub(crate) async fn replies(&mut self, until: Instant) -> Option<bool> {
        timeout_at(until, self.connection.ping()).await.ok().map(|reply| reply.is_ok())
    }

    pub(crate) fn is_idle_for(&self, idle: Duration) -> bool {
        self.last_used.elapsed() >= idle
    }

    pub(crate) fn last_used(&self) -> Instant {
        self.last_used
    }

    pub(crate) fn used(mut self) -> Self {
        self.last_used = Instant::now();
        self
    }
}

/// Connects to any address of the host, and logs in.
async fn log_in(shared: &Shared, attempt: &Attempt<'_>) -> Result<MySqlConnection> {
    const LOG_IN: &str = "TCP, TLS and the log-in";
    let (options, failed) = (&shared.options, |error| Failure::to_connect(error, shared));
    // A certificate is for a name, and sqlx would look for the address in it. So sqlx gets the name, and tries its
    // addresses one after the other. A Unix socket has no address.
    if matches!(options.get_ssl_mode(), MySqlSslMode::VerifyIdentity) || options.get_socket().is_some() {
        return attempt.step(LOG_IN, MySqlConnection::connect_with(options)).await?.map_err(failed);
    }
    let host = options.get_host();
    let lookup = shared.lookups.of(host, (host.to_owned(), options.get_port()));
    let addresses = attempt.step("the lookup of its name", lookup).await?;
    let addresses = addresses.map_err(|error| failed(error.into()))?;
    let connect = |address: SocketAddr| {
        let options = options.clone().host(&address.ip().to_string());
        async move { MySqlConnection::connect_with(&options).await }
    };
    attempt.step(LOG_IN, connect_to_any(addresses, connect)).await?.map_err(failed)
}
