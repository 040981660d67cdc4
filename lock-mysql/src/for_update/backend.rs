//! `SELECT … FOR UPDATE` as a backend: a task for each claim that holds or waits, and what calls ask of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, Confirmation, CoreHandle, Delivery, Grant, LONGEST_PLACE_TTL,
    LockBackend, OnContention, PlaceNumber, ReleaseOutcome, ReleaseRequest, RenewReplies, RenewReply, RenewRequest,
    Restart, Stamp, StoreClock, TtlScope, Waiting, WatchNames,
};
use leasehold_core::{Error, ErrorKind, Result};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use super::fences;
use super::slot::{Command, Handle, Phase, Slot, TaskConnection};
use super::statements::{Kill, LEASES, Statements};
use super::task::{Request, Task};
use crate::connections::{Connections, Pools};
use crate::errors::{BACKEND, Failure};
use crate::maintenance::Maintenance;
use crate::pool::Limit;

/// The unit of `wait_timeout`.
const SECOND: Duration = Duration::from_secs(1);

pub(crate) struct ForUpdate {
    pub(super) connections: Arc<Connections>,
    /// One connection for each claim that holds or waits, of the keeper's runtime.
    leases: Arc<Pools>,
    maintenance: Arc<Maintenance>,
    last_place: AtomicU64,
}

impl ForUpdate {
    pub(crate) fn new(connections: Arc<Connections>) -> Self {
        let shared = &connections.shared;
        let leases = Pools::new(shared.clone(), LEASES, Limit::Leases(shared.settings.locks));
        Self { leases, maintenance: Maintenance::new(shared.clone()), connections, last_place: AtomicU64::new(0) }
    }

    fn core(&self) -> Result<&CoreHandle> {
        self.connections.shared.core.core()
    }

    pub(super) fn until(&self) -> Instant {
        self.connections.shared.until()
    }

    fn start(&self, core: &CoreHandle, request: &AcquireRequest) -> Handle {
        let (phase, seen) = watch::channel(Phase::Starting);
        let (commands, received) = mpsc::unbounded_channel();
        let (claim, connection) = (&request.claim, Arc::new(TaskConnection::default()));
        let waits = request.on_contention == OnContention::Queue;
        let place = PlaceNumber::new(self.last_place.fetch_add(1, Ordering::Relaxed) + 1);
        let task = Task {
            connections: self.connections.clone(),
            core: core.clone(),
            request: Request {
                name: claim.name().clone(),
                statements: Statements::new(claim.name()),
                owner: *claim.owner(),
                holder: claim.holder().encode(None),
                ttl: request.ttl,
                place_ttl: place_ttl(request.ttl),
                place,
                waits,
            },
            phase,
            commands: received,
            connection: connection.clone(),
        };
        // The lease ends with its connection, and must not depend on the caller's runtime, which may be shut down.
        let task = core.keeper_runtime().spawn(task.run(self.leases.clone())).abort_handle();
        Handle::new(seen, commands, connection, place, task)
    }

    /// Cancels the statement of a claim that waits. Returns whether the task has ended the place and kept its
    /// connection. Otherwise the connection has to be ended.
    async fn cancel(&self, handle: &Handle, until: Instant) -> Result<bool> {
        let Some(endpoint) = handle.connection.cancel() else { return Ok(false) };
        let pool = self.connections.calls.pool()?;
        if !fences::kill(&pool, Kill::Query, &endpoint, until).await? {
            return Ok(false);
        }
        handle.connection.finish_cancel();
        let mut phase = handle.phase.clone();
        let ended = timeout_at(until, phase.wait_for(|it| !matches!(it, Phase::Waiting))).await;
        Ok(matches!(ended, Ok(Ok(ended)) if matches!(*ended, Phase::Ended)))
    }

    /// Renews the places of claims that wait, if their connections still exist.
    async fn check_places(&self, core: &CoreHandle, places: &[Place<'_>], replies: &RenewReplies, until: Instant) {
        if places.is_empty() {
            return;
        }
        let sent = core.stamp();
        let endpoints: Vec<_> = places.iter().map(|it| it.handle.connection.endpoint()).collect();
        let existing = async {
            let pool = self.connections.renewals.pool()?;
            fences::existing(&pool, endpoints.iter().flatten(), until).await
        };
        let existing = existing.await.map_err(Failure::without_effect);
        for (Place { index, request, handle }, endpoint) in places.iter().zip(&endpoints) {
            let reply = match (&existing, endpoint) {
                (Err(error), _) => RenewReply::Unknown(error.clone()),
                (Ok(existing), Some(endpoint)) if existing.contains(&endpoint.id) => {
                    let ttl = place_ttl(request.ttl);
                    RenewReply::Waiting { confirmation: place(handle, ttl, sent), retry_after: ttl }
                }
                (Ok(_), _) => {
                    // The server has ended its connection. The task would wait for a reply that never comes.
                    handle.abandon();
                    RenewReply::Lost
                }
            };
            replies.put(*index, reply);
        }
    }
}

/// A place to renew.
struct Place<'a> {
    index: usize,
    request: &'a RenewRequest,
    handle: Arc<Handle>,
}

