//! Residency: which chunk is on the device when.
//!
//! Every chunk must be on the device for the launches that touch it. Between two such launches lies a *gap*: the chunk is
//! kept, or it leaves and comes back. Keeping a gap saves transfers and costs bytes for as long as the gap lasts, so gaps are
//! kept in order of time saved per byte and nanosecond held, as long as they fit (short gaps first: with equal chunks this
//! is Belady's rule seen from the gaps). What remains free then lets transfers start early and end late, so that they hide
//! behind launches: the longer the way ([`crate::stores`]), the earlier.
//!
//! Chunks that last from step to step have one more gap, from their last launch round to their first. A chunk with any gap
//! not kept spends the step's boundary on the host: then its host copy is valid whenever it has not been changed in this
//! step, and a step that stops before its updates has lost nothing.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_base::ByteRange;
use forebay_model::program::{Program, Role};

use crate::cost::Costs;
use crate::liveness::{Access, Chunk, Liveness, Owner};

/// Alignment in bytes of what is placed on the device.
pub const DEVICE_ALIGNMENT_BYTES: u64 = 256;

/// How tightly to fill the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filling {
    /// Bytes that chunks kept over gaps may take together with what launches need.
    pub keep_bytes: u64,
    /// Bytes that transfers under way may take in addition to those: the whole capacity.
    pub transfer_bytes: u64,
    /// Whether every gap is left, even those between neighbouring launches: every launch finds the device empty.
    pub isolate: bool,
    /// How many bytes of a buffer may have one base because parts of them stay from launch to launch, even where no single
    /// launch touches as many.
    pub joined_bytes: u64,
}

/// One stay of a chunk on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The chunk.
    pub chunk: usize,
    /// First launch during which the bytes are taken: a fetch stands in the list before it.
    pub start: usize,
    /// Last launch during which the bytes are taken.
    pub end: usize,
    /// Which of the chunk's accesses fall into the stay.
    pub accesses: Range<usize>,
    /// Whether the stay begins with a copy from the host.
    pub fetch: bool,
    /// Whether the bytes are copied to the host.
    pub save: bool,
    /// The launch after which that copy stands in the list: the last one that writes them, or a later one.
    pub save_after: usize,
}

/// Which chunk is on the device when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residency {
    /// All stays, those of one chunk in order of time.
    pub segments: Vec<Segment>,
    /// By chunk: whether it is on the device between steps.
    pub home_on_device: Vec<bool>,
}

/// What residency needs to know about a chunk's owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    /// Whether it lasts from step to step.
    pub persistent: bool,
    /// Whether the host writes it before every step.
    pub input: bool,
    /// Whether the host reads it after every step.
    pub output: bool,
}

/// The time between two accesses of a chunk that follow each other (cyclically where it lasts from step to step).
struct Gap {
    chunk: usize,
    /// The access before the gap; the last access for the gap round the step's boundary.
    after: usize,
    wraps: bool,
    bytes: u64,
    /// Launches inside the gap, as up to two ranges.
    inside: [Range<usize>; 2],
    /// Nanoseconds saved per byte and nanosecond when the gap is kept.
    density: f64,
}

/// Decides which gaps to keep. What steps change is away from the device between steps if `changing_away`. Transfers get time
/// by [`stretch`], once it is known where they go.
pub fn residency(
    program: &Program,
    live: &Liveness,
    costs: &Costs,
    filling: Filling,
    lost_bytes: &[u64],
    changing_away: bool,
) -> Residency {
    let kinds: Vec<Kind> = live.chunks.iter().map(|chunk| kind(program, chunk)).collect();
    residency_of(&kinds, live, costs, filling, lost_bytes, changing_away)
}

/// The same for chunks of these kinds, whoever owns them.
pub fn residency_of(
    kinds: &[Kind],
    live: &Liveness,
    costs: &Costs,
    filling: Filling,
    lost_bytes: &[u64],
    changing_away: bool,
) -> Residency {
    let mut usage = mandatory_usage(live);
    usage.iter_mut().zip(lost_bytes).for_each(|(used, lost)| *used += lost);
    let starts = launch_starts(costs);
    let gaps = sorted_gaps(live, kinds, costs, &starts);
    let barred = live.chunks.iter().map(|chunk| changing_away && chunk.is_changed()).collect();
    let kept = keep_gaps(live, &gaps, &mut usage, filling, barred);
    let mut segments = Vec::new();
    let mut home_on_device = vec![false; live.chunks.len()];
    for (index, chunk) in live.chunks.iter().enumerate() {
        home_on_device[index] =
            kinds[index].persistent && kept[index].len() == chunk.accesses.len() && kept[index].iter().all(|&k| k);
        segments.extend(stays(index, chunk, kinds[index], &kept[index], home_on_device[index], live.launch_count));
    }
    Residency { segments, home_on_device }
}

