//! One habit of locking: a panic elsewhere does not poison what it guarded.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic: every critical section here leaves its data whole at each step.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
