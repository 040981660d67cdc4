//! Mutexes without poisoning: a panic in one task does not fail every later call.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even after a panic. For critical sections that leave their data consistent after each step.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
