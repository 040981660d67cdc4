//! The network between a client and the store: late, lost and duplicated messages, and backends that break their
//! promises.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::kit::Attachment;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, Claim, Confirmation, CoreHandle, Delivery, Event, Grant,
    LockBackend, ReleaseOutcome, ReleaseRequest, RenewReplies, RenewReply, RenewRequest, Stamp, WatchNames,
};
use leasehold_core::memory::MemoryBackend;
use leasehold_core::{Error, ErrorKind, FencingToken, Result};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::oracle::id;
use super::process::Process;
use super::{Sabotage, World};

/// How the network treats messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    /// In a thousand, each way.
    pub(crate) lost: u32,
    /// In a thousand; a late message takes up to [`LATEST`].
    pub(crate) late: u32,
    /// In a thousand.
    pub(crate) doubled: u32,
}

impl Network {
    pub(crate) const QUIET: Self = Self { lost: 0, late: 0, doubled: 0 };
}

/// The longest time that a message is in flight. It is shorter than a tombstone lasts.
pub(crate) const LATEST: Duration = Duration::from_secs(45);

/// The greatest latency of a quiet network, one way.
pub(crate) const QUIET_LATENCY: Duration = Duration::from_millis(4);

pub(crate) const CALL_BOUND: Duration = Duration::from_secs(2);

/// A memory backend at the other end of a network.
pub(crate) struct Wire {
    world: Arc<World>,
    process: Arc<Process>,
    inner: Arc<MemoryBackend>,
    core: Attachment,
}

type Reply<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Wire {
    pub(crate) fn new(world: &Arc<World>, process: &Arc<Process>) -> Self {
        let inner = Arc::new(MemoryBackend::new(&world.store));
        Self { world: world.clone(), process: process.clone(), inner, core: Attachment::new() }
    }

    fn sabotaged(&self, sabotage: Sabotage) -> bool {
        self.world.sabotage == Some(sabotage)
    }

    fn stamp(&self) -> Stamp {
        self.core.get().expect("attached").stamp()
    }

    /// Sends a request and waits for its reply, within the bound.
    async fn call<T: Send + 'static>(&self, request: impl Fn() -> Reply<T> + Send + Sync + 'static) -> Result<T> {
        self.process.awake().await;
        if self.process.is_cut() && self.world.chance().permille(500) {
            return Err(Error::new(ErrorKind::Unavailable, "refused"));
        }
        let (there, back) = (self.world.latency(), self.world.latency());
        let again = self.world.doubles().then(|| self.world.latency()).flatten();
        let (answer, answered) = oneshot::channel();
        let mut silent = None;
        let request = Arc::new(request);
        if let Some(there) = there {
            let (request, process, world) = (request.clone(), self.process.clone(), self.world.clone());
            tokio::spawn(async move {
                sleep(there).await;
                if process.is_cut() {
                    return;
                }
                world.works().await;
                let reply = request().await;
                if let Some(back) = back {
                    sleep(back).await;
                    process.awake().await;
                    if !process.is_cut() {
                        let _ = answer.send(reply);
                    }
                }
            });
        } else {
            silent = Some(answer);
        }
        if let Some(again) = again {
            let world = self.world.clone();
            tokio::spawn(async move {
                sleep(again).await;
                world.works().await;
                request().await;
            });
        }
        let outcome = timeout(CALL_BOUND, answered).await;
        drop(silent);
        self.process.awake().await;
        match outcome {
            Ok(Ok(reply)) => Ok(reply),
            // The connection broke, or no reply came.
            Ok(Err(_)) | Err(_) => Err(Error::new(ErrorKind::Indeterminate, "no reply")),
        }
    }

    fn confirm(&self, claim: &Claim, confirmation: &mut Confirmation, sent: Stamp) {
        confirmation.sent = if self.sabotaged(Sabotage::StampsTakenLate) { self.stamp() } else { sent };
        self.world.oracle.confirmed(claim.owner());
    }

    fn grant(&self, claim: &Claim, grant: &mut Grant, sent: Stamp) {
        self.confirm(claim, &mut grant.confirmation, sent);
        if self.sabotaged(Sabotage::TokensRepeat) {
            grant.token = grant.token.min(FencingToken::new(30));
        }
    }

    /// How long a waiter is told to wait until its next poll.
    fn retry_after(&self, retry_after: Duration) -> Duration {
        if self.sabotaged(Sabotage::NobodyIsWoken) { Duration::from_secs(3600) } else { retry_after }
    }

    fn rewrite(&self, lease: &RenewRequest, answer: RenewReply, sent: Stamp, begun: u64) -> RenewReply {
        let claim = &lease.claim;
        match answer {
            RenewReply::Renewed(mut confirmation) => {
                self.confirm(claim, &mut confirmation, sent);
                RenewReply::Renewed(confirmation)
            }
            RenewReply::Granted(mut grant) => {
                self.grant(claim, &mut grant, sent);
                RenewReply::Granted(grant)
            }
            RenewReply::Waiting { mut confirmation, retry_after } => {
                self.confirm(claim, &mut confirmation, sent);
                RenewReply::Waiting { confirmation, retry_after: self.retry_after(retry_after) }
            }
            RenewReply::Lost => {
                self.world.oracle.reported_gone(claim.owner(), begun);
                if self.sabotaged(Sabotage::LossIsHidden) {
                    return RenewReply::Renewed(Confirmation { ttl: lease.ttl, sent, place: lease.place });
                }
                RenewReply::Lost
            }
            other => other,
        }
    }
}

