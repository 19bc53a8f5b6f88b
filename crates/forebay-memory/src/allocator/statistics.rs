//! What the allocator can say about itself: figures, a picture of every segment, and who holds the most.

use std::collections::BTreeMap;

use forebay_base::ByteRange;

use super::blocks::{Entry, SHARED, State};
use super::{Allocator, BlockId, PoolId, SegmentId};

/// Figures of an [`Allocator`]. Peaks are since its making or the latest [`Allocator::reset_peaks`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AllocatorStatistics {
    /// Bytes of live blocks, as they were asked for.
    pub requested_bytes: u64,
    /// Bytes of live blocks, as they were rounded up to the alignment.
    pub in_use_bytes: u64,
    /// Bytes of all segments.
    pub reserved_bytes: u64,
    /// The most that `requested_bytes` has been.
    pub requested_peak_bytes: u64,
    /// The most that `in_use_bytes` has been.
    pub in_use_peak_bytes: u64,
    /// The most that `reserved_bytes` has been.
    pub reserved_peak_bytes: u64,
    /// Blocks that are live.
    pub live_block_count: u64,
    /// Blocks that were ever allocated.
    pub allocation_count: u64,
    /// The largest free block of any pool.
    pub largest_free_bytes: u64,
    /// 1 - largest free block / all free bytes; 0 where nothing is free.
    pub fragmentation: f64,
}

impl AllocatorStatistics {
    /// Bytes of the segments that are not in use.
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

/// A segment with its blocks, in ascending order; they cover it without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSnapshot {
    /// The segment.
    pub segment: SegmentId,
    /// Its range of addresses.
    pub size_bytes: u64,
    /// The unit in which its bytes can be mapped elsewhere, if they can.
    pub tile_bytes: Option<u64>,
    /// Its blocks.
    pub blocks: Vec<BlockSnapshot>,
}

/// A range of a segment and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSnapshot {
    /// The bytes of the segment.
    pub range: ByteRange,
    /// What they are.
    pub state: BlockState,
}

/// What a block is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Free.
    Free {
        /// Who may use it; everybody where there is none.
        pool: Option<PoolId>,
    },
    /// Allocated.
    Live {
        /// Its name.
        id: BlockId,
        /// The pool that it goes back to.
        pool: PoolId,
        /// Who asked for it.
        owner: String,
        /// How much was asked for.
        requested_bytes: u64,
    },
    /// Nothing is mapped here: the tiles are in another segment.
    Hole,
}

/// Somebody who holds live blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name given with the allocations.
    pub owner: String,
    /// The sum of their blocks.
    pub size_bytes: u64,
    /// How many they are.
    pub block_count: u64,
}

impl Allocator {
    /// Figures as they are now.
    pub fn statistics(&self) -> AllocatorStatistics {
        let largest = self.pools.iter().map(|pool| pool.free.largest_bytes(&self.blocks)).fold(0, u64::max);
        let free_bytes = self.totals.free_bytes();
        let fragmentation = if free_bytes == 0 { 0.0 } else { 1.0 - largest as f64 / free_bytes as f64 };
        AllocatorStatistics { largest_free_bytes: largest, fragmentation, ..self.totals }
    }

    /// Peaks start again from what is now.
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

    /// Who holds the most live bytes, largest first, by name among equals.
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
