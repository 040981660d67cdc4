//! A backend with a modified method: for cases that inject a reply, and for saboteurs.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold_core::admin::{Check, Listing};
use leasehold_core::backend::kit::Attachment;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, CoreHandle, Event, LockBackend, NoAdmin, ReleaseOutcome,
    ReleaseRequest, RenewReplies, RenewReply, RenewRequest, Stamp, WatchNames,
};
use leasehold_core::{Error, ErrorKind, FencingToken, LockInfo, LockName, Result};

use crate::faulty::renew_collected;

/// The modified methods. Each one calls the backend by default.
#[async_trait]
pub trait Hooks: Send + Sync + 'static {
    /// [`LockBackend::acquire`].
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        inner.backend.acquire(request).await
    }

    /// [`LockBackend::renew`], with the replies as a list.
    async fn renew(&self, inner: &Inner, requests: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        inner.renew(requests).await
    }

    /// [`LockBackend::release`].
    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        inner.backend.release(request).await
    }

    /// Handles an event of the backend.
    fn event(&self, _inner: &Arc<Inner>, core: &CoreHandle, event: Event) {
        core.event(event);
    }

    /// Called after [`LockBackend::attach`] of the backend.
    fn attached(&self, _inner: &Arc<Inner>) {}

    /// [`LockBackend::capabilities`].
    fn capabilities(&self, real: Capabilities) -> Capabilities {
        real
    }

    /// [`Admin::inspect`].
    async fn inspect(&self, inner: &Inner, name: &LockName) -> Result<Option<LockInfo>> {
        inner.admin().inspect(name).await
    }

    /// [`Admin::list`].
    async fn list(&self, inner: &Inner, prefix: &str, limit: usize) -> Result<Listing> {
        inner.admin().list(prefix, limit).await
    }

    /// [`Admin::break_lock`].
    async fn break_lock(&self, inner: &Inner, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>> {
        inner.admin().break_lock(name, token).await
    }

    /// [`Admin::examine`].
    async fn examine(&self, inner: &Inner) -> Result<Vec<Check>> {
        inner.admin().examine().await
    }

    /// [`LockBackend::watch_names`].
    fn watch_names<'a>(&'a self, inner: &'a Inner) -> Option<&'a dyn WatchNames> {
        inner.backend.watch_names()
    }
}

/// The modified backend.
pub struct Inner {
    /// The backend.
    pub backend: Arc<dyn LockBackend>,
    /// The index of the backend in its fixture, from 0.
    pub nth: usize,
    core: Attachment,
}

impl Inner {
    /// The client that the backend is attached to.
    pub fn core(&self) -> Option<&CoreHandle> {
        self.core.get()
    }

    /// The time on the client's clock.
    pub fn now(&self) -> Stamp {
        self.core().map_or(Stamp::ZERO, CoreHandle::stamp)
    }

    /// The backend's functions for operators.
    pub fn admin(&self) -> &dyn Admin {
        self.backend.admin().unwrap_or(&NoAdmin)
    }

    /// Renews in one call.
    pub async fn renew(&self, requests: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        renew_collected(&*self.backend, requests).await
    }

    /// Renews one.
    pub async fn renew_one(&self, request: &RenewRequest) -> RenewReply {
        let mut replies = self.renew(std::slice::from_ref(request)).await;
        replies.pop().map_or_else(
            || RenewReply::Unknown(Error::new(ErrorKind::Indeterminate, "the renewal ended without a reply")),
            |(_, reply)| reply,
        )
    }
}

/// A backend with [`Hooks`].
pub struct Hooked<H: ?Sized> {
    inner: Arc<Inner>,
    hooks: Arc<H>,
}

impl<H: Hooks + ?Sized> Hooked<H> {
    /// Modifies the `nth` backend of a fixture, which is not yet attached. Several backends may share the hooks.
    pub fn new(backend: Arc<dyn LockBackend>, nth: usize, hooks: Arc<H>) -> Self {
        Self { inner: Arc::new(Inner { backend, nth, core: Attachment::new() }), hooks }
    }
}

#[async_trait]
impl<H: Hooks + ?Sized> LockBackend for Hooked<H> {
    fn attach(&self, core: CoreHandle) {
        self.inner.core.attach(core.clone());
        let hooks = self.hooks.clone();
        // Weak: the backend stores this handle, and must not keep itself alive.
        let inner = Arc::downgrade(&self.inner);
        self.inner.backend.attach(core.clone().with_events(move |event| {
            if let Some(inner) = inner.upgrade() {
                hooks.event(&inner, &core, event);
            }
        }));
        self.hooks.attached(&self.inner);
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        self.hooks.acquire(&self.inner, request).await
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        for (index, reply) in self.hooks.renew(&self.inner, requests).await {
            replies.put(index, reply);
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        self.hooks.release(&self.inner, request).await
    }

    fn capabilities(&self) -> Capabilities {
        self.hooks.capabilities(self.inner.backend.capabilities())
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        self.hooks.watch_names(&self.inner)
    }
}

#[async_trait]
impl<H: Hooks + ?Sized> Admin for Hooked<H> {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockInfo>> {
        self.hooks.inspect(&self.inner, name).await
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing> {
        self.hooks.list(&self.inner, prefix, limit).await
    }

    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>> {
        self.hooks.break_lock(&self.inner, name, token).await
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        self.hooks.examine(&self.inner).await
    }
}
