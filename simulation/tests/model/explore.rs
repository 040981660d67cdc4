//! All states of a world, or random walks through it.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use leasehold_core::memory::LockRecord;

use super::claim::{ModelClaim, Phase, note_token};
use super::server::serve;
use super::{Broken, ROOM, Reply, Request, State, Step, Verb, World, add, at, remove};
use crate::chance::Chance;

/// What was found.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) states: usize,
    pub(crate) broken: Option<Broken>,
    /// How it came to that, one step a line; empty when nothing is broken.
    pub(crate) trace: Vec<String>,
}

/// Visits every reachable state, breadth first, until a promise is broken.
///
/// Plain search instead of a model checker's framework: the states are few enough to be kept as hashes, the
/// continuation that [`Broken::Wake`] needs is a simulation of its own, and the shortest trace comes for free.
pub(crate) fn exhaust(world: &World) -> Findings {
    let mut fair = Fair::default();
    let mut seen = HashSet::from([fingerprint(&State::new(world))]);
    // How each state was reached: the index of the one before, and the step.
    let mut paths: Vec<(usize, Step)> = vec![(0, Step::Tick)];
    let mut level = vec![(0, State::new(world))];
    while !level.is_empty() {
        let mut next_level = Vec::new();
        for (index, state) in level {
            for step in state.steps() {
                let outcome = state.after(world, step).and_then(|next| fair.check(world, &next).map(|()| next));
                match outcome {
                    Err(broken) => {
                        let trace = trace(&paths, index, step);
                        return Findings { states: seen.len(), broken: Some(broken), trace };
                    }
                    Ok(next) => {
                        if seen.insert(fingerprint(&next)) {
                            paths.push((index, step));
                            next_level.push((paths.len() - 1, next));
                        }
                    }
                }
            }
        }
        level = next_level;
    }
    Findings { states: seen.len(), broken: None, trace: Vec::new() }
}

/// Goes from the beginning to an end so often, by chance, until a promise is broken. The same seed takes the same ways.
pub(crate) fn walk(world: &World, walks: usize, seed: u64) -> Findings {
    let mut chance = Chance::new(seed);
    let mut fair = Fair::default();
    let mut states = 0;
    for _ in 0..walks {
        let mut state = State::new(world);
        let mut taken = Vec::new();
        loop {
            let mut steps = state.steps();
            // Let things happen within a tick, and let few processes die.
            if chance.below(4) > 0 && steps.len() > 1 && state.now < world.end {
                steps.retain(|step| *step != Step::Tick);
            }
            if chance.below(10) > 0 && steps.iter().any(|step| !matches!(step, Step::Die { .. })) {
                steps.retain(|step| !matches!(step, Step::Die { .. }));
            }
            if steps.is_empty() || (state.now == world.end && steps == [Step::Tick]) {
                break;
            }
            let step = steps[chance.below(steps.len())];
            taken.push(format!("{step:?}"));
            states += 1;
            match state.after(world, step).and_then(|next| fair.check(world, &next).map(|()| next)) {
                Ok(next) => state = next,
                Err(broken) => return Findings { states, broken: Some(broken), trace: taken },
            }
        }
    }
    Findings { states, broken: None, trace: Vec::new() }
}

fn trace(paths: &[(usize, Step)], mut index: usize, last: Step) -> Vec<String> {
    let mut steps = vec![format!("{last:?}")];
    while index > 0 {
        steps.push(format!("{:?}", paths[index].1));
        index = paths[index].0;
    }
    steps.reverse();
    steps
}

