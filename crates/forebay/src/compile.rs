//! Compiles a graph into a plan: lowering, fusion, workspace, budget. Also what a session or trainer keeps of the result.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use forebay_base::Kernel;
use forebay_memory::size::MemorySize;
use forebay_model::lower::{LoweringOptions, lower_with};
use forebay_model::program::{self, Program, Role};
use forebay_model::tensor::Contents;
use forebay_model::{Graph, Tensor, TensorType, ValueId};
use forebay_plan::accumulate::{accumulate, count_positions};
use forebay_plan::check::check_parts;
use forebay_plan::cost::Costs;
use forebay_plan::distribute::{Request, SharedWork, distribute};
use forebay_plan::fuse::{fuse, fuse_functions};
use forebay_plan::orders::{Groups, Orders};
use forebay_plan::plan::{MemoryKind, Statistics};
use forebay_plan::saved_costs::Unknown;
use forebay_plan::{
    DeviceBudgetSetting, Plan, PlanError, PlanOptions, SavedCosts, SharedLayout, choose_groups, costs_of_parts, page,
    plan_in_groups, smallest_budget, update_on_host,
};
use forebay_runtime::{PagedOptions, StepTimes};

use crate::continued_search::{ContinuedSearch, Found, SearchRequest};
use crate::error::Error;
use crate::forecast::{Forecast, Replan};
use crate::machine::LimitedDevice;
use crate::options::MemoryLimit;
use crate::process_memory;
use crate::runner::{Runner, Step};
use crate::shards::Shards;
use crate::tensor_info::TensorInfo;
use crate::weights::{Block, Weights};

/// The approximate size in bytes of a launch in a program, with its operands.
const LAUNCH_BYTES: usize = 2 << 10;
/// The approximate size in bytes of a command in a plan.
const COMMAND_BYTES: usize = 512;

/// A graph that is ready to run.
pub(crate) struct Compiled {
    /// The plan, or what managed memory runs. The statistics of a plan that needs no budget leave out the smallest budget.
    pub(crate) step: Step,
    /// The plan's statistics with the smallest budget, once somebody has asked for them.
    statistics: OnceLock<Statistics>,
    /// The plan with these statistics, once somebody has asked for it.
    stated: OnceLock<Plan>,
    /// The program that was planned, without the contents of its buffers.
    program: Arc<Program>,
    /// The order in which the program's launches are planned, now and when it is planned again.
    groups: Groups,
    /// The search for a better plan that continues meanwhile.
    search: Option<ContinuedSearch>,
    /// What the plan expects of the machine.
    forecast: Forecast,
    /// The launches that the given costs do not cover.
    unknown: Option<Unknown>,
    /// The inputs that the caller feeds, whether or not the plan uses them.
    pub(crate) inputs: Vec<TensorInfo>,
    /// The outputs that the caller gets.
    pub(crate) outputs: Vec<TensorInfo>,
    /// The parameters and state that steps change, with their roles.
    pub(crate) changing: BTreeMap<String, (Role, TensorInfo)>,
    /// Initial contents of constants, parameters and state, by name.
    pub(crate) contents: BTreeMap<String, Contents>,
    /// For each input that is used as an index, the number of entries that it chooses from.
    pub(crate) index_limits: BTreeMap<String, u64>,
    /// The memory that the plan shares with other plans.
    pub(crate) shared: Vec<Arc<Block>>,
    /// For each input of which this process computes its share of the batch, the ranges of its samples.
    own_samples: BTreeMap<String, Vec<Range<u64>>>,
    /// For each parameter or state that is sharded, the elements of each process's slice.
    shards: BTreeMap<String, Vec<Range<u64>>>,
    /// The rank of this process.
    rank: usize,
    /// How launches are distributed among processes.
    pub(crate) shared_work: Option<SharedWork>,
}

