//! A store whose replies the test gives, call by call, on paused time.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::admin::{Check, Listing};
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, Claim, Clock, Confirmation, CoreHandle, Delivery, Event,
    Grant, LockBackend, Mode, NoAdmin, PlaceNumber, ReleaseOutcome, ReleaseRequest, RenewReplies, RenewReply,
    RenewRequest, Stamp, TtlScope, WatchNames,
};
use leasehold_core::{
    Error, ErrorKind, FencingToken, KeeperRuntime, LockClient, LockGuard, LockInfo, LockName, Result,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const AT_ONCE: Duration = Duration::from_millis(5);
pub(crate) const TTL: Duration = Duration::from_secs(9);
pub(crate) const CALL_BOUND: Duration = Duration::from_secs(1);

/// A call that waits for its reply. Each request of a renewal is a call here.
pub(crate) enum Call {
    Acquire(Claim, oneshot::Sender<Result<AcquireOutcome>>),
    Renew(RenewRequest, oneshot::Sender<RenewReply>),
    Release(Claim, Delivery, oneshot::Sender<Result<ReleaseOutcome>>),
}

struct Scripted {
    calls: mpsc::UnboundedSender<Call>,
    core: Arc<OnceLock<CoreHandle>>,
    asked: Arc<Mutex<Option<AcquireRequest>>>,
    poisoned: Arc<Mutex<Option<LockName>>>,
    last_token: Arc<Mutex<Option<FencingToken>>>,
    ttl_scope: TtlScope,
}

impl Scripted {
    async fn ask<T>(&self, call: impl FnOnce(oneshot::Sender<T>) -> Call) -> Option<T> {
        let (send, answer) = oneshot::channel();
        self.calls.send(call(send)).ok()?;
        answer.await.ok()
    }
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Indeterminate, "the test gave no reply")
}

#[async_trait]
impl LockBackend for Scripted {
    fn attach(&self, core: CoreHandle) {
        let _ = self.core.set(core);
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        *self.asked.lock().unwrap() = Some(request.clone());
        self.ask(|send| Call::Acquire(request.claim.clone(), send)).await.unwrap_or_else(|| Err(no_answer()))
    }

