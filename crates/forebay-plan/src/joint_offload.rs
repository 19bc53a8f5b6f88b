//! Joint offload and recomputation: moving and recomputing, decided together.
//!
//! [`crate::residency`] assigns memory gap by gap, by what each gap saves. That works well if links have time to spare. If they do not, it
//! matters what crosses them and when, and what is better recomputed. Then [`forebay_offload`] decides, with the program as a workload.
//! Each launch is one of its slots, so its results are in units of launches, as in plans: bytes are taken for whole launches, and a copy
//! goes between two launches.

mod workload;

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_base::ByteRange;
use forebay_model::program::Program;

use crate::cost::Costs;
use crate::liveness::{Chunk, Liveness};
use crate::order::Ordered;
use crate::residency::{Kind, Residency, Segment, kinds, swap_in_during_step_before};
use forebay_offload::launches::{plan_launches, recomputations};
use forebay_offload::schedule::{Direction, MemorySpace, Piece, Schedule};
use forebay_offload::workload::Workload;
use workload::workload;

/// Returns variants of the program in which some launches run again, before the launches that need what was dropped meanwhile: first with
/// the few that are most worth it, then with more and more. Each launch is its own group. `live` is the liveness of the given program, with
/// outputs in their own places.
pub fn with_recomputation(
    ordered: &Ordered,
    live: &Liveness,
    costs: &Costs,
    capacity_bytes: u64,
    host_bytes: u64,
) -> Vec<Ordered> {
    let workload = workload(&ordered.program, live, costs, capacity_bytes, host_bytes);
    if workload.validate().is_err() {
        return Vec::new();
    }
    recomputations(&workload).into_iter().map(|launches| ordered.with_launches(&launches)).collect()
}

/// Bytes of a chunk that are not on the device during one of its gaps.
struct Absence {
    /// Bytes of the chunk.
    bytes: ByteRange,
    /// The access before the gap.
    after: usize,
    /// The launch after which they are copied; `None` if a copy already exists.
    swapped_out_after: Option<usize>,
    /// The last launch during which they are still on the device.
    last: usize,
    /// The launch during or before which they come back.
    back: usize,
}

/// The memory that may be used.
#[derive(Clone, Copy, Debug)]
pub struct JointLimits {
    /// Bytes on the device.
    pub device_bytes: u64,
    /// Bytes on the host.
    pub host_bytes: u64,
    /// Whether what steps change is away from the device between steps.
    pub changing_away: bool,
}

/// Returns which chunk is on the device when, and the chunks themselves, cut if parts of them leave at different times. Returns `None` if
/// nothing was found that fits. `lost_bytes` holds, for each launch, bytes that it cannot use.
pub fn joint_residency(
    program: &Program,
    live: &Liveness,
    costs: &Costs,
    limits: JointLimits,
    lost_bytes: &[u64],
) -> Option<(Liveness, Residency)> {
    let mut workload = workload(program, live, costs, limits.device_bytes, limits.host_bytes);
    let device_bytes = workload.machine.device_memory_bytes;
    for (launch, &lost) in lost_bytes.iter().enumerate() {
        let needed_bytes = workload.working_set_bytes(&workload.kernels[launch]);
        workload.kernels[launch].workspace_bytes = lost.min(device_bytes.saturating_sub(needed_bytes));
    }
    workload.validate().ok()?;
    let schedule = plan_launches(&workload)?;
    let absences = absences(live, &workload, &schedule);
    let mut cut = Liveness { chunks: Vec::new(), launch_count: live.launch_count };
    let mut residency = Residency::default();
    let kinds = kinds(program, live);
    for ((chunk, absences), &kind) in live.chunks.iter().zip(&absences).zip(&kinds) {
        for part in parts(chunk, absences) {
            let in_part: Vec<&Absence> =
                absences.iter().filter(|absence| absence.bytes.intersection(part).is_some()).collect();
            let range = ByteRange::new(chunk.range.start + part.start, chunk.range.start + part.end);
            let chunk = Chunk { range, ..chunk.clone() };
            let away = limits.changing_away && chunk.is_changed();
            add_part(&mut residency, &chunk, kind, away, &in_part, live.launch_count);
            cut.chunks.push(chunk);
        }
    }
    Some((cut, residency))
}

/// For each chunk, when parts of it are not on the device although they are needed later.
fn absences(live: &Liveness, workload: &Workload, schedule: &Schedule) -> Vec<Vec<Absence>> {
    let clock = Clock::new(workload, schedule);
    let mut events: BTreeMap<Piece, Events> = BTreeMap::new();
    for transfer in &schedule.transfers {
        let events = events.entry(transfer.piece).or_default();
        match transfer.direction {
            Direction::Out => events.saved_ns.push(transfer.start_ns),
            Direction::In => events.back_ns.push(transfer.start_ns),
        }
    }
    for drop in schedule.drops.iter().filter(|drop| drop.place == MemorySpace::Device) {
        if let Some(events) = events.get_mut(&drop.piece) {
            events.dropped_ns.push(drop.at_ns);
        }
    }
    let mut absences: Vec<Vec<Absence>> = live.chunks.iter().map(|_| Vec::new()).collect();
    for (piece, events) in events {
        let chunk = &live.chunks[piece.tensor];
        let end = (piece.offset_bytes + piece.size_bytes).min(chunk.range.len());
        let bytes = ByteRange::new(piece.offset_bytes, end);
        for &back_ns in &events.back_ns {
            let back = clock.first_at(back_ns);
            let next = chunk.accesses.iter().position(|access| access.launch >= back).unwrap_or(0);
            let after = (next + chunk.accesses.len() - 1) % chunk.accesses.len();
            let latest = |times: &[u64]| latest_before(times, back_ns);
            let last = latest(&events.dropped_ns).map_or(chunk.accesses[after].launch, |at| clock.last_before(at));
            let swapped_out_after = latest(&events.saved_ns).map(|at| clock.last_before(at));
            absences[piece.tensor].push(Absence { bytes, after, swapped_out_after, last, back });
        }
    }
    absences
}

