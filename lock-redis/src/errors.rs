//! Maps every failure of a command to an error. The kind says what the failure means for the lock.

use leasehold_core::backend::kit::tls_refusal;
use leasehold_core::{Error, ErrorKind};
use redis::{RedisError, ServerError, Value};

/// The backend's name in errors and capabilities.
pub(crate) const BACKEND: &str = "redis";

/// Why a command has no usable reply.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The command was certainly not sent.
    NotSent(Error),
    /// The command may have been sent, and no reply arrived within the bound.
    TimedOut,
    /// The command may have been sent, and the connection broke.
    Disconnected(RedisError),
    /// The server replied with an error: `CODE and text`.
    ErrorReply(String),
    /// The server certainly expects TLS and the URL does not, or the reverse. Nothing was sent.
    WrongTls(&'static str),
    /// The script does not return such a reply.
    UnexpectedReply,
}

impl Failure {
    /// Converts an error of the client crate.
    pub(crate) fn of(error: RedisError) -> Self {
        match ServerError::try_from(error) {
            Ok(refusal) => Self::refusal(&refusal),
            // If the server refuses the database during the handshake, the client crate keeps only the text.
            Err(error) if matches!(error.kind(), redis::ErrorKind::Server(_)) => {
                Self::ErrorReply(format!("ERR {}", error.detail().unwrap_or_default()))
            }
            Err(error) => Self::Disconnected(error),
        }
    }

    /// The client closed the connection.
    pub(crate) fn aborted() -> Self {
        Self::Disconnected(std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into())
    }

    pub(crate) fn refusal(refusal: &ServerError) -> Self {
        Self::ErrorReply(format!("{} {}", refusal.code(), refusal.details().unwrap_or_default()))
    }

    /// Whether the server did not know the script, so that the script certainly did not run. Its whole phrase: a script
    /// of the user may have failed with the code alone.
    pub(crate) fn is_noscript(&self) -> bool {
        matches!(self, Self::ErrorReply(text) if text.starts_with("NOSCRIPT No matching script"))
    }
}

/// Turns an error reply into a failure.
pub(crate) fn checked(value: Value) -> Result<Value, Failure> {
    match value {
        Value::ServerError(refusal) => Err(Failure::refusal(&refusal)),
        value => Ok(value),
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotSent(error) => error,
            Failure::TimedOut => Self::no_reply(),
            Failure::Disconnected(cause) => Self::connection_broke().with_source(cause),
            Failure::ErrorReply(text) => refused(&text),
            Failure::WrongTls(why) => Self::new(ErrorKind::Unsupported, why),
            Failure::UnexpectedReply => Self::new(
                ErrorKind::Indeterminate,
                "the script does not return such a reply: is there a proxy in between?",
            ),
        }
    }
}

/// Maps an error reply. The code may be anywhere in the text: servers before 7.0 put the position in the script before
/// it.
pub(crate) fn refused(text: &str) -> Error {
    let row = REFUSALS.iter().find(|(code, ..)| text.contains(code));
    let (kind, hint) = row.map_or((ErrorKind::Indeterminate, "the server replied with an error"), |&(_, k, h)| (k, h));
    let error = Error::new(kind, hint).with_cause(harmless(text));
    // The limit passes when other clients disconnect, so a waiter keeps waiting.
    if text.contains(TOO_MANY_CLIENTS) { error.passing_by_itself() } else { error }
}

/// The same for a script of the user, which may have written before it failed, and may fail with any text.
pub(crate) fn refused_to_script(text: &str) -> Error {
    let is_of_script = ["script:", "user_script", "Error running script"].iter().any(|mark| text.contains(mark));
    if !is_of_script || BEFORE_A_WRITE.iter().any(|refusal| text.contains(refusal)) {
        return refused(text);
    }
    Error::new(ErrorKind::Indeterminate, "the script failed, and what it wrote before stays written")
        .with_cause(harmless(text))
}

/// The server refuses these to a script before its first write only. Whole phrases: a script may say that a ROOM is
/// full.
const BEFORE_A_WRITE: &[&str] = &[
    "OOM command not allowed",
    "READONLY You can't write against a read only",
    "MISCONF Redis is configured",
    "MISCONF Valkey is configured",
    "MISCONF Errors writing to the AOF",
    "NOREPLICAS Not enough good replicas",
];

