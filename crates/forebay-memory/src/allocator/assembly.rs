//! Assembly: free tiles from anywhere become one contiguous range, by mapping and without a copy.
//!
//! A tile belongs to one segment at a time. Taking it out of a segment leaves a *hole* there: addresses with nothing mapped,
//! which are never handed out and count as no bytes. [`Allocator::dissolve`] fills holes again. Which heap a tile comes from
//! is known to the caller, who maps it.

use std::collections::BTreeSet;

use forebay_base::ByteRange;

use super::blocks::{SHARED, State};
use super::{Allocator, Block, NONE, PoolId, SegmentId, usable};

/// Whole tiles of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TileRange {
    /// The segment.
    pub segment: SegmentId,
    /// Its bytes; start and end are multiples of the size of a tile.
    pub range: ByteRange,
}

/// A block in a new segment that is made of other segments' tiles. The caller makes a reservation for the segment, unmaps the
/// tiles where they are, and maps them there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembly {
    /// The allocated block, at the start of the new segment.
    pub block: Block,
    /// The size of the new segment: that of all tiles.
    pub segment_size_bytes: u64,
    /// The tiles, in the order in which they lie in the new segment, without gaps.
    pub tiles: Vec<TileRange>,
    /// Whether some tiles were free in the pool only: its stream has to pass before they are unmapped.
    pub waits: bool,
    /// Segments that lost their last tile and are gone, in ascending order, for the caller to give back to the device.
    pub emptied: Vec<SegmentId>,
}

/// Tiles of a dissolved segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileMove {
    /// Where they were.
    pub from: TileRange,
    /// Where they are to be mapped, as many. None: no segment has a hole for them, they go back to their heap.
    pub to: Option<TileRange>,
}

/// Whole tiles in a run of free blocks.
struct Piece {
    /// The run's first block.
    first: u32,
    tiles: TileRange,
}

impl Allocator {
    /// A block for `owner` in a new segment of free tiles, if there are enough in tiled segments of this size of tile. Shared
    /// tiles are taken if they suffice, else the pool's too; the longest runs first, so that few mappings are needed.
    ///
    /// For requests that [`Allocator::allocate`] has no block for.
    pub fn assemble(&mut self, pool: PoolId, size_bytes: u64, tile_bytes: u64, owner: &str) -> Option<Assembly> {
        let rounded_bytes = self.rounded(size_bytes)?;
        let whole_bytes = rounded_bytes.checked_next_multiple_of(tile_bytes)?;
        let pool = self.index_of(pool);
        let mut pieces = self.free_tiles(tile_bytes, |state| state == State::Free(SHARED));
        let waits = tile_sum(&pieces) < whole_bytes;
        if waits {
            pieces = self.free_tiles(tile_bytes, |state| usable(state, pool));
        }
        if tile_sum(&pieces) < whole_bytes {
            return None;
        }
        pieces.sort_by_key(|piece| (std::cmp::Reverse(piece.tiles.range.len()), piece.tiles));
        let (mut tiles, mut missing_bytes) = (Vec::new(), whole_bytes);
        for Piece { first, tiles: TileRange { segment, range } } in pieces {
            if missing_bytes == 0 {
                break;
            }
            let range = ByteRange::new(range.start, range.start + range.len().min(missing_bytes));
            missing_bytes -= range.len();
            self.punch(first, range);
            tiles.push(TileRange { segment, range });
        }
        let emptied = self.remove_hollow(&tiles);
        let segment = self.add_tiled_segment(whole_bytes, tile_bytes);
        let first = self.segments.get(&segment)?.first;
        self.carve(first, rounded_bytes);
        let block = self.enliven(first, pool, size_bytes, owner);
        Some(Assembly { block, segment_size_bytes: whole_bytes, tiles, waits, emptied })
    }

    /// The least size of a new tiled segment with which [`Allocator::assemble`] succeeds; 0 where it succeeds without. None
    /// where no size is enough.
    pub fn assembly_growth_bytes(&self, pool: PoolId, size_bytes: u64, tile_bytes: u64) -> Option<u64> {
        let whole_bytes = self.rounded(size_bytes)?.checked_next_multiple_of(tile_bytes)?;
        let pool = self.known(pool).unwrap_or(SHARED);
        Some(whole_bytes.saturating_sub(tile_sum(&self.free_tiles(tile_bytes, |state| usable(state, pool)))))
    }

