//! The physical bytes that a region names. Two addresses that are mapped to the same tile conflict; two halves of one heap do not. The
//! inserter and the checker both use this map, and share nothing else.

use std::collections::BTreeMap;
use std::fmt;

use forebay_base::{ByteRange, Command, HeapId, MemoryId, Region};

use crate::error::SyncError;

/// A memory that physically holds bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhysicalMemory {
    /// A heap whose tiles are mapped into reservations.
    Heap(HeapId),
    /// A memory without a mapping: a placed heap, a host block or a spill file.
    Memory(MemoryId),
}

impl fmt::Display for PhysicalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PhysicalMemory::Heap(heap) => write!(f, "{heap}"),
            PhysicalMemory::Memory(memory) => write!(f, "{memory}"),
        }
    }
}

/// A range of physical bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysicalBytes {
    /// The memory that holds the bytes.
    pub memory: PhysicalMemory,
    /// The bytes of that memory.
    pub range: ByteRange,
}

impl PhysicalBytes {
    /// Whether the ranges have a byte in common.
    pub fn overlaps(self, other: PhysicalBytes) -> bool {
        self.memory == other.memory && self.range.overlaps(other.range)
    }
}

impl fmt::Display for PhysicalBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.memory, self.range)
    }
}

/// Consecutive addresses of a reservation that are mapped to consecutive bytes of one heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    end: u64,
    heap: HeapId,
    heap_offset_bytes: u64,
}

/// The mapping of tiles, as established by the host's `Map` and `Unmap` commands.
///
/// A memory that was never mapped holds its bytes itself. Once anything has been mapped into a memory, it is a reservation, and only its
/// mapped bytes may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TileMap {
    /// For each reservation, its extents by first address; neighbors that continue each other form one extent.
    reservations: BTreeMap<MemoryId, BTreeMap<u64, Extent>>,
}

impl TileMap {
    /// The mapping after a prologue.
    ///
    /// # Errors
    /// A command that is neither `Map` nor `Unmap`, tiles mapped twice, or a mapping that overflows.
    pub fn from_prologue(prologue: &[Command]) -> Result<TileMap, SyncError> {
        let mut tiles = TileMap::default();
        for (index, command) in prologue.iter().enumerate() {
            match command {
                Command::Map { region, heap, heap_offset_bytes } => tiles.map(*region, *heap, *heap_offset_bytes)?,
                Command::Unmap { region } => tiles.unmap(*region),
                other => return Err(SyncError::NotMapping { index, command: other.to_string() }),
            }
        }
        Ok(tiles)
    }

    /// Maps bytes of a heap into a reservation.
    ///
    /// # Errors
    /// If part of the region is already mapped, or the heap's range does not fit into 64 bits.
    pub fn map(&mut self, region: Region, heap: HeapId, heap_offset_bytes: u64) -> Result<(), SyncError> {
        if heap_offset_bytes.checked_add(region.range.len()).is_none() {
            return Err(SyncError::MappingOverflow { region, heap });
        }
        let extents = self.reservations.entry(region.memory).or_default();
        if region.range.is_empty() {
            return Ok(());
        }
        let ByteRange { mut start, mut end } = region.range;
        if extents.range(..end).next_back().is_some_and(|(_, extent)| extent.end > start) {
            return Err(SyncError::MappedTwice { region });
        }
        let mut first_byte = heap_offset_bytes;
        if let Some((&before, &extent)) = extents.range(..start).next_back() {
            let continues = extent.end == start && extent.heap == heap;
            if continues && extent.heap_offset_bytes + (start - before) == first_byte {
                (start, first_byte) = (before, extent.heap_offset_bytes);
            }
        }
        if let Some(&extent) = extents.get(&end)
            && extent.heap == heap
            && first_byte + (end - start) == extent.heap_offset_bytes
        {
            extents.remove(&end);
            end = extent.end;
        }
        extents.insert(start, Extent { end, heap, heap_offset_bytes: first_byte });
        Ok(())
    }

    /// Declares that a memory is a reservation, before anything is mapped into it: none of its bytes can be used yet.
    pub fn reserve(&mut self, memory: MemoryId) {
        self.reservations.entry(memory).or_default();
    }

    /// Removes the mapping of a region. Bytes that are not mapped stay unmapped.
    pub fn unmap(&mut self, region: Region) {
        let extents = self.reservations.entry(region.memory).or_default();
        let removed = region.range;
        if removed.is_empty() {
            return;
        }
        while let Some((&start, &extent)) = extents.range(..removed.end).next_back() {
            if extent.end <= removed.start {
                break;
            }
            extents.remove(&start);
            if extent.end > removed.end {
                let heap_offset_bytes = extent.heap_offset_bytes + (removed.end - start);
                extents.insert(removed.end, Extent { heap_offset_bytes, ..extent });
            }
            if start < removed.start {
                extents.insert(start, Extent { end: removed.start, ..extent });
            }
        }
    }

    /// The physical bytes that are mapped into a region, in address order; empty if nothing is mapped.
    pub fn mapped(&self, region: Region) -> Vec<PhysicalBytes> {
        let Some(extents) = self.reservations.get(&region.memory).filter(|_| !region.range.is_empty()) else {
            return Vec::new();
        };
        let first = extents.range(..=region.range.start).next_back().map_or(region.range.start, |(&start, _)| start);
        let piece = |(&start, extent): (&u64, &Extent)| {
            let inside = ByteRange::new(start, extent.end).intersection(region.range)?;
            let first_byte = extent.heap_offset_bytes + (inside.start - start);
            let range = ByteRange::new(first_byte, first_byte + inside.len());
            Some(PhysicalBytes { memory: PhysicalMemory::Heap(extent.heap), range })
        };
        extents.range(first..region.range.end).filter_map(piece).collect()
    }

