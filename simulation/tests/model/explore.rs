//! Visits all states of a world, or walks through them at random.

use std::collections::HashSet;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};

use leasehold_core::memory::LockRecord;

use super::client::{Client, Scene, Sent, note_token};
use super::server::serve;
use super::{Broken, Reply, Request, State, Step, Verb, World, add, client_of, fair, remove};
use crate::chance::Chance;

/// The result of an exploration.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) states: usize,
    pub(crate) broken: Option<Broken>,
    /// The steps that led there, one on each line. Empty if nothing is broken.
    pub(crate) trace: Vec<String>,
}

/// The continuation in a fair world takes as long as many steps, so it does not run for every state.
const FAIR_EVERY: usize = 8;

/// Visits every reachable state, breadth first, until a promise is broken or `most` states have been visited.
///
/// It is a plain search and not a model checker's framework: the states are few enough to be stored as hashes, the
/// continuation that [`Broken::Wake`] needs is a simulation of its own, and breadth first finds the shortest trace.
pub(crate) fn exhaust(world: &World, most: usize) -> Findings {
    let mut seen = HashSet::from([fingerprint(&State::new(world))]);
    // How each state was reached: the index of the previous state, and the step.
    let mut paths: Vec<(usize, Step)> = vec![(0, Step::Tick)];
    let mut level = vec![(0, State::new(world))];
    while !level.is_empty() && seen.len() < most {
        let mut next_level = Vec::new();
        for (index, state) in level {
            for step in state.steps(world) {
                match state.after(world, step) {
                    Err(broken) => return Findings::broken(seen.len(), broken, trace(&paths, index, step)),
                    Ok(next) => {
                        if seen.insert(fingerprint(&next)) {
                            if seen.len().is_multiple_of(FAIR_EVERY)
                                && let Err(broken) = fair::check(world, &next)
                            {
                                return Findings::broken(seen.len(), broken, trace(&paths, index, step));
                            }
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

/// Walks from the first state to an end at random, this many times or until a promise is broken. The same seed takes
/// the same steps.
pub(crate) fn walk(world: &World, walks: usize, seed: u64) -> Findings {
    let mut chance = Chance::new(seed);
    let mut states = 0;
    for _ in 0..walks {
        let mut state = State::new(world);
        let mut taken = Vec::new();
        loop {
            let mut steps = state.steps(world);
            // Makes most steps happen within a tick, and ends few acquires and processes early.
            if chance.below(4) > 0 && steps.len() > 1 && state.now < world.end {
                steps.retain(|step| *step != Step::Tick);
            }
            let is_early_end = |step: &Step| matches!(step, Step::Die { .. } | Step::Cancel { .. });
            if chance.below(10) > 0 && !steps.iter().all(is_early_end) {
                steps.retain(|step| !is_early_end(step));
            }
            if steps.is_empty() || (state.now == world.end && steps == [Step::Tick]) {
                break;
            }
            let step = steps[chance.below(steps.len())];
            taken.push(format!("{step:?}"));
            states += 1;
            match state.after(world, step) {
                Ok(next) => state = next,
                Err(broken) => return Findings::broken(states, broken, taken),
            }
            if chance.below(FAIR_EVERY) == 0
                && let Err(broken) = fair::check(world, &state)
            {
                return Findings::broken(states, broken, taken);
            }
        }
    }
    Findings { states, broken: None, trace: Vec::new() }
}

impl Findings {
    fn broken(states: usize, broken: Broken, trace: Vec<String>) -> Self {
        Self { states, broken: Some(broken), trace }
    }
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

/// The hash of what `Debug` prints, which for these types is everything that they contain. Errors do not implement
/// `Hash`.
fn fingerprint(value: &impl fmt::Debug) -> u64 {
    struct Sink(DefaultHasher);

    impl Write for Sink {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }

    let mut sink = Sink(DefaultHasher::new());
    write!(sink, "{value:?}").expect("hashing does not fail");
    sink.0.finish()
}

impl State {
    fn new(world: &World) -> Self {
        Self {
            now: 0,
            record: LockRecord::default(),
            released: Vec::new(),
            clients: std::array::from_fn(|index| Client::new(world, index)),
            requests: Vec::new(),
            replies: Vec::new(),
            pushes: Vec::new(),
            highest: 0,
        }
    }

    /// Everything that can happen next.
    fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.now < world.end {
            steps.push(Step::Tick);
        }
        for (index, client) in self.clients.iter().enumerate() {
            if client.enters_left > 0 {
                steps.push(Step::Enter { client: index });
            }
            if client.is_waiting() {
                steps.push(Step::Cancel { client: index });
            }
            steps.extend(client.given().map(|claim| Step::Release { claim }));
            if client.is_waiting() || !client.leases.is_empty() {
                steps.push(Step::Die { client: index });
            }
            steps.extend(client.timers(self.now).into_iter().map(|timer| Step::Fire { client: index, timer }));
        }
        for &request in &self.requests {
            steps.push(Step::Serve(request));
            if !world.faults {
                continue;
            }
            steps.push(Step::ServeTwice(request));
            if !self.clients[client_of(request.claim)].is_dead && !request.is_abandoned {
                steps.push(Step::Fail(request));
            }
        }
        steps.extend(self.replies.iter().map(|&(request, reply)| Step::Hear(request, reply)));
        steps.extend(self.pushes.iter().map(|&push| Step::HearPush(push)));
        steps
    }

    /// The state after a step. It is the same state if the step is not possible.
    fn after(&self, world: &World, step: Step) -> Result<Self, Broken> {
        let mut next = self.clone();
        match step {
            Step::Tick => next.now += 1,
            Step::Enter { client } => next.with(world, client, Client::enter)?,
            Step::Cancel { client } => next.with(world, client, Client::cancel)?,
            Step::Release { claim } => {
                next.with(world, client_of(claim), |client, scene| client.release_lease(scene, claim))?;
            }
            Step::Die { client } => next.clients[client].kill(),
            Step::Fire { client, timer } => next.with(world, client, |client, scene| client.fire(scene, timer))?,
            Step::Serve(request) => {
                remove(&mut next.requests, &request);
                next.serve(world, request)?;
            }
            Step::ServeTwice(request) => {
                remove(&mut next.requests, &request);
                next.serve(world, request)?;
                next.serve(world, request)?;
            }
            Step::Fail(request) => {
                // Nothing receives its reply any more.
                remove(&mut next.requests, &request);
                add(&mut next.requests, Request { is_abandoned: true, ..request });
                next.with(world, client_of(request.claim), |client, scene| {
                    client.receive(scene, request, Reply::Unknown)
                })?;
            }
            Step::Hear(request, reply) => {
                remove(&mut next.replies, &(request, reply));
                next.with(world, client_of(request.claim), |client, scene| client.receive(scene, request, reply))?;
            }
            Step::HearPush(push) => {
                remove(&mut next.pushes, &push);
                next.with(world, client_of(push.claim), |client, scene| client.receive_push(scene, push))?;
            }
        }
        next.drop_unreceived_replies();
        let holders: usize = next.clients.iter().map(|client| client.holds(next.now)).sum();
        if holders > 1 {
            return Err(Broken::Exclusion);
        }
        Ok(next)
    }

    fn serve(&mut self, world: &World, request: Request) -> Result<(), Broken> {
        let (reply, pushes) = serve(world, &mut self.record, request, self.now)?;
        if matches!(request.verb, Verb::Release { .. }) && !self.released.contains(&request.claim) {
            add(&mut self.released, request.claim);
        }
        let parties = self.record.places.iter().map(|place| place.party);
        let mut parties = parties.chain(self.record.holders.iter().map(|lease| lease.party));
        if parties.any(|party| self.released.contains(&party)) {
            return Err(Broken::Orphan);
        }
        if let Some(reply) = reply {
            add(&mut self.replies, (request, reply));
        }
        pushes.into_iter().for_each(|push| add(&mut self.pushes, push));
        Ok(())
    }

    fn with(
        &mut self,
        world: &World,
        client: usize,
        work: impl FnOnce(&mut Client, &mut Scene<'_>),
    ) -> Result<(), Broken> {
        let mut scene = Scene { world, now: self.now, sent: Sent::default() };
        work(&mut self.clients[client], &mut scene);
        scene.sent.requests.into_iter().for_each(|request| add(&mut self.requests, request));
        scene.sent.tokens.into_iter().try_for_each(|token| note_token(&mut self.highest, token))
    }

    fn drop_unreceived_replies(&mut self) {
        let clients = &self.clients;
        self.replies.retain(|(request, _)| !clients[client_of(request.claim)].is_dead && !request.is_abandoned);
        self.pushes.retain(|push| !clients[client_of(push.claim)].is_dead);
    }
}
