//! One connection to one member. Opening and using it take bounded time.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions, GetOptions, KvClient};
use leasehold_core::backend::kit::{Health, run_to_end, tls_refusal};
use leasehold_core::{Error, ErrorKind};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use crate::errors::{Failure, not_connected, wrong_tls};
use crate::members::Member;
use crate::shared::Shared;

/// How long a request goes on after its caller has given up. It is not cancelled at once: the server may have begun
/// with it, and the client crate may not handle a future that is dropped.
const LINGER: Duration = Duration::from_secs(10);

/// The most requests in flight. The server gains nothing from more, and each would take longer than its bound.
const MOST_IN_FLIGHT: usize = 256;

/// The longest reply, in bytes: the keys of a long queue.
const LONGEST_REPLY: usize = 256 << 20;

pub(crate) struct Connection {
    client: Client,
    /// The index of the member.
    pub(crate) member: usize,
    pub(crate) health: Arc<Health>,
    in_flight: Arc<Semaphore>,
    target: Member,
    /// The runtime of the connection.
    home: Handle,
}

impl Connection {
    /// Connects to a member and logs in.
    pub(crate) async fn open(shared: &Arc<Shared>, member: usize, until: Instant) -> Result<Self, Failure> {
        let target = &shared.members.all()[member];
        let attempt = shared.connecting.attempt_until(&target.address, until);
        let connect = target.connect(until, shared.settings.timeout, attempt.progress());
        let channel = match attempt.step("the lookup of its name", connect).await.map_err(Failure::NotSent)? {
            Ok(channel) => channel,
            Err(error) => {
                let refusal = match tls_refusal(&error) {
                    Some(why) => Some(wrong_tls(&target.address, why)),
                    None if target.is_tls => target.wrong_tls(until).await,
                    None => None,
                };
                if let Some(refusal) = refusal {
                    return Err(Failure::NotSent(refusal.with_cause(texts_of(&error))));
                }
                let cause = Error::new(ErrorKind::Unavailable, "the connection failed").with_cause(texts_of(&error));
                return Err(not_connected(&target.address, cause));
            }
        };
        // With it, a member without a leader refuses requests at once and ends its streams.
        let mut options = ConnectOptions::new().with_require_leader(true);
        if let Some((user, password)) = &shared.user {
            options = options.with_user(user, password).with_auto_token_refresh(true);
        }
        let login = Client::from_channel(Channel::Tonic(channel), Some(options));
        let client = match attempt.step("the log-in", login).await.map_err(Failure::NotSent)? {
            Ok(client) => client,
            // Nothing was requested yet but a token.
            Err(error) => return Err(no_log_in(target, or_wrong_tls(target, Failure::of(error), until).await)),
        };
        let in_flight = Arc::new(Semaphore::new(MOST_IN_FLIGHT));
        let (health, home) = (Arc::default(), Handle::current());
        let connection = Self { client, member, health, in_flight, target: target.clone(), home };
        // With TLS 1.3, a server refuses the client's certificate after the handshake. The first request meets that,
        // and often without the reason. So without a log-in it is one that changes nothing.
        if target.is_tls && shared.user.is_none() {
            let key = shared.keys.names_with("").unwrap_or_default();
            let read = connection.read_nothing(key, until + shared.settings.timeout);
            let read = attempt.step("the first reply", read).await.map_err(Failure::NotSent)?;
            if let Err(failure @ (Failure::NotSent(_) | Failure::Disconnected(_) | Failure::TimedOut)) = read {
                return Err(no_log_in(target, failure));
            }
        }
        Ok(connection)
    }

    /// The client of this connection, for streams.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// The client of keys alone, which is cheaper.
    pub(crate) fn kv(&self) -> KvClient {
        self.client.kv_client()
    }

    /// Sends a request, and waits for its reply until `until`.
    pub(crate) fn call<T, F>(&self, request: F, until: Instant) -> impl Future<Output = Result<T, Failure>> + Send
    where
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
        T: Send + 'static,
    {
        // A request takes more than 10 KB.
        self.run(Box::pin(request), until)
    }

    async fn run<T, F>(&self, request: F, until: Instant) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>> + Send + 'static,
        T: Send + 'static,
    {
        if !self.health.is_usable() {
            return Err(Failure::NotSent(Error::not_sent()));
        }
        let Ok(Ok(permit)) = timeout_at(until, self.in_flight.clone().acquire_owned()).await else {
            let text = "the client has too many requests in flight";
            return Err(Failure::Refused(Error::new(ErrorKind::Unavailable, text)));
        };
        let (replies, health) = (self.health.replies(), self.health.clone());
        let request = timeout(LINGER, async move {
            let _permit = permit;
            let reply = request.await.map_err(Failure::of);
            // Also if the caller has given up meanwhile.
            match &reply {
                Err(failure) if failure.ends_connection() => health.close(),
                // A refusal is a reply, too.
                Ok(_) | Err(_) => health.note_reply(),
            }
            reply
        });
        match timeout_at(until, run_to_end(&self.home, request)).await {
            Ok(Ok(Err(failure))) if self.health.replies() == 0 => Err(or_wrong_tls(&self.target, failure, until).await),
            Ok(Ok(reply)) => reply,
            // The request took longer than any bound.
            Ok(Err(_)) => Err(Failure::TimedOut),
            Err(_) => {
                if self.health.is_silent_since(replies) {
                    self.health.doubt();
                }
                Err(Failure::TimedOut)
            }
        }
    }

    /// Whether the member replies at all until then.
    pub(crate) async fn is_alive(&self, key: String, until: Instant) -> bool {
        !matches!(self.read_nothing(key, until).await, Err(Failure::TimedOut)) && self.health.is_usable()
    }

    async fn read_nothing(&self, key: String, until: Instant) -> Result<(), Failure> {
        let client = self.client();
        // May be stale, because any reply will do: it is the member's own state.
        let options = GetOptions::new().with_serializable().with_count_only();
        self.call(async move { client.kv_client().get(key, Some(options)).await }, until).await.map(drop)
    }

    /// The longest reply that is accepted, in bytes.
    pub(crate) const fn max_reply() -> usize {
        LONGEST_REPLY
    }
}

/// The failure of a log-in, which has no effect. Only what waiting cannot cure keeps its kind.
fn no_log_in(target: &Member, failure: Failure) -> Failure {
    match failure {
        Failure::Refused(error) => Failure::Refused(error),
        Failure::NotSent(error) if error.kind() != ErrorKind::Unavailable => Failure::NotSent(error),
        failure => not_connected(&target.address, failure.without_effect()),
    }
}

/// The failure of a request on a connection that has never had a reply. A member that expects TLS ends a connection
/// without it at the first request, which then had certainly no effect.
async fn or_wrong_tls(target: &Member, failure: Failure, until: Instant) -> Failure {
    match failure {
        Failure::Disconnected(error) if !target.is_tls => match target.wrong_tls(until).await {
            Some(refusal) => Failure::NotSent(refusal.with_source(error)),
            None => Failure::Disconnected(error),
        },
        failure => failure,
    }
}

/// The texts of an error and its causes. The errors of the transport print no cause.
fn texts_of(error: &dyn std::error::Error) -> String {
    let texts: Vec<_> = std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect();
    texts.join(": ")
}
