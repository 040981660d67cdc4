//! One connection to the server. Opening, checking and using it each take bounded time.

use std::future::Future;
use std::sync::Arc;

use leasehold_core::backend::kit::Health;
use leasehold_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{Arg, AsyncConnectionConfig, Cmd, PushInfo, PushKind, RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use crate::cluster::Declared;
use crate::endpoint::Target;
use crate::errors::{Failure, checked, not_connected};
use crate::protocol::Protocol;
use crate::replies;
use crate::scripts::Script;
use crate::sentinel::Primary;
use crate::shared::Shared;
use crate::socket::{self, Driver};

/// The queue length of the client crate, beyond which senders wait, within their bounds. Requests to a single server
/// share calls and never reach it.
const PIPELINE_BUFFER: usize = 1024;

/// Whether a connection also receives pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sends commands only.
    Commands,
    /// Sends commands, and receives grants on the client's channel.
    CommandsAndPushes,
}

pub(crate) struct Connection<P: Protocol = Shared> {
    protocol: Arc<P>,
    mux: MultiplexedConnection,
    health: Arc<Health>,
    session: Arc<P::Session>,
    /// Held while a call reads the node. Has its last error, and the time of that.
    reading: tokio::sync::Mutex<Option<(Instant, Error)>>,
    /// The address of the server, for errors and logs.
    address: String,
    /// The server, if Sentinels named it.
    primary: Option<Primary>,
}

impl<P: Protocol> Connection<P> {
    /// Connects, subscribes and checks the server. The connection lives as long as its driver.
    pub(crate) async fn open(protocol: &Arc<P>, role: Role) -> Result<(Self, Driver)> {
        let target = protocol.endpoint().target().await?;
        let Some(primary) = target.primary.clone() else { return Self::open_to(target, protocol, role).await };
        tokio::select! {
            opened = Self::open_to(target, protocol, role) => opened,
            // A server that is silent must not keep the client from the one that has replaced it.
            () = primary.replaced() => {
                Err(Error::new(ErrorKind::Unavailable, "the Sentinels name another primary now"))
            }
        }
    }

