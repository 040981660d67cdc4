//! Administration: inspect a lock, and break a lease. A list would have to merge those of all servers, and is not
//! offered.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::admin::{Check, CheckStatus, Listing};
use leasehold_core::backend::{Admin, NoAdmin, WITHDRAWN_TTL};
use leasehold_core::{Error, ErrorKind, FencingToken, HolderInfo, LeaseInfo, LockInfo, LockName, Result};
use tokio::time::Instant;

use super::backend::{Connections, QuorumBackend, share};
use super::pending::Pending;
use super::replies::{self, Body, Record};
use super::request::{Operation, Request, Subject};
use super::slot::Vote;
use crate::connection::script_call;
use crate::errors::{Failure, refused};
use crate::examine::{checks_of, merge};

/// How often a break raises its token, if other clients acquire the lock meanwhile.
const RAISES: usize = 3;

/// What a majority of the servers says about a lock.
struct Seen {
    /// The lease, if a majority votes for it.
    lease: Option<(Vote, FencingToken, Duration, Option<HolderInfo>)>,
    /// The last token that a majority has accepted; `None` if the lock was never used.
    token: Option<FencingToken>,
    /// The highest fence.
    fence: u64,
}

impl QuorumBackend {
    async fn read(&self, connections: &Connections, name: &LockName, until: Instant) -> Result<Option<Seen>> {
        let script = &self.shared.scripts.inspect;
        let (mut records, mut errors) = (Vec::new(), Vec::new());
        // One after the other: an operator asks once, and the fewest requests say all.
        for (server, manager) in connections.iter().enumerate() {
            let until = share(until, self.shared.quorum.servers() - server);
            let read = async {
                let connection = manager.connection(until).await?;
                let mut call = script_call(script, 1);
                self.shared.keys.add_record(&mut call, name);
                let value = connection.run(script, &call, until).await?;
                let record = replies::record(&value).ok_or(Failure::UnexpectedReply)?;
                record.map_err(|()| refused("UNKNOWNFORMAT"))
            };
            match read.await {
                Ok(record) => records.push(record),
                Err(error) => errors.push(error),
            }
        }
        let quorum = self.shared.quorum;
        if records.len() < quorum.majority() {
            let first = errors.into_iter().next().unwrap_or_else(|| Failure::UnexpectedReply.into());
            return Err(first.without_effect());
        }
        let records: Vec<Record> = records.into_iter().flatten().collect();
        Ok((!records.is_empty()).then(|| seen(&records, quorum.majority())))
    }
}

fn seen(records: &[Record], majority: usize) -> Seen {
    let accepted = |token: u64| records.iter().filter(|record| record.fence >= token).count() >= majority;
    let tokens = records.iter().map(|record| record.token).filter(|token| *token > 0 && accepted(*token));
    let token_of = tokens.max();
    let live = || records.iter().filter(|record| !record.left.is_zero());
    let lease = live().find_map(|record| {
        let mut left: Vec<_> = live().filter(|other| other.vote == record.vote).map(|other| other.left).collect();
        left.sort_unstable();
        // The lease ends with the vote that leaves fewer than a majority.
        let ends = *left.get(left.len().checked_sub(majority)?)?;
        let tokens = live().filter(|other| other.vote == record.vote).map(|other| other.token);
        let token = tokens.max().filter(|token| *token > 0)?;
        let holder = HolderInfo::decode(&record.holder).map(|(_, holder)| holder);
        Some((record.vote, FencingToken::new(token), ends, holder))
    });
    let fence = records.iter().map(|record| record.fence).max().unwrap_or(0);
    Seen { lease, token: token_of.map(FencingToken::new), fence }
}

#[async_trait]
impl Admin for QuorumBackend {
    async fn inspect(&self, name: &LockName) -> Result<Option<LockInfo>> {
        let until = Instant::now() + self.shared.timeout();
        let connections = self.connections()?;
        self.await_majority(&connections, until).await?;
        let seen = self.read(&connections, name, until).await?;
        Ok(seen.map(|seen| {
            let lease = seen.lease.map(|(_, token, left, holder)| LeaseInfo::new(token, left, holder));
            LockInfo::new(seen.token, lease.into_iter().collect(), None)
        }))
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Listing> {
        NoAdmin.list(prefix, limit).await
    }

    async fn break_lock(&self, name: &LockName, broken: FencingToken) -> Result<Option<FencingToken>> {
        let until = Instant::now() + self.shared.timeout();
        let connections = self.connections()?;
        self.await_majority(&connections, until).await?;
        let Some(seen) = self.read(&connections, name, until).await? else { return Ok(None) };
        let Some((vote, held, ..)) = seen.lease else { return Ok(None) };
        if held != broken {
            return Ok(None);
        }
        let mut raised = seen.fence + 1;
        for _ in 0..RAISES {
            let mut pending = Pending::new();
            let subject = Subject::Vote(name.clone(), vote);
            for (server, manager) in connections.iter().enumerate() {
                // For as long as the holder, which may not learn of the break, may still try to get votes.
                let ttl = WITHDRAWN_TTL.max(self.shared.settings.longest_ttl);
                let operation = Operation::Break { token: raised, ttl };
                let request = Request { subject: subject.clone(), operation };
                pending.extend(server, manager.queue(request, until));
            }
            let (mut accepted, mut highest) = (0, raised);
            while let Some((_, reply)) = pending.next(until).await {
                match reply {
                    Some(Ok(Body::Break(Ok(())))) => {
                        accepted += 1;
                        if accepted >= self.shared.quorum.majority() {
                            break;
                        }
                    }
                    Some(Ok(Body::Break(Err(fence)))) => highest = highest.max(fence),
                    _ => {}
                }
            }
            if accepted >= self.shared.quorum.majority() {
                return Ok(Some(FencingToken::new(raised)));
            }
            raised = highest + 1;
        }
        let text = "fewer servers than a majority confirmed that the lease is broken";
        Err(Error::new(ErrorKind::Indeterminate, text))
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        let until = Instant::now() + self.shared.timeout();
        let connections = self.connections()?;
        self.await_majority(&connections, until).await?;
        let mut checks: Vec<Check> = Vec::new();
        for (server, manager) in connections.iter().enumerate() {
            let address = self.member(server).address();
            let until = share(until, self.shared.quorum.servers() - server);
            let of_server = async { checks_of(&*manager.connection(until).await?, until).await };
            let of_server = match of_server.await {
                Ok(checks) => checks,
                Err(error) => {
                    let status = CheckStatus::error("a lock needs a majority of the servers, and should have all");
                    vec![Check::new("server", error.to_string(), status)]
                }
            };
            merge(&mut checks, of_server, address);
        }
        Ok(checks)
    }
}
