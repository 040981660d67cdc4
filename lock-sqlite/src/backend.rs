//! The backend: three verbs, each one write.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use async_trait::async_trait;
use leasehold_core::backend::{
    AcquireRequest, Acquisition, Answer, Answers, Capabilities, Certainty, Claim, Confirmation, CoreHandle, Extend,
    Extensions, Grant, LockBackend, OnContention, PlaceNumber, Release, ReleaseRequest, RenewRequest, WatchGuard,
    WatchNames,
};
use leasehold_core::{Error, ErrorKind, Result};

use crate::boot_clock::{BootClock, Reading};
use crate::capabilities::{self, MAX_RETRY_AFTER};
use crate::errors::Failure;
use crate::file::File;
use crate::settings::{Location, Settings, parse_url, resolve_path};
use crate::shared::{ClaimState, Shared};
use crate::store::{AcquireOutcome, Attempt, ReleaseOutcome, Store};
use crate::watcher::Watcher;
use crate::worker::Worker;

/// Locks in one SQLite file, between the processes of one machine.
///
/// # What holds, and where it ends
/// - **Validity** assumes nothing but the machine's clock since boot, which is the same for all its processes and is never
///   stepped. Suspend counts: a lease ends while the machine sleeps.
/// - **Fencing order** assumes nothing about time while the file is there. When it was deleted, a new token is still higher
///   unless the wall clock was set back by more than has passed.
/// - **Takeover** within ttl + 100 ms. After a reboot a lease that was held is kept for one ttl more.
/// - **A process that stands still in the middle of a write** (SIGSTOP, a debugger, a frozen container) keeps all others from writing
///   until it goes on or ends. A write takes some 20 µs. Others get `Unavailable` after the call's bound, and holders that
///   cannot renew are told of their loss in time.
/// - **Out of the domain**: the file, its `-wal` or its `-shm` is deleted, replaced or truncated under its users, or the file is shared
///   between machines or by two paths. Then only the
///   fencing token decides.
pub struct SqliteBackend {
    pub(crate) shared: Arc<Shared>,
    worker: Worker,
    capabilities: Capabilities,
}

impl SqliteBackend {
    /// Opens the file of a URL: `sqlite:///path/locks.db`, or `sqlite://` for the one in the user's state folder. Makes it when
    /// it is not there, and checks that it can be used for locks.
    ///
    /// # Errors
    /// `InvalidInput` for a bad URL, the path of a folder, or a tokio runtime without timers; `Unavailable` when the folder is not there, when other processes
    /// write for the whole [`timeout`](Settings::timeout), or when the disk takes longer than that and than 10 s; `Auth` when one
    /// may not write there; `Unsupported` on a file system that other machines may share, for a file with a second path (a hard link, a
    /// mount of the file alone), for a file that is not a database, and for tables of another version.
    ///
    /// # Cancel safety
    /// Dropped, it may have made the file.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_lazy(url)?.opened().await
    }

    /// The same by path, which may be relative.
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
        leasehold_core::backend::require_timers()?;
        self.worker.open(self.until()).await?;
        Ok(self)
    }

    /// Reads a URL and opens nothing: the first call does, and fails while the file cannot be used.
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

    /// When a call that begins now has to end.
    fn until(&self) -> Instant {
        Instant::now() + self.shared.file.settings.timeout
    }

    /// Works on the file here and now if nothing is in the way: that is some 10 µs, less than handing it over. Else on the
    /// file's thread.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Fn(&Store, &Reading) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        match self.shared.file.try_run(&work) {
            Some(Ok(done)) => Ok(done),
            Some(Err(failure)) if !failure.is_transient() => Err(failure.into()),
            // The file's thread waits for whoever writes, and makes room.
            Some(Err(_)) | None => self.worker.run(self.until(), work).await,
        }
    }

    async fn try_renew(&self, requests: &[RenewRequest]) -> Result<Vec<Answer>> {
        let sent = self.shared.core()?.stamp();
        let shorter = requests.iter().any(|request| request.extend == Extend::Exactly);
        let renewed = self.worker.run(self.until(), {
            let requests = requests.to_vec();
            move |store, now| {
                let renew = |request: &RenewRequest| store.renew(request, now).map_err(Error::from);
                Ok(requests.iter().map(renew).collect::<Vec<_>>())
            }
        });
        let renewed = renewed.await?;
        if shorter {
            // Those who wait look again, and see that it ends sooner.
            self.shared.watcher.notifier.notify();
        }
        let answer = |(request, renewed): (&RenewRequest, Result<bool>)| match renewed {
            Ok(true) => Answer::Renewed(Confirmation { ttl: request.ttl, sent, place: PlaceNumber::NONE }),
            Ok(false) => Answer::Lost,
            Err(error) => Answer::Unknown(error),
        };
        Ok(requests.iter().zip(renewed).map(answer).collect())
    }
}

