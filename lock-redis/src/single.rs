//! The protocol of a single server: what is checked on a connection, and when the server may grant locks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::kit::restart::{CheckContext, Decision, Quarantine, UnknownFormat};
use leasehold_core::backend::kit::{Attachment, lock};
use leasehold_core::backend::{Event, OwnerToken};
use leasehold_core::{Error, ErrorKind, FencingToken, Result};
use tokio::time::Instant;

use crate::connection::{Connection, script_call};
use crate::endpoint::{Endpoint, check_requirements};
use crate::errors::{Failure, NO_CLUSTER, not_connected, refused};
use crate::exchange::{Reply, Request, exchange};
use crate::protocol::Protocol;
use crate::replicas::{Replicas, is_supported};
use crate::replies;
use crate::run::Run;
use crate::sentinel::{Primary, half_until, is_sentinel, lasting};
use crate::shared::Shared;

/// What a connection has read of the server.
pub(crate) struct Session {
    quarantine: Quarantine,
    /// `None` before the first reading.
    run: Option<Arc<Run>>,
    /// [`Shared::replacements`] just before the reading.
    replacements: u64,
}

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

    fn session(&self) -> Self::Session {
        Mutex::new(Session { quarantine: Quarantine::none(Instant::now()), run: None, replacements: 0 })
    }

    fn channels(&self) -> Vec<String> {
        vec![self.keys.channel.clone(), self.keys.epoch_channel()]
    }

    fn handle_message(&self, channel: &[u8], payload: &[u8], primary: Option<&Primary>, session: &Mutex<Session>) {
        if channel == self.keys.epoch_channel().as_bytes() {
            lock(&self.epoch).receive(&String::from_utf8_lossy(payload), Instant::now());
        } else if let (Some(core), Some(event)) = (self.core.get(), event(payload)) {
            let is_confirmed = primary.is_some() || self.replicas.is_some();
            if !is_confirmed || !matches!(event, Event::Granted { .. }) {
                return core.event(event);
            }
            let (run, until) = (lock(session).run.clone(), Instant::now() + self.bound());
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
        exchange(connection, requests, until).await
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

    /// Prepares a call with this ttl. Publishes the ttl if other clients may not know that it is in use. Returns the
    /// remaining quarantine, or `None` if new grants are allowed.
    ///
    /// # Errors
    /// The ttl could not be published, so the call must not be made.
    pub(crate) async fn prepare(&self, ttl: Duration, until: Instant) -> Result<Option<Duration>> {
        // What others have to know is for how long a lease of this ttl may be believed in.
        let ttl = if self.primary().is_some() { lasting(ttl) } else { ttl };
        let now = Instant::now();
        let unknown = lock(&self.protocol().epoch).needs_reading(ttl, now);
        let is_outdated = {
            let session = lock(self.session());
            session.replacements != self.replacements() || session.quarantine.needs_reading(ttl, now)
        };
        if unknown || is_outdated {
            let lost = |failure| not_connected(failure, self.address());
            self.check_server(ttl, until).await.map_err(lost)??;
        }
        let quarantine = lock(self.session()).quarantine;
        Ok(quarantine.left(Instant::now()))
    }

    /// The run of the server, as this connection has read it.
    pub(crate) fn run_read(&self) -> Option<Arc<Run>> {
        lock(self.session()).run.clone()
    }

    fn replacements(&self) -> u64 {
        self.protocol().replacements.load(Ordering::Acquire)
    }

    /// Each connection reads the server before its next call.
    fn note_replacement(&self) {
        self.protocol().replacements.fetch_add(1, Ordering::AcqRel);
    }

    /// The error for an error reply. A server that has become a replica is read again before the next call, because it
    /// may be promoted again. So is one that is in another run than the one that was read.
    pub(crate) fn refused(&self, text: &str) -> Error {
        self.note_refusal(text);
        if text.contains("READONLY") || text.contains("OTHERRUN") {
            self.note_replacement();
        }
        refused(text)
    }

    /// Reads the run of the server, checks that the server can be used for locks, and publishes what other clients have
    /// to know before a call with this ttl.
    async fn check_server(&self, ttl: Duration, until: Instant) -> Result<Result<()>, Failure> {
        let (shared, replacements) = (self.protocol(), self.replacements());
        let key = shared.keys.epoch();
        let mut write: Option<(String, String)> = None;
        // Terminates: a client whose write was refused reads what another one wrote, and every write contains what all
        // must know.
        let (grants, run) = loop {
            let requested = Instant::now();
            let mut call = script_call(&shared.scripts.epoch, 1);
            call.arg(&key);
            if let Some((read, new)) = &write {
                call.arg(read).arg(new).arg(shared.keys.epoch_channel());
            }
            let value = self.run(&shared.scripts.epoch, &call, until).await?;
            let mut server = replies::server(value).ok_or(Failure::UnexpectedReply)?;
            let on_eviction = shared.settings.on_eviction;
            if write.is_none()
                && let Err(error) = check_requirements(self.address(), server.version, &server.eviction, on_eviction)
            {
                return Ok(Err(error));
            }
            if server.is_cluster {
                let text = format!("{NO_CLUSTER} ({})", self.address());
                return Ok(Err(Error::new(ErrorKind::Unsupported, text)));
            }
            if self.primary().is_some() {
                if server.state.is_replica {
                    self.close();
                    let text = format!("the server at {}, which the Sentinels name, is a replica", self.address());
                    return Ok(Err(Error::new(ErrorKind::Unavailable, text)));
                }
                // Sentinels may name a server that has long been up. Its uptime says nothing about its predecessor.
                server.state.has_replicated = true;
            }
            if server.state.is_replica {
                // It may be promoted while connections stay open, and may lack leases by then.
                self.note_replacement();
                return Ok(if ttl.is_zero() { Ok(()) } else { Err(refused("READONLY").without_effect()) });
            }
            let on_restart = shared.settings.on_restart;
            let check = CheckContext { on_restart, ttl, requested, now: Instant::now() };
            let (decision, key_read, run) = {
                let mut epoch = lock(&shared.epoch);
                let run = server.state.run(epoch.run());
                let reading = server.state.reading(&run);
                (epoch.evaluate(&reading, check), reading.key, run)
            };
            match decision {
                // Written only if the key is still as it was read. Otherwise the next round reads what another client
                // wrote.
                Ok(Decision::Write(new)) => write = Some((key_read, new)),
                Ok(Decision::Grants(grants)) => break (grants, run),
                Err(UnknownFormat) => return Ok(Err(refused(&format!("UNKNOWNFORMAT of the key {key}")))),
            }
        };
        let quarantine = Quarantine::new(grants, Instant::now(), crate::errors::BACKEND, self.address());
        *lock(self.session()) = Session { quarantine, run: Some(Arc::new(run)), replacements };
        Ok(Ok(()))
    }
}
