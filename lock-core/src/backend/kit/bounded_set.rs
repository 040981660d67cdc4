//! A set of a bounded size.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::sync::Mutex;

use crate::sync::lock;

/// Values that a client remembers to save requests. They may be forgotten at any time: more than a given number are
/// forgotten together.
pub struct BoundedSet<T> {
    most: usize,
    values: Mutex<HashSet<T>>,
}

impl<T: Eq + Hash> BoundedSet<T> {
    /// Has no value yet, and at most `most` later.
    pub fn new(most: usize) -> Self {
        Self { most, values: Mutex::default() }
    }

    /// Adds a value.
    pub fn add(&self, value: T) {
        let mut values = lock(&self.values);
        if values.len() >= self.most && !values.contains(&value) {
            values.clear();
        }
        values.insert(value);
    }

    /// Whether the value is remembered.
    pub fn contains<Q: Eq + Hash + ?Sized>(&self, value: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        lock(&self.values).contains(value)
    }

    /// Removes the value, and returns whether it was remembered.
    pub fn remove<Q: Eq + Hash + ?Sized>(&self, value: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        lock(&self.values).remove(value)
    }
}

impl<T> fmt::Debug for BoundedSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedSet").field("values", &lock(&self.values).len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_number_of_values_is_remembered() {
        let set = BoundedSet::new(3);
        for value in ["a", "b", "c", "c", "a"] {
            set.add(value);
        }
        assert!(set.contains("a") && set.contains("b") && set.contains("c"));
        set.add("d");
        assert!(set.contains("d") && !set.contains("a"));
        assert!(set.remove("d") && !set.remove("d"));
    }
}
