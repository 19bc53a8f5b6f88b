//! A limit on the memory of the whole process, for devices whose memory is the host's.
//!
//! The memory of a process holds tensors, which the plan counts, and other things, which it does not: the program, the model's description,
//! batches, and what an allocator keeps. The latter are measured once a first plan has been made, and the plan gets the rest. There is one
//! pool: moving data within it frees nothing, so what does not fit is recomputed. Only a disk can take bytes away. If no limit is given, a
//! step that would take more than is free gets the free memory as its limit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

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
/// What an allocator, stacks and file buffers may take beyond what was measured.
const ALLOCATOR_SLACK_BYTES: u64 = 4 << 20;
/// The memory that steps may take for the program's code and constants, as a part of the size of the code. The system reads 64 KiB around each
/// page that is used, so it is more than what is used: at the peak of a U-Net with validation, 39 % of the code was in memory, and constants
/// of 8 % of its size (a development build, `/proc/PID/smaps`).
const CODE_IN_MEMORY_PERCENT: u64 = 46;
/// The size of the program's code if the system does not say.
const CODE_BYTES: u64 = 22 << 20;
/// Measurements are rounded up to a multiple of this, so that they stay the same after small changes. The lowest limit that an error names
/// is larger than was measured by as much, because it must also suffice for the next process.
const MEASURED_STEP_BYTES: u64 = 1 << 20;

