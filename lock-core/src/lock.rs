//! A lock by name, with the options of the next acquire.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::backend::{LeaseKind, Mode, OnContention};
use crate::error::{Error, ErrorKind, Result};
use crate::holder_id::HolderId;
use crate::keeper::{Entry, KeeperHandle, LeaseKeeper, LockGuard};
use crate::name::LockName;
use crate::run_to_end::RunToEnd;
use crate::terms::Terms;
use crate::timers::{before, elsewhere, is_on_tokio, timer};
use crate::token::FencingToken;

/// A lock by name, with the options of the next acquire. It sends nothing until it is acquired.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    keeper: Arc<KeeperHandle>,
    name: Result<LockName>,
    wait: Duration,
    terms: Terms,
}

impl Lock {
    pub(crate) fn new(keeper: Arc<KeeperHandle>, name: Result<LockName>, ttl: Duration, wait: Duration) -> Self {
        let terms =
            Terms { mode: Mode::default(), ttl, kind: LeaseKind::Kept, max_hold: None, min_hold: None, holder: None };
        Self { keeper, name, wait, terms }
    }

    /// How the lock is held, [`Mode::Exclusive`] by default. An acquire in a mode that is not in
    /// [`Capabilities::modes`](crate::backend::Capabilities) fails with [`Unsupported`](ErrorKind::Unsupported) before
    /// anything is sent.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.terms.mode = mode;
        self
    }

    /// How long the lease lasts unless it is renewed, and so how long a holder that died blocks the others. The
    /// backend's [`Capabilities`](crate::backend::Capabilities) give its bounds, and the granularity that it is rounded
    /// up to.
    ///
    /// A lease that had to wait in a server's queue begins with what is left of its place (at most
    /// [`max_place_ttl`](crate::backend::Capabilities::max_place_ttl)). The keeper renews it to the whole ttl 100 ms
    /// after the grant, or earlier when little is left.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.terms.ttl = ttl;
        self
    }

    /// How long an acquire may take in all, connecting included. With zero, it makes one attempt and does not queue.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// A fixed lease: the keeper does not renew it, and it ends after its ttl. A lease that had to wait in a server's
    /// queue begins with what is left of its place, and the keeper renews it once to its own ttl, 100 ms after the
    /// grant or earlier.
    pub fn without_renewal(mut self) -> Self {
        self.terms.kind = LeaseKind::Fixed;
        self
    }

    /// The longest hold, counted from the grant. It ends the hold of work that hangs in a process that lives.
    ///
    /// lock-core requests the lease with the smaller of its ttl and `max_hold`, and each renewal requests no more than
    /// what is left of `max_hold`. So the holder receives [`MaxHold`](crate::LossReason::MaxHold) at that time, or
    /// earlier by at most the margin of the ttl. At the store, the lease ends at that time too, or later by the time
    /// for which the last renewal was in flight, plus the rounding of a ttl. It never ends before the store's shortest
    /// ttl ([`min_ttl`](crate::backend::Capabilities::min_ttl)) has passed. Where leases share a session
    /// ([`TtlScope::Session`](crate::backend::TtlScope::Session)) or have a connection of their own
    /// ([`TtlScope::Connection`](crate::backend::TtlScope::Connection)), the keeper releases the lease when the hold
    /// has ended.
    ///
    /// A place in a server's queue is requested with the same ttl, so a waiter with a short `max_hold` renews more
    /// often. [`min_hold`](Self::min_hold) is at most `max_hold`.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.terms.max_hold = Some(max_hold);
        self
    }

    /// The shortest hold: after an earlier release, other clients see the lock as held until this long after the grant.
    /// Use it for a job that ends in 10 ms and must not run again on a host whose clock is 2 s behind.
    ///
    /// If the outcome of a request of the claim is unknown, the keeper also withdraws the claim at the end of
    /// `min_hold`, so that a late copy of the request has no effect. If the process exits before that, a lease that a
    /// late copy takes ends by its ttl.
    ///
    /// Where leases share a session ([`TtlScope::Session`](crate::backend::TtlScope::Session)) or have a connection of
    /// their own ([`TtlScope::Connection`](crate::backend::TtlScope::Connection)), the store cannot let a single lease
    /// expire. The keeper renews it until then, even after a [shutdown](crate::LockClient::shutdown), and then releases
    /// it. If the process ends before that, the lease ends by the ttl of the session, or at once with the connection.
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.terms.min_hold = Some(min_hold);
        self
    }

    /// Re-entry: acquires with the same holder on the same client share one lease and one token. The lease ends with
    /// the last guard. The acquires must agree in ttl, kind of renewal, `max_hold` and `min_hold`. One that does not
    /// agree fails with [`InvalidInput`](ErrorKind::InvalidInput).
    pub fn holder(mut self, holder: HolderId) -> Self {
        self.terms.holder = Some(holder);
        self
    }

    /// Waits for the lock and acquires it.
    ///
    /// # Errors
    /// - [`Timeout`](ErrorKind::Timeout): another claim held the lock for the whole wait. This is based on a request
    ///   sent within the last 1.25 × [`call_bound`](crate::backend::Capabilities::call_bound) of the wait.
    /// - [`Unavailable`](ErrorKind::Unavailable): the store could not be reached during the wait. The acquire had no
    ///   effect.
    /// - [`Indeterminate`](ErrorKind::Indeterminate): the outcome is unknown. The caller does not hold the lock, but
    ///   others may see it as held until the keeper has withdrawn the claim in the background, or its ttl has passed.
    /// - [`InvalidInput`](ErrorKind::InvalidInput): a name or duration out of bounds, a ttl that this server does not
    ///   grant, or a tokio runtime without timers (`enable_time`). Nothing was acquired.
    /// - [`Auth`](ErrorKind::Auth), [`Capacity`](ErrorKind::Capacity), [`Unsupported`](ErrorKind::Unsupported): at
    ///   once, because waiting does not help. A limit that passes by itself, such as too many connections to the
    ///   server, is `Capacity` only at the end of the wait.
    ///
    /// It ends within the wait or, with a wait of zero, within 1.25 times the backend's call bound.
    ///
    /// # Cancel safety
    /// If this future is dropped at any await, the claim neither holds nor waits afterwards: a request in flight is
    /// completed in the background, and the claim is withdrawn.
    pub async fn acquire(&self) -> Result<LockGuard> {
        let on_contention = if self.wait.is_zero() { OnContention::Fail } else { OnContention::Queue };
        self.begin(on_contention).await
    }

    /// Tries once, without waiting. Returns `None` if another claim holds the lock or waits for it.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), except for `Timeout`. It ends within 1.25 times the backend's call bound.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        match self.begin(OnContention::Fail).await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.kind() == ErrorKind::Timeout => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Acquires the lock, runs the work, and releases the lock. The work gets the fencing token. It is dropped at its
    /// current await when the lease is lost.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`Lost`](ErrorKind::Lost) if the lease was lost before the work ended or
    /// before its release. A release whose outcome is unknown is not an error here, because the work is done.
    ///
    /// # Cancel safety
    /// If this future is dropped, it drops the work, and the lock is released in the background.
    pub async fn run<F, W>(&self, work: F) -> Result<W::Output>
    where
        F: FnOnce(FencingToken) -> W,
        W: Future,
    {
        let guard = self.acquire().await?;
        let output = guard.run(work(guard.fencing_token())).await?;
        match guard.release().await {
            Err(error) if error.kind() == ErrorKind::Lost => Err(error),
            _ => Ok(output),
        }
    }

    async fn begin(&self, on_contention: OnContention) -> Result<LockGuard> {
        let name = self.name.clone()?;
        let keeper = &self.keeper;
        let backend = keeper.capabilities().backend;
        keeper.count_acquire();
        let acquired = match self.check(&name, on_contention) {
            Ok(terms) => {
                let wait = if on_contention == OnContention::Fail { keeper.call_bound() } else { self.wait };
                if is_on_tokio() {
                    acquire(keeper, &name, terms, on_contention, wait).await
                } else {
                    let (own, name) = (keeper.clone(), name.clone());
                    elsewhere(keeper.home(), async move { acquire(&own, &name, terms, on_contention, wait).await })
                        .await
                }
            }
            Err(error) => Err(error),
        };
        keeper.count_outcome(acquired.as_ref().err());
        acquired.map_err(|error| error.during("acquire", &name, backend))
    }

    /// The terms of an acquire, checked. The ttl is no longer than `max_hold`, if the store has ttls that short.
    fn check(&self, name: &LockName, on_contention: OnContention) -> Result<Terms> {
        let capabilities = self.keeper.capabilities();
        let Terms { mode, ttl, max_hold, min_hold, .. } = self.terms;
        if !capabilities.modes.contains(&mode) {
            return Err(Error::new(ErrorKind::Unsupported, format!("this backend has no locks in mode {mode:?}")));
        }
        if ttl < capabilities.min_ttl || ttl > capabilities.max_ttl {
            return Err(Error::invalid(format!(
                "the ttl must be between {:?} and {:?} on this backend (got {ttl:?})",
                capabilities.min_ttl, capabilities.max_ttl
            )));
        }
        if max_hold.is_some_and(|max| max.is_zero()) {
            return Err(Error::invalid("max_hold must not be zero"));
        }
        if let Some(min) = min_hold.filter(|min| *min > capabilities.max_ttl) {
            let longest = capabilities.max_ttl;
            return Err(Error::invalid(format!("min_hold must be at most {longest:?} on this backend (got {min:?})")));
        }
        if let (Some(min), Some(max)) = (min_hold, max_hold)
            && min > max
        {
            return Err(Error::invalid(format!("min_hold ({min:?}) must not be longer than max_hold ({max:?})")));
        }
        tracing::trace!(lock = %name, ?ttl, ?on_contention, "acquire");
        let longest = max_hold.map_or(ttl, |max| max.max(capabilities.min_ttl));
        Ok(Terms { ttl: capabilities.round_up(ttl.min(longest)), ..self.terms })
    }
}

