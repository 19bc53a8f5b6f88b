//! The memory of one kind: segments obtained from the device, cut into blocks by the block lifetimes.
//!
//! A segment is a reservation with several heaps mapped into it if the device has tiles; otherwise, or if tiling fails, it is one placed
//! heap. Free tiles of several segments can become one range by mapping, without a copy.

use std::collections::BTreeMap;

use forebay_base::{Command, MemoryId, Region};
use forebay_device::{Device, DeviceError};
use forebay_memory::allocator::{Block, BlockId, SegmentId};

use super::block_lifetimes::BlockLifetimes;
use super::tiles::{HeapRange, Tiles};
use super::timeline::Agent;

/// Blocks begin at multiples of this, as workspace requires.
pub const ALIGNMENT_BYTES: u64 = 256;

/// The kind of memory that a store manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// Device memory.
    Device,
    /// Host blocks that copies go through.
    Staging,
}

/// How a store takes memory from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// The most bytes.
    pub cap_bytes: u64,
    /// Segments are multiples of this if the cap allows it, so that small blocks share one.
    pub segment_bytes: u64,
    /// Memory is taken and mapped in whole tiles of this size; a multiple of the device's tile if it is mapped.
    pub tile_bytes: u64,
    /// The largest heap behind a reservation, or the device's own limit if that is smaller.
    pub heap_bytes: u64,
    /// Whether more can be taken when blocks do not fit. If not, only what is taken at the start can be used.
    pub grows: bool,
    /// Whether to use tiles if the device has them.
    pub tiled: bool,
    /// Whether memory that is freed stays while another queue uses it ([`BlockLifetimes::new`]).
    pub tracks_uses: bool,
}

/// A range of addresses.
struct Segment {
    memory: MemoryId,
    size_bytes: u64,
    tiled: bool,
}

/// A block with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The id of the block in the block lifetimes.
    pub block: BlockId,
    /// The bytes of the block, as many as were requested.
    pub region: Region,
}

/// The memory of one kind.
pub struct Store {
    kind: StoreKind,
    options: StoreOptions,
    segments: BTreeMap<SegmentId, Segment>,
    tiles: Tiles,
    /// Tracks who uses what.
    pub block_lifetimes: BlockLifetimes,
}

impl Store {
    /// Creates a store without memory.
    pub fn new(kind: StoreKind, options: StoreOptions) -> Store {
        let block_lifetimes = BlockLifetimes::new(ALIGNMENT_BYTES, options.tracks_uses);
        Store { kind, options, segments: BTreeMap::new(), tiles: Tiles::default(), block_lifetimes }
    }

    /// The number of bytes taken from the device.
    pub fn reserved_bytes(&self) -> u64 {
        let whole = self.segments.values().filter(|segment| !segment.tiled).map(|segment| segment.size_bytes);
        whole.sum::<u64>() + self.tiles.heap_bytes()
    }

    /// The most bytes that may be taken.
    pub fn cap_bytes(&self) -> u64 {
        self.options.cap_bytes
    }

    /// The number of bytes that are taken at a time if blocks are small.
    pub fn segment_bytes(&self) -> u64 {
        self.options.segment_bytes
    }

    /// Whether more memory can be taken when blocks do not fit.
    pub fn grows(&self) -> bool {
        self.options.grows
    }

    /// Allocates bytes for `origin` from existing segments; returns `None` if nothing fits.
    pub fn allocate(&mut self, origin: Agent, size_bytes: u64, owner: &str) -> Option<Allocation> {
        let block = self.block_lifetimes.allocate(origin, size_bytes, owner)?;
        Some(self.place(&block, size_bytes))
    }

    fn place(&self, block: &Block, size_bytes: u64) -> Allocation {
        let memory = self.segments[&block.segment].memory;
        Allocation { block: block.id, region: Region::new(memory, block.offset_bytes, size_bytes) }
    }

    /// Takes a segment for at least `size_bytes` from the device, unless the cap forbids it. Appends the mapping, which is already done, to
    /// `commands`.
    ///
    /// # Errors
    /// Fails if the device reports an error; nothing is kept in that case.
    pub fn grow(
        &mut self,
        device: &dyn Device,
        size_bytes: u64,
        commands: &mut Vec<Command>,
    ) -> Result<bool, DeviceError> {
        let tile_bytes = self.options.tile_bytes;
        let room_bytes = (self.options.cap_bytes - self.reserved_bytes()).saturating_add(self.tiles.spare_bytes());
        let rounded = |unit: u64| size_bytes.max(1).checked_next_multiple_of(unit).filter(|&bytes| bytes <= room_bytes);
        let unit = self.options.segment_bytes.max(1).checked_next_multiple_of(tile_bytes).unwrap_or(tile_bytes);
        let Some(size_bytes) = rounded(unit).or_else(|| rounded(tile_bytes)) else { return Ok(false) };
        let mut failure = None;
        if self.uses_tiles(device) {
            match self.grow_tiled(device, size_bytes, commands) {
                Ok(memory) => {
                    self.add_segment(memory, size_bytes, Some(tile_bytes));
                    return Ok(true);
                }
                Err(error) => failure = Some(error),
            }
        }
        if size_bytes > self.options.cap_bytes - self.reserved_bytes() {
            return failure.map_or(Ok(false), Err);
        }
        let memory = match self.kind {
            StoreKind::Staging => device.create_host_block(size_bytes),
            StoreKind::Device => device.create_placed(size_bytes),
        };
        // If both ways fail, the first one's reason is the better one.
        let memory = memory.map_err(|error| failure.unwrap_or(error))?;
        self.add_segment(memory, size_bytes, None);
        Ok(true)
    }

    fn uses_tiles(&self, device: &dyn Device) -> bool {
        self.kind == StoreKind::Device && self.options.tiled && device.limits().tiled
    }

