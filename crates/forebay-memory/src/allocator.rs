//! The allocator for eager use: best fit with coalescing over segments that the caller obtains from a device. If many free blocks have
//! about the same size, it takes the best of a few of them.
//!
//! It decides only on offsets: the caller creates and destroys segments and handles streams and events.
//!
//! A *pool* belongs to a stream. The stream can reuse at once what it frees, because its commands come in order; other streams cannot until
//! the stream has passed. A freed block therefore goes to its own pool first, and [`Allocator::share`] moves it to the shared pool, from
//! which all streams allocate. Adjacent free blocks of one pool are merged.
//!
//! If no single block is large enough, a run of adjacent blocks that the pool can use is taken. If no such run is large enough, free tiles
//! from anywhere can be mapped into one range ([`Allocator::assemble`]).

use std::collections::BTreeMap;
use std::fmt;

mod assembly;
mod blocks;
mod free_blocks;
mod statistics;

pub use assembly::{Assembly, TileMove, TileRange};
pub use statistics::{AllocatorStatistics, BlockSnapshot, BlockState, Holder, SegmentSnapshot, Snapshot};

use blocks::{Blocks, Entry, NONE, PoolIndex, SHARED, State};
use free_blocks::FreeBlocks;

/// Identifies a segment: a contiguous range of addresses that the caller obtained from the device. Never reused for another segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {}", self.0)
    }
}

/// Identifies an allocated block, from [`Allocator::allocate`] to [`Allocator::free`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u64);

/// The low half is the index of the block, the high half its generation.
impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}.{}", self.0 & u64::from(u32::MAX), self.0 >> 32)
    }
}

/// Identifies the pool that a stream allocates from and frees to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u32);

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool {}", self.0)
    }
}

/// An allocated range of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The id with which to free it.
    pub id: BlockId,
    /// The segment that contains it.
    pub segment: SegmentId,
    /// The offset of its first byte, a multiple of the alignment.
    pub offset_bytes: u64,
    /// The requested size, rounded up to the alignment, and at least one alignment unit.
    pub size_bytes: u64,
}

/// The reason why a block could not be freed. The allocator is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocatorError {
    /// The block has already been freed.
    Freed {
        /// The block.
        block: BlockId,
    },
    /// This allocator never allocated the block.
    Unknown {
        /// The block.
        block: BlockId,
    },
}

impl fmt::Display for AllocatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocatorError::Freed { block } => {
                write!(f, "{block} was already freed; each block must be freed once, by its owner")
            }
            AllocatorError::Unknown { block } => {
                write!(f, "{block} was not allocated by this allocator; free it where it was allocated")
            }
        }
    }
}

impl std::error::Error for AllocatorError {}

/// Most programs have fewer streams than this.
const RECENT_POOLS: usize = 16;

/// Decides which bytes of which segment an allocation gets. See the [module](self).
pub struct Allocator {
    alignment_bytes: u64,
    segments: BTreeMap<SegmentId, Segment>,
    next_segment: u32,
    blocks: Blocks,
    /// The shared pool, then the others in order of first use, so that a block finds its pool without a search.
    pools: Vec<Pool>,
    pool_indices: BTreeMap<PoolId, PoolIndex>,
    /// The pools allocated from most recently, each at the index given by the low bits of its id, so that the map is rarely consulted.
    recent_pools: [Option<(PoolId, PoolIndex)>; RECENT_POOLS],
    totals: AllocatorStatistics,
}

/// The free blocks that only one stream can use, or those that all streams can use.
struct Pool {
    /// Its id; never used for the shared pool.
    id: PoolId,
    free: FreeBlocks,
}

/// Adjacent blocks that one request can use, ordered so that the best comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    size_bytes: u64,
    segment: SegmentId,
    offset_bytes: u64,
    /// Its first block.
    first: u32,
}

struct Segment {
    size_bytes: u64,
    /// The block at offset 0. It never changes, because blocks absorb the blocks after them, never those before. [`NONE`] if the segment is
    /// empty.
    first: u32,
    /// The unit in which its bytes can be mapped elsewhere, if at all.
    tile_bytes: Option<u64>,
}

