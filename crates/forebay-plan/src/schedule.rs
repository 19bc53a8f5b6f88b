//! Schedule: launches and copies in one list.
//!
//! The order of the list is the plan's notion of time: a swap-in comes before the first launch of its interval, a swap-out after the last
//! write of its interval or later. Streams and barriers are derived from the list (see [`forebay_sync::barriers`]).

use crate::liveness::Liveness;
use crate::residency::{Residency, Segment};

/// One piece of work, in list order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A launch of the program.
    Launch(usize),
    /// The copy at the beginning of an interval ([`Residency::segments`]).
    SwapIn(usize),
    /// The copy at the end of an interval.
    SwapOut(usize),
}

/// Returns the list of work: for each launch, the swap-ins that may start before it, the launch, and the swap-outs that follow it. Swap-ins
/// that start together are ordered by the launch that needs them.
pub fn schedule(live: &Liveness, residency: &Residency) -> Vec<Work> {
    let mut swap_ins: Vec<Vec<usize>> = vec![Vec::new(); live.launch_count];
    let mut swap_outs: Vec<Vec<usize>> = vec![Vec::new(); live.launch_count];
    let needed = |segment: &Segment| {
        let launch = live.chunks[segment.chunk].accesses[segment.accesses.start].launch;
        // What the next step needs comes last.
        (segment.accesses.is_empty(), launch)
    };
    for (index, segment) in residency.segments.iter().enumerate() {
        if segment.swap_in {
            swap_ins[segment.start].push(index);
        }
        if segment.swap_out {
            swap_outs[segment.swap_out_after].push(index);
        }
    }
    let mut list = Vec::new();
    for launch in 0..live.launch_count {
        swap_ins[launch].sort_by_key(|&index| {
            let segment = &residency.segments[index];
            (needed(segment), segment.chunk)
        });
        swap_outs[launch].sort_by_key(|&index| residency.segments[index].chunk);
        list.extend(swap_ins[launch].iter().map(|&index| Work::SwapIn(index)));
        list.push(Work::Launch(launch));
        list.extend(swap_outs[launch].iter().map(|&index| Work::SwapOut(index)));
    }
    list
}
