//! A limit on the memory of the whole process, for devices whose memory is the host's.
//!
//! The memory of a process holds tensors, which the plan counts, and other things, which it does not: the program, the model's description,
//! batches, and what an allocator keeps. The latter are measured once a first plan has been made, and the plan gets the rest. There is one
//! pool: moving data within it frees nothing, so what does not fit is recomputed. Only a disk can take bytes away. If no limit is given, a
//! step that would take more than is free gets the free memory as its limit.

use std::sync::atomic::Ordering;

use forebay_base::{DataType, Space};
use forebay_limits::Use;
use forebay_memory::size::MemorySize;
use forebay_model::program::{NamedOperand, Program};
use forebay_model::training::GRADIENT_PREFIX;
use forebay_plan::cost::Costs;
use forebay_plan::plan::{MemoryKind, PlanMemory};
use forebay_plan::{Plan, PlanError, PlanOptions, SharedLayout, plan_in_groups};

use crate::error::Error;
use crate::machine::LimitedDevice;
use crate::options::{MemoryLimit, ProcessLimit};

/// How a plan gets its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feeding {
    /// In host memory, from which they are copied to the device.
    OnHost,
    /// In the places where launches read them. Between steps, these places release their memory, and the next batch takes it.
    InPlace,
}

impl Feeding {
    fn of(plan: &Plan) -> Feeding {
        let mut pieces = plan.inputs.iter().flat_map(|backing| &backing.pieces);
        let in_place = |memory: &PlanMemory| memory.space != Space::Host && memory.kind != MemoryKind::Lent;
        match pieces.any(|(_, region)| in_place(plan.memory(region.memory))) {
            true => Feeding::InPlace,
            false => Feeding::OnHost,
        }
    }

    /// Returns the number of bytes of batches besides the plan's own inputs: as they are given, and as a data set keeps or reads them.
    fn batches_bytes(self, program: &Program) -> u64 {
        match self {
            Feeding::OnHost => 2 * size_bytes(&program.inputs),
            Feeding::InPlace => kept_batch_bytes(&program.inputs),
        }
    }
}

/// Returns the number of bytes of a batch as a data set keeps it. Most classes fit in a byte.
fn kept_batch_bytes(inputs: &[NamedOperand]) -> u64 {
    let bytes = |named: &NamedOperand| match named.operand.desc.data_type() {
        DataType::Int64 => named.operand.desc.element_count(),
        _ => named.operand.desc.total_size_bytes(),
    };
    inputs.iter().map(bytes).sum()
}

/// The number of copies of each output: as the caller gets it, and as it is written.
const OUTPUTS: u64 = 2;
/// The alignment of buffers in a plan's host memory, which is also its minimum size.
const HOST_ALIGNMENT_BYTES: u64 = 64;
/// What an allocator, stacks and file buffers may take beyond what was measured, and code that returns to memory once it runs: up to 14 MiB
/// for the brain's U-Net.
const SLACK_BYTES: u64 = 20 << 20;
/// Measurements are rounded up to a multiple of this, so that they stay the same after small changes.
const MEASURED_STEP_BYTES: u64 = 2 << 20;

/// Returns why a limit on the process is invalid for a machine that is not one pool.
///
/// # Errors
/// Fails if an eviction order is given and the mode has its own.
pub(crate) fn refusal(machine: &LimitedDevice) -> Result<Error, Error> {
    let reason = match machine.options.memory.strategy()? {
        Some(_) => "a memory limit cannot be combined with managed memory; leave out --memory".to_string(),
        None => format!(
            "a limit on the process only applies if device memory is the host's; {} has its own, so set a budget \
             for device memory instead",
            machine.device.limits().name
        ),
    };
    Ok(Error::Option { reason })
}