/// How a batch is computed: by several processes, in several parts.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'a> {
    /// Inputs that have no samples along their first axis.
    pub(crate) unshared: &'a BTreeSet<String>,
    /// Constants that are sharded.
    pub(crate) sharded: &'a BTreeSet<String>,
    /// The number of elements in each block for which the optimizer's state has numbers; 1 if there are no such blocks.
    pub(crate) block_elements: u64,
    /// The number of parts in which each process's step goes through its samples, one after the other. With at most 1, it takes them all
    /// at once.
    pub(crate) parts: u64,
}

/// What the plans of a model at several sizes have in common.
pub(crate) struct Common {
    /// The weights, which can be placed in memory that all plans share.
    pub(crate) weights: Weights,
    /// The orders of launches.
    pub(crate) orders: Orders,
}

/// Plans a graph whose values all have types, with the given costs or with estimates. Initializers in `parameters` that the graph updates
/// are parameters. `common` holds what plans at other sizes share with this one. If several processes compute together and `batch` is given,
/// the batch is distributed among them.
///
/// # Errors
/// Fails if the graph cannot be lowered, the device cannot run a kernel, the costs are those of another program, or the budgets are too
/// small.
pub(crate) fn compile(
    graph: &Graph,
    parameters: &BTreeSet<ValueId>,
    machine: &LimitedDevice,
    given_costs: Option<&SavedCosts>,
    common: Option<&mut Common>,
    batch: Option<Batch>,
) -> Result<Compiled, Error> {
    let lowering = LoweringOptions { concatenate_in_place: machine.options.planning.fuse };
    let mut program = lower_with(graph, parameters, &lowering)?;
    let index_limits = index_limits(&program);
    let changing = program
        .persistent
        .iter()
        .map(|info| (info.name.clone(), (program.buffer(info.operand.buffer).role, resolved(info))))
        .collect();
    add_constants(&mut program)?;
    if machine.options.planning.fuse {
        program = fuse(program);
        if machine.device.limits().applies_functions {
            program = fuse_functions(program);
        }
    }
    let (inputs, outputs) =
        (program.inputs.iter().map(resolved).collect(), program.outputs.iter().map(resolved).collect());
    let mut parts = batch.as_ref().map_or(1, |batch| batch.parts);
    if parts > 1 {
        count_positions(&mut program);
    }
    let (mut own_samples, mut shards, mut shared_work) = (BTreeMap::new(), BTreeMap::new(), None);
    let samples = batch.as_ref().map(|batch| batch_inputs(&program, batch.unshared)).unwrap_or_default();
    if let Some((group, batch)) = machine.options.device.processes.as_ref().zip(batch) {
        let shard = machine.options.device.shard;
        let Batch { sharded, block_elements, .. } = batch;
        let request = Request { batch: &samples, shard, sharded, block_elements, parts };
        if let Some(distributed) = distribute(&program, request, (group.rank(), group.size())) {
            if distributed.parts > 1 {
                // Its launches go through the parts already.
                parts = 1;
            }
            (program, own_samples) = (distributed.program, distributed.inputs);
            (shards, shared_work) = (distributed.shards, Some(distributed.work));
        }
    }
    if parts > 1
        && let Some(accumulated) = accumulate(&program, &samples, parts)
    {
        if cfg!(debug_assertions) || machine.options.planning.check {
            check_parts(&program, &accumulated)?;
        }
        program = accumulated.program;
    }
    if program.update_start < program.launches.len() && machine.updates_on_host()? {
        update_on_host(&mut program);
    }
    program.set_workspace(|launch, reads, writes| machine.workspace(launch, reads, writes))?;
    let contents = program
        .persistent
        .iter()
        .filter_map(|info| Some((info.name.clone(), program.contents.get(&info.operand.buffer)?.clone())))
        .collect();
    let (costs, unknown) = machine.costs(&program, given_costs)?;
    let known = machine.alike.as_ref().and_then(|alike| alike.find(&program, &costs));
    let choose = || {
        if known.is_some() {
            return Ok(None);
        }
        let groups = choose_groups(&program, machine.options.planning.order, machine.device.limits(), &costs)?;
        Ok(groups.map(Arc::from))
    };
    let (weights, groups) = match common {
        Some(Common { weights, orders }) => (Some(weights), orders.of(&program, choose)?),
        None => (None, choose()?),
    };
    let proposal = weights.as_ref().and_then(|weights| weights.propose(&program, machine));
    let layout = proposal.as_ref().map(|proposal| &proposal.layout);
    let is_new = known.is_none();
    let step = match known {
        Some(plan) => Step::Planned(plan, None),
        None => step_within(&program, groups.as_deref(), machine, &costs, layout, PlannedFor::Running)?,
    };
    if let Some(alike) = machine.alike.as_ref().filter(|_| is_new) {
        alike.add(&program, &costs, step.plan());
    }
    let is_shared = |kind: MemoryKind| matches!(kind, MemoryKind::Shared(_));
    let shares = step.plan().memories.iter().any(|memory| is_shared(memory.kind));
    let shared = proposal.filter(|_| shares).map(|proposal| proposal.blocks).unwrap_or_default();
    if let Some(weights) = weights {
        weights.keep(&shared);
    }
    // Weights in files are needed when planning again.
    program.contents.retain(|_, contents| contents.is_in_file());
    Ok(Compiled {
        step,
        statistics: OnceLock::new(),
        stated: OnceLock::new(),
        forecast: Forecast::new(costs),
        unknown,
        inputs,
        outputs,
        changing,
        contents,
        index_limits,
        shared,
        own_samples,
        shards,
        rank: machine.options.device.processes.as_ref().map_or(0, |group| group.rank()),
        shared_work,
        program: Arc::new(program),
        groups,
        search: None,
    })
}