/// Bytes that a chunk takes on the device, alignment included.
pub fn device_bytes(chunk: &Chunk) -> u64 {
    chunk.range.len().next_multiple_of(DEVICE_ALIGNMENT_BYTES)
}

/// Bytes that each launch needs at once: its operands and its scratch.
pub fn mandatory_usage(live: &Liveness) -> Vec<u64> {
    let mut usage = vec![0u64; live.launch_count];
    for chunk in &live.chunks {
        for access in &chunk.accesses {
            usage[access.launch] += device_bytes(chunk);
        }
    }
    usage
}

/// What a program says of a chunk's owner.
pub fn kind(program: &Program, chunk: &Chunk) -> Kind {
    let Owner::Buffer(buffer) = chunk.owner else { return Kind::default() };
    let role = program.buffer(buffer).role;
    Kind {
        persistent: role.is_persistent(),
        input: role == Role::Input,
        output: program.outputs.iter().any(|port| port.operand.buffer == buffer),
    }
}

/// When each launch starts if nothing waits, and when the last one ends, in nanoseconds.
pub(crate) fn launch_starts(costs: &Costs) -> Vec<u64> {
    let mut starts = vec![0];
    for &duration in &costs.launch_ns {
        starts.push(starts[starts.len() - 1] + duration);
    }
    starts
}

fn sorted_gaps(live: &Liveness, kinds: &[Kind], costs: &Costs, starts: &[u64]) -> Vec<Gap> {
    let count = live.launch_count;
    let mut gaps = Vec::new();
    for (index, chunk) in live.chunks.iter().enumerate() {
        let accesses = &chunk.accesses;
        let steps = if kinds[index].persistent { accesses.len() } else { accesses.len().saturating_sub(1) };
        for after in 0..steps {
            let wraps = after + 1 == accesses.len();
            let next = accesses[(after + 1) % accesses.len()];
            let inside = if wraps {
                [accesses[after].launch + 1..count, 0..next.launch]
            } else {
                [accesses[after].launch + 1..next.launch, 0..0]
            };
            let changed = accesses[..=after].iter().any(|access| access.writes);
            let bytes = device_bytes(chunk);
            let fetch = if next.reads { costs.copy_in_ns(bytes) } else { 0 };
            let save = if changed && next.reads { costs.copy_out_ns(bytes) } else { 0 };
            let held_ns: u64 =
                inside.iter().map(|range| starts[range.end.max(range.start)] - starts[range.start]).sum();
            let density = (fetch + save) as f64 / (bytes as f64 * (held_ns as f64 + 1.0));
            gaps.push(Gap { chunk: index, after, wraps, bytes, inside, density });
        }
    }
    gaps.sort_by(|a, b| b.density.total_cmp(&a.density).then(a.chunk.cmp(&b.chunk)).then(a.after.cmp(&b.after)));
    gaps
}

/// By chunk and gap (counted by the access before it): whether the gap is kept. Chunks that are `barred` spend the boundary
/// on the host.
fn keep_gaps(
    live: &Liveness,
    gaps: &[Gap],
    usage: &mut [u64],
    filling: Filling,
    mut barred: Vec<bool>,
) -> Vec<Vec<bool>> {
    let mut kept: Vec<Vec<bool>> = vec![Vec::new(); live.chunks.len()];
    for gap in gaps {
        let list = &mut kept[gap.chunk];
        list.resize(list.len().max(gap.after + 1), false);
    }
    if filling.isolate {
        return kept;
    }
    let mut extents = Extents::new(live, filling.joined_bytes);
    let mut try_all = |kept: &mut Vec<Vec<bool>>, usage: &mut [u64], barred: &[bool]| {
        for gap in gaps {
            let fits = |range: &Range<usize>, usage: &[u64]| {
                usage[range.clone()].iter().all(|&used| used + gap.bytes <= filling.keep_bytes)
            };
            let allowed = gap.density > 0.0 && !kept[gap.chunk][gap.after] && !(gap.wraps && barred[gap.chunk]);
            if allowed && gap.inside.iter().all(|range| fits(range, usage)) && extents.join(gap) {
                kept[gap.chunk][gap.after] = true;
                occupy(usage, &gap.inside, gap.bytes);
            }
        }
    };
    try_all(&mut kept, usage, &barred);
    // A chunk that leaves within the step spends the boundary on the host.
    let mut freed = false;
    for gap in gaps.iter().filter(|gap| gap.wraps) {
        let list = &kept[gap.chunk];
        let leaves = list.iter().enumerate().any(|(after, &keep)| !keep && after != gap.after);
        if leaves && list[gap.after] {
            kept[gap.chunk][gap.after] = false;
            barred[gap.chunk] = true;
            freed = true;
            for range in &gap.inside {
                usage[range.clone()].iter_mut().for_each(|used| *used -= gap.bytes);
            }
        } else if leaves {
            barred[gap.chunk] = true;
        }
    }
    if freed {
        try_all(&mut kept, usage, &barred);
    }
    kept
}

