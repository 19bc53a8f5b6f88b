//! The planner: runs the passes, tries several ways to fill the device, and keeps the one with the shortest predicted step.

mod candidate;
mod cutting;
mod fitting;
mod grouping;
#[cfg(test)]
mod large_tests;
mod one_pool;
mod together;
mod within;
mod work;

use std::collections::BTreeSet;

use forebay_base::Limits;
use forebay_model::program::Program;

use crate::arena::{Arena, SharedLayout, arena, arena_behind};
use crate::backing_stores::{BackingStores, HostLimit, OnDisk, backing_stores, is_in_model_files};
use crate::bound::lower_bound_ns;
use crate::check::check;
use crate::cost::Costs;
use crate::dependences::fewest_barriers;
use crate::emit::{COMPUTE, Decisions, device_memory_bytes, emit};
use crate::error::{DeviceBudgetSetting, PlanError};
use crate::host_updates::updates_on_host;
use crate::liveness::Liveness;
use crate::loans::Loans;
use crate::order::{LaunchOrder, Ordered};
use crate::partition::partition;
use crate::plan::Plan;
use crate::residency::{Leaving, OccupancyLimit, Residency, kinds, residency};
use crate::schedule::schedule;
use crate::shared::separate;
use crate::simulate::simulate;
use crate::split::split_barriers;
use crate::stop::StopRequest;
use crate::widen::{Route, widen};
use candidate::{Candidate, Candidates, check_sizes, minimum_budget};
use cutting::Cutting;
use work::Work;

/// Everything is kept on the device.
const UNLIMITED: OccupancyLimit =
    OccupancyLimit { keep_bytes: u64::MAX, transfer_bytes: u64::MAX, isolate: false, joined_bytes: u64::MAX };

/// Options of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    /// The device budget in bytes, including rounding up to tiles; `None` for as much as necessary.
    pub device_budget_bytes: Option<u64>,
    /// The host budget in bytes for swapped tensors, inputs and outputs; `None` for as much as necessary.
    pub host_budget_bytes: Option<u64>,
    /// Whether what exceeds the host budget may go to disk.
    pub spill: bool,
    /// The order in which launches are planned.
    pub order: LaunchOrder,
    /// Whether host and device are one memory. In that case a copy from one to the other frees nothing, and what the device budget cannot
    /// hold is recomputed. Within a budget, even one that holds everything, inputs are written where launches read them, and outputs are
    /// read where launches write them if no update comes after.
    pub one_pool: bool,
    /// Whether inputs and outputs stay in the caller's memory if nothing has to leave the device and nothing lasts beyond the step. In that
    /// case they take no device memory and are not copied.
    pub lends: bool,
    /// Whether the error for a budget that one pool cannot keep names the smallest budget that it can keep, which takes as long to find as
    /// several plans. Otherwise the error names what the largest launch needs.
    pub names_least: bool,
    /// Whether [`Statistics::minimum_budget_bytes`] and its launch are left out (0 and empty) if there is no budget or everything fits it.
    /// Stating them ([`smallest_budget`]) can take longer than planning.
    ///
    /// [`Statistics::minimum_budget_bytes`]: crate::plan::Statistics::minimum_budget_bytes
    pub omits_minimum: bool,
    /// Whether the search for a program of more than 500 launches ends with the first plan that it finds
    /// ([`Statistics::search_ended_early`] says whether it did).
    ///
    /// [`Statistics::search_ended_early`]: crate::plan::Statistics::search_ended_early
    pub brief: bool,
    /// The contents of memory that other plans also use. A plan that does not keep everything on the device does not use them.
    pub shared: Option<SharedLayout>,
    /// Whether the whole plan is checked ([`mod@crate::check`]) before it is returned.
    pub check: bool,
    /// A request to stop planning, after which it soon ends with [`PlanError::Stopped`].
    pub stop: StopRequest,
}

