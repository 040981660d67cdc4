//! What the client knows of one claim at the server.

use std::sync::{Arc, Mutex};

use leasehold_core::backend::Claim;

use crate::session::Session;
use crate::shared::lock;

/// Kept with each claim.
#[derive(Default)]
pub(crate) struct Slot(Mutex<State>);

#[derive(Default)]
struct State {
    is_withdrawn: bool,
    /// Every session to which a request of the claim may attach its key.
    sessions: Vec<Arc<Session>>,
    /// The key, as far as it is known.
    key: Option<ClaimKey>,
}

/// The key of a claim.
#[derive(Clone)]
pub(crate) struct ClaimKey {
    pub(crate) key: Arc<str>,
    /// Its create revision: the number of the place, and the fencing token.
    pub(crate) revision: i64,
    /// The session that it is attached to.
    pub(crate) session: Arc<Session>,
    /// It was created behind another one.
    pub(crate) has_waited: bool,
    /// The session belongs to this claim alone.
    pub(crate) is_fixed: bool,
}

impl Slot {
    pub(crate) fn of(claim: &Claim) -> &Self {
        claim.slot()
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        lock(&self.0).is_withdrawn
    }

    /// A request is about to be sent that attaches the key to this session. False if the claim was withdrawn.
    pub(crate) fn begin(&self, session: &Arc<Session>) -> bool {
        let mut state = lock(&self.0);
        if !state.sessions.iter().any(|known| Arc::ptr_eq(known, session)) {
            state.sessions.push(session.clone());
        }
        !state.is_withdrawn
    }

    /// The server has this key. A claim that has waited stays one that has.
    pub(crate) fn has_key(&self, mut key: ClaimKey) {
        let mut state = lock(&self.0);
        key.has_waited |= state.key.as_ref().is_some_and(|known| known.revision == key.revision && known.has_waited);
        state.key = Some(key);
    }

    pub(crate) fn key(&self) -> Option<ClaimKey> {
        lock(&self.0).key.clone()
    }

    /// The server has no key of the claim.
    pub(crate) fn has_no_key(&self) {
        lock(&self.0).key = None;
    }

    pub(crate) fn session_with(&self, id: i64) -> Option<Arc<Session>> {
        lock(&self.0).sessions.iter().find(|session| session.id == id).cloned()
    }

    /// The sessions that requests of the claim were sent with.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        lock(&self.0).sessions.clone()
    }

    /// No further request of the claim is sent.
    pub(crate) fn withdraw(&self) {
        lock(&self.0).is_withdrawn = true;
    }
}
