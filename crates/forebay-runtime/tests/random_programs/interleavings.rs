//! Every order in which a small trace can run, according to the contract of commands alone; nothing here is shared with the checker.
//!
//! The closure of the contract's rules determines what must precede what. Then all permitted orders are run, one command at a time, on
//! symbols: a command writes a hash of itself and of everything that it reads. Two orders that have run the same commands and left the same
//! contents are equivalent from there on.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{Hash, Hasher};

use forebay_base::{ByteRange, Command, EventId, HeapId, MemoryId, Region, StreamId};
use forebay_sync::race::{HostAction, TraceEntry};

/// A set of entries.
type Entries = u128;

/// Which entries of a trace must be complete before each entry starts.
pub struct Precedence {
    before: Vec<Entries>,
}

/// The bytes that one entry uses, at their actual locations ([`Bytes`]).
#[derive(Clone, Debug, Default)]
pub struct Uses {
    pub reads: Vec<Bytes>,
    pub writes: Vec<Bytes>,
}

/// The bytes of a heap, or of a memory into which nothing is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes {
    pub heap: Option<HeapId>,
    /// 0 for heaps.
    pub memory: MemoryId,
    pub range: ByteRange,
}

impl Bytes {
    /// Returns whether the two have a byte in common.
    fn overlap(&self, other: &Bytes) -> bool {
        (self.heap, self.memory) == (other.heap, other.memory) && self.range.overlaps(other.range)
    }
}

/// The current mapping, one tile range after the other in the order of mapping.
#[derive(Default)]
struct Mapping(Vec<(Region, HeapId, u64)>);

impl Mapping {
    fn bytes(&self, region: Region) -> Vec<Bytes> {
        let own = self.0.iter().filter(|(mapped, ..)| mapped.memory == region.memory);
        let parts: Vec<Bytes> = own
            .filter_map(|(mapped, heap, offset_bytes)| {
                let part = mapped.range.intersection(region.range)?;
                let start = offset_bytes + part.start - mapped.range.start;
                let range = ByteRange::new(start, start + part.len());
                Some(Bytes { heap: Some(*heap), memory: MemoryId(0), range })
            })
            .collect();
        if parts.is_empty() {
            return vec![Bytes { heap: None, memory: region.memory, range: region.range }];
        }
        parts
    }

    fn unmap(&mut self, region: Region) {
        for (mapped, heap, offset_bytes) in std::mem::take(&mut self.0) {
            let ends = [(mapped.range.start, region.range.start), (region.range.end, mapped.range.end)];
            if mapped.memory != region.memory || !mapped.range.overlaps(region.range) {
                self.0.push((mapped, heap, offset_bytes));
                continue;
            }
            for (start, end) in ends.into_iter().filter(|(start, end)| start < end) {
                let rest = Region { memory: mapped.memory, range: ByteRange::new(start, end) };
                self.0.push((rest, heap, offset_bytes + start - mapped.range.start));
            }
        }
    }
}

/// Returns what each entry of a trace uses, and the bytes of regions at its end. Unmapping takes bytes away from their users, so it counts
/// as writing them.
pub fn uses(trace: &[TraceEntry], live: &[Region]) -> (Vec<Uses>, Vec<Bytes>) {
    let mut mapping = Mapping::default();
    let mut uses = Vec::with_capacity(trace.len());
    for entry in trace {
        let (reads, writes) = match entry {
            TraceEntry::Command(Command::Unmap { region }) => (Vec::new(), vec![*region]),
            TraceEntry::Command(command) => (command.reads(), command.writes()),
            TraceEntry::Host(HostAction::Read(region)) => (vec![*region], Vec::new()),
            TraceEntry::Host(HostAction::Write(region)) => (Vec::new(), vec![*region]),
            TraceEntry::Host(_) => (Vec::new(), Vec::new()),
        };
        let bytes = |regions: Vec<Region>| regions.into_iter().flat_map(|region| mapping.bytes(region)).collect();
        uses.push(Uses { reads: bytes(reads), writes: bytes(writes) });
        match *entry {
            TraceEntry::Command(Command::Map { region, heap, heap_offset_bytes }) => {
                mapping.0.push((region, heap, heap_offset_bytes));
            }
            TraceEntry::Command(Command::Unmap { region }) => mapping.unmap(region),
            _ => {}
        }
    }
    let live = live.iter().flat_map(|&region| mapping.bytes(region)).collect();
    (uses, live)
}

