//! What the keeper logs, and the one place where a lease that is lost is counted and logged.

use std::time::Duration;

use tracing::level_filters::LevelFilter;

use super::LeaseKeeper;
use crate::backend::{Certainty, Confirmation, PlaceNumber};
use crate::clock::Stamp;
use crate::error::Error;
use crate::lease::{Lease, Look, Phase};
use crate::loss::{Loss, LossReason};
use crate::name::LockName;
use crate::token::FencingToken;

/// A log event.
pub(super) enum Report {
    Granted { token: FencingToken, validity: Duration },
    Queued { place: PlaceNumber },
    AttemptFailed { error: Error },
    RenewalUnanswered { failures: u32 },
    RenewalFailed { error: Error, failures: u32 },
    WithdrawFailed { error: Error },
    WithdrawGivenUp,
    Lost { token: FencingToken, reason: LossReason },
}

/// Log events that wait until the keeper's state is unlocked: a subscriber may block, or call the client.
#[derive(Default)]
pub(super) struct Reports(Vec<(LockName, Report)>);

impl Reports {
    /// An event for whoever looks for a fault. Costs nothing where no subscriber wants any.
    pub(super) fn debug(&mut self, lock: &LockName, report: impl FnOnce() -> Report) {
        if LevelFilter::current() >= LevelFilter::DEBUG {
            self.warn(lock, report());
        }
    }

    pub(super) fn warn(&mut self, lock: &LockName, report: Report) {
        self.0.push((lock.clone(), report));
    }

    /// Call it with nothing locked.
    pub(super) fn emit(self) {
        for (lock, report) in self.0 {
            match report {
                Report::Granted { token, validity } => {
                    tracing::debug!(%lock, token = token.get(), ?validity, "granted");
                }
                Report::Queued { place } => tracing::debug!(%lock, place = place.get(), "queued"),
                Report::AttemptFailed { error } => tracing::debug!(%lock, %error, "attempt failed"),
                Report::RenewalUnanswered { failures } => tracing::warn!(%lock, failures, "renewal not answered"),
                Report::RenewalFailed { error, failures } => {
                    tracing::warn!(%lock, %error, failures, "renewal failed");
                }
                Report::WithdrawFailed { error } => tracing::debug!(%lock, %error, "withdraw failed"),
                Report::WithdrawGivenUp => tracing::warn!(%lock, "withdraw given up: the lease ends by its ttl"),
                Report::Lost { token, reason } => tracing::warn!(%lock, token = token.get(), ?reason, "lost"),
            }
        }
    }
}

/// The end of the validity of a lease that is held, or how it ended.
pub(super) type Held = Result<Stamp, Phase>;

/// Everything that can find a lease lost. Each loss is accounted for here, whoever finds it.
impl LeaseKeeper {
    /// How a lease stands now.
    pub(super) fn look(&self, reports: &mut Reports, lease: &Lease) -> Held {
        self.account(reports, lease, lease.look(|| self.now()))
    }

    /// Counts a confirmation of a lease's own place.
    pub(super) fn prolong(&self, reports: &mut Reports, lease: &Lease, confirmation: &Confirmation) -> Held {
        let look = lease.confirm(|| self.now(), confirmation, self.rules.margin_percent);
        self.account(reports, lease, look)
    }

    /// The store says that a lease is gone. What is known of its requests; nothing when it was over already.
    pub(super) fn lose(&self, reports: &mut Reports, lease: &Lease) -> Option<Certainty> {
        let certainty = lease.lose(LossReason::Gone)?;
        self.lost(reports, lease, Loss::new(LossReason::Gone));
        Some(certainty)
    }

    /// The holder gives a lease up. How it stood just before, and what is known of its requests.
    pub(super) fn give_up_lease(&self, reports: &mut Reports, lease: &Lease) -> (Held, Certainty) {
        let (look, certainty) = lease.give_up(Phase::Released, || self.now());
        let held = self.account(reports, lease, look);
        if held.is_ok() {
            self.counters.held.sub();
        }
        (held, certainty)
    }

    /// The client is shut down. How the lease stood just before, and what is known of its requests.
    pub(super) fn cut_off(&self, reports: &mut Reports, lease: &Lease) -> (Held, Certainty) {
        let shut_down = Loss::new(LossReason::Shutdown);
        let (look, certainty) = lease.give_up(Phase::Lost(shut_down), || self.now());
        let held = self.account(reports, lease, look);
        if held.is_ok() {
            self.lost(reports, lease, shut_down);
        }
        (held, certainty)
    }

    fn account(&self, reports: &mut Reports, lease: &Lease, look: Look) -> Held {
        match look {
            Look::Held { valid_until } => Ok(valid_until),
            Look::JustLost(loss) => {
                self.lost(reports, lease, loss);
                Err(Phase::Lost(loss))
            }
            Look::Over(phase) => Err(phase),
        }
    }

    fn lost(&self, reports: &mut Reports, lease: &Lease, loss: Loss) {
        self.counters.lost.add();
        self.counters.held.sub();
        reports.warn(lease.claim.name(), Report::Lost { token: lease.token, reason: loss.reason });
    }
}
