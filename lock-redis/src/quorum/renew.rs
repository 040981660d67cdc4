//! Renews leases on all servers, and joins those that do not vote for them.

use std::sync::{Arc, Mutex};

use leasehold_core::Result;
use leasehold_core::backend::kit::lock;
use leasehold_core::backend::kit::quorum::{RenewOutcome, RenewTally};
use leasehold_core::backend::{Confirmation, PlaceNumber, RenewPolicy, RenewReplies, RenewReply, RenewRequest, Stamp};
use tokio::time::Instant;

use super::backend::QuorumBackend;
use super::pending::Pending;
use super::replies::Body;
use super::request::{Operation, Request};
use super::slot::Slot;

impl QuorumBackend {
    pub(super) async fn try_renew(
        &self,
        requests: &[RenewRequest],
        replies: &RenewReplies,
        until: Instant,
    ) -> Result<()> {
        let (shared, core) = (&self.shared, self.shared.core()?);
        let connections = self.connections()?;
        self.await_majority(&connections, until - shared.timeout() / 4).await?;
        let servers = shared.quorum.servers();
        let mut tallies: Vec<_> = requests.iter().map(|_| RenewTally::new(shared.quorum)).collect();
        let mut pending = Pending::new();
        // Before the first request: the validity counts from it.
        let sent = core.stamp();
        let put = |index: usize, tally: &RenewTally| {
            if let Some(reply) = self.reply(&requests[index], tally, sent) {
                replies.put(index, reply);
            }
        };
        for (index, request) in requests.iter().enumerate() {
            let claim = &request.claim;
            let slot = Slot::of(claim);
            let operation = Operation::Hold {
                ttl: request.ttl,
                token: slot.token().unwrap_or(0),
                exactly: request.policy == RenewPolicy::Exactly,
            };
            for (server, manager) in connections.iter().enumerate() {
                match manager.queue(Request::of(claim.clone(), slot.vote(claim), operation), until) {
                    Some(reply) => pending.push(index * servers + server, reply),
                    None => {
                        manager.request_connection();
                        tallies[index].no_reply(server);
                    }
                }
            }
            put(index, &tallies[index]);
        }
        while let Some((number, reply)) = pending.next(until).await {
            let (index, server) = (number / servers, number % servers);
            match reply {
                Some(Ok(Body::Hold(reply))) => tallies[index].reply(server, reply),
                _ => tallies[index].no_reply(server),
            }
            put(index, &tallies[index]);
        }
        for (index, tally) in tallies.iter_mut().enumerate() {
            tally.end();
            put(index, tally);
        }
        Ok(())
    }

    /// Renews one lease.
    pub(super) async fn renew_one(&self, request: RenewRequest, until: Instant) -> Result<RenewReply> {
        let reply = Arc::new(Mutex::new(None));
        let replies = RenewReplies::new(1, {
            let reply = reply.clone();
            move |_, new| *lock(&reply) = Some(new)
        });
        self.try_renew(&[request], &replies, until).await?;
        drop(replies);
        let reply = lock(&reply).take();
        Ok(reply.unwrap_or(RenewReply::Lost))
    }

    /// The reply to a request, as soon as it is certain.
    fn reply(&self, request: &RenewRequest, tally: &RenewTally, sent: Stamp) -> Option<RenewReply> {
        Some(match tally.outcome()? {
            RenewOutcome::Renewed => {
                RenewReply::Renewed(Confirmation { ttl: request.ttl, sent, place: PlaceNumber::NONE })
            }
            RenewOutcome::Lost => {
                Slot::of(&request.claim).forget_lease();
                RenewReply::Lost
            }
            RenewOutcome::Unknown => RenewReply::Unknown(self.shared.unconfirmed("the lease")),
        })
    }
}
