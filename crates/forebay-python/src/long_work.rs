//! Work that leaves Python alone: other threads of Python go on, and Ctrl-C is obeyed.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay::{Error, RuntimeError};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::exception;

/// Work that is expected to take less runs where it was called: a thread of its own would only cost time.
const SHORT_SECONDS: f64 = 0.1;
/// How often signals are looked at meanwhile.
const SIGNALS_EVERY: Duration = Duration::from_millis(20);
/// Models may nest deeply; a main thread has as much.
const STACK_BYTES: usize = 8 << 20;

/// Whether work that is expected to take so long runs where it was called, and ends before the call does.
pub fn is_short(expected_seconds: f64) -> bool {
    expected_seconds < SHORT_SECONDS
}

/// Does `work` without the interpreter's lock. Where it is not known to be short, a signal ends the wait for it, with what Python makes
/// of the signal, such as `KeyboardInterrupt`; the work itself then goes on to its end, and what it works on stays locked until then.
///
/// # Errors
/// What the work gives, as an exception, and what a signal raises.
pub fn obeying_signals<T: Send + 'static>(
    py: Python<'_>,
    expected_seconds: f64,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    if is_short(expected_seconds) {
        return py.detach(work).map_err(|error| exception(py, &error));
    }
    let (sender, mut receiver) = sync_channel(1);
    let run = move || {
        // After a signal, nothing waits for it.
        let _ = sender.send(catch_unwind(AssertUnwindSafe(work)));
    };
    let builder = std::thread::Builder::new().name("forebay-python".to_owned()).stack_size(STACK_BYTES);
    builder.spawn(run).map_err(|error| PyRuntimeError::new_err(format!("the system gives no thread: {error}")))?;
    loop {
        let waited = py.detach(move || (receiver.recv_timeout(SIGNALS_EVERY), receiver));
        receiver = waited.1;
        match waited.0 {
            Ok(Ok(result)) => return result.map_err(|error| exception(py, &error)),
            Ok(Err(panic)) => resume_unwind(panic),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => unreachable!("the thread sends before it ends"),
        }
    }
}

/// Works on what several calls share, one at a time.
///
/// # Errors
/// What the work gives; [`RuntimeError::Broken`] where an earlier call ended by a panic.
pub fn locked<S, T>(shared: &Arc<Mutex<S>>, work: impl FnOnce(&mut S) -> Result<T, Error>) -> Result<T, Error> {
    work(&mut *shared.lock().map_err(|_| Error::Runtime(RuntimeError::Broken))?)
}

/// Asks what several calls share, without the interpreter's lock: another thread may be at work on it for long.
///
/// # Errors
/// As [`locked`], as an exception, and what a signal raises.
pub fn asking<S: Send + 'static, T: Send + 'static>(
    py: Python<'_>,
    shared: &Arc<Mutex<S>>,
    work: impl FnOnce(&mut S) -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    let expected_seconds = if shared.try_lock().is_ok() { 0.0 } else { f64::INFINITY };
    let shared = shared.clone();
    obeying_signals(py, expected_seconds, move || locked(&shared, work))
}

/// How many kinds of calls are remembered.
const KINDS_MAX: usize = 32;

/// How long calls take: those with inputs of the same shapes are expected to take as long as the one before.
#[derive(Default)]
pub struct Pace {
    /// The latest first.
    known: Vec<(Vec<Vec<u64>>, f64)>,
}

impl Pace {
    /// Seconds that a call with inputs of these shapes is expected to take.
    pub fn expected_seconds(&self, shapes: &[Vec<u64>]) -> f64 {
        self.place(shapes).map_or(f64::INFINITY, |place| self.known[place].1)
    }

    /// Remembers a call.
    pub fn note(&mut self, shapes: Vec<Vec<u64>>, seconds: f64) {
        let place = self.place(&shapes).unwrap_or_else(|| {
            self.known.truncate(KINDS_MAX - 1);
            self.known.push((shapes, seconds));
            self.known.len() - 1
        });
        self.known[place].1 = seconds;
        self.known[..=place].rotate_right(1);
    }

    fn place(&self, shapes: &[Vec<u64>]) -> Option<usize> {
        self.known.iter().position(|(known, _)| known == shapes)
    }
}
