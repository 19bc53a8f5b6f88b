//! The planner: runs the passes, tries a few ways to fill the device, and keeps the one with the shortest predicted step.

use forebay_base::Limits;
use forebay_model::program::Program;

use crate::alias::alias;
use crate::arena::arena;
use crate::check::check;
use crate::cost::Costs;
use crate::emit::{emit, Decisions};
use crate::error::PlanError;
use crate::liveness::{liveness, Liveness};
use crate::plan::Plan;
use crate::residency::{mandatory_usage, residency, Filling};
use crate::schedule::schedule;
use crate::simulate::simulate;

/// Parts of the capacity, in percent, that are tried as room for what is kept; the rest is room for transfers and for the
/// gaps that placement cannot fill.
const KEEP_PERCENT: [u64; 8] = [100, 97, 94, 90, 85, 78, 70, 55];

/// What a plan may take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    /// Device bytes, tile rounding included; none for as much as it takes.
    pub device_budget_bytes: Option<u64>,
    /// Host bytes for swapped tensors, inputs and outputs; none for as much as it takes.
    pub host_budget_bytes: Option<u64>,
    /// Whether the whole plan is checked ([`mod@crate::check`]) before it is returned.
    pub check: bool,
}

/// Plans one step of a program. Fuse it first ([`crate::fuse`]), and set its launches' scratch bytes.
///
/// # Errors
/// A budget that is too small, a tensor that is too large for the device, or a broken invariant (a defect).
pub fn plan(program: &Program, options: &PlanOptions, limits: &Limits, costs: &Costs) -> Result<Plan, PlanError> {
    check_tensors(program, limits)?;
    let program = alias(program.clone());
    let whole = liveness(&program, false);
    let (minimum_budget_bytes, minimum_launch) = minimum_budget(&program, &whole, limits);
    if minimum_budget_bytes > limits.memory_bytes {
        // A plan with heaps for it would itself be too large to write down.
        let (needed, there) = (minimum_budget_bytes, limits.memory_bytes);
        let reason = format!("it needs {needed} bytes at once, and the device has {there}");
        return Err(PlanError::Tensor { launch: minimum_launch, reason });
    }
    let planner = Planner { program: &program, limits, costs };
    let unlimited = Filling { keep_bytes: u64::MAX, transfer_bytes: u64::MAX, isolate: false };
    let in_core = planner
        .attempt(&whole, unlimited, u64::MAX)?
        .ok_or_else(|| PlanError::Check { reason: "an unlimited arena has no placement".to_string() })?;
    let (in_core_peak_bytes, in_core_predicted_ns) = (in_core.statistics.device_peak_bytes, predicted(&in_core, costs));
    let mut plan = match options.device_budget_bytes {
        Some(budget_bytes) if in_core_peak_bytes > budget_bytes => {
            if minimum_budget_bytes > budget_bytes {
                return Err(PlanError::DeviceBudget {
                    budget_bytes,
                    minimum_bytes: minimum_budget_bytes,
                    launch: minimum_launch,
                });
            }
            planner.out_of_core(budget_bytes / limits.tile_size_bytes * limits.tile_size_bytes)?
        }
        _ => in_core,
    };
    let statistics = &mut plan.statistics;
    statistics.device_budget_bytes = options.device_budget_bytes;
    statistics.in_core_peak_bytes = in_core_peak_bytes;
    statistics.in_core_predicted_ns = in_core_predicted_ns;
    statistics.minimum_budget_bytes = minimum_budget_bytes;
    statistics.minimum_launch = minimum_launch;
    if let Some(budget_bytes) = options.host_budget_bytes {
        let needed_bytes = plan.statistics.host_bytes;
        if needed_bytes > budget_bytes {
            return Err(PlanError::HostBudget { budget_bytes, needed_bytes });
        }
    }
    plan.statistics.predicted_ns = predicted(&plan, costs);
    if options.check {
        check(&program, &plan)?;
    }
    Ok(plan)
}

fn predicted(plan: &Plan, costs: &Costs) -> u64 {
    simulate(plan, costs).step_ns
}

