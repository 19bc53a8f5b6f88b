//! A million random operations on the allocator and on a naive model: the same answers, the same blocks, the same figures.
//!
//! The model keeps the promises by the plainest means, so what equals it has no overlaps, no free neighbors of one pool that
//! are two blocks, and a fit as good as promised. What both could have wrong in the same way is looked at by itself.

mod model;

use std::collections::{BTreeMap, BTreeSet};

use forebay_memory::allocator::BlockState;
use forebay_memory::{Allocator, AllocatorError, Holder, PoolId, SegmentId, TileMove, TileRange};
use forebay_testing::Random;
use model::{Cell, Model};

const OWNERS: [&str; 4] = ["weights", "activations", "scratch", "gradients"];
const POOLS: u32 = 3;
const TILE_BYTES: u64 = 64;

/// The allocator, the model, and what they are told.
struct Pair {
    seed: u64,
    random: Random,
    allocator: Allocator,
    model: Model,
}

impl Pair {
    fn new(seed: u64, alignment_bytes: u64) -> Pair {
        Pair {
            seed,
            random: Random::new(seed),
            allocator: Allocator::new(alignment_bytes),
            model: Model::new(alignment_bytes),
        }
    }

    /// Mostly small, sometimes more than there is.
    fn size(&mut self) -> u64 {
        let bits = self.random.below(10);
        self.random.below(1 << bits)
    }

    fn pool(&mut self) -> PoolId {
        PoolId(self.random.below(u64::from(POOLS)) as u32)
    }

    /// The segments fill up for a while, then they drain.
    fn step(&mut self, fills: bool) {
        let allocations = if fills { 58 } else { 38 };
        match self.random.below(100) {
            draw if draw < allocations => self.allocate(),
            0..90 => self.free(),
            90..94 => {
                let pool = self.pool();
                self.allocator.share(pool);
                self.model.share(pool);
            }
            94..96 => self.assemble(),
            96 => self.dissolve(),
            97 => self.add_segment(),
            98 => self.free_nonsense(),
            _ => {
                if self.random.below(8) == 0 {
                    assert_eq!(
                        self.allocator.take_empty_segments(),
                        self.model.take_empty_segments(),
                        "seed {}",
                        self.seed
                    );
                } else {
                    self.allocator.reset_peaks();
                    self.model.peaks = self.model.totals();
                }
            }
        }
    }

    fn add_segment(&mut self) {
        if self.model.segments.len() >= 6 {
            return;
        }
        let size_bytes = self.random.below(700);
        let ids = if self.random.below(3) == 0 {
            (self.allocator.add_segment(size_bytes), self.model.add_segment(size_bytes, None))
        } else {
            let tiled = self.allocator.add_tiled_segment(size_bytes, TILE_BYTES);
            (tiled, self.model.add_segment(size_bytes, Some(TILE_BYTES)))
        };
        assert_eq!(ids.0, ids.1, "seed {}", self.seed);
    }

    fn allocate(&mut self) {
        let (pool, size_bytes) = (self.pool(), self.size());
        let owner = OWNERS[self.random.below(4) as usize];
        let growth_bytes = self.allocator.growth_bytes(pool, size_bytes);
        assert_eq!(growth_bytes, Some(self.model.growth_bytes(pool, size_bytes)), "seed {}", self.seed);
        let block = self.allocator.allocate(pool, size_bytes, owner);
        assert_eq!(block.is_some(), growth_bytes == Some(0), "seed {}", self.seed);
        let Some(block) = block else { return };
        let given = self.model.allocate(pool, size_bytes, owner, (block.segment, block.offset_bytes));
        assert_eq!(given.as_ref().map(|given| given.block(block.id)), Some(block), "seed {}", self.seed);
        self.model.names.extend(given.map(|given| (given.name, block.id)));
    }

    fn free(&mut self) {
        let count = self.model.names.len() as u64;
        if count == 0 {
            return;
        }
        let nth = self.random.below(count) as usize;
        let (name, id) = self.model.names.iter().nth(nth).map(|(name, id)| (*name, *id)).unwrap();
        assert_eq!(self.allocator.free(id), Ok(()), "seed {}", self.seed);
        self.model.free(name);
        self.model.names.remove(&name);
        if self.random.below(16) == 0 {
            assert_eq!(self.allocator.free(id), Err(AllocatorError::Freed { block: id }), "seed {}", self.seed);
        }
    }

    /// An id that is not live is refused, whatever it is.
    fn free_nonsense(&mut self) {
        let id = forebay_memory::BlockId(self.random.below(4) << 32 | self.random.below(64));
        if !self.model.names.values().any(|live| *live == id) {
            assert!(self.allocator.free(id).is_err(), "seed {}: {id}", self.seed);
        }
    }

    fn assemble(&mut self) {
        let (pool, size_bytes) = (self.pool(), self.size());
        let growth_bytes = self.allocator.assembly_growth_bytes(pool, size_bytes, TILE_BYTES);
        let expected = self.model.assembly_growth_bytes(pool, size_bytes, TILE_BYTES);
        assert_eq!(growth_bytes, Some(expected), "seed {}", self.seed);
        let assembly = self.allocator.assemble(pool, size_bytes, TILE_BYTES, "assembled");
        let expected = self.model.assemble(pool, size_bytes, TILE_BYTES, "assembled");
        assert_eq!(assembly.is_some(), growth_bytes == Some(0), "seed {}", self.seed);
        let (Some(assembly), Some((given, mut expected))) = (&assembly, expected) else {
            assert!(assembly.is_none(), "seed {}", self.seed);
            return;
        };
        expected.block.id = assembly.block.id;
        assert_eq!(*assembly, expected, "seed {}", self.seed);
        self.model.names.insert(given.name, assembly.block.id);
    }