fn place_ttl(ttl: Duration) -> Duration {
    ttl.clamp(SECOND, LONGEST_PLACE_TTL)
}

/// The confirmation of a place whose connection was seen to exist after `seen`.
fn place(handle: &Handle, ttl: Duration, seen: Stamp) -> Confirmation {
    Confirmation { ttl, sent: handle.connection.place_stamp(seen), place: handle.place }.counted_from(seen)
}

#[async_trait]
impl LockBackend for ForUpdate {
    fn attach(&self, core: CoreHandle) {
        if self.connections.attach(&core) {
            for pools in [&self.connections.calls, &self.leases, &self.connections.renewals] {
                pools.warm_up(&core);
            }
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let (core, until) = (self.core()?, self.until());
        let slot = request.claim.slot::<Slot>();
        // The claim was refused after it had waited, and the keeper acquires again to get this error.
        if let Some(refusal) = slot.handle().and_then(|former| former.connection.take_refusal()) {
            return Err(refusal);
        }
        let (handle, ran_before) = slot.begin(|| self.start(core, request)).ok_or_else(Error::withdrawn)?;
        let mut phase = handle.phase.clone();
        let seen = async { phase.wait_for(|it| !matches!(it, Phase::Starting)).await.map(|seen| seen.clone()) };
        let seen = match timeout_at(until, seen).await {
            Ok(Ok(seen)) => seen,
            Ok(Err(_)) => return Err(Error::new(ErrorKind::Indeterminate, "the request was dropped")),
            Err(_) => {
                // The next acquire of this claim uses another connection, and a release ends this one.
                handle.abandon();
                return Err(match handle.connection.condemn() {
                    Some(_) => Failure::TimedOut.into(),
                    // Nothing was sent.
                    None => self.connections.shared.given_up(),
                });
            }
        };
        match seen {
            Phase::Held(token, confirmation) => {
                self.maintenance.acquired::<Self>(core);
                let confirmation = match ran_before {
                    false => confirmation,
                    // A repeated acquire: the lease is older than this request, and may be almost over.
                    true => renewed(&handle, request.ttl, until).await?,
                };
                Ok(AcquireOutcome::Granted(Grant::new(token, confirmation)))
            }
            Phase::Starting | Phase::Waiting => {
                let ttl = place_ttl(request.ttl);
                Ok(AcquireOutcome::Queued { confirmation: place(&handle, ttl, core.stamp()), retry_after: ttl })
            }
            Phase::Contended(retry_after) => Ok(AcquireOutcome::Contended { retry_after }),
            Phase::Failed(error) => Err(error),
            Phase::Ended => Err(ended()),
        }
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        let until = self.until();
        let core = match self.core() {
            Ok(core) => core,
            Err(error) => return replies.fail_rest(&error),
        };
        let (sender, mut renewed) = mpsc::unbounded_channel();
        let mut places = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            let Some(handle) = request.claim.slot::<Slot>().handle() else {
                replies.put(index, RenewReply::Lost);
                continue;
            };
            match handle.phase() {
                Phase::Held(..) => {
                    let command = Command::Renew { ttl: request.ttl, index, replies: sender.clone() };
                    if handle.commands.send(command).is_err() {
                        replies.put(index, RenewReply::Lost);
                    }
                }
                Phase::Waiting => places.push(Place { index, request, handle }),
                // Its acquire has no reply yet.
                Phase::Starting => replies.put(index, RenewReply::Unknown(Failure::TimedOut.into())),
                Phase::Failed(_) if handle.connection.is_refused() => replies.put(index, RenewReply::Free),
                Phase::Contended(_) | Phase::Failed(_) | Phase::Ended => replies.put(index, RenewReply::Lost),
            }
        }
        drop(sender);
        let take = async {
            while let Ok(Some((index, reply))) = timeout_at(until, renewed.recv()).await {
                replies.put(index, reply);
            }
        };
        tokio::join!(take, self.check_places(core, &places, replies, until));
        replies.fail_rest(&Failure::TimedOut.into());
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let (until, slot) = (self.until(), request.claim.slot::<Slot>());
        let handle = slot.leave(request.delivery);
        let phase = handle.as_ref().map_or(Phase::Ended, |handle| handle.phase());
        if request.delivery == Delivery::Confirmed {
            match (&handle, &phase) {
                (Some(handle), Phase::Held(..)) => {
                    let outcome = released(handle, until).await?;
                    slot.clear(handle);
                    return Ok(outcome);
                }
                (Some(_), Phase::Waiting | Phase::Starting) => {}
                _ => return Ok(ReleaseOutcome::NotHeld),
            }
        }
        // From here on, a statement of the claim may be in flight: it has to be cancelled, or its connection ended.
        let (stale, pool) = (slot.stale(), self.connections.calls.pool()?);
        let mut outcome = ReleaseOutcome::NotHeld;
        if let (Some(handle), Phase::Waiting) = (&handle, &phase)
            && self.cancel(handle, until).await?
        {
            outcome = ReleaseOutcome::Released;
        } else if let Some(handle) = &handle {
            let existed = match handle.connection.condemn() {
                // Before the task closes it. Afterwards the server could not say whether it existed.
                Some(endpoint) => fences::end(&pool, &endpoint, until).await,
                None => Ok(false),
            };
            handle.abandon();
            if existed? && matches!(phase, Phase::Held(..) | Phase::Waiting) {
                outcome = ReleaseOutcome::Released;
            }
        }
        // Connections of earlier tasks of this claim may still have locked the row.
        for endpoint in &stale {
            fences::end(&pool, endpoint, until).await?;
        }
        slot.forget_stale(&stale);
        if let Some(handle) = &handle {
            // An earlier call of release may have given up before its reply.
            if handle.connection.take_release() {
                outcome = ReleaseOutcome::Released;
            }
            slot.clear(handle);
        }
        Ok(outcome)
    }

