//! What the allocator reports about itself: statistics, a snapshot of every segment, and who holds the most.

use std::collections::BTreeMap;

use forebay_base::ByteRange;

use super::blocks::{Entry, SHARED, State};
use super::{Allocator, BlockId, PoolId, SegmentId};

/// Statistics of an [`Allocator`]. Peaks cover the time since its creation or the latest [`Allocator::reset_peaks`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AllocatorStatistics {
    /// The bytes of live blocks, as requested.
    pub requested_bytes: u64,
    /// The bytes of live blocks, rounded up to the alignment.
    pub in_use_bytes: u64,
    /// The bytes of all segments.
    pub reserved_bytes: u64,
    /// The peak of `requested_bytes`.
    pub requested_peak_bytes: u64,
    /// The peak of `in_use_bytes`.
    pub in_use_peak_bytes: u64,
    /// The peak of `reserved_bytes`.
    pub reserved_peak_bytes: u64,
    /// The number of live blocks.
    pub live_block_count: u64,
    /// The number of blocks that were ever allocated.
    pub allocation_count: u64,
    /// The largest free block of any pool.
    pub largest_free_bytes: u64,
    /// 1 - largest free block / all free bytes; 0 if nothing is free.
    pub fragmentation: f64,
}

impl AllocatorStatistics {
    /// The bytes of the segments that are not in use.
    pub fn free_bytes(&self) -> u64 {
        self.reserved_bytes - self.in_use_bytes
    }

    pub(super) fn reserve(&mut self, size_bytes: u64) {
        self.reserved_bytes += size_bytes;
        self.reserved_peak_bytes = self.reserved_peak_bytes.max(self.reserved_bytes);
    }

    pub(super) fn allocate(&mut self, requested_bytes: u64, rounded_bytes: u64) {
        self.requested_bytes += requested_bytes;
        self.in_use_bytes += rounded_bytes;
        self.requested_peak_bytes = self.requested_peak_bytes.max(self.requested_bytes);
        self.in_use_peak_bytes = self.in_use_peak_bytes.max(self.in_use_bytes);
        self.live_block_count += 1;
        self.allocation_count += 1;
    }

    pub(super) fn free(&mut self, requested_bytes: u64, rounded_bytes: u64) {
        self.requested_bytes -= requested_bytes;
        self.in_use_bytes -= rounded_bytes;
        self.live_block_count -= 1;
    }
}

/// Every segment with its blocks, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The segments.
    pub segments: Vec<SegmentSnapshot>,
}

/// A segment with its blocks, which are in ascending order and cover it without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSnapshot {
    /// The segment.
    pub segment: SegmentId,
    /// The size of its address range.
    pub size_bytes: u64,
    /// The unit in which its bytes can be mapped elsewhere, if at all.
    pub tile_bytes: Option<u64>,
    /// Its blocks.
    pub blocks: Vec<BlockSnapshot>,
}

/// A range of a segment and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSnapshot {
    /// The range within the segment.
    pub range: ByteRange,
    /// The state of the range.
    pub state: BlockState,
}

/// The state of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Free.
    Free {
        /// The only pool that can use it; `None` if all pools can.
        pool: Option<PoolId>,
    },
    /// Allocated.
    Live {
        /// Its id.
        id: BlockId,
        /// The pool that it returns to.
        pool: PoolId,
        /// Who requested it.
        owner: String,
        /// The requested size.
        requested_bytes: u64,
    },
    /// Nothing is mapped here: the tiles are in another segment.
    Hole,
}

/// An owner of live blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name given with the allocations.
    pub owner: String,
    /// The total size of its blocks.
    pub size_bytes: u64,
    /// The number of its blocks.
    pub block_count: u64,
}

impl Allocator {
    /// Returns the current statistics.
    pub fn statistics(&self) -> AllocatorStatistics {
        let largest = self.pools.iter().map(|pool| pool.free.largest_bytes(&self.blocks)).fold(0, u64::max);
        let free_bytes = self.totals.free_bytes();
        let fragmentation = if free_bytes == 0 { 0.0 } else { 1.0 - largest as f64 / free_bytes as f64 };
        AllocatorStatistics { largest_free_bytes: largest, fragmentation, ..self.totals }
    }

    /// Resets the peaks to the current values.
    pub fn reset_peaks(&mut self) {
        self.totals.requested_peak_bytes = self.totals.requested_bytes;
        self.totals.in_use_peak_bytes = self.totals.in_use_bytes;
        self.totals.reserved_peak_bytes = self.totals.reserved_bytes;
    }

    /// Every segment with its blocks.
    pub fn snapshot(&self) -> Snapshot {
        let segments = self.segments.iter().map(|(id, segment)| SegmentSnapshot {
            segment: *id,
            size_bytes: segment.size_bytes,
            tile_bytes: segment.tile_bytes,
            blocks: self.blocks.chain(segment.first).map(|(index, entry)| self.block_snapshot(index, entry)).collect(),
        });
        Snapshot { segments: segments.collect() }
    }

    fn block_snapshot(&self, index: u32, entry: &Entry) -> BlockSnapshot {
        let state = match entry.state {
            State::Free(pool) => BlockState::Free { pool: (pool != SHARED).then(|| self.pool(pool).id) },
            State::Live(pool) => BlockState::Live {
                id: self.blocks.id(index),
                pool: self.pool(pool).id,
                owner: self.blocks.label(index).owner.to_owned(),
                requested_bytes: self.blocks.label(index).requested_bytes,
            },
            State::Hole | State::Vacant => BlockState::Hole,
        };
        BlockSnapshot { range: entry.range(), state }
    }

    /// Returns the owners that hold the most live bytes: largest first, by name among equals.
    pub fn largest_holders(&self, count: usize) -> Vec<Holder> {
        let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (entry, label) in self.blocks.live() {
            let sum = sums.entry(&label.owner).or_default();
            *sum = (sum.0 + entry.size_bytes, sum.1 + 1);
        }
        let holder =
            |(owner, (size_bytes, block_count)): (&str, _)| Holder { owner: owner.to_owned(), size_bytes, block_count };
        let mut holders: Vec<Holder> = sums.into_iter().map(holder).collect();
        holders.sort_by(|a, b| b.size_bytes.cmp(&a.size_bytes).then_with(|| a.owner.cmp(&b.owner)));
        holders.truncate(count);
        holders
    }
}
