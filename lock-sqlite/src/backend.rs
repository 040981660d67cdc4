//! The backend: three verbs, each one write.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_core::backend::{
    Acquisition, Answer, Answers, Capabilities, Certainty, Claim, Confirmation, CoreHandle, Extend, Extensions, Grant,
    IfHeld, LeaseRef, LockBackend, Mode, PlaceNumber, Release,
};
use leasehold_core::{Error, ErrorKind, Result};

use crate::capabilities::{self, LONGEST_LOOK, RENEW_BATCH};
use crate::errors::{BACKEND, Failure};
use crate::file::File;
use crate::machine::{Machine, Moment};
use crate::settings::{Place, Settings, file_of, read_url};
use crate::shared::Shared;
use crate::store::{Ended, Store, Taken};
use crate::waiters::Waiters;
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
        Self::unopened(Place::At(path.into()), settings)?.opened().await
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
        let (place, settings) = read_url(url)?;
        Self::unopened(place, settings)
    }

    fn unopened(place: Place, settings: Settings) -> Result<Self> {
        let settings = settings.check()?;
        let capabilities = capabilities::of(&settings);
        let in_state_folder = place == Place::State;
        let path = file_of(place)?;
        // The working directory may change while the file is open.
        let path = std::path::absolute(&path).unwrap_or(path);
        let file = File::new(path, settings, Machine::this()?);
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
        work: impl Fn(&Store, &Moment) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        match self.shared.file.at_once(&work) {
            Some(Ok(done)) => Ok(done),
            Some(Err(failure)) if !failure.is_transient() => Err(failure.into()),
            // The file's thread waits for whoever writes, and makes room.
            Some(Err(_)) | None => self.worker.run(self.until(), work).await,
        }
    }

    async fn try_acquire(&self, claim: &Claim, ttl: Duration) -> Result<Acquisition> {
        if claim.mode() != Mode::Exclusive {
            return Err(Error::new(ErrorKind::Unsupported, "only exclusive locks are supported"));
        }
        let Capabilities { min_ttl, max_ttl, .. } = self.capabilities;
        if ttl < min_ttl || ttl > max_ttl {
            return Err(Error::invalid(format!("a ttl is {min_ttl:?} to {max_ttl:?}, not {ttl:?}")));
        }
        let shared = &self.shared;
        let sent = shared.core()?.stamp();
        let turn = shared.waiters.turn(claim);
        let taken = self.run({
            let (shared, claim) = (shared.clone(), claim.clone());
            move |store, now| {
                shared.withdrawn.check(&claim).map_err(Failure::Found)?;
                store.acquire(&claim, ttl, turn, now)
            }
        });
        match taken.await? {
            Taken::Granted(token) => {
                shared.waiters.forget(claim);
                Ok(Acquisition::Granted(Grant::new(token, Confirmation { ttl, sent, place: PlaceNumber::NONE })))
            }
            Taken::Held(left) => {
                // Sooner than its end: a release may not be heard of, and a lease that runs out early is not told.
                let look_in = left.min(ttl / 3).min(LONGEST_LOOK);
                if claim.wish() == IfHeld::Queue {
                    Waiters::refused(shared, claim, look_in);
                }
                Ok(Acquisition::Held { look_in })
            }
            Taken::Kept(look_in) => Ok(Acquisition::Held { look_in }),
        }
    }

    async fn try_release(&self, claim: &Claim, certainty: Certainty) -> Result<Release> {
        self.shared.waiters.forget(claim);
        let release = {
            let claim = claim.clone();
            move |store: &Store, now: &Moment| store.release(&claim, now)
        };
        let ended = match certainty {
            Certainty::Sure => self.run(release).await?,
            // After whatever this claim still has in the queue, and nothing of it can come later.
            Certainty::Unsure => {
                self.shared.withdrawn.add(claim);
                self.worker.run(self.until(), release).await?
            }
        };
        if ended == Ended::Wanted {
            self.shared.waiters.bell.ring();
        }
        Ok(if ended == Ended::NotHeld { Release::NotHeld } else { Release::Released })
    }

    async fn try_renew(&self, leases: &[LeaseRef], until: Instant) -> Result<Vec<Answer>> {
        let sent = self.shared.core()?.stamp();
        let shorter = leases.iter().any(|lease| lease.extend == Extend::Exactly);
        let renewed = self.worker.run(until, {
            let leases = leases.to_vec();
            move |store, now| {
                let renew = |lease: &LeaseRef| store.renew(lease, now).map_err(Error::from);
                Ok(leases.iter().map(renew).collect::<Vec<_>>())
            }
        });
        let renewed = renewed.await?;
        if shorter {
            // Those who wait look again, and see that it ends sooner.
            self.shared.waiters.bell.ring();
        }
        let answer = |(lease, renewed): (&LeaseRef, Result<bool>)| match renewed {
            Ok(true) => Answer::Renewed(Confirmation { ttl: lease.ttl, sent, place: PlaceNumber::NONE }),
            Ok(false) => Answer::Lost,
            Err(error) => Answer::Unknown(error.during("renew", lease.claim.name(), BACKEND)),
        };
        Ok(leases.iter().zip(renewed).map(answer).collect())
    }
}

#[async_trait]
impl LockBackend for SqliteBackend {
    fn attach(&self, core: CoreHandle) {
        self.shared.core.attach(core);
    }

    async fn acquire(&self, claim: &Claim, ttl: Duration) -> Result<Acquisition> {
        self.try_acquire(claim, ttl).await.map_err(|error| error.during("acquire", claim.name(), BACKEND))
    }

    async fn renew(&self, leases: &[LeaseRef], answers: &Answers) {
        let until = self.until();
        for (batch, some) in leases.chunks(RENEW_BATCH).enumerate() {
            match self.try_renew(some, until).await {
                Ok(told) => {
                    for (index, answer) in told.into_iter().enumerate() {
                        answers.put(batch * RENEW_BATCH + index, answer);
                    }
                }
                Err(error) => return answers.fail_rest(&error),
            }
        }
    }

    async fn release(&self, claim: &Claim, certainty: Certainty) -> Result<Release> {
        self.try_release(claim, certainty).await.map_err(|error| error.during("release", claim.name(), BACKEND))
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
        extensions
    }
}

impl Drop for SqliteBackend {
    fn drop(&mut self) {
        self.shared.waiters.close();
    }
}

impl fmt::Debug for SqliteBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteBackend").field("file", &self.shared.file).finish_non_exhaustive()
    }
}