impl Compiled {
    /// Checks a step that has just run, and plans again if the machine is not what was expected. If it returns a report, the new plan has
    /// replaced the old one. Without a budget there is nothing to gain.
    ///
    /// # Errors
    /// Fails if the new plan breaks an invariant (a defect).
    pub(crate) fn watch(
        &mut self,
        runner: &Runner,
        times: StepTimes,
        machine: &LimitedDevice,
    ) -> Result<Option<Replan>, Error> {
        let (Runner::Planned(executor), Step::Planned(plan, spill_dir)) = (runner, &mut self.step) else {
            return Ok(None);
        };
        let searches_on = machine.searches_on() && plan.statistics.search_ended_early;
        let reason = self.forecast.watch(plan, executor, times, searches_on);
        if let Some(search) = &self.search {
            let reason = search.reason;
            let Found::Ended(mut new) = search.poll()? else { return Ok(None) };
            self.search = None;
            let replan = new.as_mut().and_then(|new| {
                process_memory::count_reserved(new, machine.reserved_host_bytes());
                // More may have been measured meanwhile.
                self.forecast.predict(new);
                self.forecast.compare(plan, new, reason, times)
            });
            if let Some(new) = new.filter(|_| replan.is_some()) {
                let step = Step::Planned(*new, spill_dir.clone());
                self.set_step(step);
            }
            return Ok(replan);
        }
        let Some(reason) = reason else { return Ok(None) };
        if plan.statistics.device_peak_bytes >= plan.statistics.in_core_peak_bytes {
            return Ok(None);
        }
        if !process_memory::has_room_to_plan(machine) {
            return Ok(None);
        }
        if searches_on {
            let request = SearchRequest {
                program: self.program.clone(),
                groups: self.groups.clone(),
                options: plan_options(machine, plan.statistics.in_core_peak_bytes, None, false),
                limits: machine.device.limits().clone(),
                costs: self.forecast.costs().clone(),
            };
            if let Ok(search) = ContinuedSearch::start(request, reason) {
                self.search = Some(search);
                return Ok(None);
            }
        }
        let costs = self.forecast.costs();
        let new = match step_within(&self.program, self.groups.as_deref(), machine, costs, None, PlannedFor::Comparing)
        {
            // The plan that is fastest with the measured durations may need more host memory.
            Err(error) if is_of_budgets(&error) => return Ok(None),
            // The step itself is done.
            Err(Error::Plan(PlanError::Stopped)) => return Ok(None),
            new => new?,
        };
        if machine.process_limit().is_some() {
            // The running plan and the next one need the limit for themselves.
            forebay_device::process::give_back();
        }
        let replan = self.forecast.compare(plan, new.plan(), reason, times);
        if replan.is_some() {
            self.set_step(new);
        }
        Ok(replan)
    }