#[async_trait]
impl LockBackend for Wire {
    fn attach(&self, core: CoreHandle) {
        let (world, process) = (self.world.clone(), self.process.clone());
        self.core.attach(core.clone());
        self.process.begins(&core);
        self.inner.attach(core.clone().with_events(move |event| push(&world, &process, &core, event)));
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let AcquireRequest { ref claim, ttl, .. } = *request;
        let (sent, owner) = (self.stamp(), *claim.owner());
        let oracle = &self.world.oracle;
        oracle.acquire_begins(claim, ttl, &self.process);
        oracle.note("acquire", id(&owner), ttl.as_millis() as u64);
        let outcome = self
            .call({
                let (inner, request, world) = (self.inner.clone(), request.clone(), self.world.clone());
                move || {
                    let (inner, request, world) = (inner.clone(), request.clone(), world.clone());
                    Box::pin(async move {
                        let answer = inner.acquire(&request).await;
                        world.oracle.acquire_served(request.claim.owner(), &answer);
                        answer
                    })
                }
            })
            .await;
        if outcome.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::Unavailable) {
            oracle.acquire_answered(&owner);
        }
        let mut answer = outcome.and_then(|answer| answer);
        oracle.note("acquire answered", id(&owner), answer_code(&answer));
        match &mut answer {
            Ok(AcquireOutcome::Granted(grant)) => self.grant(claim, grant, sent),
            Ok(AcquireOutcome::Queued { confirmation, retry_after }) => {
                if self.sabotaged(Sabotage::WaitersAreGranted) {
                    let token = FencingToken::new(1_000_000 + confirmation.place.get());
                    return Ok(AcquireOutcome::Granted(Grant::new(token, Confirmation { sent, ..*confirmation })));
                }
                self.confirm(claim, confirmation, sent);
                *retry_after = self.retry_after(*retry_after);
            }
            _ => {}
        }
        answer
    }

    async fn renew(&self, leases: &[RenewRequest], replies: &RenewReplies) {
        let sent = self.stamp();
        let oracle = &self.world.oracle;
        let begun = oracle.steps();
        for lease in leases {
            oracle.renewal_begins(lease);
            oracle.note("renew", id(lease.claim.owner()), lease.place.get());
        }
        if self.sabotaged(Sabotage::RenewalsAreInvented) {
            for (index, lease) in leases.iter().enumerate() {
                replies.put(index, RenewReply::Renewed(Confirmation { ttl: lease.ttl, sent, place: lease.place }));
            }
            return;
        }
        let outcome = self
            .call({
                let (inner, leases) = (self.inner.clone(), Arc::<[RenewRequest]>::from(leases));
                move || {
                    let (inner, leases) = (inner.clone(), leases.clone());
                    Box::pin(async move { renew_collected(&inner, &leases).await })
                }
            })
            .await;
        match outcome {
            Err(error) => {
                if error.kind() == ErrorKind::Unavailable {
                    leases.iter().for_each(|lease| oracle.renewal_answered(lease.claim.owner()));
                }
                replies.fail_rest(&error);
            }
            Ok(collected) => {
                for (index, answer) in collected {
                    // Some of the replies may be lost.
                    if !self.world.loses() {
                        let lease = &leases[index];
                        let invented = self.sabotaged(Sabotage::LossIsInvented) && self.world.chance().permille(50);
                        let answer = if invented { RenewReply::Lost } else { answer };
                        oracle.note("renew answered", id(lease.claim.owner()), renewal_code(&answer));
                        oracle.renewal_answered(lease.claim.owner());
                        replies.put(index, self.rewrite(lease, answer, sent, begun));
                    }
                }
            }
        }
    }

    async fn release(&self, ReleaseRequest { claim, delivery, .. }: &ReleaseRequest) -> Result<ReleaseOutcome> {
        if self.sabotaged(Sabotage::ClaimsAreAbandoned) {
            return Ok(ReleaseOutcome::Released);
        }
        let oracle = &self.world.oracle;
        let delivery = if self.sabotaged(Sabotage::UnsureIsForgotten) { Delivery::Confirmed } else { *delivery };
        oracle.note("release", id(claim.owner()), u64::from(delivery == Delivery::InDoubt));
        oracle.release_begins(claim.owner(), delivery, &self.process);
        if self.sabotaged(Sabotage::ReleasesAreNotSent) {
            return Ok(ReleaseOutcome::Released);
        }
        let kept = if self.sabotaged(Sabotage::NoTombstones) { Delivery::Confirmed } else { delivery };
        let outcome = self
            .call({
                let (inner, world) = (self.inner.clone(), self.world.clone());
                let request = ReleaseRequest::new(claim.clone(), kept);
                move || {
                    let (inner, request, world) = (inner.clone(), request.clone(), world.clone());
                    Box::pin(async move {
                        let answer = inner.release(&request).await;
                        world.oracle.release_served(request.claim.owner(), delivery);
                        answer
                    })
                }
            })
            .await;
        let answer = outcome.and_then(|answer| answer);
        oracle.note("release answered", id(claim.owner()), u64::from(answer.is_ok()));
        if answer.is_ok() {
            oracle.release_answered(claim.owner());
        }
        if self.sabotaged(Sabotage::ReleasesAreGivenUp) { Ok(ReleaseOutcome::NotHeld) } else { answer }
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.call_bound = CALL_BOUND;
        capabilities
    }

    fn admin(&self) -> Option<&dyn Admin> {
        self.inner.admin()
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        self.inner.watch_names()
    }
}

