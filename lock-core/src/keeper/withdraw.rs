//! Ending claims: releases, in the background or for a caller who waits, and claims whose outcome is unknown.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::report::Report;
use super::rules::PATIENCE;
use super::schedule::TaskId;
use super::{LeaseKeeper, Life, Standing, State, Task};
use crate::backend::{Answer, Answers, Certainty, Claim, Extend, PlaceNumber, Release, ReleaseRequest, RenewRequest};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;
use crate::token::OwnerToken;

/// A claim that is to be ended, until the store answers or its ttl has passed.
pub(super) struct Withdrawal {
    /// Ids of tasks are used again, and a claim may be withdrawn twice.
    serial: u64,
    ending: Ending,
    why: Why,
    until: Stamp,
    failures: u32,
    sent: Option<Stamp>,
    /// A call of the user's own may still end the claim, or show that there is nothing to end. Nothing is sent before it is
    /// overdue.
    awaits_call: bool,
}

/// How a claim is to end at the store.
#[derive(Clone)]
pub(super) struct Ending {
    pub(super) claim: Claim,
    pub(super) certainty: Certainty,
    pub(super) ttl: Duration,
    /// The lease was given up within its `min_hold`: it is left to run out then.
    pub(super) run_out: Option<RunOut>,
}

#[derive(Clone, Copy)]
pub(super) struct RunOut {
    pub(super) at: Stamp,
    pub(super) place: PlaceNumber,
    /// The store has confirmed it. What is left is to withdraw, at its end, a claim of which a request has no answer.
    pub(super) begun: bool,
}

/// What the store says to one call that ends a claim.
enum Ended {
    Released,
    NotHeld,
    /// The lease runs out at the end of its `min_hold`.
    RunsOut,
    /// There is no lease that could run out.
    NothingRunsOut,
}

impl Ending {
    /// What is left to do after the store has said this: a claim of which a request has no answer is withdrawn when its
    /// `min_hold` is over, or at once where nothing runs out.
    fn rest(&self, ended: &Ended) -> Option<Self> {
        if self.certainty == Certainty::Sure {
            return None;
        }
        match ended {
            Ended::Released | Ended::NotHeld => None,
            Ended::RunsOut => {
                let run_out = self.run_out.map(|run_out| RunOut { begun: true, ..run_out });
                Some(Self { run_out, ..self.clone() })
            }
            Ended::NothingRunsOut => Some(Self { run_out: None, ..self.clone() }),
        }
    }
}

/// What a withdrawal counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A lease that its holder gave up.
    Release,
    /// A claim that nobody wants any more.
    Withdraw,
}

impl LeaseKeeper {
    /// Takes a claim back, beginning at once. Without an answer it goes on until `ttl` has passed: then the
    /// store has ended by itself whatever it granted.
    pub(super) fn withdraw(&self, state: &mut State, claim: &Claim, certainty: Certainty, ttl: Duration) {
        self.end(state, Ending { claim: claim.clone(), certainty, ttl, run_out: None }, Why::Withdraw);
    }

    /// Ends a claim in the background, beginning at once, or at the end of a `min_hold` that the store has confirmed.
    pub(super) fn end(&self, state: &mut State, ending: Ending, why: Why) {
        self.call_ended(state, ending.claim.owner());
        let at = ending.run_out.filter(|run_out| run_out.begun).map_or(self.now(), |run_out| run_out.at);
        self.end_at(state, ending, why, at, false);
    }

    /// A call that may end the claim is left to itself. When it has not ended by then, the claim is ended in the background.
    pub(super) fn end_when_overdue(&self, state: &mut State, ending: Ending, why: Why, overdue: Stamp) {
        self.end_at(state, ending, why, overdue, true);
    }

    fn end_at(&self, state: &mut State, ending: Ending, why: Why, at: Stamp, awaits_call: bool) {
        let from = ending.run_out.map_or(at, |run_out| run_out.at.max(at));
        let until = from.plus(ending.ttl);
        let owner = *ending.claim.owner();
        state.next_serial += 1;
        let serial = state.next_serial;
        let withdrawal = Withdrawal { serial, ending, why, until, failures: 0, sent: None, awaits_call };
        let id = state.schedule.insert(Task::Withdraw(withdrawal));
        state.schedule.at(id, at);
        state.owners.insert(owner, Standing::Ending(id));
        state.withdrawals += 1;
    }

    /// A call that was left to itself has ended: nobody has to end its claim when it is overdue.
    pub(super) fn call_ended(&self, state: &mut State, owner: &OwnerToken) {
        let Some(&Standing::Ending(id)) = state.owners.get(owner) else { return };
        if let Some(Task::Withdraw(Withdrawal { awaits_call: true, .. })) = state.schedule.get_mut(id) {
            self.withdrawal_done(state, id);
        }
    }

    /// A withdrawal is due: a call to make, unless one is under way or the time is over.
    pub(super) fn withdrawal_due(&self, state: &mut State, id: TaskId, now: Stamp) -> Option<(u64, Ending)> {
        let bound = self.call_bound();
        let last_confirmed = state.last_confirmed;
        let Some(Task::Withdraw(withdrawal)) = state.schedule.get_mut(id) else { return None };
        // What other leases keep alive does not end by itself.
        let lives_on = self.rules.sessions && now <= last_confirmed.plus(withdrawal.ending.ttl);
        if now > withdrawal.until && withdrawal.failures > 0 && !lives_on {
            state.reports.warn(withdrawal.ending.claim.name(), Report::WithdrawGivenUp);
            state.unanswered += 1;
            self.withdrawal_done(state, id);
            return None;
        }
        if withdrawal.sent.is_some() {
            withdrawal.ending.certainty = Certainty::Unsure;
        }
        withdrawal.awaits_call = false;
        withdrawal.failures += 1;
        withdrawal.sent = Some(now);
        let due = (withdrawal.serial, withdrawal.ending.clone());
        state.schedule.at(id, now.plus(bound));
        Some(due)
    }