impl Allocator {
    /// Creates an allocator without segments. The offsets and sizes of blocks are multiples of the alignment (rounded up to a power of two,
    /// which is how devices state it).
    pub fn new(alignment_bytes: u64) -> Allocator {
        Allocator {
            alignment_bytes: alignment_bytes.checked_next_power_of_two().unwrap_or(1 << 63),
            segments: BTreeMap::new(),
            next_segment: 0,
            blocks: Blocks::default(),
            pools: vec![Pool { id: PoolId(u32::MAX), free: FreeBlocks::new() }],
            pool_indices: BTreeMap::new(),
            recent_pools: [None; RECENT_POOLS],
            totals: AllocatorStatistics::default(),
        }
    }

    /// Adds a segment: one free block in the shared pool.
    ///
    /// Bytes beyond a multiple of the alignment are ignored, as are those beyond 2^64 in all segments together.
    pub fn add_segment(&mut self, size_bytes: u64) -> SegmentId {
        self.insert_segment(size_bytes, None)
    }

    /// Adds a segment whose tiles can be mapped elsewhere, see [`Allocator::assemble`]. If the tile size is not a multiple of the
    /// alignment, the segment is a plain one.
    pub fn add_tiled_segment(&mut self, size_bytes: u64, tile_bytes: u64) -> SegmentId {
        let usable = tile_bytes > 0 && tile_bytes.is_multiple_of(self.alignment_bytes);
        self.insert_segment(size_bytes, usable.then_some(tile_bytes))
    }

    fn insert_segment(&mut self, size_bytes: u64, tile_bytes: Option<u64>) -> SegmentId {
        let size_bytes = size_bytes.min(u64::MAX - self.totals.reserved_bytes) & !(self.alignment_bytes - 1);
        while self.segments.contains_key(&SegmentId(self.next_segment)) {
            self.next_segment = self.next_segment.wrapping_add(1);
        }
        let id = SegmentId(self.next_segment);
        self.next_segment = self.next_segment.wrapping_add(1);
        let mut first = NONE;
        if size_bytes > 0 {
            first = self.blocks.add(id, 0, size_bytes, State::Free(SHARED));
            self.list(first);
        }
        self.segments.insert(id, Segment { size_bytes, first, tile_bytes });
        self.totals.reserve(size_bytes);
        id
    }

    /// Allocates a block for `owner` at the start of the smallest sufficient free block of the pool or the shared pool; among equals, it
    /// prefers the pool's own and the latest. If the sizes of more than 16 free blocks of a pool share their first seven bits with the
    /// request, only the latest 16 of them are considered before larger ones. If no block is large enough, it takes the smallest sufficient
    /// run of adjacent blocks of both pools, the lowest among equals. Returns `None` if nothing fits.
    ///
    /// A request for 0 bytes gets one alignment unit.
    pub fn allocate(&mut self, pool: PoolId, size_bytes: u64, owner: &str) -> Option<Block> {
        let rounded_bytes = self.rounded(size_bytes)?;
        let pool = self.index_of(pool);
        let first = self.find(pool, rounded_bytes)?;
        self.carve(first, rounded_bytes);
        Some(self.enliven(first, pool, size_bytes, owner))
    }

    /// The size of a block for this request; `None` if it does not fit 64 bits.
    fn rounded(&self, size_bytes: u64) -> Option<u64> {
        size_bytes.max(1).checked_next_multiple_of(self.alignment_bytes)
    }

    fn pool(&self, index: PoolIndex) -> &Pool {
        &self.pools[index.0 as usize]
    }

    /// The index of the pool, if it exists yet.
    fn known(&self, id: PoolId) -> Option<PoolIndex> {
        self.pool_indices.get(&id).copied()
    }

    /// The index of the pool, which is created if it does not exist yet.
    fn index_of(&mut self, id: PoolId) -> PoolIndex {
        let recent = id.0 as usize % RECENT_POOLS;
        if let Some((recent, index)) = self.recent_pools[recent]
            && recent == id
        {
            return index;
        }
        let index = self.known(id).unwrap_or_else(|| {
            let index = PoolIndex(self.pools.len() as u32);
            self.pools.push(Pool { id, free: FreeBlocks::new() });
            self.pool_indices.insert(id, index);
            index
        });
        self.recent_pools[recent] = Some((id, index));
        index
    }

