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

    /// Asks the Sentinels if a request for a lease of this ttl needs it. Whether they have named this server is said by
    /// [`check`](Self::check). Cancel safe.
    pub(crate) async fn ask(&self, ttl: Duration, until: Instant) {
        let state = &self.sentinels.state;
        let is_due = || state.naming(|naming| naming.is_due(&self.address, ttl, state.now()));
        if !is_due() {
            return;
        }
        let Ok((connections, turn)) = self.sentinels.connections() else { return };
        // One of several callers asks for all of them.
        let asked = timeout_at(until, async {
            let _turn = turn.lock().await;
            if is_due() {
                let _ = ask(state, &connections, until).await;
            }
        });
        let _ = asked.await;
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
        let state = &self.sentinels.state;
        let (counts, named) =
            state.naming(|naming| (naming.counts(&self.address, ttl, sent), naming.primary().cloned()));
        if counts {
            return Ok(());
        }
        let address = &self.address;
        Err(match named {
            Some(other) if other != *address => {
                let text = format!("the server at {address} is not the primary any more: the Sentinels name {other}");
                Error::new(ErrorKind::Unavailable, text)
            }
            _ => state.why().unwrap_or_else(|| {
                let text =
                    format!("no majority of the Sentinels has named the server at {address} within a third of the ttl");
                Error::new(ErrorKind::Unavailable, text)
            }),
        })
    }

    /// Resolves when a majority names another server.
    pub(crate) async fn replaced(&self) {
        self.sentinels.state.names_other(&self.address).await;
    }
}