    /// Returns the parameters and state of which each process keeps a slice.
    pub(crate) fn shards(&self, machine: &LimitedDevice) -> Shards {
        let whole = |(name, slices): (&String, &Vec<Range<u64>>)| {
            let (_, info) = self.changing.get(name)?;
            Some((name.clone(), TensorType::new(info.data_type, &info.shape), slices.clone()))
        };
        Shards::new(machine.options.device.processes.clone(), self.shards.iter().filter_map(whole))
    }

    /// Checks that each process keeps the same slices in the plan of another batch.
    ///
    /// # Errors
    /// Fails if the slices differ (a defect).
    pub(crate) fn check_shards(&self, other: &Compiled) -> Result<(), Error> {
        if self.shards == other.shards {
            return Ok(());
        }
        let reason = "a batch of this size would shard parameters or state differently from the first batch";
        Err(Error::Option {
            reason: format!("{reason} (a bug in Forebay); train without sharding, or with a single batch size"),
        })
    }

    /// Returns the type of what this process keeps of a parameter or of state: its slice, or the whole tensor.
    pub(crate) fn kept_type(&self, name: &str, whole: &TensorInfo) -> TensorType {
        let slice = self.shards.get(name).and_then(|slices| slices.get(self.rank));
        match slice {
            Some(slice) => TensorType::new(whole.data_type, &[slice.end - slice.start]),
            None => TensorType::new(whole.data_type, &whole.shape),
        }
    }

    /// Returns the samples of an input that this process is fed, or `None` if it is fed all.
    pub(crate) fn own_samples(&self, input: &str) -> Option<&[Range<u64>]> {
        self.own_samples.get(input).map(Vec::as_slice)
    }

