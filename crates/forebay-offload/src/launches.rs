//! Decides how long launches wait where each of them is one slot, and which sets of them are worth running again: for plans
//! whose addresses and barriers come later.
//!
//! A layout is made for given times. Where it leaves more on the device than fits, kernels wait: the one at which it is too
//! much, so that more can leave before it, or the one after, so that more can come back after. Waits grow until everything
//! fits, then they shrink for as long as it still does.

use std::ops::Range;

use crate::emit::emit;
use crate::layout::Layout;
use crate::planner::{launches_in_whole_slots, longest_slot_ns, pressed, Launches};
use crate::recompute::Recomputation;
use crate::reuse_gaps::Needs;
use crate::schedule::{MemorySpace, Schedule};
use crate::timeline::Timeline;
use crate::workload::Workload;

/// Shares of the candidates for recomputation that become plans, in sixteenths; the best ones come first.
const PLANNED_FRACTIONS: [usize; 5] = [1, 3, 6, 10, 16];
/// How many kernels in a row are run again for one tensor at most.
const CHAIN: usize = 8;
/// Attempts to make everything fit.
const GROWING_ROUNDS: usize = 20;
/// Attempts in which only the direction that seems short of time gets more.
const CAREFUL_ROUNDS: usize = 8;
/// Attempts to shorten waits.
const SHRINKING_ROUNDS: usize = 5;

/// Launches of a step with some that run once more: those alone that are most worth it, then with more and more others; and
/// what seems to be best where launches are looked for ([`crate::planner`]). Each launch is one slot.
pub fn recomputations(workload: &Workload) -> Vec<Launches> {
    let search = Search::new(workload);
    let recomputation = Recomputation::new(workload, &pressed(workload, &search.launches), CHAIN, MemorySpace::Host);
    let candidates = recomputation.candidates();
    let fraction =
        |sixteenths: &usize| recomputation.launches(&candidates[..(candidates.len() * sixteenths).div_ceil(16)]);
    let mut found: Vec<Launches> = Vec::new();
    for launches in PLANNED_FRACTIONS.iter().map(fraction).chain(launches_in_whole_slots(workload)) {
        if launches.len() > search.launches.len() && !found.contains(&launches) {
            found.push(launches);
        }
    }
    found
}

/// Plans a workload's launches as they come, each of them one slot; none where no waits were found that suffice.
pub fn plan_launches(workload: &Workload) -> Option<Schedule> {
    Search::new(workload).plan()
}

/// What an attempt came to.
enum Attempt {
    Fits(Schedule),
    /// Waits that should help, for each launch.
    Short(Vec<u64>),
}

/// Where waits go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Push {
    /// Before or after each stretch of pressure, as links are short of time.
    Carefully,
    /// Before and after where it is highest. What launches within the stretch touch in turn can change places there, and only
    /// there; so this ends.
    Peaks,
    /// Before and after each launch that lacks room.
    EachLaunch,
}

impl Push {
    /// What to do where that did not help.
    fn harder(self) -> Push {
        match self {
            Push::Carefully => Push::Peaks,
            Push::Peaks | Push::EachLaunch => Push::EachLaunch,
        }
    }
}

struct Search<'a> {
    workload: &'a Workload,
    launches: Launches,
    /// What waits are longer than bytes need, so that rounding does not take many rounds.
    slack_ns: u64,
}

