//! The line from a backend back to lock-core: stamps out, events in.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Confirmation, PlaceNumber};
use crate::clock::{Clock, Stamp};
use crate::entropy::Entropy;
use crate::name::LockName;
use crate::token::{FencingToken, OwnerToken};

/// Something that a backend learned without being asked. Losing one costs time, never safety.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The store made a place a lease.
    Granted {
        /// The claim's owner token.
        owner: OwnerToken,
        /// The place that became a lease.
        place: PlaceNumber,
        /// The token of the grant.
        token: FencingToken,
        /// A confirmation of its own, where the store's message proves one. A plain push proves none: it
        /// says that the lease began, not when.
        confirmation: Option<Confirmation>,
    },
    /// The lease or place of this owner is gone: session expired, own key removed.
    Gone {
        /// The claim's owner token.
        owner: OwnerToken,
    },
    /// The holder's lease ends sooner than this claim, which has a place, was answered last. The keeper renews the place at once, and
    /// the answer says when the lease ends.
    EndsSooner {
        /// The claim's owner token.
        owner: OwnerToken,
    },
    /// The lock may be free. Each client that waits for it sends one acquire. Where many may wait and the store keeps no queue, a
    /// backend reads first whether the lock is free.
    Changed(LockName),
    /// The backend may have missed messages, as after a reconnect. The keeper asks for every claim that waits.
    Resync,
}

/// What a backend gets when it is attached to a client. Cheap to clone.
#[derive(Clone)]
pub struct CoreHandle {
    clock: Arc<dyn Clock>,
    keeper: tokio::runtime::Handle,
    entropy: Arc<Entropy>,
    events: Arc<dyn Fn(Event) + Send + Sync>,
}

impl CoreHandle {
    /// A handle with this clock and this way for events. lock-core makes one for every client.
    pub fn new(
        clock: Arc<dyn Clock>,
        keeper: tokio::runtime::Handle,
        events: impl Fn(Event) + Send + Sync + 'static,
    ) -> Self {
        Self::with_entropy(clock, keeper, Arc::new(Entropy::Thread), events)
    }

    pub(crate) fn with_entropy(
        clock: Arc<dyn Clock>,
        keeper: tokio::runtime::Handle,
        entropy: Arc<Entropy>,
        events: impl Fn(Event) + Send + Sync + 'static,
    ) -> Self {
        Self { clock, keeper, entropy, events: Arc::new(events) }
    }

    /// The same handle with another way for events, for a backend that wraps another one.
    #[must_use]
    pub fn with_events(&self, events: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self { events: Arc::new(events), ..self.clone() }
    }

    /// Between 3/4 and 5/4 of a pause, so that clients do not act all at once. With a [seed](crate::LockClientBuilder::seed) the
    /// result can be replayed.
    pub fn jitter(&self, pause: Duration) -> Duration {
        self.entropy.jitter(pause)
    }

    /// A stamp. Take it just before the request is sent.
    pub fn stamp(&self) -> Stamp {
        self.clock.now()
    }

    /// The clock that stamps are read from.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The runtime that the lease keeper runs on, and the home of a backend's background tasks: it lives as long
    /// as the client and does not starve with the user's executor. Renewals, and releases in the background, are
    /// called on it; acquires and releases mostly on the user's own runtime.
    pub fn keeper_runtime(&self) -> &tokio::runtime::Handle {
        &self.keeper
    }

    /// Tells lock-core. Never blocks for long; may be called from any thread.
    pub fn event(&self, event: Event) {
        (self.events)(event);
    }
}

impl fmt::Debug for CoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoreHandle").finish_non_exhaustive()
    }
}
