//! A wrapper that adds a prefix to all names and changes nothing else. A backend behind it passes the same suite.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::admin::{Check, Listing};
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, Claim, CoreHandle, Event, LockBackend, NoAdmin,
    ReleaseOutcome, ReleaseRequest, RenewReplies, RenewRequest, WatchGuard, WatchNames,
};
use leasehold_core::{FencingToken, LockInfo, LockName, Result};

use crate::fault::{PathFault, ServerFault, Tamper, Unsupported};
use crate::fixture::{Fixture, Record, ResourceCounts, Route};

const PREFIX: &str = "tenant 7/";

/// The limit of the encoded name after the prefix: together they are a valid name.
const LIMIT: usize = 512;

/// The name under the prefix. Encoded first, so that the longest name still has room for the prefix.
fn prefixed(name: &LockName) -> LockName {
    LockName::new(format!("{PREFIX}{}", name.encode(LIMIT))).expect("prefix and encoded name are short")
}

/// [`LockBackend`] under a prefix, as a service with several tenants writes it.
struct Prefixed {
    inner: Arc<dyn LockBackend>,
}

fn below(claim: &Claim) -> Claim {
    claim.renamed(prefixed(claim.name()))
}

#[async_trait]
impl LockBackend for Prefixed {
    fn attach(&self, core: CoreHandle) {
        self.inner.attach(core.clone().with_events(move |event| match event {
            // The original name cannot be recovered from the encoded one. A resync of all locks costs time and is safe.
            Event::Changed(_) => core.event(Event::Resync),
            event => core.event(event),
        }));
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        self.inner.acquire(&request.by(below(&request.claim))).await
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        let requests: Vec<_> = requests.iter().map(|request| request.by(below(&request.claim))).collect();
        self.inner.renew(&requests, replies).await;
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        self.inner.release(&request.by(below(&request.claim))).await
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        self.inner.watch_names().map(|_| self as &dyn WatchNames)
    }
}

#[async_trait]
impl Admin for Prefixed {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockInfo>> {
        self.inner.admin().unwrap_or(&NoAdmin).inspect(&prefixed(name)).await
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing> {
        // A name cannot be recovered from its digest.
        NoAdmin.list(prefix, limit).await
    }

    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>> {
        self.inner.admin().unwrap_or(&NoAdmin).break_lock(&prefixed(name), token).await
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        self.inner.admin().unwrap_or(&NoAdmin).examine().await
    }
}

impl WatchNames for Prefixed {
    fn watch(&self, claim: &Claim) -> WatchGuard {
        self.inner.watch_names().map_or_else(WatchGuard::none, |names| names.watch(&below(claim)))
    }
}

/// The fixture of a backend through `Arc<dyn LockBackend>` and a prefix of names.
pub struct PrefixedFixture<F>(F);

#[async_trait]
impl<F: Fixture> Fixture for PrefixedFixture<F> {
    async fn new() -> Self {
        Self(F::new().await)
    }

    async fn backend(&self, route: Route) -> Arc<dyn LockBackend> {
        let prefixed: Arc<dyn LockBackend> = Arc::new(Prefixed { inner: self.0.backend(route).await });
        // Wrapped twice: nested wrappers must also work.
        Arc::new(prefixed)
    }

    async fn backend_with_retention(&self, retention: Duration) -> Result<Arc<dyn LockBackend>, Unsupported> {
        let inner = self.0.backend_with_retention(retention).await;
        inner.map(|inner| Arc::new(Prefixed { inner }) as Arc<dyn LockBackend>)
    }

    async fn connected(&self) {
        self.0.connected().await;
    }

    fn secrets(&self) -> Vec<String> {
        self.0.secrets()
    }

    fn ttl(&self) -> Duration {
        self.0.ttl()
    }

    fn late_requests_arrive(&self) -> bool {
        self.0.late_requests_arrive()
    }

    fn back_within(&self) -> Duration {
        self.0.back_within()
    }

    async fn path(&self, fault: PathFault) {
        self.0.path(fault).await;
    }

    async fn heal(&self) {
        self.0.heal().await;
    }

    async fn deliver(&self) {
        self.0.deliver().await;
    }

    async fn server(&self, fault: ServerFault) -> Result<(), Unsupported> {
        self.0.server(fault).await
    }

    async fn tamper(&self, name: &LockName, tamper: Tamper) -> Result<(), Unsupported> {
        self.0.tamper(&prefixed(name), tamper).await
    }

    fn record_step(&self) -> Duration {
        self.0.record_step()
    }

    async fn record(&self, name: &LockName) -> Record {
        self.0.record(&prefixed(name)).await
    }

    async fn resource_counts(&self) -> ResourceCounts {
        self.0.resource_counts().await
    }

    async fn served(&self) -> u64 {
        self.0.served().await
    }
}
