//! Memory for units: segments obtained from the device, cut into places, up to a cap.

use std::collections::BTreeMap;

use forebay_device::DeviceError;
use forebay_memory::allocator::{Allocator, BlockId, PoolId, SegmentId};

/// Places begin at multiples of this, with which files are fastest; device memory needs less.
const ALIGNMENT_BYTES: u64 = 4096;
/// All places are in one pool: the slab pool does not track who waits for whom.
const POOL: PoolId = PoolId(0);

/// Memory for one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slab<M> {
    block: BlockId,
    /// The segment.
    pub memory: M,
    /// The offset of its first byte in the segment.
    pub offset_bytes: u64,
}

/// All memory of one kind.
pub struct SlabPool<M> {
    allocator: Allocator,
    segments: BTreeMap<SegmentId, M>,
    cap_bytes: u64,
    /// The maximum size of a segment, unless one unit is larger.
    segment_bytes_max: u64,
}

impl<M: Copy> SlabPool<M> {
    /// Creates a pool without memory, which never has more than `cap_bytes`.
    pub fn new(cap_bytes: u64, segment_bytes_max: u64) -> SlabPool<M> {
        SlabPool { allocator: Allocator::new(ALIGNMENT_BYTES), segments: BTreeMap::new(), cap_bytes, segment_bytes_max }
    }

    /// Takes a free place, if there is one.
    pub fn take(&mut self, size_bytes: u64) -> Option<Slab<M>> {
        let block = self.allocator.allocate(POOL, size_bytes, "")?;
        let memory = *self.segments.get(&block.segment)?;
        Some(Slab { block: block.id, memory, offset_bytes: block.offset_bytes })
    }

    /// Creates a segment of about `wanted_bytes`, in whole units of this size. Returns whether the cap allows one.
    ///
    /// # Errors
    /// Returns what `make` reports; nothing has changed in that case.
    pub fn grow(
        &mut self,
        unit_bytes: u64,
        wanted_bytes: u64,
        make: impl FnOnce(u64) -> Result<M, DeviceError>,
    ) -> Result<bool, DeviceError> {
        let room_bytes = self.cap_bytes - self.reserved_bytes();
        if unit_bytes > room_bytes {
            return Ok(false);
        }
        // At least doubling keeps the number of segments small.
        let about_bytes = wanted_bytes.max(self.reserved_bytes()).min(self.segment_bytes_max).min(room_bytes);
        let size_bytes = (about_bytes / unit_bytes).max(1) * unit_bytes;
        let memory = make(size_bytes)?;
        self.segments.insert(self.allocator.add_segment(size_bytes), memory);
        Ok(true)
    }

    /// Takes a free place, from a new segment if there is none; returns `None` if the cap forbids that.
    ///
    /// # Errors
    /// Returns what `make` reports.
    pub fn take_or_grow(
        &mut self,
        size_bytes: u64,
        make: impl FnOnce(u64) -> Result<M, DeviceError>,
    ) -> Result<Option<Slab<M>>, DeviceError> {
        if let Some(place) = self.take(size_bytes) {
            return Ok(Some(place));
        }
        self.grow(size_bytes, size_bytes, make)?;
        Ok(self.take(size_bytes))
    }

    /// Takes back places that no one uses.
    pub fn give_back(&mut self, places: impl IntoIterator<Item = Slab<M>>) {
        for place in places {
            // Every place is the allocator's, and is given back once.
            let freed = self.allocator.free(place.block);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
        self.allocator.share(POOL);
    }

    /// The number of bytes in all segments.
    pub fn reserved_bytes(&self) -> u64 {
        self.allocator.statistics().reserved_bytes
    }

    /// The number of bytes that units have.
    pub fn in_use_bytes(&self) -> u64 {
        self.allocator.statistics().in_use_bytes
    }

    /// The number of free bytes.
    pub fn free_bytes(&self) -> u64 {
        self.allocator.statistics().free_bytes()
    }

    /// The maximum number of bytes.
    pub fn cap_bytes(&self) -> u64 {
        self.cap_bytes
    }

    /// Removes the segments that are entirely free, for the caller to give back to the device.
    pub fn take_unused(&mut self) -> Vec<M> {
        let unused = self.allocator.take_empty_segments();
        unused.iter().filter_map(|segment| self.segments.remove(segment)).collect()
    }

    /// Removes all segments, at the end.
    pub fn take_all(&mut self) -> Vec<M> {
        std::mem::take(&mut self.segments).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_double_within_the_cap_and_go_when_nobody_has_anything_of_them() {
        let mut slab_pool: SlabPool<u32> = SlabPool::new(7 * ALIGNMENT_BYTES + 5, 2 * ALIGNMENT_BYTES);
        let mut sizes = Vec::new();
        let mut take = |slab_pool: &mut SlabPool<u32>| {
            let make = |size_bytes: u64| {
                sizes.push(size_bytes / ALIGNMENT_BYTES);
                Ok(sizes.len() as u32)
            };
            slab_pool.take_or_grow(ALIGNMENT_BYTES, make).unwrap()
        };
        let places: Vec<Slab<u32>> = (0..7).map(|_| take(&mut slab_pool).unwrap()).collect();
        assert_eq!(take(&mut slab_pool), None, "the cap");
        assert_eq!(sizes, [1, 1, 2, 2, 1]);
        assert_eq!((slab_pool.in_use_bytes(), slab_pool.free_bytes()), (7 * ALIGNMENT_BYTES, 0));
        slab_pool.give_back([places[0], places[2], places[3], places[4]]);
        assert_eq!(slab_pool.free_bytes(), 4 * ALIGNMENT_BYTES);
        assert_eq!(slab_pool.take_unused(), [1, 3], "the fourth segment is half in use");
        assert_eq!(slab_pool.reserved_bytes(), 4 * ALIGNMENT_BYTES);
        let refused = DeviceError::Lost { reason: "on purpose".to_string() };
        assert_eq!(slab_pool.grow(ALIGNMENT_BYTES, 0, |_| Err(refused.clone())), Err(refused));
        assert_eq!(slab_pool.reserved_bytes(), 4 * ALIGNMENT_BYTES);
        assert_eq!(slab_pool.take_all(), [2, 4, 5]);
    }
}
