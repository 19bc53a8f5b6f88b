//! Plans a step: what is recomputed, and how long kernels wait.
//!
//! For given launches, one sweep determines which bytes move when and how long kernels wait at least ([`crate::layout`]), so the search is
//! over launches. It starts with the candidates for recomputation that save the most on their own, and goes on with those that relieve what
//! is waited for: a byte's way out is worth time only if the link is busy from its write to the next wait for bytes to leave, its way back
//! only if the link is busy from the last wait for bytes to return. Candidates that save more than they take are added, those that save
//! less are removed, as many at once as helps. If an SSD has to take part, all of this is done for each strategy of using it
//! ([`Strategy`]).

use std::collections::BTreeSet;

use crate::emit::emit;
use crate::layout::Layout;
use crate::layout::sweep::{Price, Strategy};
use crate::lru::demand_lru;
use crate::recompute::{Candidate, Recomputation};
use crate::reuse_gaps::Needs;
use crate::schedule::{MemorySpace, Schedule};
use crate::timeline::Timeline;
use crate::tuning::{
    CHAINS, COARSE, DEVICE_PARTS, DOUBT, FEWEST_SLOTS, FIRST_PART, FIRST_SHARES, GIVEN_SHARES, LAST_PART, MOST_CHANGES,
    MOST_IMPROVED, MOST_SLOTS, SLOW, SPILLING, SPREAD_SHARES, WORTH,
};
use crate::workload::{SwapError, Workload};

/// How far sums of shares may fall short of a whole number.
const ROUNDING: f64 = 1e-9;

/// The progress of planning.
///
/// ```
/// use forebay_offload::planner::{plan, Progress};
/// use forebay_offload::workload::{Kernel, Machine, Tensor, Workload};
///
/// # let tensor = |persistent| Tensor { size_bytes: 1 << 20, persistent };
/// # let kernel = |name: &str, reads: &[usize], writes: &[usize]| Kernel {
/// #     name: name.to_string(), duration_ns: 1_000_000, reads: reads.to_vec(), writes: writes.to_vec(), workspace_bytes: 0,
/// # };
/// # let machine = Machine {
/// #     device_memory_bytes: 2 << 20, host_memory_bytes: 1 << 30, link_bytes_per_s: 4 << 30,
/// #     ssd_read_bytes_per_s: 1 << 30, ssd_write_bytes_per_s: 1 << 30,
/// # };
/// # let workload = Workload {
/// #     tensors: vec![tensor(false), tensor(false), tensor(false)],
/// #     kernels: vec![kernel("a", &[], &[0]), kernel("b", &[], &[1, 2]), kernel("c", &[1], &[2]), kernel("d", &[0], &[2])],
/// #     machine,
/// # };
/// let mut rounds = 0;
/// let schedule = plan(&workload, &mut |progress: Progress| rounds = progress.round)?;
/// println!("{} ns a step, after {rounds} attempts", schedule.step_ns);
/// # Ok::<(), forebay_offload::workload::SwapError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The number of attempts so far.
    pub round: usize,
    /// How long the step of the attempt takes.
    pub step_ns: u64,
    /// Whether the attempt is a schedule, or still takes more than the device holds.
    pub found: bool,
}

/// Plans a workload.
///
/// # Errors
/// If a kernel does not fit the device, or if no waits were found that suffice for the workload.
pub fn plan(workload: &Workload, progress: &mut dyn FnMut(Progress)) -> Result<Schedule, SwapError> {
    workload.validate()?;
    let mut search = Search::new(workload, longest_slot_ns(workload), progress);
    let plain = LaunchCandidate::plain(workload);
    let swept = search.compare(&plain);
    let candidates = search.candidates(plain, swept.as_ref());
    let planned = search.schedule(&candidates);
    // If links are so slow that much of the time is spent waiting, demand paging may be as good.
    let is_slow = planned.as_ref().is_none_or(|planned| planned.step_ns > workload.ideal_ns() / 8 * 9);
    let paged = if is_slow { demand_lru(workload).ok() } else { None };
    planned.into_iter().chain(paged).min_by_key(|schedule| schedule.step_ns).ok_or_else(|| SwapError::NoSchedule {
        reason: "longer waits were not enough; increase --device-memory".to_owned(),
    })
}

