//! What the keeper logs.

use std::time::Duration;

use tracing::level_filters::LevelFilter;

use crate::backend::PlaceNumber;
use crate::error::Error;
use crate::loss::LossReason;
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
    ReleasedTooLate { is_certain: bool },
    Lost { token: FencingToken, reason: LossReason },
}

/// Log events, kept until the keeper's state is unlocked: a subscriber may block, or call the client.
#[derive(Default)]
pub(super) struct Reports(Vec<(LockName, Report)>);

impl Reports {
    /// Keeps an event for tracing a fault. It costs nothing if no subscriber wants it.
    pub(super) fn push_debug(&mut self, lock: &LockName, report: impl FnOnce() -> Report) {
        if LevelFilter::current() >= LevelFilter::DEBUG {
            self.push(lock, report());
        }
    }

    /// Keeps an event that every subscriber may want. [`emit`](Self::emit) knows its level.
    pub(super) fn push(&mut self, lock: &LockName, report: Report) {
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
                Report::RenewalUnanswered { failures } => tracing::warn!(%lock, failures, "no reply to a renewal"),
                Report::RenewalFailed { error, failures } => {
                    tracing::warn!(%lock, %error, failures, "renewal failed");
                }
                Report::WithdrawFailed { error } => tracing::debug!(%lock, %error, "withdraw failed"),
                Report::WithdrawGivenUp => tracing::warn!(%lock, "withdraw given up: the lease ends by its ttl"),
                Report::ReleasedTooLate { is_certain: true } => {
                    tracing::warn!(%lock, "lost before it was released")
                }
                Report::ReleasedTooLate { is_certain: false } => {
                    tracing::warn!(%lock, "maybe lost before it was released: the store no longer has the lease");
                }
                Report::Lost { token, reason } => tracing::warn!(%lock, token = token.get(), ?reason, "lost"),
            }
        }
    }
}
