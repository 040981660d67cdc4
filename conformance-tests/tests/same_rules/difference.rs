//! Differences that are injected into the memory store, in one rule each.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold_conformance::hooks::{Hooks, Inner};
use leasehold_core::Result;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, CoreHandle, Delivery, Event, OnContention, ReleaseOutcome, ReleaseRequest,
    RenewPolicy, RenewReply, RenewRequest,
};

use super::pair::Kind;

/// The rule that the memory store breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// A waiter gets no place.
    NoPlaces,
    /// A renewal may shorten what is renewed.
    RenewalsShorten,
    /// A renewal of a claim without a lease or place creates a place.
    RenewalsCreate,
    /// A withdrawn claim leaves no tombstone.
    NoTombstones,
    /// A confirmed release leaves a tombstone.
    AlwaysTombstones,
    /// A handoff notifies nobody.
    SilentHandoffs,
    /// A renewal of a place moves it to the end of the queue.
    RenewalsMoveBack,
    /// A lease does not end with its connection.
    LeasesOutliveConnections,
}

impl Difference {
    /// Those that concern a kind of server.
    pub(super) fn of(kind: Kind) -> &'static [Self] {
        const ALL: [Difference; 8] = [
            Difference::RenewalsShorten,
            Difference::RenewalsCreate,
            Difference::NoTombstones,
            Difference::AlwaysTombstones,
            // Of a server with a queue.
            Difference::NoPlaces,
            Difference::SilentHandoffs,
            Difference::RenewalsMoveBack,
            // Of leases that are kept by connections.
            Difference::LeasesOutliveConnections,
        ];
        match kind {
            Kind::MySql => &ALL[..4],
            Kind::Redis => &ALL[..7],
            Kind::ForUpdate => &ALL,
        }
    }
}

#[async_trait]
impl Hooks for Difference {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        match self {
            Self::NoPlaces => inner.backend.acquire(&request.clone().on_contention(OnContention::Fail)).await,
            _ => inner.backend.acquire(request).await,
        }
    }

    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let mut leases = leases.to_vec();
        for lease in &mut leases {
            if *self == Self::RenewalsShorten {
                lease.policy = RenewPolicy::Exactly;
            }
        }
        let replies = inner.renew(&leases).await;
        for (index, reply) in &replies {
            if let (Self::RenewalsCreate, RenewReply::Lost) = (self, reply) {
                let RenewRequest { claim, ttl, .. } = leases[*index].clone();
                let _ = inner.backend.acquire(&AcquireRequest::new(claim, ttl)).await;
            }
            if let (Self::RenewalsMoveBack, RenewReply::Waiting { .. }) = (self, reply) {
                let RenewRequest { claim, ttl, .. } = leases[*index].clone();
                let _ = inner.backend.release(&ReleaseRequest::new(claim.clone(), Delivery::Confirmed)).await;
                let _ = inner.backend.acquire(&AcquireRequest::new(claim, ttl)).await;
            }
        }
        replies
    }

    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let delivery = match self {
            Self::NoTombstones => Delivery::Confirmed,
            Self::AlwaysTombstones => Delivery::InDoubt,
            _ => request.delivery,
        };
        inner.backend.release(&ReleaseRequest::new(request.claim.clone(), delivery)).await
    }

    fn event(&self, _: &Arc<Inner>, core: &CoreHandle, event: Event) {
        if *self != Self::SilentHandoffs {
            core.event(event);
        }
    }
}
