//! A backend without a client: calls of the trait itself.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Capabilities, Claim, Confirmation, CoreHandle, Delivery, Event, Grant, LockBackend,
    OnContention, OwnerToken, PlaceNumber, ReleaseOutcome, ReleaseRequest, RenewReply, RenewRequest, Stamp,
    SystemClock, TtlScope, Waiting, WatchGuard,
};
use leasehold_core::{HolderInfo, LockName, Result};

use crate::faulty::{lock, renew_collected};
use crate::fixture::{Fixture, Route};
use crate::support::{self, Stopwatch};

/// One client of a backend that uses only the trait. Every call must end within the bound that the backend promises.
pub struct Direct {
    backend: Arc<dyn LockBackend>,
    core: CoreHandle,
    capabilities: Capabilities,
    holder: Arc<HolderInfo>,
    events: Arc<Mutex<Vec<Event>>>,
    /// The watches of claims that were refused and wait.
    watches: Mutex<HashMap<OwnerToken, WatchGuard>>,
}

impl Direct {
    /// A new client of the fixture.
    pub async fn new(fixture: &dyn Fixture, route: Route) -> Self {
        Self::attach(fixture.backend(route).await)
    }

    /// The same, with an established connection, after an acquire with a longer ttl than any in use: a store may have
    /// to record a ttl before the first lease with it.
    pub async fn warm(fixture: &dyn Fixture, route: Route) -> Self {
        let client = Self::new(fixture, route).await;
        let claim = client.claim(&support::name("warm"));
        client.granted(&claim, fixture.ttl() * 20).await;
        client.release(&claim, Delivery::Confirmed).await.expect("a release");
        client
    }

    /// Attaches a backend to the runtime of the caller instead of the keeper's.
    pub fn attach(backend: Arc<dyn LockBackend>) -> Self {
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let core = CoreHandle::new(Arc::new(SystemClock::new()), tokio::runtime::Handle::current(), {
            let events = events.clone();
            move |event| lock(&events).push(event)
        });
        backend.attach(core.clone());
        let holder = HolderInfo::of_this_process("conformance").expect("a plain label is a label");
        Self {
            capabilities: backend.capabilities(),
            backend,
            core,
            holder: Arc::new(holder),
            events,
            watches: Mutex::default(),
        }
    }

