//! Locks that outlive panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock whose data stays usable after a panic elsewhere: everything guarded here is valid between statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
