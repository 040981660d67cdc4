//! Maps every failure of a request to an error. The kind says what the failure means for the lock.

use std::time::Duration;

use leasehold_core::backend::kit::NotOpened;
use leasehold_core::{Error, ErrorKind};
use zookeeper_client::Error as ClientError;

/// The backend's name in errors and capabilities.
pub(crate) const BACKEND: &str = "zk";

/// Why a request has no usable reply.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The request was certainly not sent, or the server refused it because it cannot serve any now. It had no effect.
    NotSent(Error),
    /// The request had no effect, and would have none later.
    Refused(Error),
    /// The session has ended. The request had no effect.
    NoSession,
    /// There is no such node. The request had no effect.
    NoNode,
    /// The node exists. The request had no effect.
    NodeExists,
    /// The request may have been sent, and no reply arrived within the bound.
    TimedOut,
    /// The request may have been sent, and the connection broke.
    Disconnected(Error),
    /// The server does not give such a reply.
    UnexpectedReply,
}

impl Failure {
    /// Converts the error of a request.
    pub(crate) fn of(error: ClientError) -> Self {
        let refused = |kind, text| Self::Refused(Error::new(kind, text));
        match error {
            ClientError::NoNode => Self::NoNode,
            ClientError::NodeExists => Self::NodeExists,
            ClientError::SessionExpired => Self::NoSession,
            ClientError::NoAuth => refused(ErrorKind::Auth, NO_PERMISSION),
            ClientError::AuthFailed => refused(ErrorKind::Auth, "the server refuses the user or the password"),
            ClientError::InvalidAcl => refused(ErrorKind::Auth, "the server does not know the user of the URL"),
            ClientError::QuotaExceeded => refused(ErrorKind::Capacity, "the quota of the root is used up"),
            ClientError::BadArguments(_) => {
                refused(ErrorKind::InvalidInput, "the client cannot send this name or root")
            }
            ClientError::Unimplemented | ClientError::MarshallingError => refused(
                ErrorKind::Unsupported,
                "the server does not know the request: ZooKeeper 3.5.3 or later, with container nodes, is needed",
            ),
            ClientError::Throttled | ClientError::NotReadOnly | ClientError::SessionMoved => {
                let text = "the server cannot serve requests now";
                Self::NotSent(Error::new(ErrorKind::Unavailable, text).with_source(error))
            }
            ClientError::BadVersion | ClientError::NotEmpty | ClientError::NoChildrenForEphemerals => {
                Self::UnexpectedReply
            }
            ClientError::UnmarshalError { .. } => Self::UnexpectedReply,
            error => Self::Disconnected(Error::connection_broke().with_source(error)),
        }
    }

    /// The stored state has a format that this version does not know.
    pub(crate) fn other_format() -> Self {
        Self::Refused(Error::other_format("a node"))
    }

    /// The error of a request that changes nothing: its outcome is never in doubt.
    pub(crate) fn without_effect(self) -> Error {
        Error::from(self).without_effect()
    }

    /// The same failure of a request before which nothing was requested.
    pub(crate) fn not_sent(self) -> Self {
        match self {
            Self::Refused(error) => Self::Refused(error),
            Self::NoSession => Self::NoSession,
            failure => Self::NotSent(failure.without_effect()),
        }
    }

    /// The same failure of a request that follows one with an effect.
    pub(crate) fn in_doubt(self) -> Self {
        Self::Disconnected(Error::from(self).with_kind(ErrorKind::Indeterminate))
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotSent(error) | Failure::Refused(error) | Failure::Disconnected(error) => error,
            Failure::NoSession => Self::session_ended(),
            Failure::NoNode => Self::new(ErrorKind::Unavailable, "a node of this lock was deleted during the request"),
            Failure::NodeExists => Self::new(ErrorKind::Unavailable, "a node was created during the request"),
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

/// The error of an attempt to connect to a server.
pub(crate) fn not_connected(address: &str, cause: &str) -> Failure {
    Failure::NotSent(Error::new(ErrorKind::Unavailable, format!("no connection to the server at {address}: {cause}")))
}

/// The error of attempts to connect to several servers.
pub(crate) fn none_connected(failures: &[Failure]) -> Failure {
    match failures {
        [] => Failure::TimedOut,
        [failure] => failure.clone(),
        failures => {
            let errors: Vec<_> = failures.iter().map(|failure| failure.clone().without_effect()).collect();
            let texts: Vec<_> = errors.iter().map(Error::to_string).collect();
            // Waiting is in vain only if no server can be used at all.
            let kind = errors[0].kind();
            let is_common = errors.iter().all(|error| error.kind() == kind);
            Failure::NotSent(Error::new(if is_common { kind } else { ErrorKind::Unavailable }, texts.join("; ")))
        }
    }
}

/// The servers end a session sooner than a lease of this ttl.
pub(crate) fn too_long(ttl: Duration, longest: Duration) -> Error {
    Error::invalid(format!(
        "the servers grant leases of at most {longest:?}, and the ttl is {ttl:?}: shorten it, or raise their \
         `maxSessionTimeout`"
    ))
}

const NO_PERMISSION: &str =
    "the user may not do this: set the permissions that `leasehold acl` prints, and write the user into the URL";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_says_what_is_known_about_the_lock() {
        for (error, kind) in [
            (ClientError::NoAuth, ErrorKind::Auth),
            (ClientError::AuthFailed, ErrorKind::Auth),
            (ClientError::InvalidAcl, ErrorKind::Auth),
            (ClientError::QuotaExceeded, ErrorKind::Capacity),
            (ClientError::Unimplemented, ErrorKind::Unsupported),
            (ClientError::Throttled, ErrorKind::Unavailable),
            (ClientError::NotReadOnly, ErrorKind::Unavailable),
            (ClientError::SessionMoved, ErrorKind::Unavailable),
            (ClientError::SessionExpired, ErrorKind::Unavailable),
            (ClientError::NoNode, ErrorKind::Unavailable),
            (ClientError::ConnectionLoss, ErrorKind::Indeterminate),
            (ClientError::Timeout, ErrorKind::Indeterminate),
            (ClientError::ClientClosed, ErrorKind::Indeterminate),
            (ClientError::UnexpectedError("no reply".to_owned()), ErrorKind::Indeterminate),
            (ClientError::UnexpectedErrorCode(-1), ErrorKind::Indeterminate),
        ] {
            let failure = Failure::of(error.clone());
            assert_eq!(Error::from(failure.clone()).kind(), kind, "{error:?}");
            let without_effect = failure.without_effect().kind();
            assert_ne!(without_effect, ErrorKind::Indeterminate, "{error:?}");
        }
    }

    #[test]
    fn what_follows_an_effect_is_in_doubt_and_what_precedes_it_is_not() {
        assert_eq!(Error::from(Failure::NoNode.in_doubt()).kind(), ErrorKind::Indeterminate);
        assert_eq!(Error::from(Failure::TimedOut.not_sent()).kind(), ErrorKind::Unavailable);
        let refused = Failure::of(ClientError::NoAuth).not_sent();
        assert!(matches!(refused, Failure::Refused(error) if error.kind() == ErrorKind::Auth));
    }
}
