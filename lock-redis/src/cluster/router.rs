//! Sends a request to the node that serves its lock, and follows what the nodes say.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, sleep};

use super::declared::{Declared, MoreKeys, Refusal};
use super::nodes::Cluster;
use super::redirection::Redirection;
use super::route::{Next, Refresh, Route, Target};
use super::slots::Slot;
use crate::connection::Connection;
use crate::sentinel::{Address, half_until};

impl Cluster {
    /// Sends a request for the lock with this record with `send`, to one node after another, until one has done it, or
    /// may have. All of this has one bound. `keys` are those that the request may need beside the record; its script
    /// says which of them it does need.
    ///
    /// # Errors
    /// `Indeterminate`: a node may have done it.
    pub(crate) async fn call<T, F>(
        self: &Arc<Self>,
        record: &str,
        keys: MoreKeys,
        until: Instant,
        send: impl Fn(Arc<Connection>, Declared) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<Result<T, Refusal>>>,
    {
        let slot = Slot::of(record.as_bytes());
        let bound = until.saturating_duration_since(Instant::now());
        let mut route = Route::new(keys, until - bound / 8);
        let (mut to, mut keys) = (Target::Owner, keys);
        loop {
            let at = self.target(slot, &to);
            let named = |error: Error| match &at {
                Some(at) => error.at(&at.to_string()),
                None => error,
            };
            let refusal = match self.connection(at.as_ref(), until).await {
                Err(error) if error.kind() == ErrorKind::Unavailable => Refusal::NotSent(error),
                Err(error) => return Err(named(error)),
                Ok(connection) => {
                    let declared = Declared::OneLock { keys, is_asking: matches!(to, Target::Taker(_)) };
                    match send(connection, declared).await {
                        Ok(Ok(done)) => return Ok(done),
                        Ok(Err(refusal)) => refusal,
                        // It was sent. Whatever the node says, a second copy would help nobody.
                        Err(error) => {
                            if error.kind() == ErrorKind::Indeterminate {
                                // A silent node may have been replaced.
                                self.refresh_beside();
                            }
                            return Err(named(error));
                        }
                    }
                }
            };
            if let Refusal::Redirected(Redirection::Moved(slot, to)) = &refusal {
                self.topology.moved(*slot, to);
            }
            let (next, refresh) = route.next(refusal, Instant::now());
            match refresh {
                Refresh::No => {}
                Refresh::Beside => self.refresh_beside(),
                // If no node replies, another attempt would only take the time of a waiter whose wait is about to end.
                Refresh::First => self.refresh(half_until(until)).await?,
            }
            match next {
                Next::GiveUp(error) => return Err(named(error)),
                Next::Send { pause, to: next, keys: needed } => {
                    (to, keys) = (next, needed);
                    if pause > Duration::ZERO {
                        sleep(pause).await;
                    }
                }
            }
        }
    }

    /// Where the next node is reached.
    fn target(&self, slot: Slot, to: &Target) -> Option<Address> {
        match to {
            Target::Owner => self.topology.owner(slot),
            Target::Node(named) | Target::Taker(named) => Some(self.topology.reached_at(named)),
        }
    }

    /// A connection to a node. Takes half of the time that is left at most: the cluster may have replaced a node that
    /// cannot be reached.
    async fn connection(&self, at: Option<&Address>, until: Instant) -> Result<Arc<Connection>> {
        let at = at.ok_or_else(|| Error::new(ErrorKind::Unavailable, UNKNOWN))?;
        self.server(at)?.manager()?.connection(half_until(until)).await
    }
}

const UNKNOWN: &str = "no node of the cluster serves the lock, as far as is known";
