//! Decides how long kernels wait, and what of it is worth recomputing.
//!
//! A layout is made for given times. Where it leaves more on the device than fits, kernels wait: the one at which it is too
//! much, so that more can leave before it, or the one after, so that more can come back after. Waits grow until everything
//! fits, then they shrink for as long as it still does.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::swap::emit::emit;
use crate::swap::idle::Needs;
use crate::swap::layout::Layout;
use crate::swap::lru::demand_lru;
use crate::swap::recompute::{Candidate, Recomputation};
use crate::swap::schedule::Schedule;
use crate::swap::timeline::Timeline;
use crate::swap::workload::{SwapError, Workload};

/// A step has at most about this many slots beside one for each kernel, and at least the lower number.
const MOST_SLOTS: u64 = 4096;
const FEWEST_SLOTS: u64 = 512;
/// A slot's traffic should be that small a part of the device's memory.
const DEVICE_PARTS: u64 = 512;
/// Shares of the candidates for recomputation that are tried, in sixteenths; the best ones come first.
const SHARES: [usize; 9] = [1, 2, 4, 6, 8, 10, 12, 14, 16];
/// The same where each becomes a whole plan, which takes longer.
const PLANNED_SHARES: [usize; 5] = [1, 3, 6, 10, 16];
/// How many kernels in a row are run again for one tensor at most, where each attempt becomes a plan; and in traces, whose steps
/// are longer.
const CHAIN: usize = 8;
const TRACED_CHAINS: [usize; 2] = [4, 8];
/// Then numbers of candidates near the best share are tried, first with a distance of one of so many parts of all.
const FINER_PARTS: [usize; 3] = [32, 64, 128];
/// So many of the launches that promise most become plans.
const MOST_PLANS: usize = 3;
/// Promises are found with slots that are this many times as long.
const COARSE: u64 = 4;
/// Attempts to make everything fit.
const GROWING_ROUNDS: usize = 20;
/// Attempts in which only the direction that seems short of time gets more.
const CAREFUL_ROUNDS: usize = 8;
/// Attempts to shorten waits.
const SHRINKING_ROUNDS: usize = 5;

/// How far planning has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Attempts so far.
    pub round: usize,
    /// How long the attempt's step takes.
    pub step_ns: u64,
    /// Whether it is a schedule, or still more than the device holds.
    pub found: bool,
}

/// Plans a workload.
///
/// # Errors
/// A kernel that does not fit the device; a workload for which no waits were found that suffice.
pub fn plan(workload: &Workload, progress: &mut dyn FnMut(Progress)) -> Result<Schedule, SwapError> {
    workload.validate()?;
    let mut search = Search::new(workload, Grain::Fine, progress);
    let promising = search.promising();
    // Where links are so slow that much of the time is waiting, paging on demand may be as good.
    let is_slow = promising.first().is_some_and(|(promised_ns, _)| *promised_ns > workload.ideal_ns() / 8 * 9);
    let mut found = if is_slow { demand_lru(workload).ok() } else { None };
    for (promised_ns, launches) in promising {
        // Promises are seldom outdone by much.
        if found.as_ref().is_some_and(|found| found.step_ns <= promised_ns) {
            continue;
        }
        search.launches = launches;
        let planned = search.plan(found.as_ref().map_or(u64::MAX, |found| found.step_ns));
        found = found.into_iter().chain(planned).min_by_key(|schedule| schedule.step_ns);
    }
    found.ok_or_else(|| SwapError::NoSchedule {
        reason: format!("{GROWING_ROUNDS} rounds of longer waits did not suffice; give more --device-memory"),
    })
}

/// How finely time is cut into slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grain {
    /// Into slots in which a link carries a small part of the device's memory.
    Fine,
    /// Into launches.
    Launches,
}

