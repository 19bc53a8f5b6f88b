//! For plans whose addresses and barriers are determined later: which sets of launches are worth running again, and what moves when if each
//! launch is one slot.

use crate::layout::sweep::Strategy;
use crate::planner::{LaunchCandidate, Launches, Search, in_order, launches_in_whole_slots, pressed};
use crate::recompute::Recomputation;
use crate::schedule::{MemorySpace, Schedule};
use crate::tuning::{PLANNED_CHAIN, PLANNED_SIXTEENTHS, WAITS_GIVEN_TO_LAUNCHES};
use crate::workload::Workload;

/// Returns the launches of steps in which some run again: first only the most worthwhile ones, then more and more others, and what seems
/// best in the search for launches ([`crate::planner`]). Each launch is one slot.
pub fn recomputations(workload: &Workload) -> Vec<Launches> {
    let plain = in_order(workload);
    let pressed = pressed(workload, &plain);
    let waits_ns = waits_in_gaps_ns(workload, &plain);
    let recomputation = Recomputation::new(workload, &pressed, &waits_ns, PLANNED_CHAIN, MemorySpace::Host);
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

/// How long each kernel waits ([`crate::planner::Swept::waits_in_gaps_ns`]); 0 for each if nothing fits.
fn waits_in_gaps_ns(workload: &Workload, plain: &Launches) -> Vec<u64> {
    let mut unheard = |_| ();
    let plain = LaunchCandidate { strategy: Strategy::HostFirst, launches: plain.clone() };
    let swept = Search::new(workload, u64::MAX, &mut unheard).compare(&plain);
    swept.map_or_else(|| vec![0; plain.launches.len()], |swept| swept.waits_in_gaps_ns(workload))
}

/// Plans the launches of a workload in their given order, each as one slot; `None` if nothing was found that fits.
///
/// A first sweep determines how long launches have to wait. In a second one, they wait longer than that from the start, so that bytes
/// return during the wait before they are needed, not during the launches before it. This takes less of the device, and leaves placement
/// the room that it needs.
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
