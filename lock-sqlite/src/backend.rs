//! The backend. Acquire, renew and release are one write each.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use async_trait::async_trait;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, Claim, Confirmation, CoreHandle, Delivery, Grant, LockBackend,
    OnContention, PlaceNumber, ReleaseOutcome, ReleaseRequest, RenewPolicy, RenewReplies, RenewReply, RenewRequest,
    WatchGuard, WatchNames,
};
use leasehold_core::{Error, Result};

use crate::boot_clock::{BootClock, Reading};
use crate::capabilities::{self, MAX_RETRY_AFTER};
use crate::errors::Failure;
use crate::file::File;
use crate::settings::{Location, Settings, parse_url, resolve_path};
use crate::shared::{ClaimState, Shared};
use crate::store::{AcquiredRow, Attempt, ReleasedRow, Store};
use crate::watcher::Watcher;
use crate::worker::Worker;

/// Locks in one SQLite file, shared by the processes of one machine.
///
/// # Guarantees and their limits
/// - **Validity** depends only on the clock since boot. All processes of the machine share this clock, and nothing
///   steps it. It counts suspend, so a lease expires while the machine sleeps.
/// - **The order of fencing tokens** does not depend on time while the file exists. After the file was deleted, a new
///   token is still higher, unless the wall clock was set back by more than the time that has passed since.
/// - **Takeover** takes at most ttl + 100 ms. After a reboot, a lease that was held lasts for one more ttl.
/// - **A process that stops in the middle of a write** (SIGSTOP, a debugger, a frozen container) blocks the writes of
///   all others until it continues or ends. A write takes about 20 µs. The others get `Unavailable` after the call's
///   bound, and a holder that cannot renew is notified of the loss in time.
/// - **Not covered**: somebody deletes, replaces or truncates the file, its `-wal` or its `-shm` while they are in use,
///   or the file is shared between machines or through two paths. Then only the fencing token decides.
pub struct SqliteBackend {
    pub(crate) shared: Arc<Shared>,
    worker: Worker,
    capabilities: Capabilities,
}

impl SqliteBackend {
    /// Opens the file of a URL: `sqlite:///path/locks.db`, or `sqlite://` for the file in the user's state folder.
    /// Creates the file if it does not exist, and checks that it can hold locks.
    ///
    /// # Errors
    /// - `InvalidInput`: the URL is bad, the folder does not exist, the path is a folder, or the tokio runtime has no
    ///   timers.
    /// - `Unavailable`: other processes write for the whole [`timeout`](Settings::timeout), or the disk takes longer
    ///   than both that and 10 s.
    /// - `Auth`: the user may not write there.
    /// - `Unsupported`: other machines may share the file system, the file has a second path (a hard link, or a mount
    ///   of the file alone), the file is not a database, or its tables have another version.
    ///
    /// # Cancel safety
    /// A dropped call may have created the file.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_lazy(url)?.opened().await
    }

    /// Opens the file at a path, which may be relative.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn connect_with(path: impl Into<PathBuf>, settings: Settings) -> Result<Self> {
        Self::unopened(Location::Path(path.into()), settings)?.opened().await
    }

    async fn opened(self) -> Result<Self> {
        leasehold_core::backend::kit::require_timers()?;
        self.worker.open(self.until()).await?;
        Ok(self)
    }

    /// Parses a URL and opens nothing. The first call opens the file, and calls fail while the file cannot be used.
    ///
    /// # Errors
    /// `InvalidInput` for a bad URL; `Unsupported` on a system without a clock since boot.
    pub fn connect_lazy(url: &str) -> Result<Self> {
        let (location, settings) = parse_url(url)?;
        Self::unopened(location, settings)
    }

    fn unopened(location: Location, settings: Settings) -> Result<Self> {
        let settings = settings.check()?;
        let capabilities = capabilities::of(&settings);
        let in_state_folder = location == Location::StateFolder;
        let path = resolve_path(location)?;
        // The working directory may change while the file is open.
        let path = std::path::absolute(&path).unwrap_or(path);
        let file = File::new(path, settings, BootClock::of_this_machine()?);
        let file = if in_state_folder { file.in_state_folder() } else { file };
        let shared = Arc::new(Shared::new(file));
        let worker = Worker::new(shared.file.clone());
        Ok(Self { shared, worker, capabilities })
    }

    /// The deadline of a call that starts now.
    fn until(&self) -> Instant {
        Instant::now() + self.shared.file.settings.timeout
    }

    /// Runs `work` on the calling task if the connection is free, which takes about 10 µs and is cheaper than a
    /// handover. Otherwise runs it on the worker thread.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Fn(&Store, &Reading) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        match self.shared.file.try_run(&work) {
            Some(Ok(done)) => Ok(done),
            Some(Err(failure)) if !failure.is_transient() => Err(failure.into()),
            // The worker thread waits for other writers, and checkpoints if the disk is full.
            Some(Err(_)) | None => self.worker.run(self.until(), work).await,
        }
    }

    async fn try_renew(&self, requests: &[RenewRequest]) -> Result<Vec<RenewReply>> {
        let sent = self.shared.core()?.stamp();
        let shorter = requests.iter().any(|request| request.policy == RenewPolicy::Exactly);
        let renewed = self.worker.run(self.until(), {
            let requests = requests.to_vec();
            move |store, now| {
                let renew = |request: &RenewRequest| store.renew(request, now).map_err(Error::from);
                Ok(requests.iter().map(renew).collect::<Vec<_>>())
            }
        });
        let renewed = renewed.await?;
        if shorter {
            // Waiters read the row again, and find that the lease ends sooner.
            self.shared.watcher.notifier.notify();
        }
        let answer = |(request, renewed): (&RenewRequest, Result<bool>)| match renewed {
            Ok(true) => RenewReply::Renewed(Confirmation { ttl: request.ttl, sent, place: PlaceNumber::NONE }),
            Ok(false) => RenewReply::Lost,
            Err(error) => RenewReply::Unknown(error),
        };
        Ok(requests.iter().zip(renewed).map(answer).collect())
    }
}

