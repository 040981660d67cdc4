//! One server of a quorum: what is checked on a connection to it, and the calls.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::backend::kit::quorum::{HoldRequest, RunId, SettlingStep, VoteConfirmation, VoteReply, Votes};
use leasehold_core::backend::kit::{Attachment, default_margin, lock};
use leasehold_core::backend::{CoreHandle, Stamp};
use leasehold_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::replies::{self, Body};
use super::request::{Operation, Request};
use super::residues::Residues;
use super::shared::Shared;
use super::slot::Slot;
use crate::connection::{Connection, script_call};
use crate::endpoint::{Endpoint, check_requirements};
use crate::errors::{Failure, refused};
use crate::protocol::Protocol;
use crate::sentinel::Primary;

pub(super) struct Member {
    pub(super) shared: Arc<Shared>,
    /// Its place in the URL.
    pub(super) number: usize,
    pub(super) residues: Residues,
}

impl Member {
    pub(super) fn new(shared: Arc<Shared>, number: usize) -> Self {
        Self { shared, number, residues: Residues::default() }
    }

    pub(super) fn address(&self) -> &str {
        &self.endpoint().address
    }

    /// Notes that a vote may have been left, for this long at most.
    pub(super) fn leave(&self, request: &Request, ttl: Duration) {
        self.residues.add(request.name(), request.vote(), ttl);
        self.shared.left.notify_one();
    }

    fn stamp(&self) -> Stamp {
        self.shared.core.get().map_or(Stamp::ZERO, CoreHandle::stamp)
    }

    /// Reads the server. With `since`, notes that its present run is unsettled.
    pub(super) async fn read(
        connection: &Connection<Self>,
        since: bool,
        until: Instant,
    ) -> Result<Result<replies::Server>, Failure> {
        let it = connection.protocol();
        let script = &it.shared.scripts.state;
        let mut call = script_call(script, 2);
        call.arg(it.shared.keys.quorum()).arg(it.shared.keys.quorum_since());
        if since {
            call.arg("s");
        }
        let sent = it.stamp();
        let value = connection.run(script, &call, until).await?;
        let server = replies::server(&value, sent, it.stamp()).ok_or(Failure::UnexpectedReply)?;
        if let Ok(server) = &server {
            it.shared.observe(it.number, u64::try_from(server.reading.time.as_micros()).unwrap_or(0));
        }
        Ok(server.map_err(|()| refused(&format!("UNKNOWNFORMAT of the key {}", it.shared.keys.quorum()))))
    }

    fn check_requirements(&self, server: &replies::Server) -> Result<()> {
        let address = self.address();
        let unsupported = |text: String| Err(Error::new(ErrorKind::Unsupported, text));
        if server.is_cluster {
            return unsupported(format!(
                "the server at {address} belongs to a Redis Cluster: a quorum needs independent servers, without \
                 `cluster-enabled`"
            ));
        }
        if server.role != "master" {
            return unsupported(format!(
                "the server at {address} is a replica, which votes as its primary does: name independent primaries in \
                 the URL"
            ));
        }
        let on_eviction = self.shared.settings.common.on_eviction;
        check_requirements(address, server.version, &server.eviction, on_eviction)
    }

    /// Notes in the bookkeeping of the claim what the server says.
    fn note(&self, request: &Request, body: &Body, run: &RunId, sent: Stamp) {
        let Some(claim) = request.claim() else { return };
        let (slot, number) = (Slot::of(claim), self.number);
        let confirmation = |ttl: Duration| {
            let until = sent.plus(ttl.saturating_sub(default_margin(ttl)));
            VoteConfirmation { run: run.clone(), sent, until }
        };
        if let Body::Vote(VoteReply::Voted { fence } | VoteReply::Held { fence, .. }) = *body {
            slot.see_fence(fence);
        }
        slot.change(claim, request.vote(), |votes| match (request.operation, body) {
            (Operation::Vote { ttl, .. }, Body::Vote(reply)) => {
                votes.answered(number);
                match reply {
                    VoteReply::Accepted | VoteReply::Voted { .. } => votes.confirmed(number, confirmation(ttl)),
                    _ => votes.missing(number),
                }
            }
            (Operation::Hold { ttl, .. }, Body::Hold(reply)) => votes.reply(number, *reply, confirmation(ttl)),
            _ => {}
        });
    }

    /// Counts a request of a claim that has no reply, or one less: the release of such a claim leaves a tombstone.
    fn count(&self, request: &Request, count: fn(&mut Votes, usize)) {
        if let (Some(claim), Operation::Vote { .. } | Operation::Hold { .. }) = (request.claim(), request.operation) {
            Slot::of(claim).change(claim, request.vote(), |votes| count(votes, self.number));
        }
    }

