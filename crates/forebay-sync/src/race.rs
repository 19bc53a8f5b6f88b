//! The race checker: is every pair of commands with a hazard ordered by happens-before?
//!
//! It reads a finished list, not the inserter's reasoning, and shares nothing with it but the translation of regions to
//! physical bytes. Happens-before is a vector clock per stream: how far into every stream everything is complete before the
//! stream's next command starts. Barriers raise the stream's own entry, waits join the recording stream's clock, a host
//! join raises everything. For each physical byte the last write and, per stream, the last read since are remembered; a
//! command that touches the byte must start after them.

use std::collections::BTreeMap;
use std::fmt;

use forebay_base::{ByteRange, Command, EventId, Launch, StreamId};

use crate::barriers::StepBoundary;
use crate::physical::{PhysicalBytes, PhysicalMemory, TileMap};

/// How two accesses conflict, named by their order in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hazard {
    /// The second reads what the first writes.
    ReadAfterWrite,
    /// The second overwrites what the first reads.
    WriteAfterRead,
    /// The second overwrites what the first writes.
    WriteAfterWrite,
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hazard::ReadAfterWrite => "read after write",
            Hazard::WriteAfterRead => "write after read",
            Hazard::WriteAfterWrite => "write after write",
        })
    }
}

/// Where a command stands: which step, which index of the list, which stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The step, from 0.
    pub step: u32,
    /// Index in the list of commands.
    pub index: usize,
    /// The stream.
    pub stream: StreamId,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command {} ({}, step {})", self.index, self.stream, self.step)
    }
}

/// Two commands that touch common bytes, at least one writing, with nothing that orders them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Race {
    /// The command that stands first.
    pub first: Site,
    /// The command that stands second.
    pub second: Site,
    /// Common physical bytes.
    pub bytes: PhysicalBytes,
    /// How they conflict.
    pub hazard: Hazard,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {:?} between {} and {}: ", self.hazard, self.bytes, self.first, self.second)?;
        if self.first.stream == self.second.stream {
            write!(f, "no barrier of {} stands between them", self.first.stream)
        } else {
            write!(f, "no wait of {} reaches a record of {} after the first", self.second.stream, self.first.stream)
        }
    }
}

/// What is wrong with a list of commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two commands race.
    Race(Race),
    /// A wait names a record that does not stand before it.
    WaitBeforeRecord {
        /// The wait.
        wait: Site,
        /// Its event.
        event: EventId,
        /// Its generation.
        generation: u64,
    },
    /// A record does not raise its event's generation.
    Generation {
        /// The record.
        record: Site,
        /// Its event.
        event: EventId,
        /// Its generation.
        generation: u64,
        /// The event's generation before.
        before: u64,
    },
    /// One command's own regions overlap where they must not.
    Overlap {
        /// The command.
        site: Site,
        /// Which regions.
        reason: String,
    },
    /// A region has no physical bytes, or mapping stands where it must not.
    Mapping {
        /// Why.
        reason: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Race(race) => race.fmt(f),
            Violation::WaitBeforeRecord { wait, event, generation } => {
                write!(f, "{wait} waits for {event}.{generation}, which no command before it records")
            }
            Violation::Generation { record, event, generation, before } => {
                write!(f, "{record} records {event}.{generation}, which is not above its generation {before}")
            }
            Violation::Overlap { site, reason } => write!(f, "{site}: {reason}"),
            Violation::Mapping { reason } => f.write_str(reason),
        }
    }
}

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RaceReport {
    /// Commands that touch bytes, all steps together.
    pub work: usize,
    /// Pairs of accesses that were compared.
    pub comparisons: usize,
}

