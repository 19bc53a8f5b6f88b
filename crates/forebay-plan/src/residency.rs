//! Residency: which chunk is on the device when.
//!
//! Every chunk must be on the device for the launches that touch it. Between two such launches there is a *gap*: the chunk is kept, or it
//! leaves and comes back. Keeping a gap saves transfers but takes bytes for as long as the gap lasts. Gaps are therefore kept in order of
//! time saved per byte and nanosecond held, as long as they fit (short gaps first: with equal chunks this is Belady's rule from the point
//! of view of gaps). The gaps of small chunks ([`mod@crate::always_resident`]) come before all others. The memory that remains free lets
//! transfers start early and end late, so that launches hide them: the longer the way ([`crate::backing_stores`]), the earlier.
//!
//! Chunks that last from step to step have one more gap, from their last launch to their first launch in the next step. A chunk with any
//! gap that is not kept has its backing location on the host. Its host copy is then valid whenever the chunk has not been changed in this
//! step, and a step that stops before its updates has lost nothing. A copy of the backing location can still be *resident across steps*,
//! because the last gap is kept, or because what the next step needs first is swapped in while this one ends. After a step that did not
//! end, copies are made again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use forebay_base::ByteRange;
use forebay_model::program::{BufferId, Program, Role};

use crate::always_resident::always_resident;
use crate::cost::Costs;
use crate::liveness::{Access, Chunk, Liveness, Owner};
use crate::loans::Loans;
use crate::profile::{Profile, bytes_of_profile};

/// How tightly to fill the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OccupancyLimit {
    /// The most bytes that chunks kept over gaps and the bytes that launches need may take together.
    pub keep_bytes: u64,
    /// The most bytes that these and transfers in progress may take together: the whole capacity.
    pub transfer_bytes: u64,
    /// Whether no gap is kept, not even between neighboring launches, so that every launch finds the device empty.
    pub isolate: bool,
    /// The number of bytes of a buffer that may have one base because parts of them stay from launch to launch, even if no single launch
    /// touches that many.
    pub joined_bytes: u64,
}

/// One interval of a chunk on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The chunk.
    pub chunk: usize,
    /// The first launch during which the bytes are in use. A swap-in precedes it in the list.
    pub start: usize,
    /// The last launch during which the bytes are in use.
    pub end: usize,
    /// The accesses of the chunk that are in the interval.
    pub accesses: Range<usize>,
    /// Whether the interval begins with a copy from the host.
    pub swap_in: bool,
    /// Whether the bytes are copied to the host.
    pub swap_out: bool,
    /// The launch that this copy follows in the list: the last one that writes the bytes, or a later one.
    pub swap_out_after: usize,
}

/// Which chunk is on the device when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// All intervals; the intervals of one chunk are in chronological order.
    pub segments: Vec<Segment>,
    /// By chunk: whether it is on the device between steps, and nowhere else. For an input or output, whether the caller writes or reads it
    /// there.
    pub backing_on_device: Vec<bool>,
    /// By chunk: whether a copy of its backing location is on the device between steps. Its last interval continues as its first.
    pub across_steps: Vec<bool>,
}

/// Properties of a chunk's owner that residency needs to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    /// Whether it lasts from step to step.
    pub persistent: bool,
    /// Whether the host writes it before every step.
    pub input: bool,
    /// Whether the host reads it after every step.
    pub output: bool,
}

/// The time between two consecutive accesses of a chunk (cyclically if it lasts from step to step).
struct ReuseGap {
    chunk: usize,
    /// The access before the gap; for the gap across the step boundary, the last access.
    after: usize,
    wraps: bool,
    bytes: u64,
    /// The launches inside the gap, as up to two ranges.
    inside: [Range<usize>; 2],
    /// Nanoseconds saved per byte and nanosecond if the gap is kept.
    density: f64,
    /// The same if the chunk is away in another gap, so that its changes are saved in any case.
    density_away: f64,
}

impl ReuseGap {
    /// Takes the bytes of the gap for as long as it lasts (1), or releases them (-1).
    fn occupy(&self, usage: &mut Profile, sign: i64) {
        for range in self.inside.iter().filter(|range| !range.is_empty()) {
            usage.add(range.start, range.end, sign * bytes_of_profile(self.bytes));
        }
    }
}

/// What may leave the device, and what must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// Anything may.
    Anything,
    /// Anything may, and what steps change must be away between steps.
    ChangingBetweenSteps,
    /// By chunk: whether it may.
    Only(Vec<bool>),
}

/// Decides which gaps to keep. [`mod@crate::widen`] gives transfers time once it is known where they go.
pub fn residency(
    program: &Program,
    live: &Liveness,
    costs: &Costs,
    limit: OccupancyLimit,
    lost_bytes: &[u64],
    leaving: &Leaving,
) -> Residency {
    residency_of(&kinds(program, live), live, costs, limit, lost_bytes, leaving)
}

