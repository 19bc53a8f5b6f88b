//! A naive allocator with the same promises: a list of cells for each segment, searched from the start every time.

use std::collections::BTreeMap;

use forebay_base::ByteRange;
use forebay_memory::allocator::{BlockSnapshot, BlockState, SegmentSnapshot};
use forebay_memory::{Assembly, Block, BlockId, PoolId, SegmentId, Snapshot, TileMove, TileRange};

#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Free(Option<PoolId>),
    Live { name: u64, pool: PoolId, owner: &'static str, requested_bytes: u64 },
    Hole,
}

#[derive(Default)]
pub struct Segment {
    pub tile_bytes: Option<u64>,
    pub size_bytes: u64,
    /// Size and content, in ascending addresses.
    pub cells: Vec<(u64, Cell)>,
}

#[derive(Default)]
pub struct Model {
    pub alignment_bytes: u64,
    pub segments: BTreeMap<u32, Segment>,
    next_segment: u32,
    /// Names of live blocks, as the model and as the allocator call them.
    pub names: BTreeMap<u64, BlockId>,
    next_name: u64,
    /// Peaks of requested, in use and reserved bytes.
    pub peaks: [u64; 3],
}

/// What a request got: the block's name, and where it lies.
pub struct Given {
    pub name: u64,
    pub segment: u32,
    pub range: ByteRange,
}

impl Given {
    pub fn block(&self, id: BlockId) -> Block {
        let (offset_bytes, size_bytes) = (self.range.start, self.range.len());
        Block { id, segment: SegmentId(self.segment), offset_bytes, size_bytes }
    }
}

fn usable(cell: &Cell, pool: PoolId) -> bool {
    matches!(cell, Cell::Free(owner) if owner.is_none() || *owner == Some(pool))
}

impl Segment {
    fn with_ranges(&self) -> impl Iterator<Item = (ByteRange, &Cell)> {
        self.cells.iter().scan(0, |at, (size, cell)| {
            let range = ByteRange::new(*at, *at + size);
            *at += size;
            Some((range, cell))
        })
    }

    /// Maximal ranges of touching cells that fit.
    fn runs(&self, fits: impl Fn(&Cell) -> bool) -> Vec<ByteRange> {
        let mut runs: Vec<ByteRange> = Vec::new();
        for (range, cell) in self.with_ranges().filter(|(_, cell)| fits(cell)) {
            let _ = cell;
            match runs.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => runs.push(range),
            }
        }
        runs
    }

    /// Overwrites a range, then makes touching equal cells one.
    fn write(&mut self, written: ByteRange, new: &Cell) {
        let mut cells: Vec<(u64, Cell)> = Vec::new();
        let mut push = |size: u64, cell: &Cell| match cells.last_mut() {
            _ if size == 0 => {}
            Some((last_size, last)) if last == cell => *last_size += size,
            _ => cells.push((size, cell.clone())),
        };
        for (range, cell) in self.with_ranges() {
            let before = range.end.min(written.start).saturating_sub(range.start);
            let inside = range.intersection(written).map_or(0, ByteRange::len);
            push(before, cell);
            push(inside, new);
            push(range.len() - before - inside, cell);
        }
        self.cells = cells;
    }
}

impl Model {
    pub fn new(alignment_bytes: u64) -> Model {
        Model { alignment_bytes, ..Model::default() }
    }

    pub fn add_segment(&mut self, size_bytes: u64, tile_bytes: Option<u64>) -> SegmentId {
        let size_bytes = size_bytes / self.alignment_bytes * self.alignment_bytes;
        let cells = if size_bytes > 0 { vec![(size_bytes, Cell::Free(None))] } else { Vec::new() };
        self.segments.insert(self.next_segment, Segment { tile_bytes, size_bytes, cells });
        self.next_segment += 1;
        self.note_peaks();
        SegmentId(self.next_segment - 1)
    }

    fn rounded(&self, size_bytes: u64) -> u64 {
        size_bytes.max(1).div_ceil(self.alignment_bytes) * self.alignment_bytes
    }

    /// Where a request may go: the sufficient cells, else the smallest sufficient run. Each is size, segment and offset.
    fn places(&self, pool: PoolId, rounded_bytes: u64) -> Vec<(u64, u32, u64)> {
        let place = |segment: u32, range: ByteRange| (range.len(), segment, range.start);
        let fits = |place: &(u64, u32, u64)| place.0 >= rounded_bytes;
        let cells = self.segments.iter().flat_map(|(id, segment)| {
            segment.with_ranges().filter(|(_, cell)| usable(cell, pool)).map(|(range, _)| place(*id, range))
        });
        let sufficient: Vec<_> = cells.filter(fits).collect();
        if !sufficient.is_empty() {
            return sufficient;
        }
        let runs = self.segments.iter().flat_map(|(id, segment)| {
            segment.runs(|cell| usable(cell, pool)).into_iter().map(|range| place(*id, range))
        });
        runs.filter(fits).min().into_iter().collect()
    }

