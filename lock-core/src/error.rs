//! Errors, and the kinds that say what is known about the lock.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::name::LockName;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Says what the caller knows about the lock. The same situation has the same kind on every backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Not held: another claim held the lock for the whole wait.
    Timeout,
    /// The lease is certainly not held any more: stop the work.
    Lost,
    /// The request had no effect on the store. It may be repeated.
    Unavailable,
    /// The request may have taken effect: work as if the lock were not held, and expect others to see it as held.
    Indeterminate,
    /// The input is wrong, or this server cannot grant such a ttl. Nothing was acquired.
    InvalidInput,
    /// This backend, or this server, cannot do it.
    Unsupported,
    /// The store or a configured limit is full.
    Capacity,
    /// The server refused the user, the password or the permission.
    Auth,
}

/// An error, with the lock, the backend and the action. Cheap to clone.
///
/// The text is a fragment in lower case. It says that a request may have taken effect if the kind is
/// [`Indeterminate`](ErrorKind::Indeterminate), and never otherwise. It prints no cause that
/// [`source`](std::error::Error::source) returns, no owner token and no password.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    passes_by_itself: bool,
    text: Cow<'static, str>,
    action: Option<&'static str>,
    lock: Option<LockName>,
    backend: Option<&'static str>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of a kind, with a text that says what failed and, if possible, how to correct it.
    pub fn new(kind: ErrorKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            passes_by_itself: false,
            text: text.into(),
            action: None,
            lock: None,
            backend: None,
            source: None,
        }))
    }

    /// An [`InvalidInput`](ErrorKind::InvalidInput) error.
    pub fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidInput, text)
    }

    /// No reply arrived within the bound of a call, so its outcome is unknown.
    pub fn no_reply() -> Self {
        Self::new(ErrorKind::Indeterminate, "the server did not reply in time (`timeout` in the URL)")
    }

    /// The connection broke before the reply to a request, so its outcome is unknown.
    pub fn connection_broke() -> Self {
        Self::new(ErrorKind::Indeterminate, "the connection broke during the request")
    }

    /// The connection broke before a request, which was not sent.
    pub fn not_sent() -> Self {
        Self::new(ErrorKind::Unavailable, "the connection broke before the request was sent")
    }

    /// The reply is not one that the store gives, so the outcome of its request is unknown.
    pub fn unexpected_reply() -> Self {
        let text = "the server does not give such a reply: is there a proxy in between?";
        Self::new(ErrorKind::Indeterminate, text)
    }

    /// The claim of a request was withdrawn before, so the request had no effect.
    pub fn withdrawn() -> Self {
        Self::new(ErrorKind::Lost, "this claim was withdrawn before the request took effect")
    }

    /// The lease of a fenced write has ended, so nothing was written.
    pub fn lease_ended() -> Self {
        Self::new(ErrorKind::Lost, "the lease is not current any more: nothing was written")
    }

    /// The client is shut down, so nothing was sent.
    pub fn shut_down() -> Self {
        Self::new(ErrorKind::Unavailable, "the client is shut down")
    }

    /// The server has ended the session that leases share. The request had no effect.
    pub fn session_ended() -> Self {
        Self::new(ErrorKind::Unavailable, "the server has ended the session of this client")
    }

    /// The stored state of a lock has a format that this version does not know. `what` has it: `the row`.
    pub fn other_format(what: &str) -> Self {
        let text = format!("{what} of this lock has another format: a newer version of Leasehold may have written it");
        Self::new(ErrorKind::Unsupported, text)
    }

    /// Adds the cause. This error's own text does not repeat it.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Adds a text as the cause, such as that of an error reply of the server.
    #[must_use]
    pub fn with_cause(self, text: impl Into<String>) -> Self {
        self.with_source(Cause(text.into()))
    }

    /// Marks a limit that passes without an operator, such as connections that other clients close again. A wait for a
    /// lock then continues after a [`Capacity`](ErrorKind::Capacity) error, which would otherwise end it.
    #[must_use]
    pub fn passing_by_itself(mut self) -> Self {
        self.0.passes_by_itself = true;
        self
    }

    /// Adds which of several servers has given the error, unless the text says so.
    #[must_use]
    pub fn at(mut self, server: &str) -> Self {
        if !self.0.text.contains(server) {
            self.0.text = format!("{} ({server})", self.0.text).into();
        }
        self
    }

    /// Adds the action (a verb: "acquire"), the lock and the backend, unless the error has them already.
    #[must_use]
    pub fn during(mut self, action: &'static str, lock: &LockName, backend: &'static str) -> Self {
        self.0.action.get_or_insert(action);
        self.0.lock.get_or_insert_with(|| lock.clone());
        self.0.backend.get_or_insert(backend);
        self
    }

    /// The same error with another kind, for a caller who knows more about the effect.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// The same error for a request that certainly had no effect, such as one that was not sent: `Indeterminate`
    /// becomes `Unavailable`.
    #[must_use]
    pub fn without_effect(self) -> Self {
        if self.kind() == ErrorKind::Indeterminate { self.with_kind(ErrorKind::Unavailable) } else { self }
    }

    /// What is known about the lock now.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the cause is a limit that [passes by itself](Self::passing_by_itself).
    pub fn passes_by_itself(&self) -> bool {
        self.0.passes_by_itself
    }

    /// The lock, if the error is about one.
    pub fn lock(&self) -> Option<&LockName> {
        self.0.lock.as_ref()
    }

    /// The backend, if the error happened on one.
    pub fn backend(&self) -> Option<&'static str> {
        self.0.backend
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(action), Some(lock)) = (self.0.action, &self.0.lock) {
            write!(f, "cannot {action} lock {:?}", lock.as_str())?;
            if let Some(backend) = self.0.backend {
                write!(f, " on {backend}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.0.text)?;
        match self.0.kind {
            ErrorKind::Indeterminate => f.write_str("; the request may or may not have taken effect"),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind).field("text", &self.to_string());
        if let Some(source) = &self.0.source {
            out.field("source", &source.to_string());
        }
        out.finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// A cause that is a text alone.
#[derive(Debug)]
struct Cause(String);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Cause {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_error_in_doubt_says_that_the_request_may_have_taken_effect() {
        for error in [Error::no_reply(), Error::connection_broke(), Error::unexpected_reply()] {
            assert!(error.to_string().contains("taken effect"), "{error}");
            let error = error.without_effect();
            assert!(!format!("{error} {error:?}").contains("effect"), "{error:?}");
            assert!(error.with_kind(ErrorKind::Indeterminate).to_string().contains("taken effect"));
        }
    }

    #[test]
    fn only_doubt_is_mended_by_knowing_that_there_was_no_effect() {
        for (kind, expected) in [
            (ErrorKind::Indeterminate, ErrorKind::Unavailable),
            (ErrorKind::Unavailable, ErrorKind::Unavailable),
            (ErrorKind::Auth, ErrorKind::Auth),
            (ErrorKind::Lost, ErrorKind::Lost),
        ] {
            assert_eq!(Error::new(kind, "planted").without_effect().kind(), expected);
        }
    }
}
