//! Acquires a lock: votes, and if a guess was too low a raised token.

use std::time::Duration;

use leasehold_core::backend::kit::quorum::{Absence, Absent, Attempt, Decision, GiveUp, SettlingStep, Tally};
use leasehold_core::backend::kit::{default_margin, lock};
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Claim, Confirmation, Grant, PlaceNumber, RenewReply, RenewRequest, Stamp,
    WITHDRAWN_TTL,
};
use leasehold_core::{Error, ErrorKind, FencingToken, Result};
use tokio::time::Instant;

use super::backend::{Connections, QuorumBackend, too_few};
use super::pending::Pending;
use super::replies::Body;
use super::request::{Operation, Request};
use super::slot::{Slot, Vote};

/// How long an attempt that has failed waits for the replies of servers that are slower than twice the others.
const STRAGGLE: Duration = Duration::from_millis(10);

/// The pause before servers are read again that do not vote yet.
const PAUSE: Duration = Duration::from_millis(20);

/// How an attempt has ended that did not fail with an error.
enum Ended {
    Done(AcquireOutcome),
    /// Several claims share the votes, and none can have a majority. With the pause before another try.
    Split(AcquireOutcome, Duration),
    TooFew(TooFew),
}

/// One attempt and its requests.
struct Acquiring<'a> {
    backend: &'a QuorumBackend,
    connections: &'a Connections,
    claim: &'a Claim,
    vote: Vote,
    tally: Tally,
    pending: Pending<Body>,
    /// Why a server could not be used, if it said so.
    errors: Vec<Option<Error>>,
    /// When the newest requests were sent, and the end of the wait for their replies.
    begun: Instant,
    until: Instant,
    /// The end of the call.
    call_ends: Instant,
    /// For each request to a server.
    bound: Duration,
    ttl: Duration,
}

impl QuorumBackend {
    pub(super) async fn try_acquire(&self, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let AcquireRequest { ref claim, ttl, .. } = *request;
        let until = Instant::now() + self.shared.timeout();
        if let Some(held) = self.held_already(claim, ttl, until).await? {
            return Ok(held);
        }
        let connections = self.connections()?;
        self.await_majority(&connections, until - self.shared.bound(ttl)).await?;
        // An attempt that failed may have left a vote, and so may the call.
        let mut in_doubt = false;
        let of_call = |error: Error, in_doubt: bool| match (in_doubt, error.kind()) {
            (true, ErrorKind::Unavailable) => error.with_kind(ErrorKind::Indeterminate),
            _ => error,
        };
        let mut was_split = false;
        loop {
            let last_begin = until - self.shared.bound(ttl);
            let ended = self.attempt(&connections, claim, ttl, until).await;
            let TooFew { error, is_waiting } = match ended.map_err(|error| of_call(error, in_doubt))? {
                // A caller that does not wait would be refused although nobody holds the lock.
                Ended::Split(_, pause) if !was_split && Instant::now() + pause < last_begin => {
                    was_split = true;
                    tokio::time::sleep(pause).await;
                    continue;
                }
                Ended::Done(outcome) | Ended::Split(outcome, _) => return Ok(outcome),
                Ended::TooFew(too_few) => too_few,
            };
            in_doubt |= error.kind() == ErrorKind::Indeterminate;
            if !is_waiting || Instant::now() >= last_begin {
                return Err(of_call(error, in_doubt));
            }
            // Servers that were just started may vote as soon as all of them were read.
            self.await_settled(last_begin).await.map_err(|error| of_call(error, in_doubt))?;
        }
    }

    /// The lease of a claim that holds already.
    async fn held_already(&self, claim: &Claim, ttl: Duration, until: Instant) -> Result<Option<AcquireOutcome>> {
        let Some(held) = Slot::of(claim).token() else { return Ok(None) };
        let request = RenewRequest::new(claim.clone(), PlaceNumber::NONE, ttl);
        match self.renew_one(request, until).await? {
            RenewReply::Renewed(confirmation) => {
                Ok(Some(AcquireOutcome::Granted(Grant::new(FencingToken::new(held), confirmation))))
            }
            RenewReply::Unknown(error) => Err(error),
            _ => Ok(None),
        }
    }

