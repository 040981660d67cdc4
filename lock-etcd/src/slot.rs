//! What the client knows of one claim at the server.

use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::backend::Claim;
use leasehold_core::backend::kit::lock;

use crate::errors::Failure;
use crate::key_ids::{KeyId, KeyIds};
use crate::session::Session;

/// Kept with each claim.
#[derive(Default)]
pub(crate) struct Slot(Mutex<State>);

#[derive(Default)]
struct State {
    is_withdrawn: bool,
    /// Every session to which a request of the claim may attach its key.
    sessions: Vec<Arc<Session>>,
    /// The last part of its key.
    id: Option<KeyId>,
    /// The key, as far as it is known.
    key: Option<ClaimKey>,
    /// The server had no key after the newest request.
    is_absent: bool,
    /// How many requests that change the key have no reply.
    unanswered: u32,
    /// A deletion has deleted the key, and no release has reported that yet.
    was_deleted: bool,
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

    /// The last part of the key.
    pub(crate) fn id(&self, ids: &Arc<KeyIds>, claim: &Claim) -> u128 {
        lock(&self.0).id.get_or_insert_with(|| ids.next(claim.name())).get()
    }

    /// Sends a request that changes the key. One that fails may take effect later.
    pub(crate) async fn send<T>(&self, request: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        {
            let mut state = lock(&self.0);
            (state.unanswered, state.is_absent) = (state.unanswered + 1, false);
        }
        let reply = request.await;
        if reply.is_ok() {
            lock(&self.0).unanswered -= 1;
        }
        reply
    }

    /// A deletion has deleted the key. Its reply may come after its release has given up.
    pub(crate) fn note_deletion(&self) {
        lock(&self.0).was_deleted = true;
    }

    /// Takes the note of a deletion, for the release that reports it.
    pub(crate) fn take_deletion(&self) -> bool {
        std::mem::take(&mut lock(&self.0).was_deleted)
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

    /// Notes the key that the server has. A claim that has waited stays one that has.
    pub(crate) fn set_key(&self, mut key: ClaimKey) {
        let mut state = lock(&self.0);
        key.has_waited |= state.key.as_ref().is_some_and(|known| known.revision == key.revision && known.has_waited);
        state.key = Some(key);
    }

    pub(crate) fn key(&self) -> Option<ClaimKey> {
        lock(&self.0).key.clone()
    }

    /// Notes that the server has no key of the claim.
    pub(crate) fn forget_key(&self) {
        let mut state = lock(&self.0);
        (state.key, state.is_absent) = (None, true);
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

impl Drop for Slot {
    fn drop(&mut self) {
        let state = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = state.id.take() {
            id.end(state.is_absent && state.unanswered == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use leasehold_core::backend::OwnerToken;
    use leasehold_core::{HolderInfo, LockName};

    use super::*;

    fn claim() -> Claim {
        let holder = Arc::new(HolderInfo::of_this_process("test").unwrap());
        Claim::new(LockName::new("job").unwrap(), OwnerToken::from_bytes([1; 16]), holder)
    }

    /// The ids of two claims, one after the other. The requests of the first one had these outcomes.
    async fn ids(outcomes: impl IntoIterator<Item = Result<(), Failure>>) -> [u128; 2] {
        let ids = KeyIds::new();
        let (first, second) = (claim(), claim());
        let id = Slot::of(&first).id(&ids, &first);
        for outcome in outcomes {
            let _ = Slot::of(&first).send(ready(outcome)).await;
        }
        Slot::of(&first).forget_key();
        drop(first);
        [id, Slot::of(&second).id(&ids, &second)]
    }

    #[tokio::test]
    async fn a_key_is_used_again_only_if_every_request_has_a_reply() {
        let [first, second] = ids([Ok(()), Ok(())]).await;
        assert_eq!(first, second);
        for outcomes in [[Ok(()), Err(Failure::TimedOut)], [Err(Failure::TimedOut), Ok(())]] {
            let [first, second] = ids(outcomes).await;
            assert_ne!(first, second);
        }
    }

    #[tokio::test]
    async fn a_key_that_may_exist_is_not_used_again() {
        let ids = KeyIds::new();
        let (first, second) = (claim(), claim());
        let id = Slot::of(&first).id(&ids, &first);
        Slot::of(&first).forget_key();
        Slot::of(&first).send(ready(Ok(()))).await.unwrap();
        drop(first);
        assert_ne!(Slot::of(&second).id(&ids, &second), id);
    }

    #[tokio::test]
    async fn a_dropped_request_has_no_reply() {
        let ids = KeyIds::new();
        let (first, second) = (claim(), claim());
        let id = Slot::of(&first).id(&ids, &first);
        let request = Slot::of(&first).send(std::future::pending::<Result<(), Failure>>());
        assert!(tokio::time::timeout(std::time::Duration::ZERO, request).await.is_err());
        Slot::of(&first).forget_key();
        drop(first);
        assert_ne!(Slot::of(&second).id(&ids, &second), id);
    }
}
