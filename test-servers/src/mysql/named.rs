//! A MySQL or MariaDB server that exists already.

use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::{Duration, Instant};
use std::{fmt, io};

use sqlx::ConnectOptions;
use sqlx::mysql::MySqlConnectOptions;

use super::side::Reconnecting;
use super::{Contents, Sql, SqlConnection, TextRow, number};

/// The environment variable that names a server, with the URL of an administrator: `mysql://root:password@host:3306/`.
pub const URL_VARIABLE: &str = "LEASEHOLD_MYSQL_URL";

/// How many connections the server must accept: a case keeps a thousand leases, each on a connection, and others run
/// beside it.
const LEAST_CONNECTIONS: u64 = 3_000;

/// How many tests can use the server at once.
const SLOTS: usize = 100;

/// How long it may take until the connections of a user have ended.
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
    /// The names of the database and of the user, which no other test has at the same time. Later tests use the names
    /// again, because the server keeps the counts of each user's name.
    pub(super) database: String,
    pub(super) user: String,
    password: String,
    /// The counts of the user's name before the test.
    before: Vec<u64>,
    /// The connection that has reserved the names.
    _reservation: SqlConnection,
}

/// The status variables that are counted for each user, and the statements that they count.
const COUNTED: [(&str, Option<&str>); 5] = [
    ("Connections", None),
    ("Com_begin", Some("statement/sql/begin")),
    ("Com_do", Some("statement/sql/do")),
    ("Com_select", Some("statement/sql/select")),
    ("Com_stmt_execute", Some("statement/com/Execute")),
];

impl Sql for NamedServer {
    fn query(&self, statements: &str) -> io::Result<Vec<TextRow>> {
        self.side.query(statements, || self.side())
    }

    /// Other clients use the server, so its own counters say nothing about this test.
    fn status(&self, name: &str) -> io::Result<u64> {
        let index = COUNTED.iter().position(|(counted, _)| *counted == name);
        let index = index.ok_or_else(|| io::Error::other(format!("`{name}` is not counted for each user")))?;
        Ok(self.counts(&COUNTED[index..=index])?[0] - self.before[index])
    }
}

impl NamedServer {
    /// Creates the database and the user; `None` if the variable names no server.
    pub(super) fn create(contents: &Contents, password: &str) -> io::Result<Option<Self>> {
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
        let (reservation, slot) = reserve(&administrator)?;
        let mut server = Self {
            administrator,
            addr,
            side: Reconnecting::default(),
            database: format!("leasehold_test_{slot}"),
            user: format!("leasehold_test_{slot}"),
            password: password.to_owned(),
            before: Vec::new(),
            _reservation: reservation,
        };
        server
            .is_fit()
            .map_err(|error| io::Error::other(format!("the server of {URL_VARIABLE} at {addr}: {error}")))?;
        // Drops those of a test that was killed.
        server.drop_all()?;
        let (database, account) = (&server.database, server.account());
        server.query(&format!("CREATE DATABASE {database}; USE {database}; {}", contents.tables))?;
        let grants = (contents.grants)(database, &account);
        server.query(&format!("CREATE USER {account} IDENTIFIED BY '{}'; {grants}", server.password))?;
        server.client()?;
        server.before = server.counts(&COUNTED)?;
        Ok(Some(server))
    }

    /// What the server counts for the user's name.
    fn counts(&self, of: &[(&str, Option<&str>)]) -> io::Result<Vec<u64>> {
        let user = &self.user;
        let count = |(_, statement): &(&str, Option<&str>)| match statement {
            None => {
                format!(
                    "SELECT COALESCE(SUM(total_connections), 0) FROM performance_schema.users WHERE user = '{user}'"
                )
            }
            Some(statement) => format!(
                "SELECT COALESCE((SELECT count_star FROM \
                 performance_schema.events_statements_summary_by_user_by_event_name \
                 WHERE user = '{user}' AND event_name = '{statement}' LIMIT 1), 0)"
            ),
        };
        let counts = of.iter().map(count).collect::<Vec<_>>().join("; ");
        let rows = self.query(&format!("{counts}; SHOW GLOBAL STATUS LIKE 'Performance_schema_users_lost'"))?;
        let (lost, rows) = rows.split_last().ok_or_else(|| io::Error::other("the server replies nothing"))?;
        if number::<u64>(lost.get(1))? > 0 {
            return Err(io::Error::other("the server counts for too few users: raise `performance_schema_users_size`"));
        }
        rows.iter().map(|row| number(row.first())).collect()
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

    /// A connection of the user, over TLS if the server has it. `caching_sha2_password` of MySQL accepts the user
    /// without TLS afterwards.
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

/// Reserves the names of one test, until the connection ends.
fn reserve(administrator: &MySqlConnectOptions) -> io::Result<(SqlConnection, usize)> {
    let reservation = SqlConnection::open(administrator.clone())?;
    for slot in 1..=SLOTS {
        let rows = reservation.query(&format!("SELECT CAST(GET_LOCK('leasehold_test_{slot}', 0) AS SIGNED)"))?;
        if number::<u64>(rows.first().and_then(|row| row.first()))? == 1 {
            return Ok((reservation, slot));
        }
    }
    Err(io::Error::other(format!("{SLOTS} tests use the server of {URL_VARIABLE}")))
}