    async fn open_to(target: Target, protocol: &Arc<P>, role: Role) -> Result<(Self, Driver)> {
        let endpoint = protocol.endpoint();
        let Target { client, address, primary } = target;
        let lost = |failure| not_connected(failure, &address);
        let (health, session) = (Arc::<Health>::default(), Arc::new(protocol.session()));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE_BUFFER)
            .set_push_sender(push_handler(protocol.clone(), health.clone(), primary.clone(), session.clone()));
        let attempt = endpoint.connecting.attempt(&address);
        let (mux, mut driver) = {
            let connected = socket::connect(&client, config, &endpoint.lookups, &attempt, endpoint.timeout);
            connected.await.map_err(lost)?
        };
        let address = address.clone();
        let connection = {
            let reading = tokio::sync::Mutex::default();
            Self { protocol: protocol.clone(), mux, health, session, reading, address, primary }
        };
        let subscribed = async {
            if role == Role::CommandsAndPushes {
                let channels = protocol.channels();
                if channels.is_empty() {
                    return Ok(());
                }
                connection.mux.clone().subscribe(&channels[..]).await.map_err(|error| lost(Failure::of(error)))?;
            }
            Ok::<_, Error>(())
        };
        // Concurrently, because every round trip counts on a slow path. The subscription goes first: a write of the
        // epoch key after the check is then received as a message.
        let checked = async { P::check(&connection, attempt.until()).await.map_err(lost)? };
        let ready = attempt.step("the check of the server", async { tokio::try_join!(biased; subscribed, checked) });
        tokio::select! {
            ready = ready => ready??,
            () = driver.ended() => return Err(lost(Failure::aborted())),
        };
        attempt.succeeded();
        Ok((connection, driver))
    }

    pub(crate) fn protocol(&self) -> &Arc<P> {
        &self.protocol
    }

    /// The address of the server.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The server, if Sentinels named it.
    pub(crate) fn primary(&self) -> Option<&Primary> {
        self.primary.as_ref()
    }

    /// Resolves when Sentinels name another server.
    pub(crate) async fn replaced(&self) {
        match &self.primary {
            Some(primary) => primary.replaced().await,
            None => std::future::pending().await,
        }
    }

    /// What is known of the server on this connection.
    pub(crate) fn session(&self) -> &P::Session {
        &self.session
    }

    pub(crate) fn reading(&self) -> &tokio::sync::Mutex<Option<(Instant, Error)>> {
        &self.reading
    }

    /// Marks the connection as closed.
    pub(crate) fn close(&self) {
        self.health.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        !self.health.is_usable()
    }

    /// Whether it has to be tested before it is used.
    pub(crate) fn is_idle(&self) -> bool {
        self.health.is_idle()
    }

    /// Tests the connection. If there is no reply within half of the time until `until`, it is closed, and the other
    /// half is left for a new one.
    pub(crate) async fn test(&self, until: Instant) {
        let now = Instant::now();
        // Every user that can use Leasehold may run this command. An error reply is ignored: the next request gets it
        // too.
        let _ = self.query(&["TIME"], now + until.saturating_duration_since(now) / 2).await;
    }

    /// Resolves when the connection is closed.
    pub(crate) async fn closed(&self) {
        self.health.closed().await;
    }

    /// Closes the connection if the server is a replica and Sentinels can name another one.
    pub(crate) fn note_refusal(&self, text: &str) {
        if self.primary.is_some() && ["READONLY", "MASTERDOWN"].iter().any(|code| text.contains(code)) {
            self.close();
        }
    }

    /// Runs a script by its digest, or as a function. If the server does not know the digest, the script did not run,
    /// and its source is sent instead.
    pub(crate) async fn run(&self, script: &Script, call: &Cmd, until: Instant) -> Result<Value, Failure> {
        match self.send(call, until).await {
            Err(failure) if failure.is_noscript() => self.send(&with_source(script, call), until).await,
            done => done,
        }
    }

    /// As [`run`](Self::run). With `ASKING`, the source is sent at once: the server allows the next command only, which
    /// must not be one that finds no script.
    pub(crate) async fn run_declared(
        &self,
        script: &Script,
        call: &Cmd,
        declared: Declared,
        until: Instant,
    ) -> Result<Value, Failure> {
        if !declared.is_asking() {
            return self.run(script, call, until).await;
        }
        let whole = if script.is_function() { call.clone() } else { with_source(script, call) };
        self.send_asking(whole, until).await
    }

    /// Sends a command of these words and waits for its reply until `until`.
    pub(crate) async fn query(&self, words: &[&str], until: Instant) -> Result<Value, Failure> {
        let mut command = Cmd::new();
        command.arg(words);
        self.send(&command, until).await
    }

    /// Sends a command and waits for its reply until `until`.
    pub(crate) async fn send(&self, command: &Cmd, until: Instant) -> Result<Value, Failure> {
        let mut mux = self.mux.clone();
        self.exchanged(mux.send_packed_command(command), until).await
    }

    /// Sends `ASKING` and a command in one packet, and waits for the reply to the command until `until`.
    async fn send_asking(&self, command: Cmd, until: Instant) -> Result<Value, Failure> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING").add_command(command);
        let mut mux = self.mux.clone();
        let both = async {
            let mut replies = mux.send_packed_commands(&pipeline, 0, 2).await?;
            Ok(match (replies.pop(), replies.pop()) {
                // The command was refused because `ASKING` was: the user lacks a permission.
                (Some(Value::ServerError(_)), Some(refused @ Value::ServerError(_))) => refused,
                (reply, _) => reply.unwrap_or(Value::Nil),
            })
        };
        self.exchanged(both, until).await
    }

    async fn exchanged(
        &self,
        exchange: impl Future<Output = RedisResult<Value>>,
        until: Instant,
    ) -> Result<Value, Failure> {
        if self.is_closed() {
            return Err(Failure::NotSent(Error::not_sent()));
        }
        if Instant::now() >= until {
            // A server that had no time to reply is not silent.
            return Err(Failure::NotSent(Error::new(ErrorKind::Unavailable, "there was no time to send the request")));
        }
        let replies = self.health.replies();
        match timeout_at(until, exchange).await {
            Ok(Ok(value)) => {
                self.health.note_reply();
                let reply = checked(value);
                if let Err(Failure::ErrorReply(text)) = &reply {
                    self.note_refusal(text);
                }
                reply
            }
            Ok(Err(error)) => {
                let failure = Failure::of(error);
                if matches!(failure, Failure::Disconnected(_)) {
                    self.health.close();
                }
                Err(failure)
            }
            Err(_) => {
                if self.health.is_silent_since(replies) {
                    self.health.close();
                }
                Err(Failure::TimedOut)
            }
        }
    }
}

/// The same call with the source of the script in place of its digest.
fn with_source(script: &Script, call: &Cmd) -> Cmd {
    let mut whole = Cmd::new();
    whole.arg("EVAL").arg(&script.source);
    for arg in call.args_iter().skip(2) {
        if let Arg::Simple(bytes) = arg {
            whole.arg(bytes);
        }
    }
    whole
}

/// Starts a call of a script. The caller adds the keys and the arguments.
pub(crate) fn script_call(script: &Script, keys: usize) -> Cmd {
    // Room for a key and an argument per lock, and mostly also for the holder information.
    let mut call = Cmd::with_capacity(2 * keys + 4, 192 * keys + 96);
    call.arg(script.command).arg(&script.id).arg(keys);
    call
}

/// Handles the pushes of the server.
fn push_handler<P: Protocol>(
    protocol: Arc<P>,
    health: Arc<Health>,
    primary: Option<Primary>,
    session: Arc<P::Session>,
) -> impl Fn(PushInfo) -> Result<(), std::convert::Infallible> + Send + Sync + 'static {
    move |push| {
        match push.kind {
            PushKind::Disconnection => health.close(),
            PushKind::Message => {
                if let Some((channel, payload)) = replies::message(&push.data) {
                    protocol.handle_message(channel, payload, primary.as_ref(), &session);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
