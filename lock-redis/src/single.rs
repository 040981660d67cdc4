//! The protocol of a single server, or of a node of a cluster.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::kit::{Attachment, lock};
use leasehold_core::backend::{Event, OwnerToken};
use leasehold_core::{Error, ErrorKind, FencingToken, Result};
use redis::Value;
use tokio::time::Instant;

use crate::check::Session;
use crate::cluster::{Declared, Redirection, Refusal};
use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::errors::{Failure, refused};
use crate::exchange::{Reply, Request, exchange};
use crate::protocol::Protocol;
use crate::replicas::{Replicas, is_supported};
use crate::replies;
use crate::run::Run;
use crate::sentinel::{Primary, half_until, is_sentinel};
use crate::shared::Shared;

impl Protocol for Shared {
    type Request = Request;
    type Reply = Reply;
    type Session = Mutex<Session>;

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn attachment(&self) -> &Attachment {
        &self.core
    }

    /// In a cluster a node may be demoted and promoted again meanwhile, without an operator and on an open connection.
    fn note_idle(&self) {
        if self.node.is_some() {
            self.note_replacement();
        }
    }

    fn session(&self) -> Self::Session {
        Mutex::new(Session::unread())
    }

    fn channels(&self) -> Vec<String> {
        vec![self.keys.channel.clone(), self.keys.epoch_channel()]
    }

    fn handle_message(&self, channel: &[u8], payload: &[u8], primary: Option<&Primary>, session: &Mutex<Session>) {
        if channel == self.keys.epoch_channel().as_bytes() {
            lock(&self.epochs).receive(&String::from_utf8_lossy(payload), Instant::now());
        } else if let (Some(core), Some(event)) = (self.core.get(), event(payload)) {
            let is_confirmed = primary.is_some() || self.replicas.is_some();
            if !is_confirmed || !matches!(event, Event::Granted { .. }) {
                return core.event(event);
            }
            let (run, until) = (lock(session).run(), Instant::now() + self.bound());
            let (core, primary, replicas) = (core.clone(), primary.cloned(), self.replicas.clone());
            tokio::spawn(async move {
                // Otherwise the next renewal of the place finds the grant.
                if confirm(primary.as_ref(), replicas.as_deref(), run, until).await.is_ok() {
                    core.event(event);
                }
            });
        }
    }

    async fn check(connection: &Connection, until: Instant) -> Result<Result<()>, Failure> {
        connection.protocol().server_clock.connected(connection.address());
        match connection.check_server(Duration::ZERO, until).await {
            Err(Failure::ErrorReply(text)) if text.contains("unknown command") => {
                let sentinel = is_sentinel(connection, until).await;
                sentinel.map_or(Err(Failure::ErrorReply(text)), |error| Ok(Err(error)))
            }
            Ok(Ok(())) if connection.protocol().replicas.is_some() => match is_supported(connection, until).await {
                Err(Failure::ErrorReply(text)) => Ok(Err(refused(&text))),
                supported => supported.map(Ok),
            },
            checked => checked,
        }
    }

    fn has_options(request: &Request) -> bool {
        request.is_acquire()
    }

    fn can_share_call(&self, one: &Request, other: &Request) -> bool {
        one.can_share_call(other, self)
    }

    async fn exchange(connection: &Connection, requests: &[Request], until: Instant) -> Vec<Result<Reply>> {
        exchange(connection, requests, Declared::Records, until).await
    }
}

/// Checks that a grant counts, which has just arrived from this run of the server. Takes half of the time that is left
/// at most, so that the others in its call have their replies in time. Cancel safe.
///
/// # Errors
/// `Indeterminate`: too few replicas have it, or the Sentinels do not name the server.
async fn confirm(
    primary: Option<&Primary>,
    replicas: Option<&Replicas>,
    run: Option<Arc<Run>>,
    until: Instant,
) -> Result<()> {
    let named = async {
        match primary {
            Some(primary) => primary.confirm_grant(until).await,
            None => Ok(()),
        }
    };
    tokio::try_join!(named, count(replicas, run, until)).map(drop)
}

async fn count(replicas: Option<&Replicas>, run: Option<Arc<Run>>, until: Instant) -> Result<()> {
    let Some(replicas) = replicas else { return Ok(()) };
    let unread = || Error::new(ErrorKind::Indeterminate, "the server was not read before its replicas were counted");
    replicas.have(run.ok_or_else(unread)?, half_until(until)).await
}

/// Decodes a message on the client's own channel.
fn event(payload: &[u8]) -> Option<Event> {
    if let Some((owner, place, token)) = replies::handoff(payload) {
        let (owner, token) = (OwnerToken::from_bytes(owner), FencingToken::new(token));
        return Some(Event::Granted { owner, place, token, confirmation: None });
    }
    replies::ends_sooner(payload).map(|owner| Event::EndsSooner { owner: OwnerToken::from_bytes(owner) })
}

impl Connection {
    /// As [`confirm`].
    pub(crate) async fn confirm_grant(&self, run: Option<Arc<Run>>, until: Instant) -> Result<()> {
        confirm(self.primary(), self.protocol().replicas.as_deref(), run, until).await
    }

    /// Checks that renewals count, whose reply has just arrived. Cancel safe.
    ///
    /// # Errors
    /// `Indeterminate`: too few replicas have them.
    pub(crate) async fn count_replicas(&self, run: Option<Arc<Run>>, until: Instant) -> Result<()> {
        count(self.protocol().replicas.as_deref(), run, until).await
    }

    /// Why a node of a cluster did nothing. `None`: it did, or may have done, something, or failed.
    pub(crate) fn refusal(&self, failure: &Failure) -> Option<Refusal> {
        let Failure::ErrorReply(text) = failure else { return None };
        self.redirection(text)
    }

    /// The same for an error reply.
    pub(crate) fn redirection(&self, text: &str) -> Option<Refusal> {
        let node = self.protocol().node.as_ref()?;
        Redirection::of(text, &node.address).map(Refusal::Redirected)
    }

    /// A call was not sent, for this reason. A cluster may have another node for it.
    ///
    /// # Errors
    /// The same, if that is final.
    pub(crate) fn unsent(&self, error: Error) -> Result<Refusal> {
        match self.protocol().node {
            Some(_) if error.kind() == ErrorKind::Unavailable => Ok(Refusal::NotSent(error)),
            _ => Err(error),
        }
    }

    /// The reply to a call, or why a node of a cluster did nothing.
    pub(crate) fn refusals(&self, reply: Result<Value, Failure>) -> Result<Result<Value, Refusal>> {
        let value = match reply {
            Ok(value) => value,
            Err(Failure::NotSent(error)) => return self.unsent(error).map(Err),
            Err(failure) => return self.refusal(&failure).map(Err).ok_or_else(|| failure.into()),
        };
        let lacking = self.protocol().node.as_ref().and_then(|_| replies::lacking(&value));
        Ok(lacking.map_or(Ok(value), |keys| Err(Refusal::NeedsKeys(keys))))
    }
}
