//! The loss of a lease, as reported to its holder.

use std::fmt;

use crate::error::{Error, ErrorKind};

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The validity ended without a renewal that the store confirmed: the store did not reply or failed, or this
    /// process was paused.
    Expired,
    /// The store replied that this holder no longer has the lease.
    Gone,
    /// [`max_hold`](crate::Lock::max_hold) was reached, and the lease ran out.
    MaxHold,
    /// The client was shut down.
    Shutdown,
}

/// A lease was lost. It is certainly not held any more: stop the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// Why the lease was lost.
    pub reason: LossReason,
}

impl Loss {
    pub(crate) const fn new(reason: LossReason) -> Self {
        Self { reason }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            LossReason::Expired => "the lease was not renewed in time",
            LossReason::Gone => "the store no longer has this lease",
            LossReason::MaxHold => "the lease reached its longest hold",
            LossReason::Shutdown => "the client was shut down",
        })
    }
}

impl From<Loss> for Error {
    fn from(loss: Loss) -> Self {
        Self::new(ErrorKind::Lost, loss.to_string())
    }
}
