//! The contract of a backend: the trait [`LockBackend`], its requests, replies and capabilities. What backends share is in [`kit`].

#![doc = include_str!("invariants.md")]

mod admin;
mod capabilities;
mod claim;
mod core_handle;
mod grant;
pub mod kit;
mod renewal;
mod requests;
mod watch;

use std::sync::Arc;
use std::time::Duration;

/// The attribute for implementing the traits of this module. Every backend needs it, although it appears in no
/// signature.
#[doc(no_inline)]
pub use async_trait::async_trait;
/// The runtime handle in [`CoreHandle`] is of this version.
#[doc(no_inline)]
pub use tokio;

pub use self::admin::{Admin, NoAdmin};
pub use self::capabilities::{Capabilities, LossNotice, Restart, Scope, StoreClock, TtlScope, Waiting};
pub use self::claim::Claim;
pub use self::core_handle::{CoreHandle, Event};
pub use self::grant::{AcquireOutcome, Confirmation, Grant, PlaceNumber, ReleaseOutcome};
pub use self::renewal::{RenewReplies, RenewReply};
pub use self::requests::{
    AcquireRequest, Delivery, LeaseKind, Mode, OnContention, ReleaseRequest, RenewPolicy, RenewRequest,
};
pub use self::watch::{WatchGuard, WatchNames};
/// What [`Admin`] returns.
#[doc(no_inline)]
pub use crate::admin::{Check, CheckStatus, Listed, ListedName, Listing};
pub use crate::clock::{Clock, Stamp, SystemClock};
use crate::error::Result;
pub use crate::token::OwnerToken;

/// The shortest time for which a store remembers that a claim was withdrawn. A late copy of its acquire that arrives
/// within this time has no effect. No request to a running server stays in flight for longer.
pub const WITHDRAWN_TTL: Duration = Duration::from_secs(60);

/// The longest ttl of a place in a server's queue. A client that dies while it waits blocks those behind it for this
/// long.
pub const LONGEST_PLACE_TTL: Duration = Duration::from_secs(10);

/// A store that can keep leases. The trait is object safe. It has no default methods, so a wrapper that forgets a
/// method does not compile.
///
/// # Contract
/// Each point is proved by cases of the conformance suite.
/// - **One attempt.** No method waits for a lock, and none repeats a request that may have had an effect. A request
///   that certainly had no effect may be sent again within the bound of the call.
/// - **Bounded.** Every call ends by itself within [`Capabilities::call_bound`], connecting included.
/// - **Three outcomes.** Done, not done or unknown. Unknown is an error of kind
///   [`Indeterminate`](crate::ErrorKind::Indeterminate); [`Unavailable`](crate::ErrorKind::Unavailable) promises that
///   the request had no effect and never will.
/// - **Idempotent by claim.** A repeated acquire of a claim that holds replies with the same grant, with a deadline of
///   at least now + ttl; that of a claim that has a place replies with that place. A repeated release replies
///   `NotHeld`.
/// - **Ownership.** A renew or release of a claim that has neither lease nor place changes nothing. Renew creates
///   nothing, except for a lease that the store has lost in a restart or a failover, while it is valid and has been
///   granted to nobody else.
/// - **Fencing.** Tokens of one lock rise with every grant, for ever.
/// - **Stamps** are taken from the [`CoreHandle`] just before the request is sent.
/// - **Dropped calls.** lock-core lets every call run to its end, but a runtime that shuts down drops it at any
///   await: the outcome is unknown then, and later calls are not harmed.
///
/// # What lock-core guarantees
/// A backend relies on these points and does not check them, except by `debug_assert!`. The case
/// `keeper::requests_are_within_what_the_backend_promises` proves them.
/// - **Attached first.** [`attach`](Self::attach) is called once, before every other call.
/// - **Within bounds.** The mode of an acquire is one of [`Capabilities::modes`]. Its ttl is a multiple of
///   [`Capabilities::ttl_granularity`] between [`Capabilities::min_ttl`] and [`Capabilities::max_ttl`], and so is that
///   of a renewal. A [`LockName`](crate::LockName) is valid by its type.
/// - **One batch.** A call renews one to [`Capabilities::renew_batch`] leases and places, each claim once.
/// - **Context.** lock-core adds the lock, the backend and the action to the errors about a lock that it hands on.
/// - **Nothing is left.** An acquire whose reply is [`Granted`](AcquireOutcome::Granted) or
///   [`Queued`](AcquireOutcome::Queued), or that fails with [`Indeterminate`](crate::ErrorKind::Indeterminate), is
///   followed by a release of its claim, unless the backend itself reports the claim as lost. lock-core repeats the
///   release until it has a reply or the ttl has ended.
#[async_trait]
pub trait LockBackend: Send + Sync + 'static {
    /// Takes the handle to lock-core. Called once, before every other call; a backend serves one client.
    fn attach(&self, core: CoreHandle);

    /// Tries once to get the lock.
    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome>;

    /// Renews leases and places, each to its own ttl, and gives each reply as soon as it is known. The outcome of a
    /// request that has no reply when the call ends is unknown. A renewal that makes a lease end sooner
    /// ([`RenewPolicy::Exactly`]) notifies a waiter, by [`Event::EndsSooner`] or [`Event::Changed`], so that the waiter
    /// acquires the lock when the lease ends, and not at its next renewal.
    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies);

    /// Ends the lease or place of a claim. With [`Delivery::InDoubt`], it also makes sure that a request of this claim
    /// that is still in flight has no effect later: not within [`WITHDRAWN_TTL`], and not after a restart of the store
    /// with its data.
    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome>;

    /// What this backend promises. Constant once it is attached.
    fn capabilities(&self) -> Capabilities;

    /// The functions for operators. `None`: the backend has none.
    fn admin(&self) -> Option<&dyn Admin>;

    /// Reports when a lock may be free. `None`: the backend watches no names.
    fn watch_names(&self) -> Option<&dyn WatchNames>;
}

#[async_trait]
impl<B: LockBackend + ?Sized> LockBackend for Arc<B> {
    fn attach(&self, core: CoreHandle) {
        (**self).attach(core);
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        (**self).acquire(request).await
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        (**self).renew(requests, replies).await;
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        (**self).release(request).await
    }

    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        (**self).admin()
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        (**self).watch_names()
    }
}
