//! Work without Python's interpreter lock: other Python threads keep running, and Ctrl-C is handled. Sessions and trainers of the parent
//! process are refused in a fork.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay::{Error, RuntimeError};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::exception;

/// Work that is expected to take less runs on the calling thread, because a separate thread would only cost time.
const SHORT_SECONDS: f64 = 0.1;
/// How often signals are checked in the meantime.
const SIGNALS_EVERY: Duration = Duration::from_millis(20);
/// Models can nest deeply; a main thread has this much.
const STACK_BYTES: usize = 8 << 20;

/// Work on this many bytes is not known to be short: memory that is used for the first time is slow.
const LARGE_BYTES: u64 = 32 << 20;

/// Returns the expected duration of work whose duration depends on memory alone: the host does not wait for anything else.
pub fn seconds_of(bytes: u64) -> f64 {
    if bytes < LARGE_BYTES { 0.0 } else { f64::INFINITY }
}

/// Returns whether work with this expected duration runs on the calling thread and ends before the call does.
pub fn is_short(expected_seconds: f64) -> bool {
    expected_seconds < SHORT_SECONDS
}

/// Runs `work` without the interpreter lock. Unless the work is known to be short, a signal ends the wait with the exception that Python
/// raises for it, such as `KeyboardInterrupt`. The work itself then runs to completion, and its data stays locked until then.
///
/// # Errors
/// Returns the error of the work as an exception, or the exception that a signal raises.
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
        // After a signal, nothing waits for the result.
        let _ = sender.send(catch_unwind(AssertUnwindSafe(work)));
    };
    let builder = std::thread::Builder::new().name("forebay-python".to_owned()).stack_size(STACK_BYTES);
    builder.spawn(run).map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
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

/// The process that made something, and that alone can use it: a fork copies its memory, but not the threads that do its work, so that work
/// would never end.
pub struct Maker {
    process: u32,
}

impl Maker {
    /// This process.
    pub fn this() -> Maker {
        Maker { process: std::process::id() }
    }

    /// Checks that this process made something that messages call `what`; a fork is told to create `others` instead.
    ///
    /// # Errors
    /// Fails in a process that was forked from the maker.
    pub fn check(&self, py: Python<'_>, what: &str, others: &str) -> PyResult<()> {
        let (made_by, here) = (self.process, std::process::id());
        if made_by == here {
            return Ok(());
        }
        let reason = format!(
            "the {what} belongs to process {made_by}, and its threads do not exist in this fork, process {here}; create {others} \
             in each process, or start processes with multiprocessing's method 'spawn'"
        );
        Err(exception(py, &Error::Option { reason }))
    }
}

/// Data that several calls share, such as a session, and that only the process that made it can use.
pub struct Shared<S> {
    data: Arc<Mutex<S>>,
    what: &'static str,
    maker: Maker,
}

impl<S> Shared<S> {
    /// Shares data, which messages call `what`.
    pub fn new(data: S, what: &'static str) -> Shared<S> {
        Shared { data: Arc::new(Mutex::new(data)), what, maker: Maker::this() }
    }

    /// Returns the data.
    ///
    /// # Errors
    /// Fails in a process that was forked after the data was made.
    pub fn data(&self, py: Python<'_>) -> PyResult<&Arc<Mutex<S>>> {
        self.maker.check(py, self.what, "one")?;
        Ok(&self.data)
    }
}

/// Runs work on data that several calls share, one call at a time.
///
/// # Errors
/// Returns the error of the work, or [`RuntimeError::Broken`] if an earlier call panicked.
pub fn locked<S, T>(shared: &Arc<Mutex<S>>, work: impl FnOnce(&mut S) -> Result<T, Error>) -> Result<T, Error> {
    work(&mut *shared.lock().map_err(|_| Error::Runtime(RuntimeError::Broken))?)
}

/// Reads data that several calls share, without the interpreter lock, because another thread can hold the data for a long time.
///
/// # Errors
/// Returns the errors of [`Shared::data`] and [`locked`] as exceptions, or the exception that a signal raises.
pub fn asking<S: Send + 'static, T: Send + 'static>(
    py: Python<'_>,
    shared: &Shared<S>,
    work: impl FnOnce(&mut S) -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    let shared = shared.data(py)?.clone();
    let expected_seconds = if shared.try_lock().is_ok() { 0.0 } else { f64::INFINITY };
    obeying_signals(py, expected_seconds, move || locked(&shared, work))
}

/// The number of kinds of calls that are remembered.
const KINDS_MAX: usize = 32;

/// How long calls take: a call is expected to take as long as the previous one with inputs of the same shapes.
#[derive(Default)]
pub struct Pace {
    /// The most recent first.
    known: Vec<(Vec<Vec<u64>>, f64)>,
}

impl Pace {
    /// Returns the seconds that a call with inputs of these shapes is expected to take.
    pub fn expected_seconds(&self, shapes: &[Vec<u64>]) -> f64 {
        self.place(shapes).map_or(f64::INFINITY, |place| self.known[place].1)
    }

    /// Records a call.
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