/// Plans one step of a program. Fuse it first ([`crate::fuse`]), and set its launches' workspace bytes. `costs` are the costs of its
/// launches in their original order, whatever order is planned.
///
/// # Errors
/// Fails if a budget is too small, if a tensor is too large for the device, or if an invariant is broken (a defect).
pub fn plan(program: &Program, options: &PlanOptions, limits: &Limits, costs: &Costs) -> Result<Plan, PlanError> {
    let groups = choose_groups(program, options.order, limits, costs)?;
    plan_in_groups(program, groups.as_deref(), options, limits, costs)
}

/// Searches for the best order in which to plan a program: groups of its launches, or `None` for the order in which they come. The order
/// does not depend on budgets and durations, so a program that is planned again keeps its groups.
///
/// # Errors
/// Fails if a tensor or a launch is too large for the device, or if an invariant is broken (a defect).
pub fn choose_groups(
    program: &Program,
    order: LaunchOrder,
    limits: &Limits,
    costs: &Costs,
) -> Result<Option<Vec<Vec<usize>>>, PlanError> {
    match order {
        LaunchOrder::File => Ok(None),
        LaunchOrder::Barriers => {
            let file = Candidate::new(Ordered::as_it_comes(program.clone()), costs);
            check_sizes(&file, limits)?;
            let (never, launches) = (StopRequest::default(), program.launches.len());
            let work = Work::new(launches, false, &never);
            let planner = Planner::new(program, limits, costs, &work);
            planner.fewest_barriers(&planner.in_core(&file)?)
        }
    }
}

