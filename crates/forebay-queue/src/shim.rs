//! Threads and locks: the standard library's, or with the feature `shuttle` those of the model checker of that name.
//!
//! A state machine takes `Mutex`, `Condvar`, channels and threads from here, and its code is the same in both builds. The
//! checker decides at each of their operations which thread goes on; counting in `Arc` is trusted to be atomic.
//!
//! A state machine of another crate does the same, with a feature `shuttle = ["forebay-queue/shuttle"]` there and a test that
//! needs it; `bounded` is for such tests too.

#[cfg(not(feature = "shuttle"))]
pub use std::{sync, thread, thread_local};

#[cfg(feature = "shuttle")]
pub use shuttle::{sync, thread, thread_local};

use std::time::Duration;

use sync::mpsc::{Receiver, RecvTimeoutError};
use sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A lock whose data stays usable after a panic elsewhere: what it guards must be valid between statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until somebody tells of a change; as [`lock`] about panics. Waits end early at times, so callers look again.
pub fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits for this long. The checker has no clock: there, the other threads go on first.
pub fn pause(duration: Duration) {
    #[cfg(not(feature = "shuttle"))]
    thread::sleep(duration);
    #[cfg(feature = "shuttle")]
    {
        let _ = duration;
        thread::yield_now();
    }
}

/// Waits for a message, for at most this long; under the checker, until the other threads have gone on.
///
/// # Errors
/// No message in that time, or none that could still come.
pub fn receive_within<T>(messages: &Receiver<T>, patience: Duration) -> Result<T, RecvTimeoutError> {
    #[cfg(not(feature = "shuttle"))]
    return messages.recv_timeout(patience);
    #[cfg(feature = "shuttle")]
    {
        pause(patience);
        messages.try_recv().map_err(|error| match error {
            sync::mpsc::TryRecvError::Empty => RecvTimeoutError::Timeout,
            sync::mpsc::TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
        })
    }
}