/// Launches of a step with some that run once more: those alone that are most worth it, then with more and more others. None
/// where everything fits without waits. Each launch is one slot.
pub fn repeats(workload: &Workload) -> Vec<Vec<(usize, bool)>> {
    let mut quiet = |_| ();
    let mut search = Search::new(workload, Grain::Launches, &mut quiet);
    let plain = search.launches.clone();
    let Promise { pressed, fits, .. } = search.promise(&plain);
    if fits {
        return Vec::new();
    }
    let recomputation = Recomputation::new(workload, &pressed, CHAIN);
    let candidates = recomputation.candidates();
    let mut found: Vec<Vec<(usize, bool)>> = PLANNED_SHARES
        .iter()
        .map(|sixteenths| recomputation.launches(&candidates[..(candidates.len() * sixteenths).div_ceil(16)]))
        .filter(|launches| launches.len() > plain.len())
        .collect();
    found.dedup();
    found
}

/// Plans a workload's launches as they come, each of them one slot; none where no waits were found that suffice.
pub fn plan_launches(workload: &Workload) -> Option<Schedule> {
    let mut quiet = |_| ();
    Search::new(workload, Grain::Launches, &mut quiet).plan(u64::MAX)
}

/// How long a slot of the fine grain may be.
fn longest_slot_ns(workload: &Workload) -> u64 {
    let part = u128::from(workload.machine.device_memory_bytes / DEVICE_PARTS) * 1_000_000_000;
    let part_ns = (part / u128::from(workload.machine.link_bytes_per_s)) as u64;
    let ideal_ns = workload.ideal_ns();
    part_ns.clamp(ideal_ns / MOST_SLOTS, ideal_ns / FEWEST_SLOTS).max(1)
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

/// What launches promise before waits are known.
struct Promise {
    /// How long the step might take.
    step_ns: u64,
    /// For each launch, whether more is live than the device holds.
    pressed: Vec<bool>,
    /// Whether no waits are needed.
    fits: bool,
}

struct Search<'a> {
    workload: &'a Workload,
    /// Each launch's kernel, and whether it is a recomputation.
    launches: Vec<(usize, bool)>,
    /// How long a slot may be.
    longest_ns: u64,
    /// What waits are longer than bytes need, so that rounding does not take many rounds.
    slack_ns: u64,
    rounds: usize,
    progress: &'a mut dyn FnMut(Progress),
}

