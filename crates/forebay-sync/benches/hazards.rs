//! The cost of finding hazards: per launch as a stream progresses, and for whole lists and traces.
//!
//! `cargo bench -p forebay-sync` prints and records nanoseconds per launch (best of several runs). The check of one launch must grow
//! with the logarithm of the number of live ranges; lists and traces must cost about the same per launch at any length.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use forebay_base::{
    Binding, Command, DataType, EventId, HeapId, Kernel, Launch, MemoryId, Region, StreamId, TensorDesc,
};
use forebay_bench_record::{Column, Record, Table};
use forebay_sync::race::{HostAction, TraceEntry};
use forebay_sync::{StepBoundary, TileMap, Tracker, check_races, check_trace, insert_barriers};

const RUNS: usize = 5;
const TENSOR_BYTES: u64 = 1024;
const LAUNCHES: u64 = 10_000;
const HEAP_BYTES: u64 = 32 << 20;

/// Tensors in one reservation with a gap after each, so that no two merge into one range.
fn tensor(index: u64) -> Region {
    Region::new(MemoryId(0), index * 2 * TENSOR_BYTES, TENSOR_BYTES)
}

/// A permutation of the numbers below a power of two or ten, so that neighbors are not consecutive.
fn scattered(index: u64, count: u64) -> u64 {
    index * 7919 % count
}

/// The shortest of several runs, in nanoseconds per item.
fn nanoseconds(items: u64, mut run: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let started = Instant::now();
        run()?;
        best = best.min(started.elapsed().as_secs_f64() * 1e9 / items as f64);
    }
    Ok(best)
}

/// Maps consecutive heaps under all tensors.
fn prologue(tensors: u64) -> Vec<Command> {
    let heaps = (tensors * 2 * TENSOR_BYTES).div_ceil(HEAP_BYTES);
    let map = |heap: u64| Command::Map {
        region: Region::new(MemoryId(0), heap * HEAP_BYTES, HEAP_BYTES),
        heap: HeapId(heap as u32),
        heap_offset_bytes: 0,
    };
    (0..heaps).map(map).collect()
}

/// Measures the check of one launch with two reads and a write next to `ranges` live ranges, without and with a hazard.
fn tracker(table: &mut Table, ranges: u64) -> Result<(), Box<dyn Error>> {
    let mut stream = Tracker::new(TileMap::from_prologue(&prologue(ranges))?);
    for index in 0..ranges / 2 {
        stream.submit(&[tensor(2 * index)], &[])?;
        stream.submit(&[], &[tensor(2 * index + 1)])?;
    }
    // Reading the same tensors again changes nothing, so the number of live ranges stays the same.
    let launches = 100_000;
    let free = nanoseconds(launches, || {
        for index in 0..launches {
            let one = scattered(index, ranges / 2) * 2;
            let other = scattered(index + 1, ranges / 2) * 2;
            black_box(stream.submit(&[tensor(one), tensor(other)], &[])?);
        }
        Ok(())
    })?;
    // A barrier discards everything, so a run of `ranges` launches between two barriers gives its average cost.
    let between = (launches / ranges).max(1) * ranges;
    let epoch = nanoseconds(between, || {
        for index in 0..between {
            if index % ranges == 0 {
                stream.barrier();
            }
            let place = scattered(index % ranges, ranges);
            black_box(stream.submit(&[tensor(place)], &[tensor(place)])?);
        }
        Ok(())
    })?;
    table.print([ranges.into(), free.into(), epoch.into()]);
    Ok(())
}

/// Launches on three streams, each of which reads two tensors and writes one.
fn launches(count: u64, tensors: u64) -> Result<Vec<Command>, Box<dyn Error>> {
    let desc = TensorDesc::packed(DataType::UInt8, &[TENSOR_BYTES])?;
    let bind = |index: u64| Binding { region: tensor(index % tensors), desc: desc.clone() };
    let launch = |index: u64| {
        let own = scattered(index, tensors);
        let (reads, writes) = (vec![bind(own + 1), bind(own * 31 + 2)], vec![bind(own)]);
        let reads = reads.into_iter().filter(|read| read.region != writes[0].region).collect();
        let launch = Launch { kernel: Kernel::Copy, reads, writes, workspace: None, label: index as u32 };
        Command::Launch { stream: StreamId((index / 50 % 3) as u32), launch: Box::new(launch) }
    };
    Ok((0..count).map(launch).collect())
}

