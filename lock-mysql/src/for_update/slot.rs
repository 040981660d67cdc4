//! What a claim has at the server, in its slot.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::kit::lock;
use leasehold_core::backend::{Confirmation, Delivery, PlaceNumber, RenewReply, Stamp};
use leasehold_core::{Error, ErrorKind, FencingToken};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::connection::Endpoint;
use crate::errors::Failure;

/// The progress of a claim's task.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// It tries to lock the row.
    Starting,
    /// It waits for the row.
    Waiting,
    /// It has locked the row, and the token is raised.
    Held(FencingToken, Confirmation),
    /// Another claim holds, and this one does not wait. Or the server was restarted a short time ago.
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

/// What a call asks of the task of a claim that holds.
pub(super) enum Command {
    Renew {
        ttl: Duration,
        index: usize,
        replies: mpsc::UnboundedSender<(usize, RenewReply)>,
    },
    /// Replies whether the claim held.
    Release {
        reply: oneshot::Sender<Result<bool, Failure>>,
    },
}

/// The connection of a task, shared with the calls that may end it. A connection that returns to the pool may be used by
/// another claim at once. So the task does not return it while a call may still end it or its statement.
#[derive(Default)]
pub(super) struct TaskConnection {
    state: Mutex<ConnectionState>,
    cancelled: Notify,
}

#[derive(Default)]
struct ConnectionState {
    endpoint: Option<Endpoint>,
    /// A call may still end the connection or its statement.
    is_condemned: bool,
    /// The claim does not want the lock any more.
    is_cancelled: bool,
    /// The task has released the lease, and no call has reported that yet.
    was_released: bool,
    /// The server has refused the claim after it had waited, and no call has reported that yet.
    refusal: Option<Error>,
    /// When the statement was sent that starts the ttl of a lease.
    granting: Option<Stamp>,
}

impl TaskConnection {
    /// The task has taken a connection. Returns whether it may use it.
    pub(super) fn take(&self, endpoint: Endpoint) -> bool {
        let mut state = lock(&self.state);
        state.endpoint = Some(endpoint);
        !state.is_condemned
    }

    pub(super) fn endpoint(&self) -> Option<Endpoint> {
        lock(&self.state).endpoint.clone()
    }

    /// The statement that starts the ttl of a lease is sent now.
    pub(super) fn begin_grant(&self, sent: Stamp) {
        lock(&self.state).granting = Some(sent);
    }

    /// The grant is not complete, and the claim goes on waiting.
    pub(super) fn end_grant(&self) {
        lock(&self.state).granting = None;
    }

    /// When the ttl of a place began whose connection was seen to exist after `seen`. lock-core counts a confirmation of
    /// the place for the lease that it becomes. A fenced write that is not committed delays the token, and the claim has
    /// a place while its grant is under way: the server then ends the lease a ttl after the statement that started it,
    /// however late the place was confirmed.
    pub(super) fn place_stamp(&self, seen: Stamp) -> Stamp {
        lock(&self.state).granting.map_or(seen, |granting| granting.min(seen))
    }

    /// Detaches the connection, unless a call may still end it. Returns whether the task may return it to the pool.
    pub(super) fn detach(&self) -> bool {
        let mut state = lock(&self.state);
        if !state.is_condemned {
            state.endpoint = None;
        }
        !state.is_condemned
    }

    /// The connection whose statement the caller ends.
    pub(super) fn cancel(&self) -> Option<Endpoint> {
        lock(&self.state).is_cancelled = true;
        self.condemn()
    }

    /// The statement was ended, and the caller does nothing more with the connection.
    pub(super) fn finish_cancel(&self) {
        lock(&self.state).is_condemned = false;
        self.cancelled.notify_one();
    }

    /// Waits for [`Self::finish_cancel`].
    pub(super) async fn wait_for_cancel(&self, until: Instant) {
        // Without it, the connection is not returned.
        let _ = timeout_at(until, self.cancelled.notified()).await;
    }

    pub(super) fn is_cancelled(&self) -> bool {
        lock(&self.state).is_cancelled
    }

    /// The task has released the lease. The call that asked for it may have given up.
    pub(super) fn note_release(&self) {
        lock(&self.state).was_released = true;
    }

