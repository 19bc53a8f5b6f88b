//! Buffers in managed memory.

use std::fmt;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use forebay_base::{Command, DataType};
use forebay_memory::eviction::{Access, Advice, EvictionError, EvictionQueue, Location, UnitId};
use forebay_model::TensorType;

use super::memory::ManagedMemory;
use crate::eager::batch::Batch;
use crate::eager::context::Context;
use crate::eager::slice::{Slice, bounds};
use crate::eager::span::Span;
use crate::eager::tensor::{DeviceTensor, describe};
use crate::eager::units::{Buffer, Handle, Part, PinnedUnits};
use crate::error::RuntimeError;

/// A buffer in managed memory: of any size, partly on the device, partly on the host. Dropping it needs no care: memory that
/// is still in use stays until it is not.
///
/// Cheap to clone: clones share the bytes.
///
/// ```
/// # use std::sync::Arc;
/// # use forebay_device::host::{HostDevice, HostOptions};
/// use forebay_memory::eviction::Policy;
/// use forebay_runtime::eager::{Context, ContextOptions, ManagedMemory, ManagedOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Arc::new(HostDevice::new(&HostOptions::default())?);
/// let context = Context::new(device, &ContextOptions::default())?;
/// let memory = ManagedMemory::new(&context, &ManagedOptions::new(1 << 20, Policy::Driver))?;
/// let buffer = memory.buffer(4 << 20)?; // four times what the device may hold
/// buffer.write(3 << 20, &[1, 2, 3])?;
/// let mut bytes = [0; 3];
/// buffer.read(3 << 20, &mut bytes)?;
/// assert_eq!(bytes, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ManagedBuffer {
    context: Context,
    buffer: Arc<Buffer>,
}