    /// Returns the part of an input that this process is fed. Only training steps have several ranges of samples, and they use
    /// [`Compiled::own_share`].
    pub(crate) fn own_bytes<'a>(&self, input: &str, tensor: &'a Tensor) -> &'a [u8] {
        let (all, rows) = (tensor.bytes(), tensor.shape().first().copied().unwrap_or(1).max(1));
        let Some([own]) = self.own_samples(input) else { return all };
        let place = |row: u64| (all.len() as u64 / rows * row) as usize;
        &all[place(own.start)..place(own.end)]
    }

    /// Reduces the inputs of all processes to the parts that this process is fed.
    pub(crate) fn own_share(&self, mut fed: BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
        for (name, own) in &self.own_samples {
            if let Some(tensor) = fed.get_mut(name) {
                *tensor = tensor.rows(&own.iter().cloned().flatten().collect::<Vec<u64>>());
            }
        }
        fed
    }

    /// Returns the approximate number of bytes that it takes in memory, not counting what it has on a device.
    pub(crate) fn size_bytes(&self) -> usize {
        let plan = self.step.plan();
        self.program.launches.len() * LAUNCH_BYTES + plan.commands.len() * COMMAND_BYTES
    }

    /// Returns the plan as it was made: its statistics may lack the smallest budget.
    pub(crate) fn plan_as_made(&self) -> &Plan {
        self.step.plan()
    }

    /// Returns the plan, with the smallest budget in its statistics.
    pub(crate) fn plan(&self, machine: &LimitedDevice) -> &Plan {
        let plan = self.step.plan();
        if plan.statistics.minimum_budget_bytes > 0 {
            return plan;
        }
        self.stated.get_or_init(|| {
            let mut plan = plan.clone();
            plan.statistics = self.statistics(machine).clone();
            plan
        })
    }

    /// Returns the plan's statistics, with the smallest budget.
    pub(crate) fn statistics(&self, machine: &LimitedDevice) -> &Statistics {
        let statistics = &self.step.plan().statistics;
        if statistics.minimum_budget_bytes > 0 {
            return statistics;
        }
        self.statistics.get_or_init(|| {
            let mut statistics = statistics.clone();
            (statistics.minimum_budget_bytes, statistics.minimum_launch) =
                smallest_budget(&self.program, machine.device.limits(), self.forecast.costs());
            if machine.process_limit().is_some() {
                forebay_device::process::give_back();
            }
            statistics
        })
    }

    /// Replaces the plan.
    fn set_step(&mut self, step: Step) {
        (self.step, self.statistics, self.stated) = (step, OnceLock::new(), OnceLock::new());
    }

    /// Returns the predicted duration of a step in seconds, given what has been measured so far.
    pub(crate) fn predicted_seconds(&self) -> f64 {
        self.forecast.predicted_seconds(self.step.plan())
    }

    /// Returns the durations of the plan's launches, by label, from which it was made.
    pub(crate) fn costs_by_label(&self) -> Costs {
        costs_of_parts(self.forecast.costs(), &self.step.plan().shares)
    }

    /// Returns the costs from which the plan was made.
    pub(crate) fn costs(&self) -> SavedCosts {
        SavedCosts::new(&self.program, self.forecast.costs())
    }

    /// Returns the costs measured in the latest steps.
    pub(crate) fn measured_costs(&self) -> SavedCosts {
        SavedCosts::new(&self.program, &self.forecast.measured_costs())
    }

    /// Returns the launches that the costs in the options do not cover, so that they are estimated.
    pub(crate) fn unknown_costs(&self) -> Option<&Unknown> {
        self.unknown.as_ref()
    }

    /// Returns how many bytes of its samples a data set may keep, or `None` without a limit on the process.
    pub(crate) fn kept_bytes(&self, machine: &LimitedDevice) -> Option<u64> {
        process_memory::kept_bytes(&self.program, self.step.plan(), machine)
    }

    /// Returns whether the process has outgrown its limit if the plan runs.
    pub(crate) fn exceeds_limit(&self, machine: &LimitedDevice) -> bool {
        process_memory::is_exceeded(&self.program, self.step.plan(), machine)
    }

    /// Plans again within the machine's budgets as they are now.
    ///
    /// # Errors
    /// Fails if the budgets are too small; the plan is then unchanged.
    pub(crate) fn replan(&mut self, machine: &LimitedDevice) -> Result<(), Error> {
        let costs = self.forecast.costs();
        self.set_step(step_within(&self.program, self.groups.as_deref(), machine, costs, None, PlannedFor::Running)?);
        self.search = None;
        Ok(())
    }
}

/// Returns the inputs whose first axis is as long as that of the first input: the samples of a batch.
fn batch_inputs(program: &Program, unshared: &BTreeSet<String>) -> BTreeSet<String> {
    let samples = |info: &program::NamedOperand| info.shape.first().copied();
    let inputs = || program.inputs.iter().filter(|info| !unshared.contains(&info.name));
    let size = inputs().find_map(samples);
    inputs().filter(|info| samples(info) == size).map(|info| info.name.clone()).collect()
}

fn resolved(info: &program::NamedOperand) -> TensorInfo {
    TensorInfo { name: info.name.clone(), data_type: info.operand.desc.data_type(), shape: info.shape.clone() }
}