    /// One attempt.
    async fn attempt(
        &self,
        connections: &Connections,
        claim: &Claim,
        ttl: Duration,
        call_ends: Instant,
    ) -> Result<Ended> {
        let (shared, core) = (&self.shared, self.shared.core()?);
        let begun = Slot::of(claim).begin(claim, shared.quorum);
        let Some((vote, number, fence)) = begun else { return Err(Error::withdrawn()) };
        let (bound, sent) = (shared.bound(ttl), core.stamp());
        let guess = shared.guess(fence);
        let attempt = Attempt { guess, sent, ttl, margin: default_margin(ttl), number, random: rand::random() };
        let mut it = Acquiring {
            backend: self,
            connections,
            claim,
            vote,
            tally: Tally::new(shared.quorum, attempt),
            pending: Pending::new(),
            errors: vec![None; shared.quorum.servers()],
            begun: Instant::now(),
            until: Instant::now() + bound,
            call_ends,
            bound,
            ttl,
        };
        for server in 0..shared.quorum.servers() {
            it.send(server, Operation::Vote { ttl, guess });
        }
        loop {
            match it.tally.decide(core.stamp()) {
                Decision::Wait { until } => it.receive(until).await?,
                Decision::Raise { token } => it.raise(token),
                Decision::Granted { token } => {
                    Slot::of(claim).told(token);
                    let confirmation = Confirmation { ttl, sent, place: PlaceNumber::NONE };
                    let grant = Grant::new(FencingToken::new(token), confirmation);
                    return Ok(Ended::Done(AcquireOutcome::Granted(grant)));
                }
                Decision::GiveUp(why) => return it.give_up(why).await,
            }
        }
    }

    /// Waits until a majority votes.
    ///
    /// # Errors
    /// Why none does, if none will before `until`.
    async fn await_settled(&self, until: Instant) -> Result<()> {
        loop {
            self.settler().read_servers(&self.shared, until).await;
            let left = until.saturating_duration_since(Instant::now());
            let (mut voting, mut waiting) = (0, 0);
            for server in 0..self.shared.quorum.servers() {
                match lock(&self.shared.settling).step(server) {
                    Ok(SettlingStep::Settled) => voting += 1,
                    Ok(SettlingStep::Wait(wait)) if wait > left => waiting += 1,
                    _ => {}
                }
            }
            if voting >= self.shared.quorum.majority() {
                return Ok(());
            }
            if left.is_zero() || waiting >= self.shared.quorum.overlap() {
                return Err(self.not_settled());
            }
            tokio::time::sleep(PAUSE.min(left)).await;
        }
    }

    fn not_settled(&self) -> Error {
        let now = self.shared.core().map_or(Stamp::ZERO, |core| core.stamp());
        let settling = lock(&self.shared.settling);
        if let Some(refused) = (0..self.shared.quorum.servers()).find_map(|server| settling.step(server).err()) {
            return refused.into();
        }
        let text = self.describe(|server| Some(settling.describe(server, now)).filter(|text| text != "votes"));
        Error::new(ErrorKind::Unavailable, text)
    }
}

/// Fewer than a majority can vote.
struct TooFew {
    error: Error,
    /// A server has not been settled yet.
    is_waiting: bool,
}

