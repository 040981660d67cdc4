//! A separate Redis per test, and a backend without the rest of Leasehold.
#![allow(dead_code, reason = "each test target takes what it needs")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Claim, CoreHandle, Delivery, Event, Grant, LockBackend, OnContention, OwnerToken,
    PlaceNumber, ReleaseOutcome, ReleaseRequest, RenewReplies, RenewReply, RenewRequest, SystemClock,
};
use leasehold_core::{HolderInfo, LockName};
use leasehold_redis::{RedisBackend, Settings};
use redis::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};

/// A server on a unix socket in its own folder. It ends when this is dropped.
pub(crate) struct Redis {
    child: Child,
    folder: tempfile::TempDir,
    options: Vec<String>,
}

impl Redis {
    pub(crate) fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
        let child = spawn(folder.path(), &options);
        Self { child, folder, options }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}?prefix=test:", self.folder.path().join("redis.sock").display())
    }

    /// The URL of a path to the server that delays every reply.
    pub(crate) fn slow_url(&self, delay: Duration) -> String {
        let (from, to) = (self.folder.path().join("slow.sock"), self.folder.path().join("redis.sock"));
        let listener = UnixListener::bind(&from).expect("a socket");
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = UnixStream::connect(&to).await.expect("a server");
                let (mut requests, mut replies) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                tokio::spawn(async move { tokio::io::copy(&mut requests, &mut to_server).await });
                let (later, mut now) = mpsc::unbounded_channel();
                tokio::spawn(async move {
                    let mut bytes = vec![0; 65_536];
                    while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
                        let _ = later.send((tokio::time::Instant::now() + delay, bytes[..length].to_vec()));
                    }
                });
                tokio::spawn(async move {
                    while let Some((at, bytes)) = now.recv().await {
                        tokio::time::sleep_until(at).await;
                        let _ = replies.write_all(&bytes).await;
                    }
                });
            }
        });
        format!("redis+unix://{}?prefix=test:", from.display())
    }

    /// The URL of a path to the server that can be closed.
    pub(crate) fn gated_url(&self) -> (String, Gate) {
        let (from, to) = (self.folder.path().join("gate.sock"), self.folder.path().join("redis.sock"));
        let listener = UnixListener::bind(&from).expect("a socket");
        let gate = Gate(watch::Sender::new(true));
        let mut open = gate.0.subscribe();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                if *open.borrow_and_update()
                    && let Ok(mut server) = UnixStream::connect(&to).await
                {
                    let mut open = open.clone();
                    tokio::spawn(async move {
                        tokio::select! {
                            _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                            _ = open.changed() => {}
                        }
                    });
                }
            }
        });
        (format!("redis+unix://{}?prefix=test:", from.display()), gate)
    }

    /// Kills the server, as in a crash.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(self.folder.path().join("redis.sock"));
    }

    /// Starts the server again after [`Redis::kill`].
    pub(crate) fn start_again(&mut self) {
        self.child = spawn(self.folder.path(), &self.options);
    }

    /// Sends a signal to the server, to stop or continue it.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
    }

    /// A backend of this server. Unless `more` has a `timeout`, its calls end in time on a machine that pauses.
    pub(crate) async fn backend(&self, more: &str) -> Backend {
        let patience = if more.contains("timeout=") { "" } else { "&timeout=20s" };
        Backend::new(RedisBackend::connect(&format!("{}{patience}{more}", self.url())).await.expect("a connection"))
    }

    /// Sends a command on a separate connection.
    pub(crate) async fn command(&self, parts: &[&str]) -> Value {
        let mut command = redis::Cmd::new();
        for part in parts {
            command.arg(part);
        }
        let url = format!("redis+unix://{}", self.folder.path().join("redis.sock").display());
        let client = redis::Client::open(url).expect("a URL");
        let connection = client.get_multiplexed_async_connection_with_config(&patient()).await;
        let mut connection = connection.expect("a connection");
        connection.send_packed_command(&command).await.expect("a reply").extract_error().expect("no error")
    }

    /// How many commands of this kind clients have sent.
    pub(crate) async fn sent(&self, command: &str) -> u64 {
        let Value::BulkString(text) = self.command(&["INFO", "commandstats"]).await else { panic!("no text") };
        let text = String::from_utf8(text).expect("text");
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.map_or(0, |rest| rest.split(',').next().and_then(|calls| calls.parse().ok()).expect("a number"))
    }
}

/// A connection that waits for its replies on a machine that pauses.
pub(crate) fn patient() -> redis::AsyncConnectionConfig {
    let bound = Some(Duration::from_secs(20));
    redis::AsyncConnectionConfig::new().set_connection_timeout(bound).set_response_timeout(bound)
}

/// Forwards connections, or closes them.
pub(crate) struct Gate(watch::Sender<bool>);

