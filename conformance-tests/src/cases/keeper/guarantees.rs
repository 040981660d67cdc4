//! Guarantees of lock-core that a backend relies on without a check.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Capabilities, CoreHandle, Event, LockBackend, Mode, OwnerToken, ReleaseOutcome,
    ReleaseRequest, RenewReply, RenewRequest,
};
use leasehold_core::{ErrorKind, LockClient, LockName, Result};

use crate::clients::{PATIENCE, build, hold, kind_of};
use crate::faulty::lock;
use crate::fixture::{Fixture, Route};
use crate::hooks::{Hooked, Hooks, Inner};
use crate::support::{AT_ONCE, join, name};
use crate::timing_control::in_time;

/// Checks every request against the guarantees of lock-core.
#[derive(Default)]
struct Watched {
    broken: Mutex<Vec<String>>,
    /// Claims that may have a lease or a place at the store, with their locks.
    open: Mutex<HashMap<OwnerToken, LockName>>,
    batches: Mutex<Vec<usize>>,
    /// Claims that have waited, and whether one of their places was renewed.
    places: Mutex<(HashSet<OwnerToken>, bool)>,
}

impl Watched {
    fn expect(&self, is_so: bool, what: impl FnOnce() -> String) {
        if !is_so {
            lock(&self.broken).push(what());
        }
    }

    fn ttl_is_within(&self, request: &RenewRequest, claimed: &Capabilities) {
        let RenewRequest { ttl, .. } = request;
        self.expect(is_valid(claimed, *ttl), || format!("a renewal to {ttl:?}"));
    }
}

#[async_trait]
impl Hooks for Watched {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let claimed = inner.backend.capabilities();
        let AcquireRequest { ref claim, mode, ttl, .. } = *request;
        self.expect(inner.core().is_some(), || "an acquire before `attach`".to_owned());
        self.expect(claimed.modes.contains(&mode), || format!("an acquire in mode {mode:?}"));
        self.expect(is_valid(&claimed, ttl), || format!("an acquire for {ttl:?}"));
        lock(&self.open).insert(*claim.owner(), claim.name().clone());
        let reply = inner.backend.acquire(request).await;
        if let Ok(AcquireOutcome::Queued { .. }) = &reply {
            lock(&self.places).0.insert(*claim.owner());
        }
        let without_effect = match &reply {
            Ok(AcquireOutcome::Contended { .. }) => true,
            Ok(_) => false,
            Err(error) => error.kind() != ErrorKind::Indeterminate,
        };
        if without_effect {
            lock(&self.open).remove(claim.owner());
        }
        reply
    }

    async fn renew(&self, inner: &Inner, requests: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let claimed = inner.backend.capabilities();
        lock(&self.batches).push(requests.len());
        let fits = (1..=claimed.renew_batch).contains(&requests.len());
        self.expect(fits, || format!("{} renewals in one call", requests.len()));
        requests.iter().for_each(|request| self.ttl_is_within(request, &claimed));
        let claims: HashSet<_> = requests.iter().map(|request| *request.claim.owner()).collect();
        self.expect(claims.len() == requests.len(), || "a claim twice in one call".to_owned());
        {
            let (places, is_renewed) = &mut *lock(&self.places);
            *is_renewed |= places.intersection(&claims).next().is_some();
        }
        let replies = inner.renew(requests).await;
        for (index, reply) in &replies {
            if let RenewReply::Lost = reply {
                lock(&self.open).remove(requests[*index].claim.owner());
            }
        }
        replies
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let reply = inner.backend.release(request).await;
        if reply.is_ok() {
            lock(&self.open).remove(request.claim.owner());
        }
        reply
    }

    fn event(&self, _inner: &Arc<Inner>, core: &CoreHandle, event: Event) {
        if let Event::Gone { owner } = &event {
            lock(&self.open).remove(owner);
        }
        core.event(event);
    }
}

/// Lock-core refuses modes and ttls that the backend does not support before anything is sent. A call renews at most
/// [`renew_batch`](Capabilities::renew_batch) leases, each claim once. Errors name their lock and backend. Every claim
/// that may have a lease or a place at the store is released, even if its acquire was dropped.
pub async fn requests_are_within_what_the_backend_promises(fixture: &dyn Fixture) {
    let watched = Arc::new(Watched::default());
    let backend: Arc<dyn LockBackend> = Arc::new(Hooked::new(fixture.backend(Route::Clear).await, 0, watched.clone()));
    let claimed = backend.capabilities();
    // Not a multiple of any granularity.
    let ttl = fixture.ttl() * 5 + Duration::from_nanos(1);
    let client = build(fixture.tune(LockClient::builder(backend).ttl(ttl).wait(PATIENCE)));
    refuses_what_is_out_of_bounds(&client, &claimed).await;

    // More renewals are due together than fit into one call.
    let mut guards = Vec::new();
    for index in 0..=claimed.renew_batch {
        guards.push(hold(&client, &name(&format!("guarantee {index}"))).await);
    }
    let contended = guards[0].name().clone();
    for part in 1..8 {
        let lock = client.lock(contended.as_str());
        let dropped = tokio::time::timeout(AT_ONCE / (1 << part), lock.acquire()).await;
        assert!(dropped.is_err(), "two holders");
    }
    let waiter = tokio::spawn(hold(&client, &contended));
    let renewed = client.stats().renewed;
    let all = renewed + guards.len() as u64;
    in_time(ttl, "every lease is renewed", async {
        while client.stats().renewed < all {
            tokio::time::sleep(AT_ONCE / 20).await;
        }
    })
    .await;
    in_time(ttl, "the place is renewed", async {
        // A store without a queue has none.
        let is_awaited = || {
            let (places, is_renewed) = &*lock(&watched.places);
            !places.is_empty() && !is_renewed
        };
        while is_awaited() {
            tokio::time::sleep(AT_ONCE / 20).await;
        }
    })
    .await;
    drop(guards);
    join(waiter).await.release().await.expect("a release");
    client.shutdown().await.expect("everything can be released");
    assert_eq!(*lock(&watched.broken), Vec::<String>::new(), "lock-core breaks its guarantees");
    let open = lock(&watched.open);
    assert!(open.is_empty(), "claims without a release: {:?}", open.values());
    assert!(lock(&watched.batches).iter().any(|size| *size > 1), "no call renewed more than one lease");
}

fn is_valid(claimed: &Capabilities, ttl: Duration) -> bool {
    (claimed.min_ttl..=claimed.max_ttl).contains(&ttl) && claimed.round_up(ttl) == ttl
}

async fn refuses_what_is_out_of_bounds(client: &LockClient, claimed: &Capabilities) {
    let name = name("out of bounds");
    for mode in [Mode::Exclusive, Mode::Shared].into_iter().filter(|mode| !claimed.modes.contains(mode)) {
        let refused = client.lock(name.as_str()).mode(mode).acquire().await;
        assert_eq!(kind_of(&refused), ErrorKind::Unsupported, "mode {mode:?}");
    }
    for ttl in [claimed.min_ttl / 2, claimed.max_ttl * 2] {
        let error = client.lock(name.as_str()).ttl(ttl).acquire().await.expect_err("the ttl is out of bounds");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "a ttl of {ttl:?}");
        let text = error.to_string();
        assert!(text.contains(name.as_str()) && text.contains(claimed.backend), "an error without its context: {text}");
    }
}
