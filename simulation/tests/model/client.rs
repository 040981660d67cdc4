//! A client: the keeper's own state machines, and what the keeper does around them.

use leasehold_core::backend::{
    AcquireOutcome, Confirmation, Delivery, Grant, LeaseKind, Mode, OnContention, PlaceNumber, RenewReply, Stamp,
};
use leasehold_core::machines::{
    Disposal, Ended, Ending, HeldLease, Joining, LeaseOutput, Outputs, QueueOutput, Rules, Terms, WaitQueue, Why,
};
use leasehold_core::{Error, ErrorKind, FencingToken};

use super::{Broken, CLAIMS, Push, Reply, Request, Sabotage, Verb, World, at, ticks};

#[derive(Clone, Debug)]
pub(super) struct Client {
    index: u8,
    pub(super) queue: Option<Queue>,
    pub(super) leases: Vec<Lease>,
    disposals: Vec<Closing>,
    pub(super) enters_left: u8,
    sends_left: u8,
    claims: u8,
    acquires: u64,
    /// The claims that have had a reply, each with the tick of the newest request that has one.
    answered: Vec<u8>,
    newest: Vec<(u8, u8)>,
    pub(super) is_dead: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Queue {
    claim: u8,
    machine: WaitQueue<u64>,
    /// The waiting acquires, in order.
    pub(super) acquires: Vec<u64>,
    wake: Option<Stamp>,
}

#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) claim: u8,
    machine: HeldLease,
    given_up: bool,
    wake: Option<Stamp>,
}

#[derive(Clone, Debug)]
struct Closing {
    claim: u8,
    machine: Disposal,
    wake: Stamp,
}

/// The requests of a client, and the tokens that its holders see.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) requests: Vec<Request>,
    pub(super) tokens: Vec<u64>,
}

/// The time and the world.
pub(super) struct Scene<'a> {
    pub(super) world: &'a World,
    pub(super) now: u8,
    pub(super) sent: Sent,
}

impl Scene<'_> {
    fn rules(&self) -> Rules {
        Rules {
            call_bound: ticks(1),
            min_ttl: ticks(1),
            ttl_granularity: ticks(1),
            max_place_ttl: ticks(self.world.place_ttl),
            margin_percent: 0,
            sessions: false,
        }
    }

    fn stamp(&self) -> Stamp {
        at(self.now)
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        self.world.sabotage == Some(sabotage)
    }
}

impl Client {
    pub(super) fn new(world: &World, index: usize) -> Self {
        let takes_part = index < world.clients;
        Self {
            index: u8::try_from(index).unwrap(),
            queue: None,
            leases: Vec::new(),
            disposals: Vec::new(),
            enters_left: if takes_part { world.acquires } else { 0 },
            sends_left: world.sends,
            claims: 0,
            acquires: 0,
            answered: Vec::new(),
            newest: Vec::new(),
            is_dead: !takes_part,
        }
    }

    /// The process is killed, and its state is lost.
    pub(super) fn kill(&mut self) {
        *self = Self { enters_left: 0, sends_left: 0, queue: None, is_dead: true, ..self.clone() };
        self.leases.clear();
        self.disposals.clear();
        self.answered.clear();
        self.newest.clear();
    }

    /// Its calls fail, so the client sends its requests again.
    pub(super) fn allow_more_sends(&mut self) {
        self.sends_left = u8::MAX;
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.queue.is_some()
    }

    pub(super) fn holds(&self, now: u8) -> usize {
        let held = |lease: &&Lease| lease.machine.clone().check(at(now), &mut Outputs::default()).is_ok();
        self.leases.iter().filter(held).count()
    }

    /// The claims whose leases have a guard.
    pub(super) fn given(&self) -> impl Iterator<Item = u8> {
        self.leases.iter().filter(|lease| !lease.given_up).map(|lease| lease.claim)
    }

