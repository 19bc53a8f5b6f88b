//! Streams: ordered queues of work.

use std::fmt;
use std::sync::Arc;

use super::batch::Batch;
use super::context::Context;
use super::lease::Lease;
use super::timeline::QueueId;
use crate::error::RuntimeError;

/// An ordered queue of work on a device. Work of one stream appears to run in the order in which it was submitted; streams run
/// concurrently, unless they wait for each other. Cheap to create (streams of the device are pooled) and to clone (clones are the same
/// stream).
///
/// ```
/// # use std::sync::Arc;
/// # use forebay_device::host::{HostDevice, HostOptions};
/// use forebay_runtime::eager::{Context, ContextOptions, Stream};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Arc::new(HostDevice::new(&HostOptions::default())?);
/// let context = Context::new(device, &ContextOptions::default())?;
/// let stream = Stream::new(&context, 0)?;
/// stream.wait_stream(&context.current_stream())?;
/// stream.synchronize()?;
/// assert!(stream.query()?, "nothing is left to do");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Stream {
    context: Context,
    lease: Arc<Lease>,
}

impl Context {
    /// Returns the stream that work goes to if no other was entered.
    pub fn default_stream(&self) -> Stream {
        Stream::of_lease(self.clone(), self.default_lease().clone())
    }
}

impl Stream {
    /// Creates a stream of a context. Waiting work of a stream with a lower `priority` number starts first, if the device supports
    /// priorities (as in CUDA); 0 is the default.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn new(context: &Context, priority: i32) -> Result<Stream, RuntimeError> {
        let lease = Lease::new(context.shared().clone(), priority)?;
        Ok(Stream::of_lease(context.clone(), Arc::new(lease)))
    }

    pub(super) fn of_lease(context: Context, lease: Arc<Lease>) -> Stream {
        Stream { context, lease }
    }

    /// The stream's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The number of the underlying stream of the device, 0 for the default stream. Streams that are equal have the same number.
    pub fn number(&self) -> usize {
        self.lease.queue()
    }

    /// Makes later work of this stream start after everything submitted to `other` so far is complete.
    ///
    /// # Errors
    /// Fails if the streams belong to different contexts, or if the device reports an error.
    pub fn wait_stream(&self, other: &Stream) -> Result<(), RuntimeError> {
        self.check_context(&other.context, "two streams")?;
        let shared = &self.lease.shared;
        let mut state = shared.lock();
        let mut batch = Batch::default();
        let generation = state.record(other.lease.queue(), &mut batch);
        state.wait(self.lease.queue(), other.lease.queue(), generation, &mut batch);
        shared.submit(&mut state, &batch)
    }

    /// Whether everything submitted to the stream is complete. Does not wait.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn query(&self) -> Result<bool, RuntimeError> {
        self.lease.query()
    }

    /// Waits until everything submitted to the stream is complete.
    ///
    /// # Errors
    /// Fails if the device fails or has failed earlier, or if a completed operation found an index out of range.
    pub fn synchronize(&self) -> Result<(), RuntimeError> {
        self.lease.synchronize()
    }

    pub(super) fn queue(&self) -> QueueId {
        self.lease.queue()
    }

    /// # Errors
    /// Fails if `context` is not the stream's.
    pub(super) fn check_context(&self, context: &Context, what: &'static str) -> Result<(), RuntimeError> {
        if self.context.is(context) { Ok(()) } else { Err(RuntimeError::OtherContext { what }) }
    }
}

/// Whether both are the same stream, or share one of the device's streams.
impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        self.context.is(&other.context) && self.lease.queue() == other.lease.queue()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} of {:?})", self.lease.queue(), self.context)
    }
}
