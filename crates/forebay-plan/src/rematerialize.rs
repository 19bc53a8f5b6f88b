//! Rematerialization: makes a step take less memory if bytes that leave the device have nowhere else to go.
//!
//! Contents that are idle between two launches are dropped, and the launch that computes them runs again before the second of the two.
//! Whatever that launch reads is still in memory, is recomputed as well, or is kept for longer. Contents that are recomputed for their own
//! next use stay until that use, and beyond it unless they are dropped there, too. Contents that are recomputed only for others are dropped
//! at once and recomputed again for their own use, unless they are *held*: if a whole chain is held, it is recomputed as one segment (as in
//! Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, where segments are given; here they follow from what is worth its
//! time).
//!
//! The search is greedy, like XLA's rematerialization: of all contents that may be dropped, it picks those that remove the most excess
//! bytes for the time that they cost, until nothing exceeds the limit. In the end, drops that turned out to be unnecessary are undone. If
//! one pool leaves no other way, the search is repeated for lower and lower limits. Then dropped buffers are kept one after the other, the
//! most expensive first, to see whether it is better to drop others instead. Finally, annealing takes steps that are worse at first. In
//! this case a buffer can be dropped between any two of its uses, and launches run later if that saves bytes. If bytes have elsewhere to
//! go, a buffer is dropped only where it is idle for longest.

mod moves;
mod sequence;
mod sink;
mod step;

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap};

use forebay_base::random::Xorshift64;
use forebay_model::program::Program;

use crate::cost::Costs;
use crate::liveness::Liveness;
use crate::profile::bytes_of_profile;
use crate::tuning::{
    ANNEALING_HEAT, ANNEALING_STEPS, ANNEALING_STEPS_OF_MOVE, ANNEALING_SUM_SHARE, ANNEALING_WEIGHTS,
    RECOMPUTED_GAIN_PARTS, RECOMPUTED_LIMITS, RECOMPUTED_LOOKS_MAX, RECOMPUTED_LOOKS_OF_OTHERS, RECOMPUTED_WINDOWS,
};
use moves::{Move, Moves};
use sequence::{Built, Choice, sequence};
use step::{Profiling, Step};

/// A step in which some launches run more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rematerialized {
    /// The launches in order; the flag tells whether a launch is a repeat.
    pub launches: Vec<(usize, bool)>,
    /// The most bytes that are live at once; more than the limit if no better step was found.
    pub peak_bytes: u64,
    /// The total duration of the launches that run again.
    pub recomputed_ns: u64,
}

/// The kind of memory, and how thorough the search is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Memory of the device only.
    OfDevice,
    /// Memory of device and host: inputs are live from the beginning of the step, outputs to its end if no update comes after them, and a
    /// result that takes over the bytes of an operand takes no additional bytes.
    Shared {
        /// Whether the result of the first search is improved.
        thorough: bool,
    },
    /// The same, but weights in files take memory only while launches use them.
    SharedWithFiles,
}

/// Searches for a step whose live bytes stay within a limit. Returns the step that exceeds it least if none was found. `costs` are the
/// costs of the program's launches in their order. `origins` tells which launch each launch of a partitioned program is a part of.
pub fn rematerialize(
    program: &Program,
    live: &Liveness,
    costs: &Costs,
    limit_bytes: u64,
    pool: Pool,
    origins: Option<Vec<usize>>,
) -> Rematerialized {
    let whole = Step::new(program, live, costs, pool == Pool::SharedWithFiles);
    let in_parts = origins.is_some();
    let origins = origins.unwrap_or_else(|| whole.origins.clone());
    let step = Step { one_pool: pool != Pool::OfDevice, origins, ..whole };
    let moves = Moves::new(&step, pool == Pool::OfDevice);
    let limit_bytes = bytes_of_profile(limit_bytes);
    let start = || Search::new(&step, &moves, limit_bytes);
    let mut choice = start().at_once(0);
    if in_parts {
        for window in RECOMPUTED_WINDOWS {
            choice = start().better(choice, start().at_once(window));
        }
    }
    if pool == (Pool::Shared { thorough: true }) {
        let slowly = start().by_and_by(choice.window);
        choice = start().better(choice, slowly);
        choice = start().with_others(choice);
        for weight in ANNEALING_WEIGHTS {
            let exceeds = start().outcome(&choice).is_none_or(|found| found.over > 0);
            if exceeds || choice.dropped.contains(&true) && weight == ANNEALING_WEIGHTS[0] {
                choice = start().annealed(choice, weight);
            }
        }
    }
    let sequence = sequence(&step, &choice).unwrap_or_else(|| step.plain());
    let profile = step.profile(&sequence);
    Rematerialized {
        peak_bytes: profile.iter().copied().max().unwrap_or(0).max(0) as u64,
        recomputed_ns: step.recomputed_ns(&sequence),
        launches: sequence,
    }
}