    /// The first of the blocks that the request is cut from: a single block or a run of adjacent ones.
    fn find(&self, pool: PoolIndex, rounded_bytes: u64) -> Option<u32> {
        let any_fit = |pool| self.pool(pool).free.any_fit(&self.blocks, rounded_bytes);
        let single = self.good_fit(pool, rounded_bytes).or_else(|| [pool, SHARED].into_iter().find_map(any_fit));
        single.or_else(|| self.best_run(pool, rounded_bytes))
    }

    /// The better fit of the pool and the shared pool; among equals, the pool's own.
    fn good_fit(&self, pool: PoolIndex, rounded_bytes: u64) -> Option<u32> {
        let own = self.pool(pool).free.good_fit(&self.blocks, rounded_bytes, u64::MAX);
        let own_bytes = own.map_or(u64::MAX, |own| own.size_bytes);
        if own_bytes == rounded_bytes {
            return own.map(|own| own.block);
        }
        let shared = self.pool(SHARED).free.good_fit(&self.blocks, rounded_bytes, own_bytes);
        shared.filter(|shared| shared.size_bytes < own_bytes).or(own).map(|fit| fit.block)
    }

    /// The first block of the smallest sufficient run of blocks of the pool and the shared pool. Adjacent blocks of one pool are merged, so
    /// blocks of the pool and shared ones alternate in a run, and it is followed only from the first one of the pool.
    fn best_run(&self, pool: PoolIndex, rounded_bytes: u64) -> Option<u32> {
        let own = &self.pool(pool).free;
        if pool == SHARED || own.bytes() + self.pool(SHARED).free.bytes() < rounded_bytes {
            return None;
        }
        let joins = |index: u32| index != NONE && usable(self.blocks.at(index).state, pool);
        let previous = |index: u32| self.blocks.at(index).previous;
        let is_first = |block: &u32| !joins(previous(*block)) || !joins(previous(previous(*block)));
        let runs = own.iter(&self.blocks).filter(is_first);
        let runs = runs.map(|block| self.run_around(block, |state| usable(state, pool)));
        runs.filter(|run| run.size_bytes >= rounded_bytes).min().map(|run| run.first)
    }

    /// The run of adjacent blocks in accepted states that contains the block.
    fn run_around(&self, block: u32, fits: impl Fn(State) -> bool) -> Run {
        let joins = |index: u32| index != NONE && fits(self.blocks.at(index).state);
        let mut first = block;
        while joins(self.blocks.at(first).previous) {
            first = self.blocks.at(first).previous;
        }
        let run = self.blocks.chain(first).take_while(|(_, entry)| fits(entry.state));
        let size_bytes = run.map(|(_, entry)| entry.size_bytes).sum();
        let Entry { segment, offset_bytes, .. } = *self.blocks.at(first);
        Run { size_bytes, segment, offset_bytes, first }
    }

    /// Makes the free block `first` exactly this large and takes it off its list. Surplus bytes go back to the list; missing bytes come
    /// from the free blocks after it, which the caller has found to exist.
    fn carve(&mut self, first: u32, size_bytes: u64) {
        self.unlist(first);
        while self.blocks.at(first).size_bytes < size_bytes {
            let next = self.blocks.at(first).next;
            self.unlist(next);
            // The rest of the last block stays in the pool of that block.
            self.blocks.at_mut(first).state = self.blocks.at(next).state;
            self.blocks.absorb_next(first);
        }
        if self.blocks.at(first).size_bytes > size_bytes {
            let rest = self.blocks.split(first, size_bytes);
            self.list(rest);
        }
    }

    /// Turns a block that is on no list into an allocated one.
    fn enliven(&mut self, index: u32, pool: PoolIndex, requested_bytes: u64, owner: &str) -> Block {
        let entry = self.blocks.at_mut(index);
        entry.state = State::Live(pool);
        entry.generation = entry.generation.wrapping_add(1);
        let Entry { segment, offset_bytes, size_bytes, .. } = *entry;
        let label = self.blocks.label_mut(index);
        label.requested_bytes = requested_bytes;
        label.owner.clear();
        label.owner.push_str(owner);
        self.totals.allocate(requested_bytes, size_bytes);
        Block { id: self.blocks.id(index), segment, offset_bytes, size_bytes }
    }