/// Checks `steps` repetitions of a list.
///
/// # Errors
/// Everything that is wrong, in list order; at most one race for each pair of commands and hazard.
pub fn check_races(
    prologue: &[Command],
    commands: &[Command],
    steps: u32,
    boundary: StepBoundary,
) -> Result<RaceReport, Vec<Violation>> {
    let tiles =
        TileMap::from_prologue(prologue).map_err(|error| vec![Violation::Mapping { reason: error.to_string() }])?;
    let mut checker = Checker { tiles, ..Checker::default() };
    for step in 0..steps {
        checker.generations.clear();
        checker.records.clear();
        for (index, command) in commands.iter().enumerate() {
            checker.command(step, index, command);
        }
        if boundary == StepBoundary::HostJoin {
            checker.host_join();
        }
    }
    if checker.violations.is_empty() {
        Ok(checker.report)
    } else {
        Err(checker.violations)
    }
}

/// Per stream, how many of its commands are complete.
type Clock = BTreeMap<StreamId, u32>;

fn join(clock: &mut Clock, other: &Clock) {
    for (&stream, &position) in other {
        let entry = clock.entry(stream).or_default();
        *entry = (*entry).max(position);
    }
}

/// An access that later ones are compared with.
#[derive(Clone, Copy)]
struct Access {
    site: Site,
    /// The command's position in its stream, from 1.
    position: u32,
}

/// The last accesses of a range of bytes.
#[derive(Clone, Default)]
struct Last {
    write: Option<Access>,
    /// The latest read of each stream since that write.
    reads: Vec<Access>,
}

#[derive(Default)]
struct Checker {
    tiles: TileMap,
    /// What each stream's next command starts after.
    now: BTreeMap<StreamId, Clock>,
    /// How many commands each stream has had.
    positions: Clock,
    generations: BTreeMap<EventId, u64>,
    /// What is complete when a record fires.
    records: BTreeMap<(EventId, u64), Clock>,
    bytes: BTreeMap<PhysicalMemory, BTreeMap<u64, (u64, Last)>>,
    report: RaceReport,
    violations: Vec<Violation>,
}

impl Checker {
    fn command(&mut self, step: u32, index: usize, command: &Command) {
        let Some(stream) = command.stream() else {
            let reason = format!("command {index} '{command}' maps within a step; mapping belongs in the prologue");
            self.violations.push(Violation::Mapping { reason });
            return;
        };
        let site = Site { step, index, stream };
        let position = self.positions.get(&stream).copied().unwrap_or(0);
        match command {
            Command::Barrier { .. } => {
                self.now.entry(stream).or_default().insert(stream, position);
            }
            Command::Record { event, generation, .. } => {
                let before = self.generations.insert(*event, *generation).unwrap_or(0);
                if *generation <= before {
                    let (event, generation) = (*event, *generation);
                    self.violations.push(Violation::Generation { record: site, event, generation, before });
                }
                let mut clock = self.now.get(&stream).cloned().unwrap_or_default();
                clock.insert(stream, position);
                self.records.insert((*event, *generation), clock);
            }
            Command::Wait { event, generation, .. } => match self.records.get(&(*event, *generation)) {
                Some(clock) => join(self.now.entry(stream).or_default(), clock),
                None => {
                    let (event, generation) = (*event, *generation);
                    self.violations.push(Violation::WaitBeforeRecord { wait: site, event, generation });
                }
            },
            work => {
                self.positions.insert(stream, position + 1);
                self.work(Access { site, position: position + 1 }, work);
            }
        }
    }

    fn host_join(&mut self) {
        let streams: Vec<StreamId> = self.positions.keys().copied().collect();
        for stream in streams {
            self.now.insert(stream, self.positions.clone());
        }
    }

    fn work(&mut self, access: Access, command: &Command) {
        self.report.work += 1;
        self.own_overlaps(access.site, command);
        let clock = self.now.entry(access.site.stream).or_default().clone();
        for (regions, writes) in [(command.reads(), false), (command.writes(), true)] {
            for region in regions.into_iter().filter(|region| !region.range.is_empty()) {
                match self.tiles.physical(region) {
                    Ok(pieces) => pieces.into_iter().for_each(|bytes| self.touch(access, bytes, writes, &clock)),
                    Err(error) => self.violations.push(Violation::Mapping { reason: error.to_string() }),
                }
            }
        }
    }

