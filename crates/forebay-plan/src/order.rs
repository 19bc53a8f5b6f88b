//! Order: runs launches that do not depend on each other side by side.
//!
//! A program arrives in the order of its file, which is good for memory but ignores barriers: it runs four branches of two kernels each one
//! after the other. This pass divides the launches into *groups*. No launch depends on another launch of its group, so one barrier between
//! consecutive groups is enough to order them, provided that placement gives the launches of a group disjoint bytes ([`mod@crate::arena`])
//! and that no output takes over an input that a launch of the same group still uses ([`mod@crate::alias`]).
//!
//! Groups are filled one after the other with launches whose dependences are met, starting with those that have the longest chain of
//! dependents. A launch joins a group
//! - if the bytes that the group touches and the bytes that are kept together stay within a limit, and
//! - if the rest of the program, run one launch at a time in file order, stays within the limit as well. The search therefore never runs
//!   out of memory: it can always continue in file order.
//!
//! No rule settles how far ahead of file order a launch should run (too early, and it holds bytes that the chain needs), so the planner
//! tries several [`Choice`]s and counts the barriers of the final plans.

mod holdings;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use forebay_model::program::{Operand, Program, Role};

use crate::dependences::Dependences;
use crate::liveness::{Liveness, liveness};
use crate::profile::{Profile, bytes_of_profile};
use holdings::Holdings;

/// The most launches with met dependences that are considered for one group.
const LOOKED_AT_MAX: usize = 1024;

/// The order in which a program's launches are planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaunchOrder {
    /// The order in which they come.
    File,
    /// The order that needs the fewest barriers, with a peak no higher than that of the order in which they come, which is used if nothing
    /// is gained. Within a budget, orders that run updates as early as possible are tried as well ([`crate::early_updates`]).
    #[default]
    Barriers,
}

/// A program with its launches in the order in which they are planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Ordered {
    /// The program.
    pub program: Program,
    /// By launch: its position in the original order.
    pub sources: Vec<usize>,
    /// By launch: the number of its group, ascending. No launch depends on another launch of its group.
    pub groups: Vec<u32>,
}

impl Ordered {
    /// Keeps the order in which the launches come, each as a separate group.
    pub fn as_it_comes(program: Program) -> Ordered {
        let count = program.launches.len();
        Ordered { program, sources: (0..count).collect(), groups: (0..count as u32).collect() }
    }

    /// Returns a program in the order of these groups, which contain the positions of its launches.
    pub fn by_groups(program: &Program, groups: &[Vec<usize>]) -> Ordered {
        let sources: Vec<usize> = groups.iter().flatten().copied().collect();
        let mut ordered = Ordered {
            program: Program { launches: Vec::with_capacity(sources.len()), ..program.clone() },
            groups: (0u32..).zip(groups).flat_map(|(number, group)| group.iter().map(move |_| number)).collect(),
            sources,
        };
        ordered.program.launches.extend(ordered.sources.iter().map(|&source| program.launches[source].clone()));
        ordered
    }

    /// Returns the program with these launches; the flag tells whether a launch is a repeat.
    pub fn with_launches(&self, launches: &[(usize, bool)]) -> Ordered {
        let updates = |&(launch, again): &(usize, bool)| !again && launch >= self.program.update_start;
        let program = Program {
            launches: launches.iter().map(|&(launch, _)| self.program.launches[launch].clone()).collect(),
            update_start: launches.iter().position(updates).unwrap_or(launches.len()),
            ..self.program.clone()
        };
        Ordered {
            sources: launches.iter().map(|&(launch, _)| self.sources[launch]).collect(),
            groups: (0..launches.len() as u32).collect(),
            program,
        }
    }
}

/// How groups are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The most device bytes that may be in use at once.
    pub limit_bytes: u64,
    /// How far a launch may run ahead of the first waiting launch, in positions of file order.
    pub window: usize,
    /// Whether launches that do not start one of the longest chains wait until they do, unless they free as many bytes as they take.
    pub lazy: bool,
}

