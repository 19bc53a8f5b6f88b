//! Schedule: launches and copies in one list.
//!
//! The list's order is what the plan means by time: a fetch stands before the first launch of its stay, a save after the
//! last write of its stay or later. Streams and barriers follow from the list (see [`forebay_sync::barriers`]).

use crate::liveness::Liveness;
use crate::residency::{Residency, Segment};

/// One piece of work, in list order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A launch of the program.
    Launch(usize),
    /// The copy at the beginning of a stay ([`Residency::segments`]).
    Fetch(usize),
    /// The copy at the end of a stay.
    Save(usize),
}

/// The list of work: for each launch, the fetches that may start before it, itself, and the saves that stand
/// after it. Fetches that start together are ordered by the launch that needs them.
pub fn schedule(live: &Liveness, residency: &Residency) -> Vec<Work> {
    let mut fetches: Vec<Vec<usize>> = vec![Vec::new(); live.launch_count];
    let mut saves: Vec<Vec<usize>> = vec![Vec::new(); live.launch_count];
    let needed = |segment: &Segment| {
        let launch = live.chunks[segment.chunk].accesses[segment.accesses.start].launch;
        // What the next step needs comes last.
        (segment.accesses.is_empty(), launch)
    };
    for (index, segment) in residency.segments.iter().enumerate() {
        if segment.fetch {
            fetches[segment.start].push(index);
        }
        if segment.save {
            saves[segment.save_after].push(index);
        }
    }
    let mut list = Vec::new();
    for launch in 0..live.launch_count {
        fetches[launch].sort_by_key(|&index| {
            let segment = &residency.segments[index];
            (needed(segment), segment.chunk)
        });
        saves[launch].sort_by_key(|&index| residency.segments[index].chunk);
        list.extend(fetches[launch].iter().map(|&index| Work::Fetch(index)));
        list.push(Work::Launch(launch));
        list.extend(saves[launch].iter().map(|&index| Work::Save(index)));
    }
    list
}