    fn touch(&mut self, access: Access, bytes: PhysicalBytes, writes: bool, clock: &Clock) {
        let map = self.bytes.entry(bytes.memory).or_default();
        let mut found: Vec<(Access, ByteRange, Hazard)> = Vec::new();
        for start in pieces(map, bytes.range) {
            let (end, last) = map.get_mut(&start).expect("a piece that was just cut");
            let range = ByteRange::new(start, *end);
            let hazard = if writes { Hazard::WriteAfterWrite } else { Hazard::ReadAfterWrite };
            found.extend(last.write.map(|earlier| (earlier, range, hazard)));
            if writes {
                found.extend(last.reads.iter().map(|&earlier| (earlier, range, Hazard::WriteAfterRead)));
                *last = Last { write: Some(access), reads: Vec::new() };
            } else {
                last.reads.retain(|earlier| earlier.site.stream != access.site.stream);
                last.reads.push(access);
            }
        }
        for (earlier, range, hazard) in found {
            self.compare(earlier, access, PhysicalBytes { memory: bytes.memory, range }, hazard, clock);
        }
    }

    fn compare(&mut self, first: Access, second: Access, bytes: PhysicalBytes, hazard: Hazard, clock: &Clock) {
        if (first.site.step, first.site.index) == (second.site.step, second.site.index) {
            return;
        }
        self.report.comparisons += 1;
        let complete = clock.get(&first.site.stream).copied().unwrap_or(0);
        if complete >= first.position {
            return;
        }
        let known = |violation: &Violation| {
            matches!(violation, Violation::Race(race)
                if race.first == first.site && race.second == second.site && race.hazard == hazard)
        };
        if !self.violations.iter().any(known) {
            let race = Race { first: first.site, second: second.site, bytes, hazard };
            self.violations.push(Violation::Race(race));
        }
    }

    /// A command's own regions: a copy's must be apart, a launch's written ones apart from each other and from what it
    /// reads, but for updates in place that its kernel allows on the very same region.
    fn own_overlaps(&mut self, site: Site, command: &Command) {
        let problem = match command {
            Command::Copy { from, to, .. } if from.overlaps(*to) => Some(format!("copies {from} onto itself at {to}")),
            Command::Launch { launch, .. } => launch_overlap(launch),
            _ => None,
        };
        self.violations.extend(problem.map(|reason| Violation::Overlap { site, reason }));
    }
}

fn launch_overlap(launch: &Launch) -> Option<String> {
    for (index, write) in launch.writes.iter().enumerate() {
        for (other, read) in launch.reads.iter().enumerate() {
            let in_place = launch.kernel.in_place().contains(&(index, other)) && write.region == read.region;
            if write.region.overlaps(read.region) && !in_place {
                return Some(format!("writes {} over its input {}", write.region, read.region));
            }
        }
        let others = launch.writes[index + 1..].iter().map(|binding| binding.region).chain(launch.scratch);
        if let Some(other) = others.into_iter().find(|other| write.region.overlaps(*other)) {
            return Some(format!("writes {} and {other}, which overlap", write.region));
        }
    }
    let scratch = launch.scratch?;
    let read = launch.reads.iter().find(|binding| binding.region.overlaps(scratch))?;
    Some(format!("uses {scratch} as scratch over its input {}", read.region))
}

