//! A connection for the harness, with calls that block.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Row};

/// How long a call may take.
const BOUND: Duration = Duration::from_secs(20);

/// A row: each value as the server writes it in text, `None` for NULL.
pub type TextRow = Vec<Option<Vec<u8>>>;

type Reply = io::Result<Vec<TextRow>>;

/// A connection on a thread of its own, so that calls block and no runtime of a case is involved.
#[derive(Debug)]
pub struct SqlConnection {
    statements: Sender<String>,
    replies: Receiver<Reply>,
}

impl SqlConnection {
    /// Connects.
    ///
    /// # Errors
    /// Those of the server, and if it does not reply in time.
    pub fn open(options: MySqlConnectOptions) -> io::Result<Self> {
        let (statements, received) = channel::<String>();
        let (sender, replies) = channel();
        std::thread::Builder::new().name("side".into()).spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(sender.send(Err(error))),
            };
            let mut connection = match runtime.block_on(options.connect()) {
                Ok(connection) => connection,
                Err(error) => return drop(sender.send(Err(io::Error::other(error)))),
            };
            let _ = sender.send(Ok(Vec::new()));
            while let Ok(statement) = received.recv() {
                if sender.send(runtime.block_on(run(&mut connection, statement))).is_err() {
                    return;
                }
            }
        })?;
        let connection = Self { statements, replies };
        connection.reply()?;
        Ok(connection)
    }

    /// Runs statements, separated by semicolons, and returns the rows of all results.
    ///
    /// # Errors
    /// Those of the server, and if it does not reply in time. The connection cannot be used afterwards unless the kind
    /// of the error is `Other`.
    pub fn query(&self, statements: &str) -> Reply {
        self.statements.send(statements.to_owned()).map_err(|_| io::Error::from(io::ErrorKind::ConnectionAborted))?;
        self.reply()
    }

    fn reply(&self) -> Reply {
        self.replies.recv_timeout(BOUND).map_err(|error| match error {
            RecvTimeoutError::Timeout => io::Error::from(io::ErrorKind::TimedOut),
            RecvTimeoutError::Disconnected => io::Error::from(io::ErrorKind::ConnectionAborted),
        })?
    }
}

/// A connection that is opened when it is needed, and again after it broke.
#[derive(Debug, Default)]
pub(super) struct Reconnecting(Mutex<Option<SqlConnection>>);

impl Reconnecting {
    pub(super) fn query(&self, statements: &str, open: impl FnOnce() -> io::Result<SqlConnection>) -> Reply {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = match kept.take() {
            Some(connection) => connection,
            None => open()?,
        };
        let result = connection.query(statements);
        // After an error of the connection a reply may still be in flight. A later call must not take it for its own.
        if !matches!(&result, Err(error) if error.kind() != io::ErrorKind::Other) {
            *kept = Some(connection);
        }
        result
    }

    pub(super) fn close(&mut self) {
        *self.0.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

async fn run(connection: &mut MySqlConnection, statements: String) -> Reply {
    let rows = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(connection).await.map_err(|error| match error {
        sqlx::Error::Database(_) => io::Error::other(error),
        error => io::Error::new(io::ErrorKind::ConnectionAborted, error),
    })?;
    let values = |row: &sqlx::mysql::MySqlRow| {
        (0..row.len()).map(|index| row.try_get_unchecked::<Option<Vec<u8>>, _>(index).unwrap_or_default()).collect()
    };
    Ok(rows.iter().map(values).collect())
}
