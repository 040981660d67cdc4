//! Shares in a lease, and giving it up.

use std::sync::Arc;
use std::time::Duration;

use super::withdraw::{Ending, RunOut, Why};
use super::{LeaseKeeper, State, Task};
use crate::error::{Error, ErrorKind, Result};
use crate::grant::Certainty;
use crate::lease::{Lease, Look, Phase, Terms};
use crate::loss::{Loss, LossReason};
use crate::name::LockName;
use crate::run_to_end::RunToEnd;

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
    pub(crate) fn look(&self) -> Look {
        let look = self.lease.look(|| self.keeper.now());
        if let Look::JustLost(loss) = look {
            self.keeper.note_loss(&self.lease, loss);
        }
        look
    }

    pub(crate) fn validity(&self) -> Duration {
        match self.look() {
            Look::Held { valid_until } => valid_until.since(self.keeper.now()),
            _ => Duration::ZERO,
        }
    }

    /// Gives the share up; the last one waits for the store's answer.
    pub(crate) async fn release(mut self) -> Result<()> {
        self.open = false;
        let keeper = &self.keeper;
        let Some(end) = keeper.give_up(&self.lease) else { return Ok(()) };
        let (name, backend) = (self.lease.claim.name(), keeper.capabilities.backend);
        let ending = match end {
            End::Lost(loss) => return Err(Error::from(loss).during("release", name, backend)),
            End::Now(ending) => ending,
        };
        let call = RunToEnd::new(keeper.home(), keeper.clone().end_now(ending));
        tokio::time::timeout(keeper.call_bound(), call).await.unwrap_or_else(|_| {
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
            self.keeper.with_state(|state, _| self.keeper.end(state, ending, Why::Release));
        }
    }
}

/// How a lease that was given up ends.
enum End {
    Lost(Loss),
    Now(Ending),
}

impl LeaseKeeper {
    /// Another share in the lease that this holder has, if it has one.
    pub(super) fn shared_hold(self: &Arc<Self>, state: &State, name: &LockName, terms: &Terms) -> Result<Option<Hold>> {
        let Some(holder) = terms.holder else { return Ok(None) };
        let Some(lease) = state.reentrant.get(&(name.clone(), holder)) else { return Ok(None) };
        let Look::Held { .. } = lease.look(|| self.now()) else { return Ok(None) };
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
        let (look, certainty) = lease.give_up(Phase::Released, || self.now());
        self.with_state(|state, _| {
            let certainty = certainty.and(Self::forget(state, lease));
            let ending = self.ending(lease, certainty);
            let loss = match look {
                Look::Held { .. } => {
                    self.counters.held.sub();
                    return Some(End::Now(ending));
                }
                Look::JustLost(loss) => {
                    self.note_loss(lease, loss);
                    loss
                }
                Look::Over(Phase::Lost(loss)) => loss,
                Look::Over(_) => return None,
            };
            // The store may still have it: the next waiter need not sit out the rest. After a shutdown that is done.
            if matches!(loss.reason, LossReason::Expired | LossReason::MaxHold) {
                self.end(state, ending, Why::Release);
            }
            Some(End::Lost(loss))
        })
    }

    /// How a lease is to end that is given up now.
    fn ending(&self, lease: &Lease, certainty: Certainty) -> Ending {
        let run_out = lease.terms.min_hold.map(|min| RunOut { at: lease.granted.plus(min), place: lease.place });
        Ending {
            claim: lease.claim.clone(),
            certainty,
            ttl: lease.terms.ttl,
            run_out: run_out.filter(|run_out| run_out.at > self.now()),
        }
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
            let shut = Phase::Lost(Loss::new(LossReason::Shutdown));
            let (look, certainty) = lease.give_up(shut, || self.now());
            let certainty = certainty.and(Self::forget(state, &lease));
            if let Look::Held { .. } = look {
                self.counters.held.sub();
                self.end(state, self.ending(&lease, certainty), Why::Release);
            }
        }
    }
}

impl Terms {
    /// Two acquires of one holder share a lease, so they must want the same of it.
    pub(super) fn agree(&self, other: &Self) -> Result<()> {
        if self.ttl == other.ttl && self.renewal == other.renewal {
            return Ok(());
        }
        Err(Error::invalid(
            "acquires with the same holder share one lease: their ttl and their kind of renewal must agree",
        ))
    }
}
