//! Claims: one attempt of one client to hold a lock.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::holder_info::HolderInfo;
use crate::name::LockName;
use crate::token::OwnerToken;

/// One attempt of one client to hold a lock. It exists before, during and after its lease. Cheap to clone.
///
/// Two claims are two owners, even in one task, on one connection or in one session.
#[derive(Clone)]
#[non_exhaustive]
pub struct Claim(Arc<Inner>);

struct Inner {
    name: LockName,
    owner: OwnerToken,
    holder: Arc<HolderInfo>,
    slot: Slot,
}

enum Slot {
    Own(Values),
    /// The slot of the claim that this one renames.
    Of(Claim),
}

/// One value of each type. Most claims have none.
type Values = OnceLock<Box<Value>>;

struct Value {
    value: Box<dyn Any + Send + Sync>,
    others: Values,
}

impl Claim {
    /// A claim of the lock `name` by a fresh `owner`.
    pub fn new(name: LockName, owner: OwnerToken, holder: Arc<HolderInfo>) -> Self {
        Self(Arc::new(Inner { name, owner, holder, slot: Slot::Own(Values::new()) }))
    }

    /// The same claim under another name, for a backend that wraps another one.
    #[must_use]
    pub fn renamed(&self, name: LockName) -> Self {
        let Inner { owner, holder, .. } = &*self.0;
        Self(Arc::new(Inner { name, owner: *owner, holder: holder.clone(), slot: Slot::Of(self.clone()) }))
    }

    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        &self.0.name
    }

    /// The token that proves that a lease belongs to this claim.
    pub fn owner(&self) -> &OwnerToken {
        &self.0.owner
    }

    /// The holder information of this client, for people.
    pub fn holder(&self) -> &HolderInfo {
        &self.0.holder
    }

    /// A value that a backend keeps for this claim, such as a key or a connection. The first call creates it. All
    /// clones of the claim share it, and it is dropped with the last of them. A claim keeps one value of each type, so
    /// that backends that wrap others do not interfere: use a type of your own.
    pub fn slot<T: Default + Send + Sync + 'static>(&self) -> &T {
        let mut values = match &self.0.slot {
            Slot::Own(values) => values,
            Slot::Of(claim) => return claim.slot(),
        };
        loop {
            let first = values.get_or_init(|| Box::new(Value { value: Box::<T>::default(), others: Values::new() }));
            if let Some(value) = first.value.downcast_ref() {
                return value;
            }
            values = &first.others;
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("name", &self.0.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_shared_by_the_clones_of_a_claim_and_dropped_with_the_last() {
        let holder = Arc::new(HolderInfo::of_this_process("test").unwrap());
        let claim = Claim::new(LockName::new("job").unwrap(), OwnerToken::from_bytes([1; 16]), holder);
        let kept: &OnceLock<Arc<()>> = claim.slot();
        let value = kept.get_or_init(Arc::default).clone();
        let renamed = claim.clone().renamed(LockName::new("tenant/job").unwrap());
        assert!(Arc::ptr_eq(renamed.slot::<OnceLock<Arc<()>>>().get().unwrap(), &value));
        assert_eq!(renamed.slot::<String>(), "", "a value of another type");
        drop(claim);
        assert_eq!(Arc::strong_count(&value), 2);
        drop(renamed);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