    /// What the backend promises.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<dyn LockBackend> {
        &self.backend
    }

    /// A new claim of a lock.
    pub fn claim(&self, name: &LockName) -> Claim {
        Claim::new(name.clone(), owner_token(), self.holder.clone())
    }

    /// The time on the clock of the stamps.
    pub fn now(&self) -> Stamp {
        self.core.stamp()
    }

    /// One attempt.
    ///
    /// # Errors
    /// The error of the backend.
    pub async fn acquire(&self, claim: &Claim, ttl: Duration) -> Result<AcquireOutcome> {
        self.request(&AcquireRequest::new(claim.clone(), ttl)).await
    }

    /// One attempt without a place.
    ///
    /// # Errors
    /// The error of the backend.
    pub async fn try_acquire(&self, claim: &Claim, ttl: Duration) -> Result<AcquireOutcome> {
        self.request(&AcquireRequest::new(claim.clone(), ttl).on_contention(OnContention::Fail)).await
    }

    /// Any attempt. As lock-core does, it rounds the ttl up, and watches the lock if the claim is refused and waits.
    ///
    /// # Errors
    /// The error of the backend.
    pub async fn request(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let mut request = request.clone();
        request.ttl = self.capabilities.round_up(request.ttl);
        let before = self.now();
        let reply = self.bounded("acquire", self.backend.acquire(&request)).await;
        if let Ok(AcquireOutcome::Granted(Grant { confirmation, .. }) | AcquireOutcome::Queued { confirmation, .. }) =
            &reply
        {
            self.check(before, confirmation);
        }
        let (claim, mut watches) = (&request.claim, lock(&self.watches));
        match (&reply, self.backend.watch_names()) {
            (Ok(AcquireOutcome::Contended { .. }), Some(names)) if request.on_contention == OnContention::Queue => {
                let former = watches.insert(*claim.owner(), names.watch(claim));
                drop(former);
            }
            (Ok(AcquireOutcome::Granted(_)), _) => drop(watches.remove(claim.owner())),
            _ => {}
        }
        drop(watches);
        reply
    }

    /// One attempt that must be granted.
    pub async fn granted(&self, claim: &Claim, ttl: Duration) -> Grant {
        match self.acquire(claim, ttl).await {
            Ok(AcquireOutcome::Granted(grant)) => grant,
            other => panic!("the lock {} is free and was not granted: {other:?}", claim.name()),
        }
    }

    /// The same for a lock that had a waiter. A store without a queue may reserve a free lock for a waiter for a
    /// moment. That moment is over at the second attempt.
    pub async fn granted_soon(&self, claim: &Claim, ttl: Duration) -> Grant {
        match self.acquire(claim, ttl).await {
            Ok(AcquireOutcome::Granted(grant)) => return grant,
            Ok(AcquireOutcome::Contended { retry_after })
                if self.capabilities.waiting != Waiting::ServerQueue && retry_after <= support::AT_ONCE =>
            {
                tokio::time::sleep(retry_after).await;
            }
            other => panic!("the lock {} is free and was not granted: {other:?}", claim.name()),
        }
        self.granted(claim, ttl).await
    }

    /// One attempt that must get a place or a time to retry.
    pub async fn not_granted(&self, claim: &Claim, ttl: Duration) -> PlaceNumber {
        match self.acquire(claim, ttl).await {
            Ok(AcquireOutcome::Queued { confirmation, .. }) => confirmation.place,
            Ok(AcquireOutcome::Contended { .. }) => PlaceNumber::NONE,
            other => panic!("the lock {} is held by another: {other:?}", claim.name()),
        }
    }

    /// Renews one lease or place.
    pub async fn renew(&self, lease: RenewRequest) -> RenewReply {
        self.renew_all(&[lease]).await.remove(0)
    }

    /// Renews in one call. The replies are in the order of the requests.
    pub async fn renew_all(&self, leases: &[RenewRequest]) -> Vec<RenewReply> {
        let before = self.now();
        let mut replies = self.bounded("renew", renew_collected(&*self.backend, leases)).await;
        replies.sort_by_key(|(index, _)| *index);
        for (_, reply) in &replies {
            if let RenewReply::Renewed(confirmation) | RenewReply::Waiting { confirmation, .. } = reply {
                self.check(before, confirmation);
            }
        }
        replies.into_iter().map(|(_, reply)| reply).collect()
    }

    /// Releases.
    ///
    /// # Errors
    /// The error of the backend.
    pub async fn release(&self, claim: &Claim, delivery: Delivery) -> Result<ReleaseOutcome> {
        let request = ReleaseRequest::new(claim.clone(), delivery);
        self.bounded("release", self.backend.release(&request)).await
    }

    /// The events since the last call.
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *lock(&self.events))
    }

    /// Takes over the lock of a silent holder after its lease of `ttl` has ended. Then holds it for `own`.
    pub async fn takes_over(&self, claim: &Claim, ttl: Duration, own: Duration) -> Grant {
        let (stopwatch, bound) = (Stopwatch::start(), ttl + self.capabilities.takeover_slack);
        loop {
            match self.acquire(claim, own).await {
                Ok(AcquireOutcome::Granted(grant)) => {
                    stopwatch.within(bound, "takeover from a dead holder");
                    return grant;
                }
                Ok(_) if stopwatch.elapsed() <= bound + stopwatch.lag() => {
                    tokio::time::sleep(support::POLL_INTERVAL).await
                }
                other => panic!("no takeover after {:?} of {bound:?}: {other:?}", stopwatch.elapsed()),
            }
        }
    }

    async fn bounded<T>(&self, verb: &str, call: impl Future<Output = T>) -> T {
        let stopwatch = Stopwatch::start();
        let reply = call.await;
        stopwatch.within(self.capabilities.call_bound, &format!("a call of {verb} ends within its bound"));
        reply
    }

    /// A stamp is from before the request was sent, and not from the future. The stamp of a session may be as old as a
    /// third of the ttl.
    fn check(&self, before: Stamp, confirmation: &Confirmation) {
        assert!(
            confirmation.sent <= self.now() && !confirmation.ttl.is_zero(),
            "a confirmation is from the future or has no ttl: {confirmation:?} at {:?}",
            self.now()
        );
        let oldest = match self.capabilities.ttl_scope {
            TtlScope::Session => before.minus(confirmation.ttl / 3),
            _ => before,
        };
        assert!(
            confirmation.sent >= oldest,
            "a request that began at {before:?} returned the older stamp {confirmation:?}"
        );
    }
}

/// 128 bits that are unique to this call.
fn owner_token() -> OwnerToken {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    let bits = (u128::from(RandomState::new().hash_one(count)) << 64) | u128::from(RandomState::new().hash_one(!count));
    OwnerToken::from_bytes(bits.to_be_bytes())
}
