//! For plans whose addresses and barriers come later: which sets of launches are worth running again, and what moves when where
//! each launch is one slot.

use crate::layout::sweep::Strategy;
use crate::planner::{LaunchCandidate, Launches, Search, in_order, launches_in_whole_slots, pressed};
use crate::recompute::Recomputation;
use crate::schedule::{MemorySpace, Schedule};
use crate::tuning::{PLANNED_CHAIN, PLANNED_SIXTEENTHS, WAITS_GIVEN_TO_LAUNCHES};
use crate::workload::Workload;

/// Launches of a step with some that run once more: those alone that are most worth it, then with more and more others; and
/// what seems to be best where launches are looked for ([`crate::planner`]). Each launch is one slot.
pub fn recomputations(workload: &Workload) -> Vec<Launches> {
    let plain = in_order(workload);
    let recomputation = Recomputation::new(workload, &pressed(workload, &plain), PLANNED_CHAIN, MemorySpace::Host);
    let candidates = recomputation.candidates();
    let fraction =
        |sixteenths: &usize| recomputation.launches(&candidates[..(candidates.len() * sixteenths).div_ceil(16)]);
    let mut found: Vec<Launches> = Vec::new();
    for launches in PLANNED_SIXTEENTHS.iter().map(fraction).chain(launches_in_whole_slots(workload)) {
        if launches.len() > plain.len() && !found.contains(&launches) {
            found.push(launches);
        }
    }
    found
}

/// Plans a workload's launches as they come, each of them one slot; none where nothing was found that fits.
///
/// A first sweep says how long launches have to wait. In a second one they wait longer than that from the start: so bytes
/// return within the wait before they are needed, not during launches before it. That takes less of the device, and leaves
/// placement the room that it needs.
pub fn plan_launches(workload: &Workload) -> Option<Schedule> {
    let mut unheard = |_| ();
    let mut search = Search::new(workload, u64::MAX, &mut unheard);
    let plain = LaunchCandidate { strategy: Strategy::HostFirst, launches: in_order(workload) };
    let least = search.sweep(&plain, &vec![0; plain.launches.len()], u64::MAX, true)?;
    let waits_ns: Vec<u64> = least.waits_ns.iter().map(|wait_ns| wait_ns * WAITS_GIVEN_TO_LAUNCHES).collect();
    if waits_ns.iter().all(|wait_ns| *wait_ns == 0) {
        return least.schedule;
    }
    search.sweep(&plain, &waits_ns, u64::MAX, true).unwrap_or(least).schedule
}
