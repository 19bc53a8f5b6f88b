//! All mutable state of a device, behind one lock.

use std::time::Instant;

use forebay_device::{DeviceError, IndexFault, TraceRecord};
use forebay_queue::Events;

use crate::frame::ParameterMemory;
use crate::memory::Memories;
use crate::pipeline::Pipelines;
use crate::stream::{Job, Streams};

/// Counts of what the driver was given, updated when it is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Barriers among commands: `vkCmdPipelineBarrier2`.
    pub barriers: u64,
    /// Barriers at the end of batches that make what was copied to the host, or reported about indices, visible to it.
    pub host_barriers: u64,
    /// Dispatches of shaders.
    pub dispatches: u64,
    /// Batches, each of which is a command buffer.
    pub batches: u64,
    /// Waits for semaphores by batches.
    pub waits: u64,
}

/// The mutable state. Fields that are dropped first may use the fields after them.
pub(crate) struct State {
    pub(crate) streams: Streams,
    pub(crate) pipelines: Pipelines,
    pub(crate) parameters: ParameterMemory,
    pub(crate) memories: Memories,
    pub(crate) events: Events,
    pub(crate) failure: Option<DeviceError>,
    /// The number of jobs that threads of the host have.
    pub(crate) jobs: usize,
    pub(crate) tracing: bool,
    pub(crate) trace: Vec<TraceRecord>,
    /// The smallest of the index faults that were found and not taken yet.
    pub(crate) index_fault: Option<IndexFault>,
    pub(crate) counts: Counts,
    pub(crate) birth: Instant,
}

impl State {
    /// Records a failure; the first one stays.
    pub fn fail(&mut self, error: DeviceError) {
        self.failure.get_or_insert(error);
    }

    /// Submits what can be submitted, unless the device has failed.
    pub fn pump(&mut self) -> Result<Vec<Job>, DeviceError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let jobs = self.streams.pump()?;
        self.jobs += jobs.len();
        Ok(jobs)
    }
}