async fn acquire(
    handle: &Arc<KeeperHandle>,
    name: &LockName,
    terms: Terms,
    on_contention: OnContention,
    wait: Duration,
) -> Result<LockGuard> {
    let keeper: &Arc<LeaseKeeper> = handle;
    // Before anything can be sent, so that an acquire on a runtime without timers has no effect.
    let timer = timer(wait)?;
    let (mut ticket, first) = match handle.enter(name, terms, on_contention, wait)? {
        Entry::Shared(guard) => return Ok(guard),
        Entry::Refused => {
            return Err(Error::new(
                ErrorKind::Timeout,
                "another acquire of this client holds the lock or waits for it",
            ));
        }
        Entry::Queued(ticket, first) => (ticket, first),
    };
    let waited = {
        let mut attempt = first.map(|first| RunToEnd::new(keeper.home(), keeper.clone().attempt(first), ()));
        let answered = poll_fn(|cx| {
            // The attempt itself sends the outcome, and would wake this task, which costs another turn on the runtime.
            // So this poll registers no waker, and the outcome is polled again after the attempt. It may be known
            // before that, as at a shutdown.
            if attempt.is_some()
                && let Poll::Ready(known) = ticket.poll_outcome(&mut Context::from_waker(Waker::noop()))
            {
                return Poll::Ready(known);
            }
            if attempt.as_mut().is_some_and(|attempt| Pin::new(attempt).poll(cx).is_ready()) {
                attempt = None;
            }
            ticket.poll_outcome(cx)
        });
        before(timer, answered).await
    };
    match waited {
        Some(Some(outcome)) => outcome,
        Some(None) | None => ticket.time_is_up(),
    }
}