/// The state of a stream up to the current entry of a trace.
#[derive(Default)]
struct StreamSoFar {
    /// All commands.
    all: Entries,
    /// The latest barrier, and all waits.
    gates: Entries,
    barrier: Entries,
}

impl Precedence {
    /// Applies the rules, entry by entry: the host acts immediately, a stream's commands come after its latest barrier and its waits, and
    /// nothing runs before the host has submitted it. A record comes after everything before it in its stream, a wait after its record.
    pub fn new(trace: &[TraceEntry]) -> Precedence {
        assert!(trace.len() <= Entries::BITS as usize, "{} entries are too many", trace.len());
        let mut streams: BTreeMap<StreamId, StreamSoFar> = BTreeMap::new();
        let mut records: BTreeMap<(EventId, u64), Entries> = BTreeMap::new();
        let mut host: Entries = 0;
        let mut before: Vec<Entries> = Vec::new();
        for (index, entry) in trace.iter().enumerate() {
            let this: Entries = 1 << index;
            let mut after = host;
            match entry {
                TraceEntry::Host(action) => {
                    host = this;
                    match action {
                        HostAction::WaitEvent { event, generation } => after |= records[&(*event, *generation)],
                        HostAction::Synchronize(stream) => after |= streams.entry(*stream).or_default().all,
                        HostAction::Read(_) | HostAction::Write(_) => {}
                    }
                }
                TraceEntry::Command(command) => {
                    let Some(stream) = command.stream() else {
                        host = this;
                        before.push(closure(after, &before));
                        continue;
                    };
                    let so_far = streams.entry(stream).or_default();
                    after |= so_far.gates | so_far.barrier;
                    match command {
                        Command::Barrier { .. } => {
                            after |= so_far.all;
                            so_far.barrier = this;
                        }
                        Command::Record { event, generation, .. } => {
                            after |= so_far.all;
                            records.insert((*event, *generation), this);
                        }
                        Command::Wait { event, generation, .. } => {
                            after |= records[&(*event, *generation)];
                            so_far.gates |= this;
                        }
                        _ => {}
                    }
                    so_far.all |= this;
                }
            }
            before.push(closure(after, &before));
        }
        Precedence { before }
    }

    /// Returns whether an entry is complete before another, later one starts.
    pub fn orders(&self, first: usize, second: usize) -> bool {
        self.before[second] >> first & 1 == 1
    }
}

/// Returns the entries and everything before them.
fn closure(entries: Entries, before: &[Entries]) -> Entries {
    let members = before.iter().enumerate().filter(|(index, _)| entries >> index & 1 == 1);
    members.fold(entries, |all, (_, before)| all | before)
}

