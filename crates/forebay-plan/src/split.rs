//! Split: turns barriers into a record and a wait if the time between them is worth it.
//!
//! A barrier holds back everything after it until everything before it is done. A record and a wait in one stream hold back what comes
//! after the wait until what comes before the record is done. Work that nothing needs yet can come after the record, and work that needs
//! none of it can come before the wait, so that both proceed. A barrier is therefore split if the last launch before it that anything after
//! it needs is not the very last, or if the first launch after it that needs any of them is not the very first. The split is kept if it
//! shortens the predicted step.
//!
//! Within its stream, a barrier orders every pair of commands on its two sides, whereas a split barrier orders only pairs with one command
//! before its record and the other after its wait. Each barrier has pairs with a hazard that it alone orders (the inserter ensures that).
//! The record goes after the last command that comes first in one of these pairs, and the wait before the first command that comes second.
//! Commands that another barrier orders as well may be in between: the other barrier still orders them. So no hazard is left open, and none
//! of the barriers, whole or split, becomes redundant.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{Command, EventId, Region, StreamId};

use crate::cost::Costs;
use crate::plan::Plan;
use crate::simulate::simulate;

/// The splits of a step are kept if they shorten it by more than one part in this many.
const STEP_PARTS: u64 = 200;
/// Splits are evaluated one by one as long as at most this many commands are simulated to do so.
const SIMULATED_MAX: usize = 1 << 19;
/// Barriers between at least this many pairs of launches are left whole.
const PAIRS_MAX: usize = 1 << 18;

/// Splits the barriers of a stream if the prediction says that it pays. Everything else in the plan stays as it is.
pub fn split_barriers(plan: Plan, stream: StreamId, costs: &Costs) -> Plan {
    let line = Line::of(&plan.commands, stream);
    let all: BTreeSet<usize> = (0..line.barriers.len()).collect();
    let mut chosen: BTreeSet<usize> = line.split(&all).into_keys().collect();
    if chosen.is_empty() {
        return plan;
    }
    let whole_ns = simulate(&plan, costs).step_ns;
    let (mut best, mut best_ns) = timed(&plan, stream, &line, &chosen, costs);
    let gain_ns = whole_ns / STEP_PARTS;
    // With extreme latencies, predictions saturate.
    if best_ns.saturating_add(gain_ns) >= whole_ns {
        return plan;
    }
    for barrier in chosen.clone().into_iter().take(SIMULATED_MAX / plan.commands.len()) {
        let mut without = chosen.clone();
        without.remove(&barrier);
        let (tried, tried_ns) = timed(&plan, stream, &line, &without, costs);
        if tried_ns <= best_ns {
            (best, best_ns, chosen) = (tried, tried_ns, without);
        }
    }
    best
}

fn timed(plan: &Plan, stream: StreamId, line: &Line, chosen: &BTreeSet<usize>, costs: &Costs) -> (Plan, u64) {
    let split = line.rebuild(plan, stream, &line.split(chosen));
    let step_ns = simulate(&split, costs).step_ns;
    (split, step_ns)
}

/// A stream's work and barriers.
struct Line {
    /// By work: its index among the commands.
    work: Vec<usize>,
    /// By work: what it reads, and what it writes.
    uses: Vec<(Vec<Region>, Vec<Region>)>,
    /// By barrier: its index among the commands, and how much work precedes it.
    barriers: Vec<(usize, usize)>,
}

/// The positions of a split barrier's record and wait: after this much work, and before the work with this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Split {
    record: usize,
    wait: usize,
}

impl Line {
    fn of(commands: &[Command], stream: StreamId) -> Line {
        let mut line = Line { work: Vec::new(), uses: Vec::new(), barriers: Vec::new() };
        for (index, command) in commands.iter().enumerate().filter(|(_, command)| command.stream() == Some(stream)) {
            if let Command::Barrier { .. } = command {
                line.barriers.push((index, line.work.len()));
            } else if command.is_work() {
                line.work.push(index);
                line.uses.push((command.reads(), command.writes()));
            }
        }
        line
    }

