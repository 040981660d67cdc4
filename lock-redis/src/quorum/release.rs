//! Releases a lock: withdraws the vote from all servers.

use leasehold_core::Result;
use leasehold_core::backend::kit::quorum::{ReleaseDecision, ReleaseTally};
use leasehold_core::backend::{Delivery, ReleaseOutcome, ReleaseRequest, WITHDRAWN_TTL};
use tokio::time::Instant;

use super::backend::QuorumBackend;
use super::pending::Pending;
use super::replies::Body;
use super::request::{Operation, Request};
use super::slot::Slot;

impl QuorumBackend {
    pub(super) async fn try_release(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        let ReleaseRequest { ref claim, delivery, .. } = *request;
        let (shared, core) = (&self.shared, self.shared.core()?);
        let until = Instant::now() + shared.timeout();
        let connections = self.connections()?;
        let slot = Slot::of(claim);
        slot.forget_lease();
        if delivery == Delivery::InDoubt {
            slot.withdraw();
        }
        self.await_majority(&connections, until - shared.timeout() / 4).await?;
        let vote = slot.vote(claim);
        let mut tally = ReleaseTally::new(shared.quorum, core.stamp());
        let mut pending = Pending::new();
        let mut left: Vec<usize> = (0..shared.quorum.servers()).collect();
        for (server, manager) in connections.iter().enumerate() {
            let is_unanswered = slot.needs_tombstone(server, delivery == Delivery::InDoubt);
            let tombstone = is_unanswered.then(|| WITHDRAWN_TTL.max(shared.settings.longest_ttl));
            let withdrawal = Request::of(claim.clone(), vote, Operation::Withdraw { tombstone });
            match manager.queue(withdrawal.clone(), until) {
                Some(reply) => pending.push(server, reply),
                None => {
                    manager.request_connection();
                    tally.no_reply(server);
                }
            }
        }
        let outcome = loop {
            let patience = match tally.decide(core.stamp()) {
                ReleaseDecision::Wait { until } => until,
                ReleaseDecision::Ended(outcome) => break Some(outcome),
                ReleaseDecision::Unknown => break None,
            };
            let end = self.earlier(patience, until)?;
            match pending.next(end).await {
                Some((server, Some(Ok(Body::Withdraw(reply))))) => {
                    left.retain(|other| *other != server);
                    tally.reply(server, reply, core.stamp());
                }
                Some((server, _)) => tally.no_reply(server),
                None if end < until && !pending.is_empty() => {}
                None => tally.end(),
            }
        };
        // Dropped replies would take requests back that were not sent yet. A server without a reply is asked again when it
        // is connected to again.
        let withdrawal = Request::of(claim.clone(), vote, Operation::Withdraw { tombstone: None });
        let (members, ttl) = (self.members().to_vec(), shared.settings.longest_ttl);
        let rest = async move {
            while let Some((server, reply)) = pending.next(until).await {
                if matches!(reply, Some(Ok(_))) {
                    left.retain(|other| *other != server);
                }
            }
            left.iter().for_each(|server| members[*server].leave(&withdrawal, ttl));
        };
        tokio::spawn(rest);
        outcome.ok_or_else(|| shared.unconfirmed("the release"))
    }
}