/// Plans one step of a program in an order that was chosen before ([`choose_groups`]), whatever the order in the options.
///
/// # Errors
/// As for [`plan`].
pub fn plan_in_groups(
    program: &Program,
    groups: Option<&[Vec<usize>]>,
    options: &PlanOptions,
    limits: &Limits,
    costs: &Costs,
) -> Result<Plan, PlanError> {
    let file = Candidate::new(Ordered::as_it_comes(program.clone()), costs);
    let (minimum_budget_bytes, minimum_launch) = check_sizes(&file, limits)?;
    let shared = options.shared.as_ref();
    let lends = options.lends && options.device_budget_bytes.is_none() && options.host_budget_bytes.is_none();
    let work = Work::new(program.launches.len(), options.brief, &options.stop);
    let planner = Planner { shared, lends, ..Planner::new(program, limits, costs, &work) };
    let reordered = groups.map(|groups| Candidate::new(Ordered::by_groups(program, groups), costs));
    // Updates on the host run alongside the backward pass if they begin early.
    let early = if updates_on_host(program) { Candidate::early(program, options.order, costs) } else { None };
    let candidates = Candidates { file: &file, early: early.as_ref(), reordered: reordered.as_ref() };
    let (in_core, in_core_candidate) = planner.fastest_in_core(candidates)?;
    let mut in_core = split_barriers(in_core, COMPUTE, costs);
    let (in_core_peak_bytes, in_core_predicted_ns) =
        (in_core.statistics.device_peak_bytes, planner.predicted(&in_core));
    in_core.statistics.predicted_ns = in_core_predicted_ns;
    // In one pool, copies of inputs would be in the same memory, even if everything fits.
    let within =
        options.device_budget_bytes.filter(|&budget_bytes| options.one_pool || in_core_peak_bytes > budget_bytes);
    // What updates on the host need there may have to go to disk, no matter how much the device holds.
    let exceeds_host = options.host_budget_bytes.is_some_and(|bytes| in_core.statistics.host_bytes > bytes);
    let spills = options.spill && exceeds_host && updates_on_host(program);
    let within = within.or(spills.then(|| options.device_budget_bytes.unwrap_or(in_core_peak_bytes)));
    if within.is_some() && shared.is_some() {
        let unshared = PlanOptions { shared: None, ..options.clone() };
        return plan_in_groups(program, groups, &unshared, limits, costs);
    }
    // In one pool, inputs in place may make room for everything.
    let in_place = match options.one_pool && within.is_some() {
        true => Some(Planner { one_pool: true, ..planner }.fastest_in_core(candidates)?),
        false => None,
    };
    let peak_bytes = in_place.as_ref().map(|(plan, _)| plan.statistics.device_peak_bytes);
    let fits_in_place = peak_bytes.zip(within).is_some_and(|(peak_bytes, budget_bytes)| peak_bytes <= budget_bytes);
    // What fits whole is not cut.
    let cuts_any = within.is_some() && !fits_in_place;
    let states_minimum = cuts_any || !options.omits_minimum;
    let finest = match cuts_any || (states_minimum && parts_may_need_less(minimum_budget_bytes, limits)) {
        true => Cutting::finest(program, limits, costs),
        false => None,
    };
    let whole_minimum = (minimum_budget_bytes, minimum_launch);
    let (minimum_budget_bytes, minimum_launch) =
        finest.iter().map(|cutting| minimum_budget(&cutting.file, limits)).fold(whole_minimum.clone(), least);
    let mut plan = match within {
        Some(budget_bytes) if minimum_budget_bytes > budget_bytes && !options.one_pool => {
            let (minimum_bytes, launch) = (minimum_budget_bytes, minimum_launch);
            let setting = DeviceBudgetSetting::default();
            return Err(PlanError::DeviceBudget { budget_bytes, minimum_bytes, launch, setting });
        }
        Some(budget_bytes) => {
            let planner = Planner { in_core_ns: in_core_predicted_ns, ..planner };
            let capacity_bytes = budget_bytes / limits.tile_size_bytes * limits.tile_size_bytes;
            match in_place {
                Some((plan, candidate)) if fits_in_place => {
                    with_bound(planner.with_split_barriers(plan), candidate, u64::MAX, options)
                }
                Some((plan, _)) => {
                    let range_bytes = minimum_budget_bytes..plan.statistics.device_peak_bytes;
                    drop(plan);
                    let planner = Planner { one_pool: true, thorough: true, ..planner };
                    planner.within_one_pool(&file, finest.as_ref(), range_bytes, options)?
                }
                None => {
                    let whole = (whole_minimum.0 <= budget_bytes).then_some((&file, reordered.as_ref()));
                    planner.within_budget(whole, finest, capacity_bytes, options)?
                }
            }
        }
        None => with_bound(in_core, in_core_candidate, u64::MAX, options),
    };
    let statistics = &mut plan.statistics;
    statistics.in_core_peak_bytes = in_core_peak_bytes;
    statistics.in_core_predicted_ns = in_core_predicted_ns;
    if states_minimum {
        (statistics.minimum_budget_bytes, statistics.minimum_launch) = (minimum_budget_bytes, minimum_launch);
    }
    statistics.fewest_barriers = fewest_barriers(program);
    statistics.search_ended_early = work.ended_early();
    if let Some(layout) = shared {
        separate(&mut plan, layout, limits)?;
        plan.statistics.in_core_peak_bytes = plan.statistics.device_peak_bytes;
    }
    let needed_bytes = plan.statistics.host_bytes;
    if let Some(budget_bytes) = options.host_budget_bytes.filter(|&budget_bytes| needed_bytes > budget_bytes) {
        let spilled = options.spill;
        return Err(PlanError::HostBudget { budget_bytes, needed_bytes, spilled, buffers_bytes: 0 });
    }
    if options.check {
        let partition = plan.cut_bytes.and_then(|limit_bytes| partition(program, limit_bytes));
        check(program, partition.as_ref(), &plan)?;
    }
    Ok(plan)
}

