//! For plans whose addresses and barriers are determined later: which sets of launches are worth running again, and what moves when if each
//! launch is one slot.

use crate::planner::{LaunchCandidate, Launches, Search, pressed};
use crate::recompute::Recomputation;
use crate::schedule::{MemorySpace, Schedule};
use crate::tuning::{PLANNED_CHAIN, PLANNED_SIXTEENTHS, WAITS_GIVEN_TO_LAUNCHES};
use crate::workload::Workload;

/// Returns the launches of steps in which some run again: first only the most worthwhile ones, then more and more others, and what seems
/// best in the search for launches ([`crate::planner`]). Each launch is one slot.
pub fn recomputations(workload: &Workload) -> Vec<Launches> {
    let mut unheard = |_| ();
    let mut search = Search::new(workload, u64::MAX, &mut unheard);
    let plain = LaunchCandidate::plain(workload);
    let (swept, count) = (search.compare(&plain), plain.launches.len());
    let pressed = pressed(workload, &plain.launches);
    let waits_ns = swept.as_ref().map_or_else(|| vec![0; count], |swept| swept.waits_in_gaps_ns(workload));
    let recomputation = Recomputation::new(workload, &pressed, &waits_ns, PLANNED_CHAIN, MemorySpace::Host);
    let candidates = recomputation.candidates();
    let fraction =
        |sixteenths: &usize| recomputation.launches(&candidates[..(candidates.len() * sixteenths).div_ceil(16)]);
    let searched = search.candidates(plain, swept.as_ref()).into_iter().map(|candidate| candidate.launches);
    let mut found: Vec<Launches> = Vec::new();
    for launches in PLANNED_SIXTEENTHS.iter().map(fraction).chain(searched) {
        if launches.len() > count && !found.contains(&launches) {
            found.push(launches);
        }
    }
    found
}

/// Plans the launches of a workload in their given order, each as one slot; `None` if nothing was found that fits.
///
/// A first sweep determines how long launches have to wait. In a second one, they wait longer than that from the start, so that bytes
/// return during the wait before they are needed, not during the launches before it. This takes less of the device, and leaves placement
/// the room that it needs.
pub fn plan_launches(workload: &Workload) -> Option<Schedule> {
    let mut unheard = |_| ();
    let mut search = Search::new(workload, u64::MAX, &mut unheard);
    let plain = LaunchCandidate::plain(workload);
    let least = search.sweep(&plain, &vec![0; plain.launches.len()], u64::MAX, true)?;
    let waits_ns: Vec<u64> = least.waits_ns.iter().map(|wait_ns| wait_ns * WAITS_GIVEN_TO_LAUNCHES).collect();
    if waits_ns.iter().all(|wait_ns| *wait_ns == 0) {
        return least.schedule;
    }
    search.sweep(&plain, &waits_ns, u64::MAX, true).unwrap_or(least).schedule
}
