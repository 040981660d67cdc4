//! Stores without a queue that notify their waiters, each with one mistake. They are built on the memory store, which
//! keeps a queue: they request no places there, and notify the watches at each release.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, CoreHandle, Event, OnContention, OwnerToken, ReleaseOutcome,
    ReleaseRequest, Waiting, WatchGuard, WatchNames,
};
use leasehold_core::{LockName, Result};

use super::Saboteur;
use crate::fault::PathFault;
use crate::faulty::lock;
use crate::fixture::Route;
use crate::hooks::{Hooks, Inner};

/// A mistake of a store that notifies its waiters.
pub trait Mistake: Send + Sync + 'static {
    /// Whether a client learns that it may have missed notifications.
    const RESYNCS: bool = true;
    /// Whether a client reconnects only when it sends a request.
    const RECONNECTS_WHEN_CALLED: bool = false;
    /// Whether a release notifies the watches of all locks.
    const WAKES_ALL: bool = false;
}

macro_rules! mistakes {
    ($($(#[$doc:meta])* $name:ident($flaw:ident): $const:ident = $value:literal;)*) => {
        $(
            /// The mistake of the saboteur.
            pub struct $flaw;

            impl Mistake for $flaw {
                const $const: bool = $value;
            }

            $(#[$doc])*
            pub type $name = Notifying<$flaw>;
        )*
    };
}

mistakes! {
    /// Does not report a reconnect.
    MissesWhatCameMeanwhile(NoResync): RESYNCS = false;
    /// Reconnects when a request is sent, and not by itself.
    ReconnectsWhenCalled(LazyReconnect): RECONNECTS_WHEN_CALLED = true;
    /// Notifies the waiters of all locks at each release.
    WakesWaitersOfAllLocks(WakeAll): WAKES_ALL = true;
}

/// A store without a queue that notifies its waiters, with one mistake.
pub struct Notifying<M> {
    shared: Arc<Shared>,
    mistake: PhantomData<M>,
}

#[derive(Default)]
struct Shared {
    /// By the index of the backend.
    routes: Mutex<Vec<Route>>,
    is_broken: AtomicBool,
    /// The owners of refused claims, with their clients.
    refused: Mutex<Vec<(OwnerToken, usize, CoreHandle)>>,
    watches: Mutex<Vec<Watch>>,
    withheld: Mutex<Vec<(usize, CoreHandle)>>,
    next: AtomicU64,
}

struct Watch {
    number: u64,
    name: LockName,
    nth: usize,
    core: CoreHandle,
}

impl<M: Mistake> Saboteur for Notifying<M> {
    fn new() -> Self {
        Self { shared: Arc::default(), mistake: PhantomData }
    }

    fn on_backend(&self, route: Route) {
        lock(&self.shared.routes).push(route);
    }

    fn path(&self, fault: PathFault) -> Option<PathFault> {
        self.shared.is_broken.store(true, Ordering::SeqCst);
        Some(fault)
    }

    fn on_heal(&self) {
        self.shared.is_broken.store(false, Ordering::SeqCst);
    }
}

#[async_trait]
impl<M: Mistake> Hooks for Notifying<M> {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let reconnected: Vec<_> = lock(&self.shared.withheld).extract_if(.., |(nth, _)| *nth == inner.nth).collect();
        reconnected.into_iter().for_each(|(_, core)| core.event(Event::Resync));
        let reply = inner.backend.acquire(&request.clone().on_contention(OnContention::Fail)).await;
        if let (Ok(AcquireOutcome::Contended { .. }), Some(core)) = (&reply, inner.core()) {
            lock(&self.shared.refused).push((*request.claim.owner(), inner.nth, core.clone()));
        }
        reply
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let reply = inner.backend.release(request).await;
        let is_of = |watch: &mut Watch| M::WAKES_ALL || watch.name == *request.claim.name();
        let notified: Vec<_> = lock(&self.shared.watches).extract_if(.., is_of).collect();
        for Watch { name, nth, core, .. } in notified {
            let is_faulty = lock(&self.shared.routes).get(nth) == Some(&Route::Faulty);
            if !(is_faulty && self.shared.is_broken.load(Ordering::SeqCst)) {
                core.event(Event::Changed(name));
            }
        }
        reply
    }

    fn event(&self, inner: &Arc<Inner>, core: &CoreHandle, event: Event) {
        match event {
            Event::Resync if M::RECONNECTS_WHEN_CALLED => lock(&self.shared.withheld).push((inner.nth, core.clone())),
            Event::Resync if !M::RESYNCS => {}
            event => core.event(event),
        }
    }

    fn capabilities(&self, real: Capabilities) -> Capabilities {
        let mut claimed = real;
        (claimed.waiting, claimed.fifo) = (Waiting::Notification, false);
        claimed
    }

    fn watch_names<'a>(&'a self, _: &'a Inner) -> Option<&'a dyn WatchNames> {
        Some(self)
    }
}

impl<M: Mistake> WatchNames for Notifying<M> {
    fn watch(&self, claim: &Claim) -> WatchGuard {
        let shared = &self.shared;
        let refused = lock(&shared.refused).iter().find(|(owner, ..)| owner == claim.owner()).cloned();
        let Some((_, nth, core)) = refused else { return WatchGuard::none() };
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        lock(&shared.watches).push(Watch { number, name: claim.name().clone(), nth, core });
        let shared = shared.clone();
        WatchGuard::new(move || lock(&shared.watches).retain(|watch| watch.number != number))
    }
}