/// A move with the excess bytes that it removes per nanosecond that it costs, as of the last evaluation.
struct Rated {
    rate: f64,
    candidate: Move,
    round: usize,
}

impl PartialEq for Rated {
    fn eq(&self, other: &Rated) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Rated {}

impl PartialOrd for Rated {
    fn partial_cmp(&self, other: &Rated) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rated {
    fn cmp(&self, other: &Rated) -> Ordering {
        self.rate.total_cmp(&other.rate).then(other.candidate.cmp(&self.candidate))
    }
}

/// The result of a choice.
struct Outcome {
    /// Bytes above the limit, summed over launches.
    excess: i64,
    /// The most bytes above the limit at once.
    over: i64,
    recomputed_ns: u64,
    /// The number of launches.
    length: usize,
}

impl Outcome {
    /// Returns a rank, lower for better outcomes: bytes above the limit at once, then in all, then time.
    fn rank(&self) -> (i64, i64, u64) {
        (self.over, self.excess, self.recomputed_ns)
    }
}

/// The memory that looking at choices takes, kept from one to the next.
#[derive(Default)]
struct Workspace {
    built: Built,
    profiling: Profiling,
}

struct Search<'a> {
    step: &'a Step<'a>,
    moves: &'a Moves,
    limit_bytes: i64,
    choice: Choice,
    /// The number of launches in all steps that were tried.
    looks: Cell<usize>,
    /// A move that must not be made.
    barred: Option<Move>,
    workspace: RefCell<Workspace>,
}

impl<'a> Search<'a> {
    fn new(step: &'a Step<'a>, moves: &'a Moves, limit_bytes: i64) -> Search<'a> {
        let (choice, workspace) = (Choice::nothing(step), RefCell::default());
        Search { limit_bytes, choice, step, moves, looks: Cell::new(0), barred: None, workspace }
    }

    /// Drops what has to be dropped to stay within the limit.
    fn at_once(mut self, window: usize) -> Choice {
        self.choice.window = window;
        self.drop_until_it_fits();
        self.take_back();
        self.choice
    }

    /// The same for lower and lower limits down to this one, so that moves that save few bytes in little time are found before many bytes
    /// have to go.
    fn by_and_by(mut self, window: usize) -> Choice {
        self.choice.window = window;
        let limit_bytes = self.limit_bytes;
        let peak = |search: &Search| {
            let sequence = sequence(search.step, &search.choice).unwrap_or_else(|| search.step.plain());
            search.step.profile(&sequence).into_iter().max().unwrap_or(0)
        };
        let beyond_bytes = peak(&self).saturating_sub(limit_bytes).max(0);
        for left in (0..RECOMPUTED_LIMITS).rev() {
            self.limit_bytes = limit_bytes + beyond_bytes / RECOMPUTED_LIMITS * left;
            self.drop_until_it_fits();
            self.take_back();
        }
        self.choice
    }

    /// Returns the choice that exceeds the limit less, or takes less time.
    fn better(&self, one: Choice, other: Choice) -> Choice {
        let rank = |choice: &Choice| self.outcome(choice).map_or((i64::MAX, i64::MAX, u64::MAX), |found| found.rank());
        if rank(&other) < rank(&one) { other } else { one }
    }

    /// Checks whether a choice becomes better if it drops others instead of one of its buffers, trying the most expensive first.
    fn with_others(mut self, choice: Choice) -> Choice {
        self.choice = choice;
        let Some(mut best) = self.outcome(&self.choice).filter(|best| best.excess == 0) else { return self.choice };
        let mut tried = BTreeSet::new();
        while self.looks.get() < RECOMPUTED_LOOKS_OF_OTHERS {
            let untried = |candidate: &Move| !tried.contains(candidate) && self.moves.is_made(&self.choice, *candidate);
            // The time saved without it, even if the limit is then exceeded.
            let spent = |candidate: &Move| {
                self.recomputed_ns(&self.changed(*candidate, false))
                    .map_or(0, |recomputed_ns| best.recomputed_ns.saturating_sub(recomputed_ns))
            };
            let rated = self.moves.drops().filter(untried).map(|candidate| (spent(&candidate), candidate));
            let Some((spent_ns, candidate)) = rated.max() else { break };
            if spent_ns == 0 {
                break;
            }
            tried.insert(candidate);
            let without = self.changed(candidate, false);
            let before = std::mem::replace(&mut self.choice, without);
            self.barred = Some(candidate);
            self.drop_until_it_fits();
            self.take_back();
            self.barred = None;
            match self.outcome(&self.choice).filter(|found| found.rank() < best.rank()) {
                Some(found) => (best, tried) = (found, BTreeSet::new()),
                None => self.choice = before,
            }
        }
        self.choice
    }

    /// Searches for a better choice by simulated annealing: steps may also be worse, but less and less often. Bytes above the limit are
    /// weighted by `weight`.
    fn annealed(mut self, choice: Choice, weight: f64) -> Choice {
        self.choice = choice;
        let Some(mut now) = self.outcome(&self.choice) else { return self.choice };
        let all_ns = self.step.items.iter().map(|item| item.duration_ns).sum::<u64>().max(1) as f64;
        let limit_bytes = self.limit_bytes.max(1) as f64;
        let cost = |found: &Outcome| {
            let beyond = found.over as f64 + found.excess as f64 * ANNEALING_SUM_SHARE;
            found.recomputed_ns as f64 / all_ns + weight * beyond / limit_bytes
        };
        let (mut best, mut best_rank, mut now_cost) = (self.choice.clone(), now.rank(), cost(&now));
        let candidates: Vec<Move> = self.moves.all().collect();
        let mut numbers = Xorshift64::new();
        let looks = now.length.max(1);
        let count = ANNEALING_STEPS.min(RECOMPUTED_LOOKS_MAX / looks).min(candidates.len() * ANNEALING_STEPS_OF_MOVE);
        let (hot, cold) = ANNEALING_HEAT;
        for number in 0..count {
            let heat = hot * libm::pow(cold / hot, number as f64 / count as f64);
            let mut choice = self.choice.clone();
            for _ in 0..=numbers.below(2) {
                let candidate = candidates[numbers.below(candidates.len())];
                let is_made = self.moves.is_made(&choice, candidate);
                self.moves.set(&mut choice, candidate, !is_made);
            }
            let (mut drawn, may_be) = (None, |cost: f64| libm::exp((now_cost - cost) / heat));
            // Its time alone may make a step too bad, whatever bytes it takes.
            let is_possible = |recomputed_ns| {
                let least_cost = recomputed_ns as f64 / all_ns;
                least_cost <= now_cost || *drawn.insert(numbers.uniform()) < may_be(least_cost)
            };
            let Some(found) = self.outcome_if(&choice, is_possible) else { continue };
            let found_cost = cost(&found);
            if found_cost <= now_cost || drawn.unwrap_or_else(|| numbers.uniform()) < may_be(found_cost) {
                (self.choice, now, now_cost) = (choice, found, found_cost);
                if now.rank() < best_rank {
                    (best, best_rank) = (self.choice.clone(), now.rank());
                }
            }
        }
        best
    }

    /// Returns the choice with or without a move.
    fn changed(&self, candidate: Move, made: bool) -> Choice {
        let mut choice = self.choice.clone();
        self.moves.set(&mut choice, candidate, made);
        choice
    }

    fn is_exhausted(&self) -> bool {
        self.looks.get() > RECOMPUTED_LOOKS_MAX
    }

    /// Returns the outcome of a choice; `None` if it drops something that cannot be recomputed.
    fn outcome(&self, choice: &Choice) -> Option<Outcome> {
        self.outcome_if(choice, |_| true)
    }

    /// The same, but also `None` if the total duration of the launches that run again is not accepted.
    fn outcome_if(&self, choice: &Choice, is_accepted: impl FnOnce(u64) -> bool) -> Option<Outcome> {
        let recomputed_ns = self.recomputed_ns(choice).filter(|&recomputed_ns| is_accepted(recomputed_ns))?;
        let Workspace { built, profiling } = &mut *self.workspace.borrow_mut();
        built.sink(self.step, choice);
        profiling.profile(self.step, &built.launches);
        let (mut excess, mut over) = (0, 0);
        for bytes in &profiling.live_bytes {
            let beyond_bytes = bytes.saturating_sub(self.limit_bytes).max(0);
            excess += beyond_bytes;
            over = over.max(beyond_bytes);
        }
        Some(Outcome { excess, over, recomputed_ns, length: built.launches.len() })
    }

    /// Returns the total duration of the launches that run again in a choice, which are built; `None` if it drops something that cannot be
    /// recomputed.
    fn recomputed_ns(&self, choice: &Choice) -> Option<u64> {
        let built = &mut self.workspace.borrow_mut().built;
        let is_built = built.build(self.step, choice);
        let length = if is_built { built.launches.len() } else { self.step.items.len() };
        self.looks.set(self.looks.get() + length);
        is_built.then_some(built.recomputed_ns)
    }

    /// Returns the excess bytes that a move removes per nanosecond; `None` if it removes none.
    fn rate(&self, candidate: Move, now: &Outcome) -> Option<(f64, Choice, Outcome)> {
        if self.moves.is_made(&self.choice, candidate) {
            return None;
        }
        let choice = self.changed(candidate, true);
        let outcome = self.outcome(&choice).filter(|outcome| outcome.excess < now.excess)?;
        let spent_ns = outcome.recomputed_ns as f64 - now.recomputed_ns as f64;
        let saved = (now.excess - outcome.excess) as f64;
        // Moves that cost nothing come before all others.
        let rate = if spent_ns > 0.0 { saved / spent_ns } else { f64::MAX / 2.0 };
        Some((rate, choice, outcome))
    }

    /// Makes the moves that remove the most excess for their time, until nothing exceeds the limit or nothing helps.
    ///
    /// The value of a move changes with every other move, usually for the worse. So the move with the best last known value is evaluated
    /// again, and made if it is still the best. If no move is left, all are evaluated again.
    fn drop_until_it_fits(&mut self) {
        let Some(mut now) = self.outcome(&self.choice) else { return };
        // Bytes above the limit when all moves were last evaluated.
        let (mut round, mut excess) = (0, i64::MAX);
        let mut heap: BinaryHeap<Rated> = BinaryHeap::new();
        while now.excess > 0 && !self.is_exhausted() {
            if heap.is_empty() {
                let evaluated_max = RECOMPUTED_LOOKS_MAX / now.length.max(1);
                let evaluates_all = self.moves.drops().len() <= evaluated_max;
                let least_gain = if evaluates_all { excess / RECOMPUTED_GAIN_PARTS } else { 1 };
                if now.excess > excess - least_gain {
                    return;
                }
                (excess, round) = (now.excess, round + 1);
                let is_open =
                    |&candidate: &Move| self.barred != Some(candidate) && !self.moves.is_made(&self.choice, candidate);
                let allowed = self.moves.drops().filter(is_open);
                // If there are too many moves to evaluate all of them, only the first are evaluated (those that drop the most bytes for the
                // most launches), and half of the search is left for making them.
                let count = if evaluates_all { usize::MAX } else { evaluated_max / 2 };
                for candidate in allowed.chain(self.keeps()).take(count) {
                    if self.is_exhausted() {
                        break;
                    }
                    if let Some((rate, ..)) = self.rate(candidate, &now) {
                        heap.push(Rated { rate, candidate, round });
                    }
                }
                continue;
            }
            let Some(best) = heap.pop() else { continue };
            let Some((rate, choice, outcome)) = self.rate(best.candidate, &now) else { continue };
            let is_best = best.round == round || heap.peek().is_none_or(|next| rate >= next.rate);
            if !is_best {
                heap.push(Rated { rate, round, ..best });
                continue;
            }
            (self.choice, now) = (choice, outcome);
            round += 1;
        }
    }

    /// Returns moves that keep buffers which are recomputed only for others.
    fn keeps(&self) -> BTreeSet<Move> {
        let now = sequence(self.step, &self.choice).unwrap_or_default();
        let remade = now.iter().filter(|(_, repeats)| *repeats);
        let contents = remade.flat_map(|&(launch, _)| &self.step.items[launch].writes);
        contents.map(|&content| self.moves.keep(content)).collect()
    }

    /// Undoes moves that are not needed, and holds contents that would be recomputed again, as far as both fit.
    fn take_back(&mut self) {
        let Some(mut now) = self.outcome(&self.choice) else { return };
        for holds in [true, false] {
            // The fewest bytes for the fewest launches come first.
            for candidate in self.moves.drops().rev() {
                if self.looks.get() > 2 * RECOMPUTED_LOOKS_MAX {
                    return;
                }
                let mut choice = self.choice.clone();
                if holds {
                    if !self.moves.hold(&mut choice, candidate) {
                        continue;
                    }
                } else if self.moves.is_made(&choice, candidate) {
                    self.moves.set(&mut choice, candidate, false);
                } else {
                    continue;
                }
                let is_no_slower = |recomputed_ns| recomputed_ns <= now.recomputed_ns;
                let found = self.outcome_if(&choice, is_no_slower);
                if let Some(outcome) = found.filter(|found| found.excess <= now.excess) {
                    (self.choice, now) = (choice, outcome);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alias::alias;
    use crate::cost::estimate;
    use crate::liveness::{Owner, liveness};
    use crate::order::Ordered;
    use crate::testing::{ProgramBuilder, Random, limits, random_training_program, training_program};
    use forebay_base::Kernel;
    use forebay_base::kernel::{Exchange, UnaryOp};
    use forebay_model::program::Role;

    /// Returns the peak of a program's live bytes, counted chunk by chunk and launch by launch.
    fn naive_peak_bytes(program: &Program) -> u64 {
        let live = liveness(program, false);
        let mut taken = vec![0; live.launch_count];
        for chunk in &live.chunks {
            let lasts = matches!(chunk.owner, Owner::Buffer(buffer) if program.buffer(buffer).role.is_persistent());
            for (launch, taken) in taken.iter_mut().enumerate() {
                let before = chunk.accesses.iter().any(|access| access.launch <= launch);
                let next = chunk.accesses.iter().find(|access| access.launch >= launch);
                let is_live = lasts || before && next.is_some_and(|next| next.launch == launch || next.reads);
                *taken += if is_live { chunk.device_bytes() } else { 0 };
            }
        }
        taken.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn what_fits_has_the_peak_that_it_says_and_runs_every_launch_once_in_order() {
        let mut fewer = 0;
        for seed in 1..40 {
            let mut random = Random::new(seed);
            let program = random_training_program(&mut random, 2 + seed as usize % 9);
            let (live, costs) = (liveness(&program, false), estimate(&program, &limits()));
            let plain = rematerialize(&program, &live, &costs, u64::MAX, Pool::OfDevice, None);
            assert_eq!((plain.peak_bytes, plain.recomputed_ns), (naive_peak_bytes(&program), 0), "seed {seed}");
            let least = rematerialize(&program, &live, &costs, 0, Pool::OfDevice, None);
            assert!(least.peak_bytes <= plain.peak_bytes);
            for percent in [0, 30, 60, 90] {
                let limit_bytes = least.peak_bytes + (plain.peak_bytes - least.peak_bytes) * percent / 100;
                let found = rematerialize(&program, &live, &costs, limit_bytes, Pool::OfDevice, None);
                let first: Vec<usize> =
                    found.launches.iter().filter(|launch| !launch.1).map(|launch| launch.0).collect();
                assert!(first.iter().copied().eq(0..program.launches.len()), "seed {seed}");
                let again = Ordered::as_it_comes(program.clone()).with_launches(&found.launches);
                assert_eq!(found.peak_bytes, naive_peak_bytes(&again.program), "seed {seed}, {percent} %");
                fewer += u64::from(found.peak_bytes < plain.peak_bytes);
            }
        }
        assert!(fewer > 100, "{fewer} steps took less memory");
    }

    #[test]
    fn in_one_pool_launches_work_in_place_and_inputs_are_there_from_the_beginning() {
        let chain = |with_input: bool| {
            let mut build = ProgramBuilder::default();
            let x = build.input("x", 1 << 20);
            let chain = ["a", "b", "c"].map(|name| build.temporary(name, 1 << 20));
            let y = build.temporary("y", 64);
            build.launch(Kernel::Fill { value: 1.0 }, &[], &chain[..1]);
            build.launch(Kernel::Unary(UnaryOp::Exp), &chain[..1], &chain[1..2]);
            build.launch(Kernel::Unary(UnaryOp::Exp), &chain[1..2], &chain[2..]);
            let target = if with_input { x } else { chain[2] };
            build.launch(Kernel::MeanSquaredError, &[chain[2], target], &[y]);
            build.finish(&[y])
        };
        let peaks_mib = |program: &Program| {
            let (live, costs) = (liveness(program, false), estimate(program, &limits()));
            let pools = [Pool::OfDevice, Pool::Shared { thorough: false }];
            pools.map(|pool| rematerialize(program, &live, &costs, u64::MAX, pool, None).peak_bytes >> 20)
        };
        // One link and the next; or a single one that takes over the other's bytes.
        assert_eq!(peaks_mib(&chain(false)), [2, 1]);
        // An input that only the end reads is in memory while the chain runs.
        assert_eq!(peaks_mib(&chain(true)), [2, 2]);
    }

    /// What an exchange receives stays until its last use, whereas the result of a kernel is recomputed.
    #[test]
    fn exchanges_run_once() {
        let peak_mib = |kernel: Kernel| {
            let mut build = ProgramBuilder::default();
            let x = build.input("x", 64);
            let [far, near, next] = ["far", "near", "next"].map(|name| build.temporary(name, 1 << 20));
            let y = build.temporary("y", 64);
            build.launch(kernel, &[x], &[far]);
            build.launch(Kernel::MeanSquaredError, &[far, far], &[y]);
            build.launch(Kernel::Fill { value: 1.0 }, &[], &[near]);
            build.launch(Kernel::Unary(UnaryOp::Exp), &[near], &[next]);
            build.launch(Kernel::MeanSquaredError, &[next, next], &[y]);
            build.launch(Kernel::MeanSquaredError, &[far, far], &[y]);
            let program = build.finish(&[y]);
            let (live, costs) = (liveness(&program, false), estimate(&program, &limits()));
            rematerialize(&program, &live, &costs, 0, Pool::OfDevice, None).peak_bytes >> 20
        };
        assert_eq!(peak_mib(Kernel::Copy), 2);
        assert_eq!(peak_mib(Kernel::Exchange(Exchange::gather(0, 0, &[32, 32]))), 3);
    }

    #[test]
    fn looking_longer_finds_no_worse_and_promises_no_less_than_is_taken() {
        let mut faster = 0;
        for seed in 1..25 {
            let mut random = Random::new(seed);
            let program = random_training_program(&mut random, 2 + seed as usize % 9);
            let (live, mut costs) = (liveness(&program, false), estimate(&program, &limits()));
            costs.launch_ns.iter_mut().for_each(|duration| *duration = 1 + random.below(1_000_000));
            let find = |limit_bytes, pool| rematerialize(&program, &live, &costs, limit_bytes, pool, None);
            let [quick, thorough] = [false, true].map(|thorough| Pool::Shared { thorough });
            let (plain, least) = (find(u64::MAX, quick).peak_bytes, find(0, quick).peak_bytes);
            for percent in [20, 60] {
                let limit_bytes = least + plain.saturating_sub(least) * percent / 100;
                let (quick, thorough) = (find(limit_bytes, quick), find(limit_bytes, thorough));
                if quick.peak_bytes <= limit_bytes {
                    assert!(thorough.peak_bytes <= limit_bytes, "seed {seed}, {percent} %");
                    assert!(thorough.recomputed_ns <= quick.recomputed_ns, "seed {seed}, {percent} %");
                }
                faster += usize::from(thorough.recomputed_ns < quick.recomputed_ns);
                let again = Ordered::as_it_comes(program.clone()).with_launches(&thorough.launches);
                let taken_over = alias(again.program, &again.groups);
                assert!(naive_peak_bytes(&taken_over) <= thorough.peak_bytes, "seed {seed}, {percent} %");
            }
        }
        assert!(faster > 0, "{faster} steps became faster");
    }

    #[test]
    fn in_one_pool_buffers_are_dropped_more_than_once() {
        // A value that is read at the beginning, in the middle and at the end, with two memory peaks in between.
        let mut build = ProgramBuilder::default();
        let x = build.input("x", 64);
        let value = build.temporary("value", 2 << 20);
        let ends = ["a", "b", "c"].map(|name| build.temporary(name, 64));
        build.launch(Kernel::Unary(UnaryOp::Exp), &[x], &[value]);
        let mut before = x;
        for (number, end) in ends.into_iter().enumerate() {
            build.launch(Kernel::UnaryGradient(UnaryOp::Exp), &[value, before], &[end]);
            if number < 2 {
                let (large, small) = (build.temporary("large", 3 << 20), build.temporary("small", 64));
                build.launch(Kernel::Unary(UnaryOp::Exp), &[end], &[large]);
                build.launch(Kernel::Unary(UnaryOp::Exp), &[large], &[small]);
                before = small;
            }
        }
        let program = build.finish(&ends);
        let (live, costs) = (liveness(&program, false), estimate(&program, &limits()));
        let find = |limit_bytes, pool| rematerialize(&program, &live, &costs, limit_bytes, pool, None);
        let repeats = |found: &Rematerialized| found.launches.iter().filter(|launch| launch.1).count();
        let limit_bytes = 4 << 20;
        let found = find(limit_bytes, Pool::Shared { thorough: true });
        assert!(found.peak_bytes <= limit_bytes, "{}", found.peak_bytes);
        assert_eq!(repeats(&found), 2, "{:?}", found.launches);
        assert!(find(limit_bytes, Pool::OfDevice).peak_bytes > limit_bytes);
    }

    #[test]
    fn a_step_with_too_many_buffers_to_look_at_each_drops_some() {
        let layers: Vec<(Role, usize)> = (0..950).map(|layer| (Role::Constant, layer)).collect();
        let program = training_program(256, &layers);
        let (live, costs) = (liveness(&program, false), estimate(&program, &limits()));
        let step = Step::new(&program, &live, &costs, false);
        assert!(Moves::new(&step, true).drops().len() * program.launches.len() > RECOMPUTED_LOOKS_MAX);
        let plain_bytes = naive_peak_bytes(&program);
        let limit_bytes = plain_bytes - plain_bytes / 100;
        let found = rematerialize(&program, &live, &costs, limit_bytes, Pool::OfDevice, None);
        assert!(found.peak_bytes < plain_bytes, "{} of {plain_bytes}", found.peak_bytes);
    }

    #[test]
    fn a_deep_chain_takes_half_the_memory_for_few_launches() {
        let layers: Vec<(Role, usize)> = (0..64).map(|layer| (Role::Constant, layer)).collect();
        let program = training_program(1 << 20, &layers);
        let (live, costs) = (liveness(&program, false), estimate(&program, &limits()));
        let plain = rematerialize(&program, &live, &costs, u64::MAX, Pool::OfDevice, None);
        // Constants take half of the live bytes.
        let constant_bytes = 64 << 20;
        let limit_bytes = constant_bytes + (plain.peak_bytes - constant_bytes) / 2;
        let found = rematerialize(&program, &live, &costs, limit_bytes, Pool::OfDevice, None);
        assert!(found.peak_bytes <= limit_bytes, "{} of {}", found.peak_bytes, plain.peak_bytes);
        let again = found.launches.iter().filter(|launch| launch.1).count();
        assert!(again <= 80, "{again} launches of {} run again", program.launches.len());
    }
}
