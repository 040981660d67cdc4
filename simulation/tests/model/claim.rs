//! The client's half of the rules, for one claim.

use super::{Broken, Push, Reply, Request, Sabotage, Verb, World, add, remove};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Idle,
    Pending,
    Holding,
    /// Released, withdrawn or lost, or its process is gone; nothing is heard any more.
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ModelClaim {
    pub(super) phase: Phase,
    /// The highest number of a place that was heard of.
    pub(super) place: u64,
    /// When the validity that is confirmed for that place ends; 0 when none is.
    pub(super) valid_until: u8,
    pub(super) queued: bool,
    pub(super) sends_left: u8,
    /// What has no answer.
    open: Vec<(u8, Verb)>,
    answered: bool,
    newest_sent: u8,
}

impl ModelClaim {
    pub(super) const fn new(phase: Phase, sends_left: u8) -> Self {
        Self {
            phase,
            place: 0,
            valid_until: 0,
            queued: false,
            sends_left,
            open: Vec::new(),
            answered: false,
            newest_sent: 0,
        }
    }

    pub(super) const fn listens(&self) -> bool {
        matches!(self.phase, Phase::Pending | Phase::Holding)
    }

    pub(super) const fn is_held(&self, now: u8) -> bool {
        matches!(self.phase, Phase::Holding) && now < self.valid_until
    }

    /// Takes the claim's own clock into account.
    pub(super) fn tick(&mut self, world: &World, now: u8) {
        let revives = world.sabotage == Some(Sabotage::ValidityFromTheReply);
        if self.phase == Phase::Holding && !self.is_held(now) && !revives {
            *self = Self::new(Phase::Ended, 0);
        }
    }

    /// What it may send now, besides its end.
    pub(super) fn next_verb(&self) -> Option<Verb> {
        match self.phase {
            _ if self.sends_left == 0 => None,
            Phase::Idle => Some(Verb::Acquire),
            Phase::Pending if self.queued => Some(Verb::Renew { held: false }),
            Phase::Pending => Some(Verb::Acquire),
            Phase::Holding => Some(Verb::Renew { held: true }),
            Phase::Ended => None,
        }
    }

    /// Sends; false when the very same request is under way already.
    pub(super) fn send(&mut self, verb: Verb, now: u8) -> bool {
        if self.open.contains(&(now, verb)) {
            return false;
        }
        if self.phase == Phase::Idle {
            self.phase = Phase::Pending;
        }
        self.sends_left -= 1;
        self.newest_sent = now;
        add(&mut self.open, (now, verb));
        true
    }

    /// The request that ends it.
    pub(super) fn end(&mut self, world: &World) -> Verb {
        let unsure = match world.sabotage {
            Some(Sabotage::NoTombstone) => false,
            Some(Sabotage::TombstoneOnlyIfNothingWasAnswered) => !self.answered,
            _ => !self.open.is_empty(),
        };
        *self = Self::new(Phase::Ended, 0);
        Verb::Release { unsure }
    }

    /// Takes an answer; may have to send something at once.
    pub(super) fn hear(&mut self, world: &World, now: u8, request: Request, reply: Reply) -> Option<Verb> {
        remove(&mut self.open, &(request.sent, request.verb));
        self.answered = true;
        let (place, ttl) = match reply {
            Reply::Lost => {
                if self.open.is_empty() {
                    *self = Self::new(Phase::Ended, 0);
                    return None;
                }
                return Some(self.end(world));
            }
            Reply::Waits { place } => (place, world.place_ttl),
            Reply::Holds { place, .. } => (place, world.ttl),
        };
        if world.sabotage != Some(Sabotage::ConfirmationsOfAnotherPlaceCount) {
            if place < self.place {
                // About a place that is gone.
                return None;
            }
            if place > self.place && self.phase == Phase::Holding {
                // The lease is gone, and a late copy made a new place.
                return Some(self.end(world));
            }
        }
        self.know(world, place);
        let sent = match world.sabotage {
            Some(Sabotage::ValidityFromTheNewestRequest) => self.newest_sent,
            Some(Sabotage::ValidityFromTheReply) => now,
            _ => request.sent,
        };
        self.valid_until = self.valid_until.max(sent + ttl);
        match reply {
            Reply::Holds { .. } if now < self.valid_until => self.phase = Phase::Holding,
            Reply::Waits { .. } => self.queued = true,
            _ => {}
        }
        None
    }

    /// Takes a pushed grant. It says nothing about when the lease began.
    pub(super) fn hear_push(&mut self, world: &World, now: u8, push: Push) {
        if self.phase != Phase::Pending || push.place < self.place {
            return;
        }
        self.know(world, push.place);
        self.queued = true;
        if world.sabotage == Some(Sabotage::ValidityFromThePush) {
            self.valid_until = now + world.place_ttl;
        }
        if now < self.valid_until {
            self.phase = Phase::Holding;
        }
    }

    fn know(&mut self, world: &World, place: u64) {
        if place > self.place {
            self.place = place;
            if world.sabotage != Some(Sabotage::ConfirmationsOfAnotherPlaceCount) {
                self.valid_until = 0;
            }
        }
    }
}

/// Checks the token of a claim that holds since now, and notes it.
pub(super) fn note_token(highest: &mut u64, token: u64) -> Result<(), Broken> {
    if token <= *highest {
        return Err(Broken::Token);
    }
    *highest = token;
    Ok(())
}
