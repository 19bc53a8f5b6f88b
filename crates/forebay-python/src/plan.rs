//! Plans: how a step would run, without running it.

use forebay::{
    Error, Explanation, MachineDescription, MemoryLimit, MemorySize, Plan, PlanSearch, documents, format_bytes,
    memory_picture,
};
use pyo3::prelude::*;

use crate::errors::exception;
use crate::long_work::obeying_signals;
use crate::model::Model;
use crate::options::{Engine, Sizes, Training, session_options, trainer_options};

/// What Python gets of a plan.
#[derive(IntoPyObject)]
pub struct Planned {
    /// The explanation as JSON.
    explanation: String,
    /// The same in words.
    text: String,
    /// What moves, in order, in words.
    moves: Vec<String>,
    /// Device memory over a step, as an SVG picture.
    picture: String,
}

/// Hands over a plan and its explanation.
pub fn planned(plan: &Plan, explanation: &Explanation, title: &str) -> Planned {
    Planned {
        // Numbers and names: nothing in it can fail to be written.
        explanation: serde_json::to_string(explanation).unwrap_or_default(),
        text: explanation.to_string(),
        moves: explanation.movement_lines(),
        picture: memory_picture(plan, title).svg(),
    }
}

/// Plans a step: of training where there are options for it, else of inference.
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
        options.engine.memory.memory_limit.get_or_insert(MemoryLimit::Unlimited);
        options.engine.planning.search = PlanSearch::Whole;
        return obeying_signals(py, f64::INFINITY, move || {
            let session = forebay::Session::new(&model, &options)?;
            match (session.plan(), session.explain()) {
                (Some(plan), Some(explanation)) => Ok(planned(plan, &explanation, &title)),
                _ => Err(Error::Option {
                    reason:
                        "the model leaves sizes open, or has nothing to compute before its inputs are known: give the \
                             batch size, and the other sizes by name (batch_size=8, sizes={\"length\": 128})"
                            .to_owned(),
                }),
            }
        });
    };
    let mut options = trainer_options(py, &model, engine, sizes, training)?;
    // A plan does not depend on what is free at the moment.
    options.engine.memory.memory_limit.get_or_insert(MemoryLimit::Unlimited);
    options.engine.planning.search = PlanSearch::Whole;
    obeying_signals(py, f64::INFINITY, move || {
        let trainer = forebay::Trainer::new(model, options)?;
        Ok(planned(trainer.plan(), &trainer.explain(), &title))
    })
}

/// Machines that come with the library: name, what it is, bytes on the device, bytes on the host.
#[pyfunction]
pub fn machines(py: Python<'_>) -> PyResult<Vec<(String, String, u64, u64)>> {
    let describe = |name: &str| {
        let machine = documents::machine(name)?;
        Ok((name.to_owned(), machine.name, machine.device_memory_bytes, machine.host_memory_bytes))
    };
    let all: Result<_, Error> = MachineDescription::built_in_names().map(describe).collect();
    all.map_err(|error| exception(py, &error))
}

/// The bytes of a size such as `8GiB`.
#[pyfunction]
pub fn parse_size(py: Python<'_>, text: &str) -> PyResult<u64> {
    match text.parse::<MemorySize>().map_err(|error| exception(py, &error.into()))? {
        MemorySize::Bytes(bytes) => Ok(bytes),
        MemorySize::Percent(_) => {
            let reason = format!("'{text}' is a share, and a size is needed here: write 8GiB, say");
            Err(exception(py, &Error::Option { reason }))
        }
    }
}

/// Bytes as people write them.
#[pyfunction]
pub fn format_size(bytes: u64) -> String {
    format_bytes(bytes)
}