impl Gate {
    pub(crate) fn set_open(&self, open: bool) {
        self.0.send_replace(open);
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &Path, options: &[String]) -> Child {
    let program = std::env::var_os("LEASEHOLD_REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
    let child = Command::new(&program)
        .args(["--port", "0", "--unixsocket", "redis.sock"])
        .arg("--dir")
        .arg(folder)
        .args(if options.iter().any(|option| option == "--save") { &[][..] } else { &["--save", ""] })
        .args(options)
        .current_dir(folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{program:?} cannot be started ({error}): `apt-get install redis-server`"));
    let until = Instant::now() + Duration::from_secs(20);
    // The file exists before the server listens on it.
    while std::os::unix::net::UnixStream::connect(folder.join("redis.sock")).is_err() {
        assert!(Instant::now() < until, "redis-server does not come up");
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

/// A backend that is attached to a clock and a list of its events only.
pub(crate) struct Backend {
    pub(crate) inner: Arc<RedisBackend>,
    pub(crate) events: mpsc::UnboundedReceiver<Event>,
}

impl Backend {
    pub(crate) fn new(backend: RedisBackend) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let clock = Arc::new(SystemClock::new());
        let core = CoreHandle::new(clock, tokio::runtime::Handle::current(), move |event| {
            let _ = sender.send(event);
        });
        backend.attach(core);
        Self { inner: Arc::new(backend), events }
    }

    pub(crate) async fn acquire(&self, claim: &Claim, ttl: Duration) -> leasehold_core::Result<AcquireOutcome> {
        self.inner.acquire(&AcquireRequest::new(claim.clone(), ttl)).await
    }

    /// Does not queue.
    pub(crate) async fn try_acquire(&self, claim: &Claim, ttl: Duration) -> leasehold_core::Result<AcquireOutcome> {
        self.inner.acquire(&try_request(claim, ttl)).await
    }

    pub(crate) async fn granted(&self, claim: &Claim, ttl: Duration) -> Grant {
        match self.acquire(claim, ttl).await {
            Ok(AcquireOutcome::Granted(grant)) => grant,
            other => panic!("not granted but {other:?}"),
        }
    }

    pub(crate) async fn queued(&self, claim: &Claim, ttl: Duration) -> (PlaceNumber, Duration) {
        match self.acquire(claim, ttl).await {
            Ok(AcquireOutcome::Queued { confirmation, retry_after }) => (confirmation.place, retry_after),
            other => panic!("not queued but {other:?}"),
        }
    }

    pub(crate) async fn release(&self, claim: &Claim) -> leasehold_core::Result<ReleaseOutcome> {
        self.inner.release(&ReleaseRequest::new(claim.clone(), Delivery::Confirmed)).await
    }

    pub(crate) async fn withdraw(&self, claim: &Claim) -> leasehold_core::Result<ReleaseOutcome> {
        self.inner.release(&ReleaseRequest::new(claim.clone(), Delivery::InDoubt)).await
    }

    /// Renews, and returns the replies in the order of the leases.
    pub(crate) async fn renew(&self, leases: &[RenewRequest]) -> Vec<RenewReply> {
        let (sender, mut received) = mpsc::unbounded_channel();
        let replies = RenewReplies::new(leases.len(), move |index, answer| {
            let _ = sender.send((index, answer));
        });
        self.inner.renew(leases, &replies).await;
        drop(replies);
        let mut all = Vec::new();
        while let Some(one) = received.recv().await {
            all.push(one);
        }
        all.sort_by_key(|(index, _)| *index);
        assert_eq!(all.len(), leases.len(), "each lease gets one reply");
        all.into_iter().map(|(_, answer)| answer).collect()
    }

    pub(crate) async fn renew_one(&self, claim: &Claim, place: PlaceNumber, ttl: Duration) -> RenewReply {
        self.renew(&[RenewRequest::new(claim.clone(), place, ttl)]).await.remove(0)
    }

    /// The next grant that is pushed: owner, place and token.
    pub(crate) async fn pushed(&mut self) -> (OwnerToken, PlaceNumber, u64) {
        let next = async {
            loop {
                if let Event::Granted { owner, place, token, confirmation } =
                    self.events.recv().await.expect("an open channel")
                {
                    assert!(confirmation.is_none(), "a push proves no time");
                    return (owner, place, token.get());
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), next).await.expect("a push")
    }

    /// Waits until all published messages have arrived.
    pub(crate) async fn caught_up(&mut self, server: &Redis) {
        let Value::Array(channels) = server.command(&["PUBSUB", "CHANNELS", "test:c:*"]).await else {
            panic!("no list")
        };
        for channel in channels {
            let channel: String = redis::from_redis_value(channel).expect("text");
            server.command(&["PUBLISH", &channel, "an owner of 16 bnot a grant at a"]).await;
        }
        self.pushed().await;
    }

    /// Waits until the backend has subscribed to its grants.
    pub(crate) async fn subscribed(&mut self) {
        let next = async { while !matches!(self.events.recv().await, Some(Event::Resync)) {} };
        tokio::time::timeout(Duration::from_secs(10), next).await.expect("a subscription");
    }
}

/// A claim of a lock. The same number is the same owner.
pub(crate) fn claim(name: &str, owner: u8) -> Claim {
    // Shared, because it contains the second in which it was created.
    static HOLDER: LazyLock<Arc<HolderInfo>> =
        LazyLock::new(|| Arc::new(HolderInfo::of_this_process("tester").expect("a label")));
    Claim::new(LockName::new(name).expect("a name"), OwnerToken::from_bytes([owner; 16]), HOLDER.clone())
}

/// An acquire that does not queue.
pub(crate) fn try_request(claim: &Claim, ttl: Duration) -> AcquireRequest {
    AcquireRequest::new(claim.clone(), ttl).on_contention(OnContention::Fail)
}

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The settings of [`Redis::url`], for a backend that is made from a client.
pub(crate) fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.prefix = "test:".to_owned();
    settings
}