    async fn renew(&self, leases: &[RenewRequest], replies: &RenewReplies) {
        let poisoned = self.poisoned.lock().unwrap().clone();
        if leases.iter().any(|lease| Some(lease.claim.name()) == poisoned.as_ref()) {
            std::panic::resume_unwind(Box::new("planted"));
        }
        let ask = |lease| Box::pin(self.ask(|send| Call::Renew(lease, send)));
        let mut open: Vec<_> = leases.iter().cloned().map(ask).enumerate().collect();
        poll_fn(|cx| {
            open.retain_mut(|(index, answer)| {
                let Poll::Ready(answer) = Pin::new(answer).poll(cx) else { return true };
                replies.put(*index, answer.unwrap_or_else(|| RenewReply::Unknown(no_answer())));
                false
            });
            if open.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        self.ask(|send| Call::Release(request.claim.clone(), request.delivery, send))
            .await
            .unwrap_or_else(|| Err(no_answer()))
    }

    fn capabilities(&self) -> Capabilities {
        let mut it = Capabilities::new("scripted");
        it.call_bound = CALL_BOUND;
        it.modes = &[Mode::Exclusive, Mode::Shared];
        it.ttl_scope = self.ttl_scope;
        it
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        None
    }
}

#[async_trait]
impl Admin for Scripted {
    async fn inspect(&self, _: &LockName) -> Result<Option<LockInfo>> {
        Ok(Some(LockInfo::new(*self.last_token.lock().unwrap(), Vec::new(), None)))
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing> {
        NoAdmin.list(prefix, limit).await
    }

    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>> {
        NoAdmin.break_lock(name, token).await
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        NoAdmin.examine().await
    }
}

/// Tokio's clock, which a test pauses.
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> Stamp {
        Stamp::from_start(self.0.elapsed())
    }

    fn sleep_time(&self, until: Stamp) -> Duration {
        // The runtime's timer counts in milliseconds.
        until.since(self.now()) + Duration::from_millis(1)
    }
}

/// The test's side of the store: it takes the calls in their order, and replies when it likes.
pub(crate) struct Store {
    calls: mpsc::UnboundedReceiver<Call>,
    core: Arc<OnceLock<CoreHandle>>,
    asked: Arc<Mutex<Option<AcquireRequest>>>,
    poisoned: Arc<Mutex<Option<LockName>>>,
    last_token: Arc<Mutex<Option<FencingToken>>>,
}

/// A client, and the store behind it.
pub(crate) fn scripted() -> (LockClient, Store) {
    scripted_in(TtlScope::Lease)
}

/// The same, with ttls of this scope.
pub(crate) fn scripted_in(ttl_scope: TtlScope) -> (LockClient, Store) {
    let (send, calls) = mpsc::unbounded_channel();
    let core: Arc<OnceLock<CoreHandle>> = Arc::default();
    let asked: Arc<Mutex<Option<AcquireRequest>>> = Arc::default();
    let poisoned: Arc<Mutex<Option<LockName>>> = Arc::default();
    let last_token: Arc<Mutex<Option<FencingToken>>> = Arc::default();
    let backend = Scripted {
        calls: send,
        core: core.clone(),
        asked: asked.clone(),
        poisoned: poisoned.clone(),
        last_token: last_token.clone(),
        ttl_scope,
    };
    let client = LockClient::builder(backend)
        .clock(Arc::new(Paused(Instant::now())))
        .keeper(KeeperRuntime::CurrentRuntime)
        .seed(1)
        .ttl(TTL)
        .build()
        .unwrap();
    (client, Store { calls, core, asked, poisoned, last_token })
}

/// Acquires the lock that most tests use, in a task of its own.
pub(crate) fn acquire(client: &LockClient) -> JoinHandle<Result<LockGuard>> {
    let lock = client.lock("job");
    tokio::spawn(async move { lock.acquire().await })
}

pub(crate) async fn granted(waiter: JoinHandle<Result<LockGuard>>) -> LockGuard {
    timeout(AT_ONCE, waiter).await.expect("the waiter holds at once").unwrap().unwrap()
}

/// A request without a reply.
pub(crate) fn unknown() -> Error {
    Error::new(ErrorKind::Indeterminate, "planted")
}

/// A request that certainly had no effect.
pub(crate) fn refused() -> Error {
    Error::new(ErrorKind::Unavailable, "planted")
}

impl Store {
    /// The next call, which must come within a minute.
    pub(crate) async fn call(&mut self) -> Call {
        timeout(Duration::from_secs(60), self.calls.recv()).await.expect("a call").expect("a client")
    }

    pub(crate) async fn acquire(&mut self) -> (Claim, oneshot::Sender<Result<AcquireOutcome>>) {
        match self.call().await {
            Call::Acquire(claim, answer) => (claim, answer),
            other => panic!("{}", other.name()),
        }
    }

    /// The next acquire gets a place.
    pub(crate) async fn queues(&mut self, place: u64) -> Claim {
        let (claim, answer) = self.acquire().await;
        answer.send(Ok(self.queued(place))).expect("somebody waits for it");
        claim
    }

    /// The next acquire is granted.
    pub(crate) async fn grants(&mut self, place: u64, token: u64) -> Claim {
        let (claim, answer) = self.acquire().await;
        answer.send(Ok(AcquireOutcome::Granted(self.grant(place, token)))).expect("somebody waits for it");
        claim
    }

    pub(crate) async fn renew(&mut self) -> (RenewRequest, oneshot::Sender<RenewReply>) {
        match self.call().await {
            Call::Renew(lease, answer) => (lease, answer),
            other => panic!("{}", other.name()),
        }
    }

    pub(crate) async fn release(&mut self) -> (Claim, Delivery, oneshot::Sender<Result<ReleaseOutcome>>) {
        match self.call().await {
            Call::Release(claim, delivery, answer) => (claim, delivery, answer),
            other => panic!("{}", other.name()),
        }
    }

    /// Checks that no call comes for this time.
    pub(crate) async fn is_silent(&mut self, time: Duration) {
        if let Ok(call) = timeout(time, self.calls.recv()).await {
            panic!("{}", call.map_or("the client is gone", |call| call.name()));
        }
    }

    /// Checks that no call comes any more, and that the client has ended.
    pub(crate) async fn is_over(&mut self) {
        let call = timeout(Duration::from_secs(60), self.calls.recv()).await.expect("the keeper ends");
        assert!(call.is_none(), "{}", call.map_or("", |call| call.name()));
    }

    fn core(&self) -> &CoreHandle {
        self.core.get().expect("attached")
    }

    pub(crate) fn now(&self) -> Stamp {
        self.core().stamp()
    }

    /// The last acquire.
    pub(crate) fn asked(&self) -> AcquireRequest {
        self.asked.lock().unwrap().clone().expect("an acquire")
    }

    /// A confirmation whose request was sent just now.
    pub(crate) fn confirms(&self, place: u64) -> Confirmation {
        Confirmation { ttl: TTL, sent: self.now(), place: PlaceNumber::new(place) }
    }

    pub(crate) fn queued(&self, place: u64) -> AcquireOutcome {
        AcquireOutcome::Queued { confirmation: self.confirms(place), retry_after: TTL * 10 }
    }

    pub(crate) fn grant(&self, place: u64, token: u64) -> Grant {
        Grant::new(FencingToken::new(token), self.confirms(place))
    }

    /// Notifies the client that a place became a lease.
    pub(crate) fn push(&self, claim: &Claim, place: u64, token: u64) {
        let token = FencingToken::new(token);
        self.event(Event::Granted { owner: *claim.owner(), place: PlaceNumber::new(place), token, confirmation: None });
    }

    pub(crate) fn event(&self, event: Event) {
        self.core().event(event);
    }

    /// Sets what the store shows of a free lock from now on.
    pub(crate) fn shows(&self, last_token: Option<u64>) {
        *self.last_token.lock().unwrap() = last_token.map(FencingToken::new);
    }

    /// From now on, every renewal call with this lock panics.
    pub(crate) fn poison(&self, name: &LockName) {
        *self.poisoned.lock().unwrap() = Some(name.clone());
    }
}

impl Call {
    fn name(&self) -> &'static str {
        match self {
            Self::Acquire(..) => "an acquire",
            Self::Renew(..) => "a renewal",
            Self::Release(_, Delivery::Confirmed, _) => "a release",
            Self::Release(..) => "a withdrawal of a claim in doubt",
        }
    }
}
