//! Where units are, and who uses them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_base::{ByteRange, Command, HeapId, MemoryId, Region};
use forebay_memory::eviction::UnitId;

use super::slab_pool::Slab;
use crate::eager::block_lifetimes::Use;
use crate::eager::timeline::QueueId;

/// Device memory that units are cut from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSegment {
    /// Tiles, to be mapped into a buffer's reservation.
    Heap(HeapId),
    /// A placed heap, which has its own addresses: a whole buffer.
    Placed(MemoryId),
}

/// The memory whose addresses a buffer has: always the same reservation, or the placed heap that it is in at the moment. It does not change
/// while a unit of the buffer is held on the device.
#[derive(Debug)]
pub struct Address(AtomicU32);

impl Address {
    /// Creates the address of a reservation, or of no memory yet.
    pub fn new(memory: Option<MemoryId>) -> Address {
        Address(AtomicU32::new(memory.map_or(u32::MAX, |memory| memory.0)))
    }

    /// The memory.
    pub fn memory(&self) -> MemoryId {
        MemoryId(self.0.load(Ordering::Acquire))
    }

    /// Sets another memory.
    pub fn set(&self, memory: MemoryId) {
        self.0.store(memory.0, Ordering::Release);
    }
}

/// Where a unit's bytes are.
#[derive(Clone, Debug)]
pub struct UnitLocation {
    /// The addresses of its buffer.
    pub address: Arc<Address>,
    /// The range of the unit in the buffer.
    pub range: ByteRange,
    /// The device memory behind the unit.
    pub slot: Option<Slab<DeviceSegment>>,
    /// The unit's bytes on the host.
    pub block: Option<Slab<MemoryId>>,
    /// The unit's place in a spill file, which holds the same data as the host's copy.
    pub file: Option<Slab<MemoryId>>,
    /// The latest use of its device bytes by each queue, including copies.
    pub uses: Vec<Use>,
    /// The position of the latest copy from or to its device bytes; work comes after it.
    pub moved: u64,
    /// The position of the latest copy from or to its block.
    pub block_used: u64,
}

impl UnitLocation {
    /// Creates a location without memory.
    pub fn new(address: Arc<Address>, range: ByteRange) -> UnitLocation {
        UnitLocation { address, range, slot: None, block: None, file: None, uses: Vec::new(), moved: 0, block_used: 0 }
    }

    /// The size of the unit.
    pub fn size_bytes(&self) -> u64 {
        self.range.len()
    }

    /// The unit's bytes on the device, while it is there.
    pub fn region(&self) -> Region {
        Region { memory: self.address.memory(), range: self.range }
    }

    /// The command that unmaps the unit's bytes on the device, if they are mapped.
    pub fn unmapping(&self) -> Option<Command> {
        let mapped = self.slot.is_some_and(|slot| matches!(slot.memory, DeviceSegment::Heap(_)));
        mapped.then(|| Command::Unmap { region: self.region() })
    }

    /// The unit's bytes on the host.
    pub fn block_region(&self) -> Option<Region> {
        self.block.map(|block| Region::new(block.memory, block.offset_bytes, self.size_bytes()))
    }

    /// The unit's bytes in a spill file.
    pub fn file_region(&self) -> Option<Region> {
        self.file.map(|file| Region::new(file.memory, file.offset_bytes, self.size_bytes()))
    }

    /// Records that work at a position of a queue uses the device bytes.
    pub fn add_use(&mut self, queue: QueueId, position: u64) {
        add_use(&mut self.uses, (queue, position));
    }
}

/// The locations of all units.
pub type UnitLocations = BTreeMap<UnitId, UnitLocation>;

/// Adds a use, keeping only the latest by each queue.
pub fn add_use(uses: &mut Vec<Use>, (queue, position): Use) {
    match uses.iter_mut().find(|(other, _)| *other == queue) {
        Some((_, latest)) => *latest = position.max(*latest),
        None => uses.push((queue, position)),
    }
}

/// A dropped buffer, whose memory may still be in use.
#[derive(Clone, Debug)]
pub struct Retired {
    /// The buffer's reservation, if it has one.
    pub reservation: Option<MemoryId>,
    /// The locations of those of its units that were anywhere.
    pub locations: Vec<UnitLocation>,
    /// The uses of the buffer.
    pub uses: Vec<Use>,
}