/// The time between two looks at the memory of the process.
const LOOK_EVERY: Duration = Duration::from_millis(1);

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
/// Fails if the limit cannot be met; the error names the lowest limit that can, or what everything takes unless `names_least`: finding the
/// lowest takes as long as several plans.
pub(crate) fn plan(
    program: &Program,
    groups: Option<&[Vec<usize>]>,
    machine: &LimitedDevice,
    costs: &Costs,
    shared: Option<&SharedLayout>,
    names_least: bool,
) -> Result<Plan, Error> {
    let (options, limits) = (&machine.options, machine.device.limits());
    let peak_before_bytes = peak_bytes();
    let check = options.planning.check || cfg!(debug_assertions);
    let stop = options.planning.stop.clone();
    let plain = PlanOptions { check, omits_minimum: true, stop, ..PlanOptions::default() };
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
    let others = |host_bytes, feeding, spills| other_bytes(program, machine, host_bytes, feeding, spills);
    let planning = Planning { limit, peak_before_bytes };
    let need = |tensors_bytes, launch, other_bytes| {
        let planning_bytes = planning.peak_bytes();
        Need { tensors_bytes, launch, other_bytes, planning_bytes }
    };
    let in_core_need = need(in_core_bytes, String::new(), others(host_bytes, Feeding::OnHost, false)?);
    if in_core_need.step_bytes() <= limit.bytes {
        planning.check(machine, in_core_need, None)?;
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
    let mut besides_bytes = others(outputs_bytes, Feeding::InPlace, false)?;
    if machine.may_simulate() && limit.bytes <= besides_bytes {
        let (limit_bytes, tensors_bytes, launch) = (limit.bytes, in_core_bytes, String::new());
        let (other_bytes, spilled) = (besides_bytes, machine.spills());
        return Err(Error::MemoryLimit { limit_bytes, tensors_bytes, launch, other_bytes, spilled });
    }
    let in_one_pool = |budget_bytes: u64, names_least| {
        let device_budget_bytes = Some(budget_bytes.max(1));
        let options = PlanOptions { device_budget_bytes, one_pool: true, names_least, ..plain.clone() };
        plan_in_groups(program, groups, &options, limits, costs)
    };
    // If a simulated device is tried next, no error is reported.
    let names_least = names_least && !machine.may_simulate();
    loop {
        let budget_bytes = limit.bytes.saturating_sub(besides_bytes);
        let planned = match in_one_pool(budget_bytes, names_least && !machine.spills()) {
            Err(PlanError::DeviceBudget { .. }) if machine.spills() => {
                let others_bytes = others(host_bytes, Feeding::OnHost, true)?;
                let device_budget_bytes = Some(limit.bytes.saturating_sub(others_bytes).max(1));
                let host_budget_bytes = Some(host_bytes);
                let spilling = PlanOptions { device_budget_bytes, host_budget_bytes, spill: true, ..plain.clone() };
                plan_in_groups(program, groups, &spilling, limits, costs)
            }
            planned => planned,
        };
        let mut plan = match planned {
            Ok(plan) => plan,
            Err(PlanError::DeviceBudget { .. }) if !names_least => {
                return Err(refused(limit, machine.spills(), in_core_need, None));
            }
            Err(PlanError::DeviceBudget { minimum_bytes, launch, setting, .. }) => {
                let mut needs = Vec::new();
                let smallest = match machine.spills() {
                    true => {
                        needs.push(need(minimum_bytes, launch, others(host_bytes, Feeding::OnHost, true)?));
                        // A small model needs less if it does not spill, because nothing passes through the disk's buffers.
                        in_one_pool(1, true)
                    }
                    false => Err(PlanError::DeviceBudget { budget_bytes, minimum_bytes, launch, setting }),
                };
                if let Err(PlanError::DeviceBudget { minimum_bytes, launch, .. }) = smallest {
                    // The next process makes this plan, without a search for the smallest budget and what that leaves in memory.
                    forebay_device::process::give_back();
                    let (planned, planning_bytes) = peak_during(|| in_one_pool(minimum_bytes, true));
                    let others_bytes = match planned {
                        Ok(plan) => others(plan.statistics.host_bytes, Feeding::of(&plan), false)?,
                        Err(_) => others(outputs_bytes, Feeding::InPlace, false)?,
                    };
                    let planning_bytes = planning_bytes.max(in_core_need.planning_bytes);
                    needs.push(Need { planning_bytes, ..need(minimum_bytes, launch, others_bytes) });
                }
                return Err(refused(limit, machine.spills(), in_core_need, needs));
            }
            Err(error) => return Err(Error::Plan(error)),
        };
        // Planning itself takes memory, which an allocator may keep.
        let spills = plan.statistics.spill_bytes > 0;
        let plan_others_bytes = others(plan.statistics.host_bytes, Feeding::of(&plan), spills)?;
        let plan_need = need(plan.statistics.device_peak_bytes, String::new(), plan_others_bytes);
        if plan_need.step_bytes() <= limit.bytes {
            planning.check(machine, in_core_need, Some(plan_need))?;
            count_reserved(&mut plan, machine.reserved_host_bytes());
            return Ok(plan);
        }
        besides_bytes = plan_others_bytes;
    }
}

/// What a plan needs of the process.
struct Need {
    /// The bytes of tensors on the device.
    tensors_bytes: u64,
    /// The launch that needs the most of them; empty if it is not known.
    launch: String,
    /// What the process takes besides tensors while steps run.
    other_bytes: u64,
    /// The most that the process took for planning; 0 if that is not known.
    planning_bytes: u64,
}

impl Need {
    /// Returns what the process takes while steps run.
    fn step_bytes(&self) -> u64 {
        self.tensors_bytes.saturating_add(self.other_bytes)
    }

    /// Returns the lowest limit that is enough for planning and steps of the next process.
    fn limit_bytes(&self) -> u64 {
        self.step_bytes().max(self.planning_bytes).saturating_add(MEASURED_STEP_BYTES)
    }
}

/// The memory that planning itself takes within a limit: for a small model of many launches, more than a step.
struct Planning {
    limit: ProcessLimit,
    /// The peak of the process before planning.
    peak_before_bytes: u64,
}

impl Planning {
    /// Returns the peak of planning; 0 if it is not above the peak before, which may come from the caller's code.
    fn peak_bytes(&self) -> u64 {
        Some(peak_bytes()).filter(|&peak_bytes| peak_bytes > self.peak_before_bytes).unwrap_or(0)
    }

    /// Checks that planning has stayed within a limit that was given. Once steps have run, it is too late for that ([`has_room_to_plan`]).
    ///
    /// # Errors
    /// Fails if planning has exceeded the limit. The error names the smallest of these needs.
    fn check(&self, machine: &LimitedDevice, in_core: Need, of_plan: Option<Need>) -> Result<(), Error> {
        let is_exceeded = self.peak_before_bytes <= self.limit.bytes && self.limit.bytes < peak_bytes();
        if self.limit.chosen || !is_exceeded || machine.device.usage().heap_bytes > 0 {
            return Ok(());
        }
        Err(refused(self.limit, machine.spills(), in_core, of_plan))
    }
}

/// Returns the error for a limit that is too small for a plan that keeps everything and for others; it names the smallest need.
fn refused(limit: ProcessLimit, spilled: bool, in_core: Need, others: impl IntoIterator<Item = Need>) -> Error {
    let smaller = |a: Need, b: Need| if b.limit_bytes() < a.limit_bytes() { b } else { a };
    let least = others.into_iter().fold(in_core, smaller);
    let (needed_bytes, is_planning) = (least.limit_bytes(), least.planning_bytes > least.step_bytes());
    let Need { tensors_bytes, launch, .. } = least;
    let launch = if is_planning { String::new() } else { launch };
    let other_bytes = needed_bytes.saturating_sub(tensors_bytes);
    match limit.chosen {
        true => Error::FreeMemory { free_bytes: limit.bytes, tensors_bytes, launch, other_bytes, spilled },
        false => Error::MemoryLimit { limit_bytes: limit.bytes, tensors_bytes, launch, other_bytes, spilled },
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
    let unlimited_bytes = match other_bytes(program, machine, host_bytes, Feeding::OnHost, false) {
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

/// Returns the most memory that the process has had; 0 if the system does not report it.
fn peak_bytes() -> u64 {
    forebay_limits::resident().map_or(0, |resident| resident.peak_bytes)
}

/// Sets a flag when it is dropped, even if work panics.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does work, and returns its result with the most memory that the process had meanwhile, in bytes; 0 if the system does not report it.
/// Unlike [`peak_bytes`], it does not include what came before. Peaks of less than about a millisecond may be missed.
fn peak_during<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let (has_ended, peak_bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    let look = || {
        let now_bytes = forebay_limits::resident().map_or(0, |resident| resident.now_bytes);
        peak_bytes.fetch_max(now_bytes, Ordering::Relaxed);
    };
    let result = thread::scope(|scope| {
        let _ended = Ended(&has_ended);
        let watch = || {
            while !has_ended.load(Ordering::Relaxed) {
                look();
                thread::sleep(LOOK_EVERY);
            }
        };
        // Without a thread, only the end is seen.
        let _ = thread::Builder::new().name("memory".to_string()).spawn_scoped(scope, watch);
        work()
    });
    look();
    (result, peak_bytes.into_inner())
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
fn other_bytes(
    program: &Program,
    machine: &LimitedDevice,
    host_bytes: u64,
    feeding: Feeding,
    spills: bool,
) -> Result<u64, Error> {
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
    let unused_bytes = if spills { 0 } else { machine.spill_buffer_bytes() };
    let reserved_bytes = machine.reserved_host_bytes().saturating_sub(unused_bytes);
    Ok(measured + host_bytes + reserved_bytes + batches + slack_bytes())
}

/// Returns what the process may take beyond what was measured and what is counted.
fn slack_bytes() -> u64 {
    let code_bytes = forebay_device::process::code_bytes().unwrap_or(CODE_BYTES);
    ALLOCATOR_SLACK_BYTES + code_bytes * CODE_IN_MEMORY_PERCENT / 100
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
    let spills = plan.statistics.spill_bytes > 0;
    let other_bytes = other_bytes(program, machine, host_bytes, Feeding::of(plan), spills).ok()?;
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    use forebay_model::lower::lower;
    use forebay_model::{infer, onnx};
    use forebay_plan::cost::estimate;
    use forebay_testing::onnx::builder::{FLOAT, GraphBuilder};

    use crate::options::EngineOptions;

    /// Naming the least takes as long as several plans. A step that is planned again while it runs has no use for it.
    #[test]
    fn a_refusal_names_the_least_only_if_it_is_asked_for() {
        let size = (1 << 20).to_string();
        let mut graph = GraphBuilder::new().input("x", FLOAT, &[&size]);
        for (from, to) in [("x", "a"), ("a", "b"), ("b", "c"), ("c", "d")] {
            graph = graph.node("Exp", &[from], &[to]);
        }
        for (one, other, sum) in [("d", "c", "e"), ("e", "b", "f"), ("f", "a", "y")] {
            graph = graph.node("Add", &[one, other], &[sum]);
        }
        let mut graph = onnx::read(&graph.output("y", FLOAT, &[&size]).build(), None).unwrap().graph;
        infer::infer(&mut graph, None).unwrap();
        let program = lower(&graph, &BTreeSet::new()).unwrap();
        let options = EngineOptions::default().memory_limit(MemoryLimit::Size(MemorySize::Bytes(1 << 20)));
        let machine = LimitedDevice::open(&options).unwrap();
        let costs = estimate(&program, machine.device.limits());
        let named = |names_least| match plan(&program, None, &machine, &costs, None, names_least) {
            Err(Error::MemoryLimit { tensors_bytes, .. }) => tensors_bytes,
            other => panic!("{:?}", other.map(|plan| plan.statistics)),
        };
        let (least_bytes, whole_bytes) = (named(true), named(false));
        assert!(least_bytes < whole_bytes, "{least_bytes} {whole_bytes}");
    }

    #[test]
    fn the_peak_of_work_is_that_of_the_work_alone() {
        let touch = |mib: usize| {
            let touched = vec![1u8; mib << 20];
            thread::sleep(50 * LOOK_EVERY);
            touched[touched.len() / 2]
        };
        assert_eq!(touch(256), 1);
        let before = forebay_limits::resident().unwrap();
        let (one, peak_bytes) = peak_during(|| touch(64));
        assert_eq!(one, 1);
        assert!(
            (before.now_bytes + (60 << 20)..before.now_bytes + (128 << 20)).contains(&peak_bytes),
            "{peak_bytes} {before:?}"
        );
        assert!(peak_bytes < before.peak_bytes, "{peak_bytes} {before:?}");
    }
}