const PERMISSION: &str = "the user lacks a permission: `leasehold acl redis` prints the permissions that are needed";

const NO_EVAL: &str = "the user may not run `EVAL`: `leasehold acl redis` prints the permissions that are needed, and \
                       `scripts=functions` in the URL needs no `EVAL`";

const TOO_MANY_CLIENTS: &str = "max number of clients";

pub(crate) const NO_CLUSTER: &str = "the server belongs to a Redis Cluster: use a `redis+cluster://` URL, or servers \
                                     without `cluster-enabled`";

const LACKS_COMMAND: &str = "the server does not know a required command, or its configuration renames or removes it \
                             (`rename-command`): Redis 6.2 or later is needed";

/// Texts in error replies of all supported versions. The first match counts.
const REFUSALS: &[(&str, ErrorKind, &str)] = {
    use ErrorKind::{Auth, Capacity, Unavailable, Unsupported};
    &[
        // First, because these texts contain names of users, keys or channels, which may look like any other text.
        (
            "no permissions to run the 'scan' command",
            Auth,
            "the user may not list locks: `leasehold acl redis --operator` prints the permissions that are needed",
        ),
        ("run the 'eval", Auth, NO_EVAL),
        ("NOPERM", Auth, PERMISSION),
        // For `SELECT` during the handshake: see `Failure::of`.
        ("no permissions to run", Auth, PERMISSION),
        ("ACL failure in script", Auth, PERMISSION),
        ("The user executing the script can't", Auth, PERMISSION),
        ("No permissions to access", Auth, PERMISSION),
        ("UNKNOWNFORMAT", Unsupported, "the lock's record was written in a format that this version does not know"),
        (
            "WRONGTYPE",
            Unsupported,
            "the lock's key contains something that Leasehold did not write: does another program use this prefix?",
        ),
        ("WRONGPASS", Auth, "the server refused the user or the password"),
        ("NOAUTH", Auth, "the server requires a user or a password"),
        ("called without any password configured", Auth, "the URL has a password, but the server's user has none"),
        ("OOM", Capacity, "the server's memory is full (`maxmemory`)"),
        (TOO_MANY_CLIENTS, Capacity, "the server has reached its limit of connections (`maxclients`)"),
        ("READONLY", Unavailable, "the server is a read-only replica: connect to the primary"),
        // From put_back.lua.
        ("OTHERRUN", Unavailable, "the server was restarted or replaced just now"),
        ("LOADING", Unavailable, "the server is still loading its data"),
        ("BUSY", Unavailable, "the server is busy with a script"),
        ("MASTERDOWN", Unavailable, "the server has lost its primary"),
        ("TRYAGAIN", Unavailable, "the server asks to try again"),
        ("NOREPLICAS", Unavailable, "the server has fewer replicas than it requires (`min-replicas-to-write`)"),
        ("MISCONF", Unavailable, "the server cannot save its data and refuses to write"),
        // A node without slots says that the cluster is down.
        ("CLUSTERDOWN", Unsupported, NO_CLUSTER),
        ("MOVED", Unsupported, NO_CLUSTER),
        ("CROSSSLOT", Unsupported, NO_CLUSTER),
        ("non local key", Unsupported, NO_CLUSTER),
        ("SELECT is not allowed in cluster mode", Unsupported, NO_CLUSTER),
        (
            "DB index is out of range",
            Unsupported,
            "the server has no database with the number in the URL (`databases`)",
        ),
        (
            "DENIED Redis is running in protected mode",
            Auth,
            "the server accepts only local clients until it has a password (`protected-mode`)",
        ),
        (
            "Function not found",
            Unsupported,
            "the server does not have this version of Leasehold's functions: `leasehold functions redis | redis-cli -x \
             FUNCTION LOAD` loads them",
        ),
        ("FCALL", Unsupported, "the server has no functions: leave out `scripts=functions`, or use Redis 7.0 or later"),
        ("unknown command", Unsupported, LACKS_COMMAND),
        ("unknown subcommand", Unsupported, LACKS_COMMAND),
        // From a script.
        ("Unknown Redis command", Unsupported, LACKS_COMMAND),
    ]
};

