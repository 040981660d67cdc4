//! The end of claims: releases, in the background or for a caller that waits, and withdrawals.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::machines::disposal::{Disposal, Ended, Ending, Why};
use super::machines::outputs::Wake;
use super::report::Report;
use super::schedule::TaskId;
use super::{LeaseKeeper, OwnerState, State, Task};
use crate::backend::{Claim, ReleaseRequest, RenewPolicy, RenewReplies, RenewRequest};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;
use crate::token::{FencingToken, OwnerToken};

impl LeaseKeeper {
    /// Ends a claim in the background, beginning at once, or at the end of a `min_hold` that the store has confirmed.
    pub(super) fn end(&self, state: &mut State, claim: &Claim, ending: Ending) {
        self.call_ended(state, claim.owner());
        self.dispose(state, claim, Disposal::new(ending, self.now()));
    }

    /// Leaves a claim to a call in flight that may end it, and ends it in the background if that call is overdue.
    pub(super) fn end_when_overdue(&self, state: &mut State, claim: &Claim, ending: Ending, overdue: Stamp) {
        self.dispose(state, claim, Disposal::when_overdue(ending, overdue));
    }

    fn dispose(&self, state: &mut State, claim: &Claim, (machine, wake): (Disposal, Wake)) {
        let id = state.schedule.insert(Task::Dispose(claim.clone(), Box::new(machine)));
        self.wake_at(state, id, wake);
        state.owners.insert(*claim.owner(), OwnerState::Ending(id));
        state.withdrawals += 1;
    }

    /// A call that continued without its caller has ended, so its claim need not be ended when the call is overdue.
    pub(super) fn call_ended(&self, state: &mut State, owner: &OwnerToken) {
        if let Some(id) = Self::left_to_itself(state, owner) {
            self.withdrawal_done(state, id);
        }
    }

    /// The disposal that waits for a call of this claim, which continues without its caller.
    fn left_to_itself(state: &mut State, owner: &OwnerToken) -> Option<TaskId> {
        let Some(&OwnerState::Ending(id)) = state.owners.get(owner) else { return None };
        match state.schedule.get_mut(id) {
            Some(Task::Dispose(_, machine)) if machine.awaits_call() => Some(id),
            _ => None,
        }
    }

    /// A disposal is due. Returns the call to send, unless its time is over.
    pub(super) fn withdrawal_due(&self, state: &mut State, id: TaskId, now: Stamp) -> Option<(Claim, Ending)> {
        let last_confirmed = state.last_confirmed;
        let Some(Task::Dispose(claim, machine)) = state.schedule.get_mut(id) else { return None };
        if let Some((ending, wake)) = machine.handle_timeout(&self.rules, last_confirmed, now) {
            let claim = claim.clone();
            self.wake_at(state, id, wake);
            return Some((claim, ending));
        }
        state.reports.push(claim.name(), Report::WithdrawGivenUp);
        state.unanswered += 1;
        self.withdrawal_done(state, id);
        None
    }

    /// The store has just granted the lock to a claim that is being ended, and other clients may wait for it. A
    /// disposal that pauses after a failure therefore continues at once.
    pub(super) fn expedite(&self, state: &mut State, id: TaskId) {
        if let Some(Task::Dispose(_, machine)) = state.schedule.get_mut(id)
            && machine.can_go_on_at_once()
        {
            state.schedule.set_due(id, self.now());
        }
    }