    /// The timers that are due.
    pub(super) fn timers(&self, now: u8) -> Vec<usize> {
        let queue = self.queue.as_ref().and_then(|queue| queue.wake);
        let wakes = std::iter::once(queue)
            .chain(self.leases.iter().map(|lease| lease.wake))
            .chain(self.disposals.iter().map(|closing| Some(closing.wake)));
        let due = |(timer, wake): (usize, Option<Stamp>)| wake.filter(|wake| *wake <= at(now)).map(|_| timer);
        wakes.enumerate().filter_map(due).collect()
    }

    pub(super) fn fire(&mut self, scene: &mut Scene<'_>, timer: usize) {
        let (rules, now) = (scene.rules(), scene.stamp());
        if timer == 0 {
            if let Some(queue) = &mut self.queue {
                queue.wake = None;
            }
            return self.feed(scene, |queue, out| queue.handle_timeout(&rules, now, out));
        }
        if let Some(lease) = self.leases.get_mut(timer - 1) {
            lease.wake = None;
            let claim = lease.claim;
            return self.feed_lease(scene, claim, |lease, out| lease.handle_timeout(&rules, now, out));
        }
        let closing = &mut self.disposals[timer - 1 - self.leases.len()];
        let claim = closing.claim;
        let Some((ending, wake)) = closing.machine.handle_timeout(&rules, Stamp::ZERO, now) else {
            return self.disposals.retain(|closing| closing.claim != claim);
        };
        closing.wake = wake.resolve(|pause| pause);
        assert!(ending.last_renewal(&rules, now).is_none(), "no lease has a min_hold");
        self.release(scene, claim, ending.delivery);
    }

    pub(super) fn enter(&mut self, scene: &mut Scene<'_>) {
        self.enters_left -= 1;
        self.acquires += 1;
        let acquire = self.acquires;
        let terms = Terms {
            mode: Mode::Exclusive,
            ttl: ticks(scene.world.ttl),
            kind: LeaseKind::Kept,
            max_hold: None,
            min_hold: None,
            holder: None,
        };
        let on_contention = OnContention::Queue;
        let joining = Joining { acquire, terms, on_contention, confirm_after: Stamp::ZERO, to: acquire };
        let (rules, now) = (scene.rules(), scene.stamp());
        if let Some(queue) = &mut self.queue {
            queue.acquires.push(acquire);
            return self.feed(scene, |queue, out| queue.join(&rules, joining, out).unwrap());
        }
        let machine = WaitQueue::new(joining, now);
        let claim = self.draw();
        self.queue = Some(Queue { claim, machine, acquires: vec![acquire], wake: Some(now.plus(rules.call_bound)) });
        self.send(scene, claim, Verb::Acquire { in_doubt: false });
    }

    pub(super) fn cancel(&mut self, scene: &mut Scene<'_>) {
        let (rules, now) = (scene.rules(), scene.stamp());
        let Some(queue) = &mut self.queue else { return };
        let acquire = queue.acquires.remove(0);
        self.feed(scene, |queue, out| queue.leave(&rules, acquire, now, out).map(drop).unwrap_or_default());
    }

    /// The holder releases its lease.
    pub(super) fn release_lease(&mut self, scene: &mut Scene<'_>, claim: u8) {
        let (rules, now) = (scene.rules(), scene.stamp());
        let mut ending = None;
        self.leases.iter_mut().filter(|lease| lease.claim == claim).for_each(|lease| lease.given_up = true);
        self.feed_lease(scene, claim, |lease, out| {
            if !lease.drop_guard() {
                return;
            }
            ending = lease.release(&rules, now, out).ok().flatten();
        });
        if let Some(ending) = ending {
            self.dispose(claim, Disposal::new(ending, now));
        }
    }