/// How many bytes of a buffer have one base, because launches touch parts of it side by side and parts stay from one to the
/// next. Neighbouring parts that overlap would tie a whole buffer together, though little of it is on the device at any time.
struct Extents {
    /// By chunk and access: the node of its owner and launch.
    nodes: Vec<Vec<usize>>,
    parents: Vec<usize>,
    /// By root: the bytes that have one base.
    ranges: Vec<ByteRange>,
    /// A base may serve so many bytes even where no single launch asks for that.
    free_bytes: u64,
}

impl Extents {
    fn new(live: &Liveness, free_bytes: u64) -> Extents {
        let mut known: BTreeMap<(Owner, usize), usize> = BTreeMap::new();
        let mut extents = Extents { nodes: Vec::new(), parents: Vec::new(), ranges: Vec::new(), free_bytes };
        for chunk in &live.chunks {
            let node = |access: &Access| {
                let node = *known.entry((chunk.owner, access.launch)).or_insert(extents.ranges.len());
                match extents.ranges.get_mut(node) {
                    Some(range) => *range = hull(*range, chunk.range),
                    None => extents.ranges.push(chunk.range),
                }
                node
            };
            extents.nodes.push(chunk.accesses.iter().map(node).collect());
        }
        extents.parents = (0..extents.ranges.len()).collect();
        extents
    }

    /// Joins what a kept gap ties together; says whether it may be.
    fn join(&mut self, gap: &Gap) -> bool {
        let nodes = &self.nodes[gap.chunk];
        let (a, b) = (nodes[gap.after], nodes[(gap.after + 1) % nodes.len()]);
        let [a, b] = [a, b].map(|node| root(&mut self.parents, node));
        let (joined, one) = (hull(self.ranges[a], self.ranges[b]), self.ranges[a].len().max(self.ranges[b].len()));
        if joined.len() > one.max(self.free_bytes) {
            return false;
        }
        self.parents[a.max(b)] = a.min(b);
        self.ranges[a.min(b)] = joined;
        true
    }
}

fn hull(a: ByteRange, b: ByteRange) -> ByteRange {
    ByteRange::new(a.start.min(b.start), a.end.max(b.end))
}

/// The root of a node in a forest of parents, whose paths become shorter.
pub(crate) fn root(parents: &mut [usize], mut node: usize) -> usize {
    while parents[node] != node {
        parents[node] = parents[parents[node]];
        node = parents[node];
    }
    node
}

fn occupy(usage: &mut [u64], ranges: &[Range<usize>], bytes: u64) {
    for range in ranges {
        usage[range.clone()].iter_mut().for_each(|used| *used += bytes);
    }
}

