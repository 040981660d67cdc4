//! Shares in a lease, and giving it up.

use std::sync::Arc;
use std::time::Duration;

use super::disposal::{Ending, RunOut, Why};
use super::report::{Held, Reports};
use super::{LeaseKeeper, State, Task};
use crate::backend::{Certainty, Claim};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Lease, Phase, Terms};
use crate::loss::{Loss, LossReason};
use crate::name::LockName;
use crate::run_to_end::{Abandoned, RunToEnd};
use crate::timers::{before, timer};

/// A share in a lease. The last one that goes gives the lease up.
pub(crate) struct Hold {
    keeper: Arc<LeaseKeeper>,
    lease: Arc<Lease>,
    open: bool,
}

impl Hold {
    pub(super) fn new(keeper: &Arc<LeaseKeeper>, lease: &Arc<Lease>) -> Self {
        lease.add_guard();
        Self { keeper: keeper.clone(), lease: lease.clone(), open: true }
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Asks the clock.
    pub(crate) fn look(&self) -> Held {
        let mut reports = Reports::default();
        let held = self.keeper.look(&mut reports, &self.lease);
        reports.emit();
        held
    }

    pub(crate) fn validity(&self) -> Duration {
        self.look().map_or(Duration::ZERO, |valid_until| valid_until.since(self.keeper.now()))
    }

    /// Gives the share up; the last one waits for the store's answer.
    pub(crate) async fn release(mut self) -> Result<()> {
        // Where there are no timers the share is dropped, and so released in the background.
        let timer = timer(self.keeper.call_bound())?;
        self.open = false;
        let keeper = &self.keeper;
        let Some(end) = keeper.give_up(&self.lease) else { return Ok(()) };
        let (name, backend) = (self.lease.claim.name(), keeper.capabilities.backend);
        let ending = match end {
            End::Lost(loss) => return Err(Error::from(loss).during("release", name, backend)),
            End::HeldOver => return Ok(()),
            End::Now(ending) => ending,
        };
        // Counted as long as somebody waits for it; from then on the keeper has a withdrawal for it.
        let _open = keeper.clone().open_call();
        let abandoned = AbandonedRelease {
            keeper: keeper.clone(),
            claim: self.lease.claim.clone(),
            ending: Ending { certainty: Certainty::Unsure, ..ending },
            overdue: keeper.now().plus(keeper.call_bound()),
        };
        let call = RunToEnd::new(keeper.home(), keeper.clone().end_now(self.lease.claim.clone(), ending), abandoned);
        before(timer, call).await.unwrap_or_else(|| {
            let text =
                "the store has not answered; goes on in the background, and the lease ends by its ttl at the latest";
            Err(Error::new(ErrorKind::Indeterminate, text).during("release", name, backend))
        })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !std::mem::replace(&mut self.open, false) {
            return;
        }
        if let Some(End::Now(ending)) = self.keeper.give_up(&self.lease) {
            self.keeper.with_state(|state, _| self.keeper.end(state, &self.lease.claim, ending, Why::Release));
        }
    }
}

/// A release that nobody waits for any more. The runtime that it was called on may never be driven again, so the keeper sends
/// it again when the call is overdue.
struct AbandonedRelease {
    keeper: Arc<LeaseKeeper>,
    claim: Claim,
    ending: Ending,
    overdue: Stamp,
}

impl Abandoned for AbandonedRelease {
    fn begins(&self) {
        self.keeper.with_state(|state, _| {
            self.keeper.end_when_overdue(state, &self.claim, self.ending, Why::Release, self.overdue);
        });
    }

