//! Allocators on the allocations of training steps: peak bytes taken from the device, and time per call.
//!
//! `cargo bench -p forebay-plan --bench allocators -- MODEL.onnx...` (by default, the models in the repository). The allocations are those
//! of a program run launch by launch, as frameworks do without a plan: a buffer is allocated before the first launch that touches it and
//! freed after the last one; parameters, optimizer state and labels stay. Three consecutive steps, one stream.
//!
//! | allocator | rules |
//! |---|---|
//! | ours, remapped | segments of tiles, as large as needed; free tiles are mapped together before more is taken |
//! | ours | the same without remapping, segments in multiples of 2 MiB |
//! | PyTorch | its caching allocator: 512-byte units; up to 1 MiB from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, more from segments in multiples of 2 MiB; a rest of at least 512 bytes (small) or over 1 MiB (large) is split off |
//! | plain BFC | TensorFlow's: 256-byte units, regions that double from 1 MiB on, split where the rest is half or more |
//! | powers of two | a list per power of two, nothing is split or merged |

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use forebay_base::ByteRange;
use forebay_bench_record::{Cell, Column, Record, Table};
use forebay_memory::allocator::{Allocator, BlockId, PoolId};
use forebay_model::program::Program;
use forebay_model::training::{Loss, Optimizer, TrainingOptions, training_graph};
use forebay_model::{infer, lower, onnx};
use forebay_plan::fuse::fuse;
use forebay_plan::liveness::{Owner, liveness};

const MIB: u64 = 1 << 20;
const TILE_BYTES: u64 = 64 << 10;
const STEPS: usize = 3;
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let given = forebay_bench_record::arguments()?;
    let mut paths: Vec<PathBuf> =
        given.words.iter().filter(|word| !word.starts_with("--")).map(PathBuf::from).collect();
    if paths.is_empty() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        paths = ["examples/brain/unet3d.onnx", "examples/digits/model.onnx"].map(|path| repository.join(path)).to_vec();
    }
    let mut columns = vec![Column::text("model"), Column::count("calls"), Column::number("in use", "MiB", 1)];
    columns.extend(allocators().map(|(name, _)| Column::ratio(format!("{name}: taken over in use"), 3)));
    columns
        .extend(allocators().map(|(name, _)| Column::number(format!("{name}: time per call"), "ns", 0).of("median")));
    let mut table = Table::new("allocators", columns);
    for path in paths {
        // Models of one kind often have the same file name in separate folders.
        let parts: Vec<_> = path.iter().rev().take(2).map(|part| part.to_string_lossy().into_owned()).collect();
        let name = parts.into_iter().rev().collect::<Vec<_>>().join("/");
        match calls(&path) {
            Ok(calls) => table.print(row(&name, &calls)),
            Err(error) => println!("{name} SKIPPED: {error}"),
        }
    }
    let what = "Allocators on the allocations of training steps";
    let record = Record::new("allocators", what, "cargo bench -p forebay-plan --bench allocators --", &given.words);
    record.under(format!("{STEPS} steps; {ROUNDS} alternating rounds")).with(table).save(given.output.as_deref())?;
    Ok(())
}

/// One call of an allocator: a buffer is allocated, or freed.
#[derive(Clone, Copy)]
enum Call {
    Allocate { buffer: usize, size_bytes: u64 },
    Free { buffer: usize },
}