/// The stays of one chunk, without time for transfers. `kept` says which gaps it stays over, by the access before the gap.
pub(crate) fn stays(
    index: usize,
    chunk: &Chunk,
    kind: Kind,
    kept: &[bool],
    home_on_device: bool,
    count: usize,
) -> Vec<Segment> {
    let accesses = &chunk.accesses;
    if accesses.is_empty() {
        return Vec::new();
    }
    if home_on_device {
        return vec![Segment {
            chunk: index,
            start: 0,
            end: count - 1,
            accesses: 0..accesses.len(),
            fetch: false,
            save: false,
            save_after: count - 1,
        }];
    }
    let mut runs: Vec<Range<usize>> = Vec::new();
    for position in 0..accesses.len() {
        match runs.last_mut() {
            Some(run) if kept.get(position - 1).copied().unwrap_or(false) => run.end = position + 1,
            _ => runs.push(position..position + 1),
        }
    }
    let mut host_valid = kind.input || kind.persistent;
    let mut segments = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        let (first, last) = (accesses[run.start], accesses[run.end - 1]);
        let fetch = first.reads && host_valid;
        if accesses[run.clone()].iter().any(|access| access.writes) {
            host_valid = false;
        }
        let next_reads = runs.get(number + 1).is_some_and(|next| accesses[next.start].reads);
        let is_last = number + 1 == runs.len();
        let save = !host_valid && (next_reads || (is_last && (kind.persistent || kind.output)));
        host_valid |= save;
        // Whoever waits for an output looks at it as soon as it is there.
        let written = accesses[run.clone()].iter().rev().find(|access| access.writes && kind.output);
        segments.push(Segment {
            chunk: index,
            start: first.launch,
            end: last.launch,
            accesses: run.clone(),
            fetch,
            save,
            save_after: written.map_or(last.launch, |access| access.launch),
        });
    }
    segments
}

/// Gives transfers time: fetches start before the launch that needs them, saved bytes stay until they are copied, as far
/// as free bytes within `capacity_bytes` allow. Those of chunks that are `on_disk` take a disk's time, beside the others.
pub fn stretch(
    residency: &mut Residency,
    live: &Liveness,
    costs: &Costs,
    on_disk: impl Fn(usize) -> bool,
    capacity_bytes: u64,
    lost_bytes: &[u64],
) {
    let segments = &mut residency.segments;
    let starts = launch_starts(costs);
    let mut usage = lost_bytes.to_vec();
    usage.resize(live.launch_count, 0);
    for segment in segments.iter() {
        let bytes = device_bytes(&live.chunks[segment.chunk]);
        usage[segment.start..=segment.end].iter_mut().for_each(|used| *used += bytes);
    }
    let neighbours = |segments: &[Segment], index: usize| {
        let chunk = segments[index].chunk;
        let before = index.checked_sub(1).map(|i| &segments[i]).filter(|s| s.chunk == chunk).map(|s| s.end + 1);
        let after = segments.get(index + 1).filter(|s| s.chunk == chunk).map(|s| s.start);
        (before.unwrap_or(0), after.unwrap_or(live.launch_count))
    };
    let mut fetches: Vec<usize> = (0..segments.len()).filter(|&i| segments[i].fetch).collect();
    fetches.sort_by_key(|&i| (std::cmp::Reverse(segments[i].start), std::cmp::Reverse(segments[i].chunk)));
    let mut free_until_ns = [u64::MAX; 2];
    for index in fetches {
        let chunk = segments[index].chunk;
        let (bytes, disk) = (device_bytes(&live.chunks[chunk]), on_disk(chunk));
        let copy_ns = if disk { costs.disk_read_ns(bytes) } else { costs.copy_in_ns(bytes) };
        let free_until_ns = &mut free_until_ns[usize::from(disk)];
        let finish_ns = (*free_until_ns).min(starts[segments[index].start]);
        let begin_ns = finish_ns.saturating_sub(copy_ns);
        let (earliest, _) = neighbours(segments, index);
        let start = &mut segments[index].start;
        while *start > earliest && starts[*start] > begin_ns && usage[*start - 1] + bytes <= capacity_bytes {
            *start -= 1;
            usage[*start] += bytes;
        }
        *free_until_ns = begin_ns.max(starts[*start].min(finish_ns)).min(finish_ns);
    }
    let mut saves: Vec<usize> = (0..segments.len()).filter(|&i| segments[i].save).collect();
    saves.sort_by_key(|&i| (segments[i].end, segments[i].chunk));
    let mut free_from_ns = [0; 2];
    for index in saves {
        let chunk = segments[index].chunk;
        let (bytes, disk) = (device_bytes(&live.chunks[chunk]), on_disk(chunk));
        let copy_ns = if disk { costs.disk_write_ns(bytes) } else { costs.copy_out_ns(bytes) };
        let free_from_ns = &mut free_from_ns[usize::from(disk)];
        let finish_ns = (*free_from_ns).max(starts[segments[index].end + 1]) + copy_ns;
        let (_, latest) = neighbours(segments, index);
        let end = &mut segments[index].end;
        while *end + 1 < latest && starts[*end + 1] < finish_ns && usage[*end + 1] + bytes <= capacity_bytes {
            *end += 1;
            usage[*end] += bytes;
        }
        *free_from_ns = finish_ns;
    }
}