fn check_tensors(program: &Program, limits: &Limits) -> Result<(), PlanError> {
    for launch in &program.launches {
        for operand in launch.reads.iter().chain(&launch.writes) {
            operand.desc.check_elements(limits.tensor_elements_max).map_err(|error| PlanError::Tensor {
                launch: launch.name.clone(),
                reason: format!("'{}': {error}", program.buffer(operand.buffer).name),
            })?;
        }
    }
    Ok(())
}

/// The smallest budget that has a plan: what the most demanding launch needs at once, in whole tiles; and that launch.
fn minimum_budget(program: &Program, live: &Liveness, limits: &Limits) -> (u64, String) {
    let usage = mandatory_usage(live);
    let launch = (0..usage.len()).max_by_key(|&launch| (usage[launch], std::cmp::Reverse(launch)));
    let bytes = launch.map_or(0, |launch| usage[launch]).max(1).next_multiple_of(limits.tile_size_bytes);
    (bytes, launch.map_or_else(String::new, |launch| program.launches[launch].name.clone()))
}

/// What every attempt works with.
struct Planner<'a> {
    program: &'a Program,
    limits: &'a Limits,
    costs: &'a Costs,
}

impl Planner<'_> {
    /// One way to fill the device; `None` where its stays cannot be placed within the capacity.
    fn attempt(&self, live: &Liveness, filling: Filling, capacity_bytes: u64) -> Result<Option<Plan>, PlanError> {
        let residency = residency(self.program, live, self.costs, filling);
        let Some(arena) = arena(self.program, live, &residency, capacity_bytes) else { return Ok(None) };
        let work = schedule(live, &residency);
        let decisions =
            Decisions { program: self.program, live, residency: &residency, arena: &arena, limits: self.limits };
        emit(&decisions, &work).map(Some)
    }

    /// The fastest plan within a capacity that every single launch fits.
    fn out_of_core(&self, capacity_bytes: u64) -> Result<Plan, PlanError> {
        let split = liveness(self.program, true);
        let needed = mandatory_usage(&split).into_iter().max().unwrap_or(0);
        let mut best: Option<(u64, Plan)> = None;
        for percent in KEEP_PERCENT {
            let keep_bytes = (capacity_bytes / 100 * percent).max(needed);
            let middle_bytes = keep_bytes + capacity_bytes.saturating_sub(keep_bytes) / 2;
            let room = [capacity_bytes, middle_bytes, keep_bytes];
            for transfer_bytes in room {
                let filling = Filling { keep_bytes, transfer_bytes, isolate: false };
                let Some(plan) = self.attempt(&split, filling, capacity_bytes)? else { continue };
                let step_ns = predicted(&plan, self.costs);
                if best.as_ref().is_none_or(|(best_ns, _)| step_ns < *best_ns) {
                    best = Some((step_ns, plan));
                }
            }
        }
        if let Some((_, plan)) = best {
            return Ok(plan);
        }
        // Nothing but what neighbouring launches share, and not even that.
        let neighbours = Filling { keep_bytes: 0, transfer_bytes: 0, isolate: false };
        if let Some(plan) = self.attempt(&split, neighbours, capacity_bytes)? {
            return Ok(plan);
        }
        let isolated = Filling { keep_bytes: 0, transfer_bytes: 0, isolate: true };
        self.attempt(&liveness(self.program, false), isolated, capacity_bytes)?
            .ok_or_else(|| PlanError::Check { reason: format!("no placement within {capacity_bytes} bytes") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::estimate;
    use crate::testing::{limits, random_training_program, Random};

    fn options(budget: Option<u64>) -> PlanOptions {
        PlanOptions { device_budget_bytes: budget, host_budget_bytes: None, check: true }
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
                assert!(
                    plan.statistics.bytes_to_device >= whole.statistics.bytes_to_device,
                    "seed {seed}, {percent} %"
                );
            }
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
                assert!(program.launches.iter().any(|candidate| candidate.name == launch));
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
            Err(PlanError::HostBudget { budget_bytes: 100, needed_bytes }) if needed_bytes > 100
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
