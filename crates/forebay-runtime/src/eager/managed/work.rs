//! Work that is prepared once and submitted many times: commands over a buffer's addresses, with what they do to its bytes.

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

/// A command over the addresses of one buffer.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// The command, on the stream that it is submitted to ([`stream_id`]).
    pub command: Command,
    /// What it does to which bytes of the buffer.
    pub uses: Vec<(Range<u64>, Access)>,
    /// What it is called.
    pub name: Arc<str>,
}

/// The device's stream behind a stream.
pub(crate) fn stream_id(stream: &Stream) -> StreamId {
    stream.context().shared().lock().stream(stream.queue())
}

impl ManagedMemory {
    /// The device's stream behind copies.
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

    /// Makes what a command uses resident, and submits it in the stream's order.
    ///
    /// # Errors
    /// Bytes that do not fit together, no host memory for what has to go, or a failure of the device or the spill file.
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

    /// Tells which bytes each coming command needs as they are, for [`Policy::Planned`](super::Policy::Planned). Replaces
    /// what was told before.
    pub(crate) fn set_next_uses(&self, commands: &[Vec<Range<u64>>]) {
        let units = |ranges: &Vec<Range<u64>>| -> Vec<UnitId> {
            ranges.iter().flat_map(|range| self.buffer().parts(range.clone())).map(|part| part.unit).collect()
        };
        let units: Vec<Vec<UnitId>> = commands.iter().map(units).collect();
        self.buffer().core().lock().queue.set_next_uses(&units);
    }
}