    pub(super) fn receive(&mut self, scene: &mut Scene<'_>, request: Request, reply: Reply) {
        let (rules, now, claim) = (scene.rules(), scene.stamp(), request.claim);
        if reply != Reply::Unknown && !self.answered.contains(&claim) {
            self.answered.push(claim);
            self.answered.sort_unstable();
        }
        let waits = self.queue.as_ref().is_some_and(|queue| queue.claim == claim);
        let waits = waits || scene.is(Sabotage::AnswersOfEarlierClaimsCount) && self.queue.is_some();
        match request.verb {
            Verb::Acquire { .. } if waits => {
                let answer = self.acquisition(scene, request, reply);
                self.feed(scene, |queue, out| queue.handle_acquire_reply(&rules, answer, now, out));
            }
            Verb::Acquire { in_doubt } => {
                // The queue has given up this claim since.
                self.disposals.retain(|closing| closing.claim != claim || !closing.machine.awaits_call());
                let delivery = match reply {
                    Reply::Holds { .. } | Reply::Waits { .. } if !in_doubt => Some(Delivery::Confirmed),
                    Reply::Holds { .. } | Reply::Waits { .. } | Reply::Unknown => Some(Delivery::InDoubt),
                    Reply::Contended | Reply::Lost | Reply::Ended { .. } => None,
                };
                if let Some(delivery) = delivery {
                    self.withdraw(scene, claim, delivery);
                }
            }
            Verb::Renew { held: false, place } if waits => {
                let answer = self.answer(scene, request, reply);
                self.feed(scene, |queue, out| {
                    queue.handle_renewal_reply(&rules, PlaceNumber::new(place), answer, now, out)
                });
            }
            Verb::Renew { held, place } => {
                let answer = self.answer(scene, request, reply);
                self.feed_lease(scene, claim, |lease, out| match held {
                    true => lease.handle_renewal_reply(&rules, answer, now, out),
                    false => lease.handle_place_reply(&rules, PlaceNumber::new(place), answer, now, out),
                });
            }
            Verb::Release { .. } => {
                let Some(closing) = self.disposals.iter_mut().find(|closing| closing.claim == claim) else { return };
                if reply == Reply::Unknown {
                    let failed = Error::new(ErrorKind::Indeterminate, "no reply");
                    closing.wake = closing.machine.handle_failure(&failed, now).resolve(|pause| pause);
                    return;
                }
                let ended = if reply == (Reply::Ended { had: true }) { Ended::Released } else { Ended::NotHeld };
                assert_eq!(closing.machine.handle_reply(ended), None);
                self.disposals.retain(|closing| closing.claim != claim);
            }
        }
    }

    /// Handles a pushed grant. The push does not say when the lease began.
    pub(super) fn receive_push(&mut self, scene: &mut Scene<'_>, push: Push) {
        let (rules, now) = (scene.rules(), scene.stamp());
        let place = self.place(scene, push.place);
        let own = scene.is(Sabotage::ValidityFromThePush).then(|| Confirmation {
            ttl: ticks(scene.world.place_ttl),
            sent: now,
            place,
        });
        if self.queue.as_ref().is_some_and(|queue| queue.claim == push.claim) {
            let grant = (place, FencingToken::new(push.token));
            self.feed(scene, |queue, out| queue.handle_pushed_grant(&rules, grant, own, now, out));
        } else {
            self.feed_lease(scene, push.claim, |lease, out| lease.handle_pushed_grant(&rules, place, own, now, out));
        }
    }

    fn place(&self, scene: &Scene<'_>, place: u64) -> PlaceNumber {
        if scene.is(Sabotage::ConfirmationsOfAnotherPlaceCount) { PlaceNumber::new(1) } else { PlaceNumber::new(place) }
    }

