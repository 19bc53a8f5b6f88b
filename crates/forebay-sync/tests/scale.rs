//! A list as large as a big plan's (three streams, five regions per launch, thousands of tensors in one arena), and a trace as long as an
//! hour of eager work.

mod common;

use std::time::Instant;

use common::{Random, launch};
use forebay_base::kernel::Kernel;
use forebay_base::{Command, HeapId, MemoryId, Region, StreamId};
use forebay_sync::{HostAction, StepBoundary, TraceEntry, check_races, check_trace, insert_barriers};

#[test]
fn five_thousand_commands_are_synchronized_and_checked() {
    const HEAP_BYTES: u64 = 1 << 25;
    let prologue: Vec<Command> = (0..32)
        .map(|heap| Command::Map {
            region: Region::new(MemoryId(0), u64::from(heap) * HEAP_BYTES, HEAP_BYTES),
            heap: HeapId(heap),
            heap_offset_bytes: 0,
        })
        .collect();
    let mut random = Random::new(7);
    // Disjoint slots of up to 1 MiB, so that a command never overlaps itself: each of its regions is in one of every fifth slot, with a
    // different first slot.
    let slot = |index: u64, random: &mut Random| {
        Region::new(MemoryId(0), index * (1 << 20) + random.below(64) * 256, (1 << 19) + random.below(1 << 10) * 256)
    };
    let list: Vec<Command> = (0..5000u64)
        .map(|index| {
            let stream = StreamId((random.below(10) / 8 * (1 + index % 2)) as u32);
            let regions: Vec<Region> = (0..5).map(|i| slot(random.below(200) * 5 + i, &mut random)).collect();
            launch(stream, Kernel::Copy, &regions[..3], &regions[3..])
        })
        .collect();
    for boundary in [StepBoundary::HostJoin, StepBoundary::Streams] {
        let started = Instant::now();
        let result = insert_barriers(&prologue, list.clone(), boundary).unwrap();
        let inserted = started.elapsed();
        let report = check_races(&prologue, &result.commands, 2, boundary).unwrap();
        let checked = started.elapsed() - inserted;
        println!("{boundary:?}: inserted in {inserted:?}, checked in {checked:?}, {report:?}");
    }
}

#[test]
fn a_hundred_thousand_entries_of_ever_new_ranges_are_checked() {
    // Ranges begin and end anywhere, so the trace has as many ends as entries; only live ranges may cost anything.
    let mut random = Random::new(9);
    let mut range = |memory: u32| Region::new(MemoryId(memory), random.below(1 << 22) * 256, 1 + random.below(1 << 19));
    let mut trace = Vec::new();
    for index in 0..25_000u32 {
        let stream = StreamId(index % 4);
        trace.push(TraceEntry::Command(launch(stream, Kernel::Copy, &[range(1), range(2)], &[range(3), range(4)])));
        trace.push(TraceEntry::Host(HostAction::Synchronize(stream)));
        trace.push(TraceEntry::Host(HostAction::Read(range(3))));
        trace.push(TraceEntry::Host(HostAction::Write(range(1))));
    }
    let started = Instant::now();
    let report = check_trace(&trace).unwrap();
    println!("checked in {:?}, {report:?}", started.elapsed());
    assert_eq!(report.work, 25_000);
}
