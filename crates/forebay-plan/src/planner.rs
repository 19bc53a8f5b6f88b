//! The planner: runs the passes, tries a few ways to fill the device, and keeps the one with the shortest predicted step.

mod cutting;
mod fitting;
mod together;

use forebay_base::Limits;
use forebay_model::program::Program;

use crate::alias::{alias, alias_in_any_order};
use crate::arena::{arena, Arena};
use crate::bound::lower_bound_ns;
use crate::check::check;
use crate::cost::Costs;
use crate::dependences::fewest_barriers;
use crate::early::updates_early;
use crate::emit::{emit, Decisions, COMPUTE};
use crate::error::PlanError;
use crate::liveness::{liveness, Liveness};
use crate::order::{group, Choice, LaunchOrder, Ordered};
use crate::partition::least_limit_bytes;
use crate::plan::Plan;
use crate::residency::{kind, mandatory_usage, residency, Filling, Residency};
use crate::schedule::schedule;
use crate::simulate::simulate;
use crate::split::split_barriers;
use crate::stores::{stores, HostRoom, Stores};
use crate::stretch::{stretch, Route};
use cutting::Cutting;

/// After so many attempts in a row that are no faster, more of the same are no faster either.
const WORSE_MAX: usize = 2;
/// Parts of what file order's peak leaves beside parameters and state, in percent, that groups may take; the rest is room
/// for the gaps that placement cannot fill. Far apart first: what succeeds there says which others are worth a try.
const LIMIT_PERCENT: [u64; 12] = [100, 94, 97, 99, 98, 96, 95, 88, 91, 93, 80, 84];
/// So many ways to group launches are placed and counted at most, times the number of launches; but a few in any case.
const TRIED_LAUNCHES_MAX: usize = 6_000;
const TRIED_MIN: usize = 4;
/// Steps that take more than this many times a step without a budget are worth a longer search.
const SLOW: f64 = 1.003;
/// Steps that take more than this many times a step without a budget are worth a search among parts of launches.
const SLOW_ENOUGH_TO_CUT: f64 = 1.03;
/// Everything stays on the device.
const UNLIMITED: Filling =
    Filling { keep_bytes: u64::MAX, transfer_bytes: u64::MAX, isolate: false, joined_bytes: u64::MAX };

/// What a plan may take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    /// Device bytes, tile rounding included; none for as much as it takes.
    pub device_budget_bytes: Option<u64>,
    /// Host bytes for swapped tensors, inputs and outputs; none for as much as it takes.
    pub host_budget_bytes: Option<u64>,
    /// Whether what exceeds the host budget may go to disk.
    pub spill: bool,
    /// In which order launches are planned.
    pub order: LaunchOrder,
    /// Whether the whole plan is checked ([`mod@crate::check`]) before it is returned.
    pub check: bool,
}

/// Plans one step of a program. Fuse it first ([`crate::fuse`]), and set its launches' scratch bytes. Costs are those of its
/// launches as they come, whatever order is planned.
///
/// # Errors
/// A budget that is too small, a tensor that is too large for the device, or a broken invariant (a defect).
pub fn plan(program: &Program, options: &PlanOptions, limits: &Limits, costs: &Costs) -> Result<Plan, PlanError> {
    let groups = choose_groups(program, options.order, limits, costs)?;
    plan_in_groups(program, groups.as_deref(), options, limits, costs)
}

/// Looks for the order in which a program is best planned: groups of its launches, or none for the order in which they come.
/// Budgets and durations have no say in it, so whoever plans a program again keeps the groups.
///
/// # Errors
/// A tensor or a launch that is too large for the device, or a broken invariant (a defect).
pub fn choose_groups(
    program: &Program,
    order: LaunchOrder,
    limits: &Limits,
    costs: &Costs,
) -> Result<Option<Vec<Vec<usize>>>, PlanError> {
    match order {
        LaunchOrder::File => Ok(None),
        LaunchOrder::Barriers => {
            let file = Variant::new(Ordered::as_it_comes(program.clone()), costs);
            check_sizes(&file, limits)?;
            let planner = Planner { program, limits, costs, in_core_ns: 0, cut: false, room: None };
            planner.fewest_barriers(&planner.in_core(&file)?)
        }
    }
}

