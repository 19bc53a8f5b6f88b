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
use crate::eager::tensor::{DeviceTensor, space};
use crate::eager::units::{Buffer, Handle, Part, PinnedUnits};
use crate::error::RuntimeError;

/// A buffer in managed memory: of any size, partly on the device, partly on the host. It can be dropped at any time: memory that is still
/// in use stays until it no longer is.
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

    /// The size of the buffer in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.buffer.size_bytes
    }

    /// The part that clones share.
    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The managed memory that the buffer is in.
    pub fn memory(&self) -> ManagedMemory {
        ManagedMemory::of_handle(self.context.clone(), self.buffer.handle.clone())
    }

    /// Writes bytes from the host, after all submitted work that uses them.
    ///
    /// # Errors
    /// Fails if the range exceeds the buffer, if host memory runs out, or if the device or the spill file fails.
    pub fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), RuntimeError> {
        let range = self.range(offset_bytes..offset_bytes.saturating_add(bytes.len() as u64))?;
        self.buffer.write(range, bytes)
    }

    /// Reads bytes on the host, after all submitted work that writes them. Bytes that were never written, in units that were never used,
    /// are 0.
    ///
    /// # Errors
    /// Fails if the range exceeds the buffer, if host memory runs out, or if the device or the spill file fails.
    pub fn read(&self, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        let range = self.range(offset_bytes..offset_bytes.saturating_add(bytes.len() as u64))?;
        self.buffer.read(range, bytes)
    }

    /// Returns a tensor in the buffer's bytes, starting at `offset_bytes`, a multiple of 256. Tensors can overlap.
    ///
    /// # Errors
    /// Fails if the tensor exceeds the buffer, or if the offset is not such a multiple.
    pub fn tensor(&self, data_type: DataType, shape: &[u64], offset_bytes: u64) -> Result<DeviceTensor, RuntimeError> {
        self.slice().part(offset_bytes..)?.tensor(data_type, shape)
    }

    /// Returns all bytes of the buffer.
    pub fn slice(&self) -> Slice {
        Slice::new(&self.context, Span::of_buffer(&self.buffer))
    }

    /// Fills all bytes on the device with a pattern, on the current stream, in one operation, or in several if the bytes do not fit at
    /// once.
    ///
    /// # Errors
    /// Fails if host memory for evicted data runs out, or if the device or the spill file fails.
    pub fn fill(&self, pattern: [u8; 4]) -> Result<(), RuntimeError> {
        let core = self.buffer.core();
        let stream = self.context.current_stream();
        let (queue, shared) = (stream.queue(), self.context.shared());
        let mut start = 0;
        while start < self.size_bytes() {
            // As much at once as fits, in whole units, so that the length is a multiple of the pattern's.
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

    /// Requests a copy of bytes to a location, and returns before it is complete. Copies are made in the order in which they were
    /// requested; with [`Policy::Driver`](forebay_memory::eviction::Policy), their commands are submitted at once.
    ///
    /// # Errors
    /// Fails if the range exceeds the buffer, or if the system refuses a thread. If commands are submitted at once, the error can also be
    /// theirs; the prefetches after the one that failed are then canceled.
    pub fn prefetch(&self, range: impl RangeBounds<u64>, to: Location) -> Result<(), RuntimeError> {
        // First, so that no prefetch stays without a thread that carries it out.
        self.buffer.handle.start_thread()?;
        self.with_units(range, |queue, part| queue.prefetch(part.unit, to))?;
        self.buffer.core().prefetches_were_added()
    }

    /// Cancels prefetches that have not started, and returns the number of their units; always 0 with
    /// [`Policy::Driver`](forebay_memory::eviction::Policy).
    ///
    /// # Errors
    /// Fails if the range exceeds the buffer.
    pub fn cancel_prefetch(&self, range: impl RangeBounds<u64>) -> Result<u64, RuntimeError> {
        let mut count = 0;
        self.with_units(range, |queue, part| {
            count += u64::from(queue.cancel_prefetch(part.unit));
            Ok(())
        })?;
        self.buffer.core().changed.notify_all();
        Ok(count)
    }

    /// Advises how bytes will be used. The advice applies to the units that hold them.
    ///
    /// # Errors
    /// Fails if the range exceeds the buffer.
    pub fn advise(&self, range: impl RangeBounds<u64>, advice: Advice) -> Result<(), RuntimeError> {
        self.with_units(range, |queue, part| queue.advise(part.unit, advice))
    }

    /// Withdraws advice.
    ///
    /// # Errors
    /// Fails if the range exceeds the buffer.
    pub fn withdraw_advice(&self, range: impl RangeBounds<u64>, advice: Advice) -> Result<(), RuntimeError> {
        self.with_units(range, |queue, part| queue.withdraw_advice(part.unit, advice))
    }

    /// Declares that the contents of bytes are no longer needed: they are not copied, neither back nor in. Units that are only partly in
    /// the range keep their data. Afterwards the bytes are undefined.
    ///
    /// # Errors
    /// Fails if the range exceeds the buffer.
    pub fn discard(&self, range: impl RangeBounds<u64>) -> Result<(), RuntimeError> {
        let range = self.range(range)?;
        let mut state = self.buffer.core().lock();
        for part in self.buffer.parts(range).filter(|part| part.whole) {
            state.queue.discard(part.unit);
            state.forget_file(part.unit);
        }
        Ok(())
    }

    /// The number of bytes of the buffer that are on the device, in whole units.
    pub fn resident_bytes(&self) -> u64 {
        let state = self.buffer.core().lock();
        let resident = self.buffer.units().filter(|&unit| state.queue.is_resident(unit)).count() as u64;
        resident * self.buffer.unit_bytes
    }

    /// The units of the buffer, if it is in that memory.
    pub(super) fn units(&self, memory: &ManagedMemory) -> impl Iterator<Item = UnitId> {
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
    /// Fails if the range exceeds the buffer.
    fn range(&self, range: impl RangeBounds<u64>) -> Result<Range<u64>, RuntimeError> {
        bounds(range, self.size_bytes())
    }
}

/// Buffers of a managed memory.
impl ManagedMemory {
    /// Creates a buffer. It takes addresses now and memory as it is used; its contents are undefined until they are written.
    ///
    /// # Errors
    /// Fails if the size is 0, if addresses run out, or if the device fails.
    pub fn buffer(&self, size_bytes: u64) -> Result<ManagedBuffer, RuntimeError> {
        ManagedBuffer::new(self.context().clone(), self.handle().clone(), size_bytes)
    }

    /// Creates a tensor in a separate buffer. Its contents are undefined until they are written.
    ///
    /// # Errors
    /// Fails if addresses run out, or if the device fails.
    pub fn tensor(&self, data_type: DataType, shape: &[u64]) -> Result<DeviceTensor, RuntimeError> {
        let size_bytes = space(&TensorType::new(data_type, shape))?;
        self.buffer(size_bytes)?.tensor(data_type, shape, 0)
    }

    /// Announces what will be used next, for [`Policy::Planned`](super::Policy::Planned): the buffers of each coming operation, in order.
    /// Replaces earlier announcements.
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