/// Removes the arguments that a server echoes for an unknown command, because an owner token may be among them. Also
/// removes a repeated `ERR`, which a server puts before an error that a script raises.
fn harmless(mut text: &str) -> String {
    while let Some(rest) = text.strip_prefix("ERR ").filter(|rest| rest.starts_with("ERR ")) {
        text = rest;
    }
    let end = text.find("with args beginning").unwrap_or(text.len());
    text[..end].trim_end_matches([' ', ',']).to_owned()
}

fn refused_tls(kind: ErrorKind, address: &str, why: &str) -> Error {
    Error::new(kind, format!("cannot connect to the server at {address}: {why}"))
}

/// Maps a failure to connect. Nothing was sent that could have had an effect.
pub(crate) fn not_connected(failure: Failure, address: &str) -> Error {
    match failure {
        Failure::NotSent(error) => error,
        Failure::TimedOut => Error::new(
            ErrorKind::Unavailable,
            format!("the server at {address} did not reply within `timeout` of the URL while connecting"),
        ),
        Failure::Disconnected(cause) if cause.kind() == redis::ErrorKind::AuthenticationFailed => {
            Error::new(ErrorKind::Auth, "the server refused the user or the password")
        }
        Failure::Disconnected(cause) if cause.kind() == redis::ErrorKind::RESP3NotSupported => Error::new(
            ErrorKind::Unsupported,
            format!("the server at {address} is too old: Redis 6.2 or later is needed"),
        ),
        Failure::Disconnected(cause) => match tls_refusal(&cause) {
            Some(why) => refused_tls(why.kind(), address, why.advice()).with_source(cause),
            None => {
                let text = format!("cannot connect to the server at {address}");
                Error::new(ErrorKind::Unavailable, text).with_source(cause)
            }
        },
        Failure::WrongTls(why) => refused_tls(ErrorKind::Unsupported, address, why),
        Failure::ErrorReply(text) => refused(&text).without_effect(),
        Failure::UnexpectedReply => Error::new(
            ErrorKind::Unsupported,
            format!("the server at {address} is not a Redis server: its replies cannot be read"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn each_error_reply_has_its_kind() {
        use ErrorKind::{Auth, Capacity, Indeterminate, Unavailable, Unsupported};
        for (text, kind) in [
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Unsupported),
            ("user_script:40: UNKNOWNFORMAT version 2 kind 120", Unsupported),
            ("WRONGPASS invalid username-password pair or user is disabled.", Auth),
            ("NOAUTH Authentication required.", Auth),
            // Commands of clients: 6.2 and 7.0, later ones, and Valkey.
            ("NOPERM this user has no permissions to run the 'evalsha' command", Auth),
            ("NOPERM this user has no permissions to run the 'set' command or its subcommand", Auth),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", Auth),
            ("NOPERM this user has no permissions to access one of the channels used as arguments", Auth),
            ("NOPERM User locks has no permissions to run the 'evalsha' command", Auth),
            ("NOPERM No permissions to access a key", Auth),
            ("NOPERM No permissions to access a channel", Auth),
            ("NOPERM No permissions to access database", Auth),
            ("ERR this user has no permissions to run the 'select' command", Auth),
            // Commands of scripts: 6.2.
            (
                "ERR Error running script (call to f_104a): @user_script:3: @user_script: 3: -NOPERM this user has no \
                 permissions",
                Auth,
            ),
            ("ERR The user executing the script can't run this command or subcommand", Auth),
            (
                "ERR The user executing the script can't access at least one of the keys mentioned in the command \
                 arguments",
                Auth,
            ),
            // 7.0, which repeats the code for an error inside a script.
            (
                "ERR ERR The user executing the script can't run this command or subcommand script: 104a, on \
                 @user_script:1.",
                Auth,
            ),
            (
                "ERR The user executing the script can't publish to the channel mentioned in the command script: 104a",
                Auth,
            ),
            // 7.2, 8.0, and Valkey 8 and 9.
            (
                "ERR ACL failure in script: User locks has no permissions to run the 'set' command script: 8a2f, on \
                 @user_script:4.",
                Auth,
            ),
            ("ERR ERR ACL failure in script: User locks has no permissions to access the 'OOM:{READONLY}' key", Auth),
            ("ERR ACL failure in script: User locks has no permissions to access the 'c:epoch' channel", Auth),
            ("ERR ACL failure in script: No permissions to access database", Auth),
            ("OOM command not allowed when used memory > 'maxmemory'.", Capacity),
            ("user_script:60: @user_script: 60: -OOM command not allowed when used memory > 'maxmemory'.", Capacity),
            ("ERR max number of clients reached", Capacity),
            ("READONLY You can't write against a read only replica.", Unavailable),
            ("OTHERRUN", Unavailable),
            ("LOADING Redis is loading the dataset in memory", Unavailable),
            ("BUSY Redis is busy running a script.", Unavailable),
            ("MASTERDOWN Link with MASTER is down", Unavailable),
            ("NOREPLICAS Not enough good replicas to write.", Unavailable),
            ("MISCONF Redis is configured to save RDB snapshots", Unavailable),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable),
            ("CLUSTERDOWN Hash slot not served", Unsupported),
            ("ERR SELECT is not allowed in cluster mode", Unsupported),
            ("ERR Script attempted to access a non local key in a cluster node script: 104a", Unsupported),
            ("ERR DB index is out of range", Unsupported),
            ("ERR max number of clients + cluster connections reached", Capacity),
            ("DENIED Redis is running in protected mode because protected mode is enabled", Auth),
            ("ERR Unknown Redis command called from script script: 104a, on @user_script:1.", Unsupported),
            ("ERR Error running script: @user_script: 3: Unknown Redis command called from Lua script", Unsupported),
            ("MOVED 3999 127.0.0.1:6381", Unsupported),
            ("ERR unknown command 'hello', with args beginning with: 'owner'", Unsupported),
            ("ERR something unexpected", Indeterminate),
        ] {
            assert_eq!(refused(text).kind(), kind, "{text}");
        }
    }

    #[test]
    fn a_script_that_failed_may_have_written() {
        use ErrorKind::{Capacity, Indeterminate, Unavailable, Unsupported};
        for (text, kind) in [
            ("ERR BUSYGROUP Consumer Group name already exists script: 8a2f, on @user_script:4.", Indeterminate),
            ("no ROOM left script: 8a2f, on @user_script:4.", Indeterminate),
            ("LOADING what script: 8a2f, on @user_script:4.", Indeterminate),
            ("ERR Error running script (call to f_104a): @user_script:3: BUSY", Indeterminate),
            ("OOM command not allowed when used memory > 'maxmemory'. script: 8a2f, on @user_script:4.", Capacity),
            ("NOREPLICAS Not enough good replicas to write. script: 8a2f, on @user_script:4.", Unavailable),
            // Nothing of the script has run.
            ("LOADING Redis is loading the dataset in memory", Unavailable),
            ("ERR unknown command 'evalsha', with args beginning with: 'x'", Unsupported),
        ] {
            assert_eq!(refused_to_script(text).kind(), kind, "{text}");
        }
    }

    #[test]
    fn only_the_limit_of_connections_passes_by_itself() {
        assert!(refused("ERR max number of clients reached").passes_by_itself());
        assert!(!refused("OOM command not allowed when used memory > 'maxmemory'.").passes_by_itself());
    }

    #[test]
    fn the_code_of_an_error_appears_once() {
        for (text, shown) in [
            ("ERR ERR ACL failure in script: User x", "ERR ACL failure in script: User x"),
            ("ERR ERR ERR what", "ERR what"),
            ("ERR ERRATIC", "ERR ERRATIC"),
        ] {
            assert_eq!(refused(text).source().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn echoed_arguments_are_removed() {
        let error = refused("ERR unknown command 'evalsha', with args beginning with: 'secret'");
        assert_eq!(error.source().unwrap().to_string(), "ERR unknown command 'evalsha'");
    }

    #[test]
    fn no_failure_to_connect_is_indeterminate() {
        for failure in [
            Failure::TimedOut,
            Failure::Disconnected(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()),
            Failure::ErrorReply("ERR what".to_owned()),
            Failure::UnexpectedReply,
        ] {
            assert_ne!(not_connected(failure.clone(), "host:1").kind(), ErrorKind::Indeterminate, "{failure:?}");
        }
    }
}
