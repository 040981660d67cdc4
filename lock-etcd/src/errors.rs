//! Maps every failure of a request to an error. The kind says what the failure means for the lock.

use leasehold_core::backend::kit::{NotOpened, TlsRefusal, tls_refusal};
use leasehold_core::{Error, ErrorKind};
use tonic::{Code, ConnectError, Status};

/// The backend's name in errors and capabilities.
pub(crate) const BACKEND: &str = "etcd";

/// Why a request has no usable reply.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The request was certainly not sent.
    NotSent(Error),
    /// The member refused the request, which had no effect. Another member, or the same one later, may serve it.
    Elsewhere(Error),
    /// The member refused the token of the connection. The request had no effect.
    Token(Error),
    /// The request had no effect, and would have none at another member.
    Refused(Error),
    /// The server takes fewer operations in a transaction, which had no effect.
    TooManyOperations(Error),
    /// There is no such etcd lease. The request had no effect.
    NoLease,
    /// The request may have been sent, and no reply arrived within the bound.
    TimedOut,
    /// The request may have been sent, and the connection broke.
    Disconnected(Error),
    /// The member replied that it does not know the outcome, or with an error that this version does not know.
    Unknown(Error),
    /// The server does not give such a reply.
    UnexpectedReply,
}

impl Failure {
    /// Converts the error of a request.
    pub(crate) fn of(error: etcd_client::Error) -> Self {
        match error {
            etcd_client::Error::GRpcStatus(status) => Self::status(&status),
            etcd_client::Error::LeaseKeepAliveError(text) if text == LEASE_NOT_FOUND => Self::NoLease,
            error => Self::Disconnected(Error::connection_broke().with_source(error)),
        }
    }

    fn status(status: &Status) -> Self {
        let text = status.message();
        let cause = format!("{:?}: {text}", status.code());
        if !text.starts_with(SERVER) {
            // With TLS 1.3, a server refuses the client's certificate when the client takes the connection for open.
            if let Some(why) = tls_refusal(status) {
                let text = format!("the server refuses the connection: {}", why.advice());
                return Self::NotSent(Error::new(why.kind(), text).with_cause(cause));
            }
            if was_not_sent(status) {
                let error = Error::new(ErrorKind::Unavailable, "cannot connect to the server");
                return Self::NotSent(error.with_cause(cause));
            }
            return match status.code() {
                Code::Unimplemented => {
                    let text = "the server does not know the request: etcd 3.4 or later is needed";
                    Self::Refused(Error::new(ErrorKind::Unsupported, text).with_cause(cause))
                }
                _ => Self::Disconnected(Error::connection_broke().with_cause(cause)),
            };
        }
        match REPLIES.iter().find(|(texts, _)| texts.iter().any(|known| text[SERVER.len()..].starts_with(known))) {
            Some((_, Meaning::NoLease)) => Self::NoLease,
            Some((_, Meaning::Elsewhere(text))) => {
                Self::Elsewhere(Error::new(ErrorKind::Unavailable, *text).with_cause(cause))
            }
            Some((_, Meaning::Token)) => {
                Self::Token(Error::new(ErrorKind::Auth, "the server refuses the token of the user").with_cause(cause))
            }
            Some((_, Meaning::Refused(kind, text))) => Self::Refused(Error::new(*kind, *text).with_cause(cause)),
            Some((_, Meaning::TooManyOperations)) => {
                Self::TooManyOperations(Error::new(ErrorKind::Unsupported, TOO_FEW_OPERATIONS).with_cause(cause))
            }
            Some((_, Meaning::Unknown(text))) => {
                Self::Unknown(Error::new(ErrorKind::Indeterminate, *text).with_cause(cause))
            }
            None => Self::Unknown(
                Error::new(ErrorKind::Indeterminate, "the server replied with an error").with_cause(cause),
            ),
        }
    }

    /// The stored state has a format that this version does not know.
    pub(crate) fn other_format() -> Self {
        Self::Refused(Error::other_format("the key"))
    }

    /// The error of a request that changes nothing: its outcome is never in doubt.
    pub(crate) fn without_effect(self) -> Error {
        Error::from(self).without_effect()
    }

    /// Whether a request that was refused so had no effect, and may be sent again.
    pub(crate) fn may_repeat(&self) -> bool {
        matches!(self, Self::NotSent(_) | Self::Elsewhere(_) | Self::Token(_))
    }