    /// Takes out a tiled segment that is wholly free and shared; its tiles fill holes of other segments, lowest first. None,
    /// and nothing changes, if it is not such a segment, or not a whole number of tiles.
    pub fn dissolve(&mut self, segment: SegmentId) -> Option<Vec<TileMove>> {
        let tile_bytes = self.segments.get(&segment)?.tile_bytes?;
        if !self.is_empty(segment) || self.segments.get(&segment)?.size_bytes % tile_bytes != 0 {
            return None;
        }
        let chain = self.blocks.chain(self.segments.get(&segment)?.first);
        let free: Vec<ByteRange> =
            chain.filter(|(_, entry)| entry.state != State::Hole).map(|(_, entry)| entry.range()).collect();
        self.remove_segment(segment);
        let mut holes = self.holes(tile_bytes).into_iter().peekable();
        let mut moves = Vec::new();
        for mut range in free {
            while !range.is_empty() {
                let Some(hole) = holes.peek_mut() else {
                    moves.push(TileMove { from: TileRange { segment, range }, to: None });
                    break;
                };
                let (to, rest) = self.fill(*hole, range.len());
                let end = range.start + to.range.len();
                let from = TileRange { segment, range: ByteRange::new(range.start, end) };
                moves.push(TileMove { from, to: Some(to) });
                range.start = end;
                *hole = rest;
                if rest == NONE {
                    holes.next();
                }
            }
        }
        Some(moves)
    }

    /// Whole tiles in the runs of touching blocks of such states, in ascending order.
    fn free_tiles(&self, tile_bytes: u64, fits: impl Fn(State) -> bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (id, segment) in self.segments.iter().filter(|(_, segment)| segment.tile_bytes == Some(tile_bytes)) {
            let mut chain = self.blocks.chain(segment.first).filter(|(_, entry)| fits(entry.state)).peekable();
            while let Some((first, entry)) = chain.next() {
                let mut run = entry.range();
                while let Some((_, next)) = chain.next_if(|(_, next)| next.offset_bytes == run.end) {
                    run.end = next.range().end;
                }
                let end = run.end - run.end % tile_bytes;
                // The next boundary may lie beyond 64 bits, in a segment that ends there.
                let start = run.start.checked_next_multiple_of(tile_bytes).unwrap_or(end);
                if start < end {
                    let tiles = TileRange { segment: *id, range: ByteRange::new(start, end) };
                    pieces.push(Piece { first, tiles });
                }
            }
        }
        pieces
    }

    /// Turns a part of the run of free blocks from `first` on into a hole.
    fn punch(&mut self, first: u32, range: ByteRange) {
        let mut index = first;
        while self.blocks.at(index).range().end <= range.start {
            index = self.blocks.at(index).next;
        }
        let before_bytes = range.start - self.blocks.at(index).offset_bytes;
        if before_bytes > 0 {
            self.carve(index, before_bytes);
            self.list(index);
            index = self.blocks.at(index).next;
        }
        self.carve(index, range.len());
        self.settle(index, State::Hole);
        self.totals.reserved_bytes -= range.len();
    }

    /// Forgets those of the segments that are nothing but a hole: as a reservation each costs the device page tables.
    fn remove_hollow(&mut self, tiles: &[TileRange]) -> Vec<SegmentId> {
        let hollow = |id: &SegmentId| {
            let first = self.segments.get(id).map_or(NONE, |segment| segment.first);
            self.blocks.chain(first).all(|(_, entry)| entry.state == State::Hole)
        };
        let taken_from: BTreeSet<SegmentId> = tiles.iter().map(|tiles| tiles.segment).collect();
        let emptied: Vec<SegmentId> = taken_from.into_iter().filter(hollow).collect();
        for id in &emptied {
            self.remove_segment(*id);
        }
        emptied
    }

    /// Blocks that are holes in segments of this size of tile, in ascending order.
    fn holes(&self, tile_bytes: u64) -> Vec<u32> {
        let tiled = self.segments.values().filter(|segment| segment.tile_bytes == Some(tile_bytes));
        let chains = tiled.flat_map(|segment| self.blocks.chain(segment.first));
        chains.filter(|(_, entry)| entry.state == State::Hole).map(|(index, _)| index).collect()
    }

    /// Makes the hole's first bytes, up to a limit, free and shared. Also says what is left of the hole.
    fn fill(&mut self, hole: u32, size_bytes: u64) -> (TileRange, u32) {
        let entry = self.blocks.at(hole);
        let (segment, range) = (entry.segment, entry.range());
        let filled = ByteRange::new(range.start, range.start + range.len().min(size_bytes));
        let rest = if filled == range { NONE } else { self.blocks.split(hole, filled.len()) };
        self.settle(hole, State::Free(SHARED));
        self.totals.reserve(filled.len());
        (TileRange { segment, range: filled }, rest)
    }
}

fn tile_sum(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.tiles.range.len()).sum()
}