/// Returns the pairs of entries that share bytes, at least one of them writing, with no order between them.
pub fn races(uses: &[Uses], precedence: &Precedence) -> BTreeSet<(usize, usize)> {
    let share = |one: &[Bytes], other: &[Bytes]| one.iter().any(|a| other.iter().any(|b| a.overlap(b)));
    let hazard = |first: &Uses, second: &Uses| {
        share(&first.writes, &second.reads)
            || share(&first.writes, &second.writes)
            || share(&first.reads, &second.writes)
    };
    let pairs = (0..uses.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
    let unordered = pairs.filter(|&(first, second)| !precedence.orders(first, second));
    unordered.filter(|&(first, second)| hazard(&uses[first], &uses[second])).collect()
}

/// An entry that uses bytes.
struct Access {
    /// The positions of the accesses before it.
    before: u64,
    /// The cells that it reads.
    reads: Vec<usize>,
    writes: Vec<usize>,
    /// Whether the host reads.
    is_result: bool,
}

/// The accesses that have run, the contents of the bytes, and what the host has read.
type Situation = (u64, Vec<u64>, u64);

/// The outcome of all orders of a trace.
pub struct Outcome {
    /// Whether two orders give different results: what the host reads, and the contents of live regions at the end.
    pub can_change: bool,
    /// The number of situations examined.
    pub situations: usize,
}

/// Runs all orders until two have different results.
pub fn explore(trace: &[TraceEntry], uses: &[Uses], precedence: &Precedence, live: &[Bytes]) -> Outcome {
    let cells = Cells::of(uses, live);
    let accesses = accesses(trace, uses, precedence, &cells);
    let live: Vec<usize> = live.iter().flat_map(|bytes| cells.of_bytes(bytes)).collect();
    let everything = (1u64 << accesses.len()) - 1;
    let first: Situation = (0, (0..cells.count as u64).collect(), 0);
    let mut seen: HashSet<Situation> = HashSet::from([first.clone()]);
    let mut open = vec![first];
    let mut result = None;
    while let Some((done, contents, read)) = open.pop() {
        if done == everything {
            let reached: (u64, Vec<u64>) = (read, live.iter().map(|&cell| contents[cell]).collect());
            if *result.get_or_insert_with(|| reached.clone()) != reached {
                return Outcome { can_change: true, situations: seen.len() };
            }
        }
        for (place, access) in accesses.iter().enumerate() {
            if done >> place & 1 == 1 || access.before & !done != 0 {
                continue;
            }
            let next = run(place, access, (done, contents.clone(), read));
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    Outcome { can_change: false, situations: seen.len() }
}

fn run(place: usize, access: &Access, (done, mut contents, read): Situation) -> Situation {
    let found: Vec<u64> = access.reads.iter().map(|&cell| contents[cell]).collect();
    let hash = |of: usize| {
        let mut hasher = DefaultHasher::new();
        (place, of, &found).hash(&mut hasher);
        hasher.finish()
    };
    for (of, &cell) in access.writes.iter().enumerate() {
        contents[cell] = hash(of);
    }
    let read = if access.is_result { read.rotate_left(1) ^ hash(0) } else { read };
    (done | 1 << place, contents, read)
}

/// Returns the entries that use bytes, with the order between them.
fn accesses(trace: &[TraceEntry], uses: &[Uses], precedence: &Precedence, cells: &Cells) -> Vec<Access> {
    let mut entries: Vec<usize> = Vec::new();
    let mut accesses = Vec::new();
    for (index, Uses { reads, writes }) in uses.iter().enumerate() {
        if reads.is_empty() && writes.is_empty() {
            continue;
        }
        let ordered = entries.iter().enumerate().filter(|&(_, &earlier)| precedence.orders(earlier, index));
        accesses.push(Access {
            before: ordered.fold(0, |before, (place, _)| before | 1 << place),
            reads: reads.iter().flat_map(|bytes| cells.of_bytes(bytes)).collect(),
            writes: writes.iter().flat_map(|bytes| cells.of_bytes(bytes)).collect(),
            is_result: matches!(trace[index], TraceEntry::Host(HostAction::Read(_))),
        });
        entries.push(index);
    }
    assert!(accesses.len() < 64, "{} accesses are too many", accesses.len());
    accesses
}

/// The bytes, cut wherever any access begins or ends.
struct Cells {
    /// For each heap or memory, the cuts and the number of the first cell.
    rows: BTreeMap<(Option<HeapId>, MemoryId), (Vec<u64>, usize)>,
    count: usize,
}

impl Cells {
    fn of(uses: &[Uses], live: &[Bytes]) -> Cells {
        let mut cuts: BTreeMap<(Option<HeapId>, MemoryId), BTreeSet<u64>> = BTreeMap::new();
        let used = uses.iter().flat_map(|uses| uses.reads.iter().chain(&uses.writes));
        for bytes in used.chain(live) {
            cuts.entry((bytes.heap, bytes.memory)).or_default().extend([bytes.range.start, bytes.range.end]);
        }
        let mut cells = Cells { rows: BTreeMap::new(), count: 0 };
        for (row, cuts) in cuts {
            let cuts: Vec<u64> = cuts.into_iter().collect();
            let first = cells.count;
            cells.count += cuts.len();
            cells.rows.insert(row, (cuts, first));
        }
        cells
    }

    fn of_bytes(&self, bytes: &Bytes) -> std::ops::Range<usize> {
        let (cuts, first) = &self.rows[&(bytes.heap, bytes.memory)];
        let place = |at: u64| first + cuts.partition_point(|&cut| cut < at);
        place(bytes.range.start)..place(bytes.range.end)
    }
}
