//! The server of a connection, as a majority of the Sentinels named it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::Stamp;
use leasehold_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, timeout_at};

use super::naming::Address;
use super::sentinels::{Sentinels, ask};

#[derive(Clone)]
pub(crate) struct Primary {
    sentinels: Arc<Sentinels>,
    address: Address,
}

impl Primary {
    pub(crate) const fn new(sentinels: Arc<Sentinels>, address: Address) -> Self {
        Self { sentinels, address }
    }

    /// The time of a request that is about to be sent.
    pub(crate) fn now(&self) -> Stamp {
        self.sentinels.state.now()
    }

    /// Asks the Sentinels if a request for a lease of this ttl needs it. [`check`](Self::check) says whether they have
    /// named this server. Cancel safe.
    pub(crate) async fn ask(&self, ttl: Duration, until: Instant) {
        let state = &self.sentinels.state;
        self.ask_unless(|| !state.naming(|naming| naming.is_due(&self.address, ttl, state.now())), until).await;
    }

    async fn ask_unless(&self, is_known: impl Fn() -> bool, until: Instant) {
        if is_known() {
            return;
        }
        let Ok((connections, turn)) = self.sentinels.connections() else { return };
        // One of several callers asks for all of them.
        let asked = timeout_at(until, async {
            let _turn = turn.lock().await;
            if !is_known() {
                let _ = ask(&self.sentinels.state, &connections, until).await;
            }
        });
        let _ = asked.await;
    }

    /// Checks that a grant counts, which has just arrived. Takes half of the time that is left at most, so that the
    /// others in the call of a grant have their replies in time. Cancel safe.
    ///
    /// # Errors
    /// `Indeterminate`: a majority of the Sentinels did not name this server after the reply had arrived.
    pub(crate) async fn confirm_grant(&self, until: Instant) -> Result<()> {
        let (state, replied) = (&self.sentinels.state, self.now());
        let is_named = || state.naming(|naming| naming.primary_since(replied) == Some(&self.address));
        self.ask_unless(is_named, half_until(until)).await;
        if is_named() { Ok(()) } else { Err(self.unnamed().with_kind(ErrorKind::Indeterminate)) }
    }

    /// Sends a request for leases, and asks the Sentinels beside it: a renewal must not take two round trips. The
    /// shortest ttl of these leases decides whether they are asked, and whether their answer is waited for.
    ///
    /// # Errors
    /// Those of the request, as soon as it has failed.
    pub(crate) async fn ask_beside<T, E>(
        &self,
        request: impl Future<Output = Result<T, E>>,
        shortest: Duration,
        until: Instant,
    ) -> Result<T, E> {
        let counts = self.check(shortest, self.now()).is_ok();
        let (mut request, mut asked) = (pin!(request), pin!(self.ask(shortest, until)));
        tokio::select! {
            reply = &mut request => {
                if reply.is_ok() && !counts {
                    asked.await;
                }
                reply
            }
            () = &mut asked => request.await,
        }
    }

    /// Checks that a request that was sent at `sent`, or will be, counts for a lease of this ttl.
    ///
    /// # Errors
    /// `Unavailable`: a majority of the Sentinels has not named this server lately.
    pub(crate) fn check(&self, ttl: Duration, sent: Stamp) -> Result<()> {
        let counts = self.sentinels.state.naming(|naming| naming.counts(&self.address, ttl, sent));
        if counts { Ok(()) } else { Err(self.unnamed()) }
    }

    /// Why the server does not count as the primary.
    fn unnamed(&self) -> Error {
        let (state, address) = (&self.sentinels.state, &self.address);
        match state.naming(|naming| naming.primary().cloned()) {
            Some(other) if other != *address => {
                let text = format!("the server at {address} is not the primary any more: the Sentinels name {other}");
                Error::new(ErrorKind::Unavailable, text)
            }
            _ => state.why().unwrap_or_else(|| {
                let text = format!("no majority of the Sentinels has named the server at {address} lately");
                Error::new(ErrorKind::Unavailable, text)
            }),
        }
    }

    /// Resolves when a majority names another server.
    pub(crate) async fn replaced(&self) {
        self.sentinels.state.names_other(&self.address).await;
    }
}

/// The middle of the time that is left.
pub(crate) fn half_until(until: Instant) -> Instant {
    let now = Instant::now();
    now + until.saturating_duration_since(now) / 2
}