/// Cuts the pieces of a map at the ends of a range, fills its holes, and lists the pieces inside by their start.
fn pieces(map: &mut BTreeMap<u64, (u64, Last)>, range: ByteRange) -> Vec<u64> {
    for cut in [range.start, range.end] {
        let before = map.range(..cut).next_back().map(|(&start, (end, _))| (start, *end));
        if let Some((start, end)) = before.filter(|&(_, end)| end > cut) {
            let last = map[&start].1.clone();
            map.insert(start, (cut, last.clone()));
            map.insert(cut, (end, last));
        }
    }
    let mut starts = Vec::new();
    let mut holes = Vec::new();
    let mut reached = range.start;
    for (&start, (end, _)) in map.range(range.start..range.end) {
        if start > reached {
            holes.push((reached, start));
        }
        starts.push(start);
        reached = *end;
    }
    if reached < range.end {
        holes.push((reached, range.end));
    }
    for (start, end) in holes {
        map.insert(start, (end, Last::default()));
        starts.push(start);
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::{MemoryId, Region};

    fn copy(stream: u32, from: u64, to: u64) -> Command {
        let region = |offset| Region::new(MemoryId(0), offset * 16, 16);
        Command::Copy { stream: StreamId(stream), from: region(from), to: region(to) }
    }

    fn races(commands: &[Command]) -> Vec<Hazard> {
        match check_races(&[], commands, 1, StepBoundary::HostJoin) {
            Ok(_) => Vec::new(),
            Err(violations) => violations
                .iter()
                .map(|violation| match violation {
                    Violation::Race(race) => race.hazard,
                    other => panic!("{other}"),
                })
                .collect(),
        }
    }

    #[test]
    fn each_hazard_is_found_and_a_barrier_orders_it() {
        let cases = [
            ([copy(0, 0, 1), copy(0, 1, 2)], Hazard::ReadAfterWrite),
            ([copy(0, 0, 1), copy(0, 2, 0)], Hazard::WriteAfterRead),
            ([copy(0, 0, 1), copy(0, 2, 1)], Hazard::WriteAfterWrite),
        ];
        for ([first, second], hazard) in cases {
            assert_eq!(races(&[first.clone(), second.clone()]), [hazard]);
            assert_eq!(races(&[first, Command::Barrier { stream: StreamId(0) }, second]), []);
        }
    }

    #[test]
    fn common_reads_and_disjoint_writes_need_nothing() {
        assert_eq!(races(&[copy(0, 0, 1), copy(0, 0, 2), copy(1, 0, 3)]), []);
    }

    #[test]
    fn a_wait_orders_across_streams_and_transitively() {
        let record = |stream, event| Command::Record { stream: StreamId(stream), event: EventId(event), generation: 1 };
        let wait = |stream, event| Command::Wait { stream: StreamId(stream), event: EventId(event), generation: 1 };
        assert_eq!(races(&[copy(0, 0, 1), copy(1, 1, 2)]), [Hazard::ReadAfterWrite]);
        assert_eq!(races(&[copy(0, 0, 1), record(0, 0), wait(1, 0), copy(1, 1, 2)]), []);
        let through = [copy(0, 0, 1), record(0, 0), wait(1, 0), record(1, 1), wait(2, 1), copy(2, 1, 2)];
        assert_eq!(races(&through), []);
        // A wait does not order later commands after earlier ones of its own stream.
        let own = [copy(1, 0, 1), copy(0, 3, 4), record(0, 0), wait(1, 0), copy(1, 1, 2)];
        assert_eq!(races(&own), [Hazard::ReadAfterWrite]);
    }

    #[test]
    fn the_next_step_is_checked_against_this_one() {
        let list = [copy(0, 0, 1), Command::Barrier { stream: StreamId(0) }, copy(0, 1, 0)];
        assert!(check_races(&[], &list, 2, StepBoundary::HostJoin).is_ok());
        let error = check_races(&[], &list, 2, StepBoundary::Streams).unwrap_err();
        assert!(error.iter().any(|violation| matches!(violation, Violation::Race(race) if race.second.step == 1)));
    }

    #[test]
    fn a_wait_without_a_record_is_reported() {
        let wait = Command::Wait { stream: StreamId(0), event: EventId(0), generation: 1 };
        let error = check_races(&[], &[wait], 1, StepBoundary::HostJoin).unwrap_err();
        assert!(matches!(error[0], Violation::WaitBeforeRecord { .. }));
    }
}
