//! One habit of locking: a panic elsewhere does not poison what it guarded.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even after a panic. For critical sections that leave their data consistent at each step.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