    /// Returns the splits of the chosen barriers, in order, if there is anything between record and wait.
    fn split(&self, chosen: &BTreeSet<usize>) -> BTreeMap<usize, Split> {
        let mut splits = BTreeMap::new();
        // How much work the previous barrier orders before everything here.
        let mut ordered = 0;
        for (barrier, &(_, before)) in self.barriers.iter().enumerate() {
            let end = self.barriers.get(barrier + 1).map_or(self.work.len(), |&(_, before)| before);
            let split = if chosen.contains(&barrier) { self.widest(ordered, before, end) } else { None };
            ordered = split.map_or(before, |split| split.record);
            splits.extend(split.map(|split| (barrier, split)));
        }
        splits
    }

    /// Returns the split of a barrier after `before` pieces of work. No other barrier orders the pieces from `start` on before it, and
    /// those up to `end` after it. `None` if nothing can come between record and wait.
    fn widest(&self, start: usize, before: usize, end: usize) -> Option<Split> {
        if (before - start) * (end - before) > PAIRS_MAX {
            return None;
        }
        let hazard = |first: usize, second: usize| {
            let overlap = |a: &[Region], b: &[Region]| a.iter().any(|a| b.iter().any(|b| a.overlaps(*b)));
            let ((reads, writes), (later_reads, later_writes)) = (&self.uses[first], &self.uses[second]);
            overlap(writes, later_reads) || overlap(writes, later_writes) || overlap(reads, later_writes)
        };
        let last = (start..before).rev().find(|&first| (before..end).any(|second| hazard(first, second)))?;
        let wait = (before..end).find(|&second| (start..before).any(|first| hazard(first, second)))?;
        let split = Split { record: last + 1, wait };
        (split.record < before || split.wait > before).then_some(split)
    }

