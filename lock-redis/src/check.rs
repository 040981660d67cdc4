//! What a connection reads of its server before it requests a lock: its run, and whether it may grant locks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::backend::kit::lock;
use leasehold_core::backend::kit::restart::{CheckContext, Decision, Quarantine, UnknownFormat};
use leasehold_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, timeout_at};

use crate::cluster::{DISAGREE, Declared, Redirection, Refusal};
use crate::connection::{Connection, script_call};
use crate::endpoint::check_requirements;
use crate::errors::{Failure, NO_CLUSTER, not_connected, refused};
use crate::replies;
use crate::run::Run;
use crate::sentinel::{half_until, lasting};

/// What a connection has read of the server.
pub(crate) struct Session {
    /// The name of the node of a cluster; empty for a single server.
    node: String,
    quarantine: Quarantine,
    /// `None` before the first reading, and of a node that serves no slots.
    run: Option<Arc<Run>>,
    /// [`Shared::replacements`](crate::shared::Shared::replacements) just before the reading.
    replacements: u64,
    /// How often the nodes that serve the slots had changed just before the epoch key was read: the node may have its
    /// key in another slot since.
    changes: u64,
    /// Nothing was read that counts for the next call.
    is_unread: bool,
}

impl Session {
    /// Of a connection that has read nothing.
    pub(crate) fn unread() -> Self {
        let quarantine = Quarantine::none(Instant::now());
        Self { node: String::new(), quarantine, run: None, replacements: 0, changes: 0, is_unread: true }
    }

    /// The run of the server.
    pub(crate) fn run(&self) -> Option<Arc<Run>> {
        self.run.clone()
    }
}

impl Connection {
    /// Prepares a call with this ttl. Publishes the ttl if other clients may not know that it is in use. Returns the
    /// remaining quarantine, or `None` if new grants are allowed.
    ///
    /// # Errors
    /// The ttl could not be published, or the node serves no slots, so the call must not be made.
    pub(crate) async fn prepare(&self, ttl: Duration, declared: Declared, until: Instant) -> Result<Option<Duration>> {
        // What others have to know is for how long a lease of this ttl may be believed in.
        let ttl = if self.primary().is_some() { lasting(ttl) } else { ttl };
        if self.must_be_read(ttl) {
            self.read_server(ttl, until).await?;
        }
        let mut session = lock(self.session());
        // It may be a replica that was promoted since, and lack the lease of another client. Only its epoch key says
        // so.
        if session.run.is_none() && self.protocol().node.is_some() && !declared.is_asking() {
            session.is_unread = true;
            return Err(Error::new(ErrorKind::Unavailable, DISAGREE));
        }
        Ok(session.quarantine.left(Instant::now()))
    }

    /// Reads the server before a call with this ttl.
    async fn read_server(&self, ttl: Duration, until: Instant) -> Result<()> {
        let read = async || {
            let lost = |failure| not_connected(failure, self.address());
            self.check_server(ttl, until).await.map_err(lost)?
        };
        if self.protocol().node.is_none() || ttl.is_zero() {
            return read().await;
        }
        // On a node of a cluster each lock is a call, and many begin together. One of them reads the node for all. It
        // may belong to a runtime that is busy with something else, so the others do not wait for long.
        let began = Instant::now();
        let mut last = timeout_at(half_until(until), self.reading().lock()).await.ok();
        if let Some(Some((at, error))) = last.as_deref()
            && *at >= began
        {
            return Err(error.clone());
        }
        if !self.must_be_read(ttl) {
            return Ok(());
        }
        let done = read().await;
        if let (Some(last), Err(error)) = (&mut last, &done) {
            **last = Some((Instant::now(), error.clone()));
        }
        done
    }

    /// Whether the server has to be read before a call with this ttl.
    fn must_be_read(&self, ttl: Duration) -> bool {
        let (now, session) = (Instant::now(), lock(self.session()));
        let is_current = !session.is_unread
            && session.replacements == self.replacements()
            && session.changes == self.changes()
            && !session.quarantine.needs_reading(ttl, now);
        // A node without a run has no epoch key.
        let has_key = session.run.is_some();
        !is_current || has_key && lock(&self.protocol().epochs).needs_reading(&session.node, ttl, now)
    }