/// Plans a step so that the process stays within its limit, or within the free memory if it has none.
///
/// # Errors
/// Fails if the limit cannot be met; the error names the lowest limit that can.
pub(crate) fn plan(
    program: &Program,
    groups: Option<&[Vec<usize>]>,
    machine: &LimitedDevice,
    costs: &Costs,
    shared: Option<&SharedLayout>,
) -> Result<Plan, Error> {
    let (options, limits) = (&machine.options, machine.device.limits());
    let peak_before_bytes = peak_bytes();
    let check = options.planning.check || cfg!(debug_assertions);
    let plain = PlanOptions { check, omits_minimum: true, ..PlanOptions::default() };
    let sharing = PlanOptions { shared: shared.cloned(), lends: machine.lends(), ..plain.clone() };
    let mut in_core = plan_in_groups(program, groups, &sharing, limits, costs)?;
    let (host_bytes, in_core_bytes) = (in_core.statistics.host_bytes, in_core.statistics.device_peak_bytes);
    let limit = match machine.process_limit() {
        Some(limit) => Some(limit),
        None => limit(program, machine, host_bytes, in_core_bytes)?,
    };
    let Some(limit) = limit else {
        count_reserved(&mut in_core, machine.reserved_host_bytes());
        return Ok(in_core);
    };
    machine.set_process_limit(Some(limit));
    if !limit.chosen {
        forebay_limits::keep_own_limit();
    }
    let others = |host_bytes, feeding| other_bytes(program, machine, host_bytes, feeding);
    if others(host_bytes, Feeding::OnHost)? + in_core_bytes <= limit.bytes {
        check_planning(&in_core, machine, limit, peak_before_bytes)?;
        count_reserved(&mut in_core, machine.reserved_host_bytes());
        return Ok(in_core);
    }
    drop(in_core);
    // If inputs are written in place, the host holds only outputs, and those only if updates come after them.
    let has_updates = program.update_start < program.launches.len();
    let of_output = |named: &NamedOperand| named.operand.desc.total_size_bytes().next_multiple_of(HOST_ALIGNMENT_BYTES);
    let outputs_bytes = if has_updates { program.outputs.iter().map(of_output).sum() } else { 0 };
    let outputs_bytes = outputs_bytes.max(HOST_ALIGNMENT_BYTES);
    // What the process takes besides device memory. The first plan is expected to have its inputs written in place; after that, the
    // number is that of the plan before.
    let mut besides_bytes = others(outputs_bytes, Feeding::InPlace)?;
    if machine.may_simulate() && limit.bytes <= besides_bytes {
        let (limit_bytes, tensors_bytes, launch) = (limit.bytes, in_core_bytes, String::new());
        return Err(Error::MemoryLimit { limit_bytes, tensors_bytes, launch, other_bytes: besides_bytes });
    }
    loop {
        let within = |other_bytes| PlanOptions {
            device_budget_bytes: Some(limit.bytes.saturating_sub(other_bytes).max(1)),
            // Finding the smallest budget takes as long as several plans. If spilling or a simulated device is tried next, this error is
            // not reported.
            names_least: !machine.may_simulate() && !machine.spills(),
            ..plain.clone()
        };
        let one_pool = PlanOptions { one_pool: true, ..within(besides_bytes) };
        let planned = match plan_in_groups(program, groups, &one_pool, limits, costs) {
            Err(PlanError::DeviceBudget { .. }) if machine.spills() => {
                let on_host = within(others(host_bytes, Feeding::OnHost)?);
                let spilling = PlanOptions { spill: true, host_budget_bytes: Some(host_bytes), ..on_host };
                plan_in_groups(program, groups, &spilling, limits, costs)
            }
            planned => planned,
        };
        let mut plan = match planned {
            Ok(plan) => plan,
            Err(error) => {
                let least_bytes = match machine.spills() {
                    true => others(host_bytes, Feeding::OnHost)?,
                    false => others(outputs_bytes, Feeding::InPlace)?,
                };
                // The lowest limit that the error names must also suffice for the next process.
                return Err(refused(error, limit, least_bytes + MEASURED_STEP_BYTES, peak_before_bytes));
            }
        };
        // Planning itself takes memory, which an allocator may keep.
        let plan_others_bytes = others(plan.statistics.host_bytes, Feeding::of(&plan))?;
        if plan_others_bytes.saturating_add(plan.statistics.device_peak_bytes) <= limit.bytes {
            check_planning(&plan, machine, limit, peak_before_bytes)?;
            count_reserved(&mut plan, machine.reserved_host_bytes());
            return Ok(plan);
        }
        besides_bytes = plan_others_bytes;
    }
}

