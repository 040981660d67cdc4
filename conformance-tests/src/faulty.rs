//! Faults without a proxy or a server: a wrapper that injects faults into the path to any backend, or into its server.

mod faults;
mod gate;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::admin::{Check, ListedName, Listing};
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, Confirmation, CoreHandle, Event, Grant, LockBackend, NoAdmin,
    ReleaseOutcome, ReleaseRequest, RenewReplies, RenewReply, RenewRequest, Stamp, WatchNames,
};
use leasehold_core::{Error, ErrorKind, FencingToken, LockInfo, LockName, Result};

pub use self::faults::Faults;
use self::faults::Shared;
pub(crate) use self::faults::lock;
use self::gate::{Line, Verb};
use crate::fault::PathFault;
use crate::fixture::Route;

/// A backend with injected faults of the path and of the server, which [`Faults`] switches.
///
/// For a backend inside the process, such as the memory backend, this injects both path and server faults. Around a
/// backend with a real server it adds the faults that a proxy cannot inject.
///
/// Requests run separately from their calls, as at a server: they continue when the call is dropped or gives up. During
/// a fault, the stamp of a reply is at most the start of the call, because a delay on the path comes after the request
/// was sent.
pub struct Faulty<B: ?Sized> {
    faults: Arc<Shared>,
    route: Route,
    core: OnceLock<(u64, CoreHandle)>,
    inner: Arc<B>,
}

impl<B: LockBackend + ?Sized> Faulty<B> {
    pub(crate) fn new(faults: Arc<Shared>, route: Route, inner: Arc<B>) -> Self {
        Self { faults, route, core: OnceLock::new(), inner }
    }

    /// The latest stamp that the reply of a call may have if the call begins now. Without a fault there is no limit:
    /// the wrapper must not hide a backend that takes its stamps too late.
    fn latest_stamp(&self, line: &Line) -> Stamp {
        match self.core.get() {
            Some((_, core)) if !line.is_clear() => core.stamp(),
            _ => Stamp::ZERO.plus(Duration::MAX),
        }
    }

    fn line(&self) -> Line {
        // Gives up before the promised bound, so that a call on a busy machine still ends within it.
        Line::new(self.faults.clone(), self.route, self.inner.capabilities().call_bound * 3 / 4)
    }
}

impl<B: ?Sized> Drop for Faulty<B> {
    fn drop(&mut self) {
        if let Some((id, _)) = self.core.get() {
            self.faults.detached(*id);
        }
    }
}

#[async_trait]
impl<B: LockBackend + ?Sized> LockBackend for Faulty<B> {
    fn attach(&self, core: CoreHandle) {
        let _ = self.core.set((self.faults.attached(self.route, &core), core.clone()));
        let (faults, route) = (self.faults.clone(), self.route);
        self.inner.attach(core.clone().with_events(move |event| push(&faults, route, &core, event)));
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let (inner, request, faults) = (self.inner.clone(), request.clone(), self.faults.clone());
        let line = self.line();
        let sent = self.latest_stamp(&line);
        let call = move || {
            let (inner, request, faults) = (inner.clone(), request.clone(), faults.clone());
            async move {
                faults.check_record(request.claim.name())?;
                inner.acquire(&request).await
            }
        };
        Ok(match line.call(Verb::Acquire, call).await?? {
            AcquireOutcome::Granted(grant) => AcquireOutcome::Granted(sent_by(grant, sent)),
            AcquireOutcome::Queued { confirmation, retry_after } => {
                AcquireOutcome::Queued { confirmation: not_after(confirmation, sent), retry_after }
            }
            other => other,
        })
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        let (inner, faults) = (self.inner.clone(), self.faults.clone());
        let line = self.line();
        let sent = self.latest_stamp(&line);
        let requests: Arc<[RenewRequest]> = requests.into();
        let call = move || {
            let (inner, faults, requests) = (inner.clone(), faults.clone(), requests.clone());
            async move { renew_readable(&*inner, &faults, &requests).await }
        };
        match line.call(Verb::Renew, call).await {
            Ok(collected) => {
                for (index, reply) in collected {
                    let reply = match reply {
                        RenewReply::Renewed(confirmation) => RenewReply::Renewed(not_after(confirmation, sent)),
                        RenewReply::Granted(grant) => RenewReply::Granted(sent_by(grant, sent)),
                        RenewReply::Waiting { confirmation, retry_after } => {
                            RenewReply::Waiting { confirmation: not_after(confirmation, sent), retry_after }
                        }
                        other => other,
                    };
                    replies.put(index, reply);
                }
            }
            Err(error) => replies.fail_rest(&error),
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let (inner, request, faults) = (self.inner.clone(), request.clone(), self.faults.clone());
        let call = move || {
            let (inner, request, faults) = (inner.clone(), request.clone(), faults.clone());
            async move {
                faults.check_record(request.claim.name())?;
                inner.release(&request).await
            }
        };
        self.line().call(Verb::Release, call).await?
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        self.inner.watch_names()
    }
}

#[async_trait]
impl<B: LockBackend + ?Sized> Admin for Faulty<B> {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockInfo>> {
        self.inner.admin().unwrap_or(&NoAdmin).inspect(name).await
    }