impl Choice {
    fn limit(&self) -> i64 {
        bytes_of_profile(self.limit_bytes)
    }
}

/// Divides a program's launches into groups. `live` is the liveness of the program, either uncut or with outputs in the place of dying
/// inputs. Launches of the update phase come after all others.
pub fn group(program: &Program, live: &Liveness, choice: Choice) -> Vec<Vec<usize>> {
    group_up_to(program, live, &Dependences::all(live), choice, usize::MAX).groups.unwrap_or_default()
}

/// Returns whether a program can be planned in these groups: each launch is in one of them, behind everything that it depends on, and
/// launches of the update phase come last. Groups that were chosen for a model at some sizes usually suit it at others.
pub fn suits(program: &Program, groups: &[Vec<usize>]) -> bool {
    let count = program.launches.len();
    let mut number = vec![None; count];
    let mut updates = false;
    for (index, group) in groups.iter().enumerate() {
        for &launch in group {
            let is_update = launch >= program.update_start;
            if launch >= count || number[launch].replace(index).is_some() || (updates && !is_update) {
                return false;
            }
            updates = is_update;
        }
    }
    let dependences = Dependences::all(&liveness(program, false));
    let is_before = |launch: usize, after: &usize| number[launch] < number[*after];
    number.iter().all(Option::is_some)
        && (0..count).all(|launch| dependences.successors[launch].iter().all(|after| is_before(launch, after)))
}

/// A program's launches in groups, and the choices that all lead to these groups.
pub(crate) struct Grouping {
    /// The groups; `None` if there are more than were asked for.
    pub groups: Option<Vec<Vec<usize>>>,
    scope: Scope,
}

impl Grouping {
    /// Whether another choice is known to give the same groups, because every single decision would be the same.
    pub fn holds_for(&self, choice: Choice) -> bool {
        self.scope.covers(choice)
    }
}

/// The same as [`group`], but gives up if there are more than `groups_max` groups. `dependences` are all the dependences of `live`.
pub(crate) fn group_up_to(
    program: &Program,
    live: &Liveness,
    dependences: &Dependences,
    choice: Choice,
    groups_max: usize,
) -> Grouping {
    let mut builder = GroupBuilder::new(program, live, dependences, choice);
    let mut groups = Vec::new();
    while let Some(group) = builder.next_group() {
        if groups.len() == groups_max {
            return Grouping { groups: None, scope: builder.scope };
        }
        groups.push(group);
    }
    sort_within(program, dependences, &mut groups);
    Grouping { groups: Some(groups), scope: builder.scope }
}

/// The choices under which every decision so far would have been the same.
#[derive(Clone, Copy, Debug)]
struct Scope {
    /// The lowest and the highest limit in bytes.
    limits: (i64, i64),
    /// The narrowest and the widest window.
    windows: (usize, usize),
    /// Whether launches wait, if that made a difference.
    lazy: Option<bool>,
}

impl Scope {
    fn covers(&self, choice: Choice) -> bool {
        let limit = choice.limit();
        (self.limits.0 <= limit && limit <= self.limits.1)
            && (self.windows.0 <= choice.window && choice.window <= self.windows.1)
            && self.lazy.is_none_or(|lazy| lazy == choice.lazy)
    }

    /// Returns whether bytes are within the limit of a choice.
    fn is_within_limit(&mut self, bytes: i64, choice: Choice) -> bool {
        let is_within = bytes <= choice.limit();
        if is_within {
            self.limits.0 = self.limits.0.max(bytes);
        } else {
            self.limits.1 = self.limits.1.min(bytes - 1);
        }
        is_within
    }

    /// Returns whether a launch this many positions ahead is within the window of a choice.
    fn is_within_window(&mut self, places: usize, choice: Choice) -> bool {
        let is_within = places <= choice.window;
        if is_within {
            self.windows.0 = self.windows.0.max(places);
        } else {
            self.windows.1 = self.windows.1.min(places - 1);
        }
        is_within
    }
}