/// Plans one step of a program in an order that was chosen before ([`choose_groups`]), whatever order the options name.
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
    let file = Variant::new(Ordered::as_it_comes(program.clone()), costs);
    let (minimum_budget_bytes, minimum_launch) = check_sizes(&file, limits)?;
    let planner = Planner { program, limits, costs, in_core_ns: 0, cut: false, room: None };
    let in_file_order = planner.in_core(&file)?;
    let reordered = groups.map(|groups| Variant::new(Ordered::by_groups(program, groups), costs));
    let in_core = match &reordered {
        Some(variant) => planner.in_core_groups(variant, &in_file_order)?.unwrap_or(in_file_order),
        None => in_file_order,
    };
    let mut in_core = split_barriers(in_core, COMPUTE, costs);
    let (in_core_peak_bytes, in_core_predicted_ns) =
        (in_core.statistics.device_peak_bytes, planner.predicted(&in_core));
    in_core.statistics.predicted_ns = in_core_predicted_ns;
    let in_core_variant = reordered.as_ref().unwrap_or(&file);
    let finest = Cutting::new(program, least_limit_bytes(program), limits, costs);
    let whole_minimum = (minimum_budget_bytes, minimum_launch);
    let (minimum_budget_bytes, minimum_launch) =
        finest.iter().map(|cutting| minimum_budget(&cutting.file, limits)).fold(whole_minimum.clone(), least);
    let (early, cuttings);
    let (mut plan, variant, capacity_bytes) = match options.device_budget_bytes {
        Some(budget_bytes) if in_core_peak_bytes > budget_bytes => {
            if minimum_budget_bytes > budget_bytes {
                return Err(PlanError::DeviceBudget {
                    budget_bytes,
                    minimum_bytes: minimum_budget_bytes,
                    launch: minimum_launch,
                });
            }
            let capacity_bytes = budget_bytes / limits.tile_size_bytes * limits.tile_size_bytes;
            let spill_beyond_bytes = options.host_budget_bytes.filter(|_| options.spill);
            let planner = Planner { in_core_ns: in_core_predicted_ns, ..planner };
            early = Variant::early(program, options.order, costs);
            let mut best = None;
            if whole_minimum.0 <= budget_bytes {
                let orders = Orders { file: &file, early: early.as_ref(), reordered: reordered.as_ref() };
                let (plan, variant) = planner.within(orders, capacity_bytes, spill_beyond_bytes)?;
                let mut plan = split_barriers(plan, COMPUTE, costs);
                plan.statistics.predicted_ns = planner.predicted(&plan);
                best = Some((plan, variant));
            }
            let is_slow = |(plan, _): &(Plan, _)| {
                plan.statistics.predicted_ns as f64 > in_core_predicted_ns as f64 * SLOW_ENOUGH_TO_CUT
            };
            let worth = best.as_ref().is_none_or(is_slow);
            cuttings = if worth { planner.cuttings(capacity_bytes, finest, options.order) } else { Vec::new() };
            for cutting in &cuttings {
                let planner = Planner { costs: &cutting.costs, cut: true, ..planner };
                let orders = Orders { file: &cutting.file, early: cutting.early.as_ref(), reordered: None };
                let found = planner.within(orders, capacity_bytes, spill_beyond_bytes);
                let (plan, variant) = match found {
                    // What has no placement is no candidate; another may have one.
                    Err(PlanError::Check { .. }) => continue,
                    found => found?,
                };
                let mut plan = split_barriers(plan, COMPUTE, &cutting.costs);
                cutting.parts.note(&mut plan);
                plan.statistics.predicted_ns = planner.predicted(&plan);
                let better = |(other, _): &(Plan, _)| is_better(&plan, other, spill_beyond_bytes);
                if best.as_ref().is_none_or(better) {
                    best = Some((plan, variant));
                }
            }
            let no_candidate = || PlanError::Check { reason: format!("no candidate within {capacity_bytes} bytes") };
            let (plan, variant) = best.ok_or_else(no_candidate)?;
            (plan, variant, capacity_bytes)
        }
        _ => (in_core, in_core_variant, u64::MAX),
    };
    let statistics = &mut plan.statistics;
    statistics.device_budget_bytes = options.device_budget_bytes;
    statistics.in_core_peak_bytes = in_core_peak_bytes;
    statistics.in_core_predicted_ns = in_core_predicted_ns;
    statistics.minimum_budget_bytes = minimum_budget_bytes;
    statistics.minimum_launch = minimum_launch;
    statistics.fewest_barriers = fewest_barriers(program);
    statistics.host_budget_bytes = options.host_budget_bytes;
    let needed_bytes = statistics.host_bytes;
    if let Some(budget_bytes) = options.host_budget_bytes.filter(|&budget_bytes| needed_bytes > budget_bytes) {
        return Err(PlanError::HostBudget { budget_bytes, needed_bytes, spilled: options.spill });
    }
    plan.statistics.lower_bound_ns =
        lower_bound_ns(&plan, &variant.ordered, &variant.live, &variant.costs, capacity_bytes);
    if options.check {
        check(program, &plan)?;
    }
    Ok(plan)
}