    fn withdrawal_done(&self, state: &mut State, id: TaskId) {
        if let Some(Task::Dispose(claim, _)) = state.schedule.remove(id) {
            let owner = claim.owner();
            if matches!(state.owners.get(owner), Some(OwnerState::Ending(last)) if *last == id) {
                state.owners.remove(owner);
            }
        }
        state.withdrawals -= 1;
        self.progress.notify_waiters();
        if self.is_closing.load(Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    pub(super) async fn run_withdrawal(self: Arc<Self>, id: TaskId, (claim, ending): (Claim, Ending)) {
        let answer = self.call_end(&claim, &ending).await;
        let is_too_late = match answer.as_ref().ok().and_then(|ended| ending.missed(*ended)) {
            Some(token) => !ending.is_repeated || !self.is_last_grant(&claim, token).await,
            None => false,
        };
        self.with_state(|state, _| {
            let Some(Task::Dispose(_, machine)) = state.schedule.get_mut(id) else { return };
            match answer {
                Ok(ended) => {
                    let rest = machine.handle_reply(ended);
                    match ending.why {
                        Why::Release { .. } if is_too_late => {
                            self.released_too_late(state, &claim, !ending.is_repeated);
                        }
                        Why::Release { .. } => self.counters.released.add(),
                        Why::Withdraw => self.counters.withdrawn.add(),
                    }
                    self.withdrawal_done(state, id);
                    if let Some(rest) = rest {
                        self.end(state, &claim, rest);
                    }
                }
                Err(error) => {
                    let wake = machine.handle_failure(&error, self.now());
                    self.wake_at(state, id, wake);
                    state.reports.push_debug(claim.name(), || Report::WithdrawFailed { error });
                }
            }
        });
    }

    /// A lease that was released in the background was lost before, or may have been. Only a shutdown returns this
    /// outcome.
    fn released_too_late(&self, state: &mut State, claim: &Claim, is_certain: bool) {
        self.counters.lost.add();
        if is_certain {
            state.lost_releases.lost += 1;
        } else {
            state.lost_releases.unclear += 1;
        }
        state.reports.push(claim.name(), Report::ReleasedTooLate { is_certain });
    }

    /// Whether the store shows that the grant with this token is the last one and was not broken. A store that keeps
    /// nothing of a free lock cannot show it.
    async fn is_last_grant(&self, claim: &Claim, token: FencingToken) -> bool {
        let Some(admin) = self.backend.admin() else { return false };
        let info = tokio::time::timeout(self.call_bound(), admin.inspect(claim.name())).await;
        matches!(info, Ok(Ok(Some(info))) if info.last_token == Some(token))
    }

    /// One call that ends a claim, now or at the end of its `min_hold`.
    async fn call_end(&self, claim: &Claim, ending: &Ending) -> Result<Ended> {
        let Some((place, ttl)) = ending.last_renewal(&self.rules, self.now()) else {
            let request = ReleaseRequest::new(claim.clone(), ending.delivery);
            return Ok(Ended::by_release(self.backend.release(&request).await?));
        };
        let renewal = RenewRequest { policy: RenewPolicy::Exactly, ..RenewRequest::new(claim.clone(), place, ttl) };
        let taken = Arc::new(Mutex::new(None));
        let replies = RenewReplies::new(1, {
            let taken = taken.clone();
            move |_, answer| *lock(&taken) = Some(answer)
        });
        self.backend.renew(&[renewal], &replies).await;
        drop(replies);
        let answer = lock(&taken).take();
        Ended::by_renewal(answer)
    }

    /// Ends a claim for a caller who waits. What fails continues in the background.
    pub(super) async fn end_now(self: Arc<Self>, claim: Claim, ending: Ending) -> Result<()> {
        let keeper = &self;
        let mut unanswered = Unanswered { keeper, claim: &claim, ending: Some(ending.in_doubt()) };
        let answer = keeper.call_end(&claim, &ending).await;
        if let Ok(ended) = &answer {
            unanswered.ending = None;
            if let Some(rest) = ending.rest(*ended) {
                keeper.with_state(|state, _| keeper.end(state, &claim, rest));
            }
        }
        let error = match answer {
            Ok(Ended::Released | Ended::RunsOut) => {
                keeper.counters.released.add();
                return Ok(());
            }
            Ok(Ended::NotHeld | Ended::NothingRunsOut) => {
                keeper.with_state(|state, _| match Self::left_to_itself(state, claim.owner()) {
                    // The caller has given up, and does not see this error.
                    Some(_) => keeper.released_too_late(state, &claim, true),
                    None => keeper.counters.lost.add(),
                });
                Error::new(ErrorKind::Lost, "the store no longer had this lease when it was released")
            }
            Err(error) => {
                // An error that promises to have had no effect leaves no doubt.
                if error.kind() == ErrorKind::Unavailable {
                    unanswered.ending = Some(Ending { is_repeated: true, ..ending });
                }
                tracing::debug!(lock = %claim.name(), %error, "release failed; continues in the background");
                error
            }
        };
        Err(error.during("release", claim.name(), keeper.capabilities.backend))
    }
}

/// Releases in the background that found no lease, and that no shutdown has reported.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LostReleases {
    lost: usize,
    unclear: usize,
}

impl LostReleases {
    /// The result of a shutdown that has no other error.
    pub(super) fn outcome(self) -> Result<()> {
        let text = match (self.lost, self.unclear) {
            (0, 0) => return Ok(()),
            (0, unclear) => format!(
                "the store no longer has {unclear} of the released leases, and did not confirm their release: \
                 another client may have held the lock before it"
            ),
            (lost, 0) => format!("the store no longer had {lost} of the leases when they were released"),
            (lost, unclear) => format!(
                "the store no longer had {lost} of the leases when they were released, and did not \
                 confirm the release of {unclear} others"
            ),
        };
        Err(Error::new(ErrorKind::Lost, text))
    }
}

/// Ends the claim in the background if a release ends without a clear reply, or is dropped.
struct Unanswered<'a> {
    keeper: &'a Arc<LeaseKeeper>,
    claim: &'a Claim,
    ending: Option<Ending>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(ending) = self.ending {
            self.keeper.with_state(|state, _| self.keeper.end(state, self.claim, ending));
        }
    }
}
