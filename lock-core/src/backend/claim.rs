//! Claims: one attempt of one client to hold a lock.

use std::fmt;
use std::sync::Arc;

use crate::holder_info::HolderInfo;
use crate::name::LockName;
use crate::token::OwnerToken;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// By one holder at a time.
    #[default]
    Exclusive,
    /// By any number of holders, none of them exclusive. No backend has it yet.
    Shared,
}

/// What a claim wants while another holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum IfHeld {
    /// A place in the server's queue, where the server keeps one.
    #[default]
    Queue,
    /// Nothing: the answer is [`Held`](crate::backend::Acquisition::Held), and nothing is kept at the store.
    Leave,
}

/// One attempt of one client to hold a lock. It exists before, during and after its lease. Cheap to clone.
///
/// Two claims are two owners, even in one task, on one connection, in one session.
#[derive(Clone)]
#[non_exhaustive]
pub struct Claim(Arc<Inner>);

struct Inner {
    name: LockName,
    owner: OwnerToken,
    mode: Mode,
    if_held: IfHeld,
    holder: Arc<HolderInfo>,
}

impl Claim {
    /// A claim of the lock `name` by a fresh `owner`.
    pub fn new(name: LockName, owner: OwnerToken, mode: Mode, holder: Arc<HolderInfo>) -> Self {
        Self(Arc::new(Inner { name, owner, mode, if_held: IfHeld::Queue, holder }))
    }

    /// The same claim with another wish for when the lock is held. [`Claim::new`] wants a place.
    #[must_use]
    pub fn if_held(self, if_held: IfHeld) -> Self {
        let Inner { name, owner, mode, holder, .. } = &*self.0;
        Self(Arc::new(Inner { name: name.clone(), owner: *owner, mode: *mode, if_held, holder: holder.clone() }))
    }

    /// The same claim under another name, for a backend that wraps another one.
    #[must_use]
    pub fn renamed(&self, name: LockName) -> Self {
        Self::new(name, self.0.owner, self.0.mode, self.0.holder.clone()).if_held(self.0.if_held)
    }

    /// The lock.
    pub fn name(&self) -> &LockName {
        &self.0.name
    }

    /// What proves that a lease is this claim's.
    pub fn owner(&self) -> &OwnerToken {
        &self.0.owner
    }

    /// How it wants to hold the lock.
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// What it wants while another holds the lock.
    pub fn wish(&self) -> IfHeld {
        self.0.if_held
    }

    /// Who claims, for people.
    pub fn holder(&self) -> &HolderInfo {
        &self.0.holder
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("name", &self.0.name).field("mode", &self.0.mode).finish_non_exhaustive()
    }
}
