//! The guard of a lease: its holder's view of it, and its release.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::lease::Lease;
use super::machines::disposal::Ending;
use super::machines::held_lease::Phase;
use super::report::Reports;
use super::{KeeperHandle, LeaseKeeper, State};
use crate::backend::{Claim, RenewRequest};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::loss::Loss;
use crate::name::LockName;
use crate::run_to_end::{Abandoned, RunToEnd};
use crate::sync::lock;
use crate::terms::Terms;
use crate::timers::{before, on_tokio, timer};
use crate::token::FencingToken;

/// A lock that is held until the guard is released or dropped, or the lease is lost. The lease keeper renews the lease.
///
/// **Release on drop is best effort.** Drop sends the release in the background and does not wait. If the process exits
/// right after, the lease ends by its ttl. [`release`](Self::release) waits for the store's reply.
///
/// **A guard is not proof.** The process can be paused between [`is_held`](Self::is_held) and the next line. Send the
/// [`fencing_token`](Self::fencing_token) with each write, and let the resource refuse lower tokens.
#[must_use = "a guard that is dropped at once releases at once: bind it to a name, not to `_`"]
pub struct LockGuard {
    keeper: Arc<KeeperHandle>,
    lease: Arc<Lease>,
    /// Not yet released.
    is_open: bool,
}

impl LockGuard {
    pub(super) fn new(keeper: Arc<KeeperHandle>, lease: Arc<Lease>) -> Self {
        lock(&lease.machine).add_guard();
        Self { keeper, lease, is_open: true }
    }

    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        self.lease.claim.name()
    }

    /// The token of this grant, higher than the token of every earlier grant of this lock.
    pub fn fencing_token(&self) -> FencingToken {
        self.lease.token
    }

    /// Whether the lease is valid now. This reads the clock and depends on no task, so the first call after any pause
    /// is right.
    pub fn is_held(&self) -> bool {
        self.check().is_ok()
    }

    /// How long the lease stays valid without another renewal; zero when it is lost.
    pub fn validity(&self) -> Duration {
        self.check().map_or(Duration::ZERO, |valid_until| valid_until.since(self.keeper.now()))
    }

    /// The end of the validity, or how the lease ended. Reads the clock.
    fn check(&self) -> Result<Stamp, Phase> {
        let mut reports = Reports::default();
        let checked = self.keeper.check(&mut reports, &self.lease);
        reports.emit();
        checked
    }

    /// Waits until the lease is lost, and returns the reason. While the lock is held, it stays pending.
    ///
    /// While the process runs, the keeper reports the loss at most 5 ms after the validity has ended, and at once when
    /// the store replies that the lease is gone. Every call returns the same loss.
    ///
    /// # Cancel safety
    /// This future changes nothing. It may be dropped, and `lost` called again.
    pub async fn lost(&self) -> Loss {
        loop {
            let mut ended = pin!(self.lease.ended.notified());
            ended.as_mut().enable();
            match self.check() {
                Err(Phase::Lost(loss)) => return loss,
                Ok(_) | Err(Phase::Held | Phase::Released) => ended.await,
            }
        }
    }

    /// Runs work while the lease is valid. The work is dropped at its current await when the lease is lost.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost). Work that does not await is not interrupted. If it ends after the lease was
    /// lost, the result is `Lost` too.
    ///
    /// # Cancel safety
    /// If this future is dropped, it drops the work. The lease is unchanged.
    pub async fn run<W: Future>(&self, work: W) -> Result<W::Output> {
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        std::future::poll_fn(|cx| {
            if let Poll::Ready(loss) = lost.as_mut().poll(cx) {
                return Poll::Ready(Err(self.lost_error(loss)));
            }
            let Poll::Ready(output) = work.as_mut().poll(cx) else { return Poll::Pending };
            Poll::Ready(match self.check() {
                Err(Phase::Lost(loss)) => Err(self.lost_error(loss)),
                _ => Ok(output),
            })
        })
        .await
    }

    fn lost_error(&self, loss: Loss) -> Error {
        Error::from(loss).during("keep", self.name(), self.keeper.capabilities.backend)
    }

    /// Ends the lease and waits for the store's reply. Renewal stops first, whatever the reply is. While other guards
    /// of the same holder exist, or within `min_hold`, the lease continues.
    ///
    /// # Errors
    /// - [`Lost`](crate::ErrorKind::Lost): the lease was lost before. Another client may have held the lock since.
    /// - [`Unavailable`](crate::ErrorKind::Unavailable): the store was not reached.
    ///   [`Indeterminate`](crate::ErrorKind::Indeterminate): the outcome is unknown. In both cases the keeper repeats the
    ///   release in the background, and the lease ends by its ttl at the latest. If that finds no lease,
    ///   [`shutdown`](crate::LockClient::shutdown) returns `Lost`.
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): called on a tokio runtime without timers
    ///   (`enable_time`). The release is sent in the background.
    ///
    /// It ends within 1.25 times the backend's call bound.
    ///
    /// # Cancel safety
    /// If this future is dropped, the release continues in the background.
    pub async fn release(self) -> Result<()> {
        let keeper = self.keeper.clone();
        on_tokio(keeper.home(), self.release_on_tokio()).await
    }

    async fn release_on_tokio(mut self) -> Result<()> {
        // Without timers, this returns and drops the guard, which releases the lease in the background.
        let timer = timer(self.keeper.call_bound())?;
        self.is_open = false;
        let keeper: &Arc<LeaseKeeper> = &self.keeper;
        let (name, backend) = (self.lease.claim.name(), keeper.capabilities.backend);
        // Opened before the lease counts as released, so that a shutdown at the same time waits for this release. If
        // the caller drops it, `AbandonedRelease` adds a disposal, for which the shutdown waits too.
        let _open = keeper.clone().open_call();
        let released = keeper.drop_guard(&self.lease);
        let Some(ending) = released.map_err(|loss| Error::from(loss).during("release", name, backend))? else {
            return Ok(());
        };
        let abandoned = AbandonedRelease {
            keeper: keeper.clone(),
            claim: self.lease.claim.clone(),
            ending: ending.in_doubt(),
            overdue: keeper.now().plus(keeper.call_bound()),
        };
        let call = RunToEnd::new(keeper.home(), keeper.clone().end_now(self.lease.claim.clone(), ending), abandoned);
        before(timer, call).await.unwrap_or_else(|| {
            let text = "the store has not replied yet; the release continues in the background, and the lease ends by \
                 its ttl at the latest";
            Err(Error::new(ErrorKind::Indeterminate, text).during("release", name, backend))
        })
    }

    /// The claim, place and ttl by which a backend identifies this lease, for fenced writes.
    pub fn lease_ref(&self) -> RenewRequest {
        let machine = lock(&self.lease.machine);
        RenewRequest::new(self.lease.claim.clone(), machine.place(), machine.terms().ttl)
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !std::mem::replace(&mut self.is_open, false) {
            return;
        }
        // Between `drop_guard` and `end`, the lease is neither held nor being ended. The open call keeps a shutdown at
        // the same time from returning in that gap.
        let keeper: &Arc<LeaseKeeper> = &self.keeper;
        let _open = keeper.clone().open_call();
        if let Ok(Some(ending)) = keeper.drop_guard(&self.lease) {
            keeper.with_state(|state, _| keeper.end(state, &self.lease.claim, ending));
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", self.name())
            .field("fencing_token", &self.fencing_token())
            .finish_non_exhaustive()
    }
}

