//! Tracks one stream, one command at a time, and tells whether the next command needs a barrier first.
//!
//! A barrier is placed as late as possible, only before a command that has a hazard with something since the last barrier. No smaller
//! number of barriers orders the same commands: each barrier precedes a command whose hazard began after the previous barrier, so these
//! hazards are disjoint and each needs a separate barrier.

use forebay_base::Region;

use crate::error::SyncError;
use crate::physical::{PhysicalBytes, PhysicalMemory, TileMap};
use crate::ranges::RangeSet;

/// The bytes that one stream has read and written since its last barrier.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    tiles: TileMap,
    read: RangeSet<PhysicalMemory>,
    written: RangeSet<PhysicalMemory>,
}

impl Tracker {
    /// A tracker for a stream that uses memories as `tiles` maps them. Without mapped tiles, use [`Tracker::default`].
    pub fn new(tiles: TileMap) -> Tracker {
        Tracker { tiles, ..Tracker::default() }
    }

    /// The mapping. Change it only while nothing uses the tiles.
    pub fn tiles_mut(&mut self) -> &mut TileMap {
        &mut self.tiles
    }

    /// Adds the next command of the stream and returns whether a barrier is needed before it. If so, the barrier counts as issued.
    ///
    /// # Errors
    /// If a region is not mapped; then nothing is added.
    pub fn submit(&mut self, reads: &[Region], writes: &[Region]) -> Result<bool, SyncError> {
        let reads = self.physical(reads)?;
        let writes = self.physical(writes)?;
        let after_write = |bytes: &PhysicalBytes| self.written.overlaps(bytes.memory, bytes.range);
        let after_read = |bytes: &PhysicalBytes| self.read.overlaps(bytes.memory, bytes.range);
        let hazard =
            reads.iter().any(after_write) || writes.iter().any(|bytes| after_write(bytes) || after_read(bytes));
        if hazard {
            self.barrier();
        }
        reads.iter().for_each(|bytes| self.read.insert(bytes.memory, bytes.range));
        writes.iter().for_each(|bytes| self.written.insert(bytes.memory, bytes.range));
        Ok(hazard)
    }

    /// Records that everything submitted so far is ordered before everything later, because the caller issued a separate barrier or waited
    /// on the host.
    pub fn barrier(&mut self) {
        self.read.clear();
        self.written.clear();
    }

    fn physical(&self, regions: &[Region]) -> Result<Vec<PhysicalBytes>, SyncError> {
        let mut pieces = Vec::with_capacity(regions.len());
        for &region in regions {
            pieces.extend(self.tiles.physical(region)?);
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::{HeapId, MemoryId};

    use super::*;

    fn region(start: u64, size: u64) -> Region {
        Region::new(MemoryId(0), start, size)
    }

    #[test]
    fn readers_of_the_same_bytes_run_together() {
        let mut stream = Tracker::default();
        assert_eq!(stream.submit(&[region(0, 8)], &[region(8, 8)]), Ok(false));
        assert_eq!(stream.submit(&[region(0, 8)], &[region(16, 8)]), Ok(false));
        assert_eq!(stream.submit(&[], &[region(4, 1)]), Ok(true), "write after read");
        assert_eq!(stream.submit(&[], &[region(8, 8)]), Ok(false), "the barrier ordered this write too");
        assert_eq!(stream.submit(&[], &[region(15, 8)]), Ok(true), "write after write");
    }

    #[test]
    fn updating_in_place_is_no_hazard_with_itself() {
        let mut stream = Tracker::default();
        assert_eq!(stream.submit(&[region(0, 8)], &[region(0, 8)]), Ok(false));
        assert_eq!(stream.submit(&[region(0, 8)], &[region(0, 8)]), Ok(true));
    }

    #[test]
    fn aliases_conflict_and_unmapped_bytes_are_refused() {
        let mut tiles = TileMap::default();
        tiles.map(region(0, 64), HeapId(3), 0).unwrap();
        tiles.map(region(128, 64), HeapId(3), 0).unwrap();
        let mut stream = Tracker::new(tiles);
        assert_eq!(stream.submit(&[], &[region(0, 64)]), Ok(false));
        assert!(matches!(stream.submit(&[region(64, 8)], &[]), Err(SyncError::Unmapped { offset_bytes: 64, .. })));
        assert_eq!(stream.submit(&[region(128, 8)], &[]), Ok(true));
    }
}
