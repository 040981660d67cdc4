//! One connection to the server. Opening, checking and using it each take bounded time.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::backend::kit::lock;
use leasehold_core::backend::kit::restart::{CheckContext, Decision, Quarantine, UnknownFormat};
use leasehold_core::backend::{Event, OwnerToken};
use leasehold_core::{Error, ErrorKind, FencingToken, Result};
use redis::aio::MultiplexedConnection;
use redis::{Arg, AsyncConnectionConfig, Cmd, PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::errors::{Failure, checked, not_connected, refused};
use crate::replies;
use crate::scripts::Script;
use crate::settings::{self, OnEviction};
use crate::shared::Shared;
use crate::socket::{self, Driver};

/// The queue length of the client crate, beyond which senders wait. Never reached, because waiting requests share
/// calls.
const PIPELINE_BUFFER: usize = 1024;

/// A connection without a reply for this time is tested before it is used: a NAT gateway or a balancer may have
/// forgotten it.
const IDLE: Duration = Duration::from_secs(5);

/// Whether a connection also receives pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sends commands only.
    Commands,
    /// Sends commands, and receives grants on the client's channel.
    CommandsAndPushes,
}

pub(crate) struct Connection {
    shared: Arc<Shared>,
    mux: MultiplexedConnection,
    health: Arc<Health>,
    quarantine: Mutex<Quarantine>,
}

struct Health {
    is_closed: AtomicBool,
    closed_event: Notify,
    /// How many replies have arrived.
    replies_received: AtomicU64,
    /// When the newest one arrived, or the connection was opened.
    heard: Mutex<Instant>,
}

impl Health {
    fn new() -> Self {
        Self {
            is_closed: AtomicBool::new(false),
            closed_event: Notify::new(),
            replies_received: AtomicU64::new(0),
            heard: Mutex::new(Instant::now()),
        }
    }

    fn note_reply(&self) {
        self.replies_received.fetch_add(1, Ordering::Relaxed);
        *lock(&self.heard) = Instant::now();
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.closed_event.notify_one();
    }
}