#[async_trait]
impl LockBackend for SqliteBackend {
    fn attach(&self, core: CoreHandle) {
        self.shared.core.attach(core);
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let AcquireRequest { ref claim, ttl, on_contention, .. } = *request;
        let shared = &self.shared;
        let sent = shared.core()?.stamp();
        let state = ClaimState::of(claim);
        let attempt = if state.has_waited.load(Ordering::Relaxed) { Attempt::Retry } else { Attempt::First };
        let outcome = self.run({
            let request = request.clone();
            move |store, now| {
                // A withdrawal may have overtaken this request in the queue of the worker.
                if ClaimState::of(&request.claim).is_withdrawn.load(Ordering::Acquire) {
                    return Err(Failure::Rejected(Error::withdrawn()));
                }
                store.acquire(&request, attempt, now)
            }
        });
        match outcome.await? {
            AcquiredRow::Granted(token) => {
                Ok(AcquireOutcome::Granted(Grant::new(token, Confirmation { ttl, sent, place: PlaceNumber::NONE })))
            }
            AcquiredRow::Held(left) => {
                // Retry before the lease expires: a release may go unnoticed, and nobody announces that a lease ends
                // early.
                let retry_after = left.min(ttl / 3).min(MAX_RETRY_AFTER);
                state.has_waited.store(on_contention == OnContention::Queue, Ordering::Relaxed);
                Ok(AcquireOutcome::Contended { retry_after })
            }
            AcquiredRow::Reserved(retry_after) => Ok(AcquireOutcome::Contended { retry_after }),
        }
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        replies.put_all(self.try_renew(requests).await);
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let ReleaseRequest { ref claim, delivery, .. } = *request;
        let release = {
            let claim = claim.clone();
            move |store: &Store, now: &Reading| store.release(&claim, now)
        };
        let ended = match delivery {
            Delivery::Confirmed => self.run(release).await?,
            // The worker runs this after every queued request of the claim, and no later one can take effect.
            Delivery::InDoubt => {
                ClaimState::of(claim).is_withdrawn.store(true, Ordering::Release);
                self.worker.run(self.until(), release).await?
            }
        };
        if ended == ReleasedRow::HasWaiters {
            self.shared.watcher.notifier.notify();
        }
        Ok(if ended == ReleasedRow::NotHeld { ReleaseOutcome::NotHeld } else { ReleaseOutcome::Released })
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        Some(self)
    }
}

impl WatchNames for SqliteBackend {
    fn watch(&self, claim: &Claim) -> WatchGuard {
        // Other waiters have a reservation. A claim that is refused for this reason retries after their turn.
        if !ClaimState::of(claim).has_waited.load(Ordering::Relaxed) {
            return WatchGuard::none();
        }
        Watcher::watch(&self.shared, claim.name())
    }
}

impl Drop for SqliteBackend {
    fn drop(&mut self) {
        self.shared.watcher.close();
    }
}

impl fmt::Debug for SqliteBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteBackend").field("file", &self.shared.file).finish_non_exhaustive()
    }
}
