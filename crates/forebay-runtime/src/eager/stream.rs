//! Streams: ordered queues of work.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::batch::Batch;
use super::context::Context;
use super::current;
use super::event::Event;
use super::shared::Shared;
use super::timeline::QueueId;
use crate::error::RuntimeError;

/// An ordered queue of work on a device. Work of one stream is done in the order in which it was submitted, as far as anyone
/// can tell; streams run side by side, unless they wait for each other. Cheap to make (streams of the device are
/// pooled) and to clone (clones are the same stream).
#[derive(Clone)]
pub struct Stream {
    context: Context,
    lease: Arc<Lease>,
}

/// The right to use a queue.
pub(super) struct Lease {
    shared: Arc<Shared>,
    queue: QueueId,
}

impl Lease {
    /// A queue for a stream of this priority.
    pub fn new(shared: Arc<Shared>, priority: i32) -> Result<Lease, RuntimeError> {
        let queue = shared.lease_queue(priority)?;
        Ok(Lease { shared, queue })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.return_queue(self.queue);
    }
}

/// While it lives, the stream that it was made from is the thread's current one ([`Stream::enter`]).
#[must_use = "the stream is left when this is dropped"]
pub struct StreamGuard {
    number: u64,
    /// A guard belongs to the thread that entered.
    thread: PhantomData<*const ()>,
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        current::leave(self.number);
    }
}

impl Stream {
    /// A stream of a context. Waiting work of a stream with a lower `priority` number starts first, where the device can
    /// tell (as in CUDA); 0 is the default.
    ///
    /// # Errors
    /// What the device reports.
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

    /// Makes this the current stream of the thread until the guard is dropped.
    pub fn enter(&self) -> StreamGuard {
        StreamGuard { number: current::enter(self.clone()), thread: PhantomData }
    }

    /// A new event without timing, recorded in this stream.
    ///
    /// # Errors
    /// What the device reports.
    pub fn record_event(&self) -> Result<Event, RuntimeError> {
        let event = Event::new(&self.context, false);
        event.record_on(self)?;
        Ok(event)
    }

    /// Later work of this stream starts after the event's latest record has fired.
    ///
    /// # Errors
    /// An event that was never recorded, or is of another context; what the device reports.
    pub fn wait_event(&self, event: &Event) -> Result<(), RuntimeError> {
        event.wait_on(self)
    }

    /// Later work of this stream starts after everything submitted to `other` so far is complete.
    ///
    /// # Errors
    /// A stream of another context; what the device reports.
    pub fn wait_stream(&self, other: &Stream) -> Result<(), RuntimeError> {
        self.check_context(&other.context, "two streams")?;
        let shared = &self.lease.shared;
        let mut state = shared.lock();
        let mut batch = Batch::default();
        let generation = state.record(other.lease.queue, &mut batch);
        state.wait(self.lease.queue, other.lease.queue, generation, &mut batch);
        shared.submit(&mut state, &batch)
    }

    /// Whether everything submitted to the stream is complete. Does not wait.
    ///
    /// # Errors
    /// What the device reports.
    pub fn query(&self) -> Result<bool, RuntimeError> {
        let shared = &self.lease.shared;
        let mut state = shared.lock();
        let generation = shared.record(&mut state, self.lease.queue)?;
        Ok(shared.query(&mut state, self.lease.queue, generation))
    }

    /// Waits until everything submitted to the stream is complete.
    ///
    /// # Errors
    /// A failure of the device, then or earlier; an index out of range, found by an operation that is complete.
    pub fn synchronize(&self) -> Result<(), RuntimeError> {
        self.lease.shared.synchronize(self.lease.queue)
    }

    pub(super) fn queue(&self) -> QueueId {
        self.lease.queue
    }

    /// # Errors
    /// Where `context` is not the stream's.
    pub(super) fn check_context(&self, context: &Context, what: &'static str) -> Result<(), RuntimeError> {
        if self.context.is(context) {
            Ok(())
        } else {
            Err(RuntimeError::OtherContext { what })
        }
    }
}

/// Whether both are the same stream, or share one of the device's.
impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        self.context.is(&other.context) && self.lease.queue == other.lease.queue
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} of {:?})", self.lease.queue, self.context)
    }
}
