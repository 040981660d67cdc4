//! The handle of a backend to lock-core: it provides stamps and takes events.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Confirmation, PlaceNumber};
use crate::clock::{Clock, Stamp};
use crate::entropy::Entropy;
use crate::name::LockName;
use crate::token::{FencingToken, OwnerToken};

/// A notification from a backend. Losing one costs time, never safety.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The store turned a place into a lease.
    Granted {
        /// The claim's owner token.
        owner: OwnerToken,
        /// The place that became a lease.
        place: PlaceNumber,
        /// The token of the grant.
        token: FencingToken,
        /// A confirmation, if the store's message proves one. A plain push does not: it says that the lease began, but
        /// not when.
        confirmation: Option<Confirmation>,
    },
    /// The lease or place of this owner is gone, because its session expired or its key was removed, for example.
    Gone {
        /// The claim's owner token.
        owner: OwnerToken,
    },
    /// This claim has a place, and the holder's lease ends sooner than the last reply said. The keeper renews the place
    /// at once, and the reply says when the lease ends.
    EndsSooner {
        /// The claim's owner token.
        owner: OwnerToken,
    },
    /// The lock may be free. Each client that waits for it sends one acquire. If many clients may wait and the store
    /// keeps no queue, the backend first reads whether the lock is free.
    Changed(LockName),
    /// The backend may have missed messages, as after a reconnect. The keeper checks every claim that waits. A first
    /// connection has missed nothing, so it sends no `Resync`, unless claims can wait by another connection before it.
    Resync,
}

/// The handle that a backend gets when it is attached to a client. Cheap to clone.
#[derive(Clone)]
pub struct CoreHandle {
    clock: Arc<dyn Clock>,
    keeper: tokio::runtime::Handle,
    entropy: Arc<Entropy>,
    events: Arc<dyn Fn(Event) + Send + Sync>,
}

impl CoreHandle {
    /// A handle with this clock, and a function that takes events. lock-core creates one for each client.
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

    /// The same handle with another function that takes events, for a backend that wraps another one.
    #[must_use]
    pub fn with_events(&self, events: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self { events: Arc::new(events), ..self.clone() }
    }

    /// Between 3/4 and 5/4 of a pause, so that clients do not act all at once. With a
    /// [seed](crate::LockClientBuilder::seed) the result can be replayed.
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

    /// The runtime of the lease keeper, which lives as long as the client and does not depend on the user's executor. A
    /// backend spawns on it the tasks that a lease or a notification depends on, with their connections. A connection
    /// for single calls belongs to the runtime of its caller ([`PerRuntime`](crate::backend::kit::PerRuntime)). lock-core
    /// calls renewals and background releases on this runtime, and acquires and other releases mostly on the user's
    /// own.
    pub fn keeper_runtime(&self) -> &tokio::runtime::Handle {
        &self.keeper
    }

    /// Sends an event to lock-core. It does not block for long, and may be called from any thread.
    pub fn event(&self, event: Event) {
        (self.events)(event);
    }
}

impl fmt::Debug for CoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoreHandle").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::name::LockName;
    use std::sync::mpsc::channel;

    #[tokio::test]
    async fn a_wrapped_handle_has_events_of_its_own_and_spreads_pauses() {
        let ((outer, received), (inner, wrapped)) = (channel(), channel());
        let clock = Arc::new(SystemClock::new());
        let core = CoreHandle::new(clock, tokio::runtime::Handle::current(), move |event| outer.send(event).unwrap());
        let core = core.with_events(move |event| inner.send(event).unwrap());
        core.event(Event::Changed(LockName::new("job").unwrap()));
        assert!(matches!(wrapped.try_recv(), Ok(Event::Changed(_))) && received.try_recv().is_err());
        let pause = Duration::from_secs(4);
        let pauses: Vec<Duration> = (0..100).map(|_| core.jitter(pause)).collect();
        assert!(pauses.iter().all(|it| (pause * 3 / 4..=pause * 5 / 4).contains(it)), "{pauses:?}");
        assert!(pauses.iter().any(|it| *it != pauses[0]), "no jitter");
    }
}
