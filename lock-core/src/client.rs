//! One backend and its defaults.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::admin::{Check, Listing};
use crate::backend::{Capabilities, LockBackend, NoAdmin};
use crate::clock::{Clock, SystemClock};
use crate::defaults::{DEFAULT_MARGIN_PERCENT, DEFAULT_TTL, DEFAULT_WAIT};
use crate::entropy::Entropy;
use crate::error::{Error, ErrorKind, Result};
use crate::holder_info::HolderInfo;
use crate::keeper::{KeeperHandle, KeeperRuntime, LeaseKeeper, Parts};
use crate::lock::Lock;
use crate::lock_info::LockInfo;
use crate::name::LockName;
use crate::stats::Stats;
use crate::timers::{before, on_tokio, timer};
use crate::token::FencingToken;

/// One backend and its defaults. Cheap to clone; clones share the backend, the lease keeper and the local queues.
///
/// When the last clone and the last guard are dropped, the keeper releases in the background what is not yet released,
/// and ends. If the process exits before that, its leases end by their ttl: call [`shutdown`](Self::shutdown) first.
#[derive(Clone, Debug)]
pub struct LockClient {
    pub(crate) keeper: Arc<KeeperHandle>,
    ttl: Duration,
    wait: Duration,
}

impl LockClient {
    /// Creates a client with the defaults: ttl 30 s, wait 60 s, margin 10 %, a keeper on a thread of its own.
    ///
    /// # Panics
    /// If the system cannot start a thread. [`builder`](Self::builder) returns an error instead.
    pub fn new(backend: impl LockBackend) -> Self {
        match Self::builder(backend).build() {
            Ok(client) => client,
            Err(error) => panic!("{error}"),
        }
    }

    /// A client with other defaults.
    pub fn builder(backend: impl LockBackend) -> LockClientBuilder {
        LockClientBuilder {
            backend: Arc::new(backend),
            clock: None,
            seed: None,
            home: KeeperRuntime::default(),
            ttl: DEFAULT_TTL,
            wait: DEFAULT_WAIT,
            margin_percent: DEFAULT_MARGIN_PERCENT,
            label: String::new(),
        }
    }

    /// A lock by name. Nothing is checked or sent before it is acquired.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.keeper.clone(), LockName::new(name), self.ttl, self.wait)
    }

    /// Who holds a lock, as the store sees it, or `None` if the store has no record of the lock. The reply may be
    /// outdated when it arrives, so it is only for people.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid name, `Unsupported` if the backend cannot show who holds a lock, or an error of
    /// the store. It ends within 1.25 times the backend's call bound.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Option<LockInfo>> {
        let name = LockName::new(name)?;
        self.ask(1, ErrorKind::Unavailable, move |backend| async move {
            let answer = backend.admin().unwrap_or(&NoAdmin).inspect(&name).await;
            answer.map_err(|error| error.during("inspect", &name, backend.capabilities().backend))
        })
        .await
    }

    /// The locks whose names begin with `prefix`, those that are held first; at most `limit`, which is at most
    /// [`Listing::MAX`]. For people: the states are of different moments. A store may keep only the beginning of a very
    /// long name. Such a name is shown with `…`, and a longer prefix does not find it.
    ///
    /// # Errors
    /// `InvalidInput` for a limit out of bounds, `Unsupported` if the backend cannot list locks, or an error of the
    /// store. It ends within 12.5 times the backend's call bound.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn list(&self, prefix: &str, limit: usize) -> Result<Listing> {
        if limit == 0 || limit > Listing::MAX {
            return Err(Error::invalid(format!("the limit must be between 1 and {} (got {limit})", Listing::MAX)));
        }
        let prefix = prefix.to_owned();
        self.ask(10, ErrorKind::Unavailable, move |backend| async move {
            backend.admin().unwrap_or(&NoAdmin).list(&prefix, limit).await
        })
        .await
    }

    /// Ends the lease of another holder, for an operator, if its token is still `token` ([`inspect`](Self::inspect)
    /// shows it). Returns the raised token, or `None` if that lease had ended.
    ///
    /// The old holder learns of it with its next renewal and may continue to write until then. To prevent that, send
    /// the raised token to the protected resource.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid name, `Unsupported` if the backend cannot break locks, `Indeterminate` if the
    /// lease may have been ended, or an error of the store. It ends within 1.25 times the backend's call bound.
    ///
    /// # Cancel safety
    /// If this future is dropped, the lease may have been ended.
    pub async fn break_lock(&self, name: impl AsRef<str>, token: FencingToken) -> Result<Option<FencingToken>> {
        let name = LockName::new(name)?;
        self.ask(1, ErrorKind::Indeterminate, move |backend| async move {
            let answer = backend.admin().unwrap_or(&NoAdmin).break_lock(&name, token).await;
            answer.map_err(|error| error.during("break", &name, backend.capabilities().backend))
        })
        .await
    }

    /// Checks whether the store is fit for locks. A check with a warning or an error has a hint.
    ///
    /// # Errors
    /// `Unsupported` if the backend cannot check its store, or an error of the store. It ends within 3.75 times the
    /// backend's call bound.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn examine(&self) -> Result<Vec<Check>> {
        self.ask(3, ErrorKind::Unavailable, move |backend| async move {
            backend.admin().unwrap_or(&NoAdmin).examine().await
        })
        .await
    }

    /// Calls the backend for an operator, for at most `bounds` call bounds. `silence` is the kind of the error if that
    /// is too short.
    async fn ask<T, F>(
        &self,
        bounds: u32,
        silence: ErrorKind,
        call: impl FnOnce(Arc<dyn LockBackend>) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let keeper = &self.keeper;
        let bound = keeper.call_bound() * bounds;
        let call = call(keeper.backend().clone());
        let call = async move {
            let answer = before(timer(bound)?, call).await;
            answer.unwrap_or_else(|| Err(Error::new(silence, format!("the store did not reply within {bound:?}"))))
        };
        on_tokio(keeper.home(), call).await
    }

    /// What the backend promises.
    pub fn capabilities(&self) -> Capabilities {
        self.keeper.capabilities().clone()
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        self.keeper.stats()
    }

    /// Ends this client and its clones: pending acquires fail, every lease is released and its holder notified
    /// ([`LossReason::Shutdown`](crate::LossReason::Shutdown)). Waits until the store has replied. It does not wait for
    /// the end of a [`min_hold`](crate::Lock::min_hold).
    ///
    /// # Errors
    /// [`Indeterminate`](ErrorKind::Indeterminate) if the store did not reply for two call bounds, or the ttl ended
    /// before it replied. The keeper continues in the background, and each lease ends by its ttl at the latest.
    /// [`Lost`](ErrorKind::Lost) if everything has ended, but a release that this call made, or that was repeated in
    /// the background, found no lease. That lease was lost before, and another client may have held the lock. After a
    /// call of the release without a reply, that call may have ended the lease instead. Where the store still shows the
    /// fencing token of the lease as the last one, it has not been lost, and there is no error. Each such release is
    /// reported once. [`InvalidInput`](ErrorKind::InvalidInput) on a tokio runtime without timers. Nothing was ended.
    ///
    /// # Cancel safety
    /// If this future is dropped, the shutdown continues. Another call waits for it again.
    pub async fn shutdown(&self) -> Result<()> {
        let keeper: &Arc<LeaseKeeper> = &self.keeper;
        on_tokio(keeper.home(), keeper.clone().shut_down()).await
    }
}

