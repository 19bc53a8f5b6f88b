//! On what machine, within what memory, how to plan and to train. Each option is defined here once.

mod device;
mod engine;
mod memory;
mod planning;

use std::collections::BTreeMap;

use forebay_model::training::TrainingOptions;

use crate::schedule::Schedule;

pub use device::{DeviceName, DeviceOptions};
pub use engine::EngineOptions;
pub(crate) use engine::engine_setters;
pub use memory::{MemoryLimit, MemoryMode, MemoryOptions, ProcessLimit};
pub use planning::{HostOperators, MeasuringOptions, PlanSearch, PlanningOptions, Updates};

/// How a [`Session`](crate::Session) runs.
///
/// ```
/// let mut options = forebay::SessionOptions::default();
/// options.engine.memory.device_memory = Some("50%".parse()?);
/// options.batch_size = Some(8);
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Device, budgets, planning, measuring.
    pub engine: EngineOptions,
    /// The size of the batch dimension, where the model leaves it open: plans are then made before the first run. Where nothing is
    /// said, sizes are those of the inputs of a run.
    pub batch_size: Option<u64>,
    /// Other sizes that the model leaves open, by the symbols that it gives them, or as `input[dimension]`.
    pub sizes: BTreeMap<String, u64>,
}

/// What happens when the loss is not a finite number, or, where it is known, the norm of the gradients.
///
/// ```
/// use forebay::OnNan;
///
/// let mut options = forebay::TrainerOptions::default();
/// assert_eq!(options.on_nan, OnNan::Stop);
/// options.on_nan = OnNan::Continue;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnNan {
    /// The step fails, and leaves parameters and state as before it.
    #[default]
    Stop,
    /// The step is done all the same.
    Continue,
    /// The step counts, but nothing is updated: neither parameters nor state nor running statistics, nor the optimizer's number of
    /// the step. The norm of the gradients is computed for it.
    Skip,
}

/// How a [`Trainer`](crate::Trainer) trains.
///
/// ```
/// let mut options = forebay::TrainerOptions::default();
/// options.training.optimizer = forebay::training::Optimizer::sgd(0.05);
/// options.engine.memory.device_memory = Some("50%".parse()?);
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TrainerOptions {
    /// Loss, optimizer, what trains.
    pub training: TrainingOptions,
    /// Device, budgets, planning, measuring.
    pub engine: EngineOptions,
    /// The size of a batch, where the model leaves it open or another one is wanted.
    pub batch_size: Option<u64>,
    /// Other sizes that the model leaves open, by the symbols that it gives them, or as `input[dimension]`.
    pub sizes: BTreeMap<String, u64>,
    /// What happens when the loss is not a finite number, or, where it is known, the norm of the gradients.
    pub on_nan: OnNan,
    /// How the learning rate changes from step to step.
    pub schedule: Schedule,
    /// The same for groups of parameters, by their places in [`TrainingOptions::groups`]; those that are not named here follow the schedule of
    /// all. A group's factor is of its own rate then. Schedules that follow losses are for all parameters only.
    pub group_schedules: BTreeMap<usize, Schedule>,
}

impl TrainerOptions {
    /// Training on the host without budgets, at the model's own batch size; stops where the loss is no number.
    pub fn new(training: TrainingOptions) -> TrainerOptions {
        TrainerOptions { training, ..TrainerOptions::default() }
    }
}
