//! Communicators, with which the processes of a run exchange bytes.

use std::fmt;
use std::time::Duration;

use forebay_base::kernel::EXCHANGES_MAX;
use forebay_queue::shim::receive_within;
use forebay_queue::shim::sync::mpsc::{self, RecvTimeoutError};

/// The first of the tags for messages between steps ([`gather`]).
pub const CONTROL_TAG: u32 = EXCHANGES_MAX;

/// The tag of [`gather_within`] for failures that end a run.
pub const FAILURE_TAG: u32 = CONTROL_TAG + 1;

/// The tag of the last message between two processes, which a communicator itself sends when its process ends the connection.
pub const END_TAG: u32 = CONTROL_TAG + 2;

/// The bytes in memory from which a message is sent or into which it is received.
#[derive(Clone, Copy, Debug)]
pub struct MessageBytes {
    /// The other process.
    pub peer: usize,
    /// The address of the first byte.
    pub address: *mut u8,
    /// The number of bytes.
    pub size_bytes: usize,
}

// SAFETY: an address; the caller of `Communicator::start` promises who may access the bytes and when.
unsafe impl Send for MessageBytes {}

/// The messages that one process sends and receives in an exchange.
#[derive(Debug)]
pub struct Messages {
    /// Distinguishes the messages of exchanges that are in progress at the same time; below [`CONTROL_TAG`] for exchanges of a step.
    pub tag: u32,
    /// The messages to send. Messages with the same tag to the same process arrive in this order.
    pub sends: Vec<MessageBytes>,
    /// The messages to receive, each as long as the message sent.
    pub receives: Vec<MessageBytes>,
}

/// A callback for the end of an exchange, which gets the reason if the exchange failed.
pub type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

/// The connection of a process to the other processes of a run.
pub trait Communicator: Send + Sync + fmt::Debug {
    /// Returns the number of this process, from 0.
    fn rank(&self) -> usize;

    /// Returns the number of processes.
    fn size(&self) -> usize;

    /// Starts an exchange and returns at once. `done` is called when everything has been sent and received, or when the exchange is given
    /// up, on any thread; it does not block.
    ///
    /// # Safety
    /// All bytes must be live until `done` reports success, and forever if it reports a failure, because messages that were given up can
    /// still arrive. Until `done` reports success, nothing else may write the bytes sent or touch the bytes received.
    unsafe fn start(&self, messages: Messages, done: Done);

    /// Ends the connection and waits for the other processes to do the same. Exchanges that are started afterwards fail. If another process
    /// still waits for this one in an exchange, that exchange soon fails, too.
    ///
    /// # Errors
    /// Names the processes that do not end their connections in time. A process that then exits leaves it to the launcher to end them.
    fn finish(&self) -> Result<(), String>;

    /// Ends all processes of the run because this one cannot continue. A communicator between threads of one process does nothing.
    fn abort(&self);
}

/// Returns the bytes of every process, in the order of their ranks (an all-gather). All processes must call it; it waits for the others.
///
/// # Errors
/// The error that the communicator reports.
pub fn gather(communicator: &dyn Communicator, own: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let size = own.len() as u64;
    let sizes = gather_sized(communicator, size.to_le_bytes().to_vec(), |_| 8)?;
    let size = |peer: usize| {
        let bytes: [u8; 8] = sizes[peer].as_slice().try_into().unwrap_or_default();
        u64::from_le_bytes(bytes) as usize
    };
    gather_sized(communicator, own.to_vec(), size)
}

/// Like [`gather`], with `size` giving the number of bytes that each process contributes.
///
/// # Errors
/// The error that the communicator reports.
pub fn gather_sized(
    communicator: &dyn Communicator,
    own: Vec<u8>,
    size: impl Fn(usize) -> usize,
) -> Result<Vec<Vec<u8>>, String> {
    let gathered = gather_within(communicator, CONTROL_TAG, own, size, None)?;
    gathered.ok_or_else(|| "the exchange was abandoned".to_string())
}

/// Like [`gather_sized`], with the given tag, waiting for at most `timeout`. Returns `None` if not all processes have called it by then.
///
/// # Errors
/// The error that the communicator reports.
pub fn gather_within(
    communicator: &dyn Communicator,
    tag: u32,
    own: Vec<u8>,
    size: impl Fn(usize) -> usize,
    timeout: Option<Duration>,
) -> Result<Option<Vec<Vec<u8>>>, String> {
    let rank = communicator.rank();
    let peers: Vec<usize> = (0..communicator.size()).filter(|&peer| peer != rank).collect();
    let receives = peers.iter().map(|&peer| (peer, vec![0; size(peer)])).collect();
    let Some((own, received)) = transfer(communicator, tag, (&peers, own), receives, timeout)? else {
        return Ok(None);
    };
    let mut all: Vec<Vec<u8>> = received.into_iter().map(|(_, bytes)| bytes).collect();
    all.insert(rank, own);
    Ok(Some(all))
}

/// Sends bytes to a process that [`receive`]s them, between steps. Waits until they are on their way.
///
/// # Errors
/// The error that the communicator reports.
pub fn send(communicator: &dyn Communicator, peer: usize, bytes: Vec<u8>) -> Result<(), String> {
    transfer(communicator, CONTROL_TAG, (&[peer], bytes), Vec::new(), None).map(drop)
}

/// Receives the bytes that a process [`send`]s, between steps. `size_bytes` must equal the number of bytes sent.
///
/// # Errors
/// The error that the communicator reports.
pub fn receive(communicator: &dyn Communicator, peer: usize, size_bytes: usize) -> Result<Vec<u8>, String> {
    let receives = vec![(peer, vec![0; size_bytes])];
    let transferred = transfer(communicator, CONTROL_TAG, (&[], Vec::new()), receives, None)?;
    Ok(transferred.and_then(|(_, mut received)| received.pop()).map(|(_, bytes)| bytes).unwrap_or_default())
}

/// Bytes, each with the process that they come from.
type Received = Vec<(usize, Vec<u8>)>;

/// Sends bytes to peers and receives into buffers, and returns both; `None` if that takes longer than `timeout`.
fn transfer(
    communicator: &dyn Communicator,
    tag: u32,
    (peers, mut own): (&[usize], Vec<u8>),
    mut receives: Received,
    timeout: Option<Duration>,
) -> Result<Option<(Vec<u8>, Received)>, String> {
    let (address, size_bytes) = (own.as_mut_ptr(), own.len());
    let sends = peers.iter().map(|&peer| MessageBytes { peer, address, size_bytes }).collect();
    let into = receives.iter_mut().map(|(peer, bytes)| MessageBytes {
        peer: *peer,
        address: bytes.as_mut_ptr(),
        size_bytes: bytes.len(),
    });
    let messages = Messages { tag, sends, receives: into.collect() };
    let (sender, receiver) = mpsc::channel();
    let done = Box::new(move |outcome| {
        let _ = sender.send(outcome);
    });
    // SAFETY: both live until everything was sent and received, or forever, and nothing touches them before.
    unsafe { communicator.start(messages, done) };
    let outcome = match timeout {
        None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        Some(timeout) => receive_within(&receiver, timeout),
    };
    if let Ok(Ok(())) = outcome {
        return Ok(Some((own, receives)));
    }
    // Messages of an exchange that was given up can still arrive.
    std::mem::forget((own, receives));
    match outcome {
        Ok(Err(reason)) => Err(reason),
        _ => Ok(None),
    }
}
