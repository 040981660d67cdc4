//! One etcd lease of this client, and how it is kept alive.
//!
//! A keep-alive is sent only when a lease or place has to be confirmed, so a session without any ends by itself. All
//! that wait for a confirmation share one keep-alive. It is sent by a task on the keeper's runtime, which ends when
//! nothing is wanted any more. Each keep-alive has a stream of its own: one that stays open costs a task, and can end
//! unnoticed.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::LeaseGrantOptions;
use leasehold_core::Error;
use leasehold_core::backend::kit::{KeptSession, PooledSession, SessionKeeper};
use leasehold_core::backend::{CoreHandle, PlaceNumber, Stamp};
use tokio::time::Instant;

use crate::capabilities::SECOND;
use crate::connections::Connections;
use crate::errors::Failure;

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
    pub(crate) keeper: SessionKeeper,
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
        // Each attempt has a number of its own: an attempt without a reply leaves a lease without keys, which ends by
        // itself.
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
            keeper: SessionKeeper::new(core, ttl_granted, sent),
        }))
    }

    pub(crate) fn epoch(&self) -> i64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The epoch key had this mod revision. It only rises.
    pub(crate) fn note_epoch(&self, revision: i64) {
        self.epoch.fetch_max(revision, Ordering::AcqRel);
    }
}

impl PooledSession for Session {
    fn requested(&self) -> Duration {
        self.ttl
    }

    fn is_overdue(&self, now: Stamp) -> bool {
        self.is_ended.load(Ordering::Acquire) || self.keeper.is_overdue(now)
    }

    /// The server has ended it, or will.
    fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
    }
}

#[async_trait]
impl KeptSession for Session {
    fn keeper(&self) -> &SessionKeeper {
        &self.keeper
    }

    async fn keep_alive(&self, until: Instant) -> leasehold_core::Result<Option<(Duration, Stamp)>> {
        let connections = self.connections.upgrade().ok_or_else(Error::shut_down)?;
        let (id, clock) = (self.id, self.core.clone());
        // Every member forwards it to the leader, which replies from memory. A leader that has not applied the grant
        // yet waits for it (since etcd's change 13690), so a session that is reported gone is gone. A leader that was
        // replaced and does not know it may confirm a session that has ended: the versions that `doctor` warns of.
        let kept = connections.send_repeatable(until, move |client| {
            let sent = clock.stamp();
            // The call ends with the first reply.
            async move { client.lease_client().keep_alive(id).await.map(|_| sent) }
        });
        match kept.await {
            Ok(sent) => Ok(Some((self.keeper.newest(PlaceNumber::NONE).ttl, sent))),
            Err(Failure::NoLease) => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }
}

/// The ttl of a reply; `None` for a lease that does not exist.
fn seconds_of(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}
