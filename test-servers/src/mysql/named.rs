//! A MySQL or MariaDB that exists already.

use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use std::{fmt, io};

use sqlx::ConnectOptions;
use sqlx::mysql::MySqlConnectOptions;

use super::side::Reconnecting;
use super::{Contents, Sql, SqlConnection, TextRow, number};

/// The environment variable that names a server, with the URL of an administrator: `mysql://root:password@host:3306/`.
pub const URL_VARIABLE: &str = "LEASEHOLD_MYSQL_URL";

/// How many connections the server must accept: a case keeps a thousand leases, each on a connection, and others run beside it.
const LEAST_CONNECTIONS: u64 = 3_000;

/// How long the connections of a user may take to end.
const ENDS_BY: Duration = Duration::from_secs(10);

/// Whether the environment variable names a server.
pub fn is_named() -> bool {
    url().is_some()
}

fn url() -> Option<String> {
    std::env::var(URL_VARIABLE).ok().filter(|url| !url.is_empty())
}

/// A database and a user of one test on the server. Both are dropped with this.
pub(super) struct NamedServer {
    administrator: MySqlConnectOptions,
    addr: SocketAddr,
    side: Reconnecting,
    /// The names of the database and of the user, which nobody else has.
    pub(super) database: String,
    pub(super) user: String,
    password: String,
}

impl Sql for NamedServer {
    fn query(&self, statements: &str) -> io::Result<Vec<TextRow>> {
        self.side.query(statements, || self.side())
    }

    /// Other clients use the server, so its own counters say nothing about this test.
    fn status(&self, name: &str) -> io::Result<u64> {
        let statement = match name {
            "Connections" => None,
            "Com_begin" => Some("statement/sql/begin"),
            "Com_do" => Some("statement/sql/do"),
            "Com_select" => Some("statement/sql/select"),
            "Com_stmt_execute" => Some("statement/com/Execute"),
            _ => return Err(io::Error::other(format!("`{name}` is not counted for each user"))),
        };
        let user = &self.user;
        let count = match statement {
            None => format!(
                "SELECT COALESCE(SUM(total_connections), 0) FROM performance_schema.users WHERE user = '{user}'"
            ),
            Some(statement) => format!(
                "SELECT COALESCE(SUM(count_star), 0) FROM performance_schema.events_statements_summary_by_user_by_event_name \
                 WHERE user = '{user}' AND event_name = '{statement}'"
            ),
        };
        let rows = self.query(&format!("{count}; SHOW GLOBAL STATUS LIKE 'Performance_schema_users_lost'"))?;
        match number::<u64>(rows.get(1).and_then(|row| row.get(1)))? {
            0 => number(rows.first().and_then(|row| row.first())),
            _ => Err(io::Error::other("the server counts for too few users: raise `performance_schema_users_size`")),
        }
    }
}

impl NamedServer {
    /// Creates the database and the user; `None` if the variable names no server.
    pub(super) fn create(contents: &Contents) -> io::Result<Option<Self>> {
        let Some(url) = url() else { return Ok(None) };
        // Neither this error nor its cause has the password.
        let administrator = MySqlConnectOptions::from_str(&url).map_err(|_| {
            io::Error::other(format!("{URL_VARIABLE} is not a URL like mysql://root:password@host:3306/"))
        })?;
        let (host, port) = (administrator.get_host(), administrator.get_port());
        let addr = (host.trim_matches(['[', ']']), port).to_socket_addrs()?.next();
        let addr = addr.ok_or_else(|| io::Error::other(format!("{host} of {URL_VARIABLE} has no address")))?;
        // A case may record the log, and looks for passwords in it.
        let administrator = administrator.disable_statement_logging();
        let name = unique();
        let (database, user) = (format!("leasehold_test_{name}"), format!("lh_{name}"));
        let (side, password) = (Reconnecting::default(), contents.password.to_owned());
        let server = Self { administrator, addr, side, database, user, password };
        server
            .is_fit()
            .map_err(|error| io::Error::other(format!("the server of {URL_VARIABLE} at {addr}: {error}")))?;
        let (database, account) = (&server.database, server.account());
        server.query(&format!("CREATE DATABASE {database}; USE {database}; {}", contents.tables))?;
        let grants = (contents.grants)(database, &account);
        server.query(&format!("CREATE USER {account} IDENTIFIED BY '{}'; {grants}", server.password))?;
        server.client()?;
        Ok(Some(server))
    }

    /// Whether the tests can run on the server.
    fn is_fit(&self) -> io::Result<()> {
        let found = self.query(
            "SELECT CAST(@@performance_schema AS SIGNED), CAST(@@max_connections AS SIGNED), \
             CAST(@@innodb_flush_log_at_trx_commit AS SIGNED)",
        )?;
        let value = |index| number::<u64>(found.first().and_then(|row| row.get(index)));
        let needs = [
            (value(0)? == 1, "the counts of single users need `performance-schema=on`".to_owned()),
            (value(1)? >= LEAST_CONNECTIONS, format!("the tests need `max-connections={LEAST_CONNECTIONS}` or more")),
            (value(2)? == 1, "the tests need `innodb-flush-log-at-trx-commit=1`".to_owned()),
        ];
        match needs.into_iter().find(|(is_met, _)| !is_met) {
            Some((_, what)) => Err(io::Error::other(what)),
            None => Ok(()),
        }
    }

    /// A connection of the user, over TLS if the server has it. `caching_sha2_password` of MySQL accepts the user without TLS afterwards.
    pub(super) fn client(&self) -> io::Result<SqlConnection> {
        let user = self.administrator.clone().username(&self.user).password(&self.password);
        SqlConnection::open(user.database(&self.database))
    }

    pub(super) const fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) fn account(&self) -> String {
        format!("'{}'@'%'", self.user)
    }

    pub(super) fn side(&self) -> io::Result<SqlConnection> {
        let connection = SqlConnection::open(self.administrator.clone())?;
        // Before its creation and after its end there is no database.
        let _ = connection.query(&format!("USE {}", self.database));
        Ok(connection)
    }

    fn drop_all(&self) -> io::Result<()> {
        let Self { database, user, .. } = self;
        // A test may have created the second user.
        self.query(&format!("DROP USER IF EXISTS {}, '{user}_r'@'%'", self.account()))?;
        let begin = Instant::now();
        // Their transactions would keep the tables from being dropped.
        let is_there = format!("SELECT CAST(id AS CHAR) FROM information_schema.processlist WHERE user = '{user}'");
        loop {
            let ids = self.query(&is_there)?;
            if ids.is_empty() || begin.elapsed() > ENDS_BY {
                break;
            }
            for id in ids.into_iter().filter_map(|mut row| row.swap_remove(0)) {
                // It may have ended by itself.
                let _ = self.query(&format!("KILL {}", String::from_utf8_lossy(&id)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.query(&format!("SET SESSION lock_wait_timeout = 10; DROP DATABASE IF EXISTS {database}")).map(drop)
    }
}

impl fmt::Debug for NamedServer {
    /// Without the passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedServer")
            .field("addr", &self.addr)
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}

impl Drop for NamedServer {
    fn drop(&mut self) {
        if let Err(error) = self.drop_all() {
            eprintln!("{} and {} stay on the server of {URL_VARIABLE}: {error}", self.database, self.account());
        }
    }
}

/// A name that no other test has, on this machine or another.
fn unique() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_micros();
    // A user's name has at most 32 characters on MySQL.
    format!("{time:x}_{:x}_{:x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
