//! A share in a lease, in the hands of its holder.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::backend::RenewRequest;
use crate::client::{Shared, on_tokio};
use crate::error::{Error, Result};
use crate::keeper::Hold;
use crate::keeper::Phase;
use crate::loss::Loss;
use crate::name::LockName;
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
    // The hold goes before the client, so that the release is on its way when the client may end.
    hold: Hold,
    client: Arc<Shared>,
}

impl LockGuard {
    pub(crate) fn new(hold: Hold, client: Arc<Shared>) -> Self {
        Self { hold, client }
    }

    /// The lock.
    pub fn name(&self) -> &LockName {
        self.hold.lease().claim.name()
    }

    /// The token of this grant, higher than that of every grant before.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.lease().token
    }

    /// Whether the lease is valid now. This reads the clock and depends on no task, so the first call after any pause is right.
    pub fn is_held(&self) -> bool {
        self.hold.check().is_ok()
    }

    /// How long the lease stays valid without another renewal; zero when it is lost.
    pub fn validity(&self) -> Duration {
        self.hold.validity()
    }

    /// Waits until the lease is lost, and returns the reason. It does not end while the lock is held.
    ///
    /// The keeper reports the loss at the latest 5 ms after the validity has passed while the process runs, and at once
    /// when the store replies that the lease is gone. Every call returns the same loss.
    ///
    /// # Cancel safety
    /// This future changes nothing. It may be dropped, and `lost` called again.
    pub async fn lost(&self) -> Loss {
        loop {
            let mut ended = pin!(self.hold.lease().ended.notified());
            ended.as_mut().enable();
            match self.hold.check() {
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
            Poll::Ready(match self.hold.check() {
                Err(Phase::Lost(loss)) => Err(self.lost_error(loss)),
                _ => Ok(output),
            })
        })
        .await
    }

    fn lost_error(&self, loss: Loss) -> Error {
        Error::from(loss).during("keep", self.name(), self.client.keeper.capabilities().backend)
    }

    /// Ends the lease and waits for the store's reply. Renewal stops first, whatever the reply is. While other guards of the same holder
    /// exist, or within `min_hold`, the lease continues.
    ///
    /// # Errors
    /// - [`Lost`](crate::ErrorKind::Lost): the lease was lost before. Another client may have held the lock since.
    /// - [`Indeterminate`](crate::ErrorKind::Indeterminate) or [`Unavailable`](crate::ErrorKind::Unavailable): the outcome
    ///   is unknown. The keeper repeats the release in the background, and the lease ends by its ttl at the latest. If that finds no
    ///   lease, [`shutdown`](crate::LockClient::shutdown) returns `Lost`.
    /// - [`InvalidInput`](crate::ErrorKind::InvalidInput): called on a tokio runtime without timers
    ///   (`enable_time`). The release is sent in the background.
    ///
    /// It ends within 1.25 times the backend's call bound.
    ///
    /// # Cancel safety
    /// If this future is dropped, the release continues in the background.
    pub async fn release(self) -> Result<()> {
        let Self { hold, client } = self;
        on_tokio(client.keeper.home(), hold.release()).await
    }

    /// The claim, place and ttl by which a backend identifies this lease, for fenced writes.
    pub fn lease_ref(&self) -> RenewRequest {
        self.hold.lease().lease_ref()
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