    fn confirmation(&self, scene: &Scene<'_>, request: Request, place: u64, ttl: u8) -> Confirmation {
        let newest = self.newest.iter().find(|(claim, _)| *claim == request.claim);
        let sent = match scene.world.sabotage {
            Some(Sabotage::ValidityFromTheNewestRequest) => newest.map_or(request.sent, |(_, sent)| *sent),
            Some(Sabotage::ValidityFromTheReply) => scene.now,
            _ => request.sent,
        };
        Confirmation { ttl: ticks(ttl), sent: at(sent), place: self.place(scene, place) }
    }

    fn acquisition(&self, scene: &Scene<'_>, request: Request, reply: Reply) -> Result<AcquireOutcome, Error> {
        match reply {
            Reply::Holds { token, place } => {
                let confirmation = self.confirmation(scene, request, place, scene.world.ttl);
                Ok(AcquireOutcome::Granted(Grant::new(FencingToken::new(token), confirmation)))
            }
            Reply::Waits { place } => {
                let confirmation = self.confirmation(scene, request, place, scene.world.place_ttl);
                Ok(AcquireOutcome::Queued { confirmation, retry_after: ticks(1) })
            }
            Reply::Contended => Ok(AcquireOutcome::Contended { retry_after: ticks(1) }),
            Reply::Lost | Reply::Ended { .. } => Err(Error::new(ErrorKind::Lost, "the claim was withdrawn")),
            Reply::Unknown => Err(Error::new(ErrorKind::Indeterminate, "no reply")),
        }
    }

    fn answer(&self, scene: &Scene<'_>, request: Request, reply: Reply) -> RenewReply {
        match self.acquisition(scene, request, reply) {
            Ok(AcquireOutcome::Granted(grant)) => RenewReply::Granted(grant),
            Ok(AcquireOutcome::Queued { confirmation, retry_after }) => {
                RenewReply::Waiting { confirmation, retry_after }
            }
            Ok(_) => RenewReply::Free,
            Err(error) if error.kind() == ErrorKind::Lost => RenewReply::Lost,
            Err(error) => RenewReply::Unknown(error),
        }
    }

    fn draw(&mut self) -> u8 {
        let claim = self.index * CLAIMS + self.claims.min(CLAIMS - 1);
        self.claims += 1;
        claim
    }

    fn send(&mut self, scene: &mut Scene<'_>, claim: u8, verb: Verb) {
        if self.sends_left == 0 || self.claims >= CLAIMS {
            return;
        }
        self.sends_left -= 1;
        if !matches!(verb, Verb::Release { .. }) {
            self.newest.retain(|(other, _)| *other != claim);
            self.newest.push((claim, scene.now));
            self.newest.sort_unstable();
        }
        scene.sent.requests.push(Request { claim, sent: scene.now, verb, is_abandoned: false });
    }

    fn release(&mut self, scene: &mut Scene<'_>, claim: u8, delivery: Delivery) {
        let in_doubt = match scene.world.sabotage {
            Some(Sabotage::NoTombstone) => false,
            Some(Sabotage::TombstoneOnlyIfNothingWasAnswered) => !self.answered.contains(&claim),
            _ => delivery == Delivery::InDoubt,
        };
        self.send(scene, claim, Verb::Release { in_doubt });
    }

    fn withdraw(&mut self, scene: &Scene<'_>, claim: u8, delivery: Delivery) {
        let ending = Ending::now(Why::Withdraw, delivery, ticks(scene.world.ttl));
        self.dispose(claim, Disposal::new(ending, scene.stamp()));
    }

    fn dispose(&mut self, claim: u8, (machine, wake): (Disposal, leasehold_core::machines::Wake)) {
        self.disposals.retain(|closing| closing.claim != claim);
        self.disposals.push(Closing { claim, machine, wake: wake.resolve(|pause| pause) });
    }

    fn feed(&mut self, scene: &mut Scene<'_>, input: impl FnOnce(&mut WaitQueue<u64>, &mut Outputs<QueueOutput<u64>>)) {
        let Some(queue) = &mut self.queue else { return };
        let mut outputs = Outputs::default();
        input(&mut queue.machine, &mut outputs);
        for output in outputs.drain() {
            self.carry_out(scene, output);
        }
    }