/// The kernels of a step, each run once.
pub(crate) fn in_order(workload: &Workload) -> Launches {
    (0..workload.kernels.len()).map(|kernel| (kernel, false)).collect()
}

/// For each launch, whether more is live than the device holds.
pub(crate) fn pressed(workload: &Workload, launches: &Launches) -> Vec<bool> {
    let (kernels, durations_ns) = kernels(workload, launches);
    let timeline = Timeline::new(&durations_ns, &vec![0; kernels.len()], u64::MAX);
    let needs = Needs::new(workload, &kernels, &timeline);
    let layout = Layout::new(workload, &kernels, &timeline, &needs);
    timeline.runs.iter().map(|run| layout.excess[run.start] > 0).collect()
}

/// The kernels that launches run, and their durations.
fn kernels(workload: &Workload, launches: &Launches) -> (Vec<usize>, Vec<u64>) {
    launches.iter().map(|launch| (launch.0, workload.kernels[launch.0].duration_ns)).unzip()
}

/// The longest that a slot may be.
fn longest_slot_ns(workload: &Workload) -> u64 {
    let part = u128::from(workload.machine.device_memory_bytes / DEVICE_PARTS) * 1_000_000_000;
    let part_ns = u64::try_from(part / u128::from(workload.machine.link_bytes_per_s)).unwrap_or(u64::MAX);
    let ideal_ns = workload.ideal_ns();
    part_ns.clamp(ideal_ns / MOST_SLOTS, ideal_ns / FEWEST_SLOTS).max(1)
}

/// The result of a sweep.
pub(crate) struct Swept {
    step_ns: u64,
    /// How long each launch waits.
    pub(crate) waits_ns: Vec<u64>,
    /// For each kernel, what the way out after its first run is worth, and the way back before it.
    out: Vec<Price>,
    back: Vec<Price>,
    pub(crate) schedule: Option<Schedule>,
}

impl Swept {
    /// In a step without recomputations: how long each kernel waits if the step takes more than [`SLOW`] times the time of its kernels,
    /// and otherwise 0 for each.
    pub(crate) fn waits_in_gaps_ns(&self, workload: &Workload) -> Vec<u64> {
        match self.step_ns > workload.ideal_ns().saturating_mul(SLOW) {
            true => self.waits_ns.clone(),
            false => vec![0; self.waits_ns.len()],
        }
    }
}

/// The candidates for recomputation, and which of them are chosen.
struct Fraction<'r> {
    strategy: Strategy,
    recomputation: &'r Recomputation<'r>,
    pool: Vec<Candidate>,
    chosen: BTreeSet<usize>,
    /// The result of a sweep with the chosen ones.
    swept: Swept,
}

impl Fraction<'_> {
    /// The same with other candidates chosen.
    fn candidate(&self, chosen: &BTreeSet<usize>) -> LaunchCandidate {
        LaunchCandidate { strategy: self.strategy, launches: launches_of(self.recomputation, &self.pool, chosen) }
    }
}

/// The kernel of each launch, and whether it is a recomputation.
pub(crate) type Launches = Vec<(usize, bool)>;

/// What a sweep starts from.
#[derive(Clone, PartialEq)]
pub(crate) struct LaunchCandidate {
    pub(crate) strategy: Strategy,
    pub(crate) launches: Launches,
}

impl LaunchCandidate {
    /// The kernels of a step, each run once.
    pub(crate) fn plain(workload: &Workload) -> LaunchCandidate {
        LaunchCandidate { strategy: Strategy::HostFirst, launches: in_order(workload) }
    }
}

