//! Prefetch widening: extends residency intervals so that copies have time.
//!
//! A swap-in starts before the launch that needs it, and bytes are kept until their swap-out is done, as far as there are free bytes.
//! Swap-ins that would have to start before the step start while the previous step ends.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::cost::Costs;
use crate::liveness::Liveness;
use crate::residency::{Residency, Segment, launch_starts, swap_in_during_step_before};

/// Where the copies of a chunk go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// To and from a disk.
    pub on_disk: bool,
    /// Whether what a step needs may be swapped in during the previous step.
    pub over_boundary: bool,
}

/// Gives transfers time: swap-ins start before the launch that needs them, bytes are kept until their swap-out is done, as far as free
/// bytes within `capacity_bytes` allow. Copies to and from a disk take a disk's time, alongside the others.
pub fn widen(
    residency: &mut Residency,
    live: &Liveness,
    costs: &Costs,
    route: impl Fn(usize) -> Route,
    capacity_bytes: u64,
    lost_bytes: &[u64],
) {
    let mut usage = lost_bytes.to_vec();
    usage.resize(live.launch_count, 0);
    for segment in &residency.segments {
        let bytes = live.chunks[segment.chunk].device_bytes();
        usage[segment.start..=segment.end].iter_mut().for_each(|used| *used += bytes);
    }
    let mut widening = Widening { live, costs, starts: launch_starts(costs), usage, capacity_bytes };
    let late = widening.swap_ins(residency, &route);
    widening.swaps_in_during_step_before(residency, late);
    widening.swap_outs(residency, &route);
}

/// The state while transfers are given time.
struct Widening<'a> {
    live: &'a Liveness,
    costs: &'a Costs,
    /// When launches start if nothing waits, and when the last one ends, in nanoseconds.
    starts: Vec<u64>,
    /// By launch: bytes in use.
    usage: Vec<u64>,
    capacity_bytes: u64,
}