    /// Whether there are more free cells of about this size than are looked at.
    fn is_crowded(&self, pool: PoolId, rounded_bytes: u64) -> bool {
        let cells = self.segments.values().flat_map(|segment| &segment.cells);
        let about = |size_bytes: u64| size_bytes.abs_diff(rounded_bytes) <= rounded_bytes / 64;
        cells.filter(|(size_bytes, cell)| usable(cell, pool) && about(*size_bytes)).count() > 16
    }

    pub fn growth_bytes(&self, pool: PoolId, size_bytes: u64) -> u64 {
        let rounded_bytes = self.rounded(size_bytes);
        if self.places(pool, rounded_bytes).is_empty() { rounded_bytes } else { 0 }
    }

    /// Gives the request what the allocator gave it, if that keeps the promise.
    pub fn allocate(
        &mut self,
        pool: PoolId,
        requested_bytes: u64,
        owner: &'static str,
        (segment, start): (SegmentId, u64),
    ) -> Option<Given> {
        let rounded_bytes = self.rounded(requested_bytes);
        let places = self.places(pool, rounded_bytes);
        let best_bytes = places.iter().min()?.0;
        let limit_bytes = if self.is_crowded(pool, rounded_bytes) { u64::MAX } else { best_bytes + best_bytes / 64 };
        let promised = |place: &&(u64, u32, u64)| place.0 <= limit_bytes && (place.1, place.2) == (segment.0, start);
        places.iter().find(promised)?;
        let range = ByteRange::new(start, start + rounded_bytes);
        let name = self.next_name;
        self.next_name += 1;
        self.write(segment.0, range, &Cell::Live { name, pool, owner, requested_bytes });
        self.note_peaks();
        Some(Given { name, segment: segment.0, range })
    }

    fn write(&mut self, segment: u32, range: ByteRange, cell: &Cell) {
        self.segments.get_mut(&segment).unwrap().write(range, cell);
    }

    pub fn free(&mut self, name: u64) {
        let found = self.segments.iter().find_map(|(id, segment)| {
            segment.with_ranges().find_map(|(range, cell)| match cell {
                Cell::Live { name: found, pool, .. } if *found == name => Some((*id, range, *pool)),
                _ => None,
            })
        });
        let (segment, range, pool) = found.unwrap();
        self.write(segment, range, &Cell::Free(Some(pool)));
    }

    pub fn share(&mut self, pool: PoolId) {
        for segment in self.segments.values_mut() {
            for run in segment.runs(|cell| *cell == Cell::Free(Some(pool))) {
                segment.write(run, &Cell::Free(None));
            }
        }
    }

    pub fn sum(&self, counted: impl Fn(&Cell) -> bool) -> u64 {
        let cells = self.segments.values().flat_map(|segment| &segment.cells);
        cells.filter(|(_, cell)| counted(cell)).map(|(size, _)| size).sum()
    }

    pub fn requested_bytes(&self) -> u64 {
        let cells = self.segments.values().flat_map(|segment| &segment.cells);
        cells.map(|(_, cell)| if let Cell::Live { requested_bytes, .. } = cell { *requested_bytes } else { 0 }).sum()
    }

    pub fn totals(&self) -> [u64; 3] {
        let in_use_bytes = self.sum(|cell| matches!(cell, Cell::Live { .. }));
        [self.requested_bytes(), in_use_bytes, self.sum(|cell| *cell != Cell::Hole)]
    }

    pub fn note_peaks(&mut self) {
        let totals = self.totals();
        self.peaks = std::array::from_fn(|i| self.peaks[i].max(totals[i]));
    }

    fn is_empty(segment: &Segment) -> bool {
        segment.cells.iter().all(|(_, cell)| matches!(cell, Cell::Free(None) | Cell::Hole))
    }

    pub fn take_empty_segments(&mut self) -> Vec<SegmentId> {
        let empty: Vec<u32> =
            self.segments.iter().filter(|(_, segment)| Self::is_empty(segment)).map(|(id, _)| *id).collect();
        empty.iter().for_each(|id| drop(self.segments.remove(id)));
        empty.into_iter().map(SegmentId).collect()
    }

    /// Tile by tile: which lie wholly in cells that fit, joined where they touch.
    fn free_tiles(&self, tile_bytes: u64, fits: impl Fn(&Cell) -> bool) -> Vec<TileRange> {
        let mut tiles: Vec<TileRange> = Vec::new();
        for (id, segment) in self.segments.iter().filter(|(_, segment)| segment.tile_bytes == Some(tile_bytes)) {
            for start in (0..segment.size_bytes / tile_bytes).map(|tile| tile * tile_bytes) {
                let tile = ByteRange::new(start, start + tile_bytes);
                if segment.with_ranges().any(|(range, cell)| range.overlaps(tile) && !fits(cell)) {
                    continue;
                }
                match tiles.last_mut() {
                    Some(last) if last.segment.0 == *id && last.range.end == start => last.range.end = tile.end,
                    _ => tiles.push(TileRange { segment: SegmentId(*id), range: tile }),
                }
            }
        }
        tiles
    }