impl<'a> Search<'a> {
    fn new(workload: &'a Workload, grain: Grain, progress: &'a mut dyn FnMut(Progress)) -> Search<'a> {
        let fine_ns = longest_slot_ns(workload);
        let longest_ns = match grain {
            Grain::Fine => fine_ns,
            Grain::Launches => u64::MAX,
        };
        let launches = (0..workload.kernels.len()).map(|kernel| (kernel, false)).collect();
        Search { workload, launches, longest_ns, slack_ns: fine_ns / 8 + 1, rounds: 0, progress }
    }

    /// A schedule; none where waits grow until it is no shorter than `limit_ns` by much.
    fn plan(&mut self, limit_ns: u64) -> Option<Schedule> {
        self.grow(limit_ns).map(|(waits_ns, schedule)| self.shrink(waits_ns, schedule))
    }

    /// The launches that promise the shortest steps, the shortest first: as they come, or with some that run again.
    fn promising(&mut self) -> Vec<(u64, Vec<(usize, bool)>)> {
        let plain = self.launches.clone();
        let Promise { step_ns, pressed, fits } = self.promise(&plain);
        let mut promised = vec![(step_ns, plain)];
        if fits {
            return promised;
        }
        let mut known = Vec::new();
        for chain in TRACED_CHAINS {
            let recomputation = Recomputation::new(self.workload, &pressed, chain);
            let candidates = recomputation.candidates();
            let all = recomputation.launches(&candidates);
            // Longer chains are nothing new where shorter ones reach everything.
            if all == known {
                continue;
            }
            self.ask(&recomputation, &candidates, &mut promised);
            known = all;
        }
        promised.sort_by_key(|(step_ns, _)| *step_ns);
        promised.truncate(MOST_PLANS);
        promised
    }

    /// Asks what shares of the candidates promise, the best candidates first; then what numbers near the best share do.
    fn ask(
        &mut self,
        recomputation: &Recomputation<'_>,
        candidates: &[Candidate],
        promised: &mut Vec<(u64, Vec<(usize, bool)>)>,
    ) {
        let mut steps_ns = BTreeMap::new();
        let mut ask = |count: usize, steps_ns: &mut BTreeMap<usize, u64>| {
            if count > 0 && count <= candidates.len() && !steps_ns.contains_key(&count) {
                let launches = recomputation.launches(&candidates[..count]);
                let step_ns = self.promise(&launches).step_ns;
                steps_ns.insert(count, step_ns);
                promised.push((step_ns, launches));
            }
        };
        for sixteenths in SHARES {
            ask((candidates.len() * sixteenths).div_ceil(16), &mut steps_ns);
        }
        for parts in FINER_PARTS {
            let step = candidates.len() / parts;
            if let (true, Some((&count, _))) = (step > 0, steps_ns.iter().min_by_key(|(_, step_ns)| **step_ns)) {
                ask(count.saturating_sub(step), &mut steps_ns);
                ask(count + step, &mut steps_ns);
            }
        }
    }

    /// How long a step of these launches would take if each stretch of pressure cost the time that its bytes need.
    fn promise(&mut self, launches: &[(usize, bool)]) -> Promise {
        let kernels: Vec<usize> = launches.iter().map(|launch| launch.0).collect();
        let durations_ns: Vec<u64> = kernels.iter().map(|kernel| self.workload.kernels[*kernel].duration_ns).collect();
        let timeline = Timeline::new(&durations_ns, &vec![0; kernels.len()], self.longest_ns.saturating_mul(COARSE));
        let needs = Needs::new(self.workload, &kernels, &timeline);
        let mut layout = Layout::new(self.workload, &kernels, &timeline, &needs);
        let pressed = timeline.runs.iter().map(|run| layout.excess[run.start] > 0).collect();
        layout.relieve();
        let fits = layout.worst_bytes() <= 0;
        let short_ns: u64 = self.remedies(&timeline, &layout, Push::Carefully).into_iter().sum();
        self.rounds += 1;
        (self.progress)(Progress { round: self.rounds, step_ns: timeline.step_ns, found: fits });
        Promise { step_ns: timeline.step_ns + short_ns, pressed, fits }
    }

    /// How long launches take, without waits.
    fn launches_ns(&self) -> u64 {
        self.launches.iter().map(|launch| self.workload.kernels[launch.0].duration_ns).sum()
    }

    /// Waits with which everything fits.
    fn grow(&mut self, limit_ns: u64) -> Option<(Vec<u64>, Schedule)> {
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
                    let step_ns = self.launches_ns() + waits_ns.iter().sum::<u64>();
                    // Shrinking takes some of it back, seldom much.
                    if step_ns / 2 >= limit_ns {
                        return None;
                    }
                }
            }
        }
        None
    }

    /// The shortest share of the waits with which everything still fits.
    fn shrink(&mut self, waits_ns: Vec<u64>, schedule: Schedule) -> Schedule {
        let (mut best, mut fits, mut fails) = (schedule, 1.0, 0.0);
        if waits_ns.iter().all(|wait_ns| *wait_ns == 0) {
            return best;
        }
        for _ in 0..SHRINKING_ROUNDS {
            let share = (fits + fails) / 2.0;
            let shorter: Vec<u64> = waits_ns.iter().map(|wait_ns| (*wait_ns as f64 * share) as u64).collect();
            match self.attempt(&shorter, Push::Carefully) {
                Attempt::Fits(schedule) => (best, fits) = (schedule, share),
                Attempt::Short(_) => fails = share,
            }
        }
        best
    }

    fn attempt(&mut self, waits_ns: &[u64], push: Push) -> Attempt {
        let kernels: Vec<usize> = self.launches.iter().map(|launch| launch.0).collect();
        let durations_ns: Vec<u64> = kernels.iter().map(|kernel| self.workload.kernels[*kernel].duration_ns).collect();
        let timeline = Timeline::new(&durations_ns, waits_ns, self.longest_ns);
        let needs = Needs::new(self.workload, &kernels, &timeline);
        let mut layout = Layout::new(self.workload, &kernels, &timeline, &needs);
        layout.relieve();
        self.rounds += 1;
        let found = layout.worst_bytes() <= 0;
        (self.progress)(Progress { round: self.rounds, step_ns: timeline.step_ns, found });
        if found {
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