impl ManagedBuffer {
    fn new(context: Context, handle: Arc<Handle>, size_bytes: u64) -> Result<ManagedBuffer, RuntimeError> {
        let buffer = Arc::new(Buffer::new(handle, size_bytes)?);
        Ok(ManagedBuffer { context, buffer })
    }

    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        self.buffer.size_bytes
    }

    /// What it shares with its clones.
    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The memory that it is in.
    pub fn memory(&self) -> ManagedMemory {
        ManagedMemory::of_handle(self.context.clone(), self.buffer.handle.clone())
    }

    /// Writes bytes from the host, after all work that was submitted to use them.
    ///
    /// # Errors
    /// Bytes beyond the end, no host memory, or a failure of the device or the spill file.
    pub fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), RuntimeError> {
        let range = self.range(offset_bytes..offset_bytes.saturating_add(bytes.len() as u64))?;
        self.buffer.write(range, bytes)
    }

    /// Reads bytes on the host, after all work that was submitted to write them. What was never written, in units that were
    /// never used, is 0.
    ///
    /// # Errors
    /// Bytes beyond the end, no host memory, or a failure of the device or the spill file.
    pub fn read(&self, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        let range = self.range(offset_bytes..offset_bytes.saturating_add(bytes.len() as u64))?;
        self.buffer.read(range, bytes)
    }

    /// A tensor in the buffer's bytes, from `offset_bytes` on, a multiple of 256. Tensors may overlap.
    ///
    /// # Errors
    /// Bytes beyond the end, another offset, or a shape without elements.
    pub fn tensor(&self, data_type: DataType, shape: &[u64], offset_bytes: u64) -> Result<DeviceTensor, RuntimeError> {
        self.slice().part(offset_bytes..)?.tensor(data_type, shape)
    }

    /// All of its bytes.
    pub fn slice(&self) -> Slice {
        Slice::new(&self.context, Span::of_buffer(&self.buffer))
    }

    /// Fills all bytes on the device with a pattern, on the current stream: one operation, or several where they do not fit
    /// together.
    ///
    /// # Errors
    /// No host memory for what has to go, or a failure of the device or the spill file.
    pub fn fill(&self, pattern: [u8; 4]) -> Result<(), RuntimeError> {
        let core = self.buffer.core();
        let stream = self.context.current_stream();
        let (queue, shared) = (stream.queue(), self.context.shared());
        let mut start = 0;
        while start < self.size_bytes() {
            // As much at once as fits; whole units, so that the length is a multiple of the pattern's.
            let all_bytes = self.buffer.whole_region().range.len();
            let size_bytes = match core.unit_bytes {
                Some(_) => self.memory().capacity_bytes().min(all_bytes - start),
                None => all_bytes,
            };
            let end = (start + size_bytes).min(self.size_bytes());
            let mut residency = PinnedUnits::new([(&*self.buffer, start..end, Access::Overwrite)])?;
            let mut state = shared.lock();
            let mut batch = Batch::default();
            residency.order(queue, &mut state, &mut batch);
            let region = self.buffer.whole_region().part(start, size_bytes);
            let command = Command::Fill { stream: state.stream(queue), region, pattern };
            let position = state.work(queue, command, &"fill".into(), &mut batch)?;
            residency.add_use(queue, position);
            shared.submit(&mut state, &batch)?;
            start = end;
        }
        Ok(())
    }

    /// Asks for a copy of bytes in a place, and returns before it is there. Copies are carried out in the order in which they
    /// were asked for; with [`Policy::Driver`](forebay_memory::eviction::Policy), their commands are submitted at once.
    ///
    /// # Errors
    /// Bytes beyond the end; where it is done at once, what that reports.
    pub fn prefetch(&self, range: impl RangeBounds<u64>, to: Location) -> Result<(), RuntimeError> {
        self.with_units(range, |queue, part| queue.prefetch(part.unit, to))?;
        self.buffer.handle.start_thread()?;
        self.buffer.core().prefetches_were_added()
    }

    /// Recalls prefetches that have not started. How many units that were; always 0 with
    /// [`Policy::Driver`](forebay_memory::eviction::Policy).
    ///
    /// # Errors
    /// Bytes beyond the end.
    pub fn cancel_prefetch(&self, range: impl RangeBounds<u64>) -> Result<u64, RuntimeError> {
        let mut count = 0;
        self.with_units(range, |queue, part| {
            count += u64::from(queue.cancel_prefetch(part.unit));
            Ok(())
        })?;
        self.buffer.core().changed.notify_all();
        Ok(count)
    }

    /// Says how bytes will be used. The units that hold them take it.
    ///
    /// # Errors
    /// Bytes beyond the end.
    pub fn advise(&self, range: impl RangeBounds<u64>, advice: Advice) -> Result<(), RuntimeError> {
        self.with_units(range, |queue, part| queue.advise(part.unit, advice))
    }

    /// Takes advice back.
    ///
    /// # Errors
    /// Bytes beyond the end.
    pub fn withdraw_advice(&self, range: impl RangeBounds<u64>, advice: Advice) -> Result<(), RuntimeError> {
        self.with_units(range, |queue, part| queue.withdraw_advice(part.unit, advice))
    }

    /// Says that what bytes hold is needed no more: it is not copied, neither back nor in. Units that are only partly in the
    /// range keep their data. Afterwards the bytes are not defined.
    ///
    /// # Errors
    /// Bytes beyond the end.
    pub fn discard(&self, range: impl RangeBounds<u64>) -> Result<(), RuntimeError> {
        let range = self.range(range)?;
        let mut state = self.buffer.core().lock();
        for part in self.buffer.parts(range).filter(|part| part.whole) {
            state.queue.discard(part.unit);
            state.forget_file(part.unit);
        }
        Ok(())
    }

    /// How many of its bytes are on the device, in whole units.
    pub fn resident_bytes(&self) -> u64 {
        let state = self.buffer.core().lock();
        let resident = self.buffer.units().filter(|&unit| state.queue.is_resident(unit)).count() as u64;
        resident * self.buffer.unit_bytes
    }

    /// Its units, if it is in that memory.
    pub(super) fn units(&self, memory: &ManagedMemory) -> impl Iterator<Item = UnitId> + use<> {
        let count = if self.memory().is(memory) { self.buffer.unit_count } else { 0 };
        self.buffer.units().take(count as usize)
    }

    fn with_units(
        &self,
        range: impl RangeBounds<u64>,
        mut action: impl FnMut(&mut EvictionQueue, &Part) -> Result<(), EvictionError>,
    ) -> Result<(), RuntimeError> {
        let range = self.range(range)?;
        let mut state = self.buffer.core().lock();
        self.buffer.parts(range).try_for_each(|part| action(&mut state.queue, &part))?;
        Ok(())
    }

    /// # Errors
    /// Bytes beyond the end.
    fn range(&self, range: impl RangeBounds<u64>) -> Result<Range<u64>, RuntimeError> {
        bounds(range, self.size_bytes())
    }
}

/// Buffers of a managed memory.
impl ManagedMemory {
    /// A buffer. It takes addresses now and memory as it is used; what it holds is not defined until it is written.
    ///
    /// # Errors
    /// A size of 0, no addresses, or a failure of the device.
    pub fn buffer(&self, size_bytes: u64) -> Result<ManagedBuffer, RuntimeError> {
        ManagedBuffer::new(self.context().clone(), self.handle().clone(), size_bytes)
    }

    /// A tensor in a buffer of its own, not defined until it is written.
    ///
    /// # Errors
    /// A shape without elements, no addresses, or a failure of the device.
    pub fn tensor(&self, data_type: DataType, shape: &[u64]) -> Result<DeviceTensor, RuntimeError> {
        let size_bytes = describe(&TensorType::new(data_type, shape))?.total_size_bytes();
        self.buffer(size_bytes)?.tensor(data_type, shape, 0)
    }

    /// Tells what will be used next, for [`Policy::Planned`](super::Policy::Planned): the buffers of each coming operation, in order. Replaces what
    /// was told before.
    pub fn set_next_uses(&self, uses: &[Vec<&ManagedBuffer>]) {
        let units = |buffers: &Vec<&ManagedBuffer>| -> Vec<UnitId> {
            buffers.iter().flat_map(|buffer| buffer.units(self)).collect()
        };
        let uses: Vec<Vec<UnitId>> = uses.iter().map(units).collect();
        self.core().lock().queue.set_next_uses(&uses);
    }
}

impl fmt::Debug for ManagedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManagedBuffer({} bytes, {} resident)", self.size_bytes(), self.resident_bytes())
    }
}