#[async_trait]
impl LockBackend for SqliteBackend {
    fn attach(&self, core: CoreHandle) {
        self.shared.core.attach(core);
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Acquisition> {
        let AcquireRequest { ref claim, ttl, on_contention, .. } = *request;
        let shared = &self.shared;
        let sent = shared.core()?.stamp();
        let state = ClaimState::of(claim);
        let attempt = if state.has_waited.load(Ordering::Relaxed) { Attempt::Retry } else { Attempt::First };
        let outcome = self.run({
            let request = request.clone();
            move |store, now| {
                if ClaimState::of(&request.claim).is_withdrawn.load(Ordering::Acquire) {
                    let text = "this claim was withdrawn before the request arrived";
                    return Err(Failure::Rejected(Error::new(ErrorKind::Lost, text)));
                }
                store.acquire(&request, attempt, now)
            }
        });
        match outcome.await? {
            AcquireOutcome::Granted(token) => {
                Ok(Acquisition::Granted(Grant::new(token, Confirmation { ttl, sent, place: PlaceNumber::NONE })))
            }
            AcquireOutcome::Held(left) => {
                // Sooner than its end: a release may not be heard of, and a lease that runs out early is not told.
                let look_in = left.min(ttl / 3).min(MAX_RETRY_AFTER);
                state.has_waited.store(on_contention == OnContention::Queue, Ordering::Relaxed);
                Ok(Acquisition::Held { look_in })
            }
            AcquireOutcome::Reserved(look_in) => Ok(Acquisition::Held { look_in }),
        }
    }

    async fn renew(&self, requests: &[RenewRequest], answers: &Answers) {
        answers.put_all(self.try_renew(requests).await);
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Release> {
        let ReleaseRequest { ref claim, certainty, .. } = *request;
        let release = {
            let claim = claim.clone();
            move |store: &Store, now: &Reading| store.release(&claim, now)
        };
        let ended = match certainty {
            Certainty::Sure => self.run(release).await?,
            // After whatever this claim still has in the queue, and nothing of it can come later.
            Certainty::Unsure => {
                ClaimState::of(claim).is_withdrawn.store(true, Ordering::Release);
                self.worker.run(self.until(), release).await?
            }
        };
        if ended == ReleaseOutcome::HasWaiters {
            self.shared.watcher.notifier.notify();
        }
        Ok(if ended == ReleaseOutcome::NotHeld { Release::NotHeld } else { Release::Released })
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn extensions(&self) -> Extensions<'_> {
        let mut extensions = Extensions::default();
        extensions.inspect = Some(self);
        extensions.list = Some(self);
        extensions.break_lock = Some(self);
        extensions.examine = Some(self);
        extensions.watch = Some(self);
        extensions
    }
}

impl WatchNames for SqliteBackend {
    fn watch(&self, claim: &Claim) -> WatchGuard {
        // Others wait for a lock that is kept for them: a claim that is refused for that reason comes again when they had their turn.
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