impl Widening<'_> {
    /// Returns the launches within which an interval may grow: from the end of the chunk's previous interval, but after any change on the
    /// host, to the start of its next interval.
    fn room(&self, segments: &[Segment], index: usize) -> Range<usize> {
        let chunk = segments[index].chunk;
        let earliest = self.live.chunks[chunk].earliest_swap_in(segments[index].accesses.start);
        let before = index.checked_sub(1).map(|i| &segments[i]).filter(|s| s.chunk == chunk).map(|s| s.end + 1);
        let after = segments.get(index + 1).filter(|s| s.chunk == chunk).map(|s| s.start);
        before.unwrap_or(0).max(earliest)..after.unwrap_or(self.live.launch_count)
    }

    /// Lets swap-ins start early. Returns the intervals whose swap-in would have to start before the step, and may, in the order in which
    /// they are needed.
    fn swap_ins(&mut self, residency: &mut Residency, route: &impl Fn(usize) -> Route) -> Vec<usize> {
        let segments = &mut residency.segments;
        let mut swap_ins: Vec<usize> = (0..segments.len()).filter(|&i| segments[i].swap_in).collect();
        swap_ins.sort_by_key(|&i| (std::cmp::Reverse(segments[i].start), std::cmp::Reverse(segments[i].chunk)));
        let mut late = Vec::new();
        let mut free_until_ns = [u64::MAX; 2];
        for index in swap_ins {
            let chunk = segments[index].chunk;
            let (bytes, Route { on_disk, over_boundary }) = (self.live.chunks[chunk].device_bytes(), route(chunk));
            let copy_ns = if on_disk { self.costs.disk_read_ns(bytes) } else { self.costs.copy_in_ns(bytes) };
            let free_until_ns = &mut free_until_ns[usize::from(on_disk)];
            let finish_ns = (*free_until_ns).min(self.starts[segments[index].start]);
            let begin_ns = finish_ns.saturating_sub(copy_ns);
            let earliest = self.room(segments, index).start;
            let start = &mut segments[index].start;
            while *start > earliest
                && self.starts[*start] > begin_ns
                && self.usage[*start - 1] + bytes <= self.capacity_bytes
            {
                *start -= 1;
                self.usage[*start] += bytes;
            }
            if *start == 0 && finish_ns < copy_ns && over_boundary && !residency.across_steps[chunk] {
                late.push(index);
            }
            *free_until_ns = begin_ns.max(self.starts[*start].min(finish_ns));
        }
        late.reverse();
        late
    }

    /// Moves swap-ins to the previous step, as far as they end with it.
    fn swaps_in_during_step_before(&mut self, residency: &mut Residency, late: Vec<usize>) {
        let count = self.live.launch_count;
        let mut free_until_ns = self.starts[count];
        let mut from_launch: BTreeMap<usize, usize> = BTreeMap::new();
        for index in late {
            let chunk = residency.segments[index].chunk;
            let bytes = self.live.chunks[chunk].device_bytes();
            let Some(begin_ns) = free_until_ns.checked_sub(self.costs.copy_in_ns(bytes)) else { continue };
            let intervals_end =
                residency.segments[index..].iter().take_while(|interval| interval.chunk == chunk).map(|s| s.end);
            let free_from = intervals_end.last().map_or(0, |end| end + 1);
            let free_from = free_from.max(self.live.chunks[chunk].host_writes_end(usize::MAX));
            let full = self.usage.iter().rposition(|used| used + bytes > self.capacity_bytes);
            let from = free_from.max(full.map_or(0, |launch| launch + 1));
            // The launch that is running when the copy has to begin.
            let latest = self.starts.partition_point(|&start_ns| start_ns <= begin_ns) - 1;
            if from <= latest && latest < count {
                free_until_ns = begin_ns;
                self.usage[latest..].iter_mut().for_each(|used| *used += bytes);
                from_launch.insert(chunk, latest);
            }
        }
        if from_launch.is_empty() {
            return;
        }
        let mut segments: Vec<Segment> = Vec::with_capacity(residency.segments.len() + from_launch.len());
        for intervals in std::mem::take(&mut residency.segments).chunk_by(|a, b| a.chunk == b.chunk) {
            let mut intervals = intervals.to_vec();
            if let Some(&from) = from_launch.get(&intervals[0].chunk) {
                swap_in_during_step_before(&mut intervals, from, count);
                residency.across_steps[intervals[0].chunk] = true;
            }
            segments.extend(intervals);
        }
        residency.segments = segments;
    }

    /// Keeps bytes until their swap-out is done.
    fn swap_outs(&mut self, residency: &mut Residency, route: &impl Fn(usize) -> Route) {
        let segments = &mut residency.segments;
        let mut swap_outs: Vec<usize> = (0..segments.len()).filter(|&i| segments[i].swap_out).collect();
        swap_outs.sort_by_key(|&i| (segments[i].end, segments[i].chunk));
        let mut free_from_ns = [0; 2];
        for index in swap_outs {
            let chunk = segments[index].chunk;
            let (bytes, on_disk) = (self.live.chunks[chunk].device_bytes(), route(chunk).on_disk);
            let copy_ns = if on_disk { self.costs.disk_write_ns(bytes) } else { self.costs.copy_out_ns(bytes) };
            let free_from_ns = &mut free_from_ns[usize::from(on_disk)];
            let finish_ns = (*free_from_ns).max(self.starts[segments[index].end + 1]) + copy_ns;
            let latest = self.room(segments, index).end;
            let end = &mut segments[index].end;
            while *end + 1 < latest
                && self.starts[*end + 1] < finish_ns
                && self.usage[*end + 1] + bytes <= self.capacity_bytes
            {
                *end += 1;
                self.usage[*end] += bytes;
            }
            *free_from_ns = finish_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::estimate;
    use crate::residency::{Leaving, OccupancyLimit, kinds, residency};
    use crate::testing::{ProgramBuilder, limits};
    use forebay_base::Kernel;
    use forebay_base::kernel::UnaryOp;
    use forebay_model::program::Role;

    const CHUNK_BYTES: u64 = 1 << 20;
    const EXP: Kernel = Kernel::Unary(UnaryOp::Exp);

    /// Constants that are read one after the other, each by a separate launch, with room for one more constant at a time.
    #[test]
    fn what_the_first_launch_needs_is_swapped_in_while_the_step_before_ends() {
        let mut build = ProgramBuilder::default();
        let constants = ["a", "b", "c", "d"].map(|name| build.persistent(name, CHUNK_BYTES, Role::Constant));
        let results = ["e", "f", "g", "h"].map(|name| build.temporary(name, 64));
        for (constant, result) in constants.iter().zip(&results) {
            build.launch(EXP, &[*constant], &[*result]);
        }
        let program = build.finish(&results);
        let live = crate::liveness::liveness(&program, false);
        let mut costs = estimate(&program, &limits());
        costs.launch_ns = vec![costs.copy_in_ns(CHUNK_BYTES) * 2; 4];
        for (room, over_boundary) in [(3, true), (3, false), (1, true)] {
            let capacity_bytes = CHUNK_BYTES * room + 4096;
            let limit = OccupancyLimit {
                keep_bytes: CHUNK_BYTES + 4096,
                transfer_bytes: capacity_bytes,
                isolate: false,
                joined_bytes: u64::MAX,
            };
            let mut found = residency(&program, &live, &costs, limit, &[], &Leaving::Anything);
            assert!(found.across_steps.iter().all(|&across_steps| !across_steps), "nothing is kept");
            let kinds = kinds(&program, &live);
            let route =
                |chunk: usize| Route { on_disk: false, over_boundary: over_boundary && kinds[chunk].persistent };
            widen(&mut found, &live, &costs, route, capacity_bytes, &[]);
            let crosses = over_boundary && room > 1;
            let first: Vec<&Segment> = found.segments.iter().filter(|interval| interval.chunk == 0).collect();
            assert_eq!(found.across_steps[0], crosses, "room for {room}");
            assert_eq!(first.len(), 1 + usize::from(crosses));
            assert_eq!((first[0].start, first[0].swap_in), (0, !crosses));
            if crosses {
                let ahead = first[1];
                assert_eq!((ahead.start, ahead.end, ahead.swap_in), (3, 3, true), "half of the last launch is enough");
                assert!(ahead.accesses.is_empty());
            }
            let mut usage = vec![0; 4];
            for interval in &found.segments {
                usage[interval.start..=interval.end]
                    .iter_mut()
                    .for_each(|used| *used += live.chunks[interval.chunk].device_bytes());
            }
            assert!(usage.iter().all(|&used| used <= capacity_bytes), "{usage:?}");
        }
    }
}