/// A release whose caller has dropped it. Its call may be on a runtime that nothing drives any more, so the keeper
/// sends another release when this one is overdue.
struct AbandonedRelease {
    keeper: Arc<LeaseKeeper>,
    claim: Claim,
    ending: Ending,
    overdue: Stamp,
}

impl Abandoned for AbandonedRelease {
    fn begins(&self) {
        self.keeper.with_state(|state, _| {
            self.keeper.end_when_overdue(state, &self.claim, self.ending, self.overdue);
        });
    }

    fn ended(self) {
        self.keeper.with_state(|state, _| self.keeper.call_ended(state, self.claim.owner()));
    }
}

impl KeeperHandle {
    /// Re-entry: another guard of the lease that this holder has, if it has one.
    pub(super) fn reenter(
        self: &Arc<Self>,
        state: &mut State,
        name: &LockName,
        terms: &Terms,
    ) -> Result<Option<LockGuard>> {
        let Some(holder) = terms.holder else { return Ok(None) };
        let Some(lease) = state.reentrant.get(&(name.clone(), holder)) else { return Ok(None) };
        if self.check(&mut state.reports, lease).is_err() {
            return Ok(None);
        }
        let mut machine = lock(&lease.machine);
        machine.terms().require_same_lease(terms)?;
        if !machine.share() {
            return Ok(None);
        }
        Ok(Some(LockGuard { keeper: self.clone(), lease: lease.clone(), is_open: true }))
    }
}

impl LeaseKeeper {
    /// Removes a guard. The last one releases the lease. Returns how to end the claim, or `None` if it does not end
    /// now.
    fn drop_guard(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<Option<Ending>, Loss> {
        if !lock(&lease.machine).drop_guard() {
            return Ok(None);
        }
        self.with_state(|state, effects| {
            self.feed_lease(state, effects, lease, |lease, rules, now, out| lease.release(rules, now, out))
        })
    }
}
