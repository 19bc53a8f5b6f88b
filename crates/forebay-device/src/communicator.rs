//! Communicators: how the processes of a run exchange bytes.

use std::fmt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use forebay_base::kernel::EXCHANGES_MAX;

/// Tags from here on are for messages between steps ([`gather`]).
pub const CONTROL_TAG: u32 = EXCHANGES_MAX;

/// The tag of [`gather_within`] for what ends a run.
pub const FAILURE_TAG: u32 = CONTROL_TAG + 1;

/// Bytes in memory that a message is sent from or received to.
#[derive(Clone, Copy, Debug)]
pub struct MessageBytes {
    /// The other process.
    pub peer: usize,
    /// The first byte.
    pub address: *mut u8,
    /// How many.
    pub size_bytes: usize,
}

// SAFETY: an address; who may access the bytes when is the promise of `Communicator::start`'s caller.
unsafe impl Send for MessageBytes {}

/// What one process sends and receives in an exchange.
#[derive(Debug)]
pub struct Messages {
    /// What tells the messages of exchanges apart that are under way at once; below [`CONTROL_TAG`] for exchanges of a step.
    pub tag: u32,
    /// What it sends. Messages with the same tag to the same process arrive in this order.
    pub sends: Vec<MessageBytes>,
    /// What it receives, as long as what is sent.
    pub receives: Vec<MessageBytes>,
}

/// What is called when an exchange is over, with the reason where it failed.
pub type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

/// A process's connection to the others of a run.
pub trait Communicator: Send + Sync + fmt::Debug {
    /// The number of this process, from 0.
    fn rank(&self) -> usize;

    /// How many processes there are.
    fn size(&self) -> usize;

    /// Starts an exchange, and returns at once. `done` is called when everything has been sent and received, on any thread; it does
    /// not block.
    ///
    /// # Safety
    /// All bytes must be live until `done` is called, and until then nothing else may write what is sent or touch what is received.
    unsafe fn start(&self, messages: Messages, done: Done);

    /// Ends the connection, and waits for the other processes to do the same. Exchanges that are started afterwards fail.
    fn finish(&self);

    /// Ends all processes of the run, because this one cannot go on. A communicator between threads of one process does nothing.
    fn abort(&self);
}

/// Gives every process what each of them has, in the order of their ranks; all of them must call it. Waits for the others.
///
/// # Errors
/// What the communicator reports.
pub fn gather(communicator: &dyn Communicator, own: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let size = own.len() as u64;
    let sizes = gather_sized(communicator, size.to_le_bytes().to_vec(), |_| 8)?;
    let size = |peer: usize| {
        let bytes: [u8; 8] = sizes[peer].as_slice().try_into().unwrap_or_default();
        u64::from_le_bytes(bytes) as usize
    };
    gather_sized(communicator, own.to_vec(), size)
}

/// The same where it is known how much comes from each process.
///
/// # Errors
/// What the communicator reports.
pub fn gather_sized(
    communicator: &dyn Communicator,
    own: Vec<u8>,
    size: impl Fn(usize) -> usize,
) -> Result<Vec<Vec<u8>>, String> {
    let gathered = gather_within(communicator, CONTROL_TAG, own, size, None)?;
    gathered.ok_or_else(|| "the exchange was given up".to_string())
}

/// The same with a tag of its own, for at most this long; none where not all processes have called it by then.
///
/// # Errors
/// What the communicator reports.
pub fn gather_within(
    communicator: &dyn Communicator,
    tag: u32,
    mut own: Vec<u8>,
    size: impl Fn(usize) -> usize,
    patience: Option<Duration>,
) -> Result<Option<Vec<Vec<u8>>>, String> {
    let rank = communicator.rank();
    let mut all: Vec<Vec<u8>> = (0..communicator.size()).map(|peer| vec![0; size(peer)]).collect();
    let peers = || (0..communicator.size()).filter(|&peer| peer != rank);
    let (address, size_bytes) = (own.as_mut_ptr(), own.len());
    let sends = peers().map(|peer| MessageBytes { peer, address, size_bytes }).collect();
    let receives = peers().map(|peer| {
        let bytes = &mut all[peer];
        MessageBytes { peer, address: bytes.as_mut_ptr(), size_bytes: bytes.len() }
    });
    let messages = Messages { tag, sends, receives: receives.collect() };
    let (sender, receiver) = mpsc::channel();
    let done = Box::new(move |outcome| {
        let _ = sender.send(outcome);
    });
    // SAFETY: both live until the outcome is there, or for ever, and nothing touches them before.
    unsafe { communicator.start(messages, done) };
    let outcome = match patience {
        None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        Some(patience) => receiver.recv_timeout(patience),
    };
    match outcome {
        Ok(Ok(())) => {
            all[rank] = own;
            Ok(Some(all))
        }
        Ok(Err(reason)) => Err(reason),
        Err(_) => {
            std::mem::forget((own, all));
            Ok(None)
        }
    }
}