/// The search for launches, and the sweeps that judge them.
pub(crate) struct Search<'a> {
    workload: &'a Workload,
    /// The longest that a slot may be.
    longest_ns: u64,
    rounds: usize,
    progress: &'a mut dyn FnMut(Progress),
}

impl<'a> Search<'a> {
    pub(crate) fn new(workload: &'a Workload, longest_ns: u64, progress: &'a mut dyn FnMut(Progress)) -> Search<'a> {
        Search { workload, longest_ns, rounds: 0, progress }
    }

    /// The launches that seem to have the shortest steps: for each strategy and chain length, the best share of the candidates that are
    /// most worthwhile on their own, and what improvement makes of the best. `swept` is the result of [`Search::compare`] for `plain`.
    pub(crate) fn candidates(&mut self, plain: LaunchCandidate, swept: Option<&Swept>) -> Vec<LaunchCandidate> {
        let Some(swept) = swept else { return vec![plain] };
        if swept.waits_ns.iter().all(|wait_ns| *wait_ns == 0) {
            return vec![plain];
        }
        let pressed = pressed(self.workload, &plain.launches);
        let waits_ns = swept.waits_in_gaps_ns(self.workload);
        let (strategies, places) = if self.workload.spills() {
            (&Strategy::ALL[..], &[MemorySpace::Host, MemorySpace::Ssd][..])
        } else {
            (&Strategy::ALL[..1], &[MemorySpace::Host][..])
        };
        let steps = CHAINS.map(|chain| {
            let prepared = |place: &MemorySpace| Recomputation::new(self.workload, &pressed, &waits_ns, chain, *place);
            places.iter().map(prepared).collect::<Vec<_>>()
        });
        let mut fractions: Vec<Fraction<'_>> = Vec::new();
        for by_place in &steps {
            // Longer chains are tried only with the best strategy.
            let best = fractions.first().map(|fraction| fraction.strategy);
            for &strategy in strategies.iter().filter(|strategy| best.is_none_or(|best| best == **strategy)) {
                fractions.extend(self.best_fraction(&by_place[usize::from(strategy.prefers_ssd())], strategy));
            }
            fractions.sort_by_key(|fraction| fraction.swept.step_ns);
        }
        let mut candidates: Vec<LaunchCandidate> =
            fractions.iter().map(|fraction| fraction.candidate(&fraction.chosen)).collect();
        let mut improved: Vec<Strategy> = Vec::new();
        for fraction in fractions {
            if improved.len() < MOST_IMPROVED && !improved.contains(&fraction.strategy) {
                improved.push(fraction.strategy);
                candidates.push(self.improved(fraction));
            }
        }
        candidates.dedup();
        candidates
    }

    /// The best share of the candidates that are most worthwhile on their own, or all but every k-th in launch order. In the latter case,
    /// chains of recomputations start from what is kept.
    fn best_fraction<'r>(&mut self, recomputation: &'r Recomputation<'r>, strategy: Strategy) -> Option<Fraction<'r>> {
        let pool = recomputation.pool();
        let worth = pool.partition_point(|candidate| candidate.worth > WORTH);
        let mut asked = BTreeSet::new();
        let mut ask = |chosen: BTreeSet<usize>, best: Option<&(Swept, BTreeSet<usize>)>| {
            if !asked.insert(chosen.clone()) {
                return None;
            }
            let launches = launches_of(recomputation, &pool, &chosen);
            let found = self.compare(&LaunchCandidate { strategy, launches })?;
            best.is_none_or(|(best, _)| found.step_ns < best.step_ns).then_some((found, chosen))
        };
        let first = FIRST_SHARES.best(|share, best| ask((0..(worth as f64 * share).ceil() as usize).collect(), best));
        let first = first.map(|(_, first)| first);
        let mut in_time: Vec<usize> = (0..worth).collect();
        in_time.sort_by_key(|index| (pool[*index].to, *index));
        let spread = SPREAD_SHARES.best(|share, best| {
            // The share determines how many are left out before each place.
            let left_out = |place: usize| (place as f64 * share + ROUNDING) as usize;
            let others = in_time.iter().enumerate().filter(|(place, _)| left_out(place + 1) == left_out(*place));
            ask(others.map(|(_, index)| *index).collect(), best.or(first.as_ref()))
        });
        let best = spread.map(|(_, spread)| spread).or(first);
        let (swept, chosen) = best?;
        Some(Fraction { strategy, recomputation, pool, swept, chosen })
    }

    /// Adds and removes candidates for as long as it helps.
    fn improved(&mut self, mut fraction: Fraction<'_>) -> LaunchCandidate {
        let mut part = FIRST_PART;
        let mut trust = vec![1.0; fraction.pool.len()];
        let mut changes = 0;
        let effort = MOST_CHANGES / if self.workload.spills() { SPILLING } else { 1 };
        let most = (effort * 1024 / self.workload.kernels.len().max(512)).max(8);
        while changes < most {
            let (added, removed) = proposed(&fraction, &trust, part);
            let mut attempts = vec![(added.clone(), removed.clone()), (added, Vec::new()), (Vec::new(), removed)];
            attempts.retain(|(added, removed)| added.len() + removed.len() > 0);
            attempts.dedup();
            if attempts.is_empty() {
                break;
            }
            let mut is_better = false;
            for (added, removed) in attempts {
                let mut changed = fraction.chosen.clone();
                changed.extend(&added);
                removed.iter().for_each(|index| {
                    changed.remove(index);
                });
                changes += 1;
                let attempt = self.compare(&fraction.candidate(&changed));
                if let Some(attempt) = attempt.filter(|attempt| attempt.step_ns < fraction.swept.step_ns) {
                    (fraction.swept, fraction.chosen, is_better) = (attempt, changed, true);
                    break;
                }
                added.iter().chain(&removed).for_each(|index| trust[*index] *= DOUBT);
            }
            if !is_better {
                part = (part * 2.0).min(LAST_PART);
            }
        }
        fraction.candidate(&fraction.chosen)
    }

    /// Roughly estimates how long the step takes.
    pub(crate) fn compare(&mut self, candidate: &LaunchCandidate) -> Option<Swept> {
        self.sweep(candidate, &vec![0; candidate.launches.len()], self.longest_ns.saturating_mul(COARSE), false)
    }

    /// Returns a schedule of the candidate that is best with short slots. The waits that a sweep found, slightly reduced, are given to the
    /// next sweep from its start, so that they are available to everything that can use them.
    fn schedule(&mut self, candidates: &[LaunchCandidate]) -> Option<Schedule> {
        let mut best: Option<(Swept, &LaunchCandidate)> = None;
        for candidate in candidates {
            let found = self.sweep(candidate, &vec![0; candidate.launches.len()], self.longest_ns, true);
            let is_better = |found: &Swept| best.as_ref().is_none_or(|(best, _)| found.step_ns < best.step_ns);
            if let Some(found) = found.filter(is_better) {
                best = Some((found, candidate));
            }
        }
        let (mut best, candidate) = best?;
        if best.waits_ns.iter().any(|wait_ns| *wait_ns > 0) {
            // The longer the waits, the longer their slots.
            let times = (best.step_ns / self.workload.ideal_ns().max(1)).max(1);
            let found = GIVEN_SHARES.best(|share, better: Option<&Swept>| {
                let waits_ns: Vec<u64> = best.waits_ns.iter().map(|wait_ns| (*wait_ns as f64 * share) as u64).collect();
                let found = self.sweep(candidate, &waits_ns, self.longest_ns.saturating_mul(times), true);
                found.filter(|found| found.step_ns < better.unwrap_or(&best).step_ns)
            });
            best = found.map_or(best, |(_, found)| found);
        }
        best.schedule
    }

    /// The result of a sweep over a candidate if launches wait for `waits_ns` from the start; `None` if nothing fits.
    pub(crate) fn sweep(
        &mut self,
        LaunchCandidate { strategy, launches }: &LaunchCandidate,
        waits_ns: &[u64],
        longest_ns: u64,
        emits: bool,
    ) -> Option<Swept> {
        let (kernels, durations_ns) = kernels(self.workload, launches);
        let timeline = Timeline::with_gates(&durations_ns, waits_ns, longest_ns);
        let needs = Needs::new(self.workload, &kernels, &timeline);
        let mut layout = Layout::new(self.workload, &kernels, &timeline, &needs);
        let relief = layout.sweep(*strategy);
        let step_ns = timeline.step_ns + relief.added_ns.iter().sum::<u64>();
        self.rounds += 1;
        (self.progress)(Progress { round: self.rounds, step_ns, found: relief.fits });
        if !relief.fits {
            return None;
        }
        let timeline = timeline.widened(&relief.added_ns);
        let (mut waits_ns, mut free) = (Vec::new(), 0);
        for run in &timeline.runs {
            waits_ns.push((free..run.start).map(|slot| timeline.slots[slot].duration_ns).sum());
            free = run.end;
        }
        let first_runs = |of: Vec<Price>| {
            let first = launches.iter().zip(of).filter(|(launch, _)| !launch.1);
            first.map(|(_, price)| price).collect()
        };
        let schedule = emits.then(|| emit(self.workload, launches, &timeline, &needs, &layout));
        let (out, back) = (first_runs(relief.out), first_runs(relief.back));
        Some(Swept { step_ns, waits_ns, out, back, schedule })
    }
}

