//! How many barriers plans need, compared with other ways to place them; and what they cost.
//!
//! ```text
//! cargo bench -p forebay --bench barriers -- [table|planning|gain] [MODEL.onnx|FOLDER]... [--output FILE.json]
//! ```
//!
//! - `table`: for each model, inference and training. Without models, those of the repository.
//! - `planning`: how long the passes take for a graph of 10,000 launches.
//! - `gain`: runs of a graph with parallel branches, as planned and with a barrier after every dispatch.
//!
//! All results go into one record.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::Device;
use forebay_base::kernel::{Activation, BinaryOp, UnaryOp};
use forebay_base::{Command, DataType, Kernel, StreamId, TensorDesc};
use forebay_bench_record::{Cell, Column, Record, Table};
use forebay_device::host::{HostDevice, HostOptions};
use forebay_model::program::{Buffer, BufferId, NamedOperand, Operand, Program, ProgramLaunch, Role};
use forebay_model::training::{Loss, Optimizer, TrainingOptions, training_graph};
use forebay_model::{infer, lower, onnx};
use forebay_plan::{LaunchOrder, Plan, PlanOptions, cost, fuse, plan};
use forebay_runtime::Executor;
use forebay_sync::{StepBoundary, insert_barriers};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let given = forebay_bench_record::arguments()?;
    let mut words = given.words.clone();
    let parts = ["table", "planning", "gain"];
    let chosen = words.first().filter(|word| parts.contains(&word.as_str())).cloned();
    if chosen.is_some() {
        words.remove(0);
    }
    let device = HostDevice::new(&HostOptions::default())?;
    let mut record =
        Record::new("barriers", "Barriers of plans", "cargo bench -p forebay --bench barriers --", &given.words);
    for part in parts.into_iter().filter(|part| chosen.as_deref().is_none_or(|chosen| chosen == *part)) {
        let table = match part {
            "table" => table(&device, &models(&words)?),
            "planning" => planning(&device)?,
            _ => gain()?,
        };
        record = record.with(table);
    }
    record.save(given.output.as_deref())?;
    Ok(())
}

/// Returns the models that the arguments name, searching folders; by default, those of the repository.
fn models(arguments: &[String]) -> Result<Vec<PathBuf>, Failure> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let own = ["testdata/golden", "crates/forebay-model/tests/data", "examples"].map(|folder| root.join(folder));
    let mut open: Vec<PathBuf> = match arguments {
        [] => own.to_vec(),
        given => given.iter().map(PathBuf::from).collect(),
    };
    let mut found = BTreeSet::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                open.push(entry?.path());
            }
        } else if path.extension().is_some_and(|extension| extension == "onnx") {
            found.insert(path);
        }
    }
    Ok(found.into_iter().collect())
}

/// Returns a model's program, compiled as the product does; for training, with the mean squared error and momentum, whatever the model's
/// purpose: the loss is one launch of many.
fn program(path: &Path, train: bool, device: &dyn Device) -> Result<Program, Failure> {
    let mut graph = onnx::read_file(path)?.graph;
    if !train {
        graph.constants = graph.initializers.keys().copied().collect();
    }
    infer::infer(&mut graph, None).or_else(|_| infer::infer(&mut graph, Some(8)))?;
    let program = if train {
        let options = TrainingOptions::new(
            Loss::MeanSquaredError,
            Optimizer::Sgd { learning_rate: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.0 },
        );
        let step = training_graph(&graph, &options)?;
        lower::lower(&step.graph, &step.parameters.into_iter().collect())?
    } else {
        lower::lower(&graph, &BTreeSet::new())?
    };
    let mut program = fuse::fuse(program);
    name_constants(&mut program)?;
    program.set_workspace(|launch, reads, writes| device.workspace_bytes(&launch.kernel, reads, writes))?;
    Ok(program)
}

/// Assigns backing locations to constants, as the product does.
fn name_constants(program: &mut Program) -> Result<(), Failure> {
    let known: BTreeSet<BufferId> = program.persistent.iter().map(|named| named.operand.buffer).collect();
    for (buffer, tensor) in std::mem::take(&mut program.contents).into_iter().filter(|(id, _)| !known.contains(id)) {
        let operand = Operand { buffer, offset_bytes: 0, desc: tensor.ty().packed()? };
        let name = format!("constant {}", buffer.0);
        program.persistent.push(NamedOperand { name, shape: tensor.shape().to_vec(), operand });
    }
    Ok(())
}

/// Returns a plan; with `split`, barriers become records and waits where the planner expects a gain.
fn planned(program: &Program, order: LaunchOrder, split: bool, device: &dyn Device) -> Result<Plan, Failure> {
    let options = PlanOptions { order, check: true, ..PlanOptions::default() };
    let mut costs = cost::estimate(program, device.limits());
    if !split {
        // Launches that fill the machine gain nothing from running concurrently.
        costs.launch_workers.fill(costs.workers);
    }
    Ok(plan(program, &options, device.limits(), &costs)?)
}

