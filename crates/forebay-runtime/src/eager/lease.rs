//! The right to use a queue of the device.

use std::sync::Arc;

use super::shared::Shared;
use super::timeline::QueueId;
use crate::error::RuntimeError;

/// The right to use a queue.
pub(super) struct Lease {
    /// The state that handles share.
    pub shared: Arc<Shared>,
    queue: QueueId,
}

impl Lease {
    /// Leases a queue for a stream of this priority.
    pub fn new(shared: Arc<Shared>, priority: i32) -> Result<Lease, RuntimeError> {
        let queue = shared.lease_queue(priority)?;
        Ok(Lease { shared, queue })
    }

    /// The queue.
    pub fn queue(&self) -> QueueId {
        self.queue
    }

    /// Whether everything submitted to the queue is complete. Does not wait.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn query(&self) -> Result<bool, RuntimeError> {
        let mut state = self.shared.lock();
        let generation = self.shared.record(&mut state, self.queue)?;
        Ok(self.shared.query(&mut state, self.queue, generation))
    }

    /// Waits until everything submitted to the queue is complete.
    ///
    /// # Errors
    /// Fails if the device fails or has failed earlier, or if a completed operation found an index out of range.
    pub fn synchronize(&self) -> Result<(), RuntimeError> {
        self.shared.synchronize(self.queue)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.return_queue(self.queue);
    }
}
