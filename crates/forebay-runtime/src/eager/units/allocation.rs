//! Buffers as units: addresses on the device, and who is behind them.

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
    /// The memory that it is in.
    pub handle: Arc<Handle>,
    address: Arc<Address>,
    /// Its addresses on a device with tiles.
    reservation: Option<MemoryId>,
    /// On a device without tiles, the whole buffer is a unit.
    pub unit_bytes: u64,
    first_unit: u64,
    /// How many units it has.
    pub unit_count: u64,
    /// Its size.
    pub size_bytes: u64,
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
    /// A buffer whose contents are not defined yet.
    ///
    /// # Errors
    /// A size of 0, no addresses, or a failure of the device.
    pub fn new(handle: Arc<Handle>, size_bytes: u64) -> Result<Buffer, RuntimeError> {
        let core = &handle.core;
        let granularity_bytes = core.unit_bytes.unwrap_or(core.shared.tile_bytes);
        let Some(whole_bytes) = size_bytes.checked_next_multiple_of(granularity_bytes).filter(|&bytes| bytes > 0)
        else {
            return Err(RuntimeError::Tensor { reason: format!("a managed buffer of {size_bytes} bytes cannot be") });
        };
        let reserve = |_| core.shared.device.create_reservation(whole_bytes);
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
        Ok(Buffer { handle, address, reservation, unit_bytes, first_unit, unit_count, size_bytes })
    }

    /// The memory.
    pub fn core(&self) -> &Core {
        &self.handle.core
    }

    /// Its addresses. Without tiles, they hold while it is on the device.
    pub fn region(&self) -> Region {
        Region::new(self.address.memory(), 0, self.size_bytes)
    }

    /// Its addresses up to the end of its last unit.
    pub fn whole_region(&self) -> Region {
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

    /// Its units.
    pub fn units(&self) -> impl Iterator<Item = UnitId> + use<> {
        (self.first_unit..self.first_unit + self.unit_count).map(UnitId)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.core().retire(self.units(), self.reservation);
    }
}