/// Returns the number of barriers of a tracker that knows buffers instead of bytes, with separate memory for each logical buffer: one
/// before every launch that touches a buffer written since the last barrier, or writes one that was read. This takes more memory than a
/// plan, and so never reuses a buffer that held something else before; with one buffer for all of a plan's memory, it would need a barrier
/// after every launch.
fn whole_buffer_barriers(program: &Program) -> usize {
    let (mut written, mut read) = (BTreeSet::new(), BTreeSet::new());
    let mut barriers = 0;
    for launch in &program.launches {
        let reads = || launch.reads.iter().map(|operand| operand.buffer);
        let writes = || launch.writes.iter().map(|operand| operand.buffer);
        let hazard = reads().any(|buffer| written.contains(&buffer))
            || writes().any(|buffer| written.contains(&buffer) || read.contains(&buffer));
        if hazard {
            barriers += 1;
            written.clear();
            read.clear();
        }
        read.extend(reads());
        written.extend(writes());
    }
    barriers
}

fn table(device: &dyn Device, models: &[PathBuf]) -> Table {
    let names = [
        "launches",
        "each dispatch",
        "whole buffers",
        "file order",
        "waits in file order",
        "reordered",
        "waits reordered",
    ];
    let columns = ["model", "step"].map(Column::text).into_iter().chain(names.map(Column::count));
    let columns = columns.chain([Column::count("fewest"), Column::number("peak", "MiB", 1)]);
    let mut table = Table::new("barriers", columns.collect::<Vec<_>>());
    for path in models {
        for (train, step) in [(false, "inference"), (true, "training")] {
            match program(path, train, device).and_then(|program| row(&program, device)) {
                Ok(figures) => table.print([vec![name(path).into(), step.into()], figures].concat()),
                Err(error) => {
                    let none = vec![Cell::Nothing; table.columns.len() - 3];
                    table.print([vec![name(path).into(), step.into(), format!("none: {error}").into()], none].concat());
                }
            }
        }
    }
    table
}

/// Returns the model's name: its file's, or its folder's if every folder has the same file.
fn name(path: &Path) -> String {
    let part = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let stem = part(path.file_stem());
    match stem.strip_prefix("model") {
        Some(rest) => format!("{}{rest}", part(path.parent().and_then(Path::file_name))),
        None => stem,
    }
}

fn row(program: &Program, device: &dyn Device) -> Result<Vec<Cell>, Failure> {
    let file = planned(program, LaunchOrder::File, false, device)?.statistics;
    let ours = planned(program, LaunchOrder::Barriers, false, device)?.statistics;
    let each = program.launches.len().saturating_sub(1);
    let (file_peak, peak) = (file.device_peak_bytes, ours.device_peak_bytes);
    assert!(peak <= file_peak, "reordering raised the peak from {file_peak} to {peak} bytes");
    let counts = [
        program.launches.len(),
        each,
        whole_buffer_barriers(program),
        file.barriers,
        file.waits,
        ours.barriers,
        ours.waits,
        ours.fewest_barriers,
    ];
    let peak = Cell::from(peak as f64 / f64::from(1 << 20));
    Ok(counts.map(Cell::from).into_iter().chain([peak]).collect())
}

/// Returns a graph of branches: `blocks` consecutive blocks, each of `branches` chains of `depth` kernels on tensors of `count` numbers,
/// which are added up at the end.
fn branchy(blocks: usize, branches: usize, depth: usize, count: u64) -> Result<Program, Failure> {
    let desc = TensorDesc::packed(DataType::Float32, &[count])?;
    let mut program = Program::default();
    let buffer = |program: &mut Program, role: Role| {
        let name = format!("b{}", program.buffers.len());
        program.buffers.push(Buffer { name, size_bytes: desc.total_size_bytes(), role });
        Operand { buffer: BufferId(program.buffers.len() as u32 - 1), offset_bytes: 0, desc: desc.clone() }
    };
    let launch = |program: &mut Program, kernel: Kernel, reads: &[&Operand], write: &Operand| {
        let name = format!("launch{}", program.launches.len());
        let reads = reads.iter().map(|&operand| operand.clone()).collect();
        let writes = vec![write.clone()];
        program.launches.push(ProgramLaunch::new(name, kernel, reads, writes));
    };
    let add = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };
    let mut value = buffer(&mut program, Role::Input);
    let named = |name: &str, operand: &Operand| NamedOperand {
        name: name.to_string(),
        shape: vec![count],
        operand: operand.clone(),
    };
    program.inputs.push(named("x", &value));
    for _ in 0..blocks {
        let mut ends = Vec::new();
        for _ in 0..branches {
            let mut end = value.clone();
            for _ in 0..depth {
                let next = buffer(&mut program, Role::Temporary);
                launch(&mut program, Kernel::Unary(UnaryOp::Tanh), &[&end], &next);
                end = next;
            }
            ends.push(end);
        }
        value = ends.swap_remove(0);
        for end in &ends {
            let sum = buffer(&mut program, Role::Temporary);
            launch(&mut program, add.clone(), &[&value, end], &sum);
            value = sum;
        }
    }
    program.update_start = program.launches.len();
    program.outputs.push(named("y", &value));
    Ok(program)
}

