//! State that the calls and threads of one client share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use leasehold_core::Result;
use leasehold_core::backend::kit::Attachment;
use leasehold_core::backend::{Claim, CoreHandle};

use crate::file::File;
use crate::notifier::ReleaseNotifier;
use crate::watcher::Watcher;

pub(crate) struct Shared {
    pub(crate) file: Arc<File>,
    pub(crate) core: Attachment,
    pub(crate) watcher: Watcher,
}

impl Shared {
    pub(crate) fn new(file: File) -> Self {
        let watcher = Watcher::new(ReleaseNotifier::new(&file.path));
        Self { file: Arc::new(file), core: Attachment::new(), watcher }
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

/// What this process knows about a claim. All its requests come from this process, so the store need not keep any of
/// this.
#[derive(Debug, Default)]
pub(crate) struct ClaimState {
    /// The claim was refused, and has waited since.
    pub(crate) has_waited: AtomicBool,
    /// The claim was withdrawn. An acquire that arrives later has no effect, however long it was delayed.
    pub(crate) is_withdrawn: AtomicBool,
}

impl ClaimState {
    pub(crate) fn of(claim: &Claim) -> &Self {
        claim.slot()
    }
}
