//! Maps every failure of a statement to an error. The kind says what the failure means for the lock.

use std::error::Error as _;

use leasehold_core::backend::kit::{TlsRefusal, tls_refusal};
use leasehold_core::{Error, ErrorKind};
use sqlx::mysql::{MySqlConnectOptions, MySqlDatabaseError};

use crate::permissions::grants;
use crate::shared::Shared;

/// The backend's name in errors and capabilities.
pub(crate) const BACKEND: &str = "mysql";

/// Why a statement has no usable reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The statement was certainly not sent.
    NotSent(Error),
    /// The statement may have been sent, and no reply arrived within the bound.
    TimedOut,
    /// The statement may have been sent, and the connection broke.
    Disconnected(sqlx::Error),
    /// The server replied with an error, and the statement had no effect.
    Refused(Error),
    /// The server is read-only. The statement had no effect, and another server may be the primary now.
    ReadOnly(Error),
    /// The server replied with an error of this number, which this version does not know.
    UnknownError(Error),
    /// Another transaction kept a row locked, or was in conflict. The statement had no effect and can be repeated.
    Conflict(Error),
    /// The server has no connection with this number.
    NoSuchConnection,
    /// The server does not give such a reply.
    UnexpectedReply,
}

impl Failure {
    /// Converts the error of a statement.
    pub(crate) fn of(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(reply) => match reply.try_downcast_ref::<MySqlDatabaseError>() {
                Some(reply) => Self::reply(reply),
                None => Self::UnknownError(Error::new(ErrorKind::Indeterminate, UNKNOWN).with_source(reply)),
            },
            // sqlx has no error of its own for this. A server without TLS stays one, and a wait would be in vain.
            sqlx::Error::Tls(cause) if cause.to_string() == "server does not support TLS" => {
                let text = "the server offers no TLS: set it up there, or switch it off (`tls=off` in the URL)";
                Self::Refused(Error::new(ErrorKind::Unsupported, text))
            }
            error => Self::Disconnected(error),
        }
    }

    fn reply(reply: &MySqlDatabaseError) -> Self {
        let number = reply.number();
        let cause = Reply { number, text: reply.message().to_owned() };
        if CONFLICTS.contains(&number) {
            let text = "another transaction has locked the row: end transactions on the tables of Leasehold sooner";
            return Self::Conflict(Error::new(ErrorKind::Unavailable, text).with_source(cause));
        }
        if number == NO_SUCH_CONNECTION {
            return Self::NoSuchConnection;
        }
        if READ_ONLY.contains(&number) {
            return Self::ReadOnly(read_only().with_source(cause));
        }
        match REFUSALS.iter().find(|(numbers, ..)| numbers.contains(&number)) {
            Some((_, kind, text)) => {
                let error = Error::new(*kind, *text).with_source(cause);
                // The limit passes when other clients disconnect, so a waiter keeps waiting.
                Self::Refused(if TOO_MANY.contains(&number) { error.passing_by_itself() } else { error })
            }
            None => Self::UnknownError(Error::new(ErrorKind::Indeterminate, UNKNOWN).with_source(cause)),
        }
    }

    /// Names the statement that gives the user of these options the permission that it lacks.
    pub(crate) fn with_grants(self, options: &MySqlConnectOptions) -> Self {
        match self {
            Self::Refused(error) => match error.source().and_then(|cause| cause.downcast_ref::<Reply>()) {
                Some(cause) if DENIED.contains(&cause.number) => {
                    let (database, user) = (options.get_database().unwrap_or_default(), options.get_username());
                    let grants = grants(database, &format!("'{}'@'%'", user.replace('\'', "''")));
                    let text = format!("{LACKS}; for this user, at any host: {}", grants.replace('\n', " "));
                    Self::Refused(Error::new(error.kind(), text).with_source(cause.clone()))
                }
                _ => Self::Refused(error),
            },
            failure => failure,
        }
    }

    /// Converts the error of a connection attempt, during which nothing was sent.
    pub(crate) fn to_connect(error: sqlx::Error, shared: &Shared) -> Error {
        let address = &shared.address;
        match Self::of(error).with_grants(&shared.options) {
            Self::Refused(error)
            | Self::ReadOnly(error)
            | Self::UnknownError(error)
            | Self::Conflict(error)
            | Self::NotSent(error) => error.without_effect(),
            Self::Disconnected(cause) => {
                let text = format!("cannot connect to the server at {address}");
                match tls_refusal(&cause) {
                    // The server has announced TLS. Plain text instead of it is the error of a server that has too many
                    // connections or is stopping.
                    None | Some(TlsRefusal::NoTls) => Error::new(ErrorKind::Unavailable, text).with_source(cause),
                    Some(why) => Error::new(why.kind(), format!("{text}: {}", why.advice())).with_source(cause),
                }
            }
            Self::TimedOut | Self::NoSuchConnection | Self::UnexpectedReply => shared.given_up(),
        }
    }

    /// The row has a format that this version does not know.
    pub(crate) fn other_format() -> Self {
        Self::Refused(Error::other_format("the row"))
    }

    /// The error of a request that changes nothing: its outcome is never in doubt.
    pub(crate) fn without_effect(self) -> Error {
        Error::from(self).without_effect()
    }

    /// Whether the connection is in order after this failure.
    pub(crate) fn keeps_connection(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::NoSuchConnection)
    }
}