    /// Returns a block to the pool that it was allocated for and merges it with free neighbors of that pool.
    ///
    /// # Errors
    /// If the block was freed before or never allocated.
    pub fn free(&mut self, block: BlockId) -> Result<(), AllocatorError> {
        let (index, entry) = self.blocks.find(block).ok_or(AllocatorError::Unknown { block })?;
        let generation = (block.0 >> 32) as u32;
        match entry.state {
            State::Live(pool) if entry.generation == generation => {
                self.totals.free(self.blocks.label(index).requested_bytes, entry.size_bytes);
                self.settle(index, State::Free(pool));
                Ok(())
            }
            _ if (1..=entry.generation).contains(&generation) => Err(AllocatorError::Freed { block }),
            _ => Err(AllocatorError::Unknown { block }),
        }
    }

    /// Moves the free blocks of the pool to the shared pool, because its stream has passed.
    pub fn share(&mut self, pool: PoolId) {
        let Some(pool) = self.known(pool) else { return };
        for block in self.pools[pool.0 as usize].free.drain(&self.blocks) {
            self.settle(block, State::Free(SHARED));
        }
    }

    /// The free bytes that only this pool can use.
    pub fn free_bytes(&self, pool: PoolId) -> u64 {
        self.known(pool).map_or(0, |pool| self.pool(pool).free.bytes())
    }

    /// The smallest size of a new segment with which the request succeeds; 0 if it succeeds without one. `None` if no size is enough.
    pub fn growth_bytes(&self, pool: PoolId, size_bytes: u64) -> Option<u64> {
        let rounded_bytes = self.rounded(size_bytes)?;
        let pool = self.known(pool).unwrap_or(SHARED);
        Some(if self.find(pool, rounded_bytes).is_some() { 0 } else { rounded_bytes })
    }

    /// Removes the segments that are entirely free and shared and returns them, so that the caller can give them back to the device. Tiles
    /// that were mapped elsewhere are not included.
    pub fn take_empty_segments(&mut self) -> Vec<SegmentId> {
        let taken: Vec<SegmentId> = self.segments.keys().copied().filter(|id| self.is_empty(*id)).collect();
        for id in &taken {
            self.remove_segment(*id);
        }
        taken
    }

    /// Whether all of the segment's bytes are free and shared.
    fn is_empty(&self, id: SegmentId) -> bool {
        let first = self.segments.get(&id).map_or(NONE, |segment| segment.first);
        self.blocks.chain(first).all(|(_, entry)| matches!(entry.state, State::Free(SHARED) | State::Hole))
    }

    /// Forgets a segment without live blocks.
    fn remove_segment(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.remove(&id) else { return };
        let indices: Vec<u32> = self.blocks.chain(segment.first).map(|(index, _)| index).collect();
        for index in indices {
            if self.blocks.at(index).state != State::Hole {
                self.unlist(index);
                self.totals.reserved_bytes -= self.blocks.at(index).size_bytes;
            }
            self.blocks.vacate(index);
        }
    }

    /// Sets the state of a block that is on no list, merges it with neighbors in the same state and puts it on the list for that state.
    fn settle(&mut self, index: u32, state: State) {
        self.blocks.at_mut(index).state = state;
        let Entry { previous, next, .. } = *self.blocks.at(index);
        let joins = |blocks: &Blocks, index: u32| index != NONE && blocks.at(index).state == state;
        if joins(&self.blocks, next) {
            self.unlist(next);
            self.blocks.absorb_next(index);
        }
        if joins(&self.blocks, previous) {
            self.unlist(previous);
            self.blocks.absorb_next(previous);
            self.list(previous);
        } else {
            self.list(index);
        }
    }

    /// Puts a free block on its pool's list.
    fn list(&mut self, index: u32) {
        if let State::Free(pool) = self.blocks.at(index).state {
            self.pools[pool.0 as usize].free.insert(&mut self.blocks, index);
        }
    }

    /// Takes a free block off its pool's list.
    fn unlist(&mut self, index: u32) {
        if let State::Free(pool) = self.blocks.at(index).state {
            self.pools[pool.0 as usize].free.remove(&mut self.blocks, index);
        }
    }
}

/// Whether the pool can use a block in this state.
fn usable(state: State, pool: PoolIndex) -> bool {
    matches!(state, State::Free(owner) if owner == SHARED || owner == pool)
}
