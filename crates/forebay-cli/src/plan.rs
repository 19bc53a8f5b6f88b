//! `forebay plan`: how a model would run, without running it.

use std::collections::BTreeSet;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};
use forebay::documents::{self, Unknown};
use forebay::format_bytes;
use forebay::{
    DeviceOptions, Dimension, Explanation, MachineDescription, MemoryLimit, Model, Network, Plan, PlanSearch,
    ProcessGroup, SavedCosts, Session, SessionOptions, Statistics, Trainer, TrainerOptions, check_plans, command_lines,
    memory_picture,
};
use serde_json::{self, Value};

use crate::arguments::{MemoryKind, PlanArguments, TrainingArguments, UpdatesArguments};
use crate::failure::Failure;
use crate::limits::tell_of_budget;
use crate::output;
use crate::processes::ShardKind;
use crate::progress::Waiting;
use crate::report::{Report, say_json};
use crate::scaling::Scaling;
use crate::training_options::training_options;

/// Rejects flags on the command line that only apply to training if the plan is not that of a training step.
///
/// # Errors
/// Names the first such flag.
pub fn refuse_training_flags(arguments: &PlanArguments, matches: &ArgMatches) -> Result<(), Failure> {
    if arguments.train {
        return Ok(());
    }
    let of_training = UpdatesArguments::augment_args(TrainingArguments::augment_args(Command::new("plan")));
    let is_misplaced = |arg: &&Arg| {
        let id = arg.get_id().as_str();
        let is_general = ["batch_size", "size"].contains(&id);
        !is_general && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    match of_training.get_arguments().find(is_misplaced).and_then(Arg::get_long) {
        Some(flag) => Err(Failure::Usage(format!("--{flag} only applies to a training step; add --train"))),
        None => Ok(()),
    }
}

/// Explains a plan.
///
/// # Errors
/// Fails if the model cannot run as specified, or if budgets are too small.
pub fn plan(arguments: &PlanArguments) -> Result<(), Failure> {
    if arguments.device.memory != MemoryKind::Planned {
        let reason = "only --memory planned has a plan; the other modes decide on moves while steps run, and `train` and `run` \
                      report them";
        return Err(Failure::Usage(reason.to_owned()));
    }
    for path in arguments.memory_svg.iter().chain(&arguments.ranks.trace) {
        output::check_writable(path)?;
    }
    let waiting = Waiting::new(&format!("planning {}", arguments.model.display()));
    let model = Model::from_file(&arguments.model)?;
    let mut engine = arguments.device.options(false);
    // A plan does not depend on how much memory is currently free.
    engine.memory.memory_limit.get_or_insert(MemoryLimit::Unlimited);
    engine.planning.search = PlanSearch::Whole;
    engine.device.machine = arguments.machine.as_deref().map(documents::machine).transpose()?;
    engine.planning.costs = arguments.costs.as_deref().map(documents::read_costs).transpose()?;
    let machine = engine.device.machine.clone();
    if arguments.train {
        let mut options = TrainerOptions::new(training_options(&arguments.training, 0)?);
        options.engine = engine;
        options.engine.planning.updates = arguments.updates.updates();
        options.batch_size = arguments.training.batch_size;
        options.sizes = arguments.training.size.iter().cloned().collect();
        let model = arguments.training.adapters.adapt(arguments.training.head.replace(model)?)?;
        arguments.training.gradients.add_layers(&model, &mut options.training)?;
        let alone = options.clone();
        options.engine.device.shard = ShardKind::shard(arguments.ranks.shard);
        let scaled = scaled(arguments, machine.as_ref(), &mut options.engine.device);
        let alone = scaled.and_then(|_| Trainer::new(model.clone(), alone).ok());
        let trainer = Trainer::new(model.clone(), options.clone())?;
        if let Some(processes) = arguments.ranks.ranks.filter(|_| arguments.device.check) {
            let others = (1..processes as usize).map(|rank| {
                let mut options = options.clone();
                options.engine.device.processes = Some(ProcessGroup::for_plan_of(rank, processes as usize));
                Ok(Trainer::new(model.clone(), options)?.plan().clone())
            });
            let others = others.collect::<Result<Vec<Plan>, Failure>>()?;
            check_plans(&[trainer.plan()].into_iter().chain(&others).collect::<Vec<_>>())?;
        }
        let ranks = arguments.ranks.simulated();
        let simulated = ranks.map(|ranks| Trainer::simulate(&model, &options, &ranks)).transpose()?;
        let scaling = scaled.map(|(processes, network)| {
            let alone = alone.as_ref().map(Trainer::statistics);
            Scaling::new(processes, network, (trainer.statistics(), trainer.shared_work()), alone)
                .with_simulated(simulated)
        });
        drop(waiting);
        warn_of_unknown_costs(trainer.unknown_costs());
        tell_of_budget(&arguments.device, trainer.budget_excludes_process());
        arguments.updates.tell(&trainer.plan_as_made().statistics);
        show(arguments, machine.as_ref(), trainer.plan(), &trainer.explain(), &trainer.costs(), scaling.as_ref())
    } else {
        let mut options = SessionOptions::default();
        (options.engine, options.batch_size) = (engine, arguments.training.batch_size);
        options.sizes = arguments.training.size.iter().cloned().collect();
        let alone = options.clone();
        let scaled = scaled(arguments, machine.as_ref(), &mut options.engine.device);
        let alone = scaled.and_then(|_| Session::new(&model, &alone).ok());
        let session = Session::new(&model, &options)?;
        let (Some(plan), Some(explanation), Some(costs)) = (session.plan(), session.explain(), session.costs()) else {
            return Err(no_plan(&session));
        };
        let ranks = arguments.ranks.simulated();
        let simulated = ranks.map(|ranks| Session::simulate(&model, &options, &ranks)).transpose()?;
        let scaling = scaled.map(|(processes, network)| {
            let alone = alone.as_ref().and_then(Session::statistics);
            Scaling::new(processes, network, (&plan.statistics, session.shared_work()), alone).with_simulated(simulated)
        });
        drop(waiting);
        warn_of_unknown_costs(session.unknown_costs());
        tell_of_budget(&arguments.device, session.budget_excludes_process());
        show(arguments, machine.as_ref(), plan, &explanation, &costs, scaling.as_ref())
    }
}

/// Makes a device that of the first of `--ranks` processes. Returns their number and the network between them, or `None` without the flag.
fn scaled(
    arguments: &PlanArguments,
    machine: Option<&MachineDescription>,
    device: &mut DeviceOptions,
) -> Option<(u64, Network)> {
    let processes = arguments.ranks.ranks?;
    device.network = arguments.ranks.network;
    device.processes = Some(ProcessGroup::for_plans(processes as usize));
    let network = arguments.ranks.network.or(machine.map(|machine| machine.network));
    Some((processes, network.unwrap_or_default()))
}

/// Explains why a model has no plan before it runs.
fn no_plan(session: &Session) -> Failure {
    let open = session.inputs().iter().flat_map(|info| {
        info.dimensions.iter().enumerate().filter_map(move |(i, dimension)| match dimension {
            Dimension::Symbol(symbol) if symbol.is_empty() => Some(format!("{}[{i}]", info.name)),
            Dimension::Symbol(symbol) => Some(symbol.clone()),
            Dimension::Known(_) => None,
        })
    });
    let open: BTreeSet<String> = open.collect();
    if open.is_empty() {
        let reason = "the model computes nothing, or what it computes depends on the values of its inputs; its plans are \
                      made when it runs";
        return Failure::Failed(reason.to_string());
    }
    let flags: Vec<String> = open.iter().map(|name| format!("--size {name}=N")).collect();
    Failure::Usage(format!("the model leaves sizes open; set them with {}", flags.join(" ")))
}

/// Warns that some durations of a plan are estimates although costs were given.
pub fn warn_of_unknown_costs(unknown: Option<&Unknown>) {
    if let Some(Unknown { count, launches, first }) = unknown {
        output::complain(&format!(
            "warning: --costs has no durations for {count} of {launches} launches (the first is '{first}'); they are estimated"
        ));
    }
}

/// Describes how much of a step fits on a machine.
fn verdict(machine: &MachineDescription, statistics: &Statistics) -> [String; 2] {
    let (peak_bytes, needed_bytes) = (statistics.device_peak_bytes, statistics.in_core_peak_bytes);
    let slower = statistics.predicted_ns as f64 / statistics.in_core_predicted_ns.max(1) as f64;
    let share = statistics.device_budget_bytes.map_or(1.0, |budget_bytes| budget_bytes as f64 / needed_bytes as f64);
    let (device, host) = (format_bytes(machine.device_memory_bytes), format_bytes(machine.host_memory_bytes));
    [
        format!("machine           {} ({device} on the device, {host} on the host)", machine.name),
        if peak_bytes >= needed_bytes {
            "what fits         everything at once".to_owned()
        } else {
            let percent = 100.0 * share;
            format!("what fits         {percent:.0} % at once; moving the rest makes a step {slower:.2} times as long")
        },
    ]
}

fn show(
    arguments: &PlanArguments,
    machine: Option<&MachineDescription>,
    plan: &Plan,
    explanation: &Explanation,
    costs: &SavedCosts,
    scaling: Option<&Scaling>,
) -> Result<(), Failure> {
    if let Some(path) = &arguments.memory_svg {
        let title = format!("device memory of {} over a step", arguments.model.display());
        output::write(path, &memory_picture(plan, &title).svg())?;
    }
    let simulated = scaling.and_then(Scaling::simulated);
    if let Some((path, step)) = arguments.ranks.trace.as_ref().zip(simulated) {
        output::write(path, &step.trace().to_string())?;
    }
    if !arguments.report.json {
        machine.iter().flat_map(|machine| verdict(machine, &plan.statistics)).for_each(|line| output::say(&line));
        scaling.iter().flat_map(|scaling| scaling.lines()).for_each(|line| output::say(&line));
        output::say(explanation.to_string().trim_end());
        if arguments.moves {
            output::say("what moves, in order:");
            explanation.movement_lines().iter().for_each(|line| output::say(&format!("  {line}")));
        }
        if arguments.commands {
            output::say("commands of a step:");
            command_lines(plan).iter().for_each(|line| output::say(&format!("  {line}")));
        }
        return Ok(());
    }
    let device_peak_bytes = plan.statistics.device_peak_bytes;
    let (statistics, resident_peak_bytes) = (&plan.statistics, None);
    let report =
        Report { steps: &[], statistics, device_peak_bytes, resident_peak_bytes, limit: None, explanation: None };
    let mut object = report.json();
    let failed = |error| Failure::Failed(format!("cannot write the plan: {error}"));
    object.insert("machine".to_owned(), machine.map(|machine| machine.name.clone()).into());
    if let Some(scaling) = scaling {
        object.insert("processes".to_owned(), scaling.json());
    }
    object.insert("costs".to_owned(), serde_json::to_value(costs).map_err(failed)?);
    match serde_json::to_value(explanation).map_err(failed)? {
        Value::Object(explained) => object.extend(explained),
        other => unreachable!("an explanation is an object, not {other}"),
    }
    if arguments.commands {
        object.insert("commands".to_owned(), command_lines(plan).into());
    }
    say_json(object)
}