fn least(a: (u64, String), b: (u64, String)) -> (u64, String) {
    if b.0 < a.0 {
        b
    } else {
        a
    }
}

/// Whether a plan needs less beyond the host budget than another, or as much and is faster.
fn is_better(plan: &Plan, other: &Plan, spill_beyond_bytes: Option<u64>) -> bool {
    let excess_bytes =
        |plan: &Plan| spill_beyond_bytes.map_or(0, |budget| plan.statistics.host_bytes.saturating_sub(budget));
    (excess_bytes(plan), plan.statistics.predicted_ns) < (excess_bytes(other), other.statistics.predicted_ns)
}

/// Refuses what no budget helps against; else the smallest budget, and the launch that sets it.
fn check_sizes(file: &Variant, limits: &Limits) -> Result<(u64, String), PlanError> {
    let program = &file.ordered.program;
    for launch in &program.launches {
        for operand in launch.reads.iter().chain(&launch.writes) {
            operand.desc.check_elements(limits.tensor_elements_max).map_err(|error| PlanError::Tensor {
                launch: launch.name.clone(),
                reason: format!("'{}': {error}", program.buffer(operand.buffer).name),
            })?;
        }
    }
    let (bytes, launch) = minimum_budget(file, limits);
    if bytes > limits.memory_bytes {
        // A plan with heaps for it would itself be too large to write down.
        let reason = format!("it needs {bytes} bytes at once, and the device has {}", limits.memory_bytes);
        return Err(PlanError::Tensor { launch, reason });
    }
    Ok((bytes, launch))
}

/// The smallest budget that has a plan: what the most demanding launch needs at once, in whole tiles; and that launch.
fn minimum_budget(variant: &Variant, limits: &Limits) -> (u64, String) {
    let usage = mandatory_usage(&variant.live);
    let launch = (0..usage.len()).max_by_key(|&launch| (usage[launch], std::cmp::Reverse(launch)));
    let bytes = launch.map_or(0, |launch| usage[launch]).max(1).next_multiple_of(limits.tile_size_bytes);
    (bytes, launch.map_or_else(String::new, |launch| variant.ordered.program.launches[launch].name.clone()))
}

/// A program in one order, with outputs in the place of inputs that die.
struct Variant {
    ordered: Ordered,
    live: Liveness,
    /// Costs in this order.
    costs: Costs,
    /// The program in this order, with outputs in places of their own.
    apart: Program,
}

impl Variant {
    fn new(ordered: Ordered, costs: &Costs) -> Variant {
        let apart = ordered.program.clone();
        let program = alias(ordered.program, &ordered.groups);
        let live = liveness(&program, false);
        let in_order = Costs {
            launch_ns: ordered.sources.iter().map(|&source| costs.launch_ns[source]).collect(),
            launch_lanes: ordered.sources.iter().map(|&source| costs.launch_lanes[source]).collect(),
            ..*costs
        };
        Variant { live, ordered: Ordered { program, ..ordered }, costs: in_order, apart }
    }

    /// A program whose updates run as soon as they may; none where they come last in any case, or where launches shall be
    /// planned as they come.
    fn early(program: &Program, order: LaunchOrder, costs: &Costs) -> Option<Variant> {
        match order {
            LaunchOrder::File => None,
            LaunchOrder::Barriers => updates_early(program).map(|ordered| Variant::new(ordered, costs)),
        }
    }
}

/// A program in the orders that are planned.
#[derive(Clone, Copy)]
struct Orders<'v> {
    /// As it comes.
    file: &'v Variant,
    /// With updates as early as they may run.
    early: Option<&'v Variant>,
    /// With the fewest barriers.
    reordered: Option<&'v Variant>,
}