/// Returns the smallest budget for which a program has a plan, and the launch that sets it, as [`Statistics`] of its plans state them.
///
/// [`Statistics`]: crate::plan::Statistics
pub fn smallest_budget(program: &Program, limits: &Limits, costs: &Costs) -> (u64, String) {
    let whole = minimum_budget(&Candidate::new(Ordered::as_it_comes(program.clone()), costs), limits);
    if !parts_may_need_less(whole.0, limits) {
        return whole;
    }
    let finest = Cutting::finest(program, limits, costs);
    finest.iter().map(|cutting| minimum_budget(&cutting.file, limits)).fold(whole, least)
}

/// Returns whether launches in parts may have a smaller minimum budget than whole launches: no budget is smaller than one tile.
fn parts_may_need_less(minimum_budget_bytes: u64, limits: &Limits) -> bool {
    minimum_budget_bytes > limits.tile_size_bytes
}

/// Adds the budgets and the lower bound to a plan.
fn with_bound(mut plan: Plan, candidate: &Candidate, capacity_bytes: u64, options: &PlanOptions) -> Plan {
    plan.statistics.device_budget_bytes = options.device_budget_bytes;
    plan.statistics.host_budget_bytes = options.host_budget_bytes;
    plan.statistics.recomputed_ns = recomputed_ns(candidate);
    plan.statistics.lower_bound_ns =
        lower_bound_ns(&plan, &candidate.ordered, &candidate.live, &candidate.costs, capacity_bytes);
    plan
}

/// Returns the total duration of the launches of a candidate that have already run in the same step.
fn recomputed_ns(candidate: &Candidate) -> u64 {
    let mut seen = BTreeSet::new();
    let launches = candidate.ordered.sources.iter().zip(&candidate.costs.launch_ns);
    launches.filter(|(source, _)| !seen.insert(**source)).map(|(_, launch_ns)| launch_ns).sum()
}

fn least(a: (u64, String), b: (u64, String)) -> (u64, String) {
    if b.0 < a.0 { b } else { a }
}

/// A plan within a capacity.
struct Filled {
    /// Host bytes beyond the budget, if the excess may go to disk.
    excess_bytes: u64,
    step_ns: u64,
    /// The share of the capacity that is for kept bytes, or that is filled.
    share: f64,
    plan: Plan,
}

impl Filled {
    fn is_better(&self, other: &Filled) -> bool {
        (self.excess_bytes, self.step_ns) < (other.excess_bytes, other.step_ns)
    }
}

/// The device memory that a residency may take.
#[derive(Clone, Copy, Debug)]
struct PlacementLimit {
    /// Whether launches of one group get disjoint bytes.
    grouped: bool,
    capacity_bytes: u64,
}

/// The context of every attempt.
#[derive(Clone, Copy)]
struct Planner<'a> {
    /// The program to plan, as given.
    program: &'a Program,
    limits: &'a Limits,
    costs: &'a Costs,
    /// The work that the search has done so far.
    work: &'a Work<'a>,
    /// The share of the work that attempts may take.
    work_share: f64,
    /// The duration of a step without a budget, once known.
    in_core_ns: u64,
    /// Whether launches are cut into parts.
    cut: bool,
    /// What the host may hold, if the rest may go to disk.
    host_limit: Option<HostLimit>,
    /// What is at the beginning of the device, in memory that other plans also use.
    shared: Option<&'a SharedLayout>,
    /// Whether device and host are one memory, so that inputs and outputs need no space on the host.
    one_pool: bool,
    /// Whether the caller lends inputs and outputs.
    lends: bool,
    /// Whether the search for what to recompute in one pool is thorough.
    thorough: bool,
    /// By launch of a partitioned program: the launch that it is a part of.
    origins: Option<&'a [usize]>,
}

impl<'a> Planner<'a> {
    fn new(program: &'a Program, limits: &'a Limits, costs: &'a Costs, work: &'a Work<'a>) -> Planner<'a> {
        let (host_limit, shared, origins) = (None, None, None);
        Planner {
            program,
            limits,
            costs,
            work,
            work_share: 1.0,
            in_core_ns: 0,
            cut: false,
            host_limit,
            shared,
            one_pool: false,
            lends: false,
            thorough: false,
            origins,
        }
    }
}

impl Planner<'_> {
    /// Returns whether attempts have used up their share of the work.
    fn work_is_spent(&self) -> bool {
        self.work.is_spent(self.work_share)
    }