impl Connection {
    /// Connects, subscribes and checks the server. The connection lives as long as its driver.
    pub(crate) async fn open(shared: &Arc<Shared>, role: Role) -> Result<(Self, Driver)> {
        let lost = |failure| not_connected(failure, &shared.address);
        let health = Arc::new(Health::new());
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE_BUFFER)
            .set_push_sender(push_handler(shared.clone(), health.clone()));
        let attempt = shared.connecting.attempt(&shared.address);
        let client = settings::reload(&shared.client, &shared.tls).await;
        let (mux, mut driver) = socket::connect(&client, config, &shared.lookups, &attempt).await.map_err(lost)?;
        let connection =
            Self { shared: shared.clone(), mux, health, quarantine: Mutex::new(Quarantine::none(Instant::now())) };
        let subscribed = async {
            if role == Role::CommandsAndPushes {
                let channels = [shared.keys.channel.clone(), shared.keys.epoch_channel()];
                connection.mux.clone().subscribe(&channels[..]).await.map_err(|error| lost(Failure::of(error)))?;
            }
            Ok::<_, Error>(())
        };
        // Concurrently, because every round trip counts on a slow path. The subscription goes first: a write of the
        // epoch key after the check is then received as a message.
        let checked = async { connection.check_server(Duration::ZERO, attempt.until()).await.map_err(lost)? };
        let ready = attempt.step("the check of the server", async { tokio::try_join!(biased; subscribed, checked) });
        tokio::select! {
            ready = ready => ready??,
            () = driver.ended() => return Err(lost(Failure::aborted())),
        };
        attempt.succeeded();
        Ok((connection, driver))
    }

    /// Marks the connection as closed.
    pub(crate) fn close(&self) {
        self.health.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.health.is_closed.load(Ordering::Acquire)
    }

    /// Whether it has to be tested before it is used.
    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.health.heard).elapsed() >= IDLE
    }

    /// Tests the connection. If there is no reply within half of the time until `until`, it is closed, and the other
    /// half is left for a new one.
    pub(crate) async fn test(&self, until: Instant) {
        let now = Instant::now();
        // Every user that can use Leasehold may run this command. An error reply is ignored: the next request gets it
        // too.
        let mut time = Cmd::new();
        time.arg("TIME");
        let _ = self.send(&time, now + until.saturating_duration_since(now) / 2).await;
    }

    /// Resolves when the connection is closed.
    pub(crate) async fn closed(&self) {
        while !self.is_closed() {
            self.health.closed_event.notified().await;
        }
    }

    /// Runs a script by its digest. If the server does not know the digest, the script did not run, and its source is
    /// sent instead.
    pub(crate) async fn run(&self, script: &Script, call: &Cmd, until: Instant) -> Result<Value, Failure> {
        match self.send(call, until).await {
            Err(failure) if failure.is_noscript() => {
                let mut whole = Cmd::new();
                whole.arg("EVAL").arg(&script.source);
                for arg in call.args_iter().skip(2) {
                    if let Arg::Simple(bytes) = arg {
                        whole.arg(bytes);
                    }
                }
                self.send(&whole, until).await
            }
            done => done,
        }
    }

    /// Sends a command and waits for its reply until `until`.
    pub(crate) async fn send(&self, command: &Cmd, until: Instant) -> Result<Value, Failure> {
        if self.is_closed() {
            return Err(Failure::NotSent(Error::new(ErrorKind::Unavailable, "the connection broke")));
        }
        let replies_received = self.health.replies_received.load(Ordering::Relaxed);
        let mut mux = self.mux.clone();
        match timeout_at(until, mux.send_packed_command(command)).await {
            Ok(Ok(value)) => {
                self.health.note_reply();
                checked(value)
            }
            Ok(Err(error)) => {
                let failure = Failure::of(error);
                if matches!(failure, Failure::Disconnected(_)) {
                    self.health.close();
                }
                Err(failure)
            }
            Err(_) => {
                // If other replies arrived meanwhile, the server is only slow. If none did, a new connection may get
                // through sooner than this one, whose packets are retransmitted at growing intervals.
                if self.health.replies_received.load(Ordering::Relaxed) == replies_received {
                    self.health.close();
                }
                Err(Failure::TimedOut)
            }
        }
    }

    /// Prepares a call with this ttl. Publishes the ttl if other clients may not know that it is in use. Returns the
    /// remaining quarantine, or `None` if new grants are allowed.
    ///
    /// # Errors
    /// The ttl could not be published, so the call must not be made.
    pub(crate) async fn prepare(&self, ttl: Duration, until: Instant) -> Result<Option<Duration>> {
        let now = Instant::now();
        let unknown = lock(&self.shared.epoch).needs_reading(ttl, now);
        let quarantine = *lock(&self.quarantine);
        if unknown || quarantine.needs_reading(ttl, now) {
            let lost = |failure| not_connected(failure, &self.shared.address);
            self.check_server(ttl, until).await.map_err(lost)??;
        }
        let quarantine = *lock(&self.quarantine);
        Ok(quarantine.left(Instant::now()))
    }

    /// The error for an error reply. A server that has become a replica is read again before the next call, because it
    /// may be promoted again.
    pub(crate) fn refused(&self, text: &str) -> Error {
        if text.contains("READONLY") {
            *lock(&self.quarantine) = Quarantine::unread(Instant::now());
        }
        refused(text)
    }

    /// Reads the run of the server, checks that the server can be used for locks, and publishes what other clients have
    /// to know before a call with this ttl.
    async fn check_server(&self, ttl: Duration, until: Instant) -> Result<Result<()>, Failure> {
        let shared = &self.shared;
        let key = shared.keys.epoch();
        let mut write: Option<(String, String)> = None;
        // Terminates: a client whose write was refused reads what another one wrote, and every write contains what all
        // must know.
        let grants = loop {
            let requested = Instant::now();
            let mut call = script_call(&shared.scripts.epoch, 1);
            call.arg(&key);
            if let Some((read, new)) = &write {
                call.arg(read).arg(new).arg(shared.keys.epoch_channel());
            }
            let value = self.run(&shared.scripts.epoch, &call, until).await?;
            let server = replies::server(value).ok_or(Failure::UnexpectedReply)?;
            if write.is_none()
                && let Err(error) = self.check_requirements(&server)
            {
                return Ok(Err(error));
            }
            if server.state.is_replica {
                // It may be promoted while this connection stays open, and may lack leases by then.
                *lock(&self.quarantine) = Quarantine::unread(Instant::now());
                return Ok(if ttl.is_zero() { Ok(()) } else { Err(refused("READONLY").without_effect()) });
            }
            let on_restart = shared.settings.on_restart;
            let check = CheckContext { on_restart, ttl, requested, now: Instant::now() };
            let (decision, key_read) = {
                let mut epoch = lock(&shared.epoch);
                let reading = server.state.reading(epoch.run());
                (epoch.evaluate(&reading, check), reading.key)
            };
            match decision {
                // Written only if the key is still as it was read. Otherwise the next round reads what another client
                // wrote.
                Ok(Decision::Write(new)) => write = Some((key_read, new)),
                Ok(Decision::Grants(grants)) => break grants,
                Err(UnknownFormat) => return Ok(Err(refused(&format!("UNKNOWNFORMAT of the key {key}")))),
            }
        };
        *lock(&self.quarantine) = Quarantine::new(grants, Instant::now(), crate::errors::BACKEND, &shared.address);
        Ok(Ok(()))
    }

    fn check_requirements(&self, server: &replies::Server) -> Result<()> {
        let address = &self.shared.address;
        if server.version < (6, 2) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the server at {address} is Redis {}.{}: 6.2 or later is needed",
                    server.version.0, server.version.1
                ),
            ));
        }
        if server.eviction != "noeviction" {
            let text = format!(
                "the server at {address} may evict locks that are held: its `maxmemory-policy` is `{}` and must be \
                 `noeviction` (`eviction=warn` in the URL allows it)",
                server.eviction
            );
            match self.shared.settings.on_eviction {
                OnEviction::Refuse => return Err(Error::new(ErrorKind::Unsupported, text)),
                OnEviction::Warn => tracing::warn!(backend = crate::errors::BACKEND, "{text}"),
            }
        }
        Ok(())
    }
}

