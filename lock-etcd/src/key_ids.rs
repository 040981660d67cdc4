//! The last parts of the keys of a client's claims. A client uses them again.
//!
//! The server keeps a deleted key in its index until the next compaction, and an acquire reads the index of the whole
//! queue. With a new key for each claim, an acquire cost the server twice as much after some thousands of others of the
//! same lock. So the next claim of a client has the same key, once the key is known to be deleted and no request for it
//! is without a reply: such a request could delete the key of the next claim.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use leasehold_core::LockName;
use leasehold_core::backend::kit::lock;

/// How many claims of one client and lock have different ids: one for each bit of [`State::in_use`].
const NUMBERS: u32 = u64::BITS;

/// The ids of one client.
pub(crate) struct KeyIds(Mutex<State>);

struct State {
    /// A random multiple of [`NUMBERS`], so no other client has the same ids.
    base: u128,
    in_use: HashMap<LockName, u64>,
}

/// The id of one claim.
pub(crate) struct KeyId {
    ids: Arc<KeyIds>,
    name: LockName,
    id: u128,
}

impl State {
    fn new() -> Self {
        Self { base: base_of(rand::random()), in_use: HashMap::new() }
    }
}

fn base_of(id: u128) -> u128 {
    id - id % u128::from(NUMBERS)
}

impl KeyIds {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::new())))
    }

    /// An id that no other claim of this lock has.
    pub(crate) fn next(self: &Arc<Self>, name: &LockName) -> KeyId {
        let mut state = lock(&self.0);
        if state.in_use.get(name) == Some(&u64::MAX) {
            *state = State::new();
        }
        let base = state.base;
        let in_use = state.in_use.entry(name.clone()).or_default();
        let number = in_use.trailing_ones();
        *in_use |= 1 << number;
        KeyId { ids: self.clone(), name: name.clone(), id: base + u128::from(number) }
    }
}

impl KeyId {
    pub(crate) fn get(&self) -> u128 {
        self.id
    }

    /// The claim has ended. If its id must not be used again, the client has different ids from now on.
    pub(crate) fn end(self, is_reusable: bool) {
        let mut state = lock(&self.ids.0);
        // Otherwise the id is not used again in any case.
        if base_of(self.id) != state.base {
            return;
        }
        if !is_reusable {
            *state = State::new();
            return;
        }
        let number = self.id - state.base;
        if let Some(in_use) = state.in_use.get_mut(&self.name) {
            *in_use &= !(1 << number);
            if *in_use == 0 {
                state.in_use.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[test]
    fn claims_of_a_lock_have_different_ids_and_later_ones_the_same() {
        let ids = KeyIds::new();
        let (one, two) = (ids.next(&name("job")), ids.next(&name("job")));
        assert_ne!(one.get(), two.get());
        assert_eq!(ids.next(&name("other")).get(), one.get(), "another lock has other keys");
        let first = one.get();
        one.end(true);
        let again = ids.next(&name("job"));
        assert!(again.get() == first && again.get() != two.get());
        two.end(true);
        again.end(true);
        assert!(lock(&ids.0).in_use.keys().all(|used| *used == name("other")));
    }

    #[test]
    fn an_id_in_doubt_is_not_used_again() {
        let ids = KeyIds::new();
        let (one, two) = (ids.next(&name("job")), ids.next(&name("job")));
        let (first, second) = (one.get(), two.get());
        one.end(false);
        // It has an earlier base, and frees no id of the present one.
        let three = ids.next(&name("job"));
        two.end(true);
        let four = ids.next(&name("job"));
        assert!([first, second, three.get()].iter().all(|id| *id != four.get()) && three.get() != first);
    }

    #[test]
    fn ids_do_not_run_out() {
        let ids = KeyIds::new();
        let all: Vec<_> = (0..3 * NUMBERS).map(|_| ids.next(&name("job"))).collect();
        let different: std::collections::HashSet<_> = all.iter().map(KeyId::get).collect();
        assert_eq!(different.len(), all.len());
    }
}