    fn predicted(&self, plan: &Plan) -> u64 {
        simulate(plan, self.costs).step_ns
    }

    /// Tries one way to fill the device; `None` if its intervals cannot be placed within the capacity. `grouped` says whether launches of
    /// one group get disjoint bytes.
    fn attempt(
        &self,
        candidate: &Candidate,
        live: &Liveness,
        limit: OccupancyLimit,
        grouped: bool,
        capacity_bytes: u64,
    ) -> Result<Option<Plan>, PlanError> {
        self.realize(
            candidate,
            live,
            &self.intervals(candidate, live, limit, &[]),
            PlacementLimit { grouped, capacity_bytes },
        )
    }

    /// Returns what is on the device at which time if the device is filled this way, except for the bytes that are lost to each launch, and
    /// where it is otherwise.
    fn intervals(
        &self,
        candidate: &Candidate,
        live: &Liveness,
        limit: OccupancyLimit,
        lost_bytes: &[u64],
    ) -> (Residency, BackingStores) {
        let (program, costs) = (&candidate.ordered.program, &candidate.costs);
        let mut residency = residency(program, live, costs, limit, lost_bytes, &self.leaving(program, live));
        if self.one_pool {
            residency.meet_in_place(&kinds(program, live), live, program.update_start < program.launches.len());
        }
        residency.leave_out(live, &self.loans(program));
        let backing_stores = backing_stores(program, live, &residency, costs, self.host_limit);
        if !limit.isolate {
            let kinds = kinds(program, live);
            let route = |chunk: usize| {
                let on_disk = backing_stores.on_disk(chunk);
                Route { on_disk, over_boundary: !on_disk && kinds[chunk].persistent }
            };
            widen(&mut residency, live, costs, route, limit.transfer_bytes, lost_bytes);
        }
        (residency, backing_stores)
    }

    /// Returns which chunks of a program may leave the device. In one pool, only those that need no memory elsewhere may.
    fn leaving(&self, program: &Program, live: &Liveness) -> Leaving {
        match self.host_limit {
            Some(_) if self.one_pool => {
                Leaving::Only((0..live.chunks.len()).map(|chunk| is_in_model_files(program, live, chunk)).collect())
            }
            Some(HostLimit { on_disk: OnDisk::Changing, .. }) => Leaving::ChangingBetweenSteps,
            _ => Leaving::Anything,
        }
    }

    /// Returns which buffers of a program the caller lends.
    fn loans(&self, program: &Program) -> Loans {
        if self.lends { Loans::of(program) } else { Loans::default() }
    }

    /// Returns the plan of a residency; `None` if it has no placement.
    fn realize(
        &self,
        candidate: &Candidate,
        live: &Liveness,
        (residency, backing_stores): &(Residency, BackingStores),
        host_limit: PlacementLimit,
    ) -> Result<Option<Plan>, PlanError> {
        self.work.check()?;
        let groups = host_limit.grouped.then_some(&candidate.ordered.groups[..]);
        let arena = self.arena(live, residency, groups, host_limit.capacity_bytes);
        let Some(arena) = &arena else { return Ok(None) };
        self.emit(candidate, live, (residency, backing_stores), arena).map(Some)
    }

    /// Places the intervals of a residency; `None` if they have no placement within a capacity.
    fn arena(
        &self,
        live: &Liveness,
        residency: &Residency,
        groups: Option<&[u32]>,
        capacity_bytes: u64,
    ) -> Option<Arena> {
        match self.shared {
            Some(layout) => arena_behind(live, residency, groups, capacity_bytes, layout),
            None => arena(live, residency, groups, capacity_bytes, self.thorough),
        }
    }