/// The longest call bound of a backend, so that every call of the client ends.
const LONGEST_CALL_BOUND: Duration = Duration::from_secs(3600);

/// Builds a [`LockClient`].
#[must_use]
pub struct LockClientBuilder {
    backend: Arc<dyn LockBackend>,
    clock: Option<Arc<dyn Clock>>,
    seed: Option<u64>,
    home: KeeperRuntime,
    ttl: Duration,
    wait: Duration,
    margin_percent: u8,
    label: String,
}

impl fmt::Debug for LockClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClientBuilder").field("ttl", &self.ttl).field("wait", &self.wait).finish_non_exhaustive()
    }
}

impl LockClientBuilder {
    /// Another clock than [`SystemClock`], for tests.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Derives owner tokens and jitter from a seed, so that a simulation can be replayed. Do not use it in production:
    /// the owner tokens follow from the seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Where the lease keeper runs; on a thread of its own by default.
    pub fn keeper(mut self, home: KeeperRuntime) -> Self {
        self.home = home;
        self
    }

    /// The ttl of locks that set none; 30 s by default.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The wait of locks that set none; 60 s by default.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// The part of a ttl that a holder leaves unused, in percent, 1 to 50; 10 by default. It covers the difference in
    /// rate between the holder's clock and the store's.
    pub fn margin_percent(mut self, percent: u8) -> Self {
        self.margin_percent = percent;
        self
    }

    /// A label in the holder information, for people who inspect the store. At most 128 bytes.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Builds the client and starts its keeper. It sends nothing.
    ///
    /// # Errors
    /// `InvalidInput` for a margin or label out of bounds, a backend whose call bound is longer than an hour, or
    /// [`KeeperRuntime::CurrentRuntime`] outside a tokio runtime or in one without timers; `Unavailable` when the
    /// system cannot start a thread.
    pub fn build(self) -> Result<LockClient> {
        if !(1..=50).contains(&self.margin_percent) {
            let percent = self.margin_percent;
            return Err(Error::invalid(format!("the margin must be between 1 and 50 percent (got {percent})")));
        }
        let call_bound = self.backend.capabilities().call_bound;
        if call_bound > LONGEST_CALL_BOUND {
            return Err(Error::invalid(format!(
                "the backend's call bound must be at most {LONGEST_CALL_BOUND:?} (got {call_bound:?})"
            )));
        }
        let parts = Parts {
            holder_info: HolderInfo::of_this_process(&self.label)?,
            backend: self.backend,
            clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock::new())),
            entropy: self.seed.map_or(Entropy::Thread, Entropy::seeded),
            margin_percent: self.margin_percent,
        };
        let keeper = Arc::new(KeeperHandle::new(LeaseKeeper::start(parts, self.home)?));
        Ok(LockClient { keeper, ttl: self.ttl, wait: self.wait })
    }
}
