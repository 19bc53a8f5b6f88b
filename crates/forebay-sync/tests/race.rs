//! Individual cases of the checker: each hazard, each edge, and each way in which a single command can be wrong.

mod common;

use common::launch;
use forebay_base::kernel::{Kernel, UnaryOp};
use forebay_base::{Command, EventId, HeapId, MemoryId, Region, StreamId};
use forebay_sync::{Hazard, StepBoundary, Violation, check_races};

fn region(place: u64) -> Region {
    Region::new(MemoryId(0), place * 16, 16)
}

fn copy(stream: u32, from: u64, to: u64) -> Command {
    Command::Copy { stream: StreamId(stream), from: region(from), to: region(to) }
}

fn barrier(stream: u32) -> Command {
    Command::Barrier { stream: StreamId(stream) }
}

fn record(stream: u32, event: u32, generation: u64) -> Command {
    Command::Record { stream: StreamId(stream), event: EventId(event), generation }
}

fn wait(stream: u32, event: u32, generation: u64) -> Command {
    Command::Wait { stream: StreamId(stream), event: EventId(event), generation }
}

fn violations(commands: &[Command]) -> Vec<Violation> {
    check_races(&[], commands, 1, StepBoundary::HostJoin).err().unwrap_or_default()
}

fn hazards(commands: &[Command]) -> Vec<Hazard> {
    let hazard = |violation: Violation| match violation {
        Violation::Race(race) => race.hazard,
        other => panic!("{other}"),
    };
    violations(commands).into_iter().map(hazard).collect()
}

#[test]
fn each_hazard_is_found_and_a_barrier_orders_it() {
    let cases = [
        ([copy(0, 0, 1), copy(0, 1, 2)], Hazard::ReadAfterWrite),
        ([copy(0, 0, 1), copy(0, 2, 0)], Hazard::WriteAfterRead),
        ([copy(0, 0, 1), copy(0, 2, 1)], Hazard::WriteAfterWrite),
    ];
    for ([first, second], hazard) in cases {
        assert_eq!(hazards(&[first.clone(), second.clone()]), [hazard]);
        assert_eq!(hazards(&[first, barrier(0), second]), []);
    }
}

#[test]
fn common_reads_and_disjoint_writes_need_nothing() {
    assert_eq!(hazards(&[copy(0, 0, 1), copy(0, 0, 2), copy(1, 0, 3)]), []);
}

#[test]
fn an_update_in_place_still_comes_after_other_readers() {
    let update = launch(StreamId(0), Kernel::Unary(UnaryOp::Relu), &[region(0)], &[region(0)]);
    assert_eq!(hazards(&[copy(0, 0, 1), update]), [Hazard::WriteAfterRead]);
}

#[test]
fn a_wait_orders_across_streams_and_transitively() {
    assert_eq!(hazards(&[copy(0, 0, 1), copy(1, 1, 2)]), [Hazard::ReadAfterWrite]);
    assert_eq!(hazards(&[copy(0, 0, 1), record(0, 0, 1), wait(1, 0, 1), copy(1, 1, 2)]), []);
    let through = [copy(0, 0, 1), record(0, 0, 1), wait(1, 0, 1), record(1, 1, 1), wait(2, 1, 1), copy(2, 1, 2)];
    assert_eq!(hazards(&through), []);
    // A wait does not order later commands after earlier ones of its own stream.
    let own = [copy(1, 0, 1), copy(0, 3, 4), record(0, 0, 1), wait(1, 0, 1), copy(1, 1, 2)];
    assert_eq!(hazards(&own), [Hazard::ReadAfterWrite]);
    // A record and a wait in one stream are a split barrier: the commands between them are not ordered.
    let split = [copy(0, 0, 1), record(0, 0, 1), copy(0, 5, 6), wait(0, 0, 1), copy(0, 1, 2), copy(0, 6, 7)];
    assert_eq!(hazards(&split), [Hazard::ReadAfterWrite]);
}