/// Returns the limit for a step that would take these bytes of tensors without one: the given limit, or the free memory if none was given
/// and the step would take more; `None` if no limit is needed.
fn limit(
    program: &Program,
    machine: &LimitedDevice,
    host_bytes: u64,
    in_core_bytes: u64,
) -> Result<Option<ProcessLimit>, Error> {
    let given = machine.options.memory.memory_limit;
    let unlimited_bytes = match other_bytes(program, machine, host_bytes, Feeding::OnHost) {
        Ok(other_bytes) => other_bytes.saturating_add(in_core_bytes),
        // Without a limit, nothing needs to be known.
        Err(_) if given.is_none() => return Ok(None),
        Err(error) => return Err(error),
    };
    let bytes = match given {
        Some(MemoryLimit::Size(size)) => Some(size.resolve(unlimited_bytes)),
        Some(MemoryLimit::OfFree(percent)) => {
            let free_bytes = free_bytes(machine).ok_or_else(not_known)?;
            Some(MemorySize::Percent(percent).resolve(free_bytes))
        }
        Some(MemoryLimit::Unlimited) => None,
        None => free_bytes(machine).filter(|&free_bytes| free_bytes < unlimited_bytes),
    };
    Ok(bytes.map(|bytes| ProcessLimit { bytes, unlimited_bytes, chosen: given.is_none() }))
}

/// Returns how much the process may take of the machine, its control groups and resource limits, including what it already has, less what
/// has to stay free. What is available is divided equally among the processes on this machine. Pages of files that the process has are not
/// among what is available now, but may be counted for others.
fn free_bytes(machine: &LimitedDevice) -> Option<u64> {
    let available_bytes = forebay_limits::share_bytes(Use::Shared, machine.processes_here())?;
    let resident = forebay_limits::resident()?;
    Some(resident.now_bytes.saturating_sub(resident.file_bytes).saturating_add(available_bytes))
}

/// Adds host memory that is taken whatever the plan is to the plan's own from here on, so that the reported numbers are what a budget has
/// to cover.
pub(crate) fn count_reserved(plan: &mut Plan, reserved_bytes: u64) {
    let statistics = &mut plan.statistics;
    statistics.host_bytes = statistics.host_bytes.saturating_add(reserved_bytes);
    statistics.host_budget_bytes = statistics.host_budget_bytes.map(|bytes| bytes.saturating_add(reserved_bytes));
}

/// Checks that planning itself has stayed within a limit that was given: for a small model of many launches, it can take more memory than a
/// step. Once steps have run, it is too late for that ([`has_room_to_plan`]).
///
/// # Errors
/// Fails if planning has exceeded the limit.
fn check_planning(
    plan: &Plan,
    machine: &LimitedDevice,
    limit: ProcessLimit,
    peak_before_bytes: u64,
) -> Result<(), Error> {
    let peak_bytes = peak_bytes();
    // A peak above the limit before planning says nothing about planning: the caller's code runs in this process, too.
    let is_exceeded = peak_before_bytes <= limit.bytes && limit.bytes < peak_bytes;
    if limit.chosen || !is_exceeded || machine.device.usage().heap_bytes > 0 {
        return Ok(());
    }
    let (tensors_bytes, launch) = (plan.statistics.device_peak_bytes, String::new());
    let other_bytes = other_bytes_at(peak_bytes, tensors_bytes);
    Err(Error::MemoryLimit { limit_bytes: limit.bytes, tensors_bytes, launch, other_bytes })
}

/// Returns what a process like this one needs besides tensors if this is its peak with planning.
fn other_bytes_at(peak_bytes: u64, tensors_bytes: u64) -> u64 {
    peak_bytes.saturating_sub(tensors_bytes) + MEASURED_STEP_BYTES
}

/// Returns the most memory that the process has had; 0 if the system does not report it.
fn peak_bytes() -> u64 {
    forebay_limits::resident().map_or(0, |resident| resident.peak_bytes)
}

/// Returns why there is no plan, in terms of the process. If planning has taken more memory than the process had before, the next process
/// needs it, too.
fn refused(error: PlanError, limit: ProcessLimit, other_bytes: u64, peak_before_bytes: u64) -> Error {
    match error {
        PlanError::DeviceBudget { minimum_bytes: tensors_bytes, launch, .. } => {
            let for_planning_bytes = match peak_bytes() {
                peak_bytes if peak_bytes > peak_before_bytes => other_bytes_at(peak_bytes, tensors_bytes),
                _ => 0,
            };
            let other_bytes = other_bytes.max(for_planning_bytes);
            match limit.chosen {
                true => Error::FreeMemory { free_bytes: limit.bytes, tensors_bytes, launch, other_bytes },
                false => Error::MemoryLimit { limit_bytes: limit.bytes, tensors_bytes, launch, other_bytes },
            }
        }
        error => Error::Plan(error),
    }
}

/// Returns the error for a system that does not count memory.
fn not_known() -> Error {
    let reason = "this system does not report how much memory a process uses or how much is free; set budgets instead of a limit";
    Error::Option { reason: reason.to_string() }
}