/// The same for chunks of these kinds, whatever owns them.
pub fn residency_of(
    kinds: &[Kind],
    live: &Liveness,
    costs: &Costs,
    limit: OccupancyLimit,
    lost_bytes: &[u64],
    leaving: &Leaving,
) -> Residency {
    let needed_bytes: Vec<i64> = live.needed_bytes().into_iter().map(bytes_of_profile).collect();
    let mut usage = Profile::new(&needed_bytes);
    let starts = launch_starts(costs);
    let gaps = sorted_gaps(live, kinds, costs, &starts);
    let changing_away = *leaving == Leaving::ChangingBetweenSteps;
    let barred: Vec<bool> = live.chunks.iter().map(|chunk| changing_away && chunk.is_changed()).collect();
    let may_leave = |chunk: usize| !matches!(leaving, Leaving::Only(chunks) if !chunks[chunk]);
    let (gaps, staying): (Vec<ReuseGap>, Vec<ReuseGap>) = gaps.into_iter().partition(|gap| may_leave(gap.chunk));
    staying.iter().for_each(|gap| gap.occupy(&mut usage, 1));
    let always_resident = always_resident(live, costs, limit.keep_bytes);
    let (always_resident, large) = gaps.into_iter().partition(|gap: &ReuseGap| always_resident[gap.chunk]);
    let mut kept = keep_gaps(live, [always_resident, large], &mut usage, lost_bytes, limit, &barred);
    for gap in staying {
        let list = &mut kept[gap.chunk];
        list.resize(list.len().max(gap.after + 1), true);
    }
    let mut residency = Residency::default();
    for (index, chunk) in live.chunks.iter().enumerate() {
        residency.add(chunk, kinds[index], &kept[index], live.launch_count);
    }
    residency
}

impl Residency {
    /// Adds the next chunk. `kept` tells over which gaps it is kept, indexed by the access before the gap.
    pub(crate) fn add(&mut self, chunk: &Chunk, kind: Kind, kept: &[bool], launch_count: usize) {
        let over_boundary = kind.persistent && !kept.is_empty() && kept.len() == chunk.accesses.len();
        // What launches use in host memory has its backing location there.
        let backing_on_device = over_boundary && kept.iter().all(|&kept| kept) && chunk.host_accesses.is_empty();
        let across_steps = over_boundary && !backing_on_device && kept[kept.len() - 1];
        let index = self.backing_on_device.len();
        let boundary = Boundary { backing_on_device, across_steps, launch_count };
        self.segments.extend(intervals(index, chunk, kind, kept, boundary));
        self.backing_on_device.push(backing_on_device);
        self.across_steps.push(across_steps);
    }

    /// Removes what is not on the device because the caller lends it. For plans without a budget: nothing else gets its bytes.
    pub(crate) fn leave_out(&mut self, live: &Liveness, loans: &Loans) {
        let is_lent = |chunk: usize| match live.chunks[chunk].owner {
            Owner::Buffer(buffer) => loans.memory(buffer).is_some(),
            Owner::Workspace(_) => false,
        };
        self.segments.retain(|segment| !is_lent(segment.chunk));
        for (chunk, backing_on_device) in self.backing_on_device.iter_mut().enumerate() {
            *backing_on_device |= is_lent(chunk);
        }
    }

    /// Makes inputs be written where launches read them, instead of being copied there: an input takes its bytes on the device from the
    /// beginning of the step to its last use, and none on the host. Outputs are read where launches write them, if no update comes after
    /// them: they stay until the end of the step. For plans in which device and host are one memory and nothing has left the device.
    pub(crate) fn meet_in_place(&mut self, kinds: &[Kind], live: &Liveness, has_updates: bool) {
        for segment in &mut self.segments {
            let (chunk, kind) = (&live.chunks[segment.chunk], kinds[segment.chunk]);
            if kind.persistent || segment.accesses != (0..chunk.accesses.len()) {
                continue;
            }
            if kind.input && !kind.output && !chunk.is_changed() {
                (segment.start, segment.swap_in) = (0, false);
                self.backing_on_device[segment.chunk] = true;
            }
            if kind.output && !kind.input && !has_updates {
                (segment.end, segment.swap_out) = (live.launch_count - 1, false);
                self.backing_on_device[segment.chunk] = true;
            }
        }
    }
}

/// How a chunk spends the time between two steps.
struct Boundary {
    backing_on_device: bool,
    across_steps: bool,
    launch_count: usize,
}