#[test]
fn a_race_names_commands_bytes_and_the_missing_edge() {
    let list = [copy(0, 0, 1), copy(1, 1, 2)];
    let text = violations(&list)[0].to_string();
    assert_eq!(
        text,
        "race, read after write: command 0 of s0 and command 1 of s1 share m0[16..32]; missing: a record in s0 after \
         command 0, and a wait for it in s1 before command 1"
    );
}

#[test]
fn the_next_step_is_checked_against_this_one() {
    let list = [copy(0, 0, 1), barrier(0), copy(0, 1, 0)];
    assert!(check_races(&[], &list, 2, StepBoundary::HostJoin).is_ok());
    let found = check_races(&[], &list, 2, StepBoundary::Streams).unwrap_err();
    let next = |violation: &Violation| matches!(violation, Violation::Race(race) if race.second_step == 1);
    assert!(!found.is_empty() && found.iter().all(next), "{found:?}");
    assert!(found[0].to_string().contains("in the next step"));
}

#[test]
fn events_are_checked() {
    assert!(matches!(violations(&[wait(0, 0, 1)])[..], [Violation::WaitWithoutRecord { command: 0, .. }]));
    assert!(matches!(violations(&[record(0, 0, 2)])[..], [Violation::Generation { previous: 0, .. }]));
    let repeated = [record(0, 0, 1), record(0, 0, 1)];
    assert!(matches!(violations(&repeated)[..], [Violation::Generation { command: 1, previous: 1, .. }]));
    let unordered = [record(0, 0, 1), record(1, 0, 2)];
    assert!(matches!(violations(&unordered)[..], [Violation::UnorderedRecords { command: 1, .. }]));
    assert_eq!(violations(&[record(0, 0, 1), wait(1, 0, 1), record(1, 0, 2)]), []);
}

#[test]
fn a_command_must_not_overlap_itself() {
    let itself =
        |commands: &[Command]| matches!(violations(commands)[..], [Violation::OverlapsItself { command: 0, .. }]);
    assert!(itself(&[copy(0, 3, 3)]));
    let relu = Kernel::Unary(UnaryOp::Relu);
    let shifted = Region::new(MemoryId(0), 8, 16);
    assert!(itself(&[launch(StreamId(0), relu.clone(), &[region(0)], &[shifted])]));
    assert!(itself(&[launch(StreamId(0), Kernel::Copy, &[region(0)], &[region(0)])]));
    assert!(itself(&[launch(StreamId(0), relu, &[], &[region(0), region(0)])]));
    let lengths = Command::Copy { stream: StreamId(0), from: region(0), to: shifted.part(8, 8) };
    assert!(matches!(violations(&[lengths])[..], [Violation::CopyLengths { .. }]));
}

#[test]
fn tiles_are_followed() {
    let map =
        |place: u64, heap_offset_bytes: u64| Command::Map { region: region(place), heap: HeapId(0), heap_offset_bytes };
    let prologue = [map(0, 0), map(1, 16), map(2, 0)];
    let check =
        |commands: &[Command]| check_races(&prologue, commands, 1, StepBoundary::HostJoin).err().unwrap_or_default();
    assert!(matches!(check(&[copy(0, 0, 2)])[..], [Violation::OverlapsItself { .. }]));
    let aliases = [copy(0, 1, 0), copy(1, 2, 1)];
    assert_eq!(check(&aliases).len(), 2, "write after read and read after write through the alias");
    assert!(matches!(check(&[copy(0, 0, 3)])[..], [Violation::Unmapped { offset_bytes: 48, .. }]));
    assert!(matches!(check(&[map(3, 32)])[..], [Violation::MappingInStep { command: 0 }]));
    let twice = check_races(&[map(0, 0), map(0, 0)], &[], 1, StepBoundary::HostJoin);
    assert!(matches!(twice.unwrap_err()[..], [Violation::Mapping(_)]));
}