    /// Returns the plan of a residency whose intervals have addresses.
    fn emit(
        &self,
        candidate: &Candidate,
        live: &Liveness,
        (residency, backing_stores): (&Residency, &BackingStores),
        arena: &Arena,
    ) -> Result<Plan, PlanError> {
        self.work.check()?;
        let Ordered { program, sources, .. } = &candidate.ordered;
        let (work, limits) = (schedule(live, residency), self.limits);
        let loans = &self.loans(program);
        emit(&Decisions { program, sources, live, residency, backing_stores, arena, loans, limits }, &work)
    }

    fn in_core(&self, file: &Candidate) -> Result<Plan, PlanError> {
        let (decided, arena) = self.in_core_arena(file)?;
        self.emit(file, &file.live, (&decided.0, &decided.1), &arena)
    }

    /// Returns what is where if everything is kept on the device.
    fn in_core_arena(&self, file: &Candidate) -> Result<((Residency, BackingStores), Arena), PlanError> {
        self.work.check()?;
        let decided = self.intervals(file, &file.live, UNLIMITED, &[]);
        let arena = self.arena(&file.live, &decided.0, None, u64::MAX);
        let none = || PlanError::Check { reason: "no placement was found in an unlimited arena".to_string() };
        Ok((decided, arena.ok_or_else(none)?))
    }

