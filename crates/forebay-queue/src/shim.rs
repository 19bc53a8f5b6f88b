//! Threads and locks: those of the standard library or, with the feature `shuttle`, those of the model checker of that name.
//!
//! A state machine uses `Mutex`, `Condvar`, channels and threads from this module, so that its code is the same in both builds. At each of
//! their operations, the checker decides which thread runs next; counting in `Arc` is trusted to be atomic.
//!
//! State machines in other crates do the same, with a feature `shuttle = ["forebay-queue/shuttle"]` there and a test that requires it;
//! `bounded` is meant for such tests too.

#[cfg(not(feature = "shuttle"))]
pub use std::{sync, thread, thread_local};

#[cfg(feature = "shuttle")]
pub use shuttle::{sync, thread, thread_local};

use std::time::Duration;

use sync::mpsc::{Receiver, RecvTimeoutError};
use sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose data stays usable after a panic elsewhere: the data must be valid between statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until notified of a change; treats panics like [`lock`]. Waits sometimes end early, so callers check again.
pub fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits for this long. The checker has no clock, so under the checker other threads run first.
pub fn pause(duration: Duration) {
    #[cfg(not(feature = "shuttle"))]
    thread::sleep(duration);
    #[cfg(feature = "shuttle")]
    {
        let _ = duration;
        thread::yield_now();
    }
}

/// Looks at a condition until it holds, for at most this long; returns whether it holds. The thread keeps its processor meanwhile. Under the
/// checker, which has no clock, it looks once.
pub fn spin_until(timeout: Duration, holds: impl Fn() -> bool) -> bool {
    #[cfg(not(feature = "shuttle"))]
    {
        let start = std::time::Instant::now();
        while start.elapsed() < timeout {
            for _ in 0..SPINS_PER_LOOK_AT_THE_CLOCK {
                if holds() {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
    }
    let _ = timeout;
    holds()
}

/// Reading the clock takes about as long as this many looks at an atomic number.
#[cfg(not(feature = "shuttle"))]
const SPINS_PER_LOOK_AT_THE_CLOCK: usize = 16;

/// Waits for a message, for at most this long; under the checker, until other threads have run.
///
/// # Errors
/// If no message arrives in that time, or none can arrive any more.
pub fn receive_within<T>(messages: &Receiver<T>, timeout: Duration) -> Result<T, RecvTimeoutError> {
    #[cfg(not(feature = "shuttle"))]
    return messages.recv_timeout(timeout);
    #[cfg(feature = "shuttle")]
    {
        pause(timeout);
        messages.try_recv().map_err(|error| match error {
            sync::mpsc::TryRecvError::Empty => RecvTimeoutError::Timeout,
            sync::mpsc::TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
        })
    }
}
