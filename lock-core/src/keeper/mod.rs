//! The lease keeper: renews leases and places, declares losses, and runs everything that must not wait for a user's
//! task.

mod attempt;
mod guard;
mod lease;
mod leases;
pub mod machines;
mod queue;
mod report;
mod run;
mod schedule;
mod withdraw;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use self::attempt::Attempt;
pub use self::guard::LockGuard;
use self::lease::Lease;
use self::machines::disposal::Disposal;
use self::machines::held_lease::LeaseOutput;
use self::machines::outputs::{Outputs, Wake};
use self::machines::rules::Rules;
use self::machines::wait_queue::QueueOutput;
pub(crate) use self::queue::Entry;
use self::queue::{OutcomeSender, Queue};
use self::report::Reports;
pub(crate) use self::run::KeeperHandle;
pub use self::run::KeeperRuntime;
use self::run::Target;
use self::schedule::{Schedule, TaskId};
use self::withdraw::LostReleases;
use crate::backend::{Capabilities, Claim, CoreHandle, Event, LockBackend, RenewRequest, WatchGuard};
use crate::clock::{Clock, Stamp};
use crate::entropy::Entropy;
use crate::error::{Error, ErrorKind, Result};
use crate::holder_id::HolderId;
use crate::holder_info::HolderInfo;
use crate::name::LockName;
use crate::stats::{Counters, Stats};
use crate::sync::lock;
use crate::token::OwnerToken;

/// The watchdog of a client: renews every lease and every place in a queue at a third of its ttl, notifies holders of
/// their loss, serves waiters, and withdraws claims whose outcome is unknown.
///
/// - There is one schedule in order of due time, and no task or timer per lease. A released lease leaves nothing
///   behind.
/// - Renewals go out in batches, each reply counts on its own, and no call holds up another: one slow, failing or
///   panicking renewal harms no other lease.
/// - A failed renewal is retried with growing, jittered pauses until the validity ends. A renewal without a reply
///   within the bound of a call has failed.
/// - It runs on a thread of its own by default, with a runtime of its own, so that it continues while the
///   user's executor is starved and after it was shut down.
pub(crate) struct LeaseKeeper {
    backend: Arc<dyn LockBackend>,
    capabilities: Capabilities,
    clock: Arc<dyn Clock>,
    entropy: Arc<Entropy>,
    rules: Rules,
    holder_info: Arc<HolderInfo>,
    home: tokio::runtime::Handle,
    counters: Counters,
    state: Mutex<State>,
    /// How many releases run in their caller's task, apart from the keeper's loop.
    open_calls: AtomicUsize,
    /// The last handle is gone: the keeper ends when nothing is left to release or withdraw.
    is_closing: AtomicBool,
    /// A shutdown, or the closing keeper, waits for the open calls to end.
    ending: AtomicBool,
    wake: Notify,
    /// Notified at the end of each call and withdrawal, for a shutdown that waits for them.
    progress: Notify,
}

/// Behind the keeper's one mutex. No call of a backend runs while it is locked.
struct State {
    schedule: Schedule<Task>,
    queues: HashMap<LockName, Queue>,
    owners: HashMap<OwnerToken, OwnerState, BuildHasherDefault<TokenHasher>>,
    reentrant: HashMap<(LockName, HolderId), Arc<Lease>>,
    next_waiter: u64,
    withdrawals: usize,
    /// How many withdrawals were given up without a reply.
    unanswered: usize,
    lost_releases: LostReleases,
    sleeps_until: Stamp,
    /// Shut down by the user: no new acquires.
    is_shut: bool,
    reports: Reports,
    /// When the newest request was sent by which the store has kept something of this client alive.
    last_confirmed: Stamp,
    /// Dropped after the state is unlocked, because that runs the backend's code.
    unwatched: Vec<WatchGuard>,
    /// Always empty here. It is kept for its capacity.
    outputs: Outputs<QueueOutput<OutcomeSender>>,
    lease_outputs: Outputs<LeaseOutput>,
}

/// What a claim is doing.
enum OwnerState {
    Waiting(LockName),
    Holding(TaskId),
    /// Being released or withdrawn in the background.
    Ending(TaskId),
}

enum Task {
    Lease(Arc<Lease>),
    Queue(LockName),
    /// The end of a claim in the background. Boxed, because held leases are many and disposals few.
    Dispose(Claim, Box<Disposal>),
}

/// What to do after the state is unlocked.
#[derive(Default)]
struct Effects {
    deliveries: Vec<(OutcomeSender, Result<LockGuard>)>,
    attempts: Vec<Attempt>,
    /// Of leases and places. Only a step of the keeper's loop produces them, and it takes them.
    renewals: Vec<(Target, RenewRequest)>,
    /// Claims that wait without a place.
    watches: Vec<Claim>,
}

/// Owner tokens are random, so they need no hash function.
#[derive(Default)]
struct TokenHasher(u64);

impl Hasher for TokenHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks_exact(8) {
            self.0 = self.0.rotate_left(5) ^ u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        }
    }
}

/// The parts that a client is built from.
pub(crate) struct Parts {
    pub(crate) backend: Arc<dyn LockBackend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Entropy,
    pub(crate) margin_percent: u8,
    pub(crate) holder_info: HolderInfo,
}