/// Measures the whole list: inserting barriers, then checking it as two steps.
fn lists(table: &mut Table, tensors: u64) -> Result<(), Box<dyn Error>> {
    let (prologue, work) = (prologue(tensors), launches(LAUNCHES, tensors)?);
    for boundary in [StepBoundary::HostJoin, StepBoundary::Streams] {
        let insert = nanoseconds(LAUNCHES, || {
            black_box(insert_barriers(&prologue, work.clone(), boundary)?);
            Ok(())
        })?;
        let list = insert_barriers(&prologue, work.clone(), boundary)?;
        let check = nanoseconds(LAUNCHES, || {
            black_box(check_races(&prologue, &list.commands, 2, boundary).map_err(|found| found[0].clone())?);
            Ok(())
        })?;
        let (barriers, waits) = (list.barriers, list.waits);
        let name = |what: &str| format!("{what}, {boundary:?} ({barriers} barriers, {waits} waits)").into();
        table.print([name("insert_barriers"), LAUNCHES.into(), tensors.into(), insert.into()]);
        table.print([name("check_races of two steps"), LAUNCHES.into(), tensors.into(), check.into()]);
    }
    Ok(())
}

/// Measures a trace of eager work: the inserter's list, and a host that reads and writes now and then.
fn traces(table: &mut Table, count: u64, tensors: u64) -> Result<(), Box<dyn Error>> {
    let prologue = prologue(tensors);
    let list = insert_barriers(&prologue, launches(count, tensors)?, StepBoundary::HostJoin)?;
    let mut trace: Vec<TraceEntry> = prologue.into_iter().map(TraceEntry::Command).collect();
    for (index, command) in list.commands.into_iter().enumerate() {
        let record = match command {
            Command::Record { event, generation, .. } => Some((event, generation)),
            _ => None,
        };
        trace.push(TraceEntry::Command(command));
        if let Some((event, generation)) = record.filter(|_| index % 8 == 0) {
            trace.push(TraceEntry::Host(host_wait(event, generation)));
        }
    }
    let entries = trace.len() as u64;
    let check = nanoseconds(entries, || {
        black_box(check_trace(&trace).map_err(|found| found[0].clone())?);
        Ok(())
    })?;
    table.print(["check_trace".into(), entries.into(), tensors.into(), check.into()]);
    Ok(())
}

fn host_wait(event: EventId, generation: u64) -> HostAction {
    HostAction::WaitEvent { event, generation }
}

fn main() -> Result<(), Box<dyn Error>> {
    let given = forebay_bench_record::arguments()?;
    let time = |name: &str| Column::number(name, "ns", 0).of("best");
    let columns = [Column::count("live ranges"), time("submit per launch"), time("with its share of a barrier")];
    let mut tracked = Table::new("tracker", columns);
    for ranges in [10, 1_000, 100_000] {
        tracker(&mut tracked, ranges)?;
    }
    let columns =
        [Column::text("what"), Column::count("launches or entries"), Column::count("tensors"), time("time of each")];
    let mut listed = Table::new("lists", columns);
    for tensors in [100, 10_000] {
        lists(&mut listed, tensors)?;
        traces(&mut listed, LAUNCHES, tensors)?;
        traces(&mut listed, 10 * LAUNCHES, tensors)?;
    }
    let record = Record::new("hazards", "Hazard checks", "cargo bench -p forebay-sync --bench hazards", &given.words);
    record.under(format!("best of {RUNS} runs")).with(tracked).with(listed).save(given.output.as_deref())?;
    Ok(())
}