impl<'a> Search<'a> {
    fn new(workload: &'a Workload) -> Search<'a> {
        let launches = (0..workload.kernels.len()).map(|kernel| (kernel, false)).collect();
        Search { workload, launches, slack_ns: longest_slot_ns(workload) / 8 + 1 }
    }

    /// A schedule; none where no waits were found that suffice.
    fn plan(&self) -> Option<Schedule> {
        self.grow().map(|(waits_ns, schedule)| self.shrink(waits_ns, schedule))
    }

    /// A launch is one slot, as is a short wait.
    fn timeline(&self, waits_ns: &[u64]) -> Timeline {
        let durations = self.launches.iter().map(|launch| self.workload.kernels[launch.0].duration_ns);
        Timeline::new(&durations.collect::<Vec<u64>>(), waits_ns, u64::MAX)
    }

    fn kernels(&self) -> Vec<usize> {
        self.launches.iter().map(|launch| launch.0).collect()
    }

    /// Waits with which everything fits.
    fn grow(&self) -> Option<(Vec<u64>, Schedule)> {
        let mut waits_ns = vec![0; self.launches.len()];
        let mut push = Push::Carefully;
        for round in 0..GROWING_ROUNDS {
            match self.attempt(&waits_ns, push) {
                Attempt::Fits(schedule) => return Some((waits_ns, schedule)),
                Attempt::Short(more_ns) => {
                    if round + 1 >= CAREFUL_ROUNDS && round % 4 == 3 {
                        push = push.harder();
                    }
                    // What does not converge soon is pushed harder.
                    let push = 1 + (1u64 << (round / 4)) / 2;
                    waits_ns.iter_mut().zip(more_ns).for_each(|(wait_ns, more_ns)| *wait_ns += more_ns * push);
                }
            }
        }
        None
    }

    /// The shortest share of the waits with which everything still fits.
    fn shrink(&self, waits_ns: Vec<u64>, schedule: Schedule) -> Schedule {
        let (mut best, mut fits, mut fails) = (schedule, 1.0, 0.0);
        if waits_ns.iter().all(|wait_ns| *wait_ns == 0) {
            return best;
        }
        for _ in 0..SHRINKING_ROUNDS {
            let fraction = (fits + fails) / 2.0;
            let shorter: Vec<u64> = waits_ns.iter().map(|wait_ns| (*wait_ns as f64 * fraction) as u64).collect();
            match self.attempt(&shorter, Push::Carefully) {
                Attempt::Fits(schedule) => (best, fits) = (schedule, fraction),
                Attempt::Short(_) => fails = fraction,
            }
        }
        best
    }

    fn attempt(&self, waits_ns: &[u64], push: Push) -> Attempt {
        let (kernels, timeline) = (self.kernels(), self.timeline(waits_ns));
        let needs = Needs::new(self.workload, &kernels, &timeline);
        let mut layout = Layout::new(self.workload, &kernels, &timeline, &needs);
        layout.relieve();
        if layout.worst_bytes() <= 0 {
            return Attempt::Fits(emit(self.workload, &self.launches, &timeline, &needs, &layout));
        }
        Attempt::Short(self.remedies(&timeline, &layout, push))
    }

    /// Longer waits where too much is on the device.
    ///
    /// Where a link is busy from one stretch of pressure to the next, what it carries in the first one's wait is there for the
    /// other, too; so that one is given only what it needs beyond that.
    fn remedies(&self, timeline: &Timeline, layout: &Layout<'_>, push: Push) -> Vec<u64> {
        let machine = &self.workload.machine;
        let careful = push == Push::Carefully;
        let rate = match !careful && layout.host_is_full() {
            true => machine.link_bytes_per_s.min(machine.ssd_write_bytes_per_s).min(machine.ssd_read_bytes_per_s),
            false => machine.link_bytes_per_s,
        };
        let ns = |bytes: u64| (u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as u64 + self.slack_ns;
        let mut more_ns = vec![0; timeline.runs.len()];
        let mut regions = regions(&layout.excess);
        if push == Push::EachLaunch {
            regions = regions.into_iter().flat_map(|region| by_launch(region, timeline)).collect();
        }
        let most = |region: &Range<usize>| {
            let slots = region.clone().map(|slot| (layout.excess[slot], slot));
            slots.max().map_or((0, region.start), |(bytes, slot)| (bytes.unsigned_abs(), slot))
        };
        // Where the obvious remedy did not help, both are tried.
        let crowded: Vec<(bool, bool)> = regions.iter().map(|region| layout.is_crowded_around(region)).collect();
        let (mut granted_bytes, mut last) = (0, 0);
        for (region, (out_is_full, in_is_full)) in regions.iter().zip(&crowded) {
            if !layout.is_crowded(last..region.start + 1).0 {
                granted_bytes = 0;
            }
            last = region.end;
            let (bytes, peak) = most(region);
            if bytes > granted_bytes && (!careful || *out_is_full || !in_is_full) {
                let at = if push == Push::Peaks { peak } else { region.start };
                more_ns[timeline.runs.iter().position(|run| run.end > at).unwrap_or(0)] += ns(bytes - granted_bytes);
                granted_bytes = bytes;
            }
        }
        let (mut granted_bytes, mut next) = (0, layout.excess.len() - 1);
        for (region, (out_is_full, in_is_full)) in regions.iter().zip(&crowded).rev() {
            if !layout.is_crowded(region.end - 1..next + 1).1 {
                granted_bytes = 0;
            }
            next = region.start;
            let (bytes, peak) = most(region);
            if bytes > granted_bytes && (!careful || *in_is_full || !out_is_full) {
                let at = if push == Push::Peaks { peak + 1 } else { region.end };
                more_ns[timeline.runs.iter().position(|run| run.start >= at).unwrap_or(0)] += ns(bytes - granted_bytes);
                granted_bytes = bytes;
            }
        }
        more_ns
    }
}

/// The parts of some slots that belong to one launch each: the wait before it, and its run.
fn by_launch(slots: Range<usize>, timeline: &Timeline) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut from = slots.start;
    for run in timeline.runs.iter().filter(|run| run.end > slots.start) {
        if from < slots.end {
            parts.push(from..run.end.min(slots.end));
        }
        from = run.end;
    }
    parts
}

/// Stretches of slots in which something exceeds.
fn regions(excess: &[i64]) -> Vec<Range<usize>> {
    let mut regions: Vec<Range<usize>> = Vec::new();
    for slot in (0..excess.len()).filter(|slot| excess[*slot] > 0) {
        match regions.last_mut() {
            Some(last) if last.end == slot => last.end = slot + 1,
            _ => regions.push(slot..slot + 1),
        }
    }
    regions
}