/// Makes each constant a persistent operand: in a plan, constants have backing locations, as parameters do. Names that lowering gave
/// twice are distinguished by the buffer's number.
fn add_constants(program: &mut Program) -> Result<(), Error> {
    let mut names: BTreeSet<String> = program.persistent.iter().map(|info| info.name.clone()).collect();
    let known: BTreeSet<program::BufferId> = program.persistent.iter().map(|info| info.operand.buffer).collect();
    for (&buffer, contents) in program.contents.iter().filter(|(buffer, _)| !known.contains(buffer)) {
        let mut name = program.buffer(buffer).name.clone();
        if names.contains(&name) {
            name = format!("{name}#{}", buffer.0);
        }
        names.insert(name.clone());
        let desc =
            contents.ty().packed().map_err(|error| Error::Option { reason: format!("constant '{name}': {error}") })?;
        let operand = program::Operand { buffer, offset_bytes: 0, desc };
        program.persistent.push(program::NamedOperand { name, shape: contents.shape().to_vec(), operand });
    }
    Ok(())
}

/// Returns whether a plan was refused because a budget or limit is too small.
fn is_of_budgets(error: &Error) -> bool {
    let of_plan = matches!(error, Error::Plan(PlanError::HostBudget { .. } | PlanError::DeviceBudget { .. }));
    of_plan || matches!(error, Error::MemoryLimit { .. } | Error::FreeMemory { .. })
}

/// Returns the same error, which names the setting that the budget for device memory comes from.
fn naming_setting(mut error: PlanError, machine: &LimitedDevice) -> PlanError {
    if let PlanError::DeviceBudget { setting: setting @ DeviceBudgetSetting::DeviceMemory, .. } = &mut error
        && machine.options.memory.simulate_device.is_some()
    {
        *setting = DeviceBudgetSetting::SimulatedDevice;
    }
    error
}

/// Returns the options for planning a step within the budgets. Budgets given as percentages are percentages of `in_core_peak_bytes`.
fn plan_options(
    machine: &LimitedDevice,
    in_core_peak_bytes: u64,
    shared: Option<&SharedLayout>,
    brief: bool,
) -> PlanOptions {
    let options = &machine.options.memory;
    let resolve = |size: Option<MemorySize>| size.map(|size| size.resolve(in_core_peak_bytes));
    let reserved_bytes = machine.reserved_host_bytes();
    PlanOptions {
        device_budget_bytes: resolve(options.device_memory),
        host_budget_bytes: resolve(options.host_memory).map(|bytes| bytes.saturating_sub(reserved_bytes)),
        spill: machine.spills(),
        lends: machine.lends(),
        check: machine.options.planning.check || cfg!(debug_assertions),
        shared: shared.cloned(),
        stop: machine.options.planning.stop.clone(),
        brief,
        omits_minimum: true,
        ..PlanOptions::default()
    }
}

/// What a step is planned for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PlannedFor {
    /// To run. If a search goes on while it runs, it is planned with a brief one.
    Running,
    /// To be compared with the plan that runs. The error for a limit that cannot be met then does not name the least that can, which takes
    /// as long to find as several plans.
    Comparing,
}