    fn dissolve(&mut self) {
        let segments: Vec<u32> = self.model.segments.keys().copied().collect();
        let nth = self.random.below(segments.len() as u64 + 1) as usize;
        let segment = SegmentId(segments.get(nth).copied().unwrap_or(u32::MAX));
        let moves = self.allocator.dissolve(segment).map(|moves| moves.iter().flat_map(tiles_of).collect::<Vec<_>>());
        assert_eq!(moves, self.model.dissolve(segment), "seed {}", self.seed);
    }

    /// Everything that can be seen from outside.
    fn compare(&self) {
        let seed = self.seed;
        let snapshot = self.allocator.snapshot();
        assert_eq!(snapshot, self.model.snapshot(), "seed {seed}");
        let statistics = self.allocator.statistics();
        let figures = [statistics.requested_bytes, statistics.in_use_bytes, statistics.reserved_bytes];
        assert_eq!(figures, self.model.totals(), "seed {seed}");
        let peaks = [statistics.requested_peak_bytes, statistics.in_use_peak_bytes, statistics.reserved_peak_bytes];
        assert_eq!(peaks, self.model.peaks, "seed {seed}");
        assert_eq!(statistics.live_block_count, self.model.names.len() as u64, "seed {seed}");
        let (mut free_bytes, mut largest_bytes) = (0, 0);
        let mut holders: BTreeMap<String, Holder> = BTreeMap::new();
        for block in snapshot.segments.iter().flat_map(|segment| &segment.blocks) {
            let size_bytes = block.range.len();
            assert_eq!(block.range.start % self.model.alignment_bytes, 0, "seed {seed}");
            match &block.state {
                BlockState::Free { .. } => {
                    (free_bytes, largest_bytes) = (free_bytes + size_bytes, size_bytes.max(largest_bytes))
                }
                BlockState::Live { owner, .. } => {
                    let none = Holder { owner: owner.clone(), size_bytes: 0, block_count: 0 };
                    let holder = holders.entry(owner.clone()).or_insert(none);
                    (holder.size_bytes, holder.block_count) = (holder.size_bytes + size_bytes, holder.block_count + 1);
                }
                BlockState::Hole => {}
            }
        }
        assert_eq!(
            (statistics.free_bytes(), statistics.largest_free_bytes),
            (free_bytes, largest_bytes),
            "seed {seed}"
        );
        let fragmentation = if free_bytes == 0 { 0.0 } else { 1.0 - largest_bytes as f64 / free_bytes as f64 };
        assert_eq!(statistics.fragmentation, fragmentation, "seed {seed}");
        let mut holders: Vec<Holder> = holders.into_values().collect();
        holders.sort_by_key(|holder| u64::MAX - holder.size_bytes);
        assert_eq!(self.allocator.largest_holders(usize::MAX), holders, "seed {seed}");
        for pool in (0..POOLS + 1).map(PoolId) {
            let free_bytes = self.model.sum(|cell| *cell == Cell::Free(Some(pool)));
            assert_eq!(self.allocator.free_bytes(pool), free_bytes, "seed {seed}");
        }
    }
}

/// The moves of single tiles that a move stands for.
fn tiles_of(tiles: &TileMove) -> Vec<TileMove> {
    let part = |of: TileRange, at: u64| {
        let start = of.range.start + at;
        TileRange { segment: of.segment, range: forebay_base::ByteRange::new(start, start + TILE_BYTES) }
    };
    let offsets = (0..tiles.from.range.len()).step_by(TILE_BYTES as usize);
    offsets.map(|at| TileMove { from: part(tiles.from, at), to: tiles.to.map(|to| part(to, at)) }).collect()
}

fn run(seed: u64, alignment_bytes: u64, steps: u32) {
    let mut pair = Pair::new(seed, alignment_bytes);
    for step in 0..steps {
        pair.step(step / 300 % 2 == 0);
        if step % 61 == 0 {
            pair.compare();
        }
    }
    pair.compare();
    // Nothing is lost: when all is free and shared, no segment stays.
    let ids: BTreeSet<_> = pair.model.names.values().copied().collect();
    assert_eq!(ids.len(), pair.model.names.len(), "seed {seed}");
    ids.iter().for_each(|id| assert_eq!(pair.allocator.free(*id), Ok(()), "seed {seed}"));
    (0..POOLS).for_each(|pool| pair.allocator.share(PoolId(pool)));
    assert_eq!(pair.allocator.take_empty_segments().len(), pair.model.segments.len(), "seed {seed}");
    let statistics = pair.allocator.statistics();
    assert_eq!((statistics.reserved_bytes, statistics.in_use_bytes, statistics.free_bytes()), (0, 0, 0), "seed {seed}");
}

#[test]
fn aligned_to_a_byte() {
    (1..=8).for_each(|seed| run(seed, 1, 31_250));
}

#[test]
fn aligned_to_four_bytes() {
    (9..=16).for_each(|seed| run(seed, 4, 31_250));
}

#[test]
fn aligned_to_sixteen_bytes() {
    (17..=24).for_each(|seed| run(seed, 16, 31_250));
}

#[test]
fn aligned_to_a_tile() {
    (25..=32).for_each(|seed| run(seed, TILE_BYTES, 31_250));
}
