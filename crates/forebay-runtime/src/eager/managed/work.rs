//! Work that is prepared once and submitted many times: commands on a buffer's addresses, with how they access its bytes.

use std::ops::Range;
use std::sync::Arc;

use forebay_base::{Command, Region, StreamId};
use forebay_memory::eviction::{Access, UnitId};

use super::buffer::ManagedBuffer;
use super::memory::ManagedMemory;
use crate::eager::batch::Batch;
use crate::eager::stream::Stream;
use crate::eager::units::PinnedUnits;
use crate::error::RuntimeError;

/// A command on the addresses of one buffer.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// The command, on the stream that it is submitted to ([`stream_id`]).
    pub command: Command,
    /// How it accesses which bytes of the buffer.
    pub uses: Vec<(Range<u64>, Access)>,
    /// The name of the work.
    pub name: Arc<str>,
}

/// The device's stream that a stream uses.
pub(crate) fn stream_id(stream: &Stream) -> StreamId {
    stream.context().shared().lock().stream(stream.queue())
}

impl ManagedMemory {
    /// The device's stream that copies use.
    pub(crate) fn copy_stream_id(&self) -> StreamId {
        let core = self.core();
        core.shared.lock().stream(core.copies.queue())
    }
}

impl ManagedBuffer {
    /// The buffer's addresses.
    pub(crate) fn region(&self) -> Region {
        self.buffer().region()
    }

    /// Makes the bytes that a command uses resident, and submits it in the stream's order.
    ///
    /// # Errors
    /// Fails if the bytes do not fit at once, if host memory for evicted data runs out, or if the device or the spill file fails.
    pub(crate) fn submit(&self, stream: &Stream, work: &Work) -> Result<(), RuntimeError> {
        let (queue, shared) = (stream.queue(), stream.context().shared());
        let uses = work.uses.iter().map(|(range, access)| (self.buffer(), range.clone(), *access));
        let mut residency = PinnedUnits::new(uses)?;
        let mut order = shared.lock();
        let mut batch = Batch::default();
        residency.order(queue, &mut order, &mut batch);
        let position = order.work(queue, work.command.clone(), &work.name, &mut batch)?;
        residency.add_use(queue, position);
        shared.submit(&mut order, &batch)
    }

    /// Announces which bytes each coming command reads, for [`Policy::Planned`](super::Policy::Planned). Replaces earlier announcements.
    pub(crate) fn set_next_uses(&self, commands: &[Vec<Range<u64>>]) {
        let units = |ranges: &Vec<Range<u64>>| -> Vec<UnitId> {
            ranges.iter().flat_map(|range| self.buffer().parts(range.clone())).map(|part| part.unit).collect()
        };
        let units: Vec<Vec<UnitId>> = commands.iter().map(units).collect();
        self.buffer().core().lock().queue.set_next_uses(&units);
    }
}
