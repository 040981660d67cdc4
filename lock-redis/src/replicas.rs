//! Counts the replicas that have what the server has just acknowledged (`min_replicas`).
//!
//! `WAIT` counts the replicas that have acknowledged everything up to the last write *of its own connection*. On a
//! connection that has never written it counts all of them at once, also those that are stopped. So a message is
//! published before each `WAIT`, which replicas receive after what was acknowledged before. It is no write in other
//! respects: a full server accepts it, and no key is left.
//!
//! `WAIT` blocks all that follows on its connection. So it has a connection of its own, in the keeper's runtime. Callers
//! that wait at the same time share one call.

use std::sync::{Arc, Mutex, OnceLock};

use leasehold_core::backend::CoreHandle;
use leasehold_core::backend::kit::{Attachment, StoreUrl, lock};
use leasehold_core::{Error, ErrorKind, Result};
use redis::Value;
use tokio::time::Instant;

use crate::connection::{Connection, Role};
use crate::endpoint::Endpoint;
use crate::errors::Failure;
use crate::info::Info;
use crate::manager::ConnectionManager;
use crate::protocol::Protocol;
use crate::run::Run;
use crate::sentinel::{Primary, half_until};
use crate::shared::millis;

/// How many replicas must have a grant or a renewal before it counts. URL: `min_replicas=1` or `min_replicas=all`.
///
/// With fewer than all, the one without the lock may be promoted: Sentinel did that in 11 of 20 failovers with one of
/// two replicas, and in 20 of 20 if the other had the better `replica-priority`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MinReplicas {
    /// At least this many, 1 to 100.
    AtLeast(u8),
    /// All that the server has had since the client connected, and at least one.
    All,
}

impl MinReplicas {
    const MOST: u8 = 100;

    /// Takes the parameter of a URL.
    pub(crate) fn take(url: &mut StoreUrl) -> Result<Option<Self>> {
        let Some(text) = url.take("min_replicas") else { return Ok(None) };
        let number = || text.parse().ok().map(Self::AtLeast);
        let chosen = if text == "all" { Some(Self::All) } else { number() };
        chosen.ok_or_else(Self::invalid)?.check().map(Some)
    }

    /// Checks the bounds.
    pub(crate) fn check(self) -> Result<Self> {
        match self {
            Self::AtLeast(1..=Self::MOST) | Self::All => Ok(self),
            Self::AtLeast(_) => Err(Self::invalid()),
        }
    }

    fn invalid() -> Error {
        Error::invalid(format!("`min_replicas` must be `all` or a number from 1 to {}", Self::MOST))
    }
}

const REPLICATION: &[&str] = &["INFO", "replication"];

/// The connection that counts, of one client.
pub(crate) struct Replicas {
    counting: Arc<Counting>,
    /// Empty before the backend is attached.
    manager: OnceLock<ConnectionManager<Counting>>,
}

impl Replicas {
    pub(crate) fn new(endpoint: Arc<Endpoint>, channel: String, enough: MinReplicas) -> Self {
        let counting = Counting { endpoint, channel, enough, core: Attachment::new() };
        Self { counting: Arc::new(counting), manager: OnceLock::new() }
    }

    pub(crate) fn attach(&self, core: CoreHandle) {
        let runtime = core.keeper_runtime().clone();
        if self.counting.core.attach(core) {
            let manager = ConnectionManager::new(self.counting.clone(), Role::Commands, &runtime);
            manager.inner().request_connection();
            let _ = self.manager.set(manager);
        }
    }

    /// Waits until enough replicas have what this run of the server has acknowledged until now. Cancel safe.
    ///
    /// # Errors
    /// `Indeterminate`: too few have it, or nobody knows.
    pub(crate) async fn have(&self, run: Arc<Run>, until: Instant) -> Result<()> {
        let counted = match self.manager.get() {
            Some(manager) => manager.inner().send_request(run, until).await,
            None => self.counting.core.core().map(drop),
        };
        // What they do not have took effect at the server nevertheless.
        counted.map_err(|error| error.with_kind(ErrorKind::Indeterminate))
    }
}

