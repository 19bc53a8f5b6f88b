//! Time of an allocation and a release in the allocator while many blocks are live.
//!
//! `cargo bench -p forebay-memory` prints and records nanoseconds for the pair: the median and the 99th percentile of
//! short batches.

use std::time::Instant;

use forebay_bench_record::{Column, Record, Table};
use forebay_memory::{Allocator, BlockId, PoolId};
use forebay_testing::Random;

/// Pairs per batch: enough that reading the clock does not matter.
const BATCH: usize = 16;
const BATCHES: usize = 20_000;
const SEGMENT_BYTES: u64 = 1 << 30;

/// How the sizes of requests are drawn.
type Sizes = fn(&mut Random) -> u64;

/// From 256 bytes to 4 MiB, each power of two equally likely, no two sizes alike.
fn mixed(random: &mut Random) -> u64 {
    let bits = 8 + random.below(14);
    (1 << bits) + random.below(1 << bits)
}

/// As many different sizes as the tensors of a large network have.
fn model(random: &mut Random) -> u64 {
    let mut of_tensor = Random::new(random.below(64));
    mixed(&mut of_tensor)
}

/// Few sizes, as the tensors of a network have, so that many free blocks have the same size.
fn few(random: &mut Random) -> u64 {
    [4, 256, 4096, 65_536, 147_456, 589_824, 1_048_576, 2_359_296][random.below(8) as usize]
}

/// One size.
fn equal(_: &mut Random) -> u64 {
    65_536
}

/// The next action: free this live block and allocate another of this size.
#[derive(Clone, Copy, Default)]
struct Pair {
    nth: usize,
    size_bytes: u64,
    pool: u32,
}

struct Bench {
    allocator: Allocator,
    random: Random,
    sizes: Sizes,
    pools: u64,
    live: Vec<BlockId>,
}

impl Bench {
    /// Draws a pair ahead of time, since drawing takes time too.
    fn draw(&mut self) -> Pair {
        let nth = self.random.below(self.live.len().max(1) as u64) as usize;
        Pair { nth, size_bytes: (self.sizes)(&mut self.random), pool: self.random.below(self.pools) as u32 }
    }

    fn allocate(&mut self, pair: Pair) -> BlockId {
        loop {
            if let Some(block) = self.allocator.allocate(PoolId(pair.pool), pair.size_bytes, "layer3.conv2.weight") {
                return block.id;
            }
            self.allocator.add_segment(SEGMENT_BYTES);
        }
    }

    fn run(&mut self, pair: Pair) {
        if let Err(error) = self.allocator.free(self.live[pair.nth]) {
            println!("{error}");
        }
        self.live[pair.nth] = self.allocate(pair);
    }
}

fn measure(table: &mut Table, name: &str, sizes: Sizes, pools: u64, live_count: usize) {
    let mut bench =
        Bench { allocator: Allocator::new(256), random: Random::new(0x5eed), sizes, pools, live: Vec::new() };
    for _ in 0..live_count {
        let pair = bench.draw();
        let block = bench.allocate(pair);
        bench.live.push(block);
    }
    // Run until the segments look as they do after a while.
    for _ in 0..5 * live_count {
        let pair = bench.draw();
        bench.run(pair);
    }
    let mut times_ns: Vec<f64> = Vec::new();
    for _ in 0..BATCHES {
        let pairs: [Pair; BATCH] = std::array::from_fn(|_| bench.draw());
        let started = Instant::now();
        pairs.into_iter().for_each(|pair| bench.run(pair));
        times_ns.push(started.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    times_ns.sort_by(f64::total_cmp);
    let at = |percent: usize| times_ns[BATCHES * percent / 100];
    table.print([name.into(), pools.into(), live_count.into(), at(50).into(), at(99).into()]);
}

fn main() -> Result<(), String> {
    let given = forebay_bench_record::arguments()?;
    let time = |statistic: &str| Column::number(format!("time ({statistic})"), "ns", 0).of(statistic);
    let columns =
        [Column::text("sizes"), Column::count("pools"), Column::count("live"), time("median"), time("99th percentile")];
    let mut table = Table::new("pairs", columns);
    for live_count in [100, 10_000, 100_000] {
        for pools in [1, 4] {
            measure(&mut table, "mixed", mixed, pools, live_count);
            measure(&mut table, "model", model, pools, live_count);
            measure(&mut table, "few", few, pools, live_count);
            measure(&mut table, "equal", equal, pools, live_count);
        }
    }
    let record = Record::new(
        "allocator",
        "An allocation and a release",
        "cargo bench -p forebay-memory --bench allocator",
        &given.words,
    );
    record.under(format!("{BATCHES} batches of {BATCH} pairs")).with(table).save(given.output.as_deref()).map(drop)
}