/// A plan within a capacity.
struct Filled {
    /// Host bytes beyond the budget, where what exceeds it may go to disk.
    excess_bytes: u64,
    step_ns: u64,
    /// The part of the capacity that was room for what is kept.
    percent: u64,
    plan: Plan,
}

impl Filled {
    fn is_better(&self, other: &Filled) -> bool {
        (self.excess_bytes, self.step_ns) < (other.excess_bytes, other.step_ns)
    }
}

/// What a residency may take on the device.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// Whether launches of one group get bytes of their own.
    grouped: bool,
    capacity_bytes: u64,
}

/// What every attempt works with.
#[derive(Clone, Copy)]
struct Planner<'a> {
    /// What is planned, as it came.
    program: &'a Program,
    limits: &'a Limits,
    costs: &'a Costs,
    /// How long a step takes without a budget, once that is known.
    in_core_ns: u64,
    /// Whether launches are cut into parts.
    cut: bool,
    /// What the host may hold, where the rest may go to disk.
    room: Option<HostRoom>,
}

impl Planner<'_> {
    fn predicted(&self, plan: &Plan) -> u64 {
        simulate(plan, self.costs).step_ns
    }

    /// One way to fill the device; `None` where its stays cannot be placed within the capacity. `grouped` says whether
    /// launches of one group get bytes of their own.
    fn attempt(
        &self,
        variant: &Variant,
        live: &Liveness,
        filling: Filling,
        grouped: bool,
        capacity_bytes: u64,
    ) -> Result<Option<Plan>, PlanError> {
        self.realize(variant, live, &self.stays(variant, live, filling, &[]), Room { grouped, capacity_bytes })
    }

    /// What is on the device when, if it is filled in this way but for the bytes that are lost to each launch; and where it is
    /// else.
    fn stays(&self, variant: &Variant, live: &Liveness, filling: Filling, lost_bytes: &[u64]) -> (Residency, Stores) {
        let (program, costs) = (&variant.ordered.program, &variant.costs);
        let changing_away = self.room.is_some_and(|room| room.changing_on_disk);
        let mut residency = residency(program, live, costs, filling, lost_bytes, changing_away);
        let stores = stores(program, live, &residency, costs, self.room);
        if !filling.isolate {
            let route = |chunk: usize| {
                let on_disk = stores.on_disk(chunk);
                Route { on_disk, over_boundary: !on_disk && kind(program, &live.chunks[chunk]).persistent }
            };
            stretch(&mut residency, live, costs, route, filling.transfer_bytes, lost_bytes);
        }
        (residency, stores)
    }

    /// The plan of a residency; `None` where it has no placement.
    fn realize(
        &self,
        variant: &Variant,
        live: &Liveness,
        (residency, stores): &(Residency, Stores),
        room: Room,
    ) -> Result<Option<Plan>, PlanError> {
        let groups = room.grouped.then_some(&variant.ordered.groups[..]);
        let Some(arena) = &arena(live, residency, groups, room.capacity_bytes) else { return Ok(None) };
        self.emit(variant, live, (residency, stores), arena).map(Some)
    }

    /// The plan of a residency whose stays have addresses.
    fn emit(
        &self,
        variant: &Variant,
        live: &Liveness,
        (residency, stores): (&Residency, &Stores),
        arena: &Arena,
    ) -> Result<Plan, PlanError> {
        let Ordered { program, sources, .. } = &variant.ordered;
        let (work, limits) = (schedule(live, residency), self.limits);
        emit(&Decisions { program, sources, live, residency, stores, arena, limits }, &work)
    }

    fn in_core(&self, file: &Variant) -> Result<Plan, PlanError> {
        self.attempt(file, &file.live, UNLIMITED, false, u64::MAX)?
            .ok_or_else(|| PlanError::Check { reason: "an unlimited arena has no placement".to_string() })
    }

    /// Launches in groups, without a budget and within file order's peak; none where that has no placement.
    fn in_core_groups(&self, variant: &Variant, in_file_order: &Plan) -> Result<Option<Plan>, PlanError> {
        self.attempt(variant, &variant.live, UNLIMITED, true, in_file_order.statistics.device_peak_bytes)
    }

    /// The groups of launches with the fewest barriers; none where file order has no more at this peak.
    fn fewest_barriers(&self, in_file_order: &Plan) -> Result<Option<Vec<Vec<usize>>>, PlanError> {
        let peak_bytes = in_file_order.statistics.device_peak_bytes;
        let synchronisations = |plan: &Plan| (plan.statistics.barriers, plan.statistics.waits);
        let (mut fewest, waits) = synchronisations(in_file_order);
        let mut fewest_together = fewest + waits;
        let (bases, mut tried, mut best) = (Bases::new(self.program), Vec::new(), None);
        let tried_max = (TRIED_LAUNCHES_MAX / self.program.launches.len().max(1)).max(TRIED_MIN);
        // Less room makes no fewer groups: where the best grouping of a limit fits, lower limits have nothing to offer.
        let mut enough_percent = 0;
        for percent in LIMIT_PERCENT {
            if percent < enough_percent || tried.len() >= tried_max {
                continue;
            }
            for (rank, groups) in bases.groupings(peak_bytes, percent).into_iter().enumerate() {
                // Between two groups there is a barrier, so no plan of more groups can do better.
                if groups.len() > fewest || tried.len() >= tried_max {
                    break;
                }
                if tried.contains(&groups) {
                    continue;
                }
                let variant = Variant::new(Ordered::by_groups(self.program, &groups), self.costs);
                tried.push(groups);
                let Some(plan) = self.in_core_groups(&variant, in_file_order)? else { continue };
                let (barriers, waits) = synchronisations(&plan);
                if barriers < fewest && barriers + waits <= fewest_together {
                    (fewest, fewest_together) = (barriers, barriers + waits);
                    best = tried.last().cloned();
                    if rank == 0 {
                        enough_percent = percent;
                    }
                }
            }
        }
        Ok(best)
    }

    /// The fastest plan within a capacity that every single launch fits. What exceeds the host budget, if one is given, goes
    /// to disk: nothing if possible, what steps change only if necessary.
    ///
    /// A disk may fail while nothing has changed, and not after: where one is used, updates come last.
    fn within<'v>(
        &self,
        Orders { file, early, reordered }: Orders<'v>,
        capacity_bytes: u64,
        spill_beyond_bytes: Option<u64>,
    ) -> Result<(Plan, &'v Variant), PlanError> {
        let mut plan = self.out_of_core(early.unwrap_or(file), reordered, capacity_bytes)?;
        let Some(budget_bytes) = spill_beyond_bytes else { return Ok(plan) };
        for changing_on_disk in [false, true] {
            if plan.0.statistics.host_bytes > budget_bytes {
                let room = Some(HostRoom { budget_bytes, changing_on_disk });
                plan = Planner { room, ..*self }.out_of_core(file, reordered, capacity_bytes)?;
            }
        }
        Ok(plan)
    }

    fn filled(&self, plan: Plan, percent: u64) -> Filled {
        let beyond = |room: HostRoom| plan.statistics.host_bytes.saturating_sub(room.budget_bytes);
        Filled { excess_bytes: self.room.map_or(0, beyond), step_ns: self.predicted(&plan), percent, plan }
    }

    /// The fastest plan within a capacity that every single launch fits, and what it runs.
    fn out_of_core<'v>(
        &self,
        file: &'v Variant,
        reordered: Option<&'v Variant>,
        capacity_bytes: u64,
    ) -> Result<(Plan, &'v Variant), PlanError> {
        let mut best = self.fastest(file, self.keep_percents(), capacity_bytes)?.map(|best| (best, file));
        if let Some(variant) = reordered {
            // The slack that is best for one order is about the best for the other.
            let percents = best.as_ref().map_or(self.keep_percents().to_vec(), |(best, _)| vec![best.percent]);
            let other = self.fastest(variant, &percents, capacity_bytes)?;
            let better = |other: &Filled| best.as_ref().is_none_or(|(best, _)| other.is_better(best));
            best = other.filter(better).map(|other| (other, variant)).or(best);
        }
        let is_slow = |best: &(Filled, _)| best.0.step_ns as f64 > self.in_core_ns as f64 * SLOW;
        if !self.cut && best.as_ref().is_none_or(is_slow) {
            let other = self.together(file, capacity_bytes)?;
            let better = |other: &Filled| best.as_ref().is_none_or(|(best, _)| other.is_better(best));
            best = other.filter(better).map(|other| (other, file)).or(best);
        }
        if let Some((best, variant)) = best {
            return Ok((best.plan, variant));
        }
        // Nothing but what neighbouring launches share, and not even that.
        let neighbours =
            Filling { keep_bytes: 0, transfer_bytes: 0, isolate: false, joined_bytes: self.joined_bytes(0) };
        if let Some(plan) = self.attempt(file, &split(file), neighbours, false, capacity_bytes)? {
            return Ok((plan, file));
        }
        let isolated = Filling { isolate: true, ..neighbours };
        let plan = self.attempt(file, &file.live, isolated, false, capacity_bytes)?;
        plan.map(|plan| (plan, file))
            .ok_or_else(|| PlanError::Check { reason: format!("no placement within {capacity_bytes} bytes") })
    }
}