    /// Whether a request that changes nothing, or changes the same when it is repeated, may succeed at another member.
    pub(crate) fn may_try_another(&self) -> bool {
        self.may_repeat() || matches!(self, Self::TimedOut | Self::Disconnected(_) | Self::Unknown(_))
    }

    /// Whether the client should use another connection.
    pub(crate) fn ends_connection(&self) -> bool {
        self.may_repeat() || matches!(self, Self::Disconnected(_) | Self::Unknown(_))
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotSent(error)
            | Failure::Elsewhere(error)
            | Failure::Token(error)
            | Failure::Refused(error)
            | Failure::TooManyOperations(error)
            | Failure::Disconnected(error)
            | Failure::Unknown(error) => error,
            Failure::NoLease => Self::session_ended(),
            Failure::TimedOut => Self::no_reply(),
            Failure::UnexpectedReply => Self::unexpected_reply(),
        }
    }
}

impl From<NotOpened<Self>> for Failure {
    fn from(why: NotOpened<Self>) -> Self {
        match why {
            NotOpened::Failed(failure) => failure,
            NotOpened::TimedOut => Self::TimedOut,
            NotOpened::ShutDown => Self::NotSent(Error::shut_down()),
        }
    }
}

/// The error of an attempt to connect.
pub(crate) fn not_connected(address: &str, cause: Error) -> Failure {
    let text = format!("no connection to the server at {address}");
    Failure::NotSent(Error::new(ErrorKind::Unavailable, text).with_source(cause))
}

/// The error of TLS on which the URL and the server do not agree. Nothing was sent. It ends a wait, unless another member
/// can be used.
pub(crate) fn wrong_tls(address: &str, why: TlsRefusal) -> Error {
    Error::new(why.kind(), format!("no connection to the server at {address}: {}", why.advice()))
}

/// The server expects TLS, and the URL has none.
pub(crate) fn expects_tls(address: &str) -> Error {
    let text = format!("no connection to the server at {address}: it expects TLS: begin the URL with `etcds://`");
    Error::new(ErrorKind::Unsupported, text)
}

/// The failure of several attempts at several members: the last one, unless only an earlier one may pass.
pub(crate) fn most_hopeful(failures: impl IntoIterator<Item = Failure>) -> Option<Failure> {
    let is_final = |failure: &Failure| match failure {
        Failure::NotSent(error) => error.kind() != ErrorKind::Unavailable,
        _ => false,
    };
    failures.into_iter().reduce(|one, other| if is_final(&other) && !is_final(&one) { one } else { other })
}

