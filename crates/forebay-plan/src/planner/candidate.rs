//! A program in the orders that are planned.

use forebay_base::Limits;
use forebay_model::program::{Program, ProgramLaunch};

use crate::alias::alias;
use crate::cost::Costs;
use crate::early_updates::updates_early;
use crate::error::PlanError;
use crate::liveness::{Liveness, liveness};
use crate::order::{LaunchOrder, Ordered};
use crate::partition::least_limit_bytes;

/// A program in one order, with outputs in the place of dying inputs.
pub(super) struct Candidate {
    pub(super) ordered: Ordered,
    pub(super) live: Liveness,
    /// Costs in this order, in which updates on the host take no time.
    pub(super) costs: Costs,
    /// The program in this order, with outputs in separate places.
    pub(super) apart: Program,
}

impl Candidate {
    pub(super) fn new(ordered: Ordered, costs: &Costs) -> Candidate {
        let apart = ordered.program.clone();
        let program = alias(ordered.program, &ordered.groups);
        let live = liveness(&program, false);
        // The device continues meanwhile.
        let launch_ns = |(launch, &source): (&ProgramLaunch, &usize)| match launch.in_host_memory {
            true => 0,
            false => costs.launch_ns[source],
        };
        let in_order = Costs {
            launch_ns: apart.launches.iter().zip(&ordered.sources).map(launch_ns).collect(),
            launch_workers: ordered.sources.iter().map(|&source| costs.launch_workers[source]).collect(),
            ..*costs
        };
        Candidate { live, ordered: Ordered { program, ..ordered }, costs: in_order, apart }
    }

    /// Returns a program whose updates run as early as possible; `None` if they come last in any case, or if launches are to be planned in
    /// file order.
    pub(super) fn early(program: &Program, order: LaunchOrder, costs: &Costs) -> Option<Candidate> {
        match order {
            LaunchOrder::File => None,
            LaunchOrder::Barriers => updates_early(program).map(|ordered| Candidate::new(ordered, costs)),
        }
    }
}

/// A program in the orders that are planned.
#[derive(Clone, Copy)]
pub(super) struct Candidates<'v> {
    /// In file order.
    pub(super) file: &'v Candidate,
    /// With updates as early as possible.
    pub(super) early: Option<&'v Candidate>,
    /// With the fewest barriers.
    pub(super) reordered: Option<&'v Candidate>,
}

/// Returns a candidate's liveness with large buffers cut.
pub(super) fn split(candidate: &Candidate) -> Liveness {
    liveness(&candidate.ordered.program, true)
}

/// Rejects programs that no budget is enough for. Otherwise returns the smallest budget, and the launch that sets it.
pub(super) fn check_sizes(file: &Candidate, limits: &Limits) -> Result<(u64, String), PlanError> {
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
        // A plan with heaps for it would itself be too large to represent. What fits in parts is never that large.
        let parts_bytes = least_limit_bytes(&file.apart);
        if parts_bytes > limits.memory_bytes {
            let (has, name) = (limits.memory_bytes, &limits.name);
            let reason = format!(
                "it needs {bytes} bytes at once, and in the smallest parts a launch still needs {parts_bytes}, but the device \
                 has {has}: {name}"
            );
            return Err(PlanError::Tensor { launch, reason });
        }
    }
    Ok((bytes, launch))
}

/// Returns the smallest budget that has a plan, which is what the most demanding launch needs at once, in whole tiles; and that launch.
pub(super) fn minimum_budget(candidate: &Candidate, limits: &Limits) -> (u64, String) {
    let usage = candidate.live.needed_bytes();
    let launch = (0..usage.len()).max_by_key(|&launch| (usage[launch], std::cmp::Reverse(launch)));
    let bytes = launch.map_or(0, |launch| usage[launch]).max(1).next_multiple_of(limits.tile_size_bytes);
    (bytes, launch.map_or_else(String::new, |launch| candidate.ordered.program.launches[launch].name.clone()))
}
