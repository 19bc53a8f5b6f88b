//! Assembly: mapping free tiles from anywhere into one contiguous range, without a copy.
//!
//! A tile belongs to one segment at a time. Taking it out of a segment leaves a *hole* there: addresses with nothing mapped, which are
//! never allocated and do not count as bytes. [`Allocator::dissolve`] fills holes again. The caller, which maps the tiles, knows which heap
//! each of them comes from.

use std::collections::BTreeSet;

use forebay_base::ByteRange;

use super::blocks::{SHARED, State};
use super::{Allocator, Block, NONE, PoolId, SegmentId, usable};

/// Whole tiles of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TileRange {
    /// The segment.
    pub segment: SegmentId,
    /// Its bytes; start and end are multiples of the tile size.
    pub range: ByteRange,
}

/// A block in a new segment that is made of tiles from other segments. The caller makes a reservation for the segment, unmaps the tiles
/// from where they are, and maps them there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembly {
    /// The allocated block, at the start of the new segment.
    pub block: Block,
    /// The size of the new segment: the total size of its tiles.
    pub segment_size_bytes: u64,
    /// The tiles, in their order in the new segment, without gaps.
    pub tiles: Vec<TileRange>,
    /// Whether some tiles were free only in the pool: its stream has to pass before they are unmapped.
    pub waits: bool,
    /// Segments that lost their last tile and were removed, in ascending order, for the caller to give back to the device.
    pub emptied: Vec<SegmentId>,
}

/// Tiles of a dissolved segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileMove {
    /// Where they were.
    pub from: TileRange,
    /// Where to map them: a range of the same size. `None` if no segment has a hole for them and they go back to their heap.
    pub to: Option<TileRange>,
}

/// Whole tiles in a run of free blocks.
struct Piece {
    /// The first block of the run.
    first: u32,
    tiles: TileRange,
}

impl Allocator {
    /// Allocates a block for `owner` in a new segment of free tiles, if the segments with this tile size have enough of them. Takes only
    /// shared tiles if they suffice, otherwise those of the pool too; the longest runs first, so that few mappings are needed.
    ///
    /// For requests for which [`Allocator::allocate`] has no block.
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

    /// The smallest size of a new tiled segment with which [`Allocator::assemble`] succeeds; 0 if it succeeds without one. `None` if no
    /// size is enough.
    pub fn assembly_growth_bytes(&self, pool: PoolId, size_bytes: u64, tile_bytes: u64) -> Option<u64> {
        let whole_bytes = self.rounded(size_bytes)?.checked_next_multiple_of(tile_bytes)?;
        let pool = self.known(pool).unwrap_or(SHARED);
        Some(whole_bytes.saturating_sub(tile_sum(&self.free_tiles(tile_bytes, |state| usable(state, pool)))))
    }

    /// Removes a tiled segment that is entirely free and shared; its tiles fill holes of other segments, lowest first. Returns `None` and
    /// changes nothing if it is not such a segment or not a whole number of tiles.
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

    /// The whole tiles in runs of adjacent blocks in accepted states, in ascending order.
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

    /// Turns a part of the run of free blocks that starts with `first` into a hole.
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

    /// Removes the segments that are nothing but a hole: as a reservation, each costs the device page tables.
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

    /// The blocks that are holes in segments with this tile size, in ascending order.
    fn holes(&self, tile_bytes: u64) -> Vec<u32> {
        let tiled = self.segments.values().filter(|segment| segment.tile_bytes == Some(tile_bytes));
        let chains = tiled.flat_map(|segment| self.blocks.chain(segment.first));
        chains.filter(|(_, entry)| entry.state == State::Hole).map(|(index, _)| index).collect()
    }

    /// Makes the first bytes of the hole, up to a limit, free and shared. Also returns what is left of the hole.
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
