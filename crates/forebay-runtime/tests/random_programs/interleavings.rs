//! Every order in which a small trace may run, by the contract of commands alone; nothing here is shared with the checker.
//!
//! The closure of the contract's rules gives what must precede what. Then all orders that it allows are run, one command at
//! a time, on symbols: what a command writes is a hash of the command and of all that it reads. Two orders that have run
//! the same commands and left the same contents are one from there on.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{Hash, Hasher};

use forebay_base::{Command, EventId, Region, StreamId};
use forebay_sync::race::{HostAction, TraceEntry};

/// A set of entries.
type Entries = u128;

/// What must be complete before each entry of a trace starts.
pub struct Precedence {
    before: Vec<Entries>,
}

/// What one entry reads and writes.
pub fn uses(entry: &TraceEntry) -> (Vec<Region>, Vec<Region>) {
    match entry {
        TraceEntry::Command(command) => (command.reads(), command.writes()),
        TraceEntry::Host(HostAction::Read(region)) => (vec![*region], Vec::new()),
        TraceEntry::Host(HostAction::Write(region)) => (Vec::new(), vec![*region]),
        TraceEntry::Host(_) => (Vec::new(), Vec::new()),
    }
}

/// One stream as far as a trace has been read.
#[derive(Default)]
struct StreamSoFar {
    /// All commands.
    all: Entries,
    /// The latest barrier, and all waits.
    gates: Entries,
    barrier: Entries,
}

impl Precedence {
    /// The rules, entry by entry: at once on the host, in a stream after its latest barrier and its waits, nowhere before
    /// the host submitted it. A record comes after everything before it in its stream, a wait after its record.
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

    /// Whether an entry is complete before another, later one starts.
    pub fn orders(&self, first: usize, second: usize) -> bool {
        self.before[second] >> first & 1 == 1
    }
}

/// Entries and everything before them.
fn closure(entries: Entries, before: &[Entries]) -> Entries {
    let members = before.iter().enumerate().filter(|(index, _)| entries >> index & 1 == 1);
    members.fold(entries, |all, (_, before)| all | before)
}

/// Pairs of entries that share bytes of which one writes, with no order between them.
pub fn races(trace: &[TraceEntry], precedence: &Precedence) -> BTreeSet<(usize, usize)> {
    let uses: Vec<_> = trace.iter().map(uses).collect();
    let share = |one: &[Region], other: &[Region]| one.iter().any(|a| other.iter().any(|b| a.overlaps(*b)));
    let hazard = |first: usize, second: usize| {
        let ((reads, writes), (later_reads, later_writes)) = (&uses[first], &uses[second]);
        share(writes, later_reads) || share(writes, later_writes) || share(reads, later_writes)
    };
    let pairs = (0..trace.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
    pairs.filter(|&(first, second)| !precedence.orders(first, second) && hazard(first, second)).collect()
}

/// An entry that uses bytes.
struct Access {
    /// Places of the accesses before it.
    before: u64,
    /// Cells of contents.
    reads: Vec<usize>,
    writes: Vec<usize>,
    /// Whether the host reads.
    is_result: bool,
}

/// What has run, what the bytes hold, and what the host has read.
type Situation = (u64, Vec<u64>, u64);

/// What all orders of a trace lead to.
pub struct Outcome {
    /// Whether two of them give different results: what the host reads, and what live regions hold at the end.
    pub can_change: bool,
    /// Situations that were looked at.
    pub situations: usize,
}

/// Runs all orders, until two have different results.
pub fn explore(trace: &[TraceEntry], precedence: &Precedence, live: &[Region]) -> Outcome {
    let cells = Cells::of(trace, live);
    let accesses = accesses(trace, precedence, &cells);
    let live: Vec<usize> = live.iter().flat_map(|&region| cells.of_region(region)).collect();
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

/// The entries that use bytes, with the order between them.
fn accesses(trace: &[TraceEntry], precedence: &Precedence, cells: &Cells) -> Vec<Access> {
    let mut entries: Vec<usize> = Vec::new();
    let mut accesses = Vec::new();
    for (index, entry) in trace.iter().enumerate() {
        let (reads, writes) = uses(entry);
        if reads.is_empty() && writes.is_empty() {
            continue;
        }
        let ordered = entries.iter().enumerate().filter(|(_, &earlier)| precedence.orders(earlier, index));
        accesses.push(Access {
            before: ordered.fold(0, |before, (place, _)| before | 1 << place),
            reads: reads.into_iter().flat_map(|region| cells.of_region(region)).collect(),
            writes: writes.into_iter().flat_map(|region| cells.of_region(region)).collect(),
            is_result: matches!(entry, TraceEntry::Host(HostAction::Read(_))),
        });
        entries.push(index);
    }
    assert!(accesses.len() < 64, "{} accesses are too many", accesses.len());
    accesses
}

/// Bytes cut wherever any region begins or ends.
struct Cells {
    /// Per memory, the cuts, and the number of the first cell.
    memories: BTreeMap<u32, (Vec<u64>, usize)>,
    count: usize,
}

impl Cells {
    fn of(trace: &[TraceEntry], live: &[Region]) -> Cells {
        let mut cuts: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        let used = trace.iter().map(uses).flat_map(|(reads, writes)| reads.into_iter().chain(writes));
        for region in used.chain(live.iter().copied()) {
            cuts.entry(region.memory.0).or_default().extend([region.range.start, region.range.end]);
        }
        let mut cells = Cells { memories: BTreeMap::new(), count: 0 };
        for (memory, cuts) in cuts {
            let cuts: Vec<u64> = cuts.into_iter().collect();
            let first = cells.count;
            cells.count += cuts.len();
            cells.memories.insert(memory, (cuts, first));
        }
        cells
    }

    fn of_region(&self, region: Region) -> std::ops::Range<usize> {
        let (cuts, first) = &self.memories[&region.memory.0];
        let place = |at: u64| first + cuts.partition_point(|&cut| cut < at);
        place(region.range.start)..place(region.range.end)
    }
}