fn planning(device: &dyn Device) -> Result<Table, Failure> {
    let program = branchy(385, 4, 5, 4096)?;
    let columns = [
        Column::text("what"),
        Column::count("launches"),
        Column::number("time", "s", 4),
        Column::count("barriers, groups"),
    ];
    let mut table = Table::new("planning", columns);
    let launches = program.launches.len() + 1;
    let mut print = |what: String, seconds: f64, count: Option<usize>| {
        table.print([what.into(), launches.into(), seconds.into(), count.into()]);
    };
    for order in [LaunchOrder::File, LaunchOrder::Barriers] {
        let start = Instant::now();
        let options = PlanOptions { order, ..PlanOptions::default() };
        let plan = plan(&program, &options, device.limits(), &cost::estimate(&program, device.limits()))?;
        let (seconds, barriers) = (start.elapsed().as_secs_f64(), plan.statistics.barriers);
        print(format!("whole plan, {order:?} order"), seconds, Some(barriers));
        let work: Vec<Command> = plan.commands.iter().filter(|command| command.is_work()).cloned().collect();
        let start = Instant::now();
        insert_barriers(&plan.prologue, work, StepBoundary::HostJoin)?;
        print(format!("insert_barriers alone, {order:?} order"), start.elapsed().as_secs_f64(), None);
    }
    let live = forebay_plan::liveness::liveness(&program, false);
    let choice = forebay_plan::order::Choice { limit_bytes: u64::MAX, window: usize::MAX, lazy: false };
    let start = Instant::now();
    let groups = forebay_plan::order::group(&program, &live, choice);
    print("one grouping".to_owned(), start.elapsed().as_secs_f64(), Some(groups.len()));
    Ok(table)
}

/// Returns the plan with a barrier after every launch.
fn after_every_dispatch(plan: &Plan) -> Plan {
    let mut slow = plan.clone();
    slow.commands.clear();
    for (index, command) in plan.commands.iter().enumerate() {
        if index == plan.update_start {
            slow.update_start = slow.commands.len();
        }
        match command {
            Command::Barrier { stream: StreamId(0) } => {}
            Command::Launch { stream, .. } => {
                slow.commands.extend([command.clone(), Command::Barrier { stream: *stream }]);
            }
            _ => slow.commands.push(command.clone()),
        }
    }
    if plan.update_start >= plan.commands.len() {
        slow.update_start = slow.commands.len();
    }
    slow
}

/// Ways to run a graph.
const WAYS: [&str; 3] = ["after every dispatch", "whole barriers", "split barriers"];

fn gain() -> Result<Table, Failure> {
    const ROUNDS: usize = 60;
    let mut columns = ["branches", "numbers in a tensor", "launches"].map(Column::count).to_vec();
    for way in WAYS {
        columns.push(Column::number(way, "ms", 3).of("median"));
        columns.extend(["barriers", "waits"].map(|what| Column::count(format!("{way}: {what}"))));
        columns.push(Column::ratio(format!("{way}: ratio"), 2));
    }
    let mut table = Table::new("gain", columns);
    for (branches, count) in [(4, 1 << 8), (4, 1 << 12), (4, 1 << 16), (8, 1 << 12), (1, 1 << 12)] {
        let program = branchy(16, branches, 5, count)?;
        let mut executors = Vec::new();
        let mut shown = Vec::new();
        for way in WAYS {
            let device: Arc<dyn Device> = Arc::new(HostDevice::new(&HostOptions::default())?);
            let mut plan = planned(&program, LaunchOrder::Barriers, way == WAYS[2], &*device)?;
            if way == WAYS[0] {
                plan = after_every_dispatch(&plan);
            }
            let count = |wanted: fn(&Command) -> bool| plan.commands.iter().filter(|command| wanted(command)).count();
            let barriers = count(|command| matches!(command, Command::Barrier { .. }));
            let waits = count(|command| matches!(command, Command::Wait { .. }));
            shown.push([barriers, waits]);
            executors.push(Executor::new(device, plan, &BTreeMap::new())?);
        }
        let mut times: Vec<Vec<Duration>> = vec![Vec::new(); WAYS.len()];
        for _ in 0..ROUNDS {
            for (executor, times) in executors.iter_mut().zip(&mut times) {
                executor.write_input("x", &vec![0; 4 * count as usize])?;
                times.push(executor.run()?.total);
            }
        }
        let times = times.into_iter().map(|times| Cell::median(times.iter().map(|time| time.as_secs_f64() * 1e3)));
        let times: Vec<Cell> = times.collect();
        let first = times[0].number().unwrap_or(f64::NAN);
        let mut row: Vec<Cell> = vec![(branches as u64).into(), count.into(), program.launches.len().into()];
        for (time, counts) in times.into_iter().zip(shown) {
            let ratio = time.number().map(|time| time / first);
            row.extend([time, counts[0].into(), counts[1].into(), ratio.into()]);
        }
        table.print(row);
    }
    Ok(table)
}
