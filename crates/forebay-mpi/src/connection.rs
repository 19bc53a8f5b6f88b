//! The connection: a thread that makes all MPI calls, and the communicator in front of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_device::communicator::{Communicator, Done, FAILURE_TAG, Messages};
use forebay_queue::shim::sync::Mutex;
use forebay_queue::shim::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use forebay_queue::shim::thread::{self, JoinHandle};
use forebay_queue::shim::{self, lock, receive_within};

use crate::MpiError;
use crate::calls::Calls;
use crate::endings::Endings;
use crate::environment::started_by;
use crate::exchanges::Exchange;
use crate::library::Mpi;
use crate::options::Options;

/// How long the thread waits before it checks again whether messages have arrived. The pauses grow from the first to the last, so that
/// short exchanges end soon and long ones leave the processor to kernels.
const PAUSES: [Duration; 2] = [Duration::from_micros(5), Duration::from_micros(200)];

/// A request to the thread.
enum Request {
    Start(Messages, Done),
    Abort(Sender<()>),
}

/// A process of a run, connected to the others by MPI.
pub(crate) struct MpiCommunicator {
    rank: usize,
    size: usize,
    /// `None` once the connection has ended.
    requests: Mutex<Option<Sender<Request>>>,
    thread: Mutex<Option<JoinHandle<Result<(), String>>>>,
}

/// Connects this process with the others that its launcher started. When the communicator is dropped, it waits for the others to do the
/// same. Can be called only once per process.
///
/// # Errors
/// If there is no MPI library, or if MPI refuses a call.
pub fn connect(options: &Options) -> Result<Arc<dyn Communicator>, MpiError> {
    connect_by(options.clone(), None)
}

/// Connects this process with the others of an MPI communicator, given the address of its handle; MPI was initialized before. Messages go
/// through a copy of the communicator, so all of its processes must call this at the same time.
///
/// # Safety
/// The address must be that of an intracommunicator's handle, of the MPI library that the options name or that is otherwise loaded.
///
/// # Errors
/// If there is no MPI library, or if MPI refuses a call.
pub unsafe fn connect_through(options: &Options, handle: usize) -> Result<Arc<dyn Communicator>, MpiError> {
    connect_by(Options { others_call: true, ..options.clone() }, Some(handle))
}

/// Connects this process. If a handle is given, it must be what [`connect_through`] requires.
fn connect_by(options: Options, handle: Option<usize>) -> Result<Arc<dyn Communicator>, MpiError> {
    let launcher = started_by().map(|launched| launched.launcher);
    let (timeout, end_timeout) = (options.timeout, options.end_timeout);
    // SAFETY: the caller of `connect_through` promised it.
    let begin = move || unsafe { Mpi::begin(&options, handle, launcher) };
    Ok(Arc::new(MpiCommunicator::new(begin, timeout, end_timeout)?))
}

/// Makes all MPI calls, until the communicator is gone, all exchanges are over, and the other processes end as well.
///
/// # Errors
/// Fails if the other processes do not end within `end_timeout` after this one.
fn serve<Mpi: Calls>(
    mpi: &Mpi,
    (rank, size): (usize, usize),
    incoming: &Receiver<Request>,
    (timeout, end_timeout): (Option<Duration>, Option<Duration>),
) -> Result<(), String> {
    let mut endings = Endings::begin(mpi, rank, size);
    let mut exchanges: Vec<Exchange<Mpi::Request>> = Vec::new();
    let (mut pause, mut is_asked, mut has_failed) = (PAUSES[0], true, false);
    while is_asked || !exchanges.is_empty() {
        let next = match exchanges.is_empty() {
            true => incoming.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => receive_within(incoming, pause),
        };
        match next {
            // Late messages of the failed exchange would be taken for messages of this one.
            Ok(Request::Start(messages, done)) if has_failed && messages.tag != FAILURE_TAG => {
                done(Err("an earlier exchange with the other processes failed; start the run again".to_owned()));
            }
            Ok(Request::Start(messages, done)) => {
                // SAFETY: the caller of `start` promised it.
                exchanges.push(unsafe { Exchange::begin(mpi, messages, done) });
                pause = PAUSES[0];
            }
            Ok(Request::Abort(done)) => {
                mpi.abort();
                let _ = done.send(());
            }
            Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(PAUSES[1]),
            Err(RecvTimeoutError::Disconnected) => {
                is_asked = false;
                if !exchanges.is_empty() {
                    shim::pause(pause);
                    pause = (pause * 2).min(PAUSES[1]);
                }
            }
        }
        // Only an exchange that takes long can wait for a process that has ended.
        let ended = if exchanges.is_empty() || pause < PAUSES[1] { &[][..] } else { endings.check(mpi) };
        exchanges.retain_mut(|exchange| {
            let is_over = exchange.go_on(mpi, timeout, ended);
            has_failed |= exchange.has_failed();
            !is_over
        });
    }
    endings.finish(mpi, rank, end_timeout, || shim::pause(PAUSES[1]))
}