const UNKNOWN: &str = "the server replied with an error";

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotSent(error)
            | Failure::Refused(error)
            | Failure::ReadOnly(error)
            | Failure::UnknownError(error)
            | Failure::Conflict(error) => error,
            Failure::TimedOut => Self::no_reply(),
            Failure::Disconnected(cause) => Self::connection_broke().with_source(cause),
            Failure::NoSuchConnection => Self::new(ErrorKind::Unavailable, "the server has ended the connection"),
            Failure::UnexpectedReply => Self::unexpected_reply(),
        }
    }
}

/// The server accepts no writes.
pub(crate) fn read_only() -> Error {
    let text = "the server is read-only, as a replica is: use the address of its primary";
    Error::new(ErrorKind::Unavailable, text)
}

/// An error reply of the server.
#[derive(Clone, Debug)]
struct Reply {
    number: u16,
    text: String,
}

impl std::fmt::Display for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.number, self.text)
    }
}

impl std::error::Error for Reply {}

/// The server has rolled the statement back: a row changed (1020), lock wait timeout (1205), deadlock (1213), cancelled
/// (1317), `NOWAIT` (3572).
const CONFLICTS: [u16; 5] = [1020, 1205, 1213, 1317, 3572];

/// The reply to `KILL` for a connection that has ended.
const NO_SUCH_CONNECTION: u16 = 1094;
/// The server, its storage engine or the transaction is read-only.
const READ_ONLY: [u16; 4] = [1290, 1792, 1836, 3675];

/// The user may not do what it tried: in the database (1044), with a table (1142), a column (1143), the server (1227).
const DENIED: [u16; 4] = [1044, 1142, 1143, 1227];

const LACKS: &str = "the user lacks a permission: `leasehold acl mysql` prints the permissions that are needed";

/// The limit of connections of the server, of the user, and of an account (also by the hour).
const TOO_MANY: [u16; 3] = [1040, 1203, 1226];

/// Numbers of errors of MySQL 8, MySQL 9 and MariaDB, none of which had an effect.
const REFUSALS: &[(&[u16], ErrorKind, &str)] = {
    use ErrorKind::{Auth, Capacity, Unavailable, Unsupported};
    &[
        (&[1044, 1095, 1142, 1143, 1227, 1370], Auth, LACKS),
        // 1698: the user logs in with a socket. 1820, 1862: the password has to be changed. 3118, 4151: the account is
        // locked.
        (
            &[1045],
            Auth,
            "the server refuses the user or the password, or demands TLS (`tls=verify`) or a client's certificate \
             (`cert=` and `key=`) of this user",
        ),
        (&[1130, 1698, 1820, 1862, 3118, 4151], Auth, "the server refuses the user or the password"),
        // 1251, 2054, 2061: the authentication plugin needs TLS or is unknown.
        (&[1251, 2054, 2061, 3159], Auth, "the server refuses the authentication method: switch TLS on (`tls=verify`)"),
        (
            &TOO_MANY,
            Capacity,
            "the server accepts no more connections: raise `max_connections`, or lower `connections` in the URL",
        ),
        // Memory, threads, the table, the disk.
        (&[1021, 1037, 1038, 1041, 1114, 1135, 1206], Capacity, "the server is full"),
        // 1927, 3169: an operator ended the session.
        (&[1053, 1077, 1079, 1927, 1969, 3024, 3169], Unavailable, "the server ended the statement"),
        (
            &[1146],
            Unsupported,
            "the database lacks a table of Leasehold: `leasehold schema mysql` prints the statements that create them, \
             and `MySqlBackend::create_schema` runs them",
        ),
        (
            &[1046, 1049],
            Unsupported,
            "the database does not exist: name it in the URL, as in mysql://user@host/database",
        ),
        (
            &[1054, 1136, 1366, 1406],
            Unsupported,
            "a table of Leasehold is not that of this version: compare it with `leasehold schema mysql`",
        ),
        (
            &[1231],
            Unsupported,
            "the server refuses a setting of the connection: its own maximum (an option `maximum-…`) is lower than a \
             lock needs",
        ),
        (&[1665], Unsupported, "the server's `binlog_format` is STATEMENT: set it to ROW or MIXED"),
        (&[1064, 1305, 1193], Unsupported, "the server is too old: MySQL 8.0 or MariaDB 10.6 is needed"),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_has_two_meanings() {
        let mut numbers: Vec<u16> = CONFLICTS.to_vec();
        numbers.extend(READ_ONLY);
        numbers.extend(REFUSALS.iter().flat_map(|(numbers, ..)| *numbers));
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }

    #[test]
    fn a_refusal_is_never_in_doubt() {
        assert!(REFUSALS.iter().all(|(_, kind, _)| *kind != ErrorKind::Indeterminate));
    }
}
