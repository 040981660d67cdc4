//! What the client knows of one claim at the server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::FencingToken;
use leasehold_core::backend::kit::lock;
use leasehold_core::backend::{Claim, Confirmation, PlaceNumber, Stamp};
use tokio::task::AbortHandle;

use crate::nodes;
use crate::session::Session;

/// Kept with each claim.
#[derive(Default)]
pub(crate) struct Slot {
    /// Requests of one claim that create its node follow each other.
    pub(crate) serial: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the claim in the names of its nodes.
    number: Option<Arc<str>>,
    is_withdrawn: bool,
    /// Each session with a request to create a node that has no reply.
    in_doubt: Vec<Arc<Session>>,
    node: Option<Node>,
    /// A deletion has deleted its node, and no release has reported that yet.
    was_deleted: bool,
    /// The task that waits for the turn of the claim, or for the end of a lease that is not renewed.
    task: Option<AbortHandle>,
}

/// The node of a claim.
#[derive(Clone)]
pub(crate) struct Node {
    /// The path of the lock.
    pub(crate) lock: Arc<str>,
    /// Its name in the queue of the lock.
    pub(crate) name: Arc<str>,
    /// The transaction that created it: the number of the place, and the fencing token.
    pub(crate) created: i64,
    pub(crate) session: Arc<Session>,
    /// When the request was sent that created it, or found it.
    pub(crate) sent: Stamp,
    /// For how long the reply to that request confirmed it.
    pub(crate) ttl: Duration,
    pub(crate) stage: Stage,
    /// When a lease ends that is not renewed. Its session may live on.
    pub(crate) ends: Option<Stamp>,
}

/// What a node is for its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// A place.
    Waits,
    /// The lease, from the beginning.
    Holds,
    /// The lease, after a wait.
    HoldsAfterWait,
}

impl Node {
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.lock, self.name)
    }

    pub(crate) fn place(&self) -> PlaceNumber {
        PlaceNumber::new(self.created.unsigned_abs())
    }

    pub(crate) fn token(&self) -> FencingToken {
        FencingToken::new(self.created.unsigned_abs())
    }

    /// The newest confirmation.
    pub(crate) fn confirmation(&self) -> Confirmation {
        let (own, newest) = (self.created_by(), self.session.keeper.newest(self.place()));
        if newest.sent.plus(newest.ttl) > own.sent.plus(own.ttl) { newest } else { own }
    }

    /// The confirmation by the request that created it.
    pub(crate) fn created_by(&self) -> Confirmation {
        Confirmation { ttl: self.ttl, sent: self.sent, place: self.place() }
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.ends.is_some()
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.created == other.created && self.name == other.name
    }
}

impl Slot {
    pub(crate) fn of(claim: &Claim) -> &Self {
        claim.slot()
    }

    /// What the names of the claim's nodes begin with.
    pub(crate) fn prefix(&self) -> String {
        let mut state = lock(&self.state);
        let number = state.number.get_or_insert_with(|| nodes::claim_number().into());
        format!("{number}-")
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        lock(&self.state).is_withdrawn
    }

    /// Sends a request that creates a node, unless the claim was withdrawn. A withdraw that follows sends its requests
    /// later.
    pub(crate) fn send<T>(&self, session: &Arc<Session>, send: impl FnOnce() -> T) -> Option<T> {
        let mut state = lock(&self.state);
        if state.is_withdrawn {
            return None;
        }
        state.in_doubt.push(session.clone());
        Some(send())
    }

    /// Notes that no request in this session is in doubt any more.
    pub(crate) fn settle(&self, session: &Arc<Session>) {
        lock(&self.state).in_doubt.retain(|other| !Arc::ptr_eq(other, session));
    }

    pub(crate) fn in_doubt(&self) -> Vec<Arc<Session>> {
        lock(&self.state).in_doubt.clone()
    }

    /// No further request of the claim is sent, and its node counts no more. Returns the sessions in which it may have
    /// a node.
    pub(crate) fn withdraw(&self, claim: &Claim) -> Vec<Arc<Session>> {
        let (node, task, sessions) = {
            let mut state = lock(&self.state);
            state.is_withdrawn = true;
            let node = state.node.take();
            state.in_doubt.extend(node.as_ref().map(|node| node.session.clone()));
            state.in_doubt.sort_by_key(|session| session.number());
            state.in_doubt.dedup_by_key(|session| session.number());
            (node, state.task.take(), state.in_doubt.clone())
        };
        if let Some(task) = task {
            task.abort();
        }
        if let Some(node) = node {
            node.session.remove(claim);
        }
        sessions
    }

    pub(crate) fn node(&self) -> Option<Node> {
        lock(&self.state).node.clone()
    }

    /// Notes the node that the server has.
    pub(crate) fn set_node(&self, claim: &Claim, node: Node) {
        let session = node.session.clone();
        lock(&self.state).node = Some(node);
        session.add(claim);
    }

    /// The node is now a lease, with this confirmation. Returns whether that is new; `None` if the claim has another
    /// node, or none.
    pub(crate) fn hold(&self, node: &Node, stage: Stage, confirmation: Confirmation) -> Option<bool> {
        let mut state = lock(&self.state);
        let known = state.node.as_mut().filter(|known| known.is(node))?;
        let is_new = known.stage == Stage::Waits;
        if is_new {
            known.stage = stage;
        }
        // A claim may have waited for longer than its ttl. The task that ends its lease must not see the end that the
        // place had.
        if let Some(ends) = known.ends.as_mut() {
            *ends = confirmation.sent.plus(confirmation.ttl).max(*ends);
        }
        Some(is_new)
    }

    /// Forgets the node, which the server does not have. Returns whether it had one, as far as was known.
    pub(crate) fn forget_node(&self, claim: &Claim) -> bool {
        let (node, task) = {
            let mut state = lock(&self.state);
            (state.node.take(), state.task.take())
        };
        if let Some(task) = task {
            task.abort();
        }
        if let Some(node) = &node {
            node.session.remove(claim);
        }
        node.is_some()
    }

    /// A deletion has deleted the node. Its reply may come after its release has given up.
    pub(crate) fn note_deletion(&self) {
        lock(&self.state).was_deleted = true;
    }

    /// Takes the note of a deletion, for the release that reports it.
    pub(crate) fn take_deletion(&self) -> bool {
        std::mem::take(&mut lock(&self.state).was_deleted)
    }

    /// The session has ended. Returns whether the claim had a node in it.
    pub(crate) fn lost(&self, session: &Session) -> bool {
        let mut state = lock(&self.state);
        let had = state.node.as_ref().is_some_and(|node| std::ptr::eq(&*node.session, session));
        if had {
            state.node = None;
            if let Some(task) = state.task.take() {
                task.abort();
            }
        }
        had
    }

    /// Whether the claim still has this node.
    pub(crate) fn has(&self, node: &Node) -> bool {
        lock(&self.state).node.as_ref().is_some_and(|known| known.is(node))
    }

    /// Sets the task that works for the claim until it has no node, and aborts the former one.
    pub(crate) fn set_task(&self, task: AbortHandle) {
        let former = lock(&self.state).task.replace(task);
        if let Some(former) = former {
            former.abort();
        }
    }

    /// Forgets the task without aborting it: it ends by itself.
    pub(crate) fn forget_task(&self) {
        lock(&self.state).task = None;
    }

    pub(crate) fn has_task(&self) -> bool {
        lock(&self.state).task.as_ref().is_some_and(|task| !task.is_finished())
    }
}