/// When a piece of a tensor moves, in nanoseconds from the start of the step.
#[derive(Default)]
struct Events {
    saved_ns: Vec<u64>,
    dropped_ns: Vec<u64>,
    back_ns: Vec<u64>,
}

/// Returns the latest of the times that is not after `at_ns`; if there is none, the latest of the previous step.
fn latest_before(times_ns: &[u64], at_ns: u64) -> Option<u64> {
    times_ns.iter().copied().filter(|&time_ns| time_ns <= at_ns).max().or_else(|| times_ns.iter().copied().max())
}

/// Converts times to launches.
struct Clock {
    /// For each launch, when it starts and ends.
    runs_ns: Vec<(u64, u64)>,
}

impl Clock {
    fn new(workload: &Workload, schedule: &Schedule) -> Clock {
        let run = |launch: &forebay_offload::schedule::Launch| {
            (launch.start_ns, launch.start_ns + workload.kernels[launch.kernel].duration_ns.max(1))
        };
        Clock { runs_ns: schedule.launches.iter().map(run).collect() }
    }

    /// The launch that runs at a time, or the next one.
    fn first_at(&self, at_ns: u64) -> usize {
        self.runs_ns.partition_point(|&(_, end_ns)| end_ns <= at_ns)
    }

    /// The last launch that starts before a time.
    fn last_before(&self, at_ns: u64) -> usize {
        self.runs_ns.partition_point(|&(start_ns, _)| start_ns < at_ns).saturating_sub(1)
    }
}

/// A chunk's bytes, cut where absences begin and end.
fn parts(chunk: &Chunk, absences: &[Absence]) -> Vec<ByteRange> {
    let mut cuts = vec![0, chunk.range.len()];
    cuts.extend(absences.iter().flat_map(|absence| [absence.bytes.start, absence.bytes.end]));
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|pair| ByteRange::new(pair[0], pair[1])).collect()
}

/// Adds a chunk that is either wholly on the device or wholly absent. Between steps it is absent if `away`; otherwise it may be there.
fn add_part(
    residency: &mut Residency,
    chunk: &Chunk,
    kind: Kind,
    away: bool,
    absences: &[&Absence],
    launch_count: usize,
) {
    let accesses = &chunk.accesses;
    let count = accesses.len();
    let absence = |after: usize| absences.iter().find(|absence| absence.after == after);
    let gaps = if kind.persistent { count } else { count.saturating_sub(1) };
    let mut kept: Vec<bool> = (0..gaps)
        .map(|after| accesses[(after + 1) % count].reads && absence(after).is_none() && !chunk.is_wanted_by_host(after))
        .collect();
    if kind.persistent && count > 0 && away {
        kept[count - 1] = false;
    }
    let index = residency.backing_on_device.len();
    let first = residency.segments.len();
    residency.add(chunk, kind, &kept, launch_count);
    let across_steps = residency.across_steps[index];
    let mut segments = residency.segments.split_off(first);
    for segment in &mut segments {
        give_time(segment, chunk, kind, absences);
    }
    for place in 1..segments.len() {
        let before = segments[place - 1].end;
        let first = accesses[segments[place].accesses.start].launch;
        // What leaves cannot come back within the same launch.
        segments[place - 1].end = before.min(first - 1);
        segments[place].start = segments[place].start.max(segments[place - 1].end + 1);
    }
    // What comes back after the chunk's last use comes back for the next step.
    let back = absence(count.wrapping_sub(1)).map(|absence| absence.back);
    let last = segments.last().map(|interval| interval.end);
    if let (true, false, Some(back), Some(last)) = (kind.persistent && !away, across_steps, back, last)
        && segments[0].swap_in
        && back > accesses[count - 1].launch
    {
        let from = back.max(last + 1).max(chunk.host_writes_end(usize::MAX));
        if from < launch_count {
            swap_in_during_step_before(&mut segments, from, launch_count);
            residency.across_steps[index] = true;
        }
    }
    residency.segments.extend(segments);
}

/// Makes an interval begin and end when its copies need it to.
fn give_time(segment: &mut Segment, chunk: &Chunk, kind: Kind, absences: &[&Absence]) {
    let Range { start, end } = segment.accesses;
    let count = chunk.accesses.len();
    if segment.swap_in {
        let before = (start + count - 1) % count;
        if let Some(absence) = absences.iter().find(|absence| absence.after == before) {
            segment.start = segment.start.min(absence.back.max(chunk.earliest_swap_in(start)));
        }
    }
    if segment.swap_out
        && let Some(absence) = absences.iter().find(|absence| absence.after == end - 1)
    {
        segment.end = segment.end.max(absence.last);
        if kind.output || !chunk.host_accesses.is_empty() {
            return;
        }
        let written = chunk.accesses[start..end].iter().rev().find(|access| access.writes);
        let earliest = written.map_or(segment.swap_out_after, |access| access.launch);
        let swapped_out_after = absence.swapped_out_after.unwrap_or(segment.swap_out_after);
        segment.swap_out_after = swapped_out_after.clamp(earliest, segment.end.max(earliest));
    }
}
