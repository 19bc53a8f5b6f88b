//! Tracks which tiles of which heaps are mapped where, and which are unmapped. This module is pure.

use std::collections::BTreeMap;

use forebay_base::{HeapId, MemoryId, Region};

/// Consecutive bytes of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapRange {
    /// The heap.
    pub heap: HeapId,
    /// The offset of the first byte.
    pub offset_bytes: u64,
    /// The number of bytes.
    pub size_bytes: u64,
}

impl HeapRange {
    /// Splits off the first bytes, at most as many as there are.
    fn split_first(self, size_bytes: u64) -> (HeapRange, Option<HeapRange>) {
        let first = HeapRange { size_bytes: size_bytes.min(self.size_bytes), ..self };
        let rest_bytes = self.size_bytes - first.size_bytes;
        let rest = HeapRange { offset_bytes: self.offset_bytes + first.size_bytes, size_bytes: rest_bytes, ..self };
        (first, (rest_bytes > 0).then_some(rest))
    }
}

#[derive(Clone, Copy, Debug)]
struct Heap {
    size_bytes: u64,
    mapped_bytes: u64,
}

/// The tiles of a store's heaps.
#[derive(Clone, Debug, Default)]
pub struct Tiles {
    heaps: BTreeMap<HeapId, Heap>,
    mapped: BTreeMap<(MemoryId, u64), HeapRange>,
    spare: Vec<HeapRange>,
}

impl Tiles {
    /// Adds a heap, all of which is unmapped.
    pub fn add_heap(&mut self, heap: HeapId, size_bytes: u64) {
        self.heaps.insert(heap, Heap { size_bytes, mapped_bytes: 0 });
        self.spare.push(HeapRange { heap, offset_bytes: 0, size_bytes });
    }

    /// The number of bytes in all heaps.
    pub fn heap_bytes(&self) -> u64 {
        self.heaps.values().map(|heap| heap.size_bytes).sum()
    }

    /// The number of unmapped bytes.
    pub fn spare_bytes(&self) -> u64 {
        self.spare.iter().map(|range| range.size_bytes).sum()
    }

    /// Maps unmapped bytes to a region, the last added first. Returns what was mapped where; it covers the region if there are enough bytes
    /// ([`Tiles::spare_bytes`]).
    pub fn map_spare(&mut self, region: Region) -> Vec<(Region, HeapRange)> {
        let mut mapped = Vec::new();
        let mut at_bytes = 0;
        while at_bytes < region.range.len() {
            let Some(range) = self.spare.pop() else { break };
            let (first, rest) = range.split_first(region.range.len() - at_bytes);
            self.spare.extend(rest);
            let part = region.part(at_bytes, first.size_bytes);
            self.map(part, first);
            mapped.push((part, first));
            at_bytes += first.size_bytes;
        }
        mapped
    }

    /// Records that a region, so far unmapped, is mapped to bytes of a heap that are unmapped and not spare.
    pub fn map(&mut self, region: Region, range: HeapRange) {
        if let Some(heap) = self.heaps.get_mut(&range.heap) {
            heap.mapped_bytes += range.size_bytes;
        }
        self.mapped.insert((region.memory, region.range.start), range);
    }

    /// Removes any mapping of a region. Returns what was mapped where; it now belongs to the caller, who maps it
    /// elsewhere or passes it to [`Tiles::add_spare`].
    pub fn unmap(&mut self, region: Region) -> Vec<(Region, HeapRange)> {
        let memory = region.memory;
        self.split(memory, region.range.start);
        self.split(memory, region.range.end);
        let inside: Vec<u64> =
            self.mapped.range((memory, region.range.start)..(memory, region.range.end)).map(|(key, _)| key.1).collect();
        let mut unmapped = Vec::with_capacity(inside.len());
        for start in inside {
            if let Some(range) = self.mapped.remove(&(memory, start)) {
                if let Some(heap) = self.heaps.get_mut(&range.heap) {
                    heap.mapped_bytes -= range.size_bytes;
                }
                unmapped.push((Region::new(memory, start, range.size_bytes), range));
            }
        }
        unmapped
    }

    /// Splits the mapping at an address.
    fn split(&mut self, memory: MemoryId, at_bytes: u64) {
        let before = self.mapped.range((memory, 0)..(memory, at_bytes)).next_back();
        let Some((&(_, start), &range)) = before else { return };
        if let (first, Some(rest)) = range.split_first(at_bytes - start) {
            self.mapped.insert((memory, start), first);
            self.mapped.insert((memory, at_bytes), rest);
        }
    }

    /// Takes back bytes that are unmapped.
    pub fn add_spare(&mut self, range: HeapRange) {
        self.spare.push(range);
    }

    /// Removes the heaps of which nothing is mapped, for the caller to give back to the device.
    pub fn take_unused_heaps(&mut self) -> Vec<HeapId> {
        let unused: Vec<HeapId> =
            self.heaps.iter().filter(|(_, heap)| heap.mapped_bytes == 0).map(|(&heap, _)| heap).collect();
        self.heaps.retain(|_, heap| heap.mapped_bytes > 0);
        self.spare.retain(|range| self.heaps.contains_key(&range.heap));
        unused
    }

    /// All heaps.
    pub fn heaps(&self) -> impl Iterator<Item = HeapId> + '_ {
        self.heaps.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(memory: u32, start: u64, size: u64) -> Region {
        Region::new(MemoryId(memory), start, size)
    }

    #[test]
    fn tiles_move_between_reservations_and_heaps_go_when_nothing_of_them_is_mapped() {
        let mut tiles = Tiles::default();
        tiles.add_heap(HeapId(1), 64);
        tiles.add_heap(HeapId(2), 32);
        let mapped = tiles.map_spare(region(0, 0, 80));
        assert_eq!(mapped.iter().map(|(region, _)| region.range.len()).collect::<Vec<_>>(), [32, 48]);
        assert_eq!(tiles.spare_bytes(), 16);
        // The middle moves to another reservation: pieces of both heaps.
        let moved = tiles.unmap(region(0, 16, 32));
        assert_eq!(moved[0], (region(0, 16, 16), HeapRange { heap: HeapId(2), offset_bytes: 16, size_bytes: 16 }));
        assert_eq!(moved[1], (region(0, 32, 16), HeapRange { heap: HeapId(1), offset_bytes: 0, size_bytes: 16 }));
        moved.iter().for_each(|&(from, range)| tiles.map(region(1, from.range.start, range.size_bytes), range));
        // The first reservation goes; both heaps still have tiles in the second.
        tiles.unmap(region(0, 0, 80)).into_iter().for_each(|(_, range)| tiles.add_spare(range));
        assert_eq!((tiles.take_unused_heaps(), tiles.spare_bytes(), tiles.heap_bytes()), (vec![], 64, 96));
        tiles.unmap(region(1, 0, 64)).into_iter().for_each(|(_, range)| tiles.add_spare(range));
        assert_eq!(tiles.take_unused_heaps(), [HeapId(1), HeapId(2)]);
        assert_eq!((tiles.spare_bytes(), tiles.heap_bytes()), (0, 0));
    }
}
