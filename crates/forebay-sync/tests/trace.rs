//! Traces of eager work: each rule about the host, changing mappings, and a slow model of all rules at once.

mod common;

use common::{Random, launch};
use forebay_base::kernel::Kernel;
use forebay_base::{ByteRange, Command, EventId, HeapId, MemoryId, Region, StreamId};
use forebay_sync::race::{Actor, Hazard, HostAction, Race, TraceEntry, Violation, check_trace};

const STREAMS: [StreamId; 3] = [StreamId(0), StreamId(3), StreamId(7)];

fn region(place: u64) -> Region {
    Region::new(MemoryId(1), place * 16, 16)
}

fn copy(stream: u32, from: u64, to: u64) -> TraceEntry {
    TraceEntry::Command(Command::Copy { stream: StreamId(stream), from: region(from), to: region(to) })
}

fn barrier(stream: u32) -> TraceEntry {
    TraceEntry::Command(Command::Barrier { stream: StreamId(stream) })
}

fn record(stream: u32, event: u32, generation: u64) -> TraceEntry {
    TraceEntry::Command(Command::Record { stream: StreamId(stream), event: EventId(event), generation })
}

fn wait(stream: u32, event: u32, generation: u64) -> TraceEntry {
    TraceEntry::Command(Command::Wait { stream: StreamId(stream), event: EventId(event), generation })
}

fn map(place: u64, heap_offset_bytes: u64) -> TraceEntry {
    TraceEntry::Command(Command::Map { region: region(place), heap: HeapId(0), heap_offset_bytes })
}

fn unmap(place: u64) -> TraceEntry {
    TraceEntry::Command(Command::Unmap { region: region(place) })
}

fn read(place: u64) -> TraceEntry {
    TraceEntry::Host(HostAction::Read(region(place)))
}

fn write(place: u64) -> TraceEntry {
    TraceEntry::Host(HostAction::Write(region(place)))
}

fn host_wait(event: u32, generation: u64) -> TraceEntry {
    TraceEntry::Host(HostAction::WaitEvent { event: EventId(event), generation })
}

fn synchronize(stream: u32) -> TraceEntry {
    TraceEntry::Host(HostAction::Synchronize(StreamId(stream)))
}

fn violations(trace: &[TraceEntry]) -> Vec<Violation> {
    check_trace(trace).err().unwrap_or_default()
}

/// Returns index pairs and hazards; anything but races fails the test.
fn races(trace: &[TraceEntry]) -> Vec<(usize, usize, Hazard)> {
    let race = |violation: Violation| match violation {
        Violation::Race(race) => (race.first, race.second, race.hazard),
        other => panic!("{other}"),
    };
    violations(trace).into_iter().map(race).collect()
}

#[test]
fn the_host_waits_before_it_touches_what_a_stream_uses() {
    assert_eq!(races(&[copy(0, 0, 1), read(1)]), [(0, 1, Hazard::ReadAfterWrite)]);
    assert_eq!(races(&[copy(0, 0, 1), write(0)]), [(0, 1, Hazard::WriteAfterRead)]);
    assert_eq!(races(&[copy(0, 0, 1), write(1)]), [(0, 1, Hazard::WriteAfterWrite)]);
    assert_eq!(races(&[copy(0, 0, 1), read(0), read(2), write(2)]), []);
    assert_eq!(races(&[copy(0, 0, 1), synchronize(0), read(1), write(0)]), []);
    assert_eq!(races(&[copy(0, 0, 1), synchronize(1), read(1)]), [(0, 2, Hazard::ReadAfterWrite)]);
    // A barrier orders commands, not the host.
    assert_eq!(races(&[copy(0, 0, 1), barrier(0), read(1)]), [(0, 2, Hazard::ReadAfterWrite)]);
}

