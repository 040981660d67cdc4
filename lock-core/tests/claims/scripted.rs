//! A store whose every answer the test gives, call by call, on paused time.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Acquisition, Answer, Answers, Capabilities, Certainty, Claim, Clock, Confirmation, CoreHandle, Error, ErrorKind,
    Event, Extensions, FencingToken, Grant, KeeperHome, LeaseRef, LockBackend, LockClient, Place, Release, Result,
    Stamp,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

pub(crate) const TTL: Duration = Duration::from_secs(9);
pub(crate) const CALL_BOUND: Duration = Duration::from_secs(1);

/// A call that waits for its answer.
pub(crate) enum Call {
    Acquire(Claim, oneshot::Sender<Result<Acquisition>>),
    Renew(LeaseRef, oneshot::Sender<Answer>),
    Release(Claim, Certainty, oneshot::Sender<Result<Release>>),
}

struct Scripted {
    calls: mpsc::UnboundedSender<Call>,
    core: Arc<OnceLock<CoreHandle>>,
    asked: Arc<Mutex<Duration>>,
}

impl Scripted {
    async fn ask<T>(&self, call: impl FnOnce(oneshot::Sender<T>) -> Call) -> Option<T> {
        let (send, answer) = oneshot::channel();
        self.calls.send(call(send)).ok()?;
        answer.await.ok()
    }
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Indeterminate, "the test gave no answer")
}

#[async_trait]
impl LockBackend for Scripted {
    fn attach(&self, core: CoreHandle) {
        let _ = self.core.set(core);
    }

    async fn acquire(&self, claim: &Claim, ttl: Duration) -> Result<Acquisition> {
        *self.asked.lock().unwrap() = ttl;
        self.ask(|send| Call::Acquire(claim.clone(), send)).await.unwrap_or_else(|| Err(no_answer()))
    }

    async fn renew(&self, leases: &[LeaseRef], answers: &Answers) {
        for (index, lease) in leases.iter().enumerate() {
            let answer = self.ask(|send| Call::Renew(lease.clone(), send)).await;
            answers.put(index, answer.unwrap_or_else(|| Answer::Unknown(no_answer())));
        }
    }

    async fn release(&self, claim: &Claim, certainty: Certainty) -> Result<Release> {
        self.ask(|send| Call::Release(claim.clone(), certainty, send)).await.unwrap_or_else(|| Err(no_answer()))
    }

    fn capabilities(&self) -> Capabilities {
        let mut it = Capabilities::new("scripted");
        it.call_bound = CALL_BOUND;
        it
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

/// Tokio's clock, which a test pauses.
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> Stamp {
        Stamp::from_start(self.0.elapsed())
    }

    fn nap(&self, until: Stamp) -> Duration {
        // The runtime's timer counts in milliseconds.
        until.since(self.now()) + Duration::from_millis(1)
    }
}

/// The side of the test: it takes the calls in their order, and answers them when it likes.
pub(crate) struct Store {
    calls: mpsc::UnboundedReceiver<Call>,
    core: Arc<OnceLock<CoreHandle>>,
    asked: Arc<Mutex<Duration>>,
}

/// A client, and the store behind it.
pub(crate) fn scripted() -> (LockClient, Store) {
    let (send, calls) = mpsc::unbounded_channel();
    let core: Arc<OnceLock<CoreHandle>> = Arc::default();
    let asked: Arc<Mutex<Duration>> = Arc::default();
    let client = LockClient::builder(Scripted { calls: send, core: core.clone(), asked: asked.clone() })
        .clock(Arc::new(Paused(Instant::now())))
        .keeper(KeeperHome::CurrentRuntime)
        .seed(1)
        .ttl(TTL)
        .build()
        .unwrap();
    (client, Store { calls, core, asked })
}

impl Store {
    /// The next call, which has to come within a minute.
    pub(crate) async fn call(&mut self) -> Call {
        timeout(Duration::from_secs(60), self.calls.recv()).await.expect("a call").expect("a client")
    }

    pub(crate) async fn acquire(&mut self) -> (Claim, oneshot::Sender<Result<Acquisition>>) {
        match self.call().await {
            Call::Acquire(claim, answer) => (claim, answer),
            other => panic!("{}", other.name()),
        }
    }

    /// The next acquire gets a place.
    pub(crate) async fn queues(&mut self, place: Place) -> Claim {
        let (claim, answer) = self.acquire().await;
        answer.send(Ok(self.queued(place))).expect("somebody waits for it");
        claim
    }

    /// The next acquire is granted.
    pub(crate) async fn grants(&mut self, place: Place, token: u64) -> Claim {
        let (claim, answer) = self.acquire().await;
        answer.send(Ok(Acquisition::Granted(self.grant(place, token)))).expect("somebody waits for it");
        claim
    }

    pub(crate) async fn renew(&mut self) -> (LeaseRef, oneshot::Sender<Answer>) {
        match self.call().await {
            Call::Renew(lease, answer) => (lease, answer),
            other => panic!("{}", other.name()),
        }
    }

    pub(crate) async fn release(&mut self) -> (Claim, Certainty, oneshot::Sender<Result<Release>>) {
        match self.call().await {
            Call::Release(claim, certainty, answer) => (claim, certainty, answer),
            other => panic!("{}", other.name()),
        }
    }

    /// Nothing is asked for so long.
    pub(crate) async fn is_silent(&mut self, time: Duration) {
        if let Ok(call) = timeout(time, self.calls.recv()).await {
            panic!("{}", call.map_or("the client is gone", |call| call.name()));
        }
    }

    /// Nothing more is asked, and the client has ended.
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

    /// The ttl of the last acquire.
    pub(crate) fn asked_ttl(&self) -> Duration {
        *self.asked.lock().unwrap()
    }

    /// A confirmation whose request was sent just now.
    pub(crate) fn confirms(&self, place: Place) -> Confirmation {
        Confirmation { ttl: TTL, sent: self.now(), place }
    }

    pub(crate) fn queued(&self, place: Place) -> Acquisition {
        Acquisition::Queued { confirmation: self.confirms(place), look_in: TTL * 10 }
    }

    pub(crate) fn grant(&self, place: Place, token: u64) -> Grant {
        Grant::new(FencingToken::new(token), self.confirms(place))
    }

    /// Tells the client that a place became a lease.
    pub(crate) fn push(&self, claim: &Claim, place: Place, token: u64) {
        let token = FencingToken::new(token);
        self.core().event(Event::Granted { owner: *claim.owner(), place, token, confirmation: None });
    }
}

impl Call {
    fn name(&self) -> &'static str {
        match self {
            Self::Acquire(..) => "an acquire",
            Self::Renew(..) => "a renewal",
            Self::Release(_, Certainty::Sure, _) => "a release",
            Self::Release(..) => "a withdraw of what is unsure",
        }
    }
}