impl Acquiring<'_> {
    fn send(&mut self, server: usize, operation: Operation) {
        let manager = &self.connections[server];
        match manager.queue(Request::of(self.claim.clone(), self.vote, operation), self.until) {
            Some(reply) => self.pending.push(server, reply),
            None => {
                self.errors[server] = manager.last_error();
                self.tally.not_sent(server);
                manager.request_connection();
            }
        }
    }

    fn raise(&mut self, token: u64) {
        self.begun = Instant::now();
        self.until = (self.begun + self.bound).min(self.call_ends);
        // A vote that is still open is noted by the connection.
        self.pending = Pending::new();
        for server in self.tally.to_raise().collect::<Vec<_>>() {
            self.send(server, Operation::Raise { token });
        }
    }

    /// Waits for one reply, but not beyond this time.
    async fn receive(&mut self, until: Option<Stamp>) -> Result<()> {
        let end = self.backend.earlier(until, self.until)?;
        match self.pending.next(end).await {
            Some((server, reply)) => self.take(server, reply),
            None if end < self.until && !self.pending.is_empty() => {}
            None => self.tally.end(),
        }
        Ok(())
    }

    fn take(&mut self, server: usize, reply: Option<Result<Body>>) {
        match reply {
            Some(Ok(Body::Vote(reply))) => {
                let now = self.backend.shared.core().map_or(Stamp::ZERO, |core| core.stamp());
                self.tally.reply(server, reply, now);
            }
            Some(Ok(Body::Raise(reply))) => self.tally.raise_reply(server, reply),
            Some(Err(error)) => {
                match error.kind() {
                    ErrorKind::Indeterminate => self.tally.no_reply(server),
                    _ => self.tally.not_sent(server),
                }
                self.errors[server] = Some(error);
            }
            _ => self.tally.no_reply(server),
        }
    }

    async fn give_up(mut self, why: GiveUp) -> Result<Ended> {
        self.withdraw().await;
        let left: Vec<_> = self.tally.to_withdraw().collect();
        for withdrawal in &left {
            let request = Request::of(self.claim.clone(), self.vote, Operation::Withdraw { tombstone: None });
            self.backend.member(withdrawal.server).leave(&request, self.ttl);
        }
        // An error says whether the attempt may have left a vote.
        let kind = if left.is_empty() { ErrorKind::Unavailable } else { ErrorKind::Indeterminate };
        match why {
            GiveUp::Contended { retry_after } => {
                let contended = AcquireOutcome::Contended { retry_after };
                Ok(match self.tally.split_pause() {
                    Some(pause) => Ended::Split(contended, pause),
                    None => Ended::Done(contended),
                })
            }
            GiveUp::Withdrawn => Err(Error::withdrawn()),
            GiveUp::TooLate => Err(Error::new(kind, "the servers replied too late for a lease of this ttl")),
            GiveUp::TooFew(absent) => {
                let is_waiting = absent.iter().any(|absent| absent.why == Absence::Unsettled);
                let errors = absent.iter().filter_map(|absent| self.errors[absent.server].as_ref());
                Ok(Ended::TooFew(TooFew { error: too_few(kind, self.text(&absent), errors), is_waiting }))
            }
        }
    }

    fn text(&self, absent: &[Absent]) -> String {
        self.backend.describe(|server| {
            let absent = absent.iter().find(|absent| absent.server == server)?;
            // The error of the call says once that its effect is unknown.
            let text = |error: &Error| error.clone().without_effect().to_string();
            Some(self.errors[server].as_ref().map_or_else(|| absent.why.to_string(), text))
        })
    }

    /// Withdraws the vote from all servers that have it or may have it.
    async fn withdraw(&mut self) {
        // The replies of slower servers are on their way. A vote with a reply needs no tombstone.
        let patience = (Instant::now() + self.begun.elapsed() + STRAGGLE).min(self.until);
        while let Some((server, reply)) = self.pending.next(patience).await {
            self.take(server, reply);
        }
        // A call that has used its time still asks: the connection delivers the requests.
        self.until = (Instant::now() + self.bound).min(self.call_ends).max(Instant::now() + STRAGGLE);
        let mut pending = Pending::new();
        for withdrawal in self.tally.to_withdraw().collect::<Vec<_>>() {
            let tombstone = withdrawal.tombstone.then(|| WITHDRAWN_TTL.max(self.ttl));
            let request = Request::of(self.claim.clone(), self.vote, Operation::Withdraw { tombstone });
            pending.extend(withdrawal.server, self.connections[withdrawal.server].queue(request, self.until));
        }
        while let Some((server, reply)) = pending.next(self.until).await {
            if matches!(reply, Some(Ok(_))) {
                self.tally.withdrawn(server);
            }
        }
    }
}
