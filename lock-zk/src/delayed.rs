//! Leases whose nodes are watched a moment after their grant, since most locks are released sooner.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use leasehold_core::backend::Claim;
use leasehold_core::backend::kit::lock;
use tokio::time::Instant;

use crate::slot::{Node, Slot};

/// A lock that is held for no longer is not watched, which saves the request.
const SHORT_HOLD: Duration = Duration::from_millis(20);

/// The leases whose nodes are to be watched soon.
#[derive(Default)]
pub(crate) struct Delayed(Mutex<State>);

#[derive(Default)]
struct State {
    due: VecDeque<(Instant, Claim, Node)>,
    is_running: bool,
}

/// The next step of the task that begins the watches.
pub(crate) enum Next {
    /// Watch the node of this claim now.
    Due(Claim, Node),
    /// No node is due before this instant.
    At(Instant),
}

impl Delayed {
    /// Adds the lease of a claim. Returns whether a task must be started, which calls [`next`](Self::next) until that
    /// returns `None`.
    pub(crate) fn add(&self, claim: &Claim, node: &Node) -> bool {
        let mut state = lock(&self.0);
        state.due.push_back((Instant::now() + SHORT_HOLD, claim.clone(), node.clone()));
        !std::mem::replace(&mut state.is_running, true)
    }

    /// The next step. `None` ends the task.
    pub(crate) fn next(&self) -> Option<Next> {
        let mut state = lock(&self.0);
        // Leases that were released meanwhile are skipped.
        while state.due.front().is_some_and(|(_, claim, node)| !Slot::of(claim).has(node)) {
            state.due.pop_front();
        }
        match state.due.pop_front() {
            Some((at, claim, node)) if at > Instant::now() => {
                state.due.push_front((at, claim, node));
                Some(Next::At(at))
            }
            Some((_, claim, node)) => Some(Next::Due(claim, node)),
            None => {
                state.is_running = false;
                None
            }
        }
    }
}
