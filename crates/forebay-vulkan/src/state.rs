//! Everything of a device that changes, behind one lock.

use std::time::Instant;

use forebay_device::{DeviceError, IndexFault, TraceRecord};
use forebay_queue::Events;

use crate::memory::Memories;
use crate::pipeline::Pipelines;
use crate::record::Counters;
use crate::stream::{Job, Streams};

/// What the driver was given, counted where it is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Barriers of commands: `vkCmdPipelineBarrier2`.
    pub barriers: u64,
    /// Barriers that make what was copied to the host, or noted of indices, visible to it, at the end of batches.
    pub host_barriers: u64,
    /// Dispatches of shaders.
    pub dispatches: u64,
    /// Batches: command buffers.
    pub batches: u64,
    /// Waits of batches for semaphores.
    pub waits: u64,
}

/// Everything that changes. What is dropped first may use what stands behind it.
pub(crate) struct State {
    pub(crate) streams: Streams,
    pub(crate) pipelines: Pipelines,
    pub(crate) counters: Counters,
    pub(crate) memories: Memories,
    pub(crate) events: Events,
    pub(crate) failure: Option<DeviceError>,
    /// Jobs that threads of the host have.
    pub(crate) jobs: usize,
    pub(crate) tracing: bool,
    pub(crate) trace: Vec<TraceRecord>,
    /// The least of the index faults that were found and not taken.
    pub(crate) index_fault: Option<IndexFault>,
    pub(crate) counts: Counts,
    pub(crate) birth: Instant,
}

impl State {
    /// Makes the first failure stick.
    pub fn fail(&mut self, error: DeviceError) {
        self.failure.get_or_insert(error);
    }

    /// Submits what may be, unless the device has failed.
    pub fn pump(&mut self) -> Result<Vec<Job>, DeviceError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let jobs = self.streams.pump()?;
        self.jobs += jobs.len();
        Ok(jobs)
    }
}