fn push(world: &Arc<World>, process: &Arc<Process>, core: &CoreHandle, event: Event) {
    if let Event::Granted { owner, token, .. } = &event {
        world.oracle.granted_by_store(owner, *token);
    }
    if world.sabotage == Some(Sabotage::NobodyIsWoken) {
        return;
    }
    let copies = 1 + u32::from(world.doubles());
    for _ in 0..copies {
        let Some(trip) = world.latency() else { continue };
        let (world, process, core, mut event) = (world.clone(), process.clone(), core.clone(), event.clone());
        tokio::spawn(async move {
            sleep(trip).await;
            process.awake().await;
            if process.is_cut() {
                return;
            }
            if let Event::Granted { owner, place, token, confirmation } = &mut event {
                world.oracle.note("pushed", id(owner), token.get());
                world.oracle.confirmed(owner);
                if world.sabotage == Some(Sabotage::PushesConfirm) {
                    let ttl = Duration::from_secs(10);
                    *confirmation = Some(Confirmation { ttl, sent: core.stamp(), place: *place });
                }
            }
            core.event(event);
        });
    }
}

async fn renew_collected(backend: &MemoryBackend, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
    let collected = Arc::new(Mutex::new(Vec::with_capacity(leases.len())));
    let replies = RenewReplies::new(leases.len(), {
        let collected = collected.clone();
        move |index, answer| collected.lock().expect("no panic while it is locked").push((index, answer))
    });
    backend.renew(leases, &replies).await;
    drop(replies);
    std::mem::take(&mut *collected.lock().expect("no panic while it is locked"))
}

fn answer_code(answer: &Result<AcquireOutcome>) -> u64 {
    match answer {
        Ok(AcquireOutcome::Granted(grant)) => 1000 + grant.token.get(),
        Ok(AcquireOutcome::Queued { .. }) => 1,
        Ok(_) => 2,
        Err(error) if error.kind() == ErrorKind::Unavailable => 3,
        Err(_) => 4,
    }
}

fn renewal_code(answer: &RenewReply) -> u64 {
    match answer {
        RenewReply::Renewed(_) => 0,
        RenewReply::Granted(grant) => 1000 + grant.token.get(),
        RenewReply::Waiting { .. } => 1,
        _ => 2,
    }
}