fn launches_of(recomputation: &Recomputation<'_>, pool: &[Candidate], chosen: &BTreeSet<usize>) -> Launches {
    let chosen: Vec<Candidate> = chosen.iter().map(|index| pool[*index]).collect();
    recomputation.launches(&chosen)
}

/// The candidates that should be added, and those that should be removed.
fn proposed(fraction: &Fraction<'_>, trust: &[f64], part: f64) -> (Vec<usize>, Vec<usize>) {
    let Fraction { pool, chosen, swept, .. } = fraction;
    // What the crossings are worth that have at least this price.
    let saved_ns = |index: usize, least: Price| {
        let candidate = &pool[index];
        let crossings = u8::from(swept.out[candidate.maker] >= least) + u8::from(swept.back[candidate.to] >= least);
        f64::from(crossings) * candidate.crossing_ns
    };
    let mut added: Vec<(f64, usize)> = Vec::new();
    let mut removed: Vec<(f64, usize)> = Vec::new();
    for index in 0..pool.len() {
        let is_chosen = chosen.contains(&index);
        let least = if is_chosen { Price::Busy } else { Price::Waits };
        let worth = saved_ns(index, least) / pool[index].spent_ns.max(1.0);
        match is_chosen {
            false if worth * trust[index] > 1.0 => added.push((-worth * trust[index], index)),
            true if worth < trust[index] => removed.push((worth / trust[index], index)),
            _ => {}
        }
    }
    let wait_ns = swept.waits_ns.iter().sum::<u64>() as f64 / part;
    let some = |mut of: Vec<(f64, usize)>, gain_ns: &dyn Fn(usize) -> f64| {
        of.sort_by(|left, right| left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)));
        let mut left_ns = wait_ns;
        let mut some = Vec::new();
        for (_, index) in of {
            some.push(index);
            left_ns -= gain_ns(index);
            if left_ns <= 0.0 {
                break;
            }
        }
        some
    };
    let added = some(added, &|index| saved_ns(index, Price::Waits) - pool[index].spent_ns);
    let removed = some(removed, &|index| pool[index].spent_ns - saved_ns(index, Price::Busy));
    (added, removed)
}