    pub fn assembly_growth_bytes(&self, pool: PoolId, size_bytes: u64, tile_bytes: u64) -> u64 {
        let free: u64 = self.free_tiles(tile_bytes, |cell| usable(cell, pool)).iter().map(|t| t.range.len()).sum();
        (self.rounded(size_bytes).div_ceil(tile_bytes) * tile_bytes).saturating_sub(free)
    }

    /// The model's assembly, with the name of its block in place of an id.
    pub fn assemble(
        &mut self,
        pool: PoolId,
        size_bytes: u64,
        tile_bytes: u64,
        owner: &'static str,
    ) -> Option<(Given, Assembly)> {
        let segment_size_bytes = self.rounded(size_bytes).div_ceil(tile_bytes) * tile_bytes;
        let sum = |tiles: &[TileRange]| tiles.iter().map(|tiles| tiles.range.len()).sum::<u64>();
        let mut free = self.free_tiles(tile_bytes, |cell| *cell == Cell::Free(None));
        let waits = sum(&free) < segment_size_bytes;
        if waits {
            free = self.free_tiles(tile_bytes, |cell| usable(cell, pool));
        }
        if sum(&free) < segment_size_bytes {
            return None;
        }
        free.sort_by_key(|tiles| (u64::MAX - tiles.range.len(), *tiles));
        let mut tiles: Vec<TileRange> = Vec::new();
        for mut taken in free {
            let length = taken.range.len().min(segment_size_bytes - sum(&tiles));
            taken.range.end = taken.range.start + length;
            if length > 0 {
                self.write(taken.segment.0, taken.range, &Cell::Hole);
                tiles.push(taken);
            }
        }
        let hollow =
            |segment: &Segment| segment.size_bytes > 0 && segment.cells.iter().all(|(_, cell)| *cell == Cell::Hole);
        let emptied: Vec<SegmentId> =
            self.segments.iter().filter(|(_, segment)| hollow(segment)).map(|(id, _)| SegmentId(*id)).collect();
        self.segments.retain(|_, segment| !hollow(segment));
        let segment = self.add_segment(segment_size_bytes, Some(tile_bytes)).0;
        let (name, range) = (self.next_name, ByteRange::new(0, self.rounded(size_bytes)));
        self.next_name += 1;
        self.write(segment, range, &Cell::Live { name, pool, owner, requested_bytes: size_bytes });
        self.note_peaks();
        let given = Given { name, segment, range };
        let block = given.block(BlockId(0));
        Some((given, Assembly { block, segment_size_bytes, tiles, waits, emptied }))
    }

    /// Where each tile of a dissolved segment goes, a tile at a time.
    pub fn dissolve(&mut self, id: SegmentId) -> Option<Vec<TileMove>> {
        let segment = self.segments.get(&id.0)?;
        let tile_bytes = segment.tile_bytes?;
        if !Self::is_empty(segment) || segment.size_bytes % tile_bytes != 0 {
            return None;
        }
        let from = segment.runs(|cell| *cell == Cell::Free(None));
        self.segments.remove(&id.0);
        let tile_of = |range: ByteRange| {
            (range.start..range.end).step_by(tile_bytes as usize).map(move |at| ByteRange::new(at, at + tile_bytes))
        };
        let holes: Vec<TileRange> = self
            .segments
            .iter()
            .filter(|(_, segment)| segment.tile_bytes == Some(tile_bytes))
            .flat_map(|(id, segment)| {
                let holes = segment.runs(|cell| *cell == Cell::Hole);
                holes.into_iter().flat_map(tile_of).map(|range| TileRange { segment: SegmentId(*id), range })
            })
            .collect();
        let mut holes = holes.into_iter();
        let mut moves = Vec::new();
        for range in from.into_iter().flat_map(tile_of) {
            let to = holes.next();
            if let Some(to) = to {
                self.write(to.segment.0, to.range, &Cell::Free(None));
            }
            moves.push(TileMove { from: TileRange { segment: id, range }, to });
        }
        Some(moves)
    }

    pub fn snapshot(&self) -> Snapshot {
        let block = |(range, cell): (ByteRange, &Cell)| BlockSnapshot {
            range,
            state: match cell {
                Cell::Free(pool) => BlockState::Free { pool: *pool },
                Cell::Hole => BlockState::Hole,
                Cell::Live { name, pool, owner, requested_bytes } => BlockState::Live {
                    id: self.names[name],
                    pool: *pool,
                    owner: (*owner).to_owned(),
                    requested_bytes: *requested_bytes,
                },
            },
        };
        let segment = |(id, segment): (&u32, &Segment)| SegmentSnapshot {
            segment: SegmentId(*id),
            size_bytes: segment.size_bytes,
            tile_bytes: segment.tile_bytes,
            blocks: segment.with_ranges().map(block).collect(),
        };
        Snapshot { segments: self.segments.iter().map(segment).collect() }
    }
}
