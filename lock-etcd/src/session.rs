//! One etcd lease of this client, and how it is kept alive.
//!
//! A keep-alive is sent only when a lease or place has to be confirmed, so a session without any ends by itself. All that wait for a
//! confirmation share one keep-alive. It is sent by a task on the keeper's runtime, which ends when nothing is wanted any more. Each
//! keep-alive has a stream of its own: one that stays open costs a task, and can end unnoticed.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use etcd_client::LeaseGrantOptions;
use leasehold_core::backend::{Confirmation, CoreHandle, Known, PlaceNumber, SessionLease, Stamp};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::capabilities::SECOND;
use crate::connections::Connections;
use crate::errors::Failure;
use crate::shared::lock;

/// An etcd lease, to which the keys of claims are attached.
pub(crate) struct Session {
    pub(crate) id: i64,
    /// The ttl that was requested.
    pub(crate) ttl: Duration,
    /// The mod revision of its epoch key, as far as it is known.
    epoch: AtomicI64,
    /// It is not used any more.
    is_ended: AtomicBool,
    /// Those of the keeper's runtime, while the backend lives. A claim may keep its session for longer.
    connections: Weak<Connections>,
    core: CoreHandle,
    lease: watch::Sender<SessionLease>,
    keeping: Mutex<Keeping>,
}

/// The state of the keep-alives.
#[derive(Default)]
struct Keeping {
    wanted: Option<Wanted>,
    /// A task sends them.
    is_running: bool,
}

/// A confirmation that somebody waits for.
#[derive(Clone, Copy)]
struct Wanted {
    since: Stamp,
    until: Instant,
}

/// Why a session has no confirmation.
#[derive(Debug)]
pub(crate) enum Unconfirmed {
    /// It has ended, and with it every key.
    Gone,
    /// The server did not reply.
    Failed(Failure),
}

impl Session {
    /// Opens a session on the keeper's runtime.
    pub(crate) async fn open(
        connections: &Arc<Connections>,
        core: &CoreHandle,
        ttl: Duration,
        until: Instant,
    ) -> Result<Arc<Self>, Failure> {
        let seconds = i64::try_from(ttl.as_nanos().div_ceil(SECOND.as_nanos())).unwrap_or(i64::MAX);
        // Each attempt has a number of its own: an attempt without a reply leaves a lease without keys, which ends by itself.
        let clock = core.clone();
        let granted = connections.send_repeatable(until, move |client| {
            let core = clock.clone();
            async move {
                let id = rand::random_range(1..i64::MAX);
                let now = core.stamp();
                let options = LeaseGrantOptions::new().with_id(id);
                client.lease_client().grant(seconds, Some(options)).await.map(|granted| (granted, now))
            }
        });
        let (granted, sent) = granted.await?;
        let ttl_granted = seconds_of(granted.ttl()).ok_or(Failure::UnexpectedReply)?;
        Ok(Arc::new(Self {
            id: granted.id(),
            ttl,
            epoch: AtomicI64::new(0),
            is_ended: AtomicBool::new(false),
            connections: Arc::downgrade(connections),
            core: core.clone(),
            lease: watch::Sender::new(SessionLease::granted(ttl_granted, sent)),
            keeping: Mutex::default(),
        }))
    }

    pub(crate) fn epoch(&self) -> i64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The epoch key had this mod revision. It only rises.
    pub(crate) fn note_epoch(&self, revision: i64) {
        self.epoch.fetch_max(revision, Ordering::AcqRel);
    }

    /// Whether its ttl has passed since the newest confirmation, or it has ended.
    pub(crate) fn is_overdue(&self, now: Stamp) -> bool {
        self.is_ended.load(Ordering::Acquire) || self.lease.borrow().is_overdue(now)
    }

