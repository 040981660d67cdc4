//! Why a lease is over, as its holder learns it.

use std::fmt;

use crate::error::{Error, ErrorKind};

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The validity passed without a renewal that the store confirmed: the store was silent or failing, or this
    /// process was paused.
    Expired,
    /// The store says that the lease is not this holder's any more.
    Gone,
    /// [`max_hold`](crate::Lock::max_hold) was reached, and the lease ran out.
    MaxHold,
    /// The client was shut down.
    Shutdown,
}

/// A lease was lost: certainly not held any more, stop the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// Why.
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
