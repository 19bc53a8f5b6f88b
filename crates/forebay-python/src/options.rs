//! Options, which Python passes as dictionaries with all of their keys.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay::managed::Policy;
use forebay::training::{DecayRule, Precision, TrainingOptions};
use forebay::{
    Error, HostOperators, LaunchOrder, MemoryMode, OnNan, SessionOptions, Shard, TrainerOptions, Updates, documents,
};
use pyo3::prelude::*;

use crate::errors::{choice, exception};
use crate::losses::{LossGiven, TermGiven, loss};
use crate::optimizers::{OptimizerGiven, optimizer};
use crate::processes::Processes;
use crate::recipe::Recipe;

/// Device, budgets and planning: see [`forebay::EngineOptions`]. Sizes are strings. Python leaves out options that were not given.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Engine {
    device: String,
    device_memory: Option<String>,
    #[pyo3(default)]
    machine: Option<String>,
    #[pyo3(default)]
    threads: Option<usize>,
    #[pyo3(default)]
    memory_limit: Option<String>,
    #[pyo3(default)]
    simulate_device: Option<String>,
    #[pyo3(default)]
    host_memory: Option<String>,
    #[pyo3(default)]
    spill_dir: Option<PathBuf>,
    #[pyo3(default)]
    memory_mode: Option<String>,
    #[pyo3(default)]
    eviction: Option<String>,
    #[pyo3(default)]
    growth: Option<bool>,
    #[pyo3(default)]
    costs: Option<PathBuf>,
    #[pyo3(default)]
    fuse: Option<bool>,
    #[pyo3(default)]
    order: Option<String>,
    #[pyo3(default)]
    updates: Option<String>,
    #[pyo3(default)]
    host_operators: Option<String>,
    #[pyo3(default)]
    check: Option<bool>,
    #[pyo3(default)]
    trace: Option<bool>,
    #[pyo3(default)]
    heap_size: Option<u64>,
    #[pyo3(default)]
    tile_size: Option<u64>,
    #[pyo3(default)]
    tiled: Option<bool>,
    #[pyo3(default)]
    link_bytes_per_second: Option<u64>,
    #[pyo3(default)]
    processes: Option<Py<Processes>>,
    #[pyo3(default)]
    shard: Option<String>,
}

/// The batch size and other sizes that the model leaves open.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Sizes {
    batch_size: Option<u64>,
    sizes: BTreeMap<String, u64>,
}

/// See [`TrainingOptions`].
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Training {
    loss: LossGiven,
    loss_output: Option<String>,
    loss_weight: Option<f32>,
    terms: Vec<TermGiven>,
    optimizer: OptimizerGiven,
    decay: Option<String>,
    freeze: Vec<String>,
    seed: u64,
    on_nan: String,
    precision: Option<String>,
    float32: Vec<String>,
    recipe: Recipe,
}

/// Returns the slices of training state that processes keep, by name.
pub fn shard_of(py: Python<'_>, text: &str) -> PyResult<Shard> {
    let shards = [("state", Shard::State), ("gradients", Shard::Gradients), ("parameters", Shard::Parameters)];
    choice(py, "kind of shard", text, &shards)
}

/// Returns the row of a table with a given name, or `default` if no name is given.
fn choice_or<T: Copy>(py: Python<'_>, what: &str, text: Option<&str>, table: &[(&str, T)], default: T) -> PyResult<T> {
    text.map_or(Ok(default), |text| choice(py, what, text, table))
}

