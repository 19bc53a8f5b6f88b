//! A limit on the memory of the whole process, where device memory is the host's.
//!
//! A process takes tensors, which the plan counts, and other things, which it does not: the program, the model's description, batches,
//! what an allocator keeps. Those are measured, once a first plan was made, and the plan gets the rest. There is one pool: nothing is
//! moved from memory to itself, so what does not fit is recomputed. Only a disk takes bytes away.

use std::sync::atomic::Ordering;

use forebay_memory::size::MemorySize;
use forebay_model::program::{NamedOperand, Program};
use forebay_plan::cost::Costs;
use forebay_plan::{plan_in_groups, Plan, PlanError, PlanOptions};

use crate::error::Error;
use crate::machine::LimitedDevice;

/// Times that a batch is in memory at once: read, converted, and the next one on its way.
const BATCHES: u64 = 3;
/// Times that outputs are: as the caller gets them, and as they are written.
const OUTPUTS: u64 = 2;
/// What an allocator, stacks and buffers of files may take beyond what was measured.
const SLACK_BYTES: u64 = 6 << 20;
/// What is measured is rounded up to this, so that it comes to the same after small changes.
const MEASURED_STEP_BYTES: u64 = 4 << 20;

/// Plans a step so that the process stays within a limit.
///
/// # Errors
/// A device whose memory is not the host's, other budgets next to the limit, and a limit that cannot be met, with the least that can.
pub(crate) fn plan_within(
    program: &Program,
    groups: Option<&[Vec<usize>]>,
    machine: &LimitedDevice,
    costs: &Costs,
    limit: MemorySize,
) -> Result<Plan, Error> {
    let (options, limits) = (&machine.options, machine.device.limits());
    let refuse = |reason: String| Err(Error::Option { reason });
    if !limits.in_process || options.device.machine.is_some() {
        let reason = format!(
            "a limit on the process has a meaning only where device memory is the host's; {} has its own: \
            give a budget for device memory instead",
            limits.name
        );
        return refuse(reason);
    }
    if options.memory.device_memory.is_some() || options.memory.host_memory.is_some() {
        return refuse(
            "a memory limit stands for both budgets, of device and of host memory: give it alone".to_string(),
        );
    }
    if options.memory.strategy()?.is_some() {
        return refuse("a memory limit needs a plan: leave --memory out".to_string());
    }
    let check = options.planning.check || cfg!(debug_assertions);
    let plain = PlanOptions { check, ..PlanOptions::default() };
    let in_core = plan_in_groups(program, groups, &plain, limits, costs)?;
    let mut other_bytes = other_bytes(program, machine, in_core.statistics.host_bytes)?;
    let total_bytes = other_bytes + in_core.statistics.device_peak_bytes;
    let limit_bytes = limit.resolve(total_bytes);
    if total_bytes <= limit_bytes {
        return Ok(in_core);
    }
    let host_bytes = in_core.statistics.host_bytes;
    drop(in_core);
    loop {
        let one_pool = PlanOptions {
            device_budget_bytes: Some(limit_bytes.saturating_sub(other_bytes).max(1)),
            one_pool: true,
            ..plain.clone()
        };
        let spilling =
            PlanOptions { one_pool: false, spill: true, host_budget_bytes: Some(host_bytes), ..one_pool.clone() };
        let planned = match plan_in_groups(program, groups, &one_pool, limits, costs) {
            Err(PlanError::DeviceBudget { .. }) if machine.spills() => {
                plan_in_groups(program, groups, &spilling, limits, costs)
            }
            planned => planned,
        };
        // Planning itself takes memory, which an allocator may keep.
        let after_bytes = self::other_bytes(program, machine, host_bytes)?;
        // The limit that is named as the least must suffice for the next process, too.
        let plan = planned.map_err(|error| refused(error, limit_bytes, after_bytes + MEASURED_STEP_BYTES))?;
        if after_bytes <= other_bytes {
            return Ok(plan);
        }
        other_bytes = after_bytes;
    }
}

/// Why there is no plan, in terms of the process.
fn refused(error: PlanError, limit_bytes: u64, other_bytes: u64) -> Error {
    match error {
        PlanError::DeviceBudget { minimum_bytes, launch, .. } => {
            Error::MemoryLimit { limit_bytes, tensors_bytes: minimum_bytes, launch, other_bytes }
        }
        error => Error::Plan(error),
    }
}

/// What the process takes besides tensors on the device.
fn other_bytes(program: &Program, machine: &LimitedDevice, host_bytes: u64) -> Result<u64, Error> {
    let sum =
        |operands: &[NamedOperand]| operands.iter().map(|named| named.operand.desc.total_size_bytes()).sum::<u64>();
    // While a plan is on the device, what it holds cannot be told from the rest.
    if machine.device.usage().heap_bytes == 0 {
        let resident = forebay_limits::resident().ok_or_else(|| Error::Option {
            reason: "this system does not say how much memory a process takes: give budgets instead of a limit"
                .to_string(),
        })?;
        let step = resident.now_bytes.next_multiple_of(MEASURED_STEP_BYTES);
        machine.process_bytes.fetch_max(step, Ordering::Relaxed);
    }
    let measured = machine.process_bytes.load(Ordering::Relaxed);
    let batches = BATCHES * sum(&program.inputs) + OUTPUTS * sum(&program.outputs);
    Ok(measured + host_bytes + machine.reserved_host_bytes + batches + SLACK_BYTES)
}