fn fingerprint(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl State {
    fn new(world: &World) -> Self {
        Self {
            now: 0,
            record: LockRecord::default(),
            released: [false; ROOM],
            claims: std::array::from_fn(|index| {
                if index < world.claims {
                    ModelClaim::new(Phase::Idle, world.sends)
                } else {
                    ModelClaim::new(Phase::Ended, 0)
                }
            }),
            requests: Vec::new(),
            replies: Vec::new(),
            pushes: Vec::new(),
            highest: 0,
        }
    }

    /// Everything that can happen next.
    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::Tick];
        for (claim, state) in (0u8..).zip(&self.claims) {
            if let Some(verb) = state.next_verb() {
                steps.push(Step::Send(Request { claim, sent: self.now, verb }));
            }
            if state.listens() {
                steps.extend([Step::End { claim }, Step::Die { claim }]);
            }
        }
        steps.extend(self.requests.iter().map(|&request| Step::Serve(request)));
        steps.extend(self.replies.iter().map(|&(request, reply)| Step::Hear(request, reply)));
        steps.extend(self.pushes.iter().map(|&push| Step::HearPush(push)));
        steps
    }

    /// The state after a step; the same where the step cannot be.
    fn after(&self, world: &World, step: Step) -> Result<Self, Broken> {
        let mut next = self.clone();
        match step {
            Step::Tick if self.now < world.end => {
                next.now += 1;
                next.claims.iter_mut().for_each(|claim| claim.tick(world, next.now));
            }
            Step::Tick => {}
            Step::Send(request) => {
                if next.claims[usize::from(request.claim)].send(request.verb, self.now) {
                    add(&mut next.requests, request);
                }
            }
            Step::End { claim } => {
                let verb = next.claims[usize::from(claim)].end(world);
                add(&mut next.requests, Request { claim, sent: self.now, verb });
            }
            Step::Die { claim } => next.claims[usize::from(claim)] = ModelClaim::new(Phase::Ended, 0),
            Step::Serve(request) => next.serve(world, request)?,
            Step::Hear(request, reply) => {
                remove(&mut next.replies, &(request, reply));
                let token = match reply {
                    Reply::Holds { token, .. } => token,
                    Reply::Waits { .. } | Reply::Lost => 0,
                };
                let more =
                    next.with_claim(request.claim, token, |claim, now| claim.hear(world, now, request, reply))?;
                if let Some(verb) = more {
                    add(&mut next.requests, Request { verb, sent: self.now, ..request });
                }
            }
            Step::HearPush(push) => {
                remove(&mut next.pushes, &push);
                next.with_claim(push.claim, push.token, |claim, now| claim.hear_push(world, now, push))?;
            }
        }
        next.forget_what_nobody_hears();
        if next.claims.iter().filter(|claim| claim.is_held(next.now)).count() > 1 {
            return Err(Broken::Exclusion);
        }
        Ok(next)
    }

    fn serve(&mut self, world: &World, request: Request) -> Result<(), Broken> {
        remove(&mut self.requests, &request);
        let (reply, pushes) = serve(world, &mut self.record, request, self.now)?;
        if matches!(request.verb, Verb::Release { .. }) {
            self.released[usize::from(request.claim)] = true;
        }
        let parties = self.record.places.iter().map(|place| place.party);
        let mut parties = parties.chain(self.record.holders.iter().map(|lease| lease.party));
        if parties.any(|party| self.released[usize::from(party)]) {
            return Err(Broken::Orphan);
        }
        if let Some(reply) = reply {
            add(&mut self.replies, (request, reply));
        }
        pushes.into_iter().for_each(|push| add(&mut self.pushes, push));
        Ok(())
    }

    fn with_claim<T>(
        &mut self,
        claim: u8,
        token: u64,
        work: impl FnOnce(&mut ModelClaim, u8) -> T,
    ) -> Result<T, Broken> {
        let now = self.now;
        let claim = &mut self.claims[usize::from(claim)];
        let held = claim.is_held(now);
        let done = work(claim, now);
        if claim.is_held(now) && !held {
            note_token(&mut self.highest, token)?;
        }
        Ok(done)
    }

    fn forget_what_nobody_hears(&mut self) {
        let claims = &self.claims;
        let listens = |claim: u8| claims[usize::from(claim)].listens();
        self.replies.retain(|(request, _)| listens(request.claim));
        self.pushes.retain(|push| listens(push.claim));
    }
}

/// From any state on, were the world fair: everything under way is lost and no push ever comes again, but holders release,
/// requests are answered at once, and every live waiter looks at each tick and after each change. Every one of them must hold by the
/// tick in which the last lease or place that stands now has run out.
#[derive(Default)]
struct Fair {
    known: HashMap<u64, Result<(), Broken>>,
}

impl Fair {
    fn check(&mut self, world: &World, state: &State) -> Result<(), Broken> {
        if !state.claims.iter().any(|claim| claim.phase == Phase::Pending) {
            return Ok(());
        }
        let known = |claim: &ModelClaim| (claim.phase, claim.queued, claim.place, claim.valid_until);
        let key = fingerprint(&(state.now, &state.record, state.claims.each_ref().map(known)));
        *self.known.entry(key).or_insert_with(|| serve_all(world, state))
    }
}

fn serve_all(world: &World, state: &State) -> Result<(), Broken> {
    let mut record = state.record.clone();
    let stands = record.places.iter().map(|place| place.until).chain(record.holders.iter().map(|lease| lease.until));
    let last = stands.max().unwrap_or(at(0)).since_start().as_secs().clamp(state.now.into(), (world.end * 2).into());
    let mut waiters = Vec::new();
    for (claim, of) in (0u8..).zip(&state.claims) {
        match of.phase {
            Phase::Pending => waiters.push((claim, of.clone())),
            Phase::Holding => serve(world, &mut record, release(claim, state.now), state.now).map(drop)?,
            Phase::Idle | Phase::Ended => {}
        }
    }
    // Who lost its place draws a new claim.
    let mut fresh = ROOM as u8..;
    for now in state.now..=last as u8 {
        // Once more than there are handoffs to make, and once more for a place that was lost.
        for _ in 0..waiters.len() + 2 {
            let mut still = Vec::new();
            for (party, mut claim) in waiters {
                let verb = if claim.queued { Verb::Renew { held: false } } else { Verb::Acquire };
                claim.sends_left = 1;
                claim.send(verb, now);
                let request = Request { claim: party, sent: now, verb };
                let reply = serve(world, &mut record, request, now)?.0.unwrap_or(Reply::Lost);
                let ends = claim.hear(world, now, request, reply).is_some();
                let holds = claim.is_held(now);
                if holds || ends {
                    serve(world, &mut record, release(party, now), now)?;
                }
                if ends || claim.phase == Phase::Ended {
                    still.extend(fresh.next().map(|party| (party, ModelClaim::new(Phase::Pending, 0))));
                } else if !holds {
                    still.push((party, claim));
                }
            }
            waiters = still;
        }
    }
    if waiters.is_empty() { Ok(()) } else { Err(Broken::Wake) }
}

const fn release(claim: u8, now: u8) -> Request {
    Request { claim, sent: now, verb: Verb::Release { unsure: false } }
}
