//! Plans: how a step would run, without running it.

use std::collections::BTreeMap;

use forebay::{
    EngineOptions, Error, Explanation, MachineDescription, MemoryLimit, MemorySize, Network, Plan, PlanSearch, Ranks,
    Shard, documents, format_bytes, memory_picture,
};
use pyo3::prelude::*;

use crate::errors::exception;
use crate::long_work::obeying_signals;
use crate::model::Model;
use crate::options::{Engine, Sizes, Training, session_options, shard_of, trainer_options};

/// A plan as passed to Python.
#[derive(IntoPyObject)]
pub struct Planned {
    /// The explanation as JSON.
    explanation: String,
    /// The explanation in words.
    text: String,
    /// The moves in order, in words.
    moves: Vec<String>,
    /// An SVG picture of device memory over a step.
    picture: String,
}

/// Converts a plan and its explanation.
pub fn planned(plan: &Plan, explanation: &Explanation, title: &str) -> Planned {
    Planned {
        // It holds only numbers and names, so serializing it cannot fail.
        explanation: serde_json::to_string(explanation).unwrap_or_default(),
        text: explanation.to_string(),
        moves: explanation.movement_lines(),
        picture: memory_picture(plan, title).svg(),
    }
}

/// Plans a step: a training step if there are options for it, otherwise inference.
#[pyfunction]
pub fn plan(
    py: Python<'_>,
    model: &Model,
    engine: Engine,
    sizes: Sizes,
    training: Option<Training>,
    title: String,
) -> PyResult<Planned> {
    let model = model.0.clone();
    let Some(training) = training else {
        let mut options = session_options(py, engine, sizes)?;
        only_planned(&mut options.engine);
        return obeying_signals(py, f64::INFINITY, move || {
            let session = forebay::Session::new(&model, &options)?;
            match (session.plan(), session.explain()) {
                (Some(plan), Some(explanation)) => Ok(planned(plan, &explanation, &title)),
                _ => Err(Error::Option {
                    reason:
                        "the model leaves sizes open, or has nothing to compute before its inputs are known; pass the \
                             batch size, and the other sizes by name (batch_size=8, sizes={\"length\": 128})"
                            .to_owned(),
                }),
            }
        });
    };
    let mut options = trainer_options(py, &model, engine, sizes, training)?;
    only_planned(&mut options.engine);
    obeying_signals(py, f64::INFINITY, move || {
        let trainer = forebay::Trainer::new(model, options)?;
        Ok(planned(trainer.plan(), &trainer.explain(), &title))
    })
}

/// A process in a simulated step: seconds, those in which kernels run, data is exchanged, and exchanges wait for others; how many times as
/// long as planned kernels take; bytes sent, bytes on the device, bytes on the host.
type Rank = ((f64, f64, f64, f64), f64, (u64, u64, u64));

/// A simulated step of several processes.
#[pyclass(module = "forebay._forebay", frozen)]
pub struct SimulatedStep(forebay::SimulatedStep);

#[pymethods]
impl SimulatedStep {
    /// Plans a step of several processes (their number, the network between them, the slices of training state that each keeps, how many
    /// times as long as planned the kernels of some of them take) and simulates all of them together.
    #[new]
    fn new(
        py: Python<'_>,
        model: &Model,
        engine: Engine,
        sizes: Sizes,
        training: Option<Training>,
        processes: (usize, Option<String>, Option<String>, BTreeMap<usize, f64>),
    ) -> PyResult<SimulatedStep> {
        let (count, network, shard, slow) = processes;
        let shard = shard.map_or(Ok(Shard::default()), |text| shard_of(py, &text))?;
        let network = network.map(|text| text.parse::<Network>()).transpose();
        let network =
            network.map_err(|reason| exception(py, &Error::Option { reason: format!("network: {reason}") }))?;
        let ranks = slow.into_iter().fold(Ranks::new(count), |ranks, (rank, slowness)| ranks.slow(rank, slowness));
        let model = model.0.clone();
        let Some(training) = training else {
            let mut options = session_options(py, engine, sizes)?;
            simulated(&mut options.engine, network, shard);
            return obeying_signals(py, f64::INFINITY, move || {
                Ok(SimulatedStep(forebay::Session::simulate(&model, &options, &ranks)?))
            });
        };
        let mut options = trainer_options(py, &model, engine, sizes, training)?;
        simulated(&mut options.engine, network, shard);
        obeying_signals(py, f64::INFINITY, move || {
            Ok(SimulatedStep(forebay::Trainer::simulate(&model, &options, &ranks)?))
        })
    }

    /// Returns the duration of the step in seconds.
    fn seconds(&self) -> f64 {
        self.0.seconds
    }

    /// Returns the process that is at work longest.
    fn slowest(&self) -> usize {
        self.0.slowest()
    }

    /// Returns what each process does, by rank.
    fn ranks(&self) -> Vec<Rank> {
        let rank = |rank: &forebay::SimulatedRank| {
            (
                (rank.seconds, rank.busy_seconds, rank.exchange_seconds, rank.waiting_seconds),
                rank.slowness,
                (rank.sent_bytes, rank.device_peak_bytes, rank.host_bytes),
            )
        };
        self.0.ranks.iter().map(rank).collect()
    }

    /// Returns when every command runs, as JSON.
    fn trace(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.trace().to_string())
    }
}

/// Completes options for a plan that does not run: it does not depend on how much memory is currently free.
fn only_planned(engine: &mut EngineOptions) {
    engine.memory.memory_limit.get_or_insert(MemoryLimit::Unlimited);
    engine.planning.search = PlanSearch::Whole;
}

/// Completes options for a simulation.
fn simulated(engine: &mut EngineOptions, network: Option<Network>, shard: Shard) {
    only_planned(engine);
    (engine.device.network, engine.device.shard) = (network, shard);
}

/// Returns the machines included in the library: key, description, bytes on the device, bytes on the host.
#[pyfunction]
pub fn machines(py: Python<'_>) -> PyResult<Vec<(String, String, u64, u64)>> {
    let describe = |name: &str| {
        let machine = documents::machine(name)?;
        Ok((name.to_owned(), machine.name, machine.device_memory_bytes, machine.host_memory_bytes))
    };
    let all: Result<_, Error> = MachineDescription::built_in_names().map(describe).collect();
    all.map_err(|error| exception(py, &error))
}

/// Returns the bytes of a size such as `8GiB`.
#[pyfunction]
pub fn parse_size(py: Python<'_>, text: &str) -> PyResult<u64> {
    match text.parse::<MemorySize>().map_err(|error| exception(py, &error.into()))? {
        MemorySize::Bytes(bytes) => Ok(bytes),
        MemorySize::Percent(_) => {
            let reason = format!("expected a size, as in 8GiB, found the percentage '{text}'");
            Err(exception(py, &Error::Option { reason }))
        }
    }
}

/// Formats a number of bytes for people.
#[pyfunction]
pub fn format_size(bytes: u64) -> String {
    format_bytes(bytes)
}