    /// Lists corrupted records as unreadable.
    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing> {
        let mut listing = self.inner.admin().unwrap_or(&NoAdmin).list(prefix, limit).await?;
        let readable =
            |name: &ListedName| !matches!(name, ListedName::Whole(name) if self.faults.check_record(name).is_err());
        let (locks, spoilt): (Vec<_>, Vec<_>) = listing.locks.into_iter().partition(|lock| readable(&lock.name));
        listing.locks = locks;
        listing.unreadable.extend(spoilt.into_iter().map(|lock| lock.name));
        Ok(listing)
    }

    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>> {
        self.inner.admin().unwrap_or(&NoAdmin).break_lock(name, token).await
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        self.inner.admin().unwrap_or(&NoAdmin).examine().await
    }
}

/// Renews the leases whose records the server can read. The outcome of the others is unknown.
async fn renew_readable<B: LockBackend + ?Sized>(
    inner: &B,
    faults: &Shared,
    requests: &[RenewRequest],
) -> Vec<(usize, RenewReply)> {
    let mut collected = Vec::with_capacity(requests.len());
    let mut readable = Vec::with_capacity(requests.len());
    let mut indexes = Vec::with_capacity(requests.len());
    for (index, request) in requests.iter().enumerate() {
        match faults.check_record(request.claim.name()) {
            Ok(()) => {
                readable.push(request.clone());
                indexes.push(index);
            }
            Err(error) => collected.push((index, RenewReply::Unknown(error))),
        }
    }
    if !readable.is_empty() {
        let replies = renew_collected(inner, &readable).await;
        collected.extend(replies.into_iter().map(|(readable, reply)| (indexes[readable], reply)));
    }
    collected
}

/// Renews and returns all replies together.
pub(crate) async fn renew_collected<B: LockBackend + ?Sized>(
    backend: &B,
    requests: &[RenewRequest],
) -> Vec<(usize, RenewReply)> {
    let collected = Arc::new(Mutex::new(Vec::with_capacity(requests.len())));
    let replies = RenewReplies::new(requests.len(), {
        let collected = collected.clone();
        move |index, reply| lock(&collected).push((index, reply))
    });
    backend.renew(requests, &replies).await;
    drop(replies);
    std::mem::take(&mut *lock(&collected))
}

fn not_after(mut confirmation: Confirmation, sent: Stamp) -> Confirmation {
    confirmation.sent = confirmation.sent.min(sent);
    confirmation
}

fn sent_by(mut grant: Grant, sent: Stamp) -> Grant {
    grant.confirmation = not_after(grant.confirmation, sent);
    grant
}

fn push(faults: &Arc<Shared>, route: Route, core: &CoreHandle, event: Event) {
    match faults.path_of(route) {
        None | Some(PathFault::Hold | PathFault::Double) => core.event(event),
        Some(PathFault::Disconnect | PathFault::DropTraffic | PathFault::LoseReplies | PathFault::LosePushes) => {}
        Some(PathFault::Delay(delay)) => {
            let core = core.clone();
            faults.runtime().spawn(async move {
                tokio::time::sleep(delay).await;
                core.event(event);
            });
        }
    }
}

fn unreadable(name: &LockName) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the stored record of lock {name:?} is not one of this version"))
}