#[test]
fn the_host_knows_what_a_record_covers_and_no_more() {
    let trace = [copy(0, 0, 1), record(0, 0, 1), copy(0, 2, 3), host_wait(0, 1), read(1), read(3)];
    assert_eq!(races(&trace), [(2, 5, Hazard::ReadAfterWrite)]);
    // Work that the recording stream had waited for is complete, too.
    let through = [copy(0, 0, 1), record(0, 0, 1), wait(1, 0, 1), record(1, 1, 1), host_wait(1, 1), read(1)];
    assert_eq!(races(&through), []);
    let synchronized = [copy(0, 0, 1), record(0, 0, 1), wait(1, 0, 1), copy(1, 4, 5), synchronize(1), read(1)];
    assert_eq!(races(&synchronized), []);
}

#[test]
fn commands_come_after_what_the_host_did_and_knew() {
    assert_eq!(races(&[write(0), copy(0, 0, 1)]), []);
    assert_eq!(races(&[read(1), copy(0, 0, 1)]), []);
    assert_eq!(races(&[copy(0, 0, 1), synchronize(0), copy(1, 1, 2)]), [], "no edge but through the host");
    assert_eq!(races(&[copy(0, 0, 1), synchronize(0), copy(0, 1, 2)]), [], "no barrier needed either");
    // Work submitted before the host knew does not benefit from it.
    let early = [copy(0, 0, 1), copy(1, 1, 2), synchronize(0), copy(1, 1, 3)];
    assert_eq!(races(&early), [(0, 1, Hazard::ReadAfterWrite)]);
}

#[test]
fn order_is_transitive_through_streams() {
    // A block of s1 is used on s0 and returns through s2.
    let edges = [copy(0, 0, 1), record(0, 0, 1), wait(2, 0, 1), record(2, 1, 1), wait(1, 1, 1)];
    let mut trace = edges.to_vec();
    trace.push(copy(1, 2, 1));
    assert_eq!(races(&trace), []);
    for edge in 1..edges.len() {
        let mut broken = trace.clone();
        broken.remove(edge);
        let found = violations(&broken);
        assert!(found.iter().any(|found| matches!(found, Violation::Race(Race { first: 0, .. }))), "{edge}: {found:?}");
    }
}

#[test]
fn a_block_freed_and_used_again_on_another_stream_needs_an_edge() {
    let names = |index: usize| ["conv1", "free", "relu"].get(index).map(ToString::to_string);
    let found = violations(&[copy(0, 0, 1), barrier(0), copy(1, 2, 1)]);
    assert_eq!(
        found[0].describe(&names),
        "race, write after write: 'conv1' (command 0 of s0) and 'relu' (command 2 of s1) share m1[16..32]; missing: a \
         record in s0 after 'conv1', and a wait for it in s1 before 'relu'"
    );
}

#[test]
fn mapping_changes_as_the_trace_goes_on() {
    assert_eq!(races(&[map(0, 0), map(1, 16), copy(0, 0, 1), synchronize(0), unmap(1), map(1, 32)]), []);
    // The tile moves to another address, and nothing orders the two uses.
    let moved = [map(0, 0), map(1, 16), map(2, 32), copy(0, 0, 1), map(3, 16), copy(1, 2, 3)];
    assert_eq!(races(&moved), [(3, 5, Hazard::WriteAfterWrite)]);
    // The address gets another tile, so nothing is shared.
    let remapped = [map(0, 0), map(1, 16), copy(0, 0, 1), synchronize(0), unmap(1), map(1, 32), copy(1, 0, 1)];
    assert_eq!(races(&remapped), []);
}

#[test]
fn taking_tiles_away_from_a_command_in_flight_is_a_race() {
    let trace = [map(0, 0), map(1, 16), copy(0, 0, 1), unmap(1)];
    let found = violations(&trace);
    assert!(matches!(&found[..], [Violation::Race(Race { first: 2, second: 3, second_actor: Actor::Unmap, .. })]));
    assert_eq!(
        found[0].to_string(),
        "race, write after write: command 2 of s0 and the host's unmapping (entry 3) share h0[16..32]; missing: the \
         host's wait for s0, or for a record in it after command 2, before the host's unmapping"
    );
    assert_eq!(races(&[map(0, 0), map(1, 16), copy(0, 0, 1), unmap(2)]), [], "nothing is mapped there");
}

