//! Host memory for units: host blocks of the device, cut into units.

use std::collections::VecDeque;

use forebay_base::{MemoryId, Region};
use forebay_device::{Device, DeviceError};
use forebay_memory::eviction::UnitId;

/// Host blocks are about this large, so that their number stays small.
const BLOCK_BYTES: u64 = 32 << 20;

/// The host blocks of a managed memory.
#[derive(Debug)]
pub struct Backing {
    unit_bytes: u64,
    count: u64,
    count_max: u64,
    memories: Vec<MemoryId>,
    free: Vec<Region>,
    /// Units that have bytes here, in the order in which they got them.
    holders: VecDeque<UnitId>,
}

impl Backing {
    /// No blocks yet, and never more than `count_max` units.
    pub fn new(unit_bytes: u64, count_max: u64) -> Backing {
        let (memories, free, holders) = (Vec::new(), Vec::new(), VecDeque::new());
        Backing { unit_bytes, count: 0, count_max, memories, free, holders }
    }

    /// Bytes for a unit, where there are some or more may be had.
    ///
    /// # Errors
    /// What the device reports.
    pub fn take(&mut self, device: &dyn Device) -> Result<Option<Region>, DeviceError> {
        if self.free.is_empty() {
            let most = (BLOCK_BYTES / self.unit_bytes).max(1);
            let count = self.count.clamp(1, most).min(self.count_max - self.count);
            if count == 0 {
                return Ok(None);
            }
            let memory = device.create_host_block(count * self.unit_bytes)?;
            self.memories.push(memory);
            self.count += count;
            let region = |i| Region::new(memory, i * self.unit_bytes, self.unit_bytes);
            self.free.extend((0..count).rev().map(region));
        }
        Ok(self.free.pop())
    }

    /// Whether there are bytes that nobody has.
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Notes that a unit got bytes.
    pub fn add_holder(&mut self, unit: UnitId) {
        self.holders.push_back(unit);
    }

    /// Notes that a unit has bytes no more.
    pub fn remove_holder(&mut self, unit: UnitId) {
        self.holders.retain(|&holder| holder != unit);
    }

    /// Units that have bytes, the one that has had them longest first.
    pub fn holders(&self) -> impl Iterator<Item = UnitId> + '_ {
        self.holders.iter().copied()
    }

    /// Takes bytes back that nobody uses.
    pub fn give_back(&mut self, regions: impl IntoIterator<Item = Region>) {
        self.free.extend(regions);
    }

    /// Bytes taken from the device.
    pub fn reserved_bytes(&self) -> u64 {
        self.count * self.unit_bytes
    }

    /// The most bytes that may be taken.
    pub fn cap_bytes(&self) -> u64 {
        self.count_max.saturating_mul(self.unit_bytes)
    }

    /// Gives everything back to the device: the end.
    pub fn clear(&mut self, device: &dyn Device) {
        self.free.clear();
        self.memories.drain(..).for_each(|memory| device.destroy_memory(memory));
    }
}