/// Sorts each group: launches that need not wait for an input to arrive come first, then launches that the next group needs, so that the
/// others can still run next to it. The update phase stays after everything else.
fn sort_within(program: &Program, dependences: &Dependences, groups: &mut [Vec<usize>]) {
    let is_input = |operand: &Operand| program.buffer(operand.buffer).role == Role::Input;
    let reads_input: Vec<bool> = program.launches.iter().map(|launch| launch.reads.iter().any(is_input)).collect();
    let mut number = vec![0; dependences.successors.len()];
    groups.iter().enumerate().for_each(|(index, group)| group.iter().for_each(|&launch| number[launch] = index));
    for (index, group) in groups.iter_mut().enumerate() {
        let needed_next =
            |launch: usize| dependences.successors[launch].iter().any(|&after| number[after] == index + 1);
        let updates = |launch: usize| launch >= program.update_start;
        group.sort_by_key(|&launch| (updates(launch), reads_input[launch], !needed_next(launch), launch));
    }
}

/// Whether a launch is of the update phase, the length of the longest chain that starts with it, and its position in file order.
type Priority = (bool, Reverse<usize>, usize);

/// The state while groups are filled.
struct GroupBuilder<'a> {
    dependences: &'a Dependences,
    choice: Choice,
    /// The other choices for which the decisions are the same.
    scope: Scope,
    /// By launch: the length of the longest chain that starts with it, in launches.
    chains: Vec<usize>,
    /// By launch: the number of its dependences that have not run.
    missing: Vec<usize>,
    /// Launches whose dependences have run: by phase, then longest chain first, then file order.
    ready: BTreeSet<Priority>,
    /// Launches that have not run, in file order.
    waiting: BTreeSet<usize>,
    update_start: usize,
    /// The number of launches outside the update phase that have not run.
    before_update: usize,
    holdings: Holdings,
    /// By launch that has not run: bytes in use while it runs, if all remaining launches run in file order, one at a time.
    profile: Profile,
}