#[test]
fn what_is_wrong_with_one_entry_is_named() {
    let found = violations(&[copy(0, 0, 1), map(1, 0)]);
    assert!(
        matches!(found[0], Violation::Unmapped { command: 0, offset_bytes: 0, .. }),
        "a reservation from the start"
    );
    let found = violations(&[map(0, 0), read(1)]);
    assert_eq!(found[0].to_string(), "the host (entry 1) uses m1[16..32], but byte 16 is not mapped");
    let found = violations(&[map(0, 0), map(0, 16)]);
    assert!(matches!(found[0], Violation::CannotMap { command: 1, .. }));
    let found = violations(&[host_wait(0, 1), record(0, 0, 1)]);
    assert_eq!(found[0].to_string(), "the host (entry 0) waits for e0.1, which no earlier command of the list records");
    assert!(matches!(violations(&[copy(0, 0, 0)])[..], [Violation::OverlapsItself { .. }]));
}

#[test]
fn generations_grow_over_the_whole_trace_and_may_begin_anywhere() {
    assert_eq!(violations(&[record(0, 0, 7), record(0, 0, 8)]), []);
    assert!(matches!(violations(&[record(0, 0, 0)])[..], [Violation::Generation { .. }]));
    let again = [record(0, 0, 2), synchronize(0), record(0, 0, 2)];
    assert!(matches!(violations(&again)[..], [Violation::Generation { previous: 2, .. }]));
    // The host can order an event's records on two streams.
    assert_eq!(violations(&[record(0, 0, 1), synchronize(0), record(1, 0, 2)]), []);
    assert!(matches!(violations(&[record(0, 0, 1), record(1, 0, 2)])[..], [Violation::UnorderedRecords { .. }]));
}

#[test]
fn the_report_counts_commands() {
    let trace = [copy(0, 0, 1), barrier(0), copy(0, 1, 2), record(0, 0, 1), wait(1, 0, 1), host_wait(0, 1), read(2)];
    let report = check_trace(&trace).unwrap();
    assert_eq!((report.work, report.barriers, report.records, report.waits, report.hazards), (2, 1, 1, 1, 2));
}

/// A reservation of six tiles of two bytes over eight tiles of a heap, and four bytes of host memory.
const RESERVATION: MemoryId = MemoryId(0);
const BLOCK: MemoryId = MemoryId(1);
const TILE_BYTES: u64 = 2;
const TILES: usize = 6;

/// Physical bytes as numbers: those of the heap from 0, those of the host block from 100.
fn physical(tiles: &[Option<u64>; TILES], region: Region) -> Vec<u64> {
    let byte = |at: u64| match region.memory {
        RESERVATION => tiles[(at / TILE_BYTES) as usize].map(|tile| tile * TILE_BYTES + at % TILE_BYTES),
        _ => Some(100 + at),
    };
    (region.range.start..region.range.end).filter_map(byte).collect()
}

/// A trace and the physical bytes that each of its entries reads and writes.
#[derive(Default)]
struct Program {
    entries: Vec<TraceEntry>,
    reads: Vec<Vec<u64>>,
    writes: Vec<Vec<u64>>,
}

impl Program {
    fn push(&mut self, tiles: &[Option<u64>; TILES], entry: TraceEntry) {
        let (reads, writes) = match &entry {
            TraceEntry::Command(Command::Unmap { region }) => (vec![], vec![*region]),
            TraceEntry::Command(command) => (command.reads(), command.writes()),
            TraceEntry::Host(HostAction::Read(region)) => (vec![*region], vec![]),
            TraceEntry::Host(HostAction::Write(region)) => (vec![], vec![*region]),
            TraceEntry::Host(_) => (vec![], vec![]),
        };
        self.reads.push(reads.into_iter().flat_map(|region| physical(tiles, region)).collect());
        self.writes.push(writes.into_iter().flat_map(|region| physical(tiles, region)).collect());
        self.entries.push(entry);
    }