impl MpiCommunicator {
    /// Initializes MPI on a separate thread, which makes all calls to it. An exchange that takes longer than `timeout` fails, and so does
    /// [`Communicator::finish`] if the other processes take longer than `end_timeout`.
    ///
    /// # Errors
    /// The errors of `begin`, or if there is no thread.
    pub(crate) fn new<Mpi: Calls>(
        begin: impl FnOnce() -> Result<Mpi, MpiError> + Send + 'static,
        timeout: Option<Duration>,
        end_timeout: Option<Duration>,
    ) -> Result<MpiCommunicator, MpiError> {
        let (requests, incoming) = channel();
        let (tell, told) = channel();
        let thread = thread::Builder::new().name("MPI".to_owned()).spawn(move || {
            let found = begin().and_then(|mpi| Ok((mpi.rank()?, mpi.size()?, mpi)));
            match found {
                Ok((rank, size, mut mpi)) => {
                    let _ = tell.send(Ok((rank, size)));
                    let served = serve(&mpi, (rank, size), &incoming, (timeout, end_timeout));
                    match served {
                        Ok(()) => mpi.end(),
                        // MPI goes on, so its library must stay loaded.
                        Err(_) => std::mem::forget(mpi),
                    }
                    served
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                    Ok(())
                }
            }
        });
        let thread = thread.map_err(|error| MpiError::Thread { reason: error.to_string() })?;
        let found = told.recv().map_err(|_| MpiError::Thread { reason: "the thread ended".to_owned() })?;
        let (rank, size) = found?;
        let (requests, thread) = (Mutex::new(Some(requests)), Mutex::new(Some(thread)));
        Ok(MpiCommunicator { rank, size, requests, thread })
    }
}

impl Communicator for MpiCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    unsafe fn start(&self, messages: Messages, done: Done) {
        let requests = lock(&self.requests);
        let Some(requests) = &*requests else { return done(Err("the connection has ended".to_owned())) };
        if let Err(SendError(Request::Start(_, done))) = requests.send(Request::Start(messages, done)) {
            done(Err("the MPI thread has ended".to_owned()));
        }
    }

    fn finish(&self) -> Result<(), String> {
        drop(lock(&self.requests).take());
        let Some(thread) = lock(&self.thread).take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err("the MPI thread panicked".to_owned()))
    }

    fn abort(&self) {
        let (tell, told) = channel();
        let sent = lock(&self.requests).as_ref().map(|requests| {
            let _ = requests.send(Request::Abort(tell));
        });
        if sent.is_some() {
            let _ = told.recv();
        }
    }
}

impl fmt::Debug for MpiCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MpiCommunicator").field("rank", &self.rank).field("size", &self.size).finish_non_exhaustive()
    }
}

impl Drop for MpiCommunicator {
    fn drop(&mut self) {
        // Nobody is left to be told of a process that does not end.
        let _ = self.finish();
    }
}