    /// The store has just handed the lock to a claim that is being ended: what pauses after a failure goes on at once,
    /// because others wait.
    pub(super) fn hurry(&self, state: &mut State, id: TaskId) {
        if let Some(Task::Withdraw(Withdrawal { sent: None, ending: Ending { run_out: None, .. }, .. })) =
            state.schedule.get_mut(id)
        {
            state.schedule.at(id, self.now());
        }
    }

    fn withdrawal_done(&self, state: &mut State, id: TaskId) {
        if let Some(Task::Withdraw(withdrawal)) = state.schedule.get_mut(id) {
            let owner = withdrawal.ending.claim.owner();
            if matches!(state.owners.get(owner), Some(Standing::Ending(last)) if *last == id) {
                state.owners.remove(owner);
            }
        }
        state.schedule.remove(id);
        state.withdrawals -= 1;
        self.progress.notify_waiters();
        if state.life == Life::Closing {
            self.wake.notify_one();
        }
    }

    pub(super) async fn run_withdrawal(self: Arc<Self>, id: TaskId, (serial, ending): (u64, Ending)) {
        let answer = self.call_end(&ending).await;
        let now = self.now();
        self.with_state(|state, _| {
            let Some(Task::Withdraw(withdrawal)) = state.schedule.get_mut(id) else { return };
            if withdrawal.serial != serial {
                return;
            }
            match answer {
                Ok(ended) => {
                    match withdrawal.why {
                        Why::Release => self.counters.released.add(),
                        Why::Withdraw => self.counters.withdrawn.add(),
                    }
                    let rest = withdrawal.ending.rest(&ended);
                    self.withdrawal_done(state, id);
                    if let Some(rest) = rest {
                        self.end(state, rest, Why::Withdraw);
                    }
                }
                Err(error) => {
                    withdrawal.sent = None;
                    if error.kind() != ErrorKind::Unavailable {
                        withdrawal.ending.certainty = Certainty::Unsure;
                    }
                    let next = now.plus(self.backoff(PATIENCE, withdrawal.failures));
                    state.schedule.at(id, next);
                    state.reports.debug(ending.claim.name(), || Report::WithdrawFailed { error });
                }
            }
        });
    }

    /// One call that ends a claim, now or at the end of its `min_hold`.
    async fn call_end(&self, ending: &Ending) -> Result<Ended> {
        let left = ending.run_out.filter(|run_out| !run_out.begun);
        let left = left.map(|run_out| (run_out.place, run_out.at.since(self.now())));
        let Some((place, left)) = left.filter(|(_, left)| !left.is_zero()) else {
            let request = ReleaseRequest::new(ending.claim.clone(), ending.certainty);
            return match self.backend.release(&request).await? {
                Release::Released => Ok(Ended::Released),
                Release::NotHeld => Ok(Ended::NotHeld),
            };
        };
        let ttl = left.max(self.rules.min_ttl);
        let renewal = RenewRequest { extend: Extend::Exactly, ..RenewRequest::new(ending.claim.clone(), place, ttl) };
        let taken = Arc::new(Mutex::new(None));
        let answers = Answers::new(1, {
            let taken = taken.clone();
            move |_, answer| *lock(&taken) = Some(answer)
        });
        self.backend.renew(&[renewal], &answers).await;
        drop(answers);
        let answer = lock(&taken).take();
        match answer {
            Some(Answer::Renewed(_) | Answer::Granted(_)) => Ok(Ended::RunsOut),
            Some(Answer::Unknown(error)) => Err(error),
            _ => Ok(Ended::NothingRunsOut),
        }
    }

    /// Ends a claim for a caller who waits. What fails goes on in the background.
    pub(super) async fn end_now(self: Arc<Self>, ending: Ending) -> Result<()> {
        let keeper = &self;
        let mut unanswered = Unanswered { keeper, ending: Some(&ending), certainty: Certainty::Unsure };
        let answer = keeper.call_end(&ending).await;
        if let Ok(ended) = &answer {
            unanswered.ending = None;
            if let Some(rest) = ending.rest(ended) {
                keeper.with_state(|state, _| keeper.end(state, rest, Why::Withdraw));
            }
        }
        let error = match answer {
            Ok(Ended::Released | Ended::RunsOut) => {
                keeper.counters.released.add();
                return Ok(());
            }
            Ok(Ended::NotHeld | Ended::NothingRunsOut) => {
                Error::new(ErrorKind::Lost, "the store no longer had this lease when it was released")
            }
            Err(error) => {
                // An error that promises to have had no effect leaves the certainty as it was.
                if error.kind() == ErrorKind::Unavailable {
                    unanswered.certainty = ending.certainty;
                }
                tracing::debug!(lock = %ending.claim.name(), %error, "release failed; goes on in the background");
                error
            }
        };
        Err(error.during("release", ending.claim.name(), keeper.capabilities.backend))
    }
}

/// Goes on in the background when a release ends without a clear answer, also by being dropped.
struct Unanswered<'a> {
    keeper: &'a Arc<LeaseKeeper>,
    ending: Option<&'a Ending>,
    certainty: Certainty,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(ending) = self.ending {
            let ending = Ending { certainty: self.certainty, ..ending.clone() };
            self.keeper.with_state(|state, _| self.keeper.end(state, ending, Why::Release));
        }
    }
}
