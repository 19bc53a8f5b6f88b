//! The memory of one space: segments obtained from the device, cut into blocks by the ledger.

use std::collections::BTreeMap;

use forebay_base::{Command, HeapId, MemoryId, Region};
use forebay_device::{Device, DeviceError};
use forebay_memory::allocator::{Block, BlockId, SegmentId};

use super::ledger::Ledger;
use super::timeline::Agent;

/// Segments are multiples of this, so that small blocks share one.
const SEGMENT_BYTES: u64 = 2 << 20;
/// Blocks begin at multiples of this: scratch needs it.
const ALIGNMENT_BYTES: u64 = 256;

/// Where a store's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// Device memory.
    Device,
    /// Host blocks that copies go through.
    Staging,
}

/// What a segment is made of.
struct Segment {
    memory: MemoryId,
    heaps: Vec<HeapId>,
    size_bytes: u64,
}

/// A block with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The ledger's name for it.
    pub block: BlockId,
    /// As many bytes as were asked for.
    pub region: Region,
}

/// The memory of one space.
pub struct Store {
    kind: StoreKind,
    cap_bytes: u64,
    reserved_bytes: u64,
    segments: BTreeMap<SegmentId, Segment>,
    /// Who uses what.
    pub ledger: Ledger,
}

impl Store {
    /// A store that never takes more than `cap_bytes` from the device. `tracks_uses`: see [`Ledger::new`].
    pub fn new(kind: StoreKind, cap_bytes: u64, tracks_uses: bool) -> Store {
        let ledger = Ledger::new(ALIGNMENT_BYTES, tracks_uses);
        Store { kind, cap_bytes, reserved_bytes: 0, segments: BTreeMap::new(), ledger }
    }

    /// Bytes taken from the device.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// The most bytes that may be taken.
    pub fn cap_bytes(&self) -> u64 {
        self.cap_bytes
    }

    /// Bytes for `home` from what is there; none where nothing fits.
    pub fn allocate(&mut self, home: Agent, size_bytes: u64, owner: &str) -> Option<Place> {
        let block = self.ledger.allocate(home, size_bytes, owner)?;
        Some(Place { block: block.id, region: self.region(&block).part(0, size_bytes) })
    }

    fn region(&self, block: &Block) -> Region {
        Region::new(self.segments[&block.segment].memory, block.offset_bytes, block.size_bytes)
    }

    /// Takes a segment for at least `size_bytes` from the device; not where the cap forbids it. `commands` gets the mapping.
    ///
    /// # Errors
    /// What the device says; nothing is kept then.
    pub fn grow(
        &mut self,
        device: &dyn Device,
        size_bytes: u64,
        commands: &mut Vec<Command>,
    ) -> Result<bool, DeviceError> {
        let tile_bytes = device.limits().tile_size_bytes.max(ALIGNMENT_BYTES);
        let room_bytes = self.cap_bytes - self.reserved_bytes;
        let rounded = |unit: u64| size_bytes.max(1).checked_next_multiple_of(unit).filter(|&bytes| bytes <= room_bytes);
        let unit = SEGMENT_BYTES.next_multiple_of(tile_bytes);
        let Some(size_bytes) = rounded(unit).or_else(|| rounded(tile_bytes)) else { return Ok(false) };
        let segment = match self.kind {
            StoreKind::Staging => {
                Segment { memory: device.create_host_block(size_bytes)?, heaps: Vec::new(), size_bytes }
            }
            StoreKind::Device if device.limits().tiled => tiled(device, size_bytes, commands)?,
            StoreKind::Device => Segment { memory: device.create_placed(size_bytes)?, heaps: Vec::new(), size_bytes },
        };
        self.reserved_bytes += size_bytes;
        self.segments.insert(self.ledger.allocator_mut().add_segment(size_bytes), segment);
        Ok(true)
    }

    /// Gives empty segments back to the device. The bytes given back; `commands` gets the unmapping, which is done.
    pub fn trim(&mut self, device: &dyn Device, commands: &mut Vec<Command>) -> u64 {
        let before_bytes = self.reserved_bytes;
        for id in self.ledger.allocator_mut().take_empty_segments() {
            let Some(segment) = self.segments.remove(&id) else { continue };
            self.reserved_bytes -= segment.size_bytes;
            release(device, &segment, commands);
        }
        before_bytes - self.reserved_bytes
    }

    /// Gives everything back to the device, whoever uses it: the end of the context.
    pub fn clear(&mut self, device: &dyn Device) {
        for segment in std::mem::take(&mut self.segments).values() {
            release(device, segment, &mut Vec::new());
        }
    }
}

fn release(device: &dyn Device, segment: &Segment, commands: &mut Vec<Command>) {
    if !segment.heaps.is_empty() {
        commands.push(Command::Unmap { region: Region::new(segment.memory, 0, segment.size_bytes) });
    }
    // Destroying a reservation unmaps it.
    device.destroy_memory(segment.memory);
    segment.heaps.iter().for_each(|&heap| device.destroy_heap(heap));
}

/// A reservation with heaps behind it. What was obtained before a failure is given back.
fn tiled(device: &dyn Device, size_bytes: u64, commands: &mut Vec<Command>) -> Result<Segment, DeviceError> {
    let memory = device.create_reservation(size_bytes)?;
    let mut segment = Segment { memory, heaps: Vec::new(), size_bytes };
    let mut maps = Vec::new();
    let heap_bytes_max = device.limits().heap_size_max_bytes;
    let mut offset_bytes = 0;
    while offset_bytes < size_bytes {
        let heap_bytes = heap_bytes_max.min(size_bytes - offset_bytes);
        match device.create_heap(heap_bytes) {
            Ok(heap) => {
                segment.heaps.push(heap);
                maps.push(Command::Map {
                    region: Region::new(memory, offset_bytes, heap_bytes),
                    heap,
                    heap_offset_bytes: 0,
                });
            }
            Err(error) => {
                release(device, &segment, &mut Vec::new());
                return Err(error);
            }
        }
        offset_bytes += heap_bytes;
    }
    if let Err(error) = device.submit(&maps) {
        release(device, &segment, &mut Vec::new());
        return Err(error);
    }
    commands.extend(maps);
    Ok(segment)
}