    /// Generates a random trace of commands that use only mapped bytes. In a calm one, the host waits often.
    fn random(random: &mut Random, length: usize, calm: bool) -> Program {
        let mut program = Program::default();
        let mut tiles = [None; TILES];
        let mut generations = [0; STREAMS.len()];
        while program.entries.len() < length {
            let number = random.below(STREAMS.len() as u64) as usize;
            let stream = STREAMS[number];
            let event = EventId(number as u32);
            let generation = 1 + random.below(generations[number].max(1));
            let known = generations[number] > 0;
            let tile = random.below(TILES as u64) as usize;
            let at_tile = Region::new(RESERVATION, tile as u64 * TILE_BYTES, TILE_BYTES);
            let entry = match random.below(if calm { 60 } else { 24 }) {
                0 => TraceEntry::Command(Command::Barrier { stream }),
                1 | 2 => {
                    generations[number] += 1;
                    TraceEntry::Command(Command::Record { stream, event, generation: generations[number] })
                }
                3 | 4 if known => {
                    let stream = STREAMS[random.below(STREAMS.len() as u64) as usize];
                    TraceEntry::Command(Command::Wait { stream, event, generation })
                }
                5 | 6 if known => TraceEntry::Host(HostAction::WaitEvent { event, generation }),
                7 | 20.. => TraceEntry::Host(HostAction::Synchronize(stream)),
                8 => TraceEntry::Host(HostAction::Read(mapped(random, &tiles))),
                9 => TraceEntry::Host(HostAction::Write(mapped(random, &tiles))),
                10..13 if tiles[tile].is_none() => {
                    let physical = random.below(8);
                    tiles[tile] = Some(physical);
                    let heap_offset_bytes = physical * TILE_BYTES;
                    TraceEntry::Command(Command::Map { region: at_tile, heap: HeapId(0), heap_offset_bytes })
                }
                10 => {
                    program.push(&tiles, TraceEntry::Command(Command::Unmap { region: at_tile }));
                    tiles[tile] = None;
                    continue;
                }
                _ => {
                    let from = mapped(random, &tiles);
                    let to = mapped(random, &tiles);
                    let apart = !physical(&tiles, from).iter().any(|byte| physical(&tiles, to).contains(byte));
                    let writes = if apart { vec![to] } else { vec![] };
                    TraceEntry::Command(launch(stream, Kernel::Copy, &[from], &writes))
                }
            };
            program.push(&tiles, entry);
        }
        program
    }

    /// Returns, for each entry, whether each earlier one is complete before it starts (fires, for a record): the closure of the contract.
    fn before(&self) -> Vec<Vec<bool>> {
        let mut before: Vec<Vec<bool>> = Vec::new();
        for index in 0..self.entries.len() {
            let mut row = vec![false; index];
            for other in (0..index).filter(|&other| self.follows(index, other)) {
                row[other] = true;
                before[other].iter().enumerate().for_each(|(past, &complete)| row[past] |= complete);
            }
            before.push(row);
        }
        before
    }

    fn stream(&self, index: usize) -> Option<StreamId> {
        match &self.entries[index] {
            TraceEntry::Command(command) => command.stream(),
            TraceEntry::Host(_) => None,
        }
    }

