//! Options for the device, memory, planning and training. Each option is defined here once.

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

/// Options for running a [`Session`](crate::Session).
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
    /// The size of the batch dimension, if the model leaves it open; plans are then made before the first run. If not set, sizes are those
    /// of the inputs of each run.
    pub batch_size: Option<u64>,
    /// Other sizes that the model leaves open, by their symbols in the model or as `input[dimension]`.
    pub sizes: BTreeMap<String, u64>,
}

/// What happens if the loss, or the norm of the gradients if it is known, is not finite.
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
    /// The step fails and leaves parameters and state unchanged.
    #[default]
    Stop,
    /// The step is done anyway.
    Continue,
    /// The step counts, but nothing is updated: not the parameters, the state, the running statistics, or the optimizer's step number. This
    /// option causes the norm of the gradients to be computed.
    Skip,
}

/// Options for training with a [`Trainer`](crate::Trainer).
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
    /// Loss, optimizer, and which parameters train.
    pub training: TrainingOptions,
    /// Device, budgets, planning, measuring.
    pub engine: EngineOptions,
    /// The batch size, if the model leaves it open or another size is wanted.
    pub batch_size: Option<u64>,
    /// Other sizes that the model leaves open, by their symbols in the model or as `input[dimension]`.
    pub sizes: BTreeMap<String, u64>,
    /// What happens if the loss, or the norm of the gradients if it is known, is not finite.
    pub on_nan: OnNan,
    /// How the learning rate changes from step to step.
    pub schedule: Schedule,
    /// Schedules for parameter groups, by their index in [`TrainingOptions::groups`]; other groups follow `schedule`. The factor of a group
    /// then applies to the rate of its own schedule. Schedules that follow losses can only be used for all parameters.
    pub group_schedules: BTreeMap<usize, Schedule>,
}

impl TrainerOptions {
    /// Creates options for training on the host without budgets, at the model's own batch size. Training stops if the loss is not finite.
    pub fn new(training: TrainingOptions) -> TrainerOptions {
        TrainerOptions { training, ..TrainerOptions::default() }
    }
}