    fn carry_out(&mut self, scene: &mut Scene<'_>, output: QueueOutput<u64>) {
        let Some(claim) = self.queue.as_ref().map(|queue| queue.claim) else { return };
        match output {
            QueueOutput::NewClaim => {
                let claim = self.draw();
                self.queue.iter_mut().for_each(|queue| queue.claim = claim);
            }
            QueueOutput::Acquire { delivery } => {
                self.send(scene, claim, Verb::Acquire { in_doubt: delivery == Delivery::InDoubt });
            }
            QueueOutput::Renew { place, .. } => {
                self.send(scene, claim, Verb::Renew { held: false, place: place.get() })
            }
            QueueOutput::End(ending) => self.dispose(claim, Disposal::new(ending, scene.stamp())),
            QueueOutput::EndWhenOverdue(ending, overdue) => {
                self.dispose(claim, Disposal::when_overdue(ending, overdue));
            }
            QueueOutput::Granted { start, to } => {
                let (mut machine, wake, _) = HeldLease::new(&scene.rules(), &start, scene.stamp());
                machine.add_guard();
                scene.sent.tokens.push(start.grant.token.get());
                self.leases.push(Lease { claim, machine, given_up: false, wake: Some(wake.resolve(|pause| pause)) });
                self.queue.iter_mut().for_each(|queue| queue.acquires.retain(|acquire| !to.contains(acquire)));
            }
            QueueOutput::Failed { to, .. } => {
                self.queue.iter_mut().for_each(|queue| queue.acquires.retain(|acquire| *acquire != to));
            }
            QueueOutput::Wake(_) if scene.is(Sabotage::QueuesAreNeverWoken) => {}
            QueueOutput::Wake(wake) => {
                self.queue.iter_mut().for_each(|queue| queue.wake = Some(wake.resolve(|pause| pause)));
            }
            QueueOutput::WakeBy(stamp) => self.queue.iter_mut().for_each(|queue| {
                queue.wake = Some(queue.wake.map_or(stamp, |wake| wake.min(stamp)));
            }),
            QueueOutput::Watch | QueueOutput::Note(_) => {}
            QueueOutput::Finished => self.queue = None,
        }
    }

    fn feed_lease(
        &mut self,
        scene: &mut Scene<'_>,
        claim: u8,
        input: impl FnOnce(&mut HeldLease, &mut Outputs<LeaseOutput>),
    ) {
        let Some(index) = self.leases.iter().position(|lease| lease.claim == claim) else { return };
        let mut outputs = Outputs::default();
        input(&mut self.leases[index].machine, &mut outputs);
        let mut is_over = false;
        for output in outputs.drain() {
            match output {
                LeaseOutput::Renew { place, .. } => {
                    self.send(scene, claim, Verb::Renew { held: true, place: place.get() });
                }
                LeaseOutput::Wake(wake) => self.leases[index].wake = Some(wake.resolve(|pause| pause)),
                LeaseOutput::WakeBy(stamp) => self.leases[index].wake = Some(stamp),
                LeaseOutput::End(ending) => self.dispose(claim, Disposal::new(ending, scene.stamp())),
                LeaseOutput::Unschedule => is_over = true,
                LeaseOutput::Released | LeaseOutput::Lost(_) | LeaseOutput::Note(_) => {}
            }
        }
        let lease = &mut self.leases[index];
        if is_over {
            lease.wake = None;
        }
        if lease.given_up && lease.wake.is_none() {
            self.leases.remove(index);
        }
    }
}

/// Checks the token of a claim that has just been granted the lock, and stores it.
pub(super) fn note_token(highest: &mut u64, token: u64) -> Result<(), Broken> {
    if token <= *highest {
        return Err(Broken::Token);
    }
    *highest = token;
    Ok(())
}