    /// Returns whether a single rule implies that `other` is complete before `index`.
    fn follows(&self, index: usize, other: usize) -> bool {
        let (now, past) = (&self.entries[index], &self.entries[other]);
        let records = |wanted: EventId, number: u64| {
            matches!(past, TraceEntry::Command(Command::Record { event, generation, .. })
                if (*event, *generation) == (wanted, number))
        };
        // The host's own actions are already over; what it waited for follows through the wait.
        let Some(own) = self.stream(other) else { return true };
        match now {
            TraceEntry::Host(HostAction::WaitEvent { event, generation }) => records(*event, *generation),
            TraceEntry::Host(HostAction::Synchronize(stream)) => own == *stream,
            TraceEntry::Host(_) => false,
            TraceEntry::Command(Command::Wait { event, generation, .. }) if records(*event, *generation) => true,
            TraceEntry::Command(command) if command.stream() == Some(own) => {
                let barriers = |at: usize| matches!(&self.entries[at], TraceEntry::Command(Command::Barrier { stream }) if *stream == own);
                matches!(command, Command::Record { .. })
                    || matches!(past, TraceEntry::Command(Command::Wait { .. }))
                    || (other + 1..index).any(barriers)
            }
            TraceEntry::Command(_) => false,
        }
    }

    /// Returns the bytes of a pair's hazard.
    fn shared(&self, first: usize, second: usize, hazard: Hazard) -> Vec<u64> {
        let (some, others) = match hazard {
            Hazard::ReadAfterWrite => (&self.writes[first], &self.reads[second]),
            Hazard::WriteAfterRead => (&self.reads[first], &self.writes[second]),
            Hazard::WriteAfterWrite => (&self.writes[first], &self.writes[second]),
        };
        some.iter().filter(|byte| others.contains(byte)).copied().collect()
    }
}

/// Returns a random region that is fully mapped.
fn mapped(random: &mut Random, tiles: &[Option<u64>; TILES]) -> Region {
    for _ in 0..4 {
        let start = random.below(TILES as u64 * TILE_BYTES);
        let end = (start + 1 + random.below(4)).min(TILES as u64 * TILE_BYTES);
        if (start..end).all(|at| tiles[(at / TILE_BYTES) as usize].is_some()) {
            return Region { memory: RESERVATION, range: ByteRange::new(start, end) };
        }
    }
    let start = random.below(4);
    Region { memory: BLOCK, range: ByteRange::new(start, (start + 1 + random.below(2)).min(4)) }
}

#[test]
fn the_checker_agrees_with_the_contract_on_traces() {
    const HAZARDS: [Hazard; 3] = [Hazard::ReadAfterWrite, Hazard::WriteAfterRead, Hazard::WriteAfterWrite];
    let (mut racing, mut hosts) = (0, 0);
    for seed in 0..6000 {
        let mut random = Random::new(seed);
        let length = 4 + random.below(20) as usize;
        let program = Program::random(&mut random, length, seed % 2 == 0);
        let before = program.before();
        let pairs = (0..length).flat_map(|second| (0..second).map(move |first| (first, second)));
        let races = |&(first, second): &(usize, usize)| {
            !before[second][first] && HAZARDS.iter().any(|&hazard| !program.shared(first, second, hazard).is_empty())
        };
        let expected = pairs.filter(races).count();
        let found = violations(&program.entries);
        assert_eq!(found.is_empty(), expected == 0, "seed {seed}: {found:#?}\n{:#?}", program.entries);
        for violation in &found {
            let Violation::Race(race) = violation else { panic!("seed {seed}: {violation}") };
            assert!(!before[race.second][race.first], "seed {seed}: {race}");
            let shared = program.shared(race.first, race.second, race.hazard);
            let reported = race.bytes.iter().flat_map(|bytes| {
                let base = if matches!(bytes.memory, forebay_sync::PhysicalMemory::Heap(_)) { 0 } else { 100 };
                (bytes.range.start..bytes.range.end).map(move |at| base + at)
            });
            assert!(reported.clone().count() > 0 && reported.clone().all(|byte| shared.contains(&byte)), "seed {seed}");
            hosts += usize::from(!matches!(race.second_actor, Actor::Stream(_)));
        }
        racing += usize::from(expected > 0);
    }
    assert!((1500..4500).contains(&racing) && hosts > 500, "{racing} of 6000 race, {hosts} with the host");
}