/// Whether the request never left this process.
fn was_not_sent(status: &Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// What a keep-alive of the client crate says of a lease that does not exist.
const LEASE_NOT_FOUND: &str = "lease not found";

/// Every error of the server begins so.
const SERVER: &str = "etcdserver: ";

enum Meaning {
    NoLease,
    Elsewhere(&'static str),
    Token,
    Refused(ErrorKind, &'static str),
    TooManyOperations,
    Unknown(&'static str),
}

const NO_PERMISSION: &str = "the user may not do this: give it the role that `leasehold acl` prints";
pub(crate) const TOO_FEW_OPERATIONS: &str =
    "the server takes too few operations in a transaction: start it with `--max-txn-ops=128`, its default";
const NO_USER: &str = "the server requires a user: write it into the URL, as in etcd://user:password@host";

/// What the replies of the server mean, by the beginning of their text.
const REPLIES: &[(&[&str], Meaning)] = &[
    (&["requested lease not found"], Meaning::NoLease),
    (
        &[
            "no leader",
            "leader changed",
            "not leader",
            "unhealthy cluster",
            "rpc not supported for learner",
            "not capable",
        ],
        Meaning::Elsewhere("the member has no leader or cannot serve requests now"),
    ),
    (&["too many requests"], Meaning::Elsewhere("the server has too many requests")),
    (&["invalid auth token", "revision of auth store is old"], Meaning::Token),
    (&["authentication failed"], Meaning::Refused(ErrorKind::Auth, "the server refuses the user or the password")),
    (&["user name is empty"], Meaning::Refused(ErrorKind::Auth, NO_USER)),
    (
        &["authentication is not enabled"],
        Meaning::Refused(ErrorKind::Auth, "the server knows no users: leave user and password out of the URL"),
    ),
    (&["permission denied"], Meaning::Refused(ErrorKind::Auth, NO_PERMISSION)),
    (
        &["mvcc: database space exceeded"],
        Meaning::Refused(
            ErrorKind::Capacity,
            "the database of the server is full: compact and defragment it, and disarm the alarm NOSPACE",
        ),
    ),
    (&["too many operations in txn request"], Meaning::TooManyOperations),
    (&["corrupt cluster"], Meaning::Refused(ErrorKind::Unsupported, "the members of the cluster have different data")),
    (
        &["too large lease TTL"],
        Meaning::Refused(ErrorKind::InvalidInput, "the server grants no lease with such a long ttl"),
    ),
    (&["request timed out", "server stopped"], Meaning::Unknown("the member could not complete the request")),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: Code, text: &str) -> (&'static str, ErrorKind) {
        let failure = Failure::of(Status::new(code, text).into());
        let shape = match failure {
            Failure::NotSent(_) => "not sent",
            Failure::Elsewhere(_) => "elsewhere",
            Failure::Token(_) => "token",
            Failure::Refused(_) => "refused",
            Failure::TooManyOperations(_) => "too many operations",
            Failure::NoLease => "no lease",
            Failure::TimedOut => "timed out",
            Failure::Disconnected(_) => "disconnected",
            Failure::Unknown(_) => "unknown",
            Failure::UnexpectedReply => "unexpected",
        };
        (shape, Error::from(failure).kind())
    }

    #[test]
    fn every_reply_has_a_meaning() {
        use ErrorKind::{Auth, Capacity, Indeterminate, InvalidInput, Unavailable, Unsupported};
        for (code, text, shape, kind) in [
            (Code::NotFound, "etcdserver: requested lease not found", "no lease", Unavailable),
            (Code::Unavailable, "etcdserver: no leader", "elsewhere", Unavailable),
            (Code::Unavailable, "etcdserver: leader changed", "elsewhere", Unavailable),
            (Code::Unavailable, "etcdserver: rpc not supported for learner", "elsewhere", Unavailable),
            (Code::ResourceExhausted, "etcdserver: too many requests", "elsewhere", Unavailable),
            (Code::Unauthenticated, "etcdserver: invalid auth token", "token", Auth),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old", "token", Auth),
            (Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password", "refused", Auth),
            (Code::InvalidArgument, "etcdserver: user name is empty", "refused", Auth),
            (Code::FailedPrecondition, "etcdserver: authentication is not enabled", "refused", Auth),
            (Code::PermissionDenied, "etcdserver: permission denied", "refused", Auth),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", "refused", Capacity),
            (Code::DataLoss, "etcdserver: corrupt cluster", "refused", Unsupported),
            (
                Code::InvalidArgument,
                "etcdserver: too many operations in txn request",
                "too many operations",
                Unsupported,
            ),
            (Code::OutOfRange, "etcdserver: too large lease TTL", "refused", InvalidInput),
            (Code::Unavailable, "etcdserver: request timed out", "unknown", Indeterminate),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
                "unknown",
                Indeterminate,
            ),
            (Code::Unavailable, "etcdserver: server stopped", "unknown", Indeterminate),
            (Code::Unknown, "etcdserver: something new", "unknown", Indeterminate),
            (Code::Unavailable, "error reading from server: EOF", "disconnected", Indeterminate),
            (Code::Unknown, "transport error", "disconnected", Indeterminate),
            (Code::Unimplemented, "unknown service etcdserverpb.KV", "refused", Unsupported),
        ] {
            assert_eq!(of(code, text), (shape, kind), "{text}");
        }
    }

    #[test]
    fn a_failed_connection_was_not_sent() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let status = Status::from_error(Box::new(ConnectError(Box::new(refused))));
        let failure = Failure::of(status.into());
        assert!(matches!(failure, Failure::NotSent(_)) && failure.may_repeat(), "{failure:?}");
    }

    #[test]
    fn what_may_have_had_an_effect_is_not_repeated() {
        for failure in [Failure::TimedOut, Failure::of(Status::unknown("transport error").into())] {
            assert!(!failure.may_repeat() && failure.may_try_another());
            assert_eq!(Error::from(failure.clone()).kind(), ErrorKind::Indeterminate);
            assert_eq!(failure.without_effect().kind(), ErrorKind::Unavailable);
        }
        let lease = Failure::of(etcd_client::Error::LeaseKeepAliveError("lease not found".to_owned()));
        assert!(matches!(lease, Failure::NoLease) && !lease.may_try_another());
    }
}
