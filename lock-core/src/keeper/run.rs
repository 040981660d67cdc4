//! The keeper's loop, and where it runs.

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use super::lease::Lease;
use super::machines::disposal::Ending;
use super::schedule::TaskId;
use super::{Effects, LeaseKeeper, Parts, State, Task};
use crate::backend::{Claim, PlaceNumber, RenewReplies, RenewReply, RenewRequest};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::timers::require_timers;

/// Where the lease keeper runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KeeperRuntime {
    /// On a thread of its own, with a small runtime of its own. Renewals continue while the user's executor is starved,
    /// and a guard that is dropped outside a runtime still releases.
    #[default]
    OwnThread,
    /// As tasks on the tokio runtime that the client is built in. This saves a thread, but nothing is renewed while
    /// that runtime is starved. When it shuts down, every holder is notified, and the leases end by their ttl.
    CurrentRuntime,
}

/// What was due in the schedule.
#[derive(Default)]
struct Step {
    renewals: Vec<(Target, RenewRequest)>,
    withdrawals: Vec<(TaskId, (Claim, Ending))>,
    next: Option<Stamp>,
    over: bool,
}

/// Whose renewal it is.
#[derive(Clone)]
pub(super) enum Target {
    Lease(Arc<Lease>),
    Place(Claim, PlaceNumber),
}

/// The keeper while it runs. When its runtime shuts down, no lease is renewed any more, so holders are notified and no
/// new lease begins.
struct Running(Arc<LeaseKeeper>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.end_everything();
    }
}

/// Keeps the keeper running: each client, lock, waiting acquire and guard has one. When the last one is dropped, the
/// keeper ends as soon as nothing is left to release or withdraw.
#[derive(Debug)]
pub(crate) struct KeeperHandle(Arc<LeaseKeeper>);

impl KeeperHandle {
    pub(crate) fn new(keeper: Arc<LeaseKeeper>) -> Self {
        Self(keeper)
    }
}

impl Deref for KeeperHandle {
    type Target = Arc<LeaseKeeper>;

    fn deref(&self) -> &Arc<LeaseKeeper> {
        &self.0
    }
}

impl Drop for KeeperHandle {
    fn drop(&mut self) {
        // Without the keeper's mutex: a queue has a handle too, and is dropped while that is locked.
        self.is_closing.store(true, Ordering::SeqCst);
        self.ending.store(true, Ordering::SeqCst);
        self.wake.notify_one();
    }
}

/// A release that a caller waits for, apart from the keeper's loop.
pub(super) struct OpenCall(Arc<LeaseKeeper>);

impl Drop for OpenCall {
    fn drop(&mut self) {
        let keeper = &self.0;
        keeper.open_calls.fetch_sub(1, Ordering::SeqCst);
        if keeper.ending.load(Ordering::SeqCst) {
            keeper.progress.notify_waiters();
            keeper.wake.notify_one();
        }
    }
}

/// The runtime of a keeper's own thread. If the thread cannot be started, the task that builds the client drops it.
/// That task may itself run on a tokio runtime, where dropping a runtime in the ordinary, blocking way panics.
struct OwnRuntime(Option<tokio::runtime::Runtime>);