impl<'a> GroupBuilder<'a> {
    fn new(program: &Program, live: &Liveness, dependences: &'a Dependences, choice: Choice) -> GroupBuilder<'a> {
        let count = live.launch_count;
        let (holdings, usage) = Holdings::new(program, live);
        let missing: Vec<usize> = dependences.predecessors.iter().map(Vec::len).collect();
        let mut builder = GroupBuilder {
            dependences,
            choice,
            scope: Scope { limits: (i64::MIN, i64::MAX), windows: (0, usize::MAX), lazy: None },
            chains: dependences.chains(),
            ready: BTreeSet::new(),
            waiting: (0..count).collect(),
            update_start: program.update_start,
            before_update: program.update_start.min(count),
            holdings,
            profile: Profile::new(&usage),
            missing,
        };
        for launch in 0..count {
            if builder.missing[launch] == 0 {
                builder.enter(launch);
            }
        }
        builder
    }

    fn priority(&self, launch: usize) -> Priority {
        (launch >= self.update_start, Reverse(self.chains[launch]), launch)
    }

    fn enter(&mut self, launch: usize) {
        self.ready.insert(self.priority(launch));
    }

    /// Returns the next group; `None` when everything has run. The first waiting launch can always run: everything it depends on precedes
    /// it.
    fn next_group(&mut self) -> Option<Vec<usize>> {
        let first = *self.waiting.first()?;
        let candidates: Vec<usize> = self.ready.iter().take(LOOKED_AT_MAX).map(|&(_, _, launch)| launch).collect();
        let longest = candidates.iter().map(|&launch| self.chains[launch]).max().unwrap_or(0);
        let mut group = Vec::new();
        for launch in candidates {
            if self.joins(launch, first, longest, group.is_empty()) {
                self.run(launch);
                group.push(launch);
            }
        }
        if group.is_empty() {
            self.run(first);
            group.push(first);
        }
        self.holdings.free(&group);
        for &launch in &group {
            for &after in &self.dependences.successors[launch] {
                self.missing[after] -= 1;
                if self.missing[after] == 0 {
                    self.enter(after);
                }
            }
        }
        Some(group)
    }

    fn joins(&mut self, launch: usize, first: usize, longest: usize, alone: bool) -> bool {
        // The first waiting launch can always run, and delays nothing that precedes it.
        if alone && launch == first {
            return true;
        }
        let updates_early = launch >= self.update_start && self.before_update > 0;
        if updates_early || !self.scope.is_within_window(launch - first, self.choice) {
            return false;
        }
        let (takes, frees) = self.holdings.balance(launch);
        if self.chains[launch] < longest && takes > frees && launch != first {
            self.scope.lazy = Some(self.choice.lazy);
            if self.choice.lazy {
                return false;
            }
        }
        if !self.scope.is_within_limit(self.holdings.taken_bytes + takes, self.choice) {
            return false;
        }
        let later_peak = self.later_peak(launch);
        later_peak <= self.profile.most(0, launch) || self.scope.is_within_limit(later_peak, self.choice)
    }

    /// Returns the most bytes in use during a launch before this one in file order, if this one runs now and the others in file order.
    fn later_peak(&mut self, launch: usize) -> i64 {
        self.shift(launch, 1);
        let peak = self.profile.most(0, launch);
        self.shift(launch, -1);
        peak
    }

    /// Moves the bytes that a launch takes and frees in the profile from its position to now (1), or back (-1). The positions of launches
    /// that have run do not matter.
    fn shift(&mut self, launch: usize, sign: i64) {
        let GroupBuilder { holdings, profile, .. } = self;
        holdings.shift(launch, |start, end, bytes| profile.add(start, end, sign * bytes));
    }

    fn run(&mut self, launch: usize) {
        self.shift(launch, 1);
        self.profile.add(launch, launch + 1, i64::MIN / 4);
        self.ready.remove(&self.priority(launch));
        self.waiting.remove(&launch);
        self.before_update -= usize::from(launch < self.update_start);
        self.holdings.run(launch);
    }
}

#[cfg(test)]
mod tests {
    use super::holdings::{Kind, kind};
    use super::*;
    use crate::alias::alias_in_any_order;
    use crate::testing::{ProgramBuilder, Random, random_training_program};
    use forebay_base::Kernel;
    use forebay_base::kernel::UnaryOp;

    fn choice(limit_bytes: u64) -> Choice {
        Choice { limit_bytes, window: usize::MAX, lazy: false }
    }

    /// Two chains of two kernels each, one after the other, in the order of branches in a file.
    fn two_branches() -> Program {
        let mut build = ProgramBuilder::default();
        let x = build.input("x", 1024);
        let mut ends = Vec::new();
        for branch in ["a", "b"] {
            let (middle, end) = (build.temporary(branch, 1024), build.temporary(branch, 1024));
            build.launch(Kernel::Unary(UnaryOp::Exp), &[x], &[middle]);
            build.launch(Kernel::Unary(UnaryOp::Exp), &[middle], &[end]);
            ends.push(end);
        }
        build.finish(&ends)
    }

    #[test]
    fn branches_run_side_by_side_where_memory_allows() {
        let program = two_branches();
        let live = liveness(&program, false);
        assert_eq!(group(&program, &live, choice(u64::MAX)), [[0, 2], [1, 3]]);
        // Two intermediate and two final results at once are more than three tensors.
        assert_eq!(group(&program, &live, choice(3 * 1024)), [[0, 2].as_slice(), &[1], &[3]]);
        let behind = Choice { window: 1, ..choice(u64::MAX) };
        assert_eq!(group(&program, &live, behind), [[0].as_slice(), &[1, 2], &[3]]);
    }