    /// The physical bytes of a region, in address order.
    ///
    /// # Errors
    /// If the region lies in a reservation and part of it is not mapped.
    pub fn physical(&self, region: Region) -> Result<Vec<PhysicalBytes>, SyncError> {
        let Some(extents) = self.reservations.get(&region.memory) else {
            return Ok(vec![PhysicalBytes { memory: PhysicalMemory::Memory(region.memory), range: region.range }]);
        };
        let mut pieces = Vec::new();
        let mut at = region.range.start;
        while at < region.range.end {
            let found = extents.range(..=at).next_back().filter(|(_, extent)| extent.end > at);
            let Some((&start, extent)) = found else {
                return Err(SyncError::Unmapped { region, offset_bytes: at });
            };
            let end = extent.end.min(region.range.end);
            let first_byte = extent.heap_offset_bytes + (at - start);
            let range = ByteRange::new(first_byte, first_byte + (end - at));
            pieces.push(PhysicalBytes { memory: PhysicalMemory::Heap(extent.heap), range });
            at = end;
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILE: u64 = 64;

    fn region(start: u64, end: u64) -> Region {
        Region { memory: MemoryId(7), range: ByteRange::new(start, end) }
    }

    fn heap(heap: u32, start: u64, end: u64) -> PhysicalBytes {
        PhysicalBytes { memory: PhysicalMemory::Heap(HeapId(heap)), range: ByteRange::new(start, end) }
    }

    #[test]
    fn a_memory_without_mapping_is_its_own_bytes() {
        let own = PhysicalBytes { memory: PhysicalMemory::Memory(MemoryId(7)), range: ByteRange::new(3, 9) };
        assert_eq!(TileMap::default().physical(region(3, 9)), Ok(vec![own]));
    }

    #[test]
    fn neighbors_that_continue_each_other_are_one_piece() {
        let mut tiles = TileMap::default();
        tiles.map(region(2 * TILE, 3 * TILE), HeapId(0), 2 * TILE).unwrap();
        tiles.map(region(0, TILE), HeapId(0), 0).unwrap();
        tiles.map(region(TILE, 2 * TILE), HeapId(0), TILE).unwrap();
        tiles.map(region(3 * TILE, 4 * TILE), HeapId(1), 3 * TILE).unwrap();
        assert_eq!(tiles.physical(region(8, 3 * TILE + 8)), Ok(vec![heap(0, 8, 3 * TILE), heap(1, 192, 200)]));
    }

    #[test]
    fn aliases_of_a_tile_conflict() {
        let mut tiles = TileMap::default();
        tiles.map(region(0, TILE), HeapId(0), 0).unwrap();
        tiles.map(region(TILE, 2 * TILE), HeapId(0), 0).unwrap();
        let first = tiles.physical(region(0, 8)).unwrap()[0];
        let second = tiles.physical(region(TILE + 4, TILE + 12)).unwrap()[0];
        assert!(first.overlaps(second));
    }

    #[test]
    fn unmapped_bytes_are_named() {
        let mut tiles = TileMap::default();
        tiles.map(region(0, 4 * TILE), HeapId(0), 0).unwrap();
        tiles.unmap(region(TILE, 2 * TILE));
        assert_eq!(
            tiles.physical(region(8, 3 * TILE)),
            Err(SyncError::Unmapped { region: region(8, 3 * TILE), offset_bytes: TILE })
        );
        assert_eq!(tiles.physical(region(2 * TILE, 3 * TILE)), Ok(vec![heap(0, 2 * TILE, 3 * TILE)]));
        tiles.map(region(TILE, 2 * TILE), HeapId(0), TILE).unwrap();
        assert_eq!(tiles.physical(region(0, 4 * TILE)), Ok(vec![heap(0, 0, 4 * TILE)]));
    }

    #[test]
    fn mapping_twice_is_an_error() {
        let mut tiles = TileMap::default();
        tiles.map(region(0, 2 * TILE), HeapId(0), 0).unwrap();
        let again = region(TILE, 3 * TILE);
        assert_eq!(tiles.map(again, HeapId(1), 0), Err(SyncError::MappedTwice { region: again }));
        let far = region(4 * TILE, 5 * TILE);
        let overflow = SyncError::MappingOverflow { region: far, heap: HeapId(1) };
        assert_eq!(tiles.map(far, HeapId(1), u64::MAX - 3), Err(overflow));
    }

    #[test]
    fn what_is_mapped_is_listed_around_gaps() {
        let mut tiles = TileMap::default();
        assert_eq!(tiles.mapped(region(0, 64)), [], "its own bytes are not mapped");
        tiles.map(region(0, 2 * TILE), HeapId(0), 0).unwrap();
        tiles.map(region(3 * TILE, 4 * TILE), HeapId(1), 0).unwrap();
        assert_eq!(tiles.mapped(region(8, 4 * TILE)), [heap(0, 8, 2 * TILE), heap(1, 0, TILE)]);
        assert_eq!(tiles.mapped(region(2 * TILE, 3 * TILE)), []);
        assert_eq!(tiles.mapped(region(8, 8)), []);
    }

    #[test]
    fn a_reservation_holds_nothing_until_it_is_mapped() {
        let mut tiles = TileMap::default();
        tiles.reserve(MemoryId(7));
        assert_eq!(tiles.physical(region(0, 8)), Err(SyncError::Unmapped { region: region(0, 8), offset_bytes: 0 }));
    }
}