impl LeaseKeeper {
    fn new(parts: Parts, home: tokio::runtime::Handle) -> Arc<Self> {
        Arc::new_cyclic(|keeper: &std::sync::Weak<Self>| {
            let (keeper, entropy) = (keeper.clone(), Arc::new(parts.entropy));
            let core = CoreHandle::with_entropy(parts.clock.clone(), home.clone(), entropy.clone(), move |event| {
                if let Some(keeper) = keeper.upgrade() {
                    keeper.on_event(event);
                }
            });
            parts.backend.attach(core);
            let capabilities = parts.backend.capabilities();
            Self {
                rules: Rules::new(&capabilities, parts.margin_percent),
                capabilities,
                backend: parts.backend,
                clock: parts.clock,
                entropy,
                holder_info: Arc::new(parts.holder_info),
                home,
                counters: Counters::default(),
                state: Mutex::new(State {
                    schedule: Schedule::new(),
                    queues: HashMap::new(),
                    owners: HashMap::default(),
                    reentrant: HashMap::new(),
                    next_waiter: 0,
                    withdrawals: 0,
                    unanswered: 0,
                    lost_releases: LostReleases::default(),
                    sleeps_until: Stamp::ZERO,
                    is_shut: false,
                    reports: Reports::default(),
                    last_confirmed: Stamp::ZERO,
                    unwatched: Vec::new(),
                    outputs: Outputs::default(),
                    lease_outputs: Outputs::default(),
                }),
                open_calls: AtomicUsize::new(0),
                is_closing: AtomicBool::new(false),
                ending: AtomicBool::new(false),
                wake: Notify::new(),
                progress: Notify::new(),
            }
        })
    }

    /// Counters and gauges.
    pub(crate) fn stats(&self) -> Stats {
        let waiting: usize = {
            let state = lock(&self.state);
            state.queues.values().map(Queue::waiting).sum()
        };
        self.counters.read(waiting as u64)
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    pub(crate) fn backend(&self) -> &Arc<dyn LockBackend> {
        &self.backend
    }

    pub(crate) fn home(&self) -> &tokio::runtime::Handle {
        &self.home
    }

    pub(crate) fn now(&self) -> Stamp {
        self.clock.now()
    }

    /// Works on the state, then does what must not be done while it is locked.
    fn with_state<T>(self: &Arc<Self>, work: impl FnOnce(&mut State, &mut Effects) -> T) -> T {
        let mut effects = Effects::default();
        let (done, wake, reports, unwatched) = {
            let mut state = lock(&self.state);
            let done = work(&mut state, &mut effects);
            let wake = state.schedule.next().is_some_and(|next| next < state.sleeps_until);
            if wake {
                // One notification is enough until the keeper has read the schedule.
                state.sleeps_until = Stamp::ZERO;
            }
            (done, wake, std::mem::take(&mut state.reports), std::mem::take(&mut state.unwatched))
        };
        if wake {
            self.wake.notify_one();
        }
        reports.emit();
        drop(unwatched);
        effects.watches.iter().for_each(|claim| self.watch(claim));
        for (sender, outcome) in effects.deliveries {
            // If the acquire was dropped, the guard is dropped here, which releases the lease.
            let _ = sender.send(outcome);
        }
        for attempt in effects.attempts {
            self.home.spawn(self.clone().attempt(attempt));
        }
        done
    }

    /// Asks the backend to report when the lock of a waiting claim may be free.
    fn watch(&self, claim: &Claim) {
        let Some(names) = self.backend.watch_names() else { return };
        let mut watch = Some(names.watch(claim));
        if let Some(queue) = Self::queue_of(&mut lock(&self.state), claim) {
            watch = std::mem::replace(&mut queue.watch, watch);
        }
        // The earlier watch, or the new one if the claim no longer waits. Dropped here, because nothing is locked.
        drop(watch);
    }

    pub(crate) fn count_acquire(&self) {
        self.counters.acquires.add();
    }

    pub(crate) fn count_outcome(&self, error: Option<&Error>) {
        match error.map(Error::kind) {
            None => {}
            Some(ErrorKind::Timeout) => self.counters.timeouts.add(),
            Some(_) => self.counters.acquire_errors.add(),
        }
    }

    /// How long a call may have no reply before its outcome counts as unknown.
    pub(crate) fn call_bound(&self) -> Duration {
        self.rules.call_bound
    }

    /// Sets when a task is due.
    fn wake_at(&self, state: &mut State, id: TaskId, wake: Wake) {
        state.schedule.set_due(id, wake.resolve(|pause| self.entropy.jitter(pause)));
    }

    fn on_event(self: &Arc<Self>, event: Event) {
        match event {
            Event::Granted { owner, place, token, confirmation } => {
                self.on_pushed_grant(&owner, place, token, confirmation);
            }
            Event::Gone { owner } => self.on_gone(&owner),
            Event::EndsSooner { owner } => self.on_change_of(&owner),
            Event::Changed(name) => self.on_change(Some(&name)),
            Event::Resync => self.on_change(None),
        }
    }
}

impl fmt::Debug for LeaseKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseKeeper").field("backend", &self.capabilities.backend).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryBackend, MemoryStore};
    use crate::{HolderId, LockClient};

    /// An entry that stays in the keeper's maps would stay for every lock.
    #[tokio::test]
    async fn locks_that_are_released_refused_or_withdrawn_leave_nothing() {
        let store = MemoryStore::default();
        let (client, other) =
            (LockClient::new(MemoryBackend::new(&store)), LockClient::new(MemoryBackend::new(&store)));
        let held = other.lock("held").acquire().await.unwrap();
        for number in 0..10 {
            let lock = client.lock(format!("job {number}")).holder(HolderId::new());
            lock.acquire().await.unwrap().release().await.unwrap();
            assert!(client.lock("held").try_acquire().await.unwrap().is_none());
            let lock = client.lock("held").wait(std::time::Duration::from_millis(5));
            assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Timeout);
        }
        client.shutdown().await.unwrap();
        held.release().await.unwrap();
        let state = lock(&client.keeper.state);
        assert_eq!((state.owners.len(), state.queues.len(), state.reentrant.len()), (0, 0, 0));
        assert_eq!((state.schedule.iter().count(), state.withdrawals), (0, 0));
    }
}