    /// Returns the most bytes in use by groups: each buffer counts from its first to its last group.
    fn peak(program: &Program, live: &Liveness, groups: &[Vec<usize>]) -> u64 {
        let mut number = vec![0; live.launch_count];
        groups.iter().enumerate().for_each(|(index, group)| group.iter().for_each(|&launch| number[launch] = index));
        let mut taken = vec![0; groups.len()];
        for chunk in live.chunks.iter().filter(|chunk| !chunk.accesses.is_empty()) {
            let used = || chunk.accesses.iter().map(|access| number[access.launch]);
            let (first, last) = (used().min().unwrap_or(0), used().max().unwrap_or(0));
            let span = match kind(program, chunk) {
                Kind::Lasting => 0..groups.len(),
                Kind::Given => 0..last + 1,
                Kind::Made => first..last + 1,
            };
            taken[span].iter_mut().for_each(|bytes| *bytes += chunk.device_bytes());
        }
        taken.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn groups_respect_dependences_phases_and_the_limit() {
        for seed in 1..60 {
            let mut random = Random::new(seed);
            let program = alias_in_any_order(random_training_program(&mut random, 5));
            let live = liveness(&program, false);
            let dependences = Dependences::all(&live);
            let one_by_one: Vec<Vec<usize>> = (0..live.launch_count).map(|launch| vec![launch]).collect();
            let file_peak = peak(&program, &live, &one_by_one);
            for (lazy, window) in [(false, usize::MAX), (true, usize::MAX), (false, 3)] {
                let limit_bytes = file_peak + random.below(4) * live.needed_bytes()[0];
                let groups = group(&program, &live, Choice { limit_bytes, window, lazy });
                let mut number = vec![usize::MAX; live.launch_count];
                assert!(suits(&program, &groups), "seed {seed}");
                let order: Vec<usize> = groups.iter().flatten().copied().collect();
                for (index, group) in groups.iter().enumerate() {
                    for &launch in group {
                        assert_eq!(std::mem::replace(&mut number[launch], index), usize::MAX, "seed {seed}: twice");
                    }
                }
                for launch in 0..live.launch_count {
                    let behind = dependences.predecessors[launch].iter().all(|&before| number[before] < number[launch]);
                    assert!(behind && number[launch] < groups.len(), "seed {seed}: launch {launch}");
                }
                let update = order.iter().position(|&launch| launch >= program.update_start).unwrap_or(order.len());
                assert_eq!(update, program.update_start, "seed {seed}: the update phase is the end");
                assert!(peak(&program, &live, &groups) <= limit_bytes, "seed {seed}");
            }
        }
    }

    #[test]
    fn choices_within_the_scope_of_another_give_the_same_groups() {
        let (mut held, mut differed) = (0, 0);
        for seed in 1..40 {
            let mut random = Random::new(seed);
            let program = alias_in_any_order(random_training_program(&mut random, 5));
            let live = liveness(&program, false);
            let dependences = Dependences::all(&live);
            let needed_bytes = live.needed_bytes()[0];
            let mut choice = || Choice {
                limit_bytes: needed_bytes * random.below(40) / 4,
                window: [1, 3, 8, usize::MAX][random.below(4) as usize],
                lazy: random.below(2) == 0,
            };
            for _ in 0..60 {
                let (one, other) = (choice(), choice());
                let grouping = group_up_to(&program, &live, &dependences, one, usize::MAX);
                let groups = grouping.groups.clone().unwrap();
                assert!(grouping.holds_for(one), "seed {seed}");
                let expected = group(&program, &live, other);
                if grouping.holds_for(other) {
                    assert_eq!(groups, expected, "seed {seed}: {one:?}, {other:?}");
                    held += usize::from(one != other);
                } else {
                    differed += usize::from(groups != expected);
                }
                let up_to = |groups_max| group_up_to(&program, &live, &dependences, one, groups_max);
                assert_eq!(up_to(groups.len()).groups.as_ref(), Some(&groups), "seed {seed}");
                assert_eq!(up_to(groups.len() - 1).groups, None, "seed {seed}");
            }
        }
        assert!(held > 50 && differed > 50, "{held} held, {differed} differed");
    }
}
