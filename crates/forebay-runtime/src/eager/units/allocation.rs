//! Buffers as units: addresses on the device, and the units behind them.

use std::ops::Range;
use std::sync::Arc;

use forebay_base::{ByteRange, MemoryId, Region};
use forebay_memory::eviction::UnitId;

use super::core::{Core, device_error};
use super::handle::Handle;
use super::locations::{Address, UnitLocation};
use crate::error::RuntimeError;

/// Addresses on the device and the units behind them.
pub struct Buffer {
    /// The managed memory that the buffer is in.
    pub handle: Arc<Handle>,
    address: Arc<Address>,
    /// The buffer's addresses on a device with tiles.
    reservation: Option<MemoryId>,
    /// The size of a unit. On a device without tiles, the whole buffer is a unit.
    pub unit_bytes: u64,
    first_unit: u64,
    /// The number of units.
    pub unit_count: u64,
    /// The size of the buffer.
    pub size_bytes: u64,
}

/// A part of a buffer within one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The unit.
    pub unit: UnitId,
    /// The range of bytes in the buffer.
    pub bytes: Range<u64>,
    /// The offset of the first byte in the unit.
    pub offset_bytes: u64,
    /// Whether the part is everything that the buffer has in that unit.
    pub whole: bool,
}

impl Buffer {
    /// Creates a buffer whose contents are not defined yet.
    ///
    /// # Errors
    /// Fails if the size is 0, if addresses run out, or if the device fails.
    pub fn new(handle: Arc<Handle>, size_bytes: u64) -> Result<Buffer, RuntimeError> {
        let core = &handle.core;
        let granularity_bytes = core.unit_bytes.unwrap_or(core.shared.tile_bytes);
        let Some(whole_bytes) = size_bytes.checked_next_multiple_of(granularity_bytes).filter(|&bytes| bytes > 0)
        else {
            return Err(RuntimeError::Tensor {
                reason: format!("cannot create a managed buffer of {size_bytes} bytes"),
            });
        };
        let reserve = |_| core.shared.device.create_reservation(whole_bytes);
        let reservation = core.unit_bytes.map(reserve).transpose();
        let reservation = reservation.map_err(device_error("while creating a managed buffer"))?;
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
        Ok(Buffer { handle, address, reservation, unit_bytes, first_unit, unit_count, size_bytes })
    }

    /// The memory.
    pub fn core(&self) -> &Core {
        &self.handle.core
    }

    /// The buffer's addresses. Without tiles, they are valid while the buffer is on the device.
    pub fn region(&self) -> Region {
        Region::new(self.address.memory(), 0, self.size_bytes)
    }

    /// The buffer's addresses up to the end of its last unit.
    pub fn whole_region(&self) -> Region {
        Region::new(self.address.memory(), 0, self.unit_count * self.unit_bytes)
    }

    /// The parts of a byte range, one per unit.
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

    /// Writes bytes from the host, after all submitted work that uses them.
    ///
    /// # Errors
    /// Fails if host memory runs out, or if the device or the spill file fails.
    pub fn write(&self, range: Range<u64>, bytes: &[u8]) -> Result<(), RuntimeError> {
        let core = self.core();
        for part in self.parts(range.clone()) {
            let bytes = &bytes[(part.bytes.start - range.start) as usize..(part.bytes.end - range.start) as usize];
            core.run(|state| core.host_write(state, part.unit, part.offset_bytes, bytes, part.whole))?;
        }
        Ok(())
    }

    /// Reads bytes on the host, after all submitted work that writes them.
    ///
    /// # Errors
    /// Fails if host memory runs out, or if the device or the spill file fails.
    pub fn read(&self, range: Range<u64>, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        let core = self.core();
        for part in self.parts(range.clone()) {
            let bytes = &mut bytes[(part.bytes.start - range.start) as usize..(part.bytes.end - range.start) as usize];
            core.run(|state| core.host_read(state, part.unit, part.offset_bytes, bytes))?;
        }
        Ok(())
    }

    /// The units of the buffer.
    pub fn units(&self) -> impl Iterator<Item = UnitId> {
        (self.first_unit..self.first_unit + self.unit_count).map(UnitId)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.core().retire(self.units(), self.reservation);
    }
}