    fn ended(self) {
        self.keeper.with_state(|state, _| self.keeper.call_ended(state, self.claim.owner()));
    }
}

/// How a lease that was given up ends.
enum End {
    Lost(Loss),
    /// At the end of its `min_hold`. Nothing is to be sent before.
    HeldOver,
    Now(Ending),
}

impl LeaseKeeper {
    /// Another share in the lease that this holder has, if it has one.
    pub(super) fn shared_hold(
        self: &Arc<Self>,
        state: &mut State,
        name: &LockName,
        terms: &Terms,
    ) -> Result<Option<Hold>> {
        let Some(holder) = terms.holder else { return Ok(None) };
        let Some(lease) = state.reentrant.get(&(name.clone(), holder)) else { return Ok(None) };
        if self.look(&mut state.reports, lease).is_err() {
            return Ok(None);
        }
        lease.terms.agree(terms)?;
        if !lease.share() {
            return Ok(None);
        }
        Ok(Some(Hold { keeper: self.clone(), lease: lease.clone(), open: true }))
    }

    /// A share goes. For the last one renewal stops, and the answer is how the lease is to end.
    fn give_up(self: &Arc<Self>, lease: &Arc<Lease>) -> Option<End> {
        if !lease.drop_guard() {
            return None;
        }
        self.with_state(|state, _| {
            let (held, certainty) = self.give_up_lease(&mut state.reports, lease);
            if held.is_ok() && self.hold_over(state, lease) {
                return Some(End::HeldOver);
            }
            let loss = match held {
                Ok(_) => {
                    let certainty = certainty.and(Self::forget(state, lease));
                    return Some(End::Now(self.ending(lease, certainty)));
                }
                Err(Phase::Lost(loss)) => loss,
                Err(_) => {
                    Self::forget(state, lease);
                    return None;
                }
            };
            // The store may still have it: the next waiter need not sit out the rest. After a shutdown that is done, or waits for the end
            // of `min_hold`.
            match loss.reason {
                LossReason::Expired | LossReason::MaxHold if self.rules.sessions => {
                    self.end_with_session(state, lease, Why::Release);
                }
                LossReason::Expired | LossReason::MaxHold => {
                    let certainty = certainty.and(Self::forget(state, lease));
                    self.end(state, &lease.claim, self.ending(lease, certainty), Why::Release);
                }
                LossReason::Gone | LossReason::Shutdown => {}
            }
            Some(End::Lost(loss))
        })
    }

    /// When a lease may end that is given up within its `min_hold`.
    fn min_hold_ends(&self, lease: &Lease) -> Option<Stamp> {
        let at = lease.granted.plus(lease.terms.min_hold?);
        (at > self.now()).then_some(at)
    }

    /// Keeps a lease for the rest of its `min_hold` where the store cannot. Whether it does.
    fn hold_over(&self, state: &mut State, lease: &Arc<Lease>) -> bool {
        let until = self.min_hold_ends(lease).filter(|_| self.rules.sessions);
        if let (Some(until), Some((id, task))) = (until, Self::lease_task(state, lease)) {
            task.held_over = Some(until);
            state.schedule.at_the_latest(id, until);
        }
        until.is_some()
    }

    /// How a lease is to end that is given up now.
    fn ending(&self, lease: &Lease, certainty: Certainty) -> Ending {
        let run_out = self.min_hold_ends(lease).map(|at| RunOut { at, place: lease.place, begun: false });
        Ending { certainty, ttl: lease.claim_ttl, run_out }
    }

    /// Ends every lease, and takes them back.
    pub(super) fn end_all(&self, state: &mut State) {
        let leases: Vec<_> = state
            .schedule
            .iter()
            .filter_map(|task| match task {
                Task::Lease(task) => Some(task.lease.clone()),
                _ => None,
            })
            .collect();
        for lease in leases {
            let (held, certainty) = self.cut_off(&mut state.reports, &lease);
            if held.is_ok() && self.hold_over(state, &lease) || held == Err(Phase::Released) {
                continue;
            }
            let certainty = certainty.and(Self::forget(state, &lease));
            if held.is_ok() {
                self.end(state, &lease.claim, self.ending(&lease, certainty), Why::Release);
            }
        }
    }
}

impl Terms {
    /// Two acquires of one holder share a lease, so they must want the same of it.
    pub(super) fn agree(&self, other: &Self) -> Result<()> {
        if self == other {
            return Ok(());
        }
        Err(Error::invalid(
            "acquires with the same holder share one lease: their mode, ttl, kind of renewal, max_hold and min_hold must agree",
        ))
    }
}
