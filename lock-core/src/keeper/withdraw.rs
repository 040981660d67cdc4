//! Taking back claims: releases in the background, and claims whose outcome is unknown.

use std::sync::Arc;
use std::time::Duration;

use super::schedule::TaskId;
use super::{LeaseKeeper, Life, State, Task};
use crate::claim::Claim;
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::grant::Certainty;
use crate::grant::Release;

/// A claim that is to be taken back, until the store answers or its ttl has passed.
pub(super) struct Withdrawal {
    claim: Claim,
    why: Why,
    certainty: Certainty,
    until: Stamp,
    failures: u32,
    sent: Option<Stamp>,
}

/// What a withdrawal counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A lease that its holder gave up.
    Release,
    /// A claim that nobody wants any more.
    Withdraw,
}

/// The pause that grows with failed withdrawals starts from a sixteenth of this.
pub(super) const PATIENCE: Duration = Duration::from_millis(800);

impl LeaseKeeper {
    /// Takes a claim back, beginning at once. Without an answer it goes on until `ttl` has passed: then the
    /// store has ended by itself whatever it granted.
    pub(super) fn withdraw(&self, state: &mut State, claim: &Claim, certainty: Certainty, ttl: Duration, why: Why) {
        self.withdraw_at(state, claim, certainty, ttl, why, self.now());
    }

    /// The same, beginning at `at`.
    pub(super) fn withdraw_at(
        &self,
        state: &mut State,
        claim: &Claim,
        certainty: Certainty,
        ttl: Duration,
        why: Why,
        at: Stamp,
    ) {
        let withdrawal =
            Withdrawal { claim: claim.clone(), why, certainty, until: at.plus(ttl), failures: 0, sent: None };
        let id = state.schedule.insert(Task::Withdraw(withdrawal));
        state.schedule.at(id, at);
        state.withdrawals += 1;
    }

    /// A withdrawal is due: a call to make, unless one is under way or the time is over.
    pub(super) fn withdrawal_due(&self, state: &mut State, id: TaskId, now: Stamp) -> Option<(Claim, Certainty)> {
        let bound = self.call_bound();
        let Some(Task::Withdraw(withdrawal)) = state.schedule.get_mut(id) else { return None };
        if now > withdrawal.until && withdrawal.failures > 0 {
            tracing::warn!(lock = %withdrawal.claim.name(), "withdraw given up: the lease ends by its ttl");
            self.withdrawal_done(state, id);
            return None;
        }
        if withdrawal.sent.is_some() {
            withdrawal.certainty = Certainty::Unsure;
        }
        withdrawal.failures += 1;
        withdrawal.sent = Some(now);
        let call = (withdrawal.claim.clone(), withdrawal.certainty);
        state.schedule.at(id, now.plus(bound));
        Some(call)
    }

    fn withdrawal_done(&self, state: &mut State, id: TaskId) {
        state.schedule.remove(id);
        state.withdrawals -= 1;
        self.progress.notify_waiters();
        if state.life == Life::Closing {
            self.wake.notify_one();
        }
    }

    pub(super) async fn run_withdrawal(self: Arc<Self>, id: TaskId, claim: Claim, certainty: Certainty) {
        let answer = self.backend.release(&claim, certainty).await;
        let now = self.now();
        self.with_state(|state, _| {
            let Some(Task::Withdraw(withdrawal)) = state.schedule.get_mut(id) else { return };
            if withdrawal.claim.owner() != claim.owner() {
                return;
            }
            match &answer {
                Ok(_) => {
                    match withdrawal.why {
                        Why::Release => self.counters.released.add(),
                        Why::Withdraw => self.counters.withdrawn.add(),
                    }
                    self.withdrawal_done(state, id);
                }
                Err(error) => {
                    tracing::debug!(lock = %claim.name(), %error, "withdraw failed");
                    withdrawal.sent = None;
                    if error.kind() != ErrorKind::Unavailable {
                        withdrawal.certainty = Certainty::Unsure;
                    }
                    let next = now.plus(self.backoff(PATIENCE, withdrawal.failures));
                    state.schedule.at(id, next);
                }
            }
        });
    }

    /// Releases for a caller who waits. What fails goes on in the background.
    pub(super) async fn release_now(self: Arc<Self>, claim: Claim, certainty: Certainty, ttl: Duration) -> Result<()> {
        let mut unanswered = Unanswered { keeper: &self, claim: &claim, ttl, certainty: Some(Certainty::Unsure) };
        let answer = self.backend.release(&claim, certainty).await;
        let error = match answer {
            Ok(Release::Released) => {
                unanswered.certainty = None;
                self.counters.released.add();
                return Ok(());
            }
            Ok(Release::NotHeld) => {
                unanswered.certainty = None;
                return Err(Error::new(ErrorKind::Lost, "the store no longer had this lease when it was released")
                    .during("release", claim.name(), self.capabilities.backend));
            }
            Err(error) => error,
        };
        // An error that promises to have had no effect leaves the certainty as it was.
        if error.kind() == ErrorKind::Unavailable {
            unanswered.certainty = Some(certainty);
        }
        drop(unanswered);
        tracing::debug!(lock = %claim.name(), %error, "release failed; goes on in the background");
        Err(error.during("release", claim.name(), self.capabilities.backend))
    }
}

/// Withdraws a claim when a release ends without a clear answer, also by being dropped.
struct Unanswered<'a> {
    keeper: &'a Arc<LeaseKeeper>,
    claim: &'a Claim,
    ttl: Duration,
    certainty: Option<Certainty>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(certainty) = self.certainty {
            self.keeper
                .with_state(|state, _| self.keeper.withdraw(state, self.claim, certainty, self.ttl, Why::Release));
        }
    }
}