/// Returns the properties of each chunk's owner in a program.
pub fn kinds(program: &Program, live: &Liveness) -> Vec<Kind> {
    let outputs: BTreeSet<BufferId> = program.outputs.iter().map(|named| named.operand.buffer).collect();
    let kind = |chunk: &Chunk| {
        let Owner::Buffer(buffer) = chunk.owner else { return Kind::default() };
        let role = program.buffer(buffer).role;
        let (persistent, input) = (role.is_persistent(), role == Role::Input);
        Kind { persistent, input, output: outputs.contains(&buffer) }
    };
    live.chunks.iter().map(kind).collect()
}

/// Returns when each launch starts if nothing waits, and when the last one ends, in nanoseconds.
pub(crate) fn launch_starts(costs: &Costs) -> Vec<u64> {
    let mut starts = vec![0];
    for &duration in &costs.launch_ns {
        starts.push(starts[starts.len() - 1] + duration);
    }
    starts
}

fn sorted_gaps(live: &Liveness, kinds: &[Kind], costs: &Costs, starts: &[u64]) -> Vec<ReuseGap> {
    let count = live.launch_count;
    let mut gaps = Vec::new();
    for (index, chunk) in live.chunks.iter().enumerate() {
        let accesses = &chunk.accesses;
        let steps = if kinds[index].persistent { accesses.len() } else { accesses.len().saturating_sub(1) };
        let mut changed = false;
        for after in 0..steps {
            changed |= accesses[after].writes;
            let wraps = after + 1 == accesses.len();
            let next = accesses[(after + 1) % accesses.len()];
            let inside = if wraps {
                [accesses[after].launch + 1..count, 0..next.launch]
            } else {
                [accesses[after].launch + 1..next.launch, 0..0]
            };
            let bytes = chunk.device_bytes();
            // Even the shortest copy is worth avoiding.
            let swap_in = if next.reads { costs.copy_in_ns(bytes).max(1) } else { 0 };
            let swap_out = if changed && next.reads { costs.copy_out_ns(bytes).max(1) } else { 0 };
            let held_ns: u64 =
                inside.iter().map(|range| starts[range.end.max(range.start)] - starts[range.start]).sum();
            let density = |saved_ns: u64| saved_ns as f64 / (bytes as f64 * (held_ns as f64 + 1.0));
            let density_away = density(if wraps { swap_in } else { swap_in + swap_out });
            let density = density(swap_in + swap_out);
            gaps.push(ReuseGap { chunk: index, after, wraps, bytes, inside, density, density_away });
        }
    }
    sort(&mut gaps);
    gaps
}

/// Sorts gaps so that those that save most come first.
fn sort(gaps: &mut [ReuseGap]) {
    gaps.sort_by(|a, b| b.density.total_cmp(&a.density).then(a.chunk.cmp(&b.chunk)).then(a.after.cmp(&b.after)));
}

/// Returns by chunk and gap (indexed by the access before it) whether the gap is kept. Gaps of small chunks come first, no matter how many
/// bytes are lost. Chunks that are `barred` are only on the host at the step boundary.
fn keep_gaps(
    live: &Liveness,
    [always_resident, mut gaps]: [Vec<ReuseGap>; 2],
    usage: &mut Profile,
    lost_bytes: &[u64],
    limit: OccupancyLimit,
    barred: &[bool],
) -> Vec<Vec<bool>> {
    let mut kept: Vec<Vec<bool>> = vec![Vec::new(); live.chunks.len()];
    for gap in always_resident.iter().chain(&gaps) {
        let list = &mut kept[gap.chunk];
        list.resize(list.len().max(gap.after + 1), false);
    }
    if limit.isolate {
        return kept;
    }
    let mut extents = Extents::new(live, limit.joined_bytes);
    let keep_bytes = bytes_of_profile(limit.keep_bytes);
    let mut try_all = |gaps: &[ReuseGap], kept: &mut Vec<Vec<bool>>, usage: &mut Profile| {
        for gap in gaps {
            let fits = |range: &Range<usize>, usage: &Profile| {
                let most = || usage.most(range.start, range.end).saturating_add(bytes_of_profile(gap.bytes));
                range.is_empty() || most() <= keep_bytes
            };
            let must_leave = gap.wraps && barred[gap.chunk] || live.chunks[gap.chunk].is_wanted_by_host(gap.after);
            let allowed = gap.density > 0.0 && !kept[gap.chunk][gap.after] && !must_leave;
            if allowed && gap.inside.iter().all(|range| fits(range, usage)) && extents.join(gap) {
                kept[gap.chunk][gap.after] = true;
                gap.occupy(usage, 1);
            }
        }
    };
    try_all(&always_resident, &mut kept, usage);
    for (launch, &lost) in lost_bytes.iter().enumerate().filter(|&(_, &lost)| lost > 0) {
        usage.add(launch, launch + 1, bytes_of_profile(lost));
    }
    try_all(&gaps, &mut kept, usage);
    // What leaves within the step is swapped out whether or not it is resident across steps, so residency across steps is worth less.
    let mut freed = false;
    for gap in gaps.iter_mut().filter(|gap| gap.wraps && gap.density_away < gap.density) {
        let list = &mut kept[gap.chunk];
        if list.iter().enumerate().any(|(after, &keep)| !keep && after != gap.after) {
            gap.density = gap.density_away;
            if std::mem::take(&mut list[gap.after]) {
                freed = true;
                gap.occupy(usage, -1);
            }
        }
    }
    if freed {
        sort(&mut gaps);
        try_all(&gaps, &mut kept, usage);
    }
    kept
}