    fn add_segment(&mut self, memory: MemoryId, size_bytes: u64, tile_bytes: Option<u64>) {
        let id = self.block_lifetimes.add_segment(size_bytes, tile_bytes);
        self.segments.insert(id, Segment { memory, size_bytes, tiled: tile_bytes.is_some() });
    }

    /// Creates a reservation backed by tiles: unmapped ones, and new heaps. If this fails, everything obtained so far is given back.
    fn grow_tiled(
        &mut self,
        device: &dyn Device,
        size_bytes: u64,
        commands: &mut Vec<Command>,
    ) -> Result<MemoryId, DeviceError> {
        let memory = device.create_reservation(size_bytes)?;
        let result = self.add_heaps(device, size_bytes).and_then(|()| {
            let mapped = self.tiles.map_spare(Region::new(memory, 0, size_bytes));
            let maps: Vec<Command> = mapped.iter().map(|&(region, range)| map(region, range)).collect();
            device.submit(&maps)?;
            commands.extend(maps);
            Ok(memory)
        });
        if result.is_err() {
            // Destroying a reservation unmaps it.
            device.destroy_memory(memory);
            self.forget(Region::new(memory, 0, size_bytes));
            self.return_heaps(device);
        }
        result
    }

    /// Adds heaps until this many bytes are unmapped.
    fn add_heaps(&mut self, device: &dyn Device, size_bytes: u64) -> Result<(), DeviceError> {
        let heap_bytes_max = self.options.heap_bytes.min(device.limits().heap_size_max_bytes);
        let tile_bytes = self.options.tile_bytes;
        let heap_bytes_max = (heap_bytes_max / tile_bytes * tile_bytes).max(tile_bytes);
        while self.tiles.spare_bytes() < size_bytes {
            let heap_bytes = heap_bytes_max.min(size_bytes - self.tiles.spare_bytes());
            self.tiles.add_heap(device.create_heap(heap_bytes)?, heap_bytes);
        }
        Ok(())
    }

    /// Combines free tiles of several segments into one range, for a request that does not fit anywhere. Unless the caller has `waited` for
    /// the origin, only uses tiles that no one uses any more. Appends the mapping, which is already done, to `commands`.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn assemble(
        &mut self,
        device: &dyn Device,
        origin: Agent,
        size_bytes: u64,
        owner: &str,
        waited: bool,
        commands: &mut Vec<Command>,
    ) -> Result<Option<Allocation>, DeviceError> {
        let tile_bytes = self.options.tile_bytes;
        let Some(rounded_bytes) = size_bytes.checked_next_multiple_of(tile_bytes) else { return Ok(None) };
        if !self.uses_tiles(device)
            || !self.block_lifetimes.can_assemble(Some(origin).filter(|_| waited), size_bytes, tile_bytes)
        {
            return Ok(None);
        }
        let memory = device.create_reservation(rounded_bytes)?;
        let Some(assembly) = self.block_lifetimes.assemble(origin, size_bytes, tile_bytes, owner) else {
            device.destroy_memory(memory);
            return Ok(None);
        };
        debug_assert!(!assembly.waits || waited, "tiles in use are not moved");
        let mut moves = Vec::new();
        let mut at_bytes = 0;
        for tiles in &assembly.tiles {
            let from = Region { memory: self.segments[&tiles.segment].memory, range: tiles.range };
            moves.push(Command::Unmap { region: from });
            for (part, range) in self.tiles.unmap(from) {
                let to = Region::new(memory, at_bytes, part.range.len());
                self.tiles.map(to, range);
                moves.push(map(to, range));
                at_bytes += part.range.len();
            }
        }
        device.submit(&moves)?;
        commands.extend(moves);
        let size = assembly.segment_size_bytes;
        self.segments.insert(assembly.block.segment, Segment { memory, size_bytes: size, tiled: true });
        for id in assembly.emptied {
            if let Some(segment) = self.segments.remove(&id) {
                device.destroy_memory(segment.memory);
            }
        }
        Ok(Some(self.place(&assembly.block, size_bytes)))
    }

    /// Gives empty segments back to the device and returns the number of bytes given back. Appends the unmapping, which is already done, to
    /// `commands`.
    pub fn trim(&mut self, device: &dyn Device, commands: &mut Vec<Command>) -> u64 {
        let before_bytes = self.reserved_bytes();
        for id in self.block_lifetimes.take_empty_segments() {
            let Some(segment) = self.segments.remove(&id) else { continue };
            let region = Region::new(segment.memory, 0, segment.size_bytes);
            if segment.tiled {
                commands.push(Command::Unmap { region });
            }
            device.destroy_memory(segment.memory);
            self.forget(region);
        }
        self.return_heaps(device);
        before_bytes - self.reserved_bytes()
    }

    /// Notes that a reservation is gone, which leaves its tiles unmapped.
    fn forget(&mut self, region: Region) {
        for (_, range) in self.tiles.unmap(region) {
            self.tiles.add_spare(range);
        }
    }

    fn return_heaps(&mut self, device: &dyn Device) {
        self.tiles.take_unused_heaps().into_iter().for_each(|heap| device.destroy_heap(heap));
    }

    /// Gives everything back to the device, even if it is still in use, at the end of the context.
    pub fn clear(&mut self, device: &dyn Device) {
        for segment in std::mem::take(&mut self.segments).values() {
            device.destroy_memory(segment.memory);
        }
        std::mem::take(&mut self.tiles).heaps().for_each(|heap| device.destroy_heap(heap));
    }
}

fn map(region: Region, range: HeapRange) -> Command {
    Command::Map { region, heap: range.heap, heap_offset_bytes: range.offset_bytes }
}
