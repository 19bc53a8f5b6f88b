//! Buffers in managed memory.

use std::fmt;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use forebay_base::{ByteRange, Command, DataType, MemoryId, Region};
use forebay_memory::eviction::{Access, Advice, EvictionError, EvictionQueue, Location, UnitId};

use super::core::{device_error, Core};
use super::locations::{Address, UnitLocation};
use super::memory::{Handle, ManagedMemory};
use super::residency::PinnedUnits;
use crate::eager::batch::Batch;
use crate::eager::slice::{bounds, Slice, Span};
use crate::eager::tensor::Tensor;
use crate::error::RuntimeError;

/// Addresses on the device and the units behind them.
pub struct Buffer {
    handle: Arc<Handle>,
    address: Arc<Address>,
    /// Its addresses on a device with tiles.
    reservation: Option<MemoryId>,
    /// On a device without tiles, the whole buffer is a unit.
    unit_bytes: u64,
    first_unit: u64,
    unit_count: u64,
    size_bytes: u64,
}

/// A part of a buffer that lies in one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The unit.
    pub unit: UnitId,
    /// Bytes of the buffer.
    pub bytes: Range<u64>,
    /// First byte in the unit.
    pub offset_bytes: u64,
    /// Whether it is everything of the buffer in that unit.
    pub whole: bool,
}

impl Buffer {
    /// The memory.
    pub fn core(&self) -> &Core {
        &self.handle.core
    }

    /// Its addresses. Without tiles, they hold while it is on the device.
    pub fn region(&self) -> Region {
        Region::new(self.address.memory(), 0, self.size_bytes)
    }

    /// Its addresses up to the end of its last unit.
    fn whole_region(&self) -> Region {
        Region::new(self.address.memory(), 0, self.unit_count * self.unit_bytes)
    }

    /// The parts of a byte range, by units.
    pub fn parts(&self, range: Range<u64>) -> impl Iterator<Item = Part> + '_ {
        let unit_bytes = self.unit_bytes;
        let Range { start, end } = range;
        let numbers = if start < end { start / unit_bytes..end.div_ceil(unit_bytes) } else { 0..0 };
        numbers.map(move |number| {
            let all = number * unit_bytes..((number + 1) * unit_bytes).min(self.size_bytes);
            let bytes = start.max(all.start)..end.min(all.end);
            let (whole, offset_bytes) = (bytes == all, bytes.start - all.start);
            Part { unit: UnitId(self.first_unit + number), bytes, offset_bytes, whole }
        })
    }

    /// Writes bytes from the host, after all work that was submitted to use them.
    ///
    /// # Errors
    /// No memory on the host, or a failure of the device or the spill file.
    pub fn write(&self, range: Range<u64>, bytes: &[u8]) -> Result<(), RuntimeError> {
        let core = self.core();
        for part in self.parts(range.clone()) {
            let bytes = &bytes[(part.bytes.start - range.start) as usize..(part.bytes.end - range.start) as usize];
            core.run(|state| core.host_write(state, part.unit, part.offset_bytes, bytes, part.whole))?;
        }
        Ok(())
    }

    /// Reads bytes on the host, after all work that was submitted to write them.
    ///
    /// # Errors
    /// No memory on the host, or a failure of the device or the spill file.
    pub fn read(&self, range: Range<u64>, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        let core = self.core();
        for part in self.parts(range.clone()) {
            let bytes = &mut bytes[(part.bytes.start - range.start) as usize..(part.bytes.end - range.start) as usize];
            core.run(|state| core.host_read(state, part.unit, part.offset_bytes, bytes))?;
        }
        Ok(())
    }

    fn units(&self) -> impl Iterator<Item = UnitId> {
        (self.first_unit..self.first_unit + self.unit_count).map(UnitId)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.core().retire(self.units(), self.reservation);
    }
}

/// A buffer in managed memory: of any size, partly on the device, partly on the host. Dropping it needs no care: memory that
/// is still in use stays until it is not.
///
/// Cheap to clone: clones share the bytes.
#[derive(Clone)]
pub struct ManagedBuffer {
    buffer: Arc<Buffer>,
}

impl ManagedBuffer {
    pub(super) fn new(handle: Arc<Handle>, size_bytes: u64) -> Result<ManagedBuffer, RuntimeError> {
        let core = &handle.core;
        let granularity_bytes = core.unit_bytes.unwrap_or(core.context.tile_bytes());
        let Some(whole_bytes) = size_bytes.checked_next_multiple_of(granularity_bytes).filter(|&bytes| bytes > 0)
        else {
            return Err(RuntimeError::Tensor { reason: format!("a managed buffer of {size_bytes} bytes cannot be") });
        };
        let reserve = |_| core.context.device().create_reservation(whole_bytes);
        let reservation = core.unit_bytes.map(reserve).transpose();
        let reservation = reservation.map_err(device_error("while making a managed buffer"))?;
        let unit_bytes = core.unit_bytes.unwrap_or(whole_bytes);
        let (address, unit_count) = (Arc::new(Address::new(reservation)), whole_bytes / unit_bytes);
        let mut state = core.lock();
        let first_unit = state.next_unit;
        state.next_unit += unit_count;
        for number in 0..unit_count {
            let (unit, start) = (UnitId(first_unit + number), number * unit_bytes);
            state.queue.add(unit, unit_bytes);
            state.locations.insert(unit, UnitLocation::new(address.clone(), ByteRange::new(start, start + unit_bytes)));
        }
        drop(state);
        let buffer = Buffer { handle, address, reservation, unit_bytes, first_unit, unit_count, size_bytes };
        Ok(ManagedBuffer { buffer: Arc::new(buffer) })
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
        ManagedMemory::of_handle(self.buffer.handle.clone())
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
    pub fn tensor(&self, data_type: DataType, shape: &[u64], offset_bytes: u64) -> Result<Tensor, RuntimeError> {
        self.slice().part(offset_bytes..)?.tensor(data_type, shape)
    }

    /// All of its bytes.
    pub fn slice(&self) -> Slice {
        Slice::new(&self.buffer.core().context, Span::of_buffer(&self.buffer))
    }

    /// Fills all bytes on the device with a pattern, on the current stream: one operation, or several where they do not fit
    /// together.
    ///
    /// # Errors
    /// No host memory for what has to go, or a failure of the device or the spill file.
    pub fn fill(&self, pattern: [u8; 4]) -> Result<(), RuntimeError> {
        let core = self.buffer.core();
        let stream = core.context.current_stream();
        let (queue, shared) = (stream.queue(), core.context.shared());
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
    /// Bytes beyond the end.
    fn range(&self, range: impl RangeBounds<u64>) -> Result<Range<u64>, RuntimeError> {
        bounds(range, self.size_bytes())
    }
}

impl fmt::Debug for ManagedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManagedBuffer({} bytes, {} resident)", self.size_bytes(), self.resident_bytes())
    }
}