/// The number of bytes of a buffer that have one base, because launches touch parts of it side by side and parts stay from one launch to
/// the next. Neighboring parts that overlap would tie a whole buffer together, even though little of it is on the device at any time.
struct Extents {
    /// By chunk and access: the node of its owner and launch.
    nodes: Vec<Vec<usize>>,
    parents: Vec<usize>,
    /// By root: the bytes that have one base.
    ranges: Vec<ByteRange>,
    /// This many bytes may have one base even if no single launch requires it.
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

    /// Joins what a kept gap ties together, if that is allowed. Returns whether it is.
    fn join(&mut self, gap: &ReuseGap) -> bool {
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

/// Returns the root of a node in a forest of parents, and shortens paths.
pub(crate) fn root(parents: &mut [usize], mut node: usize) -> usize {
    while parents[node] != node {
        parents[node] = parents[parents[node]];
        node = parents[node];
    }
    node
}

/// Returns the intervals of one chunk, without time for transfers. `kept` tells over which gaps it is kept, indexed by the access before
/// the gap.
fn intervals(index: usize, chunk: &Chunk, kind: Kind, kept: &[bool], boundary: Boundary) -> Vec<Segment> {
    let accesses = &chunk.accesses;
    if accesses.is_empty() {
        return Vec::new();
    }
    let end_of_step = boundary.launch_count - 1;
    if boundary.backing_on_device {
        return vec![Segment {
            chunk: index,
            start: 0,
            end: end_of_step,
            accesses: 0..accesses.len(),
            swap_in: false,
            swap_out: false,
            swap_out_after: end_of_step,
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
    // The last launch that wrote it on the device.
    let mut written = None;
    let mut segments = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        let (first, last) = (accesses[run.start], accesses[run.end - 1]);
        let is_first = number == 0;
        let host_write = chunk.last_host_write_before(first.launch);
        host_valid |= host_write.is_some() && host_write > written;
        let swap_in = first.reads && host_valid && !(is_first && boundary.across_steps);
        let last_write = accesses[run.clone()].iter().rev().find(|access| access.writes);
        if let Some(write) = last_write {
            (host_valid, written) = (false, Some(write.launch));
        }
        // The next access of the host.
        let until = runs.get(number + 1).map_or(usize::MAX, |next| accesses[next.start].launch);
        let mut host_accesses = chunk.host_accesses.iter();
        let on_host = host_accesses.find(|access| written < Some(access.launch) && access.launch < until);
        let host_reads = on_host.is_some_and(|access| access.reads);
        let next_reads = runs.get(number + 1).is_some_and(|next| accesses[next.start].reads);
        let is_last = number + 1 == runs.len();
        let swap_out = !host_valid && (next_reads || host_reads || (is_last && (kind.persistent || kind.output)));
        host_valid |= swap_out;
        // What the host reads is copied to it as soon as it is written.
        let written_for_host = last_write.filter(|_| kind.output || on_host.is_some());
        segments.push(Segment {
            chunk: index,
            start: if is_first && boundary.across_steps { 0 } else { first.launch },
            end: if is_last && boundary.across_steps { end_of_step } else { last.launch },
            accesses: run.clone(),
            swap_in,
            swap_out,
            swap_out_after: written_for_host.map_or(last.launch, |access| access.launch),
        });
    }
    segments
}

/// Moves the first swap-in of a chunk to the previous step, in which the bytes are in use from launch `from` on. `intervals` are the
/// intervals of one chunk.
pub(crate) fn swap_in_during_step_before(intervals: &mut Vec<Segment>, from: usize, launch_count: usize) {
    let (first, end) = (&mut intervals[0], launch_count - 1);
    (first.start, first.swap_in) = (0, false);
    let chunk = first.chunk;
    intervals.push(Segment {
        chunk,
        start: from,
        end,
        accesses: 0..0,
        swap_in: true,
        swap_out: false,
        swap_out_after: end,
    });
}
