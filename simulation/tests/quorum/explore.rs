//! Visits all states of a world, or walks through them at random.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault};
use std::mem::discriminant;

use super::server::FastHasher;
use super::state::State;
use super::steps::{Found, Model};
use super::{Broken, Step, World};
use crate::chance::Chance;

/// The result of an exploration.
#[derive(Debug)]
pub(crate) struct Findings {
    pub(crate) states: usize,
    /// How many grants were told.
    pub(crate) told: usize,
    pub(crate) broken: Option<Broken>,
    /// The steps that led there. Empty if nothing is broken.
    pub(crate) trace: Vec<Step>,
}

/// The hash of a state is kept, and not the state: two of ten million are equal with a probability of 3 in a million.
type Seen = HashSet<u64, BuildHasherDefault<FastHasher>>;

/// Visits every reachable state, breadth first, until a promise is broken or `most` states have been visited.
pub(crate) fn exhaust(world: &World, most: usize) -> Findings {
    search(world, most, |_, _| true)
}

/// Visits the states that are reached by steps of these kinds, in this order.
pub(crate) fn follow(world: &World, path: &[Step]) -> Findings {
    search(world, usize::MAX, |depth, step| path.get(depth).is_some_and(|it| is_like(it, step)))
}

/// Whether two steps differ at most in the server.
fn is_like(one: &Step, other: &Step) -> bool {
    let client = |step: &Step| match *step {
        Step::Begin { client, guess } => Some((client, guess)),
        Step::Answer { client, .. } | Step::Tell { client, .. } => Some((client, 0)),
        Step::Renew { client } | Step::Renewed { client } => Some((client, 0)),
        _ => None,
    };
    discriminant(one) == discriminant(other) && client(one) == client(other)
}

fn search(world: &World, most: usize, takes: impl Fn(usize, &Step) -> bool) -> Findings {
    let mut model = Model::new(world);
    let hasher = BuildHasherDefault::<FastHasher>::default();
    let first = model.first();
    let mut seen = Seen::from_iter([hasher.hash_one(first)]);
    // How each state was reached: the number of the previous state, and which of its steps.
    let mut paths: Vec<(u32, u16)> = vec![(0, 0)];
    let mut level = vec![(0, first)];
    let (mut told, mut depth, mut found) = (0, 0, Found::default());
    while !level.is_empty() && seen.len() < most {
        let mut next_level = Vec::new();
        for (number, state) in level {
            if let Err((step, broken)) = model.steps(&state, &mut found) {
                let mut trace = trace(&mut model, &paths, number);
                trace.push(step);
                return Findings { states: seen.len(), told, broken: Some(broken), trace };
            }
            for (index, (step, next)) in found.0.iter().enumerate() {
                if !takes(depth, step) {
                    continue;
                }
                told += usize::from(matches!(step, Step::Tell { .. }));
                if seen.insert(hasher.hash_one(next)) {
                    next_level.push((paths.len() as u32, *next));
                    paths.push((number, index as u16));
                }
            }
        }
        level = next_level;
        depth += 1;
    }
    Findings { states: seen.len(), told, broken: None, trace: Vec::new() }
}

/// The steps to a state.
fn trace(model: &mut Model<'_>, paths: &[(u32, u16)], mut number: u32) -> Vec<Step> {
    let mut taken = Vec::new();
    while number > 0 {
        let (previous, index) = paths[number as usize];
        taken.push(index);
        number = previous;
    }
    let (mut state, mut found) = (model.first(), Found::default());
    let step = |index: &u16| {
        model.steps(&state, &mut found).expect("the steps to a state break nothing");
        let (step, next) = found.0[usize::from(*index)];
        state = next;
        step
    };
    taken.iter().rev().map(step).collect()
}

/// Walks through the world from the first state at random, this many times or until a promise is broken. The same seed
/// takes the same steps.
pub(crate) fn walk(world: &World, walks: usize, seed: u64) -> Findings {
    const LONGEST: usize = 500;
    let mut chance = Chance::new(seed);
    let (mut states, mut told, mut found) = (0, 0, Found::default());
    for _ in 0..walks {
        // The states of servers that are met are new in nearly every walk.
        let mut model = Model::new(world);
        let (mut state, mut taken) = (model.first(), Vec::new());
        for _ in 0..LONGEST {
            if let Err((step, broken)) = model.steps(&state, &mut found) {
                taken.push(step);
                return Findings { states, told, broken: Some(broken), trace: taken };
            }
            let Some((step, next)) = found.pick(&mut chance) else { break };
            told += usize::from(matches!(step, Step::Tell { .. }));
            states += 1;
            taken.push(step);
            state = next;
        }
    }
    Findings { states, told, broken: None, trace: Vec::new() }
}

/// How often a kind of step is taken. All kinds with the same number are as likely as each other, however many steps of
/// them there are.
fn weight(step: &Step) -> usize {
    match step {
        Step::GiveUp { .. } => 5,
        Step::Release { .. } | Step::GiveRenewalUp { .. } | Step::Restart { .. } | Step::SetClock { .. } => 10,
        Step::Tick | Step::Begin { .. } => 20,
        Step::Delay { .. } | Step::LoseReply { .. } => 50,
        Step::Tell { .. } | Step::Renewed { .. } => 300,
        Step::Answer { .. } => 600,
        _ => 100,
    }
}

impl Found {
    fn pick(&self, chance: &mut Chance) -> Option<(Step, State)> {
        let mut kinds: Vec<&Step> = Vec::new();
        for (step, _) in &self.0 {
            if kinds.iter().all(|known| discriminant(*known) != discriminant(step)) {
                kinds.push(step);
            }
        }
        let total: usize = kinds.iter().map(|step| weight(step)).sum();
        if total == 0 {
            return None;
        }
        let mut at = chance.below(total);
        let kind = kinds.into_iter().find(|step| {
            let is_it = at < weight(step);
            at = at.wrapping_sub(weight(step));
            is_it
        })?;
        let of_kind: Vec<_> = self.0.iter().filter(|(step, _)| discriminant(step) == discriminant(kind)).collect();
        Some(*of_kind[chance.below(of_kind.len())])
    }
}