impl OwnRuntime {
    fn block_on(&self, work: impl Future<Output = ()>) {
        if let Some(runtime) = &self.0 {
            runtime.block_on(work);
        }
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The most tasks that one step takes before it unlocks the state.
const STEP: usize = 1024;

impl LeaseKeeper {
    pub(crate) fn start(parts: Parts, home: KeeperRuntime) -> Result<Arc<Self>> {
        match home {
            KeeperRuntime::OwnThread => {
                let broken = |error| {
                    Error::new(ErrorKind::Unavailable, "the keeper's thread cannot be started").with_source(error)
                };
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(broken)?;
                let keeper = Self::new(parts, runtime.handle().clone());
                let (running, home) = (Running(keeper.clone()), OwnRuntime(Some(runtime)));
                std::thread::Builder::new()
                    .name("leasehold-keeper".into())
                    .spawn(move || home.block_on(running.0.clone().run()))
                    .map_err(broken)?;
                Ok(keeper)
            }
            KeeperRuntime::CurrentRuntime => {
                let runtime = tokio::runtime::Handle::try_current().map_err(|error| {
                    Error::invalid("`KeeperRuntime::CurrentRuntime` needs a tokio runtime: call `build` inside one")
                        .with_source(error)
                })?;
                require_timers()?;
                let keeper = Self::new(parts, runtime.clone());
                let running = Running(keeper.clone());
                runtime.spawn(async move { running.0.clone().run().await });
                Ok(keeper)
            }
        }
    }

    async fn run(self: Arc<Self>) {
        loop {
            let step = self.step();
            let mut renewals = step.renewals.into_iter().peekable();
            while renewals.peek().is_some() {
                self.send(renewals.by_ref().take(self.capabilities.renew_batch.max(1)).unzip());
            }
            for (id, due) in step.withdrawals {
                self.home.spawn(self.clone().run_withdrawal(id, due));
            }
            if step.over {
                return;
            }
            let Some(next) = step.next else {
                self.wake.notified().await;
                continue;
            };
            let sleep = self.clock.sleep_time(next);
            if sleep.is_zero() {
                tokio::task::yield_now().await;
            } else {
                // Woken or not, the next step reads the schedule.
                let _ = tokio::time::timeout(sleep, self.wake.notified()).await;
            }
        }
    }

    fn step(self: &Arc<Self>) -> Step {
        self.with_state(|state, effects| {
            let mut step = Step::default();
            let now = self.now();
            for _ in 0..STEP {
                let Some((at, id)) = state.schedule.pop(now) else { break };
                match state.schedule.get_mut(id) {
                    Some(Task::Lease(_)) => self.lease_due(state, effects, id, at),
                    Some(Task::Queue(name)) => {
                        let name = name.clone();
                        self.feed(state, effects, &name, |queue, rules, now, out| {
                            queue.handle_timeout(rules, now, out)
                        });
                    }
                    Some(Task::Dispose(..)) => {
                        if let Some(due) = self.withdrawal_due(state, id, now) {
                            step.withdrawals.push((id, due));
                        }
                    }
                    None => {}
                }
            }
            self.fill_batch(state, effects, now);
            step.renewals = std::mem::take(&mut effects.renewals);
            for _ in &step.renewals {
                self.counters.renewals_sent.add();
            }
            step.next = state.schedule.next();
            // A lease that is still scheduled is held for the rest of its `min_hold`. If the keeper ended before that,
            // the lease would last until the ttl of its session has passed.
            step.over = self.is_closing.load(Ordering::SeqCst)
                && self.left(state) == 0
                && !state.schedule.iter().any(|task| matches!(task, Task::Lease(_)));
            state.sleeps_until = step.next.unwrap_or(Stamp::ZERO.plus(Duration::MAX));
            step
        })
    }

    /// Fills a batch that goes out anyway with leases that are due soon.
    fn fill_batch(self: &Arc<Self>, state: &mut State, effects: &mut Effects, now: Stamp) {
        let size = self.capabilities.renew_batch.max(1);
        while !effects.renewals.len().is_multiple_of(size) {
            let Some((at, id)) = state.schedule.first() else { return };
            if !Self::may_go_along(state, id, at.since(now)) {
                return;
            }
            state.schedule.pop(at);
            let before = effects.renewals.len();
            self.lease_due(state, effects, id, at);
            if effects.renewals.len() == before {
                // This lease only runs out. It is first in the schedule again.
                return;
            }
        }
    }

    fn send(self: &Arc<Self>, batch: (Vec<Target>, Vec<RenewRequest>)) {
        self.home.spawn(self.clone().renew_batch(batch));
    }

    /// Each reply counts on its own, as soon as it arrives. If the call is dropped, the outcome of the open requests is
    /// unknown. If it panics, each open request is sent once more, alone. Otherwise one lease that makes the backend
    /// panic would fail the other leases of its batch again and again.
    async fn renew_batch(self: Arc<Self>, (targets, renewals): (Vec<Target>, Vec<RenewRequest>)) {
        let targets: Arc<[Target]> = targets.into();
        let replies = RenewReplies::new(renewals.len(), {
            let (keeper, targets) = (self.clone(), targets.clone());
            move |index, answer| keeper.on_answer(&targets[index], answer)
        });
        // The schedule does not wait for this call. The timeout only keeps a backend that breaks its bound from piling
        // up calls for ever.
        let call = tokio::time::timeout(self.call_bound() * 10, self.backend.renew(&renewals, &replies));
        if !panics(call).await {
            return;
        }
        tracing::error!(renewals = renewals.len(), "the backend panicked in a renewal");
        if renewals.len() > 1 {
            for index in replies.take_open() {
                self.send((vec![targets[index].clone()], vec![renewals[index].clone()]));
            }
        }
    }

    fn on_answer(self: &Arc<Self>, target: &Target, answer: RenewReply) {
        match target {
            Target::Lease(lease) => self.on_lease_answer(lease, answer),
            Target::Place(claim, place) => self.on_place_answer(claim, *place, answer),
        }
    }

    /// How many calls and disposals must end before the keeper may end.
    fn left(&self, state: &State) -> usize {
        state.withdrawals + self.open_calls.load(Ordering::SeqCst)
    }

    /// Call it before the request is sent, and keep it while a caller waits for the reply.
    pub(super) fn open_call(self: Arc<Self>) -> OpenCall {
        self.open_calls.fetch_add(1, Ordering::SeqCst);
        OpenCall(self)
    }

    /// Fails every acquire, notifies every holder, and begins to release and withdraw everything.
    fn end_everything(self: &Arc<Self>) {
        self.with_state(|state, effects| {
            state.is_shut = true;
            self.close_queues(state, effects, &Error::shut_down());
            self.close_leases(state, effects);
        });
    }

    /// Ends every acquire and every lease, and waits until the store has replied. It continues as long as replies
    /// arrive. Without any for two call bounds, it fails.
    pub(crate) async fn shut_down(self: Arc<Self>) -> Result<()> {
        require_timers()?;
        self.ending.store(true, Ordering::SeqCst);
        let before = crate::sync::lock(&self.state).unanswered;
        self.end_everything();
        loop {
            let progress = self.progress.notified();
            let mut progress = std::pin::pin!(progress);
            progress.as_mut().enable();
            let (left, unanswered) = {
                let mut state = crate::sync::lock(&self.state);
                let (left, unanswered) = (self.left(&state), state.unanswered - before);
                if left == 0 && unanswered == 0 {
                    return std::mem::take(&mut state.lost_releases).outcome();
                }
                (left, unanswered)
            };
            if left == 0 {
                let text = format!("the store did not reply to the release of {unanswered} claims; their ttl is over");
                return Err(Error::new(ErrorKind::Indeterminate, text));
            }
            if tokio::time::timeout(self.call_bound() * 2, progress).await.is_err() {
                return Err(Error::new(
                    ErrorKind::Indeterminate,
                    format!("{left} claims could not be released; they end by their ttl"),
                ));
            }
        }
    }
}

/// Runs a call to its end. Returns whether it ended by a panic, which the panic hook has reported.
async fn panics(call: impl Future) -> bool {
    let mut call = pin!(call);
    // Unwind safe: what a panic leaves half done belongs to the call, which is not polled again.
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(cx).is_ready())) {
        Ok(true) => Poll::Ready(false),
        Ok(false) => Poll::Pending,
        Err(_) => Poll::Ready(true),
    })
    .await
}
