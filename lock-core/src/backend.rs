//! The trait that a backend implements, and its optional extensions.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::capabilities::Capabilities;
use crate::claim::{Claim, HolderInfo};
use crate::core_handle::CoreHandle;
use crate::error::Result;
use crate::grant::{Acquisition, Certainty, Release};
use crate::name::LockName;
use crate::renewal::{Answers, LeaseRef};
use crate::token::FencingToken;

/// A store that can keep leases. Object safe, no default methods: a wrapper that forgets one does not compile.
///
/// # Contract
/// Each point is proved by cases of the conformance suite.
/// - **One honest attempt.** No method waits for a lock and none retries in silence. A request that certainly had
///   no effect may be sent again within the call's bound.
/// - **Bounded.** Every call ends by itself within [`Capabilities::call_bound`], connecting included.
/// - **Three outcomes.** Done, not done, unknown. Unknown is an error of kind
///   [`Indeterminate`](crate::ErrorKind::Indeterminate); [`Unavailable`](crate::ErrorKind::Unavailable) promises
///   that the request had no effect and never will.
/// - **Idempotent by claim.** A repeated acquire of a claim that holds answers the same grant, with a deadline of at
///   least now + ttl; of a claim that has a place, that place. A repeated release answers `NotHeld`.
/// - **Ownership.** A renew or release of a claim that has neither lease nor place changes nothing. Renew creates nothing.
/// - **Fencing.** Tokens of one lock rise with every grant, for ever.
/// - **Stamps** are taken from the [`CoreHandle`] just before the request is sent.
/// - **Dropped calls.** lock-core lets every call run to its end, but a runtime that shuts down drops it at any
///   await: the outcome is unknown then, and later calls are not harmed.
#[async_trait]
pub trait LockBackend: Send + Sync + 'static {
    /// Hands over the line to lock-core. Called once, before every other call; a backend serves one client.
    fn attach(&self, core: CoreHandle);

    /// Tries once to get the lock for `ttl`.
    async fn acquire(&self, claim: &Claim, ttl: Duration) -> Result<Acquisition>;

    /// Renews leases and places, each to its own ttl, and answers each as soon as it is known. What is unanswered
    /// when the call ends is unknown, and only that.
    async fn renew(&self, leases: &[LeaseRef], answers: &Answers);

    /// Ends the lease or place of a claim. With [`Certainty::Unsure`] also makes sure that a request of this claim that
    /// is still under way cannot take effect later.
    async fn release(&self, claim: &Claim, certainty: Certainty) -> Result<Release>;

    /// What this backend promises. Constant once it is attached.
    fn capabilities(&self) -> Capabilities;

    /// What it can do beyond the contract.
    fn extensions(&self) -> Extensions<'_>;
}

/// What a backend can do beyond the contract, each if it can.
#[derive(Clone, Copy, Default)]
#[non_exhaustive]
pub struct Extensions<'a> {
    /// Shows who holds a lock.
    pub inspect: Option<&'a dyn Inspect>,
}

impl std::fmt::Debug for Extensions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Extensions").field("inspect", &self.inspect.is_some()).finish()
    }
}

/// Shows who holds a lock.
#[async_trait]
pub trait Inspect: Send + Sync {
    /// The state of a lock as the store sees it, without changing anything. `None` when the store has no record of it.
    async fn inspect(&self, name: &LockName) -> Result<Option<Inspection>>;
}

/// The state of a lock as the store sees it, for people. It was true when the store looked and may have
/// changed since: never decide by it who may work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The token of the last grant; `None` when there never was one.
    pub last_token: Option<FencingToken>,
    /// The current lease.
    pub lease: Option<LeaseView>,
    /// How many live places wait.
    pub waiters: u64,
}

impl Inspection {
    /// A view of a lock.
    pub const fn new(last_token: Option<FencingToken>, lease: Option<LeaseView>, waiters: u64) -> Self {
        Self { last_token, lease, waiters }
    }
}

/// A lease as the store sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseView {
    /// The token of the lease.
    pub token: FencingToken,
    /// How long it lasts unless it is renewed.
    pub ttl_left: Duration,
    /// Who holds it, where the store kept that.
    pub holder: Option<HolderInfo>,
}

impl LeaseView {
    /// A view of a lease.
    pub const fn new(token: FencingToken, ttl_left: Duration, holder: Option<HolderInfo>) -> Self {
        Self { token, ttl_left, holder }
    }
}

#[async_trait]
impl<B: LockBackend + ?Sized> LockBackend for Arc<B> {
    fn attach(&self, core: CoreHandle) {
        (**self).attach(core);
    }

    async fn acquire(&self, claim: &Claim, ttl: Duration) -> Result<Acquisition> {
        (**self).acquire(claim, ttl).await
    }

    async fn renew(&self, leases: &[LeaseRef], answers: &Answers) {
        (**self).renew(leases, answers).await;
    }

    async fn release(&self, claim: &Claim, certainty: Certainty) -> Result<Release> {
        (**self).release(claim, certainty).await
    }

    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn extensions(&self) -> Extensions<'_> {
        (**self).extensions()
    }
}
