//! Shares in a lease, and its release.

use std::sync::Arc;
use std::time::Duration;

use super::lease::Lease;
use super::machines::disposal::Ending;
use super::machines::held_lease::Phase;
use super::report::Reports;
use super::{LeaseKeeper, State};
use crate::backend::Claim;
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::loss::Loss;
use crate::name::LockName;
use crate::run_to_end::{Abandoned, RunToEnd};
use crate::sync::lock;
use crate::terms::Terms;
use crate::timers::{before, timer};

/// A share in a lease. Dropping the last one releases the lease.
pub(crate) struct Hold {
    keeper: Arc<LeaseKeeper>,
    lease: Arc<Lease>,
    open: bool,
}

impl Hold {
    pub(super) fn new(keeper: &Arc<LeaseKeeper>, lease: &Arc<Lease>) -> Self {
        lock(&lease.machine).add_guard();
        Self { keeper: keeper.clone(), lease: lease.clone(), open: true }
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Reads the clock.
    pub(crate) fn check(&self) -> Result<Stamp, Phase> {
        let mut reports = Reports::default();
        let held = self.keeper.check(&mut reports, &self.lease);
        reports.emit();
        held
    }

    pub(crate) fn validity(&self) -> Duration {
        self.check().map_or(Duration::ZERO, |valid_until| valid_until.since(self.keeper.now()))
    }

    /// Releases the share; the last one waits for the store's reply.
    pub(crate) async fn release(mut self) -> Result<()> {
        // Where there are no timers the share is dropped, and so released in the background.
        let timer = timer(self.keeper.call_bound())?;
        self.open = false;
        let keeper = &self.keeper;
        let (name, backend) = (self.lease.claim.name(), keeper.capabilities.backend);
        let released = keeper.drop_share(&self.lease);
        let Some(ending) = released.map_err(|loss| Error::from(loss).during("release", name, backend))? else {
            return Ok(());
        };
        // Counted as long as a caller waits for it; from then on the keeper has a withdrawal for it.
        let _open = keeper.clone().open_call();
        let abandoned = AbandonedRelease {
            keeper: keeper.clone(),
            claim: self.lease.claim.clone(),
            ending: ending.in_doubt(),
            overdue: keeper.now().plus(keeper.call_bound()),
        };
        let call = RunToEnd::new(keeper.home(), keeper.clone().end_now(self.lease.claim.clone(), ending), abandoned);
        before(timer, call).await.unwrap_or_else(|| {
            let text =
                "the store has not answered; the release continues in the background, and the lease ends by its ttl at the latest";
            Err(Error::new(ErrorKind::Indeterminate, text).during("release", name, backend))
        })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !std::mem::replace(&mut self.open, false) {
            return;
        }
        if let Ok(Some(ending)) = self.keeper.drop_share(&self.lease) {
            self.keeper.with_state(|state, _| self.keeper.end(state, &self.lease.claim, ending));
        }
    }
}

/// A release that no caller waits for any more. The runtime that it was called on may never be driven again, so the keeper sends
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
            self.keeper.end_when_overdue(state, &self.claim, self.ending, self.overdue);
        });
    }

    fn ended(self) {
        self.keeper.with_state(|state, _| self.keeper.call_ended(state, self.claim.owner()));
    }
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
        if self.check(&mut state.reports, lease).is_err() {
            return Ok(None);
        }
        let mut machine = lock(&lease.machine);
        machine.terms().require_same_lease(terms)?;
        if !machine.share() {
            return Ok(None);
        }
        Ok(Some(Hold { keeper: self.clone(), lease: lease.clone(), open: true }))
    }

    /// Drops a share. With the last one, renewal stops. Returns how to end the claim now, if it ends now.
    fn drop_share(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<Option<Ending>, Loss> {
        if !lock(&lease.machine).drop_guard() {
            return Ok(None);
        }
        self.with_state(|state, effects| {
            self.feed_lease(state, effects, lease, |lease, rules, now, out| lease.release(rules, now, out))
        })
    }
}