    /// The run of the server, as this connection has read it.
    pub(crate) fn run_read(&self) -> Option<Arc<Run>> {
        lock(self.session()).run()
    }

    fn replacements(&self) -> u64 {
        self.protocol().replacements.load(Ordering::Acquire)
    }

    /// See [`Session::changes`].
    fn changes(&self) -> u64 {
        self.protocol().node.as_ref().map_or(0, |node| node.topology.changes())
    }

    /// Each connection reads the server before its next call.
    fn note_replacement(&self) {
        self.protocol().note_replacement();
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
    pub(crate) async fn check_server(&self, ttl: Duration, until: Instant) -> Result<Result<()>, Failure> {
        let (shared, replacements) = (self.protocol(), self.replacements());
        let mut identity = match &shared.node {
            None => None,
            Some(node) => match node.identify(self, until).await? {
                Ok(identity) => Some(identity),
                Err(error) => return Ok(Err(error)),
            },
        };
        let changes = self.changes();
        let node = identity.as_ref().map(|identity| identity.id().to_owned()).unwrap_or_default();
        let mut write: Option<(String, String)> = None;
        // Terminates: a client whose write was refused reads what another one wrote, and every write contains what all
        // must know.
        let (grants, run) = loop {
            let tag = match &identity {
                None => None,
                Some(identity) => match identity.tag() {
                    Some(tag) => Some(tag),
                    // A replica; or a node that takes its first slot over, and may be asked for it. It has no locks of
                    // an earlier run.
                    None => {
                        *lock(self.session()) =
                            Session { node, replacements, changes, is_unread: false, ..Session::unread() };
                        return Ok(Ok(()));
                    }
                },
            };
            let key = tag.as_ref().map_or_else(|| shared.keys.epoch(), |tag| shared.keys.epoch_of_node(tag));
            let requested = Instant::now();
            let mut call = script_call(&shared.scripts.epoch, 1);
            call.arg(&key);
            if let Some((read, new)) = &write {
                call.arg(read).arg(new).arg(shared.keys.epoch_channel());
            }
            let value = match self.run(&shared.scripts.epoch, &call, until).await {
                Ok(value) => value,
                Err(failure) => match (self.refusal(&failure), &mut identity, tag) {
                    (Some(Refusal::Redirected(Redirection::Ask(..))), Some(identity), Some(tag)) => {
                        if !identity.avoid(tag) {
                            return Ok(Err(Error::new(ErrorKind::Unavailable, ALL_MOVING)));
                        }
                        write = None;
                        continue;
                    }
                    (Some(refusal), ..) => return Ok(Err(refusal.error())),
                    (None, ..) => return Err(failure),
                },
            };
            let mut server = replies::server(value).ok_or(Failure::UnexpectedReply)?;
            if identity.is_some() {
                server.state.node = format!("{node}/");
            }
            let on_eviction = shared.settings.on_eviction;
            if write.is_none()
                && let Err(error) = check_requirements(self.address(), server.version, &server.eviction, on_eviction)
            {
                return Ok(Err(error));
            }
            if server.is_cluster && shared.node.is_none() {
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
            let key_read = server.state.key.clone();
            let (decision, run) = {
                let mut epochs = lock(&shared.epochs);
                let known = epochs.run(&node);
                let run = server.state.run(known);
                let is_known = known == Some(&run.name);
                let serves = |named: &str| identity.as_ref().is_some_and(|identity| identity.serves(named));
                if identity.is_some() && server.state.has_foreign_key(is_known, serves) {
                    // Its ttls are those of leases that were moved with it, or may be.
                    epochs.receive(&format!("{} {key_read}", server.state.now.as_millis()), check.now);
                    server.state.key.clear();
                }
                let was_promoted = server.state.was_promoted();
                let reading = server.state.reading(&run);
                (epochs.evaluate(&node, was_promoted, &reading, check), run)
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
        let run = Some(Arc::new(run));
        *lock(self.session()) = Session { node, quarantine, run, replacements, changes, is_unread: false };
        Ok(Ok(()))
    }
}

const ALL_MOVING: &str = "the cluster is moving the last slots of the node to other nodes";