    fn capabilities(&self) -> Capabilities {
        let mut it = Capabilities::new(BACKEND);
        it.clock = StoreClock::ServerMonotonic;
        it.ttl_granularity = SECOND;
        it.min_ttl = SECOND;
        it.ttl_scope = TtlScope::Connection;
        it.waiting = Waiting::ServerQueue;
        it.takeover_slack = self.connections.shared.settings.timeout;
        it.fencing = "the last token + 1, at least the server's time in µs; kept in a row of its own";
        it.restart = Restart::KeepsPersisted;
        it.call_bound = self.connections.shared.settings.timeout;
        it.renew_batch = 1_000;
        it.limits_of_exclusion = &[CUT, KILLED, FAILOVER, CRASH];
        it
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        None
    }
}

/// Renews the lease of a repeated acquire.
async fn renewed(handle: &Handle, ttl: Duration, until: Instant) -> Result<Confirmation> {
    let (replies, mut renewed) = mpsc::unbounded_channel();
    let _ = handle.commands.send(Command::Renew { ttl, index: 0, replies });
    match timeout_at(until, renewed.recv()).await {
        Ok(Some((_, RenewReply::Renewed(confirmation)))) => Ok(confirmation),
        Ok(Some((_, RenewReply::Granted(grant)))) => Ok(grant.confirmation),
        Ok(Some((_, RenewReply::Unknown(error)))) => Err(error),
        Ok(_) => Err(ended()),
        Err(_) => Err(Failure::TimedOut.into()),
    }
}

/// Ends the lease of a claim that holds.
async fn released(handle: &Handle, until: Instant) -> Result<ReleaseOutcome> {
    let (reply, done) = oneshot::channel();
    if handle.commands.send(Command::Release { reply }).is_err() {
        return Ok(ReleaseOutcome::NotHeld);
    }
    match timeout_at(until, done).await {
        Ok(Ok(Ok(true))) => Ok(ReleaseOutcome::Released),
        Ok(Ok(Ok(false))) => Ok(ReleaseOutcome::NotHeld),
        Ok(Ok(Err(failure))) => Err(failure.into()),
        // The task has ended, and the lease with it.
        Ok(Err(_)) => Ok(ReleaseOutcome::NotHeld),
        Err(_) => Err(Failure::TimedOut.into()),
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Lost, "the lease ended with its connection")
}

const CUT: &str = "the connection of a lease breaks, or somebody ends it: the server grants the lock to the next claim \
     at once, and the holder learns of it when it uses the connection again, within `keepalive` (3 s)";
const FAILOVER: &str =
    "an asynchronous failover promotes a replica: the former holders do not know that their leases have ended";
const CRASH: &str = "the server loses acknowledged writes in a crash (`innodb_flush_log_at_trx_commit` other than 1)";
const KILLED: &str = "the server is restarted under a lease, and the row of its token is removed or lost";
