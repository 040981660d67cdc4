//! What the calls and the threads of one client have in common.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::backend::{Attachment, Claim, CoreHandle, OwnerToken};
use leasehold_core::{Error, ErrorKind, Result};

use crate::bell::Bell;
use crate::file::File;
use crate::waiters::Waiters;

pub(crate) struct Shared {
    pub(crate) file: Arc<File>,
    pub(crate) core: Attachment,
    pub(crate) waiters: Waiters,
    pub(crate) withdrawn: Withdrawn,
}

impl Shared {
    pub(crate) fn new(file: File) -> Self {
        let waiters = Waiters::new(Bell::of(&file.path));
        Self { file: Arc::new(file), core: Attachment::new(), waiters, withdrawn: Withdrawn::default() }
    }

    pub(crate) fn core(&self) -> Result<&CoreHandle> {
        self.core.core()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("file", &self.file).finish_non_exhaustive()
    }
}

/// The claims that were withdrawn lately. All requests of a claim come through this process, so this is enough: an acquire that
/// arrives after its withdraw, however it was held up on the way here, has no effect.
#[derive(Default)]
pub(crate) struct Withdrawn {
    any: AtomicBool,
    owners: Mutex<Owners>,
}

#[derive(Default)]
struct Owners {
    known: HashSet<OwnerToken>,
    in_order: VecDeque<OwnerToken>,
}

/// Far more than what a client has under way at once.
const REMEMBERED: usize = 10_000;

impl Withdrawn {
    pub(crate) fn add(&self, claim: &Claim) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if owners.known.insert(*claim.owner()) {
            owners.in_order.push_back(*claim.owner());
        }
        if owners.in_order.len() > REMEMBERED
            && let Some(oldest) = owners.in_order.pop_front()
        {
            owners.known.remove(&oldest);
        }
        self.any.store(true, Ordering::Release);
    }

    /// # Errors
    /// `Lost` when it was.
    pub(crate) fn check(&self, claim: &Claim) -> Result<()> {
        let any = self.any.load(Ordering::Acquire);
        if any && self.owners.lock().unwrap_or_else(PoisonError::into_inner).known.contains(claim.owner()) {
            return Err(Error::new(ErrorKind::Lost, "this claim was withdrawn before the request arrived"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::backend::Mode;
    use leasehold_core::{HolderInfo, LockName};

    use super::*;

    fn claim(number: u32) -> Claim {
        let mut owner = [0; 16];
        owner[..4].copy_from_slice(&number.to_be_bytes());
        let holder = Arc::new(HolderInfo::of_this_process("").unwrap());
        Claim::new(LockName::new("n").unwrap(), OwnerToken::from_bytes(owner), Mode::Exclusive, holder)
    }

    #[test]
    fn the_newest_withdrawn_claims_are_remembered() {
        let withdrawn = Withdrawn::default();
        assert!(withdrawn.check(&claim(0)).is_ok());
        let last = u32::try_from(REMEMBERED).unwrap();
        for number in 0..=last {
            withdrawn.add(&claim(number));
            withdrawn.add(&claim(number));
        }
        assert!(withdrawn.check(&claim(0)).is_ok());
        assert_eq!(withdrawn.check(&claim(1)).unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(withdrawn.check(&claim(last)).unwrap_err().kind(), ErrorKind::Lost);
        assert!(withdrawn.check(&claim(last + 1)).is_ok());
    }
}