    /// The server has ended it, or will.
    pub(crate) fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
    }

    /// The newest confirmation, for a place or lease with this number.
    pub(crate) fn newest(&self, place: PlaceNumber) -> Confirmation {
        let (ttl, sent) = self.lease.borrow().newest();
        Confirmation { ttl, sent, place }
    }

    /// Sends a keep-alive unless the newest one is as young as `age`, and waits for nothing.
    pub(crate) fn refresh(self: &Arc<Self>, now: Stamp, age: Duration, until: Instant) {
        self.want(Wanted { since: now.minus(age), until });
    }

    /// A confirmation that is no older than `since`, if that is known without another request.
    pub(crate) fn confirmed_since(&self, since: Stamp, place: PlaceNumber) -> Option<Confirmation> {
        match self.lease.borrow().known_since(since) {
            Known::Confirmed(ttl, sent) => Some(Confirmation { ttl, sent, place }),
            Known::Gone | Known::Unknown | Known::Failed(_) => None,
        }
    }

    /// Waits for a confirmation that is no older than `since`.
    pub(crate) async fn confirm(
        self: &Arc<Self>,
        since: Stamp,
        place: PlaceNumber,
        until: Instant,
    ) -> Result<Confirmation, Unconfirmed> {
        // A failure that is known already is of an earlier attempt.
        let mut lease = self.lease.subscribe();
        self.want(Wanted { since, until });
        let mut is_first = true;
        loop {
            match lease.borrow_and_update().known_since(since) {
                Known::Confirmed(ttl, sent) => return Ok(Confirmation { ttl, sent, place }),
                Known::Gone => return Err(Unconfirmed::Gone),
                Known::Failed(error) if !is_first => return Err(Unconfirmed::Failed(Failure::Unknown(error))),
                Known::Failed(_) | Known::Unknown => {}
            }
            is_first = false;
            match timeout_at(until, lease.changed()).await {
                Ok(Ok(())) => {}
                // The keeper's runtime has ended.
                Ok(Err(_)) | Err(_) => return Err(Unconfirmed::Failed(Failure::TimedOut)),
            }
        }
    }
}

/// Sending keep-alives.
impl Session {
    /// Has a keep-alive sent, unless the lease is confirmed already.
    fn want(self: &Arc<Self>, wanted: Wanted) {
        if !matches!(self.lease.borrow().known_since(wanted.since), Known::Unknown | Known::Failed(_)) {
            return;
        }
        let mut keeping = lock(&self.keeping);
        let Wanted { since, until } = wanted;
        let former = keeping.wanted.unwrap_or(wanted);
        keeping.wanted = Some(Wanted { since: former.since.max(since), until: former.until.max(until) });
        if !std::mem::replace(&mut keeping.is_running, true) {
            self.core.keeper_runtime().spawn(self.clone().run());
        }
    }

    async fn run(self: Arc<Self>) {
        let Some(connections) = self.connections.upgrade() else { return };
        loop {
            let wanted = {
                let mut keeping = lock(&self.keeping);
                let Some(wanted) = keeping.wanted.take() else {
                    keeping.is_running = false;
                    return;
                };
                wanted
            };
            self.keep(&connections, wanted).await;
        }
    }

    /// Sends a keep-alive, for as long as the confirmation is wanted.
    async fn keep(&self, connections: &Arc<Connections>, Wanted { since, until }: Wanted) {
        // The keep-alive before it may have confirmed this as well.
        if !matches!(self.lease.borrow().known_since(since), Known::Unknown | Known::Failed(_)) {
            return;
        }
        let (id, clock) = (self.id, self.core.clone());
        let kept = connections.send_repeatable(until, move |client| {
            let sent = clock.stamp();
            // The call ends with the first reply.
            async move { client.lease_client().keep_alive(id).await.map(|_| sent) }
        });
        match kept.await {
            Ok(sent) => self.lease.send_modify(|lease| lease.kept_alive(Some(lease.newest().0), sent)),
            Err(Failure::NoLease) => self.lease.send_modify(|lease| lease.kept_alive(None, since)),
            Err(failure) => {
                let error = leasehold_core::Error::from(failure);
                self.lease.send_modify(|lease| lease.failed(since, error));
            }
        }
    }
}

/// The ttl of a reply; `None` for a lease that does not exist.
fn seconds_of(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}