    /// Returns the plan without a budget, and what it runs: the groups with the fewest barriers, or the launches as they come if the groups
    /// take more memory; or early updates if they are faster than that.
    fn fastest_in_core<'v>(
        &self,
        Candidates { file, early, reordered }: Candidates<'v>,
    ) -> Result<(Plan, &'v Candidate), PlanError> {
        let (decided, arena) = self.in_core_arena(file)?;
        let grouped = match reordered {
            Some(candidate) => {
                let peak_bytes = device_memory_bytes(arena.device_bytes, self.limits);
                self.in_core_groups(candidate, peak_bytes)?.map(|plan| (plan, candidate))
            }
            None => None,
        };
        let mut best = match grouped {
            Some(best) => best,
            None => (self.emit(file, &file.live, (&decided.0, &decided.1), &arena)?, file),
        };
        if let Some(candidate) = early {
            let plan = self.in_core(candidate)?;
            if self.predicted(&plan) < self.predicted(&best.0) {
                best = (plan, candidate);
            }
        }
        Ok(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::estimate;
    use crate::testing::{Random, limits, random_training_program, training_program};
    use forebay_model::program::Role;

    fn options(budget: Option<u64>) -> PlanOptions {
        PlanOptions { device_budget_bytes: budget, check: true, ..PlanOptions::default() }
    }

    #[test]
    fn every_budget_from_the_smallest_on_has_a_checked_plan_within_it() {
        for seed in 1..12 {
            let mut random = Random::new(seed);
            let depth = 1 + random.below(7) as usize;
            let program = crate::fuse::fuse(random_training_program(&mut random, depth));
            let (limits, costs) = (limits(), estimate(&program, &limits()));
            let whole = plan(&program, &options(None), &limits, &costs).unwrap();
            let (low, high) = (whole.statistics.minimum_budget_bytes, whole.statistics.in_core_peak_bytes);
            // The smallest budget, and half of the others.
            for percent in [0].into_iter().chain([1, 10, 25, 50, 75, 99].into_iter().skip(seed as usize % 2).step_by(2))
            {
                let budget = low + (high - low) * percent / 100;
                let plan = plan(&program, &options(Some(budget)), &limits, &costs)
                    .unwrap_or_else(|error| panic!("seed {seed}, {percent} %: {error}"));
                assert!(plan.statistics.device_peak_bytes <= budget, "seed {seed}, {percent} %");
                let (bound_ns, predicted_ns) = (plan.statistics.lower_bound_ns, plan.statistics.predicted_ns);
                assert!(bound_ns <= predicted_ns, "seed {seed}, {percent} %: {predicted_ns} ns beat {bound_ns} ns");
                assert!(
                    plan.statistics.bytes_to_device >= whole.statistics.bytes_to_device,
                    "seed {seed}, {percent} %"
                );
            }
        }
    }

    #[test]
    fn reordering_saves_barriers_and_costs_no_byte() {
        let (mut saved, mut most) = (0, 0);
        for seed in 1..40 {
            let mut random = Random::new(seed);
            let program = crate::fuse::fuse(random_training_program(&mut random, 6));
            let (limits, mut costs) = (limits(), estimate(&program, &limits()));
            // Launches that fill the machine gain nothing from split barriers.
            costs.launch_workers.fill(costs.workers);
            let planned = |order| plan(&program, &PlanOptions { order, ..options(None) }, &limits, &costs).unwrap();
            let (file, ours) = (planned(LaunchOrder::File).statistics, planned(LaunchOrder::Barriers).statistics);
            assert!(ours.device_peak_bytes <= file.device_peak_bytes, "seed {seed}");
            assert!(ours.barriers <= file.barriers && ours.barriers >= ours.fewest_barriers, "seed {seed}");
            assert!(ours.barriers + ours.waits <= file.barriers + file.waits, "seed {seed}");
            saved += file.barriers - ours.barriers;
            most += file.barriers - file.fewest_barriers;
        }
        assert!(saved * 2 > most, "{saved} of {most} barriers saved");
    }

    #[test]
    fn the_order_does_not_depend_on_durations() {
        for seed in 1..20 {
            let mut random = Random::new(seed);
            let program = random_training_program(&mut random, 6);
            let (limits, estimated) = (limits(), estimate(&program, &limits()));
            let mut measured = estimated.clone();
            measured.launch_ns.iter_mut().for_each(|duration| *duration = 1 + random.below(1_000_000));
            measured.link.to_device.bytes_per_second /= 100.0;
            let chosen = |costs| choose_groups(&program, LaunchOrder::Barriers, &limits, costs).unwrap();
            assert_eq!(chosen(&estimated), chosen(&measured), "seed {seed}");
        }
    }

    #[test]
    fn a_launch_that_the_device_cannot_hold_runs_in_parts() {
        let program = training_program(36 << 16, &[(Role::Parameter, 0)]);
        let costs = estimate(&program, &limits());
        let least_bytes = plan(&program, &options(None), &limits(), &costs).unwrap().statistics.minimum_budget_bytes;
        let needed_bytes = crate::liveness::liveness(&program, false).most_needed_bytes();
        let small = |memory_bytes| Limits { memory_bytes, ..limits() };
        let memory_bytes = (least_bytes + needed_bytes) / 2;
        assert!(memory_bytes < needed_bytes, "{least_bytes} {needed_bytes}");
        let found = plan(&program, &options(Some(memory_bytes)), &small(memory_bytes), &costs).unwrap().statistics;
        assert!(found.launches_cut > 0 && found.device_peak_bytes <= memory_bytes, "{found:?}");
        let error = plan(&program, &options(None), &small(least_bytes / 4), &costs).unwrap_err().to_string();
        assert!(error.contains("in the smallest parts"), "{error}");
    }

    #[test]
    fn the_shortest_copies_are_not_made_without_need() {
        let program = training_program(256, &[(Role::Parameter, 0), (Role::Constant, 1), (Role::Parameter, 2)]);
        let mut costs = estimate(&program, &limits());
        let moved = |costs: &Costs| {
            let found = plan(&program, &options(None), &limits(), costs).unwrap().statistics;
            (found.bytes_to_device, found.bytes_from_device)
        };
        let usual = moved(&costs);
        for way in [&mut costs.link.to_device, &mut costs.link.from_device] {
            (way.bytes_per_second, way.latency_ns) = (1e12, 0);
        }
        assert_eq!(moved(&costs), usual);
    }

    #[test]
    fn a_budget_below_the_smallest_names_it_and_the_launch_that_sets_it() {
        let program = random_training_program(&mut Random::new(3), 4);
        let (limits, costs) = (limits(), estimate(&program, &limits()));
        let minimum = plan(&program, &options(None), &limits, &costs).unwrap().statistics.minimum_budget_bytes;
        match plan(&program, &options(Some(minimum - 1)), &limits, &costs) {
            Err(PlanError::DeviceBudget { minimum_bytes, launch, .. }) => {
                assert_eq!(minimum_bytes, minimum);
                // It may be a part of a launch.
                assert!(program.launches.iter().any(|candidate| launch.starts_with(&candidate.name)), "{launch}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_smallest_budget_can_be_left_out_and_asked_for_later() {
        for seed in 1..6 {
            let program = random_training_program(&mut Random::new(seed), 4);
            let (limits, costs) = (limits(), estimate(&program, &limits()));
            let stated = plan(&program, &options(None), &limits, &costs).unwrap();
            let omitting = PlanOptions { omits_minimum: true, ..options(None) };
            let mut omitted = plan(&program, &omitting, &limits, &costs).unwrap();
            let found = &mut omitted.statistics;
            assert_eq!((found.minimum_budget_bytes, found.minimum_launch.as_str()), (0, ""), "seed {seed}");
            (found.minimum_budget_bytes, found.minimum_launch) = smallest_budget(&program, &limits, &costs);
            assert_eq!(omitted, stated, "seed {seed}");
        }
    }

    #[test]
    fn the_same_program_gives_the_same_plan() {
        let program = random_training_program(&mut Random::new(5), 6);
        let (limits, costs) = (limits(), estimate(&program, &limits()));
        let whole = plan(&program, &options(None), &limits, &costs).unwrap().statistics;
        let budget = Some((whole.minimum_budget_bytes + whole.in_core_peak_bytes) / 2);
        let make = || plan(&program, &options(budget), &limits, &costs).unwrap();
        assert_eq!(make(), make());
    }

    #[test]
    fn a_host_budget_that_is_too_small_says_what_is_needed() {
        let program = random_training_program(&mut Random::new(7), 6);
        let (limits, costs) = (limits(), estimate(&program, &limits()));
        let tight = PlanOptions { host_budget_bytes: Some(100), ..options(None) };
        assert!(matches!(
            plan(&program, &tight, &limits, &costs),
            Err(PlanError::HostBudget { budget_bytes: 100, needed_bytes, spilled: false, .. }) if needed_bytes > 100
        ));
    }

    /// Formats a plan as text, for snapshots.
    fn text(plan: &Plan) -> String {
        let mut lines: Vec<String> = plan.prologue.iter().map(ToString::to_string).collect();
        for (index, command) in plan.commands.iter().enumerate() {
            if index == plan.update_start {
                lines.push("-- update phase --".to_string());
            }
            let why = plan.movements.iter().find(|movement| movement.command == index);
            let why = why.map(|movement| format!("    ({}: {})", movement.name, movement.reason)).unwrap_or_default();
            lines.push(format!("{command}{why}"));
        }
        lines.join("\n")
    }

    #[test]
    fn plans_of_a_small_training_step_stay_as_they_are() {
        let program = training_program(36 << 16, &[(Role::Parameter, 0), (Role::Constant, 1)]);
        let (limits, costs) = (limits(), estimate(&program, &limits()));
        let whole = plan(&program, &options(None), &limits, &costs).unwrap();
        insta::assert_snapshot!("in_core", text(&whole));
        let budget = (whole.statistics.minimum_budget_bytes + whole.statistics.in_core_peak_bytes) / 2;
        let half = plan(&program, &options(Some(budget)), &limits, &costs).unwrap();
        insta::assert_snapshot!("between_the_smallest_budget_and_the_peak", text(&half));
    }
}