/// The variant's liveness with large buffers cut.
fn split(variant: &Variant) -> Liveness {
    liveness(&variant.ordered.program, true)
}

/// A program with outputs in the place of inputs, in two ways. Outputs that take over inputs save bytes, and tie the order
/// of those who read them: both may be what is short.
struct Bases {
    bases: [(Program, Liveness); 2],
    /// Bytes that last from step to step.
    lasting_bytes: u64,
}

impl Bases {
    fn new(program: &Program) -> Bases {
        let alone: Vec<u32> = (0..program.launches.len() as u32).collect();
        let with_liveness = |program: Program| {
            let live = liveness(&program, false);
            (program, live)
        };
        let lasting = program.buffers.iter().filter(|buffer| buffer.role.is_persistent());
        Bases {
            lasting_bytes: lasting.map(|buffer| buffer.size_bytes).fold(0, u64::saturating_add),
            bases: [alias_in_any_order(program.clone()), alias(program.clone(), &alone)].map(with_liveness),
        }
    }

    /// Several ways to cut the program into groups, those with the fewest groups first.
    fn groupings(&self, peak_bytes: u64, percent: u64) -> Vec<Vec<Vec<usize>>> {
        let limit_bytes = self.lasting_bytes + peak_bytes.saturating_sub(self.lasting_bytes) / 100 * percent;
        let mut found: Vec<Vec<Vec<usize>>> = Vec::new();
        for (base, live) in &self.bases {
            for (window, lazy) in [(usize::MAX, false), (usize::MAX, true), (64, false), (20, false), (8, false)] {
                found.push(group(base, live, Choice { limit_bytes, window, lazy }));
            }
        }
        found.sort_by_key(Vec::len);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::estimate;
    use crate::testing::{limits, random_training_program, Random};

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
            for percent in [0, 1, 10, 25, 50, 75, 99] {
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
            costs.launch_lanes.fill(costs.lanes);
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
    fn a_budget_below_the_smallest_names_it_and_the_launch_that_sets_it() {
        let program = random_training_program(&mut Random::new(3), 4);
        let (limits, costs) = (limits(), estimate(&program, &limits()));
        let minimum = plan(&program, &options(None), &limits, &costs).unwrap().statistics.minimum_budget_bytes;
        match plan(&program, &options(Some(minimum - 1)), &limits, &costs) {
            Err(PlanError::DeviceBudget { minimum_bytes, launch, .. }) => {
                assert_eq!(minimum_bytes, minimum);
                // It may be a part of one.
                assert!(program.launches.iter().any(|candidate| launch.starts_with(&candidate.name)), "{launch}");
            }
            other => panic!("{other:?}"),
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
            Err(PlanError::HostBudget { budget_bytes: 100, needed_bytes, spilled: false }) if needed_bytes > 100
        ));
    }

    /// A plan as text: what a reader of the snapshot compares.
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
        let program = random_training_program(&mut Random::new(2), 2);
        let (limits, costs) = (limits(), estimate(&program, &limits()));
        let whole = plan(&program, &options(None), &limits, &costs).unwrap();
        insta::assert_snapshot!("in_core", text(&whole));
        let budget = (whole.statistics.minimum_budget_bytes + whole.statistics.in_core_peak_bytes) / 2;
        let half = plan(&program, &options(Some(budget)), &limits, &costs).unwrap();
        insta::assert_snapshot!("between_the_smallest_budget_and_the_peak", text(&half));
    }
}
