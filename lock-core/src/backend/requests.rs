//! The requests that lock-core makes of a backend, one type for each call.

use std::time::Duration;

use crate::backend::{Claim, PlaceNumber};

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// By one holder at a time.
    #[default]
    Exclusive,
    /// By any number of holders, none of them exclusive. No backend supports it yet.
    Shared,
}

/// Whether the lease keeper renews a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LeaseKind {
    /// The keeper renews the lease until it is released.
    #[default]
    Kept,
    /// The lease ends when its ttl is over.
    Fixed,
}

/// What an acquire requests if another claim holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnContention {
    /// A place in the server's queue, if the server keeps one.
    #[default]
    Queue,
    /// Nothing: the reply is [`Contended`](crate::backend::AcquireOutcome::Contended), and the store keeps nothing.
    /// With a place, an acquire that does not wait would have to withdraw it: that costs another call, and leaves a gap
    /// in the queue that other clients step over.
    Fail,
}

/// One attempt to acquire a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The claim that requests the lock.
    pub claim: Claim,
    /// The mode of the lease: one of [`Capabilities::modes`](crate::backend::Capabilities::modes).
    pub mode: Mode,
    /// The ttl of the lease, within [`min_ttl`](crate::backend::Capabilities::min_ttl) and
    /// [`max_ttl`](crate::backend::Capabilities::max_ttl).
    pub ttl: Duration,
    /// Whether the lease will be renewed. Only stores whose leases share a session need it.
    pub kind: LeaseKind,
    /// What is requested if another claim holds the lock.
    pub on_contention: OnContention,
    /// How many earlier acquires of this claim had the reply [`Contended`](crate::backend::AcquireOutcome::Contended).
    pub attempt: u32,
}

impl AcquireRequest {
    /// The first attempt of a claim to acquire a lock exclusively, with a lease that the keeper renews, and with a
    /// place if another claim holds the lock.
    pub fn new(claim: Claim, ttl: Duration) -> Self {
        let (mode, kind, on_contention) = (Mode::default(), LeaseKind::default(), OnContention::default());
        Self { claim, mode, ttl, kind, on_contention, attempt: 0 }
    }

    /// The same request with another choice for contention.
    #[must_use]
    pub fn on_contention(mut self, on_contention: OnContention) -> Self {
        self.on_contention = on_contention;
        self
    }

    /// The same request by another claim, for a backend that wraps another one.
    #[must_use]
    pub fn by(&self, claim: Claim) -> Self {
        Self { claim, ..self.clone() }
    }
}

/// How far a renewal moves the deadline at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RenewPolicy {
    /// To the later of the old deadline and now + ttl: a late copy never shortens a lease.
    AtLeast,
    /// To now + ttl, even if that is earlier. So a lease that was released within its `min_hold` expires at the end of
    /// it.
    Exactly,
}

/// A request to renew a lease or a place.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewRequest {
    /// The claim that has it.
    pub claim: Claim,
    /// The place of the claim, as far as it is known. A lease keeps the number of its place.
    pub place: PlaceNumber,
    /// The ttl to renew to.
    pub ttl: Duration,
    /// Whether the deadline may become earlier.
    pub policy: RenewPolicy,
}

impl RenewRequest {
    /// A request that renews to `ttl` and never shortens.
    pub fn new(claim: Claim, place: PlaceNumber, ttl: Duration) -> Self {
        Self { claim, place, ttl, policy: RenewPolicy::AtLeast }
    }

    /// The same request by another claim, for a backend that wraps another one.
    #[must_use]
    pub fn by(&self, claim: Claim) -> Self {
        Self { claim, ..self.clone() }
    }
}

/// Whether the client has the reply to every request of a claim.
#[expect(clippy::exhaustive_enums, reason = "a request has a reply or it has none")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Every request has a reply.
    Confirmed,
    /// At least one request has no reply and may still take effect. The backend makes sure that a late copy has no
    /// effect.
    InDoubt,
}

/// A request to end a lease or a place.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// The claim that has it.
    pub claim: Claim,
    /// Whether a request of the claim may still be in flight.
    pub delivery: Delivery,
}

impl ReleaseRequest {
    /// A request that ends the lease or place of `claim`.
    pub fn new(claim: Claim, delivery: Delivery) -> Self {
        Self { claim, delivery }
    }

    /// The same request by another claim, for a backend that wraps another one.
    #[must_use]
    pub fn by(&self, claim: Claim) -> Self {
        Self { claim, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder_info::HolderInfo;
    use crate::name::LockName;
    use crate::token::OwnerToken;
    use std::sync::Arc;

    fn claim(name: &str) -> Claim {
        let holder = Arc::new(HolderInfo::of_this_process("test").unwrap());
        Claim::new(LockName::new(name).unwrap(), OwnerToken::from_bytes([1; 16]), holder)
    }

    #[test]
    fn a_request_by_another_claim_differs_in_the_claim_alone() {
        let (ann, bob, ttl) = (claim("ann"), claim("bob"), Duration::from_secs(7));
        let acquire = AcquireRequest::new(ann.clone(), ttl).on_contention(OnContention::Fail).by(bob.clone());
        assert_eq!((acquire.claim.name(), acquire.ttl, acquire.on_contention), (bob.name(), ttl, OnContention::Fail));
        let renew = RenewRequest::new(ann.clone(), PlaceNumber::new(3), ttl).by(bob.clone());
        assert_eq!((renew.claim.name(), renew.place, renew.ttl), (bob.name(), PlaceNumber::new(3), ttl));
        let release = ReleaseRequest::new(ann, Delivery::InDoubt).by(bob.clone());
        assert_eq!((release.claim.name(), release.delivery), (bob.name(), Delivery::InDoubt));
    }
}