    async fn send(
        connection: &Connection<Self>,
        requests: &[Request],
        until: Instant,
    ) -> Result<Vec<Result<Body>>, Failure> {
        let it = connection.protocol();
        let run = connection.session().get().ok_or_else(Failure::aborted)?;
        let now = it.stamp();
        let holds: Vec<_> = requests.iter().map(|request| request.hold(it.number, run, now)).collect();
        let script = &it.shared.scripts.exchange;
        let mut call = script_call(script, requests.len() + 1);
        call.arg(it.shared.keys.quorum());
        let (mut packed, mut holders) = (Vec::with_capacity(30 * requests.len()), Vec::<String>::new());
        for (request, hold) in requests.iter().zip(&holds) {
            it.shared.keys.add_record(&mut call, request.name());
            let holder = request.claim().filter(|_| request.has_holder(*hold)).map(|claim| {
                // If the key has only a digest of the name, the record has to keep the name.
                let named = !it.shared.keys.contains_name(claim.name());
                claim.holder().encode(named.then(|| claim.name()))
            });
            let index = holder.map_or(0, |holder| {
                let at = holders.iter().position(|known| *known == holder).unwrap_or_else(|| {
                    holders.push(holder);
                    holders.len() - 1
                });
                // After the two arguments for all requests. A call has far fewer requests than this can count.
                u8::try_from(at + 3).unwrap_or(0)
            });
            request.pack(*hold, index, &mut packed);
        }
        let mut common = run.as_str().as_bytes().to_vec();
        common.extend(u64::try_from(it.shared.settings.common.retention.as_micros()).unwrap_or(u64::MAX).to_be_bytes());
        call.arg(common).arg(packed);
        for holder in &holders {
            call.arg(holder);
        }
        requests.iter().for_each(|request| it.count(request, Votes::sent));
        let sent = it.stamp();
        let value = connection.run(script, &call, until).await?;
        let operations =
            requests.iter().zip(&holds).map(|(request, hold)| (request.operation, *hold == HoldRequest::Join));
        let (time, bodies) = replies::exchanged(value, operations).ok_or(Failure::UnexpectedReply)?;
        it.shared.observe(it.number, time);
        let replies = requests.iter().zip(bodies).map(|(request, body)| {
            let body = body.map_err(|text| {
                it.count(request, Votes::answered);
                refused(&text)
            })?;
            it.note(request, &body, run, sent);
            if body == Body::Vote(VoteReply::Unsettled) {
                it.shared.unsettled.notify_one();
            }
            Ok(body)
        });
        Ok(replies.collect())
    }
}

impl Protocol for Member {
    type Request = Request;
    type Reply = Body;
    /// The run of the server.
    type Session = OnceLock<RunId>;

    fn endpoint(&self) -> &Endpoint {
        &self.shared.endpoints[self.number]
    }

    fn attachment(&self) -> &Attachment {
        &self.shared.core
    }

    fn session(&self) -> Self::Session {
        OnceLock::new()
    }

    fn channels(&self) -> Vec<String> {
        Vec::new()
    }

    fn handle_message(&self, _channel: &[u8], _payload: &[u8], _primary: Option<&Primary>, _session: &Self::Session) {}

    async fn check(connection: &Connection<Self>, until: Instant) -> Result<Result<()>, Failure> {
        let it = connection.protocol();
        let server = match Self::read(connection, false, until).await? {
            Ok(server) => server,
            Err(error) => return Ok(Err(error)),
        };
        if let Err(error) = it.check_requirements(&server) {
            return Ok(Err(error));
        }
        let run = server.reading.run.clone();
        let step = {
            let mut settling = lock(&it.shared.settling);
            settling.read(it.number, server.reading);
            let step = settling.step(it.number);
            if step.is_err() {
                // This connection ends, and must not make the connections to other servers end too.
                settling.unreachable(it.number);
            }
            step
        };
        match step {
            Ok(SettlingStep::Settled) => {}
            Ok(_) => it.shared.unsettled.notify_one(),
            // A client with another list of servers would have a majority of its own.
            Err(refused) => return Ok(Err(refused.into())),
        }
        let _ = connection.session().set(run);
        Ok(Ok(()))
    }

    fn has_options(_request: &Request) -> bool {
        false
    }

    fn can_share_call(&self, _one: &Request, _other: &Request) -> bool {
        true
    }

    async fn exchange(connection: &Connection<Self>, requests: &[Request], until: Instant) -> Vec<Result<Body>> {
        match Self::send(connection, requests, until).await {
            Ok(replies) => replies,
            Err(failure) => {
                let error = Error::from(failure);
                // A server that has replied with an error has done nothing: the script ends itself only before its first
                // write.
                if error.kind() != ErrorKind::Indeterminate {
                    requests.iter().for_each(|request| connection.protocol().count(request, Votes::answered));
                }
                requests.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }
}