/// Plans within the budgets. A percentage of the peak requires the unlimited plan first.
fn step_within(
    program: &Program,
    groups: Option<&[Vec<usize>]>,
    machine: &LimitedDevice,
    costs: &Costs,
    shared: Option<&SharedLayout>,
    planned_for: PlannedFor,
) -> Result<Step, Error> {
    let runs = planned_for == PlannedFor::Running;
    let (options, limits) = (&machine.options.memory, machine.device.limits());
    if machine.limits_process() {
        match process_memory::plan(program, groups, machine, costs, shared, runs) {
            Err(Error::MemoryLimit { .. }) if machine.may_simulate() => machine.simulate(),
            plan => return Ok(Step::Planned(plan?, options.spill_dir.clone())),
        }
    }
    if !machine.simulates() && !matches!(options.memory_limit, None | Some(MemoryLimit::Unlimited)) {
        return Err(process_memory::refusal(machine)?);
    }
    let shares = [options.device_memory, options.host_memory];
    let in_core_peak_bytes = if shares.iter().any(|size| matches!(size, Some(MemorySize::Percent(_)))) {
        let unlimited = PlanOptions { omits_minimum: true, ..PlanOptions::default() };
        let own_bytes = plan_in_groups(program, groups, &unlimited, limits, costs)?.statistics.in_core_peak_bytes;
        machine.stage_bytes.fetch_max(own_bytes, Ordering::Relaxed).max(own_bytes)
    } else {
        0
    };
    let plan_options = plan_options(machine, in_core_peak_bytes, shared, runs && machine.searches_on());
    let host_bytes = options.host_memory.map(|size| size.resolve(in_core_peak_bytes));
    let reserved_bytes = machine.reserved_host_bytes();
    if let Some(strategy) = options.strategy()? {
        let mut paging = page(program, plan_options.device_budget_bytes, limits, costs)
            .map_err(|error| naming_setting(error, machine))?;
        if in_core_peak_bytes > 0 {
            // In every mode, percentages are of what the plan takes.
            paging.plan.statistics.in_core_peak_bytes = in_core_peak_bytes;
        }
        let least_bytes = paging.unit_bytes.saturating_add(reserved_bytes);
        if let (Some(budget_bytes), Some(_)) = (host_bytes, &options.spill_dir)
            && budget_bytes < least_bytes
        {
            return Err(Error::Option {
                reason: format!(
                    "a host budget of {budget_bytes} bytes is too small for managed memory: units of {} bytes pass \
                         through it on their way to disk, and buffers take {reserved_bytes} bytes (pass at least \
                         --host-memory {}KiB)",
                    paging.unit_bytes,
                    least_bytes.div_ceil(1024)
                ),
            });
        }
        process_memory::count_reserved(&mut paging.plan, reserved_bytes);
        let (growth, spill_dir) = (options.growth, options.spill_dir.clone());
        let host_bytes = plan_options.host_budget_bytes;
        return Ok(Step::Paged(paging, PagedOptions { strategy, growth, host_bytes, spill_dir }));
    }
    let mut plan =
        plan_in_groups(program, groups, &plan_options, limits, costs).map_err(|error| match (error, host_bytes) {
            (PlanError::HostBudget { needed_bytes, spilled, .. }, Some(budget_bytes)) => {
                let (needed_bytes, buffers_bytes) = (needed_bytes + reserved_bytes, reserved_bytes);
                Error::Plan(PlanError::HostBudget { budget_bytes, needed_bytes, spilled, buffers_bytes })
            }
            (error, _) => Error::Plan(naming_setting(error, machine)),
        })?;
    process_memory::count_reserved(&mut plan, reserved_bytes);
    Ok(Step::Planned(plan, options.spill_dir.clone()))
}

/// Returns the inputs that are indices of a gather, directly or after a cast, with the number of entries that they choose from.
fn index_limits(program: &Program) -> BTreeMap<String, u64> {
    let mut sources: BTreeMap<program::BufferId, String> =
        program.inputs.iter().map(|info| (info.operand.buffer, info.name.clone())).collect();
    let mut limits = BTreeMap::new();
    for launch in &program.launches {
        if let (Kernel::Cast(_), [from], [to]) = (&launch.kernel, launch.reads.as_slice(), launch.writes.as_slice())
            && let Some(name) = sources.get(&from.buffer).cloned()
        {
            sources.insert(to.buffer, name);
        }
        let Some((indices, limit)) = launch.index_limit() else { continue };
        let Some(name) = launch.reads.get(indices).and_then(|indices| sources.get(&indices.buffer)) else { continue };
        limits.entry(name.clone()).and_modify(|known: &mut u64| *known = limit.min(*known)).or_insert(limit);
    }
    limits
}