/// Returns the number of bytes of named operands.
fn size_bytes(operands: &[NamedOperand]) -> u64 {
    operands.iter().map(|named| named.operand.desc.total_size_bytes()).sum()
}

/// Returns the number of bytes of outputs that the caller holds at once. A training step shows its gradients one after the other, so only
/// the largest of them counts.
fn taken_bytes(program: &Program) -> u64 {
    let bytes = |named: &&NamedOperand| named.operand.desc.total_size_bytes();
    let has_updates = program.update_start < program.launches.len();
    let (shown, others): (Vec<&NamedOperand>, Vec<&NamedOperand>) =
        program.outputs.iter().partition(|named| has_updates && named.name.starts_with(GRADIENT_PREFIX));
    others.iter().map(bytes).sum::<u64>() + shown.iter().map(bytes).max().unwrap_or(0)
}

/// Returns the number of bytes that the process takes besides tensors on the device.
fn other_bytes(program: &Program, machine: &LimitedDevice, host_bytes: u64, feeding: Feeding) -> Result<u64, Error> {
    // While a plan is on the device, what it holds cannot be told apart from the rest.
    let is_idle = machine.device.usage().heap_bytes == 0;
    let is_limited = machine.options.memory.memory_limit.is_some() || machine.process_limit().is_some();
    if is_limited {
        // The memory that planning took is not needed again.
        forebay_device::process::give_back();
    }
    let now_bytes = || forebay_limits::resident().ok_or_else(not_known).map(|resident| resident.now_bytes);
    let measured = match is_idle {
        true => {
            let waiting_bytes = machine.waiting_bytes.load(Ordering::Relaxed);
            now_bytes()?.saturating_sub(waiting_bytes).next_multiple_of(MEASURED_STEP_BYTES)
        }
        false => 0,
    };
    let before = if is_limited { machine.process_bytes.fetch_max(measured, Ordering::Relaxed) } else { 0 };
    let measured = measured.max(before);
    if is_idle {
        note_planning(machine);
    }
    let batches = feeding.batches_bytes(program) + OUTPUTS * taken_bytes(program);
    Ok(measured + host_bytes + machine.reserved_host_bytes() + batches + SLACK_BYTES)
}

/// Records what planning took temporarily, which is what the process no longer has.
fn note_planning(machine: &LimitedDevice) {
    if let Some(resident) = forebay_limits::resident() {
        let passing_bytes = resident.peak_bytes.saturating_sub(resident.now_bytes);
        machine.planning_bytes.fetch_max(passing_bytes, Ordering::Relaxed);
    }
}

/// Returns `true` if the limit on the process leaves room for planning again while a plan is on the device.
pub(crate) fn has_room_to_plan(machine: &LimitedDevice) -> bool {
    let Some((limit, resident)) = machine.process_limit().zip(forebay_limits::resident()) else { return true };
    // Planning with measured durations may take somewhat more memory than with estimates.
    let planning_bytes = machine.planning_bytes.load(Ordering::Relaxed).saturating_mul(3) / 2;
    resident.now_bytes.saturating_add(planning_bytes) <= limit.bytes
}

/// Returns the bytes that the limit leaves besides a plan, and the bytes that it lacks; `None` without a limit.
fn left_and_lacking(program: &Program, plan: &Plan, machine: &LimitedDevice) -> Option<(u64, u64)> {
    let limit = machine.process_limit()?;
    // The plan's host bytes include what is reserved.
    let host_bytes = plan.statistics.host_bytes.saturating_sub(machine.reserved_host_bytes());
    let other_bytes = other_bytes(program, machine, host_bytes, Feeding::of(plan)).ok()?;
    let taken_bytes = other_bytes.saturating_add(plan.statistics.device_peak_bytes);
    Some((limit.bytes.saturating_sub(taken_bytes), taken_bytes.saturating_sub(limit.bytes)))
}

/// Returns the number of bytes that a data set may keep of its samples: a batch, which is already counted, and what the limit leaves;
/// `None` without a limit.
pub(crate) fn kept_bytes(program: &Program, plan: &Plan, machine: &LimitedDevice) -> Option<u64> {
    let (left_bytes, _) = left_and_lacking(program, plan, machine)?;
    Some(kept_batch_bytes(&program.inputs) + left_bytes)
}

/// Returns `true` if the process has grown so much since the plan was made that the limit is too small for both.
pub(crate) fn is_exceeded(program: &Program, plan: &Plan, machine: &LimitedDevice) -> bool {
    left_and_lacking(program, plan, machine).is_some_and(|(_, lacking_bytes)| lacking_bytes > 0)
}