    /// Takes the note of a release, for the call that reports it.
    pub(super) fn take_release(&self) -> bool {
        std::mem::take(&mut lock(&self.state).was_released)
    }

    /// Keeps this error for a claim that has waited. Returns whether the claim is refused: if its connection alone was
    /// at fault, it may wait again.
    pub(super) fn note_refusal(&self, error: &Error) -> bool {
        let is_refused = !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate);
        lock(&self.state).refusal = is_refused.then(|| error.clone());
        is_refused
    }

    /// Whether the claim is refused, and no call has reported that yet.
    pub(super) fn is_refused(&self) -> bool {
        lock(&self.state).refusal.is_some()
    }

    /// Takes the refusal, for the call that reports it.
    pub(super) fn take_refusal(&self) -> Option<Error> {
        lock(&self.state).refusal.take()
    }

    /// The connection that the caller ends.
    pub(super) fn condemn(&self) -> Option<Endpoint> {
        let mut state = lock(&self.state);
        state.is_condemned = true;
        state.endpoint.clone()
    }
}

/// The task of a claim. When the last handle is dropped, the task ends the lease at its deadline.
pub(super) struct Handle {
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) commands: mpsc::UnboundedSender<Command>,
    pub(super) connection: Arc<TaskConnection>,
    pub(super) place: PlaceNumber,
    task: AbortHandle,
    is_abandoned: AtomicBool,
}

impl Handle {
    pub(super) fn new(
        phase: watch::Receiver<Phase>,
        commands: mpsc::UnboundedSender<Command>,
        connection: Arc<TaskConnection>,
        place: PlaceNumber,
        task: AbortHandle,
    ) -> Self {
        Self { phase, commands, connection, place, task, is_abandoned: AtomicBool::new(false) }
    }

    /// Stops the task and closes its connection. The server may notice that late.
    pub(super) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
        self.task.abort();
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// Whether the task has ended or was abandoned.
    fn is_over(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire) || self.phase.has_changed().is_err() || self.phase.borrow().is_over()
    }
}

/// What a claim has at the server.
#[derive(Default)]
pub(crate) struct Slot(Mutex<State>);

#[derive(Default)]
struct State {
    handle: Option<Arc<Handle>>,
    /// Connections of earlier tasks, which may still have locked the row.
    stale: Vec<Endpoint>,
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
        let stale = state.handle.replace(handle.clone()).and_then(|handle| handle.connection.condemn());
        state.stale.extend(stale);
        Some((handle, false))
    }

    /// The task that must end. A claim whose requests are in doubt gets no lease any more.
    pub(super) fn leave(&self, delivery: Delivery) -> Option<Arc<Handle>> {
        let mut state = lock(&self.0);
        state.is_withdrawn |= delivery == Delivery::InDoubt;
        state.handle.clone()
    }

    /// Connections of earlier tasks.
    pub(super) fn stale(&self) -> Vec<Endpoint> {
        lock(&self.0).stale.clone()
    }

    /// Forgets connections of earlier tasks, which have ended.
    pub(super) fn forget_stale(&self, stale: &[Endpoint]) {
        lock(&self.0).stale.retain(|endpoint| !stale.contains(endpoint));
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
        self.handle().and_then(|handle| handle.connection.endpoint()).map(|endpoint| endpoint.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise `KILL` would end the lease of the claim that uses the connection next.
    #[test]
    fn a_connection_that_a_call_may_end_is_not_returned() {
        let endpoint = || Endpoint { id: 7, host: "localhost:1".to_owned() };
        let connection = TaskConnection::default();
        assert!(connection.take(endpoint()) && connection.condemn() == Some(endpoint()));
        assert!(!connection.detach() && connection.endpoint().is_some());
        // Its statement alone was ended.
        let connection = TaskConnection::default();
        assert!(connection.take(endpoint()) && connection.cancel() == Some(endpoint()));
        assert!(!connection.detach());
        connection.finish_cancel();
        assert!(connection.detach());
        // Another claim may have it then.
        assert_eq!(connection.condemn(), None);
        // It was condemned before there was one.
        let connection = TaskConnection::default();
        assert_eq!(connection.condemn(), None);
        assert!(!connection.take(endpoint()));
    }
}