    /// Returns the plan with these barriers split. All use one event, whose generations follow the order of the records.
    fn rebuild(&self, plan: &Plan, stream: StreamId, splits: &BTreeMap<usize, Split>) -> Plan {
        let event = EventId(plan.event_count);
        let mut records = BTreeMap::new();
        let mut waits = BTreeMap::new();
        let mut gone = BTreeSet::new();
        for (generation, (&barrier, split)) in (1..).zip(splits) {
            records.insert(self.work[split.record - 1], Command::Record { stream, event, generation });
            waits.insert(self.work[split.wait], Command::Wait { stream, event, generation });
            gone.insert(self.barriers[barrier].0);
        }
        let mut moved_to = Vec::with_capacity(plan.commands.len() + 1);
        let mut commands = Vec::with_capacity(plan.commands.len() + splits.len());
        for (index, command) in plan.commands.iter().enumerate() {
            commands.extend(waits.remove(&index));
            moved_to.push(commands.len());
            if !gone.contains(&index) {
                commands.push(command.clone());
            }
            commands.extend(records.remove(&index));
        }
        moved_to.push(commands.len());
        let mut split = Plan { commands, event_count: plan.event_count + 1, ..plan.clone() };
        split.update_start = moved_to[plan.update_start];
        split.movements.iter_mut().for_each(|movement| movement.command = moved_to[movement.command]);
        split.statistics.barriers -= splits.len();
        split.statistics.waits += splits.len();
        split
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::estimate;
    use crate::order::LaunchOrder;
    use crate::planner::{PlanOptions, plan};
    use crate::testing::{ProgramBuilder, Random, limits, random_training_program};
    use forebay_base::Kernel;
    use forebay_base::kernel::UnaryOp;
    use forebay_model::program::{Program, Role};
    use forebay_sync::{StepBoundary, check_races};

    const STREAM: StreamId = StreamId(0);
    const EXP: Kernel = Kernel::Unary(UnaryOp::Exp);

    /// A long branch of one kernel next to a chain of three; their results are added at the end.
    fn long_beside_chain() -> Program {
        let mut build = ProgramBuilder::default();
        let x = build.persistent("x", 1024, Role::Constant);
        let [a, b, c, long, y] = ["a", "b", "c", "long", "y"].map(|name| build.temporary(name, 1024));
        build.launch(EXP, &[x], &[a]);
        build.launch(EXP, &[x], &[long]);
        build.launch(EXP, &[a], &[b]);
        build.launch(EXP, &[b], &[c]);
        let add = forebay_base::kernel::BinaryOp::Add;
        let add = Kernel::Binary { op: add, activation: forebay_base::kernel::Activation::None };
        build.launch(add, &[c, long], &[y]);
        build.finish(&[y])
    }

    /// Returns costs in which each launch takes this long and leaves workers for others.
    fn costs(program: &Program, launch_ns: &[u64]) -> Costs {
        let launch_workers = vec![1.0; launch_ns.len()];
        Costs { launch_ns: launch_ns.to_vec(), launch_workers, workers: 4.0, ..estimate(program, &limits()) }
    }

    fn kinds(plan: &Plan) -> String {
        let of_stream = plan.commands.iter().filter(|command| command.stream() == Some(STREAM));
        of_stream
            .map(|command| match command {
                Command::Launch { launch, .. } => char::from(b'0' + launch.label as u8),
                Command::Barrier { .. } => '|',
                Command::Record { event, .. } if event.0 + 1 == plan.event_count => 'r',
                Command::Wait { event, .. } if event.0 + 1 == plan.event_count => 'w',
                _ => '.',
            })
            .filter(|&kind| kind != '.')
            .collect()
    }

    #[test]
    fn a_long_launch_runs_beside_a_chain_that_does_not_need_it() {
        let program = long_beside_chain();
        let options = PlanOptions { order: LaunchOrder::File, check: true, ..PlanOptions::default() };
        let long = costs(&program, &[10_000, 900_000, 300_000, 300_000, 10_000]);
        let split = plan(&program, &options, &limits(), &long).unwrap();
        assert_eq!(kinds(&split), "0r1w2|3|4", "one split is enough: the barrier behind 2 would hold 3 back");
        assert_eq!((split.statistics.barriers, split.statistics.waits), (2, 2));
        let even = costs(&program, &[100_000; 5]);
        assert_eq!(plan(&program, &options, &limits(), &even).unwrap().statistics.barriers, 3);
    }

    #[test]
    fn split_plans_are_free_of_races_and_nothing_in_them_is_redundant() {
        let mut split_count = 0;
        for seed in 1..30 {
            let mut random = Random::new(seed);
            let program = random_training_program(&mut random, 3);
            let count = program.launches.len();
            let launch_ns: Vec<u64> = (0..count).map(|_| 1_000 + random.below(1_000_000)).collect();
            let costs = costs(&program, &launch_ns);
            let plan =
                plan(&program, &PlanOptions { check: true, ..PlanOptions::default() }, &limits(), &costs).unwrap();
            let line = Line::of(&plan.commands, STREAM);
            let all: BTreeSet<usize> = (0..line.barriers.len()).collect();
            // Every possible split, whether or not it pays.
            let splits = line.split(&all);
            split_count += splits.len();
            let split = line.rebuild(&plan, STREAM, &splits);
            let check = |commands: &[Command]| check_races(&split.prologue, commands, 1, StepBoundary::HostJoin);
            check(&split.commands).unwrap_or_else(|found| panic!("seed {seed}: {found:?}"));
            for (index, command) in split.commands.iter().enumerate() {
                if matches!(command, Command::Barrier { .. } | Command::Wait { .. }) {
                    let mut without = split.commands.clone();
                    without.remove(index);
                    assert!(check(&without).is_err(), "seed {seed}: {command} can go");
                }
            }
        }
        assert!(split_count > 20, "{split_count} splits tried");
    }
}