fn engine_options(py: Python<'_>, given: Engine) -> PyResult<forebay::EngineOptions> {
    let wrong = |error: &Error| exception(py, error);
    let size = |text: Option<String>| {
        text.map(|text| text.parse()).transpose().map_err(|error: forebay::MemorySizeError| wrong(&error.into()))
    };
    let mut options = forebay::EngineOptions::default();
    let (device, memory) = (&mut options.device, &mut options.memory);
    device.name = given.device.parse().map_err(|error| wrong(&error))?;
    device.machine = given.machine.as_deref().map(documents::machine).transpose().map_err(|error| wrong(&error))?;
    device.threads = given.threads;
    device.heap_size = given.heap_size;
    device.tile_size = given.tile_size;
    device.tiled = given.tiled.unwrap_or(device.tiled);
    device.link_bytes_per_second = given.link_bytes_per_second;
    let has_processes = given.processes.is_some();
    let group = given.processes.map(|processes| processes.get().0.clone());
    device.processes = group.filter(|group| group.size() > 1);
    let shard = given.shard.as_deref().map(|text| shard_of(py, text)).transpose()?;
    if given.shard.is_some() && !has_processes {
        let reason =
            "shard applies to several processes; pass processes=forebay.Processes() as well, or leave out shard";
        return Err(wrong(&Error::Option { reason: reason.to_owned() }));
    }
    device.shard = shard.unwrap_or_default();
    memory.memory_limit = given.memory_limit.map(|text| text.parse()).transpose().map_err(|error| wrong(&error))?;
    memory.device_memory = size(given.device_memory)?;
    memory.simulate_device = size(given.simulate_device)?;
    memory.host_memory = size(given.host_memory)?;
    memory.spill_dir = given.spill_dir;
    let modes = [
        ("planned", MemoryMode::Planned),
        ("direct", MemoryMode::Direct),
        ("cooperative", MemoryMode::Cooperative),
        ("automatic", MemoryMode::Automatic),
    ];
    memory.mode = choice_or(py, "memory mode", given.memory_mode.as_deref(), &modes, memory.mode)?;
    let policies = [("driver", Policy::Driver), ("touch", Policy::Touch), ("planned", Policy::Planned)];
    let policy = |text: &str| choice(py, "eviction order", text, &policies);
    memory.eviction = given.eviction.as_deref().map(policy).transpose()?;
    memory.growth = given.growth.unwrap_or(memory.growth);
    options.planning.costs =
        given.costs.as_deref().map(documents::read_costs).transpose().map_err(|error| wrong(&error))?;
    let planning = &mut options.planning;
    planning.fuse = given.fuse.unwrap_or(planning.fuse);
    let orders = [("file", LaunchOrder::File), ("barriers", LaunchOrder::Barriers)];
    planning.order = choice_or(py, "launch order", given.order.as_deref(), &orders, planning.order)?;
    let places = Updates::ALL.map(|updates| (updates.name(), updates));
    planning.updates = choice_or(py, "place for updates", given.updates.as_deref(), &places, planning.updates)?;
    let answers = HostOperators::ALL.map(|answer| (answer.name(), answer));
    let host_operators = given.host_operators.as_deref();
    planning.host_operators =
        choice_or(py, "value of host_operators", host_operators, &answers, planning.host_operators)?;
    planning.check = given.check.unwrap_or(planning.check);
    options.measuring.trace = given.trace.unwrap_or(options.measuring.trace);
    Ok(options)
}

/// Converts the options of a session.
///
/// # Errors
/// Fails if an option is not valid.
pub fn session_options(py: Python<'_>, engine: Engine, sizes: Sizes) -> PyResult<SessionOptions> {
    let mut options = SessionOptions::default();
    options.engine = engine_options(py, engine)?;
    (options.batch_size, options.sizes) = (sizes.batch_size, sizes.sizes);
    Ok(options)
}

/// Converts the options of a trainer.
///
/// # Errors
/// Fails if an option is not valid.
pub fn trainer_options(
    py: Python<'_>,
    model: &forebay::Model,
    engine: Engine,
    sizes: Sizes,
    given: Training,
) -> PyResult<TrainerOptions> {
    let mut training = TrainingOptions::new(loss(py, given.loss)?, optimizer(py, &given.optimizer)?);
    training.loss_output = given.loss_output;
    training.loss_weight = given.loss_weight;
    training.terms = given.terms.into_iter().map(|term| term.term(py)).collect::<PyResult<_>>()?;
    let rules = [("all", DecayRule::All), ("matrices", DecayRule::MatricesOnly)];
    let rule = |text: &str| choice(py, "decay rule", text, &rules);
    training.decay = given.decay.as_deref().map(rule).transpose()?;
    let kinds = [("bf16", 0), ("f16", 1)];
    let kind = given.precision.as_deref().map(|text| choice(py, "precision", text, &kinds)).transpose()?;
    if kind.is_none() && !given.float32.is_empty() {
        let reason =
            "float32 names what stays float32 in 16 bits; pass precision=\"bf16\" as well, or leave out float32";
        return Err(exception(py, &Error::Option { reason: reason.to_owned() }));
    }
    training.precision = kind.map(|kind| {
        let mut precision = if kind == 0 { Precision::bfloat16() } else { Precision::float16() };
        precision.float32 = given.float32;
        precision
    });
    training.freeze = given.freeze;
    training.seed = given.seed;
    let mut options = TrainerOptions::new(training);
    given.recipe.apply(py, model, &mut options)?;
    options.engine = engine_options(py, engine)?;
    (options.batch_size, options.sizes) = (sizes.batch_size, sizes.sizes);
    let answers = [("stop", OnNan::Stop), ("continue", OnNan::Continue), ("skip", OnNan::Skip)];
    options.on_nan = choice(py, "value of on_nan", &given.on_nan, &answers)?;
    Ok(options)
}