/// Starts an `EVALSHA` command. The caller adds the keys and the arguments.
pub(crate) fn script_call(script: &Script, keys: usize) -> Cmd {
    // Room for a key and an argument per lock, and mostly also for the holder information.
    let mut call = Cmd::with_capacity(2 * keys + 4, 192 * keys + 96);
    call.arg("EVALSHA").arg(&script.digest).arg(keys);
    call
}

/// Handles the pushes of the server.
fn push_handler(
    shared: Arc<Shared>,
    health: Arc<Health>,
) -> impl Fn(PushInfo) -> Result<(), std::convert::Infallible> + Send + Sync + 'static {
    move |push| {
        match push.kind {
            PushKind::Disconnection => health.close(),
            PushKind::Message => {
                let Some((channel, payload)) = replies::message(&push.data) else { return Ok(()) };
                if channel == shared.keys.epoch_channel().as_bytes() {
                    lock(&shared.epoch).receive(&String::from_utf8_lossy(payload), Instant::now());
                } else if let (Some(core), Some(event)) = (shared.core.get(), event(payload)) {
                    core.event(event);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Decodes a message on the client's own channel.
fn event(payload: &[u8]) -> Option<Event> {
    if let Some((owner, place, token)) = replies::handoff(payload) {
        let (owner, token) = (OwnerToken::from_bytes(owner), FencingToken::new(token));
        return Some(Event::Granted { owner, place, token, confirmation: None });
    }
    replies::ends_sooner(payload).map(|owner| Event::EndsSooner { owner: OwnerToken::from_bytes(owner) })
}