fn program(path: &Path) -> Result<Program, Box<dyn Error>> {
    let model = onnx::read_file(path)?;
    let mut graph = model.graph;
    infer::infer(&mut graph, Some(8)).or_else(|_| infer::infer(&mut graph, None))?;
    let output = graph.outputs.first().map(|&output| graph.value(output).name.clone());
    let optimizer = Optimizer::Sgd { learning_rate: 0.01, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    let mut options = TrainingOptions::new(Loss::MeanSquaredError, optimizer);
    options.loss_output = output;
    let training = training_graph(&graph, &options)?;
    let parameters = training.parameters.iter().copied().collect();
    Ok(fuse(lower::lower(&training.graph, &parameters)?))
}

/// Returns the calls of some steps. Buffers that are not temporary are allocated once.
fn calls(path: &Path) -> Result<Vec<Call>, Box<dyn Error>> {
    let program = program(path)?;
    let mut lives: BTreeMap<usize, (u64, usize, usize)> = BTreeMap::new();
    let mut calls = Vec::new();
    for chunk in liveness(&program, false).chunks {
        let (Owner::Buffer(buffer), Some(first), Some(last)) =
            (chunk.owner, chunk.accesses.first(), chunk.accesses.last())
        else {
            continue;
        };
        let life = lives.entry(buffer.0 as usize).or_insert((0, first.launch, last.launch));
        *life = (life.0 + chunk.range.len(), life.1.min(first.launch), life.2.max(last.launch));
    }
    let lasts = |buffer: usize| program.buffers[buffer].role.is_persistent();
    let kept = lives.iter().filter(|&(&buffer, _)| lasts(buffer));
    calls.extend(kept.map(|(&buffer, &(size_bytes, ..))| Call::Allocate { buffer, size_bytes }));
    for _ in 0..STEPS {
        for launch in 0..program.launches.len() {
            let temporary = || lives.iter().filter(|&(&buffer, _)| !lasts(buffer));
            let born = temporary().filter(|(_, life)| life.1 == launch);
            calls.extend(born.map(|(&buffer, &(size_bytes, ..))| Call::Allocate { buffer, size_bytes }));
            let dead = temporary().filter(|(_, life)| life.2 == launch);
            calls.extend(dead.map(|(&buffer, _)| Call::Free { buffer }));
        }
    }
    Ok(calls)
}

trait Contender {
    fn allocate(&mut self, buffer: usize, size_bytes: u64);
    fn free(&mut self, buffer: usize);
    fn reserved_peak_bytes(&self) -> u64;
}

type Make = fn() -> Box<dyn Contender>;

fn allocators() -> [(&'static str, Make); 5] {
    [
        ("ours, remapped", || Box::new(Ours::new(true))),
        ("ours", || Box::new(Ours::new(false))),
        ("PyTorch", || Box::new(Segments::new(PYTORCH))),
        ("plain BFC", || Box::new(Segments::new(BFC))),
        ("powers of two", || Box::<Buckets>::default()),
    ]
}

/// A row of the table.
fn row(name: &str, calls: &[Call]) -> Vec<Cell> {
    let mut sizes = BTreeMap::new();
    let (mut live_bytes, mut peak_bytes) = (0, 0);
    for &call in calls {
        match call {
            Call::Allocate { buffer, size_bytes } => {
                sizes.insert(buffer, size_bytes);
                live_bytes += size_bytes;
                peak_bytes = peak_bytes.max(live_bytes);
            }
            Call::Free { buffer } => live_bytes -= sizes.remove(&buffer).unwrap_or(0),
        }
    }
    let mut ratios = Vec::new();
    let mut times = vec![Vec::new(); 5];
    // Rounds alternate between the contenders, so that noise affects all of them.
    for _ in 0..ROUNDS {
        ratios.clear();
        for ((_, make), times) in allocators().iter().zip(&mut times) {
            let mut contender = make();
            let start = Instant::now();
            for &call in calls {
                match call {
                    Call::Allocate { buffer, size_bytes } => contender.allocate(buffer, size_bytes),
                    Call::Free { buffer } => contender.free(buffer),
                }
            }
            times.push(start.elapsed().as_nanos() as f64 / calls.len() as f64);
            ratios.push(contender.reserved_peak_bytes() as f64 / peak_bytes as f64);
        }
    }
    let mut row: Vec<Cell> = vec![name.into(), calls.len().into(), (peak_bytes as f64 / MIB as f64).into()];
    row.extend(ratios.into_iter().map(Cell::from));
    row.extend(times.into_iter().map(Cell::median));
    row
}

/// This project's allocator.
struct Ours {
    allocator: Allocator,
    remaps: bool,
    blocks: BTreeMap<usize, BlockId>,
}

impl Ours {
    fn new(remaps: bool) -> Ours {
        Ours { allocator: Allocator::new(256), remaps, blocks: BTreeMap::new() }
    }
}

impl Contender for Ours {
    fn allocate(&mut self, buffer: usize, size_bytes: u64) {
        let (pool, owner) = (PoolId(0), "bench");
        let mut found = self.allocator.allocate(pool, size_bytes, owner);
        if found.is_none() && self.remaps {
            let missing_bytes = self.allocator.assembly_growth_bytes(pool, size_bytes, TILE_BYTES).unwrap_or(0);
            if missing_bytes > 0 {
                self.allocator.add_tiled_segment(missing_bytes, TILE_BYTES);
            }
            found = self.allocator.assemble(pool, size_bytes, TILE_BYTES, owner).map(|assembly| assembly.block);
        } else if found.is_none() {
            self.allocator.add_segment(size_bytes.next_multiple_of(2 * MIB));
            found = self.allocator.allocate(pool, size_bytes, owner);
        }
        self.blocks.insert(buffer, found.expect("there is a new segment for it").id);
    }

    fn free(&mut self, buffer: usize) {
        let block = self.blocks.remove(&buffer).expect("freed once");
        self.allocator.free(block).expect("freed once");
    }

    fn reserved_peak_bytes(&self) -> u64 {
        self.allocator.statistics().reserved_peak_bytes
    }
}

/// The differences between allocators that split segments by best fit and merge adjacent blocks.
struct Rules {
    unit_bytes: u64,
    /// The pool that a request goes to.
    pool: fn(u64) -> usize,
    /// The size of a new segment for a request, with the size of the last one.
    segment_bytes: fn(u64, u64) -> u64,
    /// Whether the rest is split off, given request and block.
    splits: fn(u64, u64) -> bool,
}

const PYTORCH: Rules = Rules {
    unit_bytes: 512,
    pool: |size| usize::from(size > MIB),
    segment_bytes: |size, _| match size {
        _ if size <= MIB => 2 * MIB,
        _ if size < 10 * MIB => 20 * MIB,
        _ => size.next_multiple_of(2 * MIB),
    },
    splits: |size, block| if size <= MIB { block - size >= 512 } else { block - size > MIB },
};

const BFC: Rules = Rules {
    unit_bytes: 256,
    pool: |_| 0,
    segment_bytes: |size, last| {
        let mut bytes = (2 * last).max(MIB);
        while bytes < size {
            bytes *= 2;
        }
        bytes
    },
    splits: |size, block| block >= 2 * size || block - size >= 128 * MIB,
};

/// Best fit with coalescing over segments, according to some rules.
struct Segments {
    rules: Rules,
    /// For each pool, its free blocks by size, segment and offset.
    free: [BTreeSet<(u64, usize, u64)>; 2],
    /// For each segment and offset, the end of the block and whether it is free.
    blocks: BTreeMap<(usize, u64), (u64, bool)>,
    pools: Vec<usize>,
    live: BTreeMap<usize, (usize, ByteRange)>,
    last_segment_bytes: u64,
    reserved_bytes: u64,
}

impl Segments {
    fn new(rules: Rules) -> Segments {
        Segments {
            rules,
            free: [BTreeSet::new(), BTreeSet::new()],
            blocks: BTreeMap::new(),
            pools: Vec::new(),
            live: BTreeMap::new(),
            last_segment_bytes: 0,
            reserved_bytes: 0,
        }
    }

    fn add_free(&mut self, segment: usize, range: ByteRange) {
        self.blocks.insert((segment, range.start), (range.end, true));
        self.free[self.pools[segment]].insert((range.len(), segment, range.start));
    }
}

impl Contender for Segments {
    fn allocate(&mut self, buffer: usize, size_bytes: u64) {
        let size = size_bytes.max(1).next_multiple_of(self.rules.unit_bytes);
        let pool = (self.rules.pool)(size);
        if self.free[pool].range((size, 0, 0)..).next().is_none() {
            let bytes = (self.rules.segment_bytes)(size, self.last_segment_bytes);
            self.last_segment_bytes = bytes;
            self.reserved_bytes += bytes;
            self.pools.push(pool);
            self.add_free(self.pools.len() - 1, ByteRange::new(0, bytes));
        }
        let (block_bytes, segment, start) = *self.free[pool].range((size, 0, 0)..).next().expect("just added");
        self.free[pool].remove(&(block_bytes, segment, start));
        let taken = if (self.rules.splits)(size, block_bytes) { size } else { block_bytes };
        if taken < block_bytes {
            self.add_free(segment, ByteRange::new(start + taken, start + block_bytes));
        }
        self.blocks.insert((segment, start), (start + taken, false));
        self.live.insert(buffer, (segment, ByteRange::new(start, start + taken)));
    }

    fn free(&mut self, buffer: usize) {
        let (segment, mut range) = self.live.remove(&buffer).expect("freed once");
        let pool = self.pools[segment];
        if let Some(&(end, true)) = self.blocks.get(&(segment, range.end)) {
            self.blocks.remove(&(segment, range.end));
            self.free[pool].remove(&(end - range.end, segment, range.end));
            range.end = end;
        }
        let before = self.blocks.range((segment, 0)..(segment, range.start)).next_back();
        if let Some((&(_, start), &(end, true))) = before {
            self.free[pool].remove(&(end - start, segment, start));
            self.blocks.remove(&(segment, range.start));
            range.start = start;
        }
        self.add_free(segment, range);
    }

    fn reserved_peak_bytes(&self) -> u64 {
        self.reserved_bytes
    }
}

/// A list of free blocks per power of two.
#[derive(Default)]
struct Buckets {
    free: BTreeMap<u64, usize>,
    live: BTreeMap<usize, u64>,
    reserved_bytes: u64,
}

impl Contender for Buckets {
    fn allocate(&mut self, buffer: usize, size_bytes: u64) {
        let size = size_bytes.max(256).next_power_of_two();
        match self.free.get_mut(&size).filter(|count| **count > 0) {
            Some(count) => *count -= 1,
            None => self.reserved_bytes += size,
        }
        self.live.insert(buffer, size);
    }

    fn free(&mut self, buffer: usize) {
        let size = self.live.remove(&buffer).expect("freed once");
        *self.free.entry(size).or_default() += 1;
    }

    fn reserved_peak_bytes(&self) -> u64 {
        self.reserved_bytes
    }
}