/// What is said on the connection.
pub(crate) struct Counting {
    endpoint: Arc<Endpoint>,
    /// Nobody subscribes to it.
    channel: String,
    enough: MinReplicas,
    core: Attachment,
}

/// What is known of the server of a connection.
#[derive(Default)]
pub(crate) struct Session {
    process: String,
    former_history: String,
    /// The most replicas that it has had.
    most: u64,
}

impl Protocol for Counting {
    /// The run whose acknowledgements are meant.
    type Request = Arc<Run>;
    type Reply = ();
    type Session = Mutex<Session>;

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn attachment(&self) -> &Attachment {
        &self.core
    }

    fn session(&self) -> Self::Session {
        Mutex::default()
    }

    fn channels(&self) -> Vec<String> {
        Vec::new()
    }

    fn handle_message(&self, _: &[u8], _: &[u8], _: Option<&Primary>, _: &Self::Session) {}

    async fn check(connection: &Connection<Self>, until: Instant) -> Result<Result<()>, Failure> {
        let (server, replication) = tokio::try_join!(
            biased;
            Info::read(connection, &["INFO", "server"], until),
            Info::read(connection, REPLICATION, until)
        )?;
        if replication.get("role") != Some("master") {
            let text = format!("the server at {} is a replica", connection.address());
            return Ok(Err(Error::new(ErrorKind::Unavailable, text)));
        }
        *lock(connection.session()) = Session {
            process: server.get("run_id").unwrap_or_default().to_owned(),
            former_history: replication.get("master_replid2").unwrap_or_default().to_owned(),
            most: replication.number("connected_slaves"),
        };
        Ok(Ok(()))
    }

    fn has_options(_: &Arc<Run>) -> bool {
        false
    }

    fn can_share_call(&self, _: &Arc<Run>, _: &Arc<Run>) -> bool {
        true
    }

    async fn exchange(connection: &Connection<Self>, runs: &[Arc<Run>], until: Instant) -> Vec<Result<()>> {
        let counted = count(connection, until).await.map_err(Error::from);
        let of = |run: &Arc<Run>| {
            let is_read = {
                let session = lock(connection.session());
                session.process == run.process && session.former_history == run.former_history
            };
            if !is_read {
                // It leads to the server of earlier requests, or of later ones.
                connection.close();
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "the server was replaced before its replicas were counted",
                ));
            }
            counted.clone()?
        };
        runs.iter().map(of).collect()
    }
}

/// Waits until enough replicas have what the server has acknowledged until now. Takes half of the time until `until`,
/// so that the server's reply arrives within it.
async fn count(connection: &Connection<Counting>, until: Instant) -> Result<Result<()>, Failure> {
    let counting = connection.protocol();
    let message = ["PUBLISH", &counting.channel, ""];
    let enough = match counting.enough {
        MinReplicas::AtLeast(enough) => {
            connection.query(&message, until).await?;
            u64::from(enough)
        }
        MinReplicas::All => {
            let (_, replication) = tokio::try_join!(
                biased;
                connection.query(&message, until),
                Info::read(connection, REPLICATION, until)
            )?;
            let mut session = lock(connection.session());
            session.most = session.most.max(replication.number("connected_slaves"));
            session.most.max(1)
        }
    };
    let patience = half_until(until).saturating_duration_since(Instant::now());
    // Zero would wait for ever.
    let wait = ["WAIT", &enough.to_string(), &millis(patience).max(1).to_string()];
    let have = match connection.query(&wait, until).await? {
        Value::Int(have) => u64::try_from(have).unwrap_or(0),
        _ => return Err(Failure::UnexpectedReply),
    };
    if have >= enough {
        return Ok(Ok(()));
    }
    let text = format!("{have} of {enough} replicas have confirmed the lease (`min_replicas` in the URL)");
    Ok(Err(Error::new(ErrorKind::Unavailable, text)))
}

/// Checks that a server counts replicas for this user.
pub(crate) async fn is_supported<P: Protocol>(connection: &Connection<P>, until: Instant) -> Result<(), Failure> {
    connection.query(&["WAIT", "0", "1"], until).await.map(drop)
}
