//! What a claim has at the server, in its slot.

use std::sync::{Arc, Mutex, OnceLock};

use leasehold_core::backend::{Confirmation, Delivery, PlaceNumber, RenewReply};
use leasehold_core::{Error, FencingToken};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use super::connection::Endpoint;
use crate::errors::Failure;
use crate::shared::lock;

/// How far the task of a claim is.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// It tries to lock the row.
    Starting,
    /// It waits for the row.
    Waiting,
    /// It has locked the row, and the token is raised.
    Held(FencingToken, Confirmation),
    /// Another claim holds, and this one was not to wait. Or the server was restarted a short time ago.
    Contended(Duration),
    /// There is no lease.
    Failed(Error),
    /// The lease has ended.
    Ended,
}

impl Phase {
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Contended(_) | Self::Failed(_) | Self::Ended)
    }
}

/// What the task of a claim that holds is to do.
pub(super) enum Command {
    Renew { ttl: Duration, index: usize, replies: mpsc::UnboundedSender<(usize, RenewReply)> },
    Release { reply: oneshot::Sender<Result<(), Failure>> },
}

/// The task of a claim. The task ends the lease when the last handle is dropped: at its deadline.
pub(super) struct Handle {
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) commands: mpsc::UnboundedSender<Command>,
    /// The task's connection, when it has one.
    pub(super) endpoint: Arc<OnceLock<Endpoint>>,
    pub(super) place: PlaceNumber,
    pub(super) task: AbortHandle,
}

impl Handle {
    pub(super) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// Whether the task ended, or was aborted.
    fn is_over(&self) -> bool {
        self.phase.has_changed().is_err() || self.phase.borrow().is_over()
    }
}

/// What a claim has at the server.
#[derive(Default)]
pub(crate) struct Slot(Mutex<State>);

#[derive(Default)]
struct State {
    handle: Option<Arc<Handle>>,
    is_withdrawn: bool,
}

impl Slot {
    pub(super) fn handle(&self) -> Option<Arc<Handle>> {
        lock(&self.0).handle.clone()
    }

    /// The task of this claim and whether it ran before; starts it if there is none. `None`: the claim was withdrawn.
    pub(super) fn begin(&self, start: impl FnOnce() -> Handle) -> Option<(Arc<Handle>, bool)> {
        let mut state = lock(&self.0);
        if state.is_withdrawn {
            return None;
        }
        if let Some(handle) = state.handle.as_ref().filter(|handle| !handle.is_over()) {
            return Some((handle.clone(), true));
        }
        let handle = Arc::new(start());
        state.handle = Some(handle.clone());
        Some((handle, false))
    }

    /// The task that is to end. A claim whose requests are in doubt gets no lease any more.
    pub(super) fn leave(&self, delivery: Delivery) -> Option<Arc<Handle>> {
        let mut state = lock(&self.0);
        state.is_withdrawn |= delivery == Delivery::InDoubt;
        state.handle.clone()
    }

    /// The task has ended, and so has its connection.
    pub(super) fn clear(&self, ended: &Arc<Handle>) {
        let mut state = lock(&self.0);
        if state.handle.as_ref().is_some_and(|handle| Arc::ptr_eq(handle, ended)) {
            state.handle = None;
        }
    }

    /// The connection of the lease; `None` for a lease that is not kept by a connection.
    pub(crate) fn connection(&self) -> Option<u64> {
        self.handle().and_then(|handle| handle.endpoint.get().map(|endpoint| endpoint.id))
    }
}
